//! The reservation of an idempotency key: from the request that has the key to what is kept of the call's end. What a key means is decided
//! by the core.

use super::identity::{KeyedRequest, fingerprint};
use super::ledger::{HeldKey, Ledger, LedgerAnswer, RequiredStores};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use seawall_core::admit::idempotency::{KeyClaim, KeyEnding, RequestFingerprint, ReserveAnswer as Kept};
use seawall_core::call::{AskAnswer, Reservation};
use seawall_core::id::CallId;
use seawall_core::policy::{Idempotency, IdempotencyMode};
use seawall_core::record::Code;
use seawall_core::time::Nanos;
use seawall_engine::driver::Keeper;
use seawall_store::idempotency::{FinishKey, ReserveKey};
use seawall_store::job::{self, Response};
use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::sync::Arc;

pub(crate) const KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// What is kept of an answer. A longer one, or one without an end, is passed on and not kept.
pub(crate) const MAX_ANSWER: usize = 1 << 20;
/// A reservation outlives the call's deadline by this, so that only a call that is lost loses it.
const SLACK: Nanos = Nanos::from_secs(2);

/// Whether a request has to have a key that it does not have.
pub(crate) fn is_missing(idempotency: &Idempotency, method: &Method, has_key: bool) -> bool {
    idempotency.mode == IdempotencyMode::Required && !has_key && !method.is_idempotent()
}

/// Whether a request gets a key of our own.
pub(crate) fn is_made(idempotency: &Idempotency, method: &Method, has_key: bool) -> bool {
    idempotency.mode == IdempotencyMode::Generate && !has_key && !method.is_idempotent()
}

/// A request as its key sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyedCall<'a> {
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
pub(crate) struct KeyReservation {
    ledger: Arc<Ledger>,
    scope: [u8; 32],
    claim: KeyClaim,
    owner: CallId,
    /// Whose silence refuses the call; without the others it goes on, and they promise nothing.
    needs: RequiredStores,
    /// Nothing is written down when it is dropped: its holder comes back.
    stays: bool,
    progress: Cell<ReservationState>,
    stored: RefCell<Option<Response>>,
}

/// How far a reservation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReservationState {
    Unasked,
    /// The store has been asked and has not answered.
    Asking,
    Held(HeldKey),
    Ending(HeldKey, Reservation),
    Over,
}

impl KeyReservation {
    /// The key of a request whose policy honours keys; none where it has none.
    pub(crate) fn of(asked: KeyedCall<'_>, idempotency: &Idempotency, key: &str, owner: CallId, ledger: &Arc<Ledger>) -> Self {
        let KeyedCall { caller, upstream, method, below, headers, body, left } = asked;
        let content_type = headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        let required = idempotency.mode == IdempotencyMode::Required;
        Self {
            ledger: Arc::clone(ledger),
            scope: KeyedRequest { caller, upstream, method, path: below, headers, key }.scope(),
            claim: KeyClaim {
                fingerprint: RequestFingerprint(fingerprint(method, below, content_type, body)),
                lease: left + SLACK,
                ttl: idempotency.ttl,
                upstream_honours_keys: idempotency.honoured,
            },
            owner,
            needs: RequiredStores { store: required, shared: required },
            stays: false,
            progress: Cell::new(ReservationState::Unasked),
            stored: RefCell::new(None),
        }
    }

    /// A job is put off where the store does not answer, and comes back to its own reservation.
    #[must_use]
    pub(crate) const fn of_job(mut self) -> Self {
        self.needs.store = true;
        self.stays = true;
        self
    }

    /// Somebody who knows what happened wants it done again.
    #[must_use]
    pub(crate) const fn deliberately(mut self) -> Self {
        self.claim.upstream_honours_keys = true;
        self
    }

    /// The answer that is to be given again.
    pub(crate) fn stored(&self) -> Option<Response> {
        self.stored.borrow_mut().take()
    }

    /// Leaves the reservation to the job that this call becomes, which has the call's id.
    pub(crate) fn leave(&self) {
        self.progress.set(ReservationState::Over);
    }

    /// How the reservation of a job ends, to be written together with the job's own end. What became a dead letter is
    /// remembered there, and its key stands in nobody's way who replays it on purpose. Other instances hear of it first: a job
    /// that is not settled then, and runs again, is given its own answer.
    pub(crate) async fn close(&self, ending: &job::JobEnding) -> Option<FinishKey> {
        let response = match ending {
            job::JobEnding::Done(response) => Some(response.clone()),
            job::JobEnding::Dead(_) | job::JobEnding::Failed { .. } => {
                if let ReservationState::Ending(held, Reservation::Done) = self.progress.get() {
                    self.progress.set(ReservationState::Ending(held, Reservation::Released));
                }
                None
            }
            job::JobEnding::Wait { .. } | job::JobEnding::Release | job::JobEnding::Cancelled => return None,
        };
        let (held, end) = self.over(response)?;
        self.ledger.tell_others(held, &end).await;
        held.own.map(|reservation| FinishKey { reservation, ..end })
    }

