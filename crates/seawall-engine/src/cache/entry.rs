//! One stored response: storability, owner, age, and the uses that are still allowed.

use super::directives::Directives;
use super::harmless;
use crate::credential_names::is_credential;
use bytes::Bytes;
use http::header::{
    AGE, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, DATE, ETAG, EXPIRES, HeaderName, LAST_MODIFIED, SET_COOKIE,
    TRANSFER_ENCODING, VARY,
};
use http::{HeaderMap, HeaderValue, StatusCode};
use seawall_core::policy;
use seawall_core::time::{Nanos, Wall};
use sha2::{Digest as _, Sha256};
use std::sync::atomic::AtomicBool;

/// Identifies a caller's credentials without containing them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallerDigest([u8; 16]);

impl CallerDigest {
    /// Hashes the credentials of a request, by common header names; `None` for an anonymous one. A retry under an idempotency key has the
    /// same credentials, even if other headers differ.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        Self::by(headers, is_credential)
    }

    /// Hashes all headers that may identify the caller: all but those known to be harmless. A response to `X-Api-Key` or `X-Tenant` is as
    /// private as one to `Authorization`, whatever an API names its header.
    #[must_use]
    pub fn of_stored(headers: &HeaderMap) -> Option<Self> {
        Self::by(headers, |name| !harmless::is_harmless(name))
    }

    fn by(headers: &HeaderMap, says_who: impl Fn(&str) -> bool) -> Option<Self> {
        let mut found: Vec<_> = headers.iter().filter(|(name, _)| says_who(name.as_str())).collect();
        // The order of different headers does not matter. Values of one name keep theirs.
        found.sort_by_key(|(name, _)| name.as_str());
        let mut hash: Option<Sha256> = None;
        for (name, value) in found {
            let hash = hash.get_or_insert_default();
            for part in [name.as_str().as_bytes(), value.as_bytes()] {
                // Lengths keep different lists from colliding.
                hash.update(part.len().to_be_bytes());
                hash.update(part);
            }
        }
        let digest = hash?.finalize();
        let mut short = [0; 16];
        short.copy_from_slice(&digest[..16]);
        Some(Self(short))
    }

    #[must_use]
    pub const fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A response that may be served again.
#[derive(Debug)]
pub struct CachedResponse {
    pub status: StatusCode,
    /// Without hop-by-hop headers.
    pub headers: HeaderMap,
    pub body: Bytes,
    /// Its owner; `None` if it may be shared.
    pub caller: Option<CallerDigest>,
    /// The response allows sharing despite credentials.
    pub(super) open: bool,
    /// The request headers named by `Vary`, with their values.
    vary: Vec<(HeaderName, Vec<HeaderValue>)>,
    received: Wall,
    /// Its age on arrival.
    age: Nanos,
    lifetime: Nanos,
    on_error: Nanos,
    meanwhile: Nanos,
    /// A refresh is in flight.
    pub(super) revalidating: AtomicBool,
}

/// The request of a response.
#[derive(Clone, Copy, Debug)]
pub struct CacheRequest<'a> {
    pub headers: &'a HeaderMap,
    pub caller: Option<CallerDigest>,
}

impl CachedResponse {
    /// Builds an entry, if RFC 9111 §3 lets the response be stored and it could be reused.
    #[must_use]
    pub fn new(
        asked: CacheRequest<'_>,
        status: StatusCode,
        headers: HeaderMap,
        body: Bytes,
        policy: &policy::CachePolicy,
        now: Wall,
    ) -> Option<Self> {
        let (wanted, said) = (Directives::of(asked.headers), Directives::of(&headers));
        if wanted.no_store || said.no_store || !is_kept(status) || headers.contains_key(SET_COOKIE) {
            return None;
        }
        let private = said.private || (asked.caller.is_some() && !said.shares_authorized());
        let caller = if private { Some(asked.caller?) } else { None };
        let vary = selected(asked.headers, &headers)?;
        let window = |configured: Nanos, said_so: Option<Nanos>| match said.allows_stale() {
            true => said_so.map_or(configured, |length| length.max(configured)),
            false => Nanos::ZERO,
        };
        let entry = Self {
            status,
            caller,
            open: said.shares_authorized(),
            vary,
            received: now,
            age: age(&headers, now),
            lifetime: if said.no_cache { Nanos::ZERO } else { lifetime(&said, &headers, policy.ttl, now) },
            on_error: window(policy.stale_if_error, said.stale_if_error),
            meanwhile: window(policy.stale_while_revalidate, said.stale_while_revalidate),
            revalidating: AtomicBool::new(false),
            headers,
            body,
        };
        let useful = entry.lifetime > entry.age || entry.on_error > Nanos::ZERO || entry.meanwhile > Nanos::ZERO;
        (useful || entry.has_validator()).then_some(entry)
    }

