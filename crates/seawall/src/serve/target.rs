//! How long a caller will wait.

use http::{HeaderMap, HeaderName};
use seawall_core::time::Nanos;
use seawall_engine::live::LiveEndpoint;

const TIMEOUT: HeaderName = HeaderName::from_static("seawall-timeout-ms");

/// What the whole call may take: the policy's word, which the caller can only shorten, in milliseconds.
pub(super) fn deadline(headers: &HeaderMap, endpoint: &LiveEndpoint) -> Nanos {
    let total = endpoint.spec.policy.timeout.total;
    let asked = headers.get(TIMEOUT).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    asked.map_or(total, |ms| Nanos::from_millis(ms).min(total))
}
