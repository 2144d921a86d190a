//! The response cache of this process, bounded in bytes and entries, with least-recently-used eviction. It implements the rules of RFC 9111
//! and RFC 5861; the gateway decides when to use it.

mod counts;
mod directives;
mod entry;
mod harmless;

pub use counts::CacheCounts;
pub use directives::Directives;
pub use entry::{CacheRequest, CachedResponse, CallerDigest};

use crate::locked_cell::Locked;
use http::HeaderMap;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Larger bodies are not stored.
pub const MAX_BODY: usize = 1 << 20;
const MAX_BYTES: usize = 64 << 20;
const MAX_KEYS: usize = 1 << 14;
/// Maximum responses to the same request that differ by `Vary`.
const MAX_VARIANTS: usize = 16;

/// The key of a request. Its order keeps all entries of one target together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CacheKey {
    /// The upstream's id, which changes with its URL.
    pub upstream: u32,
    /// Path and query, without our credential.
    pub target: Arc<str>,
    pub head: bool,
    /// Only this caller may get the response.
    pub caller: Option<CallerDigest>,
}

#[derive(Debug)]
struct CacheSlot {
    variants: Vec<Arc<CachedResponse>>,
    used: u64,
    bytes: usize,
}

#[derive(Debug, Default)]
struct CacheShards {
    slots: BTreeMap<CacheKey, CacheSlot>,
    /// Keys by last use.
    order: BTreeMap<u64, CacheKey>,
    turn: u64,
    bytes: usize,
}

#[derive(Debug)]
pub struct ResponseCache {
    shelves: Locked<CacheShards>,
    /// Lets lookups in an empty cache skip the lock.
    keys: AtomicUsize,
    most_bytes: usize,
}

impl Default for ResponseCache {
    fn default() -> Self {
        Self::holding(MAX_BYTES)
    }
}

impl ResponseCache {
    #[must_use]
    pub const fn holding(most_bytes: usize) -> Self {
        let shelves = CacheShards { slots: BTreeMap::new(), order: BTreeMap::new(), turn: 0, bytes: 0 };
        Self { shelves: Locked::new(shelves), keys: AtomicUsize::new(0), most_bytes }
    }

    /// Finds the response for a request: the caller's own, or else a shareable one. A response to an anonymous caller is not served
    /// to one with credentials.
    #[must_use]
    pub fn find(&self, key: &CacheKey, headers: &HeaderMap) -> Option<Arc<CachedResponse>> {
        if self.is_empty() {
            return None;
        }
        let mut shelves = self.shelves.lock();
        let own = shelves.find(key, headers);
        if own.is_some() || key.caller.is_none() {
            return own;
        }
        shelves.find(&CacheKey { caller: None, ..key.clone() }, headers).filter(|entry| entry.open)
    }

    /// Stores the entry under the caller that owns it.
    pub fn store(&self, mut key: CacheKey, entry: Arc<CachedResponse>) {
        key.caller = entry.caller;
        let mut shelves = self.shelves.lock();
        shelves.store(key, entry);
        while shelves.bytes > self.most_bytes || shelves.slots.len() > MAX_KEYS {
            shelves.evict();
        }
        self.keys.store(shelves.slots.len(), Ordering::Relaxed);
    }

    /// Drops all responses about a target that an unsafe method has changed (RFC 9111 §4.4).
    pub fn invalidate(&self, upstream: u32, target: &str) {
        if self.is_empty() {
            return;
        }
        let from = CacheKey { upstream, target: Arc::from(target), head: false, caller: None };
        let mut shelves = self.shelves.lock();
        let about = |key: &&CacheKey| key.upstream == upstream && &*key.target == target;
        let gone: Vec<CacheKey> = shelves.slots.range(from..).map(|(key, _)| key).take_while(about).cloned().collect();
        for key in gone {
            shelves.remove(&key);
        }
        self.keys.store(shelves.slots.len(), Ordering::Relaxed);
    }

    fn is_empty(&self) -> bool {
        self.keys.load(Ordering::Relaxed) == 0
    }
}

impl CacheShards {
    fn find(&mut self, key: &CacheKey, headers: &HeaderMap) -> Option<Arc<CachedResponse>> {
        let slot = self.slots.get_mut(key)?;
        let found = slot.variants.iter().rev().find(|entry| entry.takes(headers)).cloned()?;
        if let Some(key) = self.order.remove(&slot.used) {
            self.turn += 1;
            slot.used = self.turn;
            self.order.insert(self.turn, key);
        }
        Some(found)
    }

    fn store(&mut self, key: CacheKey, entry: Arc<CachedResponse>) {
        self.turn += 1;
        let mut slot = self.remove(&key).unwrap_or(CacheSlot { variants: Vec::new(), used: 0, bytes: 0 });
        slot.variants.retain(|old| !entry.replaces(old));
        if slot.variants.len() == MAX_VARIANTS {
            slot.variants.remove(0);
        }
        slot.variants.push(entry);
        slot.used = self.turn;
        slot.bytes = key.target.len() + slot.variants.iter().map(|entry| entry.bytes()).sum::<usize>();
        self.bytes += slot.bytes;
        self.order.insert(self.turn, key.clone());
        self.slots.insert(key, slot);
    }

