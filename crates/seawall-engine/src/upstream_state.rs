//! State that all endpoints of an upstream share in this process: retry budget, keys, pauses, and waiting calls.

use crate::credential_pauses::CredentialPauses;
use crate::locked_cell::Locked;
use crate::pause_cell::PauseCell;
use seawall_core::admit::places::Places;
use seawall_core::call::{AskAnswer, BUDGET_CAPACITY};
use seawall_core::config::Auth;
use seawall_core::decide::Budget;
use seawall_core::lease::{KeyPool, KeySet, KeyStatus, RequestMark, Until};
use seawall_core::policy;
use seawall_core::time::{Mono, Now};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;

/// State that all endpoints of an upstream share.
#[derive(Debug)]
pub struct UpstreamState {
    pub(crate) budget: Arc<Locked<Budget>>,
    pub(crate) keys: Option<Locked<KeyPool>>,
    /// Identifies the keys by id and group, for copies kept elsewhere.
    fingerprint: String,
    /// Fingerprints that distinguish the secrets of keys under the same ids.
    secrets: Vec<u32>,
    pub(crate) ids: Vec<String>,
    pub(crate) pause: Arc<PauseCell>,
    /// Pauses that apply to single callers' credentials.
    pub(crate) credential_pauses: Arc<CredentialPauses>,
    /// Calls that wait for a key, a pause or a breaker.
    pub(crate) places: Arc<Locked<Places>>,
}

impl UpstreamState {
    #[must_use]
    pub fn new(auth: Option<&Auth>, secrets: Vec<u32>) -> Self {
        let keys = auth.filter(|auth| !auth.keys.is_empty()).map(|auth| KeyPool::new(auth.pick, &auth.group_numbers()));
        Self {
            budget: Arc::new(Locked::new(Budget::empty(BUDGET_CAPACITY))),
            keys: keys.map(Locked::new),
            fingerprint: auth.map(fingerprint).unwrap_or_default(),
            secrets,
            ids: auth.map(|auth| auth.keys.iter().map(|key| key.id.clone()).collect()).unwrap_or_default(),
            pause: Arc::default(),
            credential_pauses: Arc::default(),
            places: Arc::new(Locked::new(Places::default())),
        }
    }

    pub(crate) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    pub(crate) fn secrets(&self) -> &[u32] {
        &self.secrets
    }

    /// Returns beginning and end of the pause that the provider asked of all endpoints, while it lasts.
    #[must_use]
    pub fn paused(&self, now: Mono) -> Option<(Mono, Mono)> {
        self.pause.span(now)
    }

    pub(crate) fn pause(&self, until: Mono, now: Mono) {
        self.pause.extend(until, now);
    }

    /// Runs `act` on the key pool, if there is one.
    pub(crate) fn with_keys<R>(&self, act: impl FnOnce(&mut KeyPool) -> R) -> Option<R> {
        self.keys.as_ref().map(|keys| act(&mut keys.lock()))
    }

    /// Continues an earlier state with other keys: budget, pauses and waiting calls stay, and so do the cooldowns of keys that remain with
    /// the same secret. `same` returns the earlier index of a key.
    #[must_use]
    pub fn after(mut self, before: &Self, same: impl Fn(u16) -> Option<u16>) -> Self {
        self.budget = Arc::clone(&before.budget);
        self.pause = Arc::clone(&before.pause);
        self.credential_pauses = Arc::clone(&before.credential_pauses);
        self.places = Arc::clone(&before.places);
        if let (Some(keys), Some(known)) = (&self.keys, &before.keys) {
            let (mut keys, known) = (keys.lock(), known.lock());
            for key in 0..u16::try_from(keys.len()).unwrap_or(u16::MAX) {
                if let Some(index) = same(key) {
                    keys.adopt(key, &known, index);
                }
            }
        }
        self
    }

    /// Calls that wait for a key, a pause or a breaker.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.places.lock().waiting()
    }

    /// Returns the number of callers whose credential the provider has paused, the earliest beginning and the latest end.
    #[must_use]
    pub fn credentials_paused(&self, now: Mono) -> Option<(usize, Mono, Mono)> {
        self.credential_pauses.lasting(now)
    }

    #[must_use]
    pub fn budget_tokens(&self, retry: &policy::Retry, now: Mono) -> f64 {
        self.budget.lock().tokens(retry.budget_floor, now)
    }

    #[must_use]
    pub fn key_status(&self, key: u16, now: Now) -> Option<KeyStatus> {
        self.keys.as_ref()?.lock().status(key, now)
    }

    /// Rests a key until then, by hand.
    pub(crate) fn cool_key(&self, key: u16, until: Until) {
        if let Some(keys) = &self.keys {
            keys.lock().cool_key(key, until);
        }
    }

    /// Restores a key, by hand.
    pub(crate) fn restore_key(&self, key: u16) {
        if let Some(keys) = &self.keys {
            keys.lock().restore(key);
        }
    }

    pub(crate) fn lease(&self, tried: KeySet, request: RequestMark, now: Now) -> AskAnswer {
        self.keys.as_ref().map(|keys| keys.lock().lease(now, tried, request)).into()
    }
}

/// Hashes the ids and groups of keys: another set of keys is another pool.
fn fingerprint(auth: &Auth) -> String {
    let mut hash = Sha256::new();
    for (key, group) in auth.keys.iter().zip(auth.group_numbers()) {
        hash.update(key.id.len().to_be_bytes());
        hash.update(key.id.as_bytes());
        hash.update(group.to_be_bytes());
    }
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
