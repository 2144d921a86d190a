//! The clock that jobs go by.

use seawall_core::time::{Nanos, Wall};
use seawall_engine::clock::Clock;
use seawall_store::Store;
use std::sync::atomic::{AtomicI64, Ordering};

/// The database has no clock, or its time is not known yet.
const UNKNOWN: i64 = i64::MIN;

/// The database's clock if it has one, so that instances with different clocks agree; otherwise this machine's.
#[derive(Debug)]
pub(crate) struct StoreClock {
    clock: Clock,
    /// The start of this process by the database's clock. The monotonic clock counts on from there, so a step of the machine's clock does
    /// not change it.
    began_ms: AtomicI64,
}

impl StoreClock {
    pub(crate) const fn new(clock: Clock) -> Self {
        Self { clock, began_ms: AtomicI64::new(UNKNOWN) }
    }

    pub(crate) fn now(&self) -> Wall {
        let now = self.clock.now();
        match self.began_ms.load(Ordering::Relaxed) {
            UNKNOWN => now.wall,
            began => Wall(began) + Nanos(now.mono.0),
        }
    }

    /// Returns the offset of the jobs' clock from the monotonic clock, in milliseconds, and the jobs' time.
    pub(crate) fn offset(&self) -> (i64, Wall) {
        let (now, lived) = (self.now(), self.clock.now().mono.0 / 1_000_000);
        (now.0.saturating_sub(i64::try_from(lived).unwrap_or(i64::MAX)), now)
    }

    /// Measures the offset to the database's clock. A failed measurement changes nothing.
    pub(crate) async fn follow(&self, store: &Store) {
        let asked = self.clock.now();
        if let Ok(Some(theirs)) = store.time().await {
            let took = self.clock.now().mono.since(asked.mono);
            // The database read its clock at an unknown moment of the round trip; the middle is the best estimate.
            let lived = i64::try_from((asked.mono.0 + took.0 / 2) / 1_000_000).unwrap_or(i64::MAX);
            self.began_ms.store(theirs.0.saturating_sub(lived), Ordering::Relaxed);
        }
    }
}