    /// How the reservation ends that workers left behind which were lost with a job, now that the job is given up on. Where a request with
    /// its key may be repeated, the key is free for whoever comes with it again.
    pub(crate) async fn give_up(&self, ending: &job::JobEnding, is_repeatable: bool) -> Option<FinishKey> {
        if self.ask().await != AskAnswer::Reserved {
            return None;
        }
        self.settle(if is_repeatable { Reservation::Released } else { Reservation::Unknown });
        self.close(ending).await
    }

    /// Writes down how the reservation ended. When this returns, the answer may be passed on: if the store failed, the key
    /// stays reserved and then in doubt, so that nothing is executed twice.
    pub(crate) async fn finish(&self, response: Option<Response>) {
        if let Some((held, end)) = self.over(response) {
            self.ledger.finish(held, end).await;
        }
    }

    fn over(&self, response: Option<Response>) -> Option<(HeldKey, FinishKey)> {
        let ReservationState::Ending(held, how) = self.progress.replace(ReservationState::Over) else { return None };
        Some((held, self.end(how, response.filter(|_| how == Reservation::Done))))
    }

    fn end(&self, how: Reservation, response: Option<Response>) -> FinishKey {
        let ending = match how {
            Reservation::Done => KeyEnding::Done,
            Reservation::Released => KeyEnding::Released,
            Reservation::Unknown => KeyEnding::Unknown,
        };
        FinishKey { scope: self.scope, reservation: 0, ending, response, ttl: self.claim.ttl, now: self.ledger.now() }
    }

    fn wish(&self) -> ReserveKey {
        ReserveKey { scope: self.scope, claim: self.claim, owner: Some(self.owner), now: self.ledger.now() }
    }

    async fn ask(&self) -> AskAnswer {
        self.progress.set(ReservationState::Asking);
        let told = self.ledger.reserve(self.wish(), self.owner, self.needs).await;
        self.progress.set(ReservationState::Over);
        match told {
            LedgerAnswer::Held(held) => {
                self.progress.set(ReservationState::Held(held));
                AskAnswer::Reserved
            }
            LedgerAnswer::Replay(stored) => match stored.filter(|response| !response.truncated) {
                Some(response) => {
                    *self.stored.borrow_mut() = Some(response);
                    AskAnswer::Replayed
                }
                None => AskAnswer::KeyRefused(Code::OutcomeUnknown),
            },
            LedgerAnswer::Refused(Kept::Mismatch) => AskAnswer::KeyRefused(Code::IdempotencyKeyMismatch),
            LedgerAnswer::Refused(Kept::InFlight { .. }) => AskAnswer::KeyRefused(Code::IdempotencyKeyInFlight),
            LedgerAnswer::Refused(Kept::Unknown | Kept::Replay | Kept::Proceed { .. }) => AskAnswer::KeyRefused(Code::OutcomeUnknown),
            LedgerAnswer::Nothing => AskAnswer::KeyRefused(Code::StoreUnavailable),
        }
    }
}

impl Keeper for KeyReservation {
    fn reserve(&self) -> Pin<Box<dyn Future<Output = AskAnswer> + '_>> {
        Box::pin(self.ask())
    }

    fn settle(&self, reservation: Reservation) {
        if let ReservationState::Held(held) = self.progress.get() {
            self.progress.set(ReservationState::Ending(held, reservation));
        }
    }
}

/// A caller that leaves takes its call with it, but not the key: what became of it is written down all the same.
impl Drop for KeyReservation {
    fn drop(&mut self) {
        let (ledger, wish) = (Arc::clone(&self.ledger), self.wish());
        match self.progress.get() {
            _ if self.stays => {}
            ReservationState::Unasked | ReservationState::Held(_) | ReservationState::Over => {}
            ReservationState::Ending(held, how) => {
                // Nobody has the answer any more, so nobody can be given it again.
                let how = if how == Reservation::Done { Reservation::Unknown } else { how };
                let end = self.end(how, None);
                tokio::task::spawn_local(async move { ledger.finish(held, end).await });
            }
            ReservationState::Asking => {
                let (end, owner, needs) = (self.end(Reservation::Released, None), self.owner, self.needs);
                tokio::task::spawn_local(async move {
                    // Asked again, the ledger says under which number the key is ours, if it is.
                    if let LedgerAnswer::Held(held) = ledger.reserve(wish, owner, needs).await {
                        ledger.finish(held, end).await;
                    }
                });
            }
        }
    }
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
