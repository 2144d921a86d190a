//! The caller's deadline.

use http::{HeaderMap, HeaderName};
use seawall_core::time::Nanos;
use seawall_engine::runtime::{LiveEndpoint, LiveUpstream};
use seawall_engine::transport::REPEATED;
use std::sync::atomic::Ordering;

const TIMEOUT: HeaderName = HeaderName::from_static("seawall-timeout-ms");

/// Returns the time limit of the whole call: the policy's, which the caller can only shorten, in milliseconds.
pub(crate) fn deadline(headers: &HeaderMap, endpoint: &LiveEndpoint) -> Nanos {
    let total = endpoint.spec.policy.timeout.total;
    let asked = headers.get(TIMEOUT).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    asked.map_or(total, |ms| Nanos::from_millis(ms).min(total))
}

/// Returns whether another Seawall marks this request as its own retry. If both retried, attempts would multiply.
pub(crate) fn is_repeat(headers: &HeaderMap, upstream: &LiveUpstream) -> bool {
    let number: Option<u32> = headers.get(REPEATED).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let repeat = number.is_some_and(|number| number > 1);
    if repeat {
        upstream.repeats.fetch_add(1, Ordering::Relaxed);
    }
    repeat
}
