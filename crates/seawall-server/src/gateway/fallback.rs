//! Degraded responses: if the upstream fails, the caller gets a stale cached response or the endpoint's fallback. Decides which failures
//! may be replaced.

use super::cached::Lookup;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use seawall_core::call::Outcome;
use seawall_core::config::EndpointPolicy;
use seawall_core::policy::Fallback;
use seawall_core::record::{Class, Code};
use seawall_core::time::Wall;
use seawall_http::response_body::Relay;

/// Returns a response in place of the failure, and the outcome of the call.
pub(crate) fn instead(lookup: Option<&Lookup>, policy: &EndpointPolicy, now: Wall) -> Option<(Response<Relay>, &'static str)> {
    if let Some(stale) = lookup.and_then(|lookup| lookup.on_error(now)) {
        return Some((stale, "stale"));
    }
    policy.fallback.as_ref().map(|answer| (fallback(answer), "fallback"))
}

/// Returns whether this end may be replaced by another response. Errors that the caller must see may not: a final 4xx, a limit, a reused
/// idempotency key.
pub(crate) const fn is_degradable(outcome: Outcome, status: Option<StatusCode>) -> bool {
    match outcome {
        Outcome::Success | Outcome::Replayed => false,
        // An ambiguous failure whose retries are exhausted counts as permanent, whatever its status.
        Outcome::Failed(Class::Permanent) => matches!(status, Some(status) if status.as_u16() >= 500),
        Outcome::Failed(_) => true,
        Outcome::Refused(code) => match code {
            Code::KeysExhausted | Code::KeysRejected | Code::Overloaded | Code::CircuitOpen | Code::Paused => true,
            Code::DeadlineExceeded | Code::UpstreamUnreachable | Code::SchemaMismatch => true,
            Code::RateLimited | Code::NoUpstream | Code::CallerUnknown | Code::TooLarge | Code::Cancelled => false,
            Code::IdempotencyKeyMissing | Code::IdempotencyKeyMismatch | Code::IdempotencyKeyInFlight | Code::OutcomeUnknown => false,
            Code::BadRequest | Code::LoopDetected | Code::MethodNotAllowed | Code::NotFound | Code::NotImplemented => false,
            Code::RequestTimeout | Code::StorageFull | Code::StoreUnavailable | Code::StreamCut => false,
        },
    }
}

/// Builds the static response. It must not be cached, because it stands for a failure.
fn fallback(fallback: &Fallback) -> Response<Relay> {
    let mut response = Response::new(Relay::Full(Bytes::copy_from_slice(fallback.body.as_bytes())));
    *response.status_mut() = StatusCode::from_u16(fallback.status).unwrap_or(StatusCode::OK);
    if let Ok(kind) = HeaderValue::from_str(&fallback.content_type) {
        response.headers_mut().insert(CONTENT_TYPE, kind);
    }
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_that_are_not_the_callers_are_stood_in_for() {
        for (outcome, status, expected) in [
            (Outcome::Success, Some(200), false),
            (Outcome::Failed(Class::Transient), Some(503), true),
            (Outcome::Failed(Class::Quota), Some(403), true),
            (Outcome::Failed(Class::Auth), Some(401), true),
            (Outcome::Failed(Class::Permanent), Some(404), false),
            (Outcome::Failed(Class::Permanent), Some(500), true),
            (Outcome::Refused(Code::CircuitOpen), None, true),
            (Outcome::Refused(Code::RateLimited), None, false),
            (Outcome::Refused(Code::IdempotencyKeyInFlight), None, false),
        ] {
            let status = status.map(|status| StatusCode::from_u16(status).unwrap());
            assert_eq!(is_degradable(outcome, status), expected, "{outcome:?} {status:?}");
        }
    }
}
