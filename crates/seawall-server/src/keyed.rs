//! Calls with an idempotency key: whether one is demanded or made, what the key stands for, and the store's side of its
//! reservation. What a key means is decided by the core.

use super::answer::Refusal;
use super::caller_context::CallerContext;
use super::deferred;
use super::gateway::{Gateway, Routed};
use super::hygiene::{self, Marks, Pseudonym};
use super::intake;
use super::jobs::{self, Desk, KeyedRequest};
use super::ledger::{Held, Needs, Told};
use crate::letter;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use seawall_core::admit::idempotency::{Answer as Kept, Claim, Ending, Fingerprint};
use seawall_core::call::{Answer, Outcome, Reservation};
use seawall_core::id::CallId;
use seawall_core::policy::{Idempotency, IdempotencyMode};
use seawall_core::record::{Attempt, Code};
use seawall_core::time::{Nanos, Wall};
use seawall_engine::drive::{Ended, Keeper};
use seawall_engine::mask::Mask;
use seawall_engine::transport::{self, HttpTransport, Replay};
use seawall_http::body::Relay;
use seawall_store::idempotency::{Finish, Reserve};
use seawall_store::job::{self, Response};
use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::sync::Arc;

pub(super) const KEY: HeaderName = HeaderName::from_static("idempotency-key");
pub(super) const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// What is kept of an answer. A longer one, or one without an end, is passed on and not kept.
pub(super) const MOST_ANSWER: usize = 1 << 20;
/// A reservation outlives the call's deadline by this, so that only a call that is lost loses it.
const SLACK: Nanos = Nanos::from_secs(2);

/// Whether a request has to have a key that it does not have.
pub(super) fn is_missing(idempotency: &Idempotency, method: &Method, has_key: bool) -> bool {
    idempotency.mode == IdempotencyMode::Required && !has_key && !method.is_idempotent()
}

/// Whether a request gets a key of our own.
pub(super) fn is_made(idempotency: &Idempotency, method: &Method, has_key: bool) -> bool {
    idempotency.mode == IdempotencyMode::Generate && !has_key && !method.is_idempotent()
}

/// A request as its key sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub caller: &'a str,
    pub upstream: &'a str,
    pub method: &'a str,
    /// Path and query below the upstream.
    pub below: &'a str,
    /// As the upstream gets them: the caller's own credentials among them are part of who it is.
    pub headers: &'a HeaderMap,
    pub body: &'a [u8],
    /// How long the call may take.
    pub left: Nanos,
}

/// The reservation of one call's key.
#[derive(Debug)]
pub(super) struct Keyed {
    desk: Arc<Desk>,
    scope: [u8; 32],
    claim: Claim,
    owner: CallId,
    /// Whose silence refuses the call; without the others it goes on, and they promise nothing.
    needs: Needs,
    /// Nothing is written down when it is dropped: its holder comes back.
    stays: bool,
    progress: Cell<Progress>,
    stored: RefCell<Option<Response>>,
}

/// How far a reservation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Unasked,
    /// The store has been asked and has not answered.
    Asking,
    Held(Held),
    Ending(Held, Reservation),
    Over,
}

impl Keyed {
    /// The key of a request whose policy honours keys; none where it has none.
    pub(super) fn of(asked: Asked<'_>, idempotency: &Idempotency, key: &str, owner: CallId, desk: &Arc<Desk>) -> Self {
        let Asked { caller, upstream, method, below, headers, body, left } = asked;
        let content_type = headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        let required = idempotency.mode == IdempotencyMode::Required;
        Self {
            desk: Arc::clone(desk),
            scope: KeyedRequest { caller, upstream, method, path: below, headers, key }.scope(),
            claim: Claim {
                fingerprint: Fingerprint(jobs::fingerprint(method, below, content_type, body)),
                lease: left + SLACK,
                ttl: idempotency.ttl,
                upstream_honours_keys: idempotency.honoured,
            },
            owner,
            needs: Needs { store: required, shared: required },
            stays: false,
            progress: Cell::new(Progress::Unasked),
            stored: RefCell::new(None),
        }
    }

    /// A job is put off where the store does not answer, and comes back to its own reservation.
    #[must_use]
    pub(super) const fn of_job(mut self) -> Self {
        self.needs.store = true;
        self.stays = true;
        self
    }

    /// Somebody who knows what happened wants it done again.
    #[must_use]
    pub(super) const fn deliberately(mut self) -> Self {
        self.claim.upstream_honours_keys = true;
        self
    }

    /// The answer that is to be given again.
    pub(super) fn stored(&self) -> Option<Response> {
        self.stored.borrow_mut().take()
    }

    /// Leaves the reservation to the job that this call becomes, which has the call's id.
    pub(super) fn leave(&self) {
        self.progress.set(Progress::Over);
    }

