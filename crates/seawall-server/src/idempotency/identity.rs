//! The identity of requests: hashes behind idempotency keys.

use http::HeaderMap;
use seawall_engine::cache;
use sha2::{Digest as _, Sha256};

/// A request with an idempotency key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyedRequest<'a> {
    pub caller: &'a str,
    pub upstream: &'a str,
    pub method: &'a str,
    /// Path and query below the upstream.
    pub path: &'a str,
    /// The headers as sent to the upstream.
    pub headers: &'a HeaderMap,
    pub key: &'a str,
}

impl KeyedRequest<'_> {
    /// Returns the scope of the key, for calls and jobs alike. A key of another caller or for another path is another key. Different
    /// credentials count as different callers, whatever their name: otherwise one would get the response of the other.
    pub(crate) fn scope(&self) -> [u8; 32] {
        let credentials = cache::CallerDigest::of(self.headers);
        let credentials = credentials.as_ref().map_or(&[][..], cache::CallerDigest::as_bytes);
        hash(&[
            self.caller.as_bytes(),
            credentials,
            self.upstream.as_bytes(),
            self.method.as_bytes(),
            self.path.as_bytes(),
            self.key.as_bytes(),
        ])
    }
}

/// Hashes the whole request, so that a key cannot be used for two different ones.
pub(crate) fn fingerprint(method: &str, target: &str, content_type: &[u8], body: &[u8]) -> [u8; 32] {
    hash(&[method.as_bytes(), target.as_bytes(), content_type, body])
}

/// Hashes each part with its length, so that different lists never collide by concatenation.
pub(crate) fn hash(parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hasher.update(part);
    }
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    #[test]
    fn parts_do_not_run_into_each_other() {
        let headers = HeaderMap::new();
        let request = |caller, upstream| KeyedRequest { caller, upstream, method: "POST", path: "/", headers: &headers, key: "k" };
        assert_ne!(request("a", "bc").scope(), request("ab", "c").scope());
        assert_eq!(request("a", "b").scope(), request("a", "b").scope());
        assert_ne!(fingerprint("GET", "/", b"", b"x"), fingerprint("GET", "/", b"x", b""));
    }

    #[test]
    fn the_same_key_with_other_credentials_is_another_key() {
        let scope = |credentials: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            headers.extend(credentials.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))));
            KeyedRequest { caller: "anonymous", upstream: "u", method: "POST", path: "/", headers: &headers, key: "k" }.scope()
        };
        assert_ne!(scope(&[("authorization", "Bearer one")]), scope(&[("authorization", "Bearer two")]));
        assert_ne!(scope(&[("x-api-key", "one")]), scope(&[]));
        assert_eq!(scope(&[("accept", "text/plain")]), scope(&[]));
    }
}
