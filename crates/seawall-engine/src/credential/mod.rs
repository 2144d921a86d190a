//! Credentials of requests: added last, after everything that is logged, hashed or cached.

mod form;
mod oauth;

pub use oauth::{Denied, OauthToken, Tokens};

use crate::mask::{Mask, Probe};
use crate::secret::{MissingSecret, Vault, fetch};
use crate::shared::RedisStore;
use form::{CredentialForm, hide, probe, sent};
use http::HeaderValue;
use http::header::{AUTHORIZATION, HeaderName};
use seawall_core::config::Auth;
use seawall_core::config::place::Inject;
use seawall_http::query_parameter::QueryParameter;
use std::sync::Arc;

/// An upstream's keys, ready to be sent.
#[derive(Debug)]
pub struct Credentials {
    place: CredentialPlace,
    keys: Vec<ReadyCredential>,
    /// Masks every key in every form in which it is sent.
    mask: Mask,
    /// The source of an expiring credential; then it is the only one.
    pub tokens: Option<Arc<Tokens>>,
}

#[derive(Debug)]
enum CredentialPlace {
    Query(String),
    Header(HeaderName),
}

#[derive(Debug)]
struct ReadyCredential {
    tail: Arc<str>,
    fingerprint: u32,
    sent: CredentialForm,
    probe: Probe,
}

impl Credentials {
    /// # Errors
    /// When a secret is missing or cannot be sent.
    pub fn new(
        auth: &Auth,
        path: &str,
        vault: Vault<'_>,
        before: Option<&Self>,
        shared: Option<(&Arc<RedisStore>, &str)>,
    ) -> Result<Self, MissingSecret> {
        let place = match &auth.inject {
            Inject::Query(name) => CredentialPlace::Query(name.clone()),
            Inject::Header { name, .. } => {
                CredentialPlace::Header(HeaderName::from_bytes(name.as_bytes()).expect("checked to be a header name"))
            }
            Inject::Basic => CredentialPlace::Header(AUTHORIZATION),
        };
        let mut keys = Vec::with_capacity(auth.keys.len());
        let mut mask = Mask::default();
        for (i, key) in auth.keys.iter().enumerate() {
            let missing = |why: String| MissingSecret { path: format!("{path}.keys[{i}].secret"), reference: key.secret.to_string(), why };
            let secret = fetch(&key.secret, vault).map_err(missing)?;
            let sent = sent(&auth.inject, &secret).map_err(missing)?;
            hide(&auth.inject, &secret, &secret.tail(), &mut mask);
            let fingerprint = secret.fingerprint(&format!("{path}.{}", key.id));
            keys.push(ReadyCredential { tail: Arc::from(secret.tail()), fingerprint, sent, probe: probe(&auth.inject, &secret) });
        }
        let before = before.and_then(|before| before.tokens.as_ref());
        let tokens = auth.refresh.as_ref().map(|spec| Tokens::new(auth, spec, path, vault, before, shared)).transpose()?;
        Ok(Self { place, keys, mask, tokens })
    }

    /// Masks the keys, and recent tokens.
    #[must_use]
    pub fn mask(&self) -> Mask {
        let mut mask = self.mask.clone();
        if let Some(tokens) = &self.tokens {
            tokens.hide(&mut mask);
        }
        mask
    }

    /// Returns the search pattern for the credential of one attempt in its response's headers.
    pub(crate) fn probe<'a>(&'a self, key: Option<u16>, token: Option<&'a OauthToken>) -> Option<&'a Probe> {
        match (key, token) {
            (Some(key), _) => self.keys.get(usize::from(key)).map(|key| &key.probe),
            (None, Some(token)) => Some(&token.probe),
            (None, None) => None,
        }
    }

    /// Returns fingerprints that distinguish the secrets of keys under the same ids.
    pub(crate) fn fingerprints(&self) -> Vec<u32> {
        self.keys.iter().map(|key| key.fingerprint).collect()
    }

    /// Returns the part of a key that logs show.
    #[must_use]
    pub fn tail(&self, key: u16) -> Option<Arc<str>> {
        self.keys.get(usize::from(key)).map(|key| Arc::clone(&key.tail))
    }

    /// Returns the header that callers may not set on this route.
    #[must_use]
    pub fn header(&self) -> Option<&HeaderName> {
        match &self.place {
            CredentialPlace::Header(name) => Some(name),
            CredentialPlace::Query(_) => None,
        }
    }

    /// Returns the query parameter that carries a key.
    #[must_use]
    pub fn query(&self, key: u16) -> Option<QueryParameter> {
        match (&self.place, self.keys.get(usize::from(key))?) {
            (CredentialPlace::Query(name), ReadyCredential { sent: CredentialForm::Query(secret), .. }) => {
                Some(QueryParameter::new(name, secret.reveal()))
            }
            _ => None,
        }
    }

    /// Returns the query parameter that carries a token.
    #[must_use]
    pub fn query_token(&self, token: &OauthToken) -> Option<QueryParameter> {
        match (&self.place, &token.sent) {
            (CredentialPlace::Query(name), CredentialForm::Query(secret)) => Some(QueryParameter::new(name, secret.reveal())),
            _ => None,
        }
    }

    /// Returns the header that carries a token.
    #[must_use]
    pub fn token_field<'a>(&'a self, token: &'a OauthToken) -> Option<(&'a HeaderName, &'a HeaderValue)> {
        match (&self.place, &token.sent) {
            (CredentialPlace::Header(name), CredentialForm::Header(value)) => Some((name, value)),
            _ => None,
        }
    }

    /// Returns the header that carries a key.
    #[must_use]
    pub fn field(&self, key: u16) -> Option<(&HeaderName, &HeaderValue)> {
        match (&self.place, self.keys.get(usize::from(key))?) {
            (CredentialPlace::Header(name), ReadyCredential { sent: CredentialForm::Header(value), .. }) => Some((name, value)),
            _ => None,
        }
    }

    /// Returns the name of the query parameter that carries the key; callers may not set it.
    #[must_use]
    pub fn parameter(&self) -> Option<&str> {
        match &self.place {
            CredentialPlace::Query(name) => Some(name),
            CredentialPlace::Header(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use seawall_http::query_parameter::encode;

    #[test]
    fn query_values_cannot_break_out() {
        assert_eq!(encode("a&b=c d#é"), "a%26b%3Dc%20d%23%C3%A9");
    }
}