    /// How the reservation of a job ends, to be written together with the job's own end. What became a dead letter is
    /// remembered there, and its key stands in nobody's way who replays it on purpose. Other instances hear of it first: a job
    /// that is not settled then, and runs again, is given its own answer.
    pub(super) async fn close(&self, ending: &job::Ending) -> Option<Finish> {
        let response = match ending {
            job::Ending::Done(response) => Some(response.clone()),
            job::Ending::Dead(_) | job::Ending::Failed { .. } => {
                if let Progress::Ending(held, Reservation::Done) = self.progress.get() {
                    self.progress.set(Progress::Ending(held, Reservation::Released));
                }
                None
            }
            job::Ending::Wait { .. } | job::Ending::Release | job::Ending::Cancelled => return None,
        };
        let (held, end) = self.over(response)?;
        self.desk.ledger.tell_others(held, &end).await;
        held.own.map(|reservation| Finish { reservation, ..end })
    }

    /// How the reservation ends that workers left behind which were lost with a job, now that the job is given up on. Where a request with
    /// its key may be repeated, the key is free for whoever comes with it again.
    pub(super) async fn give_up(&self, ending: &job::Ending, is_repeatable: bool) -> Option<Finish> {
        if self.ask().await != Answer::Reserved {
            return None;
        }
        self.settle(if is_repeatable { Reservation::Released } else { Reservation::Unknown });
        self.close(ending).await
    }

    /// Writes down how the reservation ended. When this returns, the answer may be passed on: if the store failed, the key
    /// stays reserved and then in doubt, so that nothing is executed twice.
    pub(super) async fn finish(&self, response: Option<Response>) {
        if let Some((held, end)) = self.over(response) {
            self.desk.ledger.finish(held, end).await;
        }
    }

    fn over(&self, response: Option<Response>) -> Option<(Held, Finish)> {
        let Progress::Ending(held, how) = self.progress.replace(Progress::Over) else { return None };
        Some((held, self.end(how, response.filter(|_| how == Reservation::Done))))
    }

    fn end(&self, how: Reservation, response: Option<Response>) -> Finish {
        let ending = match how {
            Reservation::Done => Ending::Done,
            Reservation::Released => Ending::Released,
            Reservation::Unknown => Ending::Unknown,
        };
        Finish { scope: self.scope, reservation: 0, ending, response, ttl: self.claim.ttl, now: self.desk.now() }
    }

    fn wish(&self) -> Reserve {
        Reserve { scope: self.scope, claim: self.claim, owner: Some(self.owner), now: self.desk.now() }
    }

    async fn ask(&self) -> Answer {
        self.progress.set(Progress::Asking);
        let told = self.desk.ledger.reserve(self.wish(), self.owner, self.needs).await;
        self.progress.set(Progress::Over);
        match told {
            Told::Held(held) => {
                self.progress.set(Progress::Held(held));
                Answer::Reserved
            }
            Told::Replay(stored) => match stored.filter(|response| !response.truncated) {
                Some(response) => {
                    *self.stored.borrow_mut() = Some(response);
                    Answer::Replayed
                }
                None => Answer::KeyRefused(Code::OutcomeUnknown),
            },
            Told::Refused(Kept::Mismatch) => Answer::KeyRefused(Code::IdempotencyKeyMismatch),
            Told::Refused(Kept::InFlight { .. }) => Answer::KeyRefused(Code::IdempotencyKeyInFlight),
            Told::Refused(Kept::Unknown | Kept::Replay | Kept::Proceed { .. }) => Answer::KeyRefused(Code::OutcomeUnknown),
            Told::Nothing => Answer::KeyRefused(Code::StoreUnavailable),
        }
    }
}

impl Keeper for Keyed {
    fn reserve(&self) -> Pin<Box<dyn Future<Output = Answer> + '_>> {
        Box::pin(self.ask())
    }

    fn settle(&self, reservation: Reservation) {
        if let Progress::Held(held) = self.progress.get() {
            self.progress.set(Progress::Ending(held, reservation));
        }
    }
}

/// A caller that leaves takes its call with it, but not the key: what became of it is written down all the same.
impl Drop for Keyed {
    fn drop(&mut self) {
        let (desk, wish) = (Arc::clone(&self.desk), self.wish());
        match self.progress.get() {
            _ if self.stays => {}
            Progress::Unasked | Progress::Held(_) | Progress::Over => {}
            Progress::Ending(held, how) => {
                // Nobody has the answer any more, so nobody can be given it again.
                let how = if how == Reservation::Done { Reservation::Unknown } else { how };
                let end = self.end(how, None);
                tokio::task::spawn_local(async move { desk.ledger.finish(held, end).await });
            }
            Progress::Asking => {
                let (end, owner, needs) = (self.end(Reservation::Released, None), self.owner, self.needs);
                tokio::task::spawn_local(async move {
                    // Asked again, the ledger says under which number the key is ours, if it is.
                    if let Told::Held(held) = desk.ledger.reserve(wish, owner, needs).await {
                        desk.ledger.finish(held, end).await;
                    }
                });
            }
        }
    }
}

