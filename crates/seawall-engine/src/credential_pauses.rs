//! Pauses per credential of callers. If callers bring their own keys, a provider that throttles one means that key, and not all callers of
//! the gateway. Callers without a credential count as one caller.

mod credential_text;

use crate::credential_names::{changes_each_time, is_credential, is_credential_parameter, is_scoped_parameter, may_change};
use credential_text::{of_authorization, of_scoped};
use http::HeaderMap;
use parking_lot::Mutex;
use seawall_core::call::CallPlan;
use seawall_core::guard::PauseState;
use seawall_core::time::Mono;
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum paused credentials per upstream. A further one replaces the credential with the fewest delayed calls.
const MAX_CREDENTIALS: usize = 1_024;

/// Identifies the credential of a request without containing it; zero for a request without one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CredentialMark(u64);

impl CredentialMark {
    /// A request without a credential.
    pub const NONE: Self = Self(0);

    #[must_use]
    pub(crate) const fn number(self) -> u64 {
        self.0
    }

    /// Returns the mark of the credential that the upstream sees. If the upstream has keys or a token of ours, all callers share those.
    #[must_use]
    pub fn sent(plan: &CallPlan, headers: &HeaderMap, query: Option<&str>) -> Self {
        if plan.takes_callers_credentials() { Self::of(headers, query) } else { Self::NONE }
    }

    /// Hashes with a random key, so that a caller cannot construct another caller's mark. Parts that change with each request are left out,
    /// because they would make each request a new caller.
    #[must_use]
    pub fn of(headers: &HeaderMap, query: Option<&str>) -> Self {
        static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let (mut strong, mut weak) = (0u64, 0u64);
        // Hashes are added up, so that the order of headers does not matter.
        let add = |sum: &mut u64, name: &str, value: &[u8]| *sum = sum.wrapping_add(KEYS.hash_one((name, value)));
        for (name, value) in headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())) {
            if name == "authorization" {
                of_authorization(value, |piece| add(&mut strong, name, piece));
            } else if is_credential(name) && !changes_each_time(name) {
                add(if may_change(name) { &mut weak } else { &mut strong }, name, value);
            }
        }
        for (name, value) in query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('=')) {
            if is_scoped_parameter(name) {
                add(&mut strong, name, of_scoped(value).as_bytes());
            } else if is_credential_parameter(name) {
                add(&mut strong, name, value.as_bytes());
            }
        }
        Self(if strong == 0 { weak } else { strong })
    }
}

/// One credential's pause, and the number of calls that it has delayed.
#[derive(Debug, Default)]
struct HeldCredential {
    pause: PauseState,
    calls: u32,
}

#[derive(Debug, Default)]
pub(crate) struct CredentialPauses {
    /// The end of the longest pause; after it, the lock need not be taken.
    until: AtomicU64,
    pauses: Mutex<HashMap<CredentialMark, HeldCredential>>,
}

impl CredentialPauses {
    /// Returns whether a call with this credential may be sent; otherwise when its pause ends.
    #[inline]
    pub(crate) fn admit(&self, mark: CredentialMark, now: Mono) -> Result<(), Mono> {
        if now.0 >= self.until.load(Ordering::Relaxed) { Ok(()) } else { self.admit_paused(mark, now) }
    }

    #[cold]
    fn admit_paused(&self, mark: CredentialMark, now: Mono) -> Result<(), Mono> {
        let mut pauses = self.pauses.lock();
        let Some(held) = pauses.get_mut(&mark) else { return Ok(()) };
        held.pause.admit(now).inspect_err(|_| held.calls = held.calls.saturating_add(1))
    }

    pub(crate) fn extend(&self, mark: CredentialMark, until: Mono, now: Mono) {
        let mut pauses = self.pauses.lock();
        if pauses.len() >= MAX_CREDENTIALS && !pauses.contains_key(&mark) {
            make_room(&mut pauses, now);
        }
        pauses.entry(mark).or_default().pause.extend(until, now);
        self.note_end(&pauses);
    }

    /// Ends the pause of a credential if the answered call was sent after the pause began.
    #[inline]
    pub(crate) fn answered(&self, mark: CredentialMark, sent_at: Mono, now: Mono) {
        if now.0 < self.until.load(Ordering::Relaxed) {
            self.end_pause(mark, sent_at, now);
        }
    }

    #[cold]
    fn end_pause(&self, mark: CredentialMark, sent_at: Mono, now: Mono) {
        let mut pauses = self.pauses.lock();
        let Some(held) = pauses.get_mut(&mark) else { return };
        held.pause.answered(sent_at, now);
        if held.pause.is_over(now) {
            self.note_end(&pauses);
        }
    }

    /// Ends the pauses of all credentials, by hand.
    pub(crate) fn lift(&self) {
        let mut pauses = self.pauses.lock();
        pauses.clear();
        self.note_end(&pauses);
    }

    /// Returns the number of paused credentials, the earliest beginning and the latest end.
    pub(crate) fn lasting(&self, now: Mono) -> Option<(usize, Mono, Mono)> {
        let pauses = self.pauses.lock();
        let spans: Vec<(Mono, Mono)> = pauses.values().filter_map(|held| held.pause.span(now)).collect();
        let (since, until) = (spans.iter().map(|span| span.0).min()?, spans.iter().map(|span| span.1).max()?);
        Some((spans.len(), since, until))
    }

    /// Called under the lock, so that `until` never lags behind the pauses.
    fn note_end(&self, pauses: &HashMap<CredentialMark, HeldCredential>) {
        let end = pauses.values().filter_map(|held| held.pause.span(Mono(0))).map(|(_, until)| until.0).max().unwrap_or(0);
        self.until.store(end, Ordering::Relaxed);
    }
}

