//! What makes two requests the same: the hashes behind idempotency keys.

use sha2::{Digest as _, Sha256};

/// Where an idempotency key counts: the same key of another caller, or for another path, is another key.
pub(crate) fn dedup(caller: &str, upstream: &str, method: &str, path: &str, key: &str) -> [u8; 32] {
    hash(&[caller, upstream, method, path, key].map(str::as_bytes))
}

/// The same for calls, whose stored answers are given again: whoever speaks to the upstream with other credentials is
/// another caller, whatever we call it.
pub(crate) fn scope(caller: &str, credentials: &[u8], upstream: &str, method: &str, path: &str, key: &str) -> [u8; 32] {
    hash(&[caller.as_bytes(), credentials, upstream.as_bytes(), method.as_bytes(), path.as_bytes(), key.as_bytes()])
}

/// The whole request, so that a key cannot be used for two.
pub(crate) fn fingerprint(method: &str, target: &str, content_type: &[u8], body: &[u8]) -> [u8; 32] {
    hash(&[method.as_bytes(), target.as_bytes(), content_type, body])
}

/// Each part with its length, so that no two lists of parts look alike.
fn hash(parts: &[&[u8]]) -> [u8; 32] {
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

    #[test]
    fn parts_do_not_run_into_each_other() {
        assert_ne!(dedup("a", "bc", "", "", ""), dedup("ab", "c", "", "", ""));
        assert_ne!(fingerprint("GET", "/", b"", b"x"), fingerprint("GET", "/", b"x", b""));
        assert_ne!(scope("a", b"x", "", "", "", "k"), scope("a", b"y", "", "", "", "k"));
        assert_eq!(dedup("a", "b", "c", "d", "e"), dedup("a", "b", "c", "d", "e"));
    }
}
