//! The time that jobs live by.

use seawall_core::time::{Nanos, Wall};
use seawall_engine::clock::Clock;
use seawall_store::Store;
use std::sync::atomic::{AtomicI64, Ordering};

/// The database has no clock, or has not told it yet.
const UNKNOWN: i64 = i64::MIN;

/// The database's clock where it has one, so that instances whose clocks differ agree; otherwise this machine's.
#[derive(Debug)]
pub(crate) struct StoreClock {
    clock: Clock,
    /// When this process began, by the database's clock. From there it is carried on by ours that nobody can set: a step of the machine's
    /// clock does not change it.
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

    /// How far the jobs' time is from the one that nobody can set, in milliseconds, and that time.
    pub(crate) fn offset(&self) -> (i64, Wall) {
        let (now, lived) = (self.now(), self.clock.now().mono.0 / 1_000_000);
        (now.0.saturating_sub(i64::try_from(lived).unwrap_or(i64::MAX)), now)
    }

    /// Measures how far the database's clock is from ours. What cannot be measured stays as it was.
    pub(crate) async fn follow(&self, store: &Store) {
        let asked = self.clock.now();
        if let Ok(Some(theirs)) = store.time().await {
            let took = self.clock.now().mono.since(asked.mono);
            // It was read somewhere on the way there and back: in the middle, for all we know.
            let lived = i64::try_from((asked.mono.0 + took.0 / 2) / 1_000_000).unwrap_or(i64::MAX);
            self.began_ms.store(theirs.0.saturating_sub(lived), Ordering::Relaxed);
        }
    }
}
