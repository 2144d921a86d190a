//! The cache in a call: the lookup before it, conditional headers on the request, and the storage of the response.

use crate::ServerState;
use bytes::Bytes;
use http::header::{
    AGE, CONTENT_LENGTH, ETAG, HeaderMap, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, LAST_MODIFIED, RANGE,
    TRANSFER_ENCODING,
};
use http::{HeaderName, HeaderValue, Method, Response, StatusCode, Version};
use http_body::Body as _;
use seawall_core::policy;
use seawall_core::time::{Nanos, Wall};
use seawall_engine::cache::{
    CacheCounts, CacheKey, CacheRequest, CachedResponse, CallerDigest, Directives, MAX_BODY, ResponseCache, Revalidation,
};
use seawall_engine::runtime::LiveUpstream;
use seawall_http::response_body::Relay;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

/// The origin of a cached response in terms of `Cache-Status` (RFC 9211).
pub(crate) const HIT: &str = "seawall; hit";
pub(crate) const MEANWHILE: &str = "seawall; hit; detail=stale-while-revalidate";
pub(crate) const ON_ERROR: &str = "seawall; hit; detail=stale-if-error";
pub(crate) const CONFIRMED: &str = "seawall; fwd=stale; fwd-status=304";

/// Returns whether the cache applies to a request: ranges and preconditions are left to the upstream.
pub(crate) fn is_cacheable_request(method: &Method, headers: &HeaderMap) -> bool {
    const BEYOND: [HeaderName; 4] = [RANGE, IF_RANGE, IF_MATCH, IF_UNMODIFIED_SINCE];
    (method == Method::GET || method == Method::HEAD) && !headers.keys().any(|name| BEYOND.contains(name))
}

/// The cache state of one call.
#[derive(Clone, Debug)]
pub(crate) struct Lookup {
    key: CacheKey,
    wanted: Directives,
    entry: Option<Arc<CachedResponse>>,
    /// The request carries our own validator, so a 304 refers to our entry.
    validating: bool,
    if_none_match: Option<HeaderValue>,
    counts: Arc<CacheCounts>,
}

impl Lookup {
    pub(crate) fn begin(
        cache: &ResponseCache,
        upstream: &LiveUpstream,
        target: &str,
        method: &Method,
        headers: &HeaderMap,
        caller: Option<CallerDigest>,
    ) -> Self {
        let key = CacheKey { upstream: upstream.id, target: Arc::from(target), head: method == Method::HEAD, caller };
        let entry = cache.find(&key, headers);
        let if_none_match = headers.get(IF_NONE_MATCH).cloned();
        let counts = Arc::clone(&upstream.cached);
        Self { key, wanted: Directives::of(headers), entry, validating: false, if_none_match, counts }
    }

    /// Returns a stored response if it may be served, with the right to refresh it if it is stale.
    pub(crate) fn answer(&self, now: Wall) -> Option<(Response<Relay>, Option<Revalidation>)> {
        let entry = self.entry.as_ref()?;
        if entry.is_fresh(&self.wanted, now) {
            CacheCounts::count(&self.counts.hit);
            return Some((self.respond(entry, HIT, now), None));
        }
        let meanwhile = entry.serves_meanwhile(&self.wanted, now);
        meanwhile.then(|| {
            CacheCounts::count(&self.counts.stale);
            (self.respond(entry, MEANWHILE, now), Revalidation::claim(entry))
        })
    }

    /// Returns the stale response for a failed call.
    pub(crate) fn on_error(&self, now: Wall) -> Option<Response<Relay>> {
        let entry = self.entry.as_ref()?;
        entry.serves_on_error(&self.wanted, now).then(|| {
            CacheCounts::count(&self.counts.stale);
            self.respond(entry, ON_ERROR, now)
        })
    }

    /// Counts a miss.
    pub(crate) fn missed(&self) {
        CacheCounts::count(&self.counts.miss);
    }

    /// Returns headers that ask the upstream to validate the entry; empty if the caller sent conditions of its own.
    pub(crate) fn validate(&mut self, headers: &HeaderMap) -> HeaderMap {
        let mut conditions = HeaderMap::new();
        let own = headers.contains_key(IF_NONE_MATCH) || headers.contains_key(IF_MODIFIED_SINCE);
        let Some(entry) = self.entry.as_ref().filter(|entry| !own && entry.has_validator()) else { return conditions };
        self.validating = true;
        for (validator, question) in [(ETAG, IF_NONE_MATCH), (LAST_MODIFIED, IF_MODIFIED_SINCE)] {
            if let Some(value) = entry.headers.get(validator) {
                conditions.insert(question, value.clone());
            }
        }
        conditions
    }

