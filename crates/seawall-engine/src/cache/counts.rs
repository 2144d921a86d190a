//! Counts of the cache for one upstream.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub struct CacheCounts {
    /// Fresh responses served.
    pub hit: AtomicU64,
    /// Stale responses served, during a refresh or in place of a failure.
    pub stale: AtomicU64,
    /// Responses confirmed by the upstream.
    pub revalidated: AtomicU64,
    /// Calls that needed a response of the upstream.
    pub miss: AtomicU64,
    pub stored: AtomicU64,
}

impl CacheCounts {
    pub fn count(place: &AtomicU64) {
        place.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counts by result, as metrics name it.
    #[must_use]
    pub fn lookups(&self) -> [(&'static str, u64); 4] {
        let read = |place: &AtomicU64| place.load(Ordering::Relaxed);
        [("hit", read(&self.hit)), ("stale", read(&self.stale)), ("revalidated", read(&self.revalidated)), ("miss", read(&self.miss))]
    }
}