    fn remove(&mut self, key: &CacheKey) -> Option<CacheSlot> {
        let slot = self.slots.remove(key)?;
        self.order.remove(&slot.used);
        self.bytes -= slot.bytes;
        Some(slot)
    }

    fn evict(&mut self) {
        let Some(oldest) = self.order.values().next().cloned() else { return };
        self.remove(&oldest);
    }
}

/// The right to refresh an entry; only one call has it at a time.
#[derive(Debug)]
pub struct Revalidation(Arc<CachedResponse>);

impl Revalidation {
    #[must_use]
    pub fn claim(entry: &Arc<CachedResponse>) -> Option<Self> {
        let taken = entry.revalidating.swap(true, Ordering::AcqRel);
        (!taken).then(|| Self(Arc::clone(entry)))
    }
}

impl Drop for Revalidation {
    fn drop(&mut self) {
        self.0.revalidating.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http::StatusCode;
    use seawall_core::policy;
    use seawall_core::time::{Nanos, Wall};

    const POLICY: policy::CachePolicy =
        policy::CachePolicy { ttl: Nanos::from_secs(10), stale_if_error: Nanos::ZERO, stale_while_revalidate: Nanos::ZERO };

    fn key(target: &str) -> CacheKey {
        CacheKey { upstream: 1, target: Arc::from(target), head: false, caller: None }
    }

    fn entry(asked: &[(&'static str, &str)], vary: &str, body: usize) -> Arc<CachedResponse> {
        let headers: HeaderMap = asked.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        let answered = HeaderMap::from_iter([(http::header::VARY, vary.parse().unwrap())]);
        let asked = CacheRequest { headers: &headers, caller: CallerDigest::of(&headers) };
        Arc::new(CachedResponse::new(asked, StatusCode::OK, answered, Bytes::from(vec![0; body]), &POLICY, Wall(0)).unwrap())
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let cache = ResponseCache::holding(3 * 1400);
        for target in ["/a", "/b", "/c"] {
            cache.store(key(target), entry(&[], "", 1000));
        }
        assert!(cache.find(&key("/a"), &HeaderMap::new()).is_some());
        cache.store(key("/d"), entry(&[], "", 1000));
        let kept = ["/a", "/b", "/c", "/d"].map(|target| cache.find(&key(target), &HeaderMap::new()).is_some());
        assert_eq!(kept, [true, false, true, true]);
        assert!(cache.shelves.lock().bytes <= 3 * 1400);
    }

    #[test]
    fn an_answer_that_is_larger_than_everything_is_not_kept() {
        let cache = ResponseCache::holding(1000);
        cache.store(key("/a"), entry(&[], "", 2000));
        let shelves = cache.shelves.lock();
        assert_eq!((shelves.bytes, shelves.slots.len(), shelves.order.len()), (0, 0, 0));
    }

    #[test]
    fn variants_of_one_target_are_bounded() {
        let cache = ResponseCache::default();
        for i in 0..100 {
            let language: &str = &format!("l{i}");
            cache.store(key("/a"), entry(&[("accept-language", language)], "accept-language", 10));
        }
        assert_eq!(cache.shelves.lock().slots[&key("/a")].variants.len(), MAX_VARIANTS);
    }

    #[test]
    fn one_callers_answer_is_not_anothers() {
        let cache = ResponseCache::default();
        let theirs = entry(&[("cookie", "a")], "", 10);
        let caller = theirs.caller;
        cache.store(key("/a"), theirs);
        assert!(caller.is_some() && cache.find(&CacheKey { caller, ..key("/a") }, &HeaderMap::new()).is_some());
        assert!(cache.find(&key("/a"), &HeaderMap::new()).is_none());
        let other = entry(&[("cookie", "b")], "", 10).caller;
        let other = CacheKey { caller: other, ..key("/a") };
        assert!(cache.find(&other, &HeaderMap::new()).is_none());
        cache.store(key("/a"), entry(&[], "", 10));
        assert!(cache.find(&other, &HeaderMap::new()).is_none(), "what an anonymous caller got");
    }

    #[test]
    fn a_change_forgets_everything_about_its_target_and_nothing_else() {
        let cache = ResponseCache::default();
        cache.store(key("/a"), entry(&[], "", 10));
        cache.store(key("/a"), entry(&[("cookie", "a")], "", 10));
        cache.store(CacheKey { head: true, ..key("/a") }, entry(&[], "", 10));
        cache.store(key("/ab"), entry(&[], "", 10));
        cache.invalidate(2, "/a");
        assert_eq!(cache.shelves.lock().slots.len(), 4);
        cache.invalidate(1, "/a");
        assert_eq!(cache.shelves.lock().slots.keys().map(|key| key.target.to_string()).collect::<Vec<_>>(), ["/ab"]);
    }

    #[test]
    fn one_at_a_time_fetches_a_new_answer() {
        let entry = entry(&[], "", 10);
        let first = Revalidation::claim(&entry);
        assert!(first.is_some() && Revalidation::claim(&entry).is_none());
        drop(first);
        assert!(Revalidation::claim(&entry).is_some());
    }
}