    /// Returns the entry after the upstream has confirmed it.
    pub(crate) fn confirmed(
        &self,
        cache: &ResponseCache,
        sent: &HeaderMap,
        status: StatusCode,
        by: &HeaderMap,
        policy: &policy::CachePolicy,
        now: Wall,
    ) -> Option<Response<Relay>> {
        if !self.validating || status != StatusCode::NOT_MODIFIED {
            return None;
        }
        let old = self.entry.as_ref()?;
        CacheCounts::count(&self.counts.revalidated);
        let asked = CacheRequest { headers: sent, caller: self.key.caller };
        let Some(new) = old.confirmed(asked, by, policy, now).map(Arc::new) else {
            // The entry may be used once more and is then invalid.
            cache.invalidate(self.key.upstream, &self.key.target);
            return Some(self.respond(old, CONFIRMED, now));
        };
        cache.store(self.key.clone(), Arc::clone(&new));
        Some(self.respond(&new, CONFIRMED, now))
    }

    /// Stores the response once the caller has received all of it. `ends` tells whether a truncation would be detected.
    pub(crate) fn keep(
        self,
        shared: &Arc<ServerState>,
        sent: &HeaderMap,
        response: &mut Response<Relay>,
        ends: bool,
        policy: &policy::CachePolicy,
        now: Wall,
    ) {
        self.missed();
        let asked = CacheRequest { headers: sent, caller: self.key.caller };
        let entry = CachedResponse::new(asked, response.status(), response.headers().clone(), Bytes::new(), policy, now);
        if let (true, Some(mut entry)) = (ends, entry) {
            let (shared, key, counts) = (Arc::clone(shared), self.key, self.counts);
            response.body_mut().on_whole(MAX_BODY, move |body| {
                entry.body = body;
                shared.cache.store(key, Arc::new(entry));
                CacheCounts::count(&counts.stored);
            });
        }
    }

    fn respond(&self, entry: &CachedResponse, how: &'static str, now: Wall) -> Response<Relay> {
        let unchanged = self.if_none_match.as_ref().is_some_and(|tags| names(tags, entry.headers.get(ETAG)));
        let body = if unchanged || entry.body.is_empty() { Relay::Empty } else { Relay::Full(entry.body.clone()) };
        let mut response = Response::new(body);
        *response.status_mut() = entry.status;
        *response.headers_mut() = entry.headers.clone();
        if unchanged {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response.headers_mut().remove(CONTENT_LENGTH);
        }
        let age = entry.age(now).0 / 1_000_000_000;
        response.headers_mut().insert(AGE, HeaderValue::from(age));
        // Appended, since caches nearer to the upstream come first.
        response.headers_mut().append(CACHE_STATUS, HeaderValue::from_static(how));
        response
    }
}

/// Returns whether an If-None-Match lists this tag, by RFC 9110's weak comparison.
fn names(tags: &HeaderValue, tag: Option<&HeaderValue>) -> bool {
    let (Ok(tags), Some(Ok(tag))) = (tags.to_str(), tag.map(HeaderValue::to_str)) else { return false };
    let bare = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
    tags.trim() == "*" || tags.split(',').any(|other| bare(other) == bare(tag))
}

/// Returns whether the response has a marked end. Otherwise a broken connection looks like an end, so it is not stored.
pub(crate) fn has_marked_end(version: Version, headers: &HeaderMap, body: &Relay) -> bool {
    version >= Version::HTTP_2
        || headers.contains_key(CONTENT_LENGTH)
        || headers.contains_key(TRANSFER_ENCODING)
        || matches!(body, Relay::Empty)
}

/// Reads the response of a background refresh so that it can be stored.
pub(crate) async fn drained(mut body: Relay, within: Nanos) {
    let read = drain(&mut body);
    // A slower body is not stored: its connection and its claim are worth more.
    let _late = tokio::time::timeout(Duration::from_nanos(within.0), read).await;
}

async fn drain(body: &mut Relay) {
    let mut left = MAX_BODY;
    while let Some(Ok(frame)) = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
        let read = frame.data_ref().map_or(0, Bytes::len);
        match left.checked_sub(read) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_compare_weakly() {
        let tag = HeaderValue::from_static("W/\"a\"");
        for (tags, expected) in [("\"a\"", true), ("\"b\", W/\"a\"", true), ("*", true), ("\"b\"", false), ("", false)] {
            assert_eq!(names(&HeaderValue::from_static(tags), Some(&tag)), expected, "{tags}");
        }
        assert!(!names(&HeaderValue::from_static("\"a\""), None));
    }
}
