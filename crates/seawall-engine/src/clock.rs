//! The only reader of the machine's clocks, and the only place that sleeps: every other line is told what time it is.
//!
//! The monotonic clock is tokio's, so that tests can pause it. The wall clock is read once and carried forward; whoever
//! runs the process calls [`Clock::follow`] now and then, so that a step of the machine's clock arrives within a second
//! and a request does not pay for a second clock read.

use seawall_core::time::{Mono, Nanos, Now, Wall};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

#[derive(Clone, Debug)]
pub struct Clock {
    start: Instant,
    /// Wall-clock milliseconds at `start`.
    epoch_ms: Arc<AtomicI64>,
}

#[expect(clippy::disallowed_methods, reason = "this file is where the clocks are read")]
impl Clock {
    #[must_use]
    pub fn start() -> Self {
        let clock = Self { start: Instant::now(), epoch_ms: Arc::default() };
        clock.follow();
        clock
    }

    #[must_use]
    pub fn now(&self) -> Now {
        let since = Instant::now().saturating_duration_since(self.start);
        let mono = Mono(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
        let elapsed_ms = i64::try_from(mono.0 / 1_000_000).unwrap_or(i64::MAX);
        Now { mono, wall: Wall(self.epoch_ms.load(Ordering::Relaxed).saturating_add(elapsed_ms)) }
    }

    /// Looks at the machine's wall clock again.
    pub fn follow(&self) {
        let wall = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_millis()).map_or(i64::MIN, |ms| -ms),
        };
        let elapsed = i64::try_from(Instant::now().saturating_duration_since(self.start).as_millis()).unwrap_or(i64::MAX);
        self.epoch_ms.store(wall.saturating_sub(elapsed), Ordering::Relaxed);
    }

    /// The moment as tokio knows it, for timers.
    #[must_use]
    pub fn instant(&self, at: Mono) -> Instant {
        // "For ever" is thirty years: adding more would overflow on some systems.
        self.start + Duration::from_nanos(at.0.min(Nanos::from_secs(946_080_000).0))
    }

    /// Returns at `until`, never earlier.
    pub async fn sleep_until(&self, until: Mono) {
        tokio::time::sleep_until(self.instant(until)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn both_clocks_move_together_and_sleeps_are_never_early() {
        let clock = Clock::start();
        let first = clock.now();
        clock.sleep_until(first.mono + Nanos::from_secs(90)).await;
        let later = clock.now();
        assert!(later.mono.since(first.mono) >= Nanos::from_secs(90));
        assert!(later.wall.since(first.wall) >= Nanos::from_secs(90));
        assert!(first.wall > Wall(1_700_000_000_000));
    }
}