impl Gateway {
    /// The reservation that a call with a key needs, before it is sent. A key of our own is new, so nobody else has it.
    pub(super) fn keyed(
        &self,
        id: CallId,
        routed: &Routed<'_>,
        made: bool,
        head: &mut http::request::Parts,
        body: &Replay,
    ) -> Result<Option<Keyed>, Box<Refusal>> {
        if made {
            head.headers.extend(HeaderValue::from_bytes(&id.text()).ok().map(|key| (KEY, key)));
            return Ok(None);
        }
        let (method, headers) = (&head.method, &head.headers);
        let Routed { upstream, endpoint, target, from, unread: _ } = routed;
        let idempotency = &endpoint.spec.policy.idempotency;
        if idempotency.mode == IdempotencyMode::Off || method.is_safe() {
            return Ok(None);
        }
        let text = headers.get(KEY).map_or("", |value| value.to_str().unwrap_or(""));
        let key = jobs::plain_key(text).map_err(|why| Box::new(intake::bad_request(&why).closing()))?;
        let Some(body) = whole(body) else {
            // What cannot be compared cannot be promised either.
            return if idempotency.mode == IdempotencyMode::Required { Err(Box::new(too_large_to_compare())) } else { Ok(None) };
        };
        let asked = Asked {
            caller: &from.caller.name,
            upstream: &upstream.spec.name,
            method: method.as_str(),
            below: deferred::below(upstream, target),
            headers,
            body: &body,
            left: from.left,
        };
        Ok(Some(Keyed::of(asked, idempotency, &key, id, &self.shared.desk)))
    }

    /// What a call leaves behind before its answer goes out: its answer under its key, a job, or a dead letter. An answer of
    /// ours, where there is one in the place of the upstream's.
    pub(super) async fn conclude(
        &self,
        id: CallId,
        ended: &Ended,
        transport: &HttpTransport<'_>,
        trail: &[(Wall, Attempt)],
        (from, keyed): (&CallerContext, Option<Keyed>),
    ) -> Option<http::Response<Relay>> {
        let endpoint = transport.endpoint;
        let outlived =
            if Self::leaves_a_trace(endpoint) { self.outlive(id, ended, transport, trail, (from, keyed.as_ref())).await } else { None };
        let Some(keyed) = keyed else { return outlived };
        if ended.finish.outcome == Outcome::Replayed
            && let Some(mut response) = keyed.stored().and_then(|stored| deferred::replayed(&stored, id, ended.finish.attempts))
        {
            self.record(endpoint, id, ended, from, "success", response.status());
            response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
            self.keep_links_inside(from, (transport.upstream, endpoint), &transport.target, response.headers_mut());
            return Some(Self::sign(response, id, ended, "success"));
        }
        let mask = letter::own_mask(Some(transport.upstream));
        keyed.finish(transport.answer.as_ref().map(|answer| kept(answer, &self.shared.pseudonym, &mask))).await;
        outlived
    }
}

/// Whether the caller gives a key that the upstream gets as well.
pub(super) fn is_given(headers: &HeaderMap, marks: Marks) -> bool {
    marks.has(Marks::KEY) && hygiene::goes_on(headers, marks, &KEY)
}

/// The body that a fingerprint is taken of; one that only passes through has none.
pub(super) fn whole(body: &Replay) -> Option<Bytes> {
    match body {
        Replay::Empty => Some(Bytes::new()),
        Replay::Kept(bytes) => Some(bytes.clone()),
        Replay::Once(..) => None,
    }
}

/// An answer as it is kept: as the caller gets it, but for what we say about each call, and for our credentials.
pub(super) fn kept(answer: &transport::Answer, pseudonym: &Pseudonym, mask: &Mask) -> Response {
    let response = &answer.response;
    let headers = hygiene::kept(response.headers().clone(), answer.verbatim.as_ref(), response.version(), pseudonym);
    let body = match response.body() {
        Relay::Empty => Some(Bytes::new()),
        Relay::Full(bytes) => Some(bytes.clone()).filter(|bytes| bytes.len() <= MOST_ANSWER),
        Relay::Stream(_) => None,
    };
    let status = response.status().as_u16();
    let kept = Response { status, headers, truncated: body.is_none(), body: body.unwrap_or_default() };
    letter::masked_response(kept, Some(answer.seen()), mask)
}

/// The refusal of a request that should have had a key.
pub(super) fn missing() -> Refusal {
    Refusal::of(Code::IdempotencyKeyMissing, None)
}

/// A body that cannot be kept cannot be compared either.
pub(super) fn too_large_to_compare() -> Refusal {
    Refusal::code(413, Code::TooLarge, "a request with an Idempotency-Key may not be larger than `replay_body` here").closing()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_methods_that_are_not_idempotent_need_a_key() {
        let rule = |mode| Idempotency { mode, ttl: Nanos::from_secs(1), honoured: false };
        let (required, generate) = (rule(IdempotencyMode::Required), rule(IdempotencyMode::Generate));
        for (method, needs) in
            [(Method::POST, true), (Method::PATCH, true), (Method::GET, false), (Method::PUT, false), (Method::DELETE, false)]
        {
            assert_eq!(is_missing(&required, &method, false), needs, "{method}");
            assert_eq!(is_made(&generate, &method, false), needs, "{method}");
            assert!(!is_missing(&required, &method, true) && !is_made(&generate, &method, true));
            assert!(!is_missing(&generate, &method, false) && !is_made(&required, &method, false));
        }
    }
}
