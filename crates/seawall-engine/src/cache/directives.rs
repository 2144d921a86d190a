//! `Cache-Control` directives of requests and responses (RFC 9111 §5.2, RFC 5861).

use http::HeaderMap;
use http::header::{CACHE_CONTROL, PRAGMA};
use seawall_core::time::Nanos;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Directives {
    pub no_store: bool,
    pub no_cache: bool,
    pub private: bool,
    pub public: bool,
    pub must_revalidate: bool,
    pub proxy_revalidate: bool,
    pub max_age: Option<Nanos>,
    pub s_maxage: Option<Nanos>,
    pub min_fresh: Option<Nanos>,
    pub stale_if_error: Option<Nanos>,
    pub stale_while_revalidate: Option<Nanos>,
}

impl Directives {
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let mut found = Self::default();
        let mut said = false;
        for value in headers.get_all(CACHE_CONTROL) {
            said = true;
            for directive in split(value.as_bytes()) {
                found.take(directive);
            }
        }
        // RFC 9111 §5.4: only without Cache-Control.
        found.no_cache |= !said && headers.get(PRAGMA).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"no-cache"));
        found
    }

    fn take(&mut self, directive: &str) {
        let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
        let length = || Some(seconds(value.trim().trim_matches('"')));
        match name.trim().to_ascii_lowercase().as_str() {
            "no-store" => self.no_store = true,
            // With field names it applies to those fields only; applying it to the whole response is safe (§5.2.2.4, §5.2.2.7).
            "no-cache" => self.no_cache = true,
            "private" => self.private = true,
            "public" => self.public = true,
            "must-revalidate" => self.must_revalidate = true,
            "proxy-revalidate" => self.proxy_revalidate = true,
            "max-age" => self.max_age = length(),
            "s-maxage" => self.s_maxage = length(),
            "min-fresh" => self.min_fresh = length(),
            "stale-if-error" => self.stale_if_error = length(),
            "stale-while-revalidate" => self.stale_while_revalidate = length(),
            _ => {}
        }
    }

    /// Returns whether the response may ever be served stale (§4.2.4).
    #[must_use]
    pub const fn allows_stale(&self) -> bool {
        !self.no_cache && !self.must_revalidate && !self.proxy_revalidate && self.s_maxage.is_none()
    }

    /// Returns whether the response may be shared although its request had credentials (§3.5).
    #[must_use]
    pub const fn shares_authorized(&self) -> bool {
        self.public || self.must_revalidate || self.s_maxage.is_some()
    }
}

/// Parses seconds. Unreadable text counts as zero: stale is the safe side (§4.2.1). Capped at ten years.
fn seconds(text: &str) -> Nanos {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Nanos::ZERO;
    }
    Nanos::from_secs(text.parse().unwrap_or(u64::MAX).min(315_360_000))
}

/// Splits a list at commas outside of quotes.
fn split(value: &[u8]) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    let members = value.split(move |b| {
        quoted ^= *b == b'"';
        *b == b',' && !quoted
    });
    members.filter_map(|member| std::str::from_utf8(member).ok()).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Directives {
        let mut headers = HeaderMap::new();
        headers.append(CACHE_CONTROL, text.parse().unwrap());
        Directives::of(&headers)
    }

    #[test]
    fn directives_are_read_the_way_they_are_written() {
        let found = of("Private=\"x-a, max-age=9\", MAX-AGE=60 , stale-if-error=\"30\",x=y");
        assert!(found.private && found.max_age == Some(Nanos::from_secs(60)) && found.stale_if_error == Some(Nanos::from_secs(30)));
    }

    #[test]
    fn what_cannot_be_read_is_stale() {
        for text in ["max-age", "max-age=", "max-age=-1", "max-age=1.5", "max-age=soon"] {
            assert_eq!(of(text).max_age, Some(Nanos::ZERO), "{text}");
        }
        assert_eq!(of("max-age=99999999999999999999999").max_age, Some(Nanos::from_secs(315_360_000)));
    }

    #[test]
    fn pragma_speaks_only_where_cache_control_is_silent() {
        let mut headers = HeaderMap::new();
        headers.insert(PRAGMA, "no-cache".parse().unwrap());
        assert!(Directives::of(&headers).no_cache);
        headers.insert(CACHE_CONTROL, "max-age=5".parse().unwrap());
        assert!(!Directives::of(&headers).no_cache);
    }
}
