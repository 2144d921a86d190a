//! Responses of calls without an upstream response: our own errors, cached responses, and the gateway's own paths.

use super::request_check;
use crate::response::Refusal;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use seawall_core::call::{CallEnd, Outcome};
use seawall_core::id::CallId;
use seawall_core::record::{Code, Reason};
use seawall_core::time::{Nanos, Now};
use seawall_engine::driver::Finished;
use seawall_engine::runtime::LiveEndpoint;
use seawall_http::request_body::Blame;
use seawall_http::response_body::Relay;

/// Returns the end of a call that was served from the cache.
pub(crate) const fn never_sent(now: Now) -> Finished {
    let finish = CallEnd {
        outcome: Outcome::Success,
        reason: Reason::Cached,
        attempts: 0,
        elapsed: Nanos::ZERO,
        waited: Nanos::ZERO,
        retry_after: None,
    };
    Finished { finish, fault: None, blame: None, at: now, rate_limit: None, place: None }
}

pub(crate) fn refusal(code: Code, ended: &Finished, endpoint: &LiveEndpoint, id: CallId) -> Refusal {
    let mut refusal = match ended.blame {
        Some(Blame::Broke) => request_check::body_broke(),
        Some(Blame::TooLarge) => request_check::body_too_large(),
        Some(Blame::TooSlow) => request_check::body_too_slow(),
        // An open breaker may have set a time, but a deadline or a connection reset does not name one.
        None => Refusal::of(code, ended.fault).retry_after(ended.finish.retry_after.filter(|_| names_a_time(code))),
    };
    if ended.finish.reason == Reason::ExceedsCapacity {
        refusal.detail = "this call costs more than its limit ever holds".to_owned();
    }
    let mut refusal = refusal.at(endpoint);
    refusal.call = Some(id.to_string());
    refusal.attempts = ended.finish.attempts;
    refusal
}

const fn names_a_time(code: Code) -> bool {
    matches!(
        code,
        Code::RateLimited
            | Code::KeysExhausted
            | Code::KeysRejected
            | Code::Overloaded
            | Code::CircuitOpen
            | Code::Paused
            | Code::IdempotencyKeyInFlight
            | Code::StoreUnavailable
    )
}

/// Serves the paths that belong to the gateway itself.
pub(crate) fn own_path(path: &str) -> Response<Relay> {
    if path != "/-/health" {
        return Refusal::code(404, Code::NotFound, "there is nothing at this path of the gateway").respond();
    }
    let mut response = Response::new(Relay::Full(Bytes::from_static(b"{\"status\":\"ok\"}\n")));
    *response.status_mut() = StatusCode::OK;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
