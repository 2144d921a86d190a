//! What a cache did for one upstream, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub struct CacheCounts {
    /// Fresh answers that were served.
    pub hit: AtomicU64,
    /// Stale ones: while a new one was fetched, or because there was none to be had.
    pub stale: AtomicU64,
    /// Answers that the upstream confirmed.
    pub revalidated: AtomicU64,
    /// Calls that had to ask the upstream for an answer.
    pub miss: AtomicU64,
    pub stored: AtomicU64,
}

impl CacheCounts {
    pub fn count(place: &AtomicU64) {
        place.fetch_add(1, Ordering::Relaxed);
    }

    /// By result, as metrics name it.
    #[must_use]
    pub fn lookups(&self) -> [(&'static str, u64); 4] {
        let read = |place: &AtomicU64| place.load(Ordering::Relaxed);
        [("hit", read(&self.hit)), ("stale", read(&self.stale)), ("revalidated", read(&self.revalidated)), ("miss", read(&self.miss))]
    }
}
