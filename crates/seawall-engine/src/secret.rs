//! Secrets: a type that never shows more than its last four characters.

use seawall_core::config::place::SecretRef;
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::sync::Arc;

/// A secret that the configuration needs and that is missing or unusable.
#[derive(Debug, thiserror::Error)]
#[error("`{path}`: the secret {reference} cannot be used: {why}")]
pub struct MissingSecret {
    pub path: String,
    pub reference: String,
    pub why: String,
}

/// Fetches a secret's text; the program decides from where.
pub type Vault<'a> = &'a dyn Fn(&SecretRef) -> Result<Secret, String>;

/// Fetches a secret and refuses an empty one.
pub(crate) fn fetch(reference: &SecretRef, vault: Vault<'_>) -> Result<Secret, String> {
    let secret = vault(reference)?;
    if secret.reveal().is_empty() { Err("it is empty".to_owned()) } else { Ok(secret) }
}

#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(Arc::from(text))
    }

    /// Returns the plain secret, for sending.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Compares in constant time: hashes are compared instead of texts.
    #[must_use]
    pub fn is(&self, presented: &[u8]) -> bool {
        let hash = |text: &[u8]| -> [u8; 32] { Sha256::digest(text).into() };
        hash(self.0.as_bytes()) == hash(presented)
    }

    /// Distinguishes this secret from another one in the same place, and is too short to identify it: one in four thousand million guesses
    /// fits. Safe to store and to share with other instances.
    #[must_use]
    pub(crate) fn fingerprint(&self, place: &str) -> u32 {
        let mut hash = Sha256::new();
        hash.update(place.len().to_be_bytes());
        hash.update(place.as_bytes());
        hash.update(self.0.as_bytes());
        let digest = hash.finalize();
        u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
    }

    /// Returns `…cdef` for logs and people. Of short secrets nothing is shown, since four characters would be most of them.
    #[must_use]
    pub fn tail(&self) -> String {
        let count = self.0.chars().count();
        if count < 8 { "…".to_owned() } else { format!("…{}", self.0.chars().skip(count - 4).collect::<String>()) }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.tail())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_shows_four_characters_at_most() {
        assert_eq!(format!("{:?}", Secret::new("sk-live-0123456789abcdef")), "…cdef");
        assert_eq!(Secret::new("short").tail(), "…");
    }

    #[test]
    fn a_fingerprint_tells_secrets_of_one_place_apart() {
        let of = |secret, place| Secret::new(secret).fingerprint(place);
        assert_eq!(of("a", "x"), of("a", "x"));
        assert_ne!(of("a", "x"), of("b", "x"));
        assert_ne!(of("a", "x"), of("a", "y"), "equal secrets do not show as such");
    }

    #[test]
    fn only_the_whole_secret_is_it() {
        let secret = Secret::new("0123456789");
        assert!(secret.is(b"0123456789"));
        assert!(!secret.is(b"012345678") && !secret.is(b"") && !secret.is(b"01234567890"));
    }
}