    /// Returns the same response with headers updated by a 304 (§3.2, §4.3.4).
    #[must_use]
    pub fn confirmed(&self, asked: CacheRequest<'_>, by: &HeaderMap, policy: &policy::CachePolicy, now: Wall) -> Option<Self> {
        const KEPT: [HeaderName; 5] = [CONTENT_LENGTH, CONTENT_ENCODING, CONTENT_RANGE, TRANSFER_ENCODING, CONNECTION];
        let mut headers = self.headers.clone();
        headers.remove(AGE);
        for name in by.keys().filter(|name| !KEPT.contains(name)) {
            headers.remove(name);
            for value in by.get_all(name) {
                headers.append(name.clone(), value.clone());
            }
        }
        Self::new(asked, self.status, headers, self.body.clone(), policy, now)
    }

    #[must_use]
    pub fn age(&self, now: Wall) -> Nanos {
        self.age + now.since(self.received)
    }

    /// Returns whether it may be served without validation, considering the request's directives (§5.2.1).
    #[must_use]
    pub fn is_fresh(&self, wanted: &Directives, now: Wall) -> bool {
        let age = self.age(now);
        !wanted.no_cache && wanted.max_age.is_none_or(|most| age <= most) && age + wanted.min_fresh.unwrap_or(Nanos::ZERO) < self.lifetime
    }

    /// Returns whether it may replace a failure of the upstream (RFC 5861 §4).
    #[must_use]
    pub fn serves_on_error(&self, wanted: &Directives, now: Wall) -> bool {
        let most = wanted.stale_if_error.unwrap_or(self.on_error).min(self.on_error);
        !wanted.no_cache && most > Nanos::ZERO && self.staleness(now) <= most
    }

    /// Returns whether it may be served during a refresh (RFC 5861 §3).
    #[must_use]
    pub fn serves_meanwhile(&self, wanted: &Directives, now: Wall) -> bool {
        let plain = !wanted.no_cache && wanted.max_age.is_none() && wanted.min_fresh.is_none();
        plain && self.meanwhile > Nanos::ZERO && self.staleness(now) <= self.meanwhile
    }

    fn staleness(&self, now: Wall) -> Nanos {
        Nanos(self.age(now).0.saturating_sub(self.lifetime.0))
    }

    /// Returns whether it can be validated by a conditional request.
    #[must_use]
    pub fn has_validator(&self) -> bool {
        self.headers.contains_key(ETAG) || self.headers.contains_key(LAST_MODIFIED)
    }

    /// Returns whether a request with these headers selects this response (§4.1).
    pub(super) fn takes(&self, headers: &HeaderMap) -> bool {
        self.vary.iter().all(|(name, values)| headers.get_all(name).iter().eq(values))
    }

    /// Returns whether both are selected by the same requests.
    pub(super) fn replaces(&self, other: &Self) -> bool {
        self.vary == other.vary
    }

    pub(super) fn bytes(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum();
        self.body.len() + headers + 256
    }
}

/// Returns whether a status is cacheable by default (RFC 9110 §15.1) and a success.
const fn is_kept(status: StatusCode) -> bool {
    matches!(status.as_u16(), 200 | 203 | 204 | 300 | 301 | 308)
}

/// Returns the request's values of the headers in `Vary`; `None` if the response varies by everything.
fn selected(asked: &HeaderMap, headers: &HeaderMap) -> Option<Vec<(HeaderName, Vec<HeaderValue>)>> {
    let mut vary = Vec::new();
    for value in headers.get_all(VARY) {
        for name in value.to_str().ok()?.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            // `*` is no valid header name and also ends here.
            let name = HeaderName::from_bytes(name.as_bytes()).ok().filter(|_| name != "*")?;
            let values = asked.get_all(&name).iter().cloned().collect();
            vary.push((name, values));
        }
    }
    vary.sort_by(|a, b| a.0.as_str().cmp(b.0.as_str()));
    Some(vary)
}

/// §4.2.3: the larger of the `Age` header and the age by its date.
fn age(headers: &HeaderMap, now: Wall) -> Nanos {
    let said = headers.get(AGE).and_then(|value| value.to_str().ok()?.trim().parse().ok()).map_or(Nanos::ZERO, Nanos::from_secs);
    let implied = date(headers, &DATE).map_or(Nanos::ZERO, |date| now.since(date));
    // Dates have whole seconds, so less than two count as zero.
    said.max(if implied < Nanos::from_secs(2) { Nanos::ZERO } else { implied })
}

fn lifetime(said: &Directives, headers: &HeaderMap, ttl: Nanos, now: Wall) -> Nanos {
    if let Some(length) = said.s_maxage.or(said.max_age) {
        return length;
    }
    if headers.contains_key(EXPIRES) {
        let from = date(headers, &DATE).unwrap_or(now);
        // An unreadable date counts as past.
        return date(headers, &EXPIRES).map_or(Nanos::ZERO, |expires| expires.since(from));
    }
    ttl
}

fn date(headers: &HeaderMap, name: &HeaderName) -> Option<Wall> {
    let mut all = headers.get_all(name).iter();
    let at = httpdate::parse_http_date(all.next()?.to_str().ok()?).ok()?;
    let since = at.duration_since(std::time::UNIX_EPOCH).ok()?;
    if all.next().is_some() { None } else { Some(Wall(i64::try_from(since.as_millis()).ok()?)) }
}

#[cfg(test)]
#[path = "entry/tests.rs"]
mod tests;
