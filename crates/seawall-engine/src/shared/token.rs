//! A token shared by instances: one of them fetches it, and the others read it encrypted from Redis. The encryption key is derived from the
//! client's own secret, which every instance has and Redis never sees.

use super::redis::{Arguments, RedisStore};
use super::scripts;
use crate::secret::Secret;
use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use seawall_core::time::{Nanos, Wall};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time limit of one instance to fetch before another may try; longer than a fetch takes.
const TURN_MS: u64 = 12_000;
/// A token without expiry is dropped after this time and fetched again.
const LONGEST: Nanos = Nanos::from_secs(86_400);
/// Polling interval of instances that wait for the token.
pub(crate) const LOOK: Duration = Duration::from_millis(20);

pub(crate) struct SharedToken {
    store: Arc<RedisStore>,
    token: String,
    turn: String,
    seal: RandomizedNonceKey,
    /// The version of the token we have; a higher one is newer.
    version: AtomicU64,
}

impl std::fmt::Debug for SharedToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedToken").field("token", &self.token).finish_non_exhaustive()
    }
}

/// The next step to obtain a token.
#[derive(Debug)]
pub(crate) enum TokenTurn {
    /// Another instance has fetched it: the provider's response, adjusted to now.
    Found(Value),
    /// This instance has to fetch it, and others wait.
    Ours,
    /// Another instance is fetching it.
    Others,
    /// Redis does not reply.
    Alone,
}

impl SharedToken {
    pub(crate) fn new(store: &Arc<RedisStore>, upstream: &str, client_id: &Secret, client_secret: &Secret) -> Option<Self> {
        let mut hash = Sha256::new();
        for part in ["seawall token 1", client_id.reveal(), client_secret.reveal()] {
            hash.update(part.len().to_be_bytes());
            hash.update(part.as_bytes());
        }
        let token = format!("{{seawall:{upstream}}}:token");
        let seal = RandomizedNonceKey::new(&AES_256_GCM, &hash.finalize()).ok()?;
        Some(Self { store: Arc::clone(store), turn: format!("{token}:turn"), token, seal, version: AtomicU64::new(0) })
    }

    pub(crate) async fn turn(&self, now: Wall) -> TokenTurn {
        let arguments = Arguments::default().number(0).number(self.version.load(Ordering::Relaxed)).text(self.store.name()).number(TURN_MS);
        let reply: Option<(u64, Vec<u8>)> = self.store.run(&scripts::TOKEN, &[&self.token, &self.turn], &arguments).await;
        match reply {
            None => TokenTurn::Alone,
            Some((0, owner)) if owner == self.store.name().as_bytes() => TokenTurn::Ours,
            Some((0, _)) => TokenTurn::Others,
            Some((version, sealed)) => {
                self.version.store(version, Ordering::Relaxed);
                // An entry that we cannot decrypt belongs to other client credentials and is of no use here.
                self.open(sealed).map_or(TokenTurn::Others, |kept| TokenTurn::Found(aged(kept, now)))
            }
        }
    }

    /// Ends our turn: stores the provider's response, or nothing, so that another instance may try.
    pub(crate) async fn keep(&self, answer: Option<&Value>, now: Wall) {
        let life = answer.and_then(seconds).map_or(LONGEST, Nanos::from_secs).min(LONGEST);
        let sealed = answer.and_then(|answer| {
            let kept = json!({
                "access_token": answer["access_token"],
                "refresh_token": answer["refresh_token"],
                "ends_ms": seconds(answer).map(|seconds| (now + Nanos::from_secs(seconds)).0),
            });
            self.close(kept.to_string().into_bytes())
        });
        let arguments = Arguments::default()
            .number(0)
            .text(self.store.name())
            .number(self.version.load(Ordering::Relaxed))
            .text(sealed.unwrap_or_default())
            .number(life.as_millis().max(1));
        let version: Option<u64> = self.store.run(&scripts::TOKEN_KEEP, &[&self.token, &self.turn], &arguments).await;
        if let Some(version) = version.filter(|version| *version > 0) {
            self.version.store(version, Ordering::Relaxed);
        }
    }

    fn close(&self, mut text: Vec<u8>) -> Option<Vec<u8>> {
        let nonce = self.seal.seal_in_place_append_tag(Aad::from(self.token.as_bytes()), &mut text).ok()?;
        Some([nonce.as_ref().as_slice(), &text].concat())
    }

    fn open(&self, mut sealed: Vec<u8>) -> Option<Value> {
        let (nonce, text) = sealed.split_at_mut_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let text = self.seal.open_in_place(nonce, Aad::from(self.token.as_bytes()), text).ok()?;
        serde_json::from_slice(text).ok()
    }
}

/// Returns the lifetime of a token by its provider's response; some write the number as text. An expired lifetime is zero.
pub(crate) fn seconds(answer: &Value) -> Option<u64> {
    let said = answer["expires_in"].as_f64().or_else(|| answer["expires_in"].as_str()?.trim().parse().ok())?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the conversion saturates, and NaN becomes zero")]
    let seconds = said.floor() as u64;
    Some(seconds)
}

/// Returns a stored response with the remaining lifetime.
fn aged(mut kept: Value, now: Wall) -> Value {
    if let Some(ends) = kept["ends_ms"].as_i64() {
        kept["expires_in"] = json!(Wall(ends).since(now).as_millis() / 1000);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(secret: &str) -> SharedToken {
        let store = Arc::new(RedisStore::new("redis://127.0.0.1:1", Nanos::from_millis(50)).unwrap());
        SharedToken::new(&store, "a", &Secret::new("id"), &Secret::new(secret)).unwrap()
    }

    #[test]
    fn only_who_has_the_clients_secret_opens_the_seal() {
        let sealed = token("one").close(b"{\"access_token\":\"canary\"}".to_vec()).unwrap();
        assert!(!String::from_utf8_lossy(&sealed).contains("canary"));
        assert_eq!(token("one").open(sealed.clone()).unwrap()["access_token"], "canary");
        assert_eq!(token("two").open(sealed.clone()), None);
        assert_eq!(token("one").open(sealed[..sealed.len() - 1].to_vec()), None);
        assert_eq!(token("one").open(Vec::new()), None);
    }

    #[test]
    fn a_token_that_was_kept_for_a_while_has_that_much_less_life() {
        let kept = json!({ "access_token": "t", "ends_ms": 60_000 });
        assert_eq!(aged(kept, Wall(15_000))["expires_in"], 45);
    }
}
