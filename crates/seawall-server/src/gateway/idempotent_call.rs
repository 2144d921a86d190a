//! Calls with an idempotency key: the key's reservation before the call, and what is kept when the call has ended.

use super::Gateway;
use super::RoutedRequest;
use super::async_call;
use super::caller_context::CallerContext;
use super::request_check;
use crate::headers::{self, HeaderMarks, Pseudonym};
use crate::idempotency::{KEY, KeyReservation, KeyedCall, MAX_ANSWER};
use crate::jobs;
use crate::letter;
use crate::response::Refusal;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use seawall_core::call::Outcome;
use seawall_core::id::CallId;
use seawall_core::policy::IdempotencyMode;
use seawall_core::record::{AttemptOutcome, Code};
use seawall_core::time::Wall;
use seawall_engine::driver::Finished;
use seawall_engine::mask::Mask;
use seawall_engine::transport::{self, HttpTransport, ReplayBody};
use seawall_http::response_body::Relay;
use seawall_store::job::Response;

pub(crate) const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

impl Gateway {
    /// The reservation that a call with a key needs, before it is sent. A key of our own is new, so nobody else has it.
    pub(crate) fn keyed(
        &self,
        id: CallId,
        routed: &RoutedRequest<'_>,
        made: bool,
        head: &mut http::request::Parts,
        body: &ReplayBody,
    ) -> Result<Option<KeyReservation>, Box<Refusal>> {
        if made {
            head.headers.extend(HeaderValue::from_bytes(&id.text()).ok().map(|key| (KEY, key)));
            return Ok(None);
        }
        let (method, headers) = (&head.method, &head.headers);
        let RoutedRequest { upstream, endpoint, target, from, unread: _ } = routed;
        let idempotency = &endpoint.spec.policy.idempotency;
        if idempotency.mode == IdempotencyMode::Off || method.is_safe() {
            return Ok(None);
        }
        let text = headers.get(KEY).map_or("", |value| value.to_str().unwrap_or(""));
        let key = jobs::plain_key(text).map_err(|why| Box::new(request_check::bad_request(&why).closing()))?;
        let Some(body) = whole(body) else {
            // What cannot be compared cannot be promised either.
            return if idempotency.mode == IdempotencyMode::Required { Err(Box::new(too_large_to_compare())) } else { Ok(None) };
        };
        let asked = KeyedCall {
            caller: &from.caller.name,
            upstream: &upstream.spec.name,
            method: method.as_str(),
            below: async_call::below(upstream, target),
            headers,
            body: &body,
            left: from.left,
        };
        Ok(Some(KeyReservation::of(asked, idempotency, &key, id, &self.shared.desk.ledger)))
    }

    /// What a call leaves behind before its answer goes out: its answer under its key, a job, or a dead letter. An answer of
    /// ours, where there is one in the place of the upstream's.
    pub(crate) async fn conclude(
        &self,
        id: CallId,
        ended: &Finished,
        transport: &HttpTransport<'_>,
        trail: &[(Wall, AttemptOutcome)],
        (from, keyed): (&CallerContext, Option<KeyReservation>),
    ) -> Option<http::Response<Relay>> {
        let endpoint = transport.endpoint;
        let outlived =
            if Self::leaves_a_trace(endpoint) { self.outlive(id, ended, transport, trail, (from, keyed.as_ref())).await } else { None };
        let Some(keyed) = keyed else { return outlived };
        if ended.finish.outcome == Outcome::Replayed
            && let Some(mut response) = keyed.stored().and_then(|stored| async_call::replayed(&stored, id, ended.finish.attempts))
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
pub(crate) fn is_given(headers: &HeaderMap, marks: HeaderMarks) -> bool {
    marks.has(HeaderMarks::KEY) && headers::goes_on(headers, marks, &KEY)
}

/// The body that a fingerprint is taken of; one that only passes through has none.
pub(crate) fn whole(body: &ReplayBody) -> Option<Bytes> {
    match body {
        ReplayBody::Empty => Some(Bytes::new()),
        ReplayBody::Kept(bytes) => Some(bytes.clone()),
        ReplayBody::Once(..) => None,
    }
}

/// An answer as it is kept: as the caller gets it, but for what we say about each call, and for our credentials.
pub(crate) fn kept(answer: &transport::UpstreamResponse, pseudonym: &Pseudonym, mask: &Mask) -> Response {
    let response = &answer.response;
    let headers = headers::kept(response.headers().clone(), answer.verbatim.as_ref(), response.version(), pseudonym);
    let body = match response.body() {
        Relay::Empty => Some(Bytes::new()),
        Relay::Full(bytes) => Some(bytes.clone()).filter(|bytes| bytes.len() <= MAX_ANSWER),
        Relay::Stream(_) => None,
    };
    let status = response.status().as_u16();
    let kept = Response { status, headers, truncated: body.is_none(), body: body.unwrap_or_default() };
    letter::masked_response(kept, Some(answer.seen()), mask)
}

/// The refusal of a request that should have had a key.
pub(crate) fn missing() -> Refusal {
    Refusal::of(Code::IdempotencyKeyMissing, None)
}

/// A body that cannot be kept cannot be compared either.
pub(crate) fn too_large_to_compare() -> Refusal {
    Refusal::code(413, Code::TooLarge, "a request with an Idempotency-Key may not be larger than `replay_body` here").closing()
}