/// Drops ended pauses or, if there are none, the credential with the fewest delayed calls, and the oldest of equal ones. An attacker that
/// fills the table with unused credentials displaces only those.
fn make_room(pauses: &mut HashMap<CredentialMark, HeldCredential>, now: Mono) {
    pauses.retain(|_, held| !held.pause.is_over(now));
    if pauses.len() < MAX_CREDENTIALS {
        return;
    }
    let worth = |held: &HeldCredential| (held.calls, held.pause.span(now));
    if let Some(least) = pauses.iter().min_by_key(|(_, held)| worth(held)).map(|(mark, _)| *mark) {
        pauses.remove(&least);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    const fn at(seconds: u64) -> Mono {
        Mono(seconds * 1_000_000_000)
    }

    fn caller(key: &str) -> CredentialMark {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", HeaderValue::from_str(key).unwrap());
        headers.insert("x-request-id", HeaderValue::from_static("never twice the same"));
        CredentialMark::of(&headers, None)
    }

    #[test]
    fn a_pause_binds_the_credential_that_was_refused_and_no_other() {
        let pauses = CredentialPauses::default();
        pauses.extend(caller("a"), at(30), at(0));
        assert_eq!(pauses.admit(caller("a"), at(0)), Err(at(30)));
        assert_eq!(pauses.admit(caller("b"), at(0)), Ok(()));
        assert_eq!(pauses.lasting(at(1)), Some((1, at(0), at(30))));
    }

    #[test]
    fn callers_are_told_apart_by_whatever_their_api_calls_its_key() {
        for name in ["xi-api-key", "x-auth-key", "x-rapidapi-key", "dd-api-key", "x-figma-token"] {
            let of = |value| {
                let headers = HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))]);
                CredentialMark::of(&headers, None)
            };
            assert_ne!(of("a"), of("b"), "{name}");
            assert_ne!(of("a"), CredentialMark::NONE, "{name}");
        }
    }

    #[test]
    fn a_credential_whose_text_changes_is_the_same_one() {
        let of = |pairs: &[(&'static str, &str)]| {
            let value = |text: &str| HeaderValue::from_str(text).unwrap();
            let headers = pairs.iter().map(|(name, text)| (HeaderName::from_static(name), value(text)));
            CredentialMark::of(&HeaderMap::from_iter(headers), None)
        };
        let aws = |key: &str, signature: &str| {
            let signed = format!("AWS4-HMAC-SHA256 Credential={key}/20261119/us-east-1/s3/aws4_request, Signature={signature}");
            of(&[("authorization", &signed)])
        };
        assert_eq!(aws("one", "0a"), aws("one", "1b"));
        assert_ne!(aws("one", "0a"), aws("two", "0a"));
        let bearer = |cookie: &str, proof: &str| of(&[("authorization", "Bearer one"), ("cookie", cookie), ("dpop", proof)]);
        assert_eq!(bearer("__cf_bm=0a", "p"), bearer("__cf_bm=1b", "q"));
        assert_ne!(of(&[("cookie", "sid=a")]), of(&[("cookie", "sid=b")]), "there is nothing better");
        let url = |key: &str, signature: &str| {
            let query = format!("X-Amz-Credential={key}%2F20261119%2Fus-east-1&X-Amz-Signature={signature}");
            CredentialMark::of(&HeaderMap::new(), Some(&query))
        };
        assert_eq!(url("one", "0a"), url("one", "1b"));
        assert_ne!(url("one", "0a"), url("two", "0a"));
    }

    #[test]
    fn a_credential_may_be_in_the_query() {
        let of = |query| CredentialMark::of(&HeaderMap::new(), Some(query));
        assert_ne!(of("key=a&page=1"), of("key=b&page=1"));
        assert_eq!(of("key=a&page=1"), of("page=2&key=a"));
        assert_eq!(of("page=1"), CredentialMark::NONE);
    }

    #[test]
    fn a_probe_that_is_answered_ends_it() {
        let pauses = CredentialPauses::default();
        pauses.extend(caller("a"), at(30), at(0));
        assert_eq!(pauses.admit(caller("a"), at(2)), Ok(()), "the probe");
        assert_eq!(pauses.admit(caller("a"), at(2)), Err(at(30)));
        pauses.answered(caller("a"), at(2), at(3));
        assert_eq!(pauses.admit(caller("a"), at(3)), Ok(()));
        assert_eq!(pauses.lasting(at(3)), None);
    }

    #[test]
    fn a_full_table_forgets_what_is_over() {
        let pauses = CredentialPauses::default();
        for n in 0..MAX_CREDENTIALS {
            pauses.extend(caller(&n.to_string()), at(5), at(0));
        }
        pauses.extend(caller("late"), at(9), at(6));
        assert_eq!(pauses.admit(caller("late"), at(6)), Err(at(9)));
        assert_eq!(pauses.lasting(at(6)), Some((1, at(6), at(9))));
    }

    #[test]
    fn a_table_full_of_credentials_that_nobody_uses_holds_back_those_in_use() {
        let pauses = CredentialPauses::default();
        let junk = |from: usize| (from..from + 2 * MAX_CREDENTIALS).for_each(|n| pauses.extend(caller(&n.to_string()), at(3_000), at(0)));
        junk(0);
        pauses.extend(caller("honest"), at(30), at(1));
        assert_eq!(pauses.admit(caller("honest"), at(1)), Err(at(30)));
        junk(10_000);
        assert_eq!(pauses.admit(caller("honest"), at(1)), Err(at(30)), "it has held back a call");
        assert_eq!(pauses.lasting(at(1)).unwrap().0, MAX_CREDENTIALS);
    }
}
