//! The only reader of the machine's clocks, and the only place that sleeps: all other code gets the time as an argument.
//!
//! The monotonic clock is tokio's, so that tests can pause it. If tokio was built without pausing, it is the machine's own, which is
//! the same clock without the detour. The wall clock is read once and carried forward. The process calls [`Clock::follow`] now and
//! then, so that a step of the machine's clock arrives within a second and a request does not pay for a second clock read.

mod timers;

use seawall_core::time::{Mono, Nanos, Now, Wall};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use timers::{Sleep, Timers};
use tokio::time::Instant;

/// The start of simulated time: 2026-07-01T00:00:00Z.
const SIMULATED_EPOCH: Wall = Wall(1_782_864_000_000);

/// Tells the time and waits.
///
/// ```
/// use seawall_engine::Clock;
/// use std::time::Duration;
///
/// let clock = Clock::simulated();
/// let before = clock.now();
/// clock.run(clock.sleep(Duration::from_secs(3600)));
/// assert_eq!(clock.now().mono.since(before.mono).as_secs_ceil(), 3600);
/// ```
#[derive(Clone, Debug)]
pub struct Clock {
    start: Instant,
    /// The machine's clock at `start` or just before, if it is read without tokio.
    zero: Option<u64>,
    /// Wall-clock milliseconds at `start`.
    epoch_ms: Arc<AtomicI64>,
    /// Wakes sleepers; `None` if tokio does.
    timers: Option<Arc<Timers>>,
}

/// A simulated step of the machine's clock and its time, both in milliseconds. Release builds have none.
#[cfg(debug_assertions)]
static STEP: std::sync::OnceLock<(i64, i64)> = std::sync::OnceLock::new();

/// Makes every clock of the process see a step of the machine's clock, that long after its start.
#[cfg(debug_assertions)]
pub fn step(by_ms: i64, after_ms: i64) {
    // The first step set stays.
    let _late = STEP.set((by_ms, after_ms));
}

#[expect(clippy::disallowed_methods, reason = "this file is where the clocks are read")]
impl Clock {
    /// Returns the machine's clock, with tokio's timers.
    #[must_use]
    pub fn start() -> Self {
        // Read before tokio's clock, so that tokio's sleeps are never too short by this clock.
        let zero = if pausing::IS_POSSIBLE { None } else { machine() };
        let clock = Self { start: Instant::now(), zero, epoch_ms: Arc::default(), timers: None };
        clock.follow();
        clock
    }

    /// Returns a clock that stands still except for [`Clock::advance`] and, inside [`Clock::run`], for jumps to the next sleeper.
    #[must_use]
    pub fn simulated() -> Self {
        let epoch_ms = Arc::new(AtomicI64::new(SIMULATED_EPOCH.0));
        Self { start: Instant::now(), zero: None, epoch_ms, timers: Some(Arc::new(Timers::simulated())) }
    }

    /// Returns the same clock for a plain thread, which wakes its own sleepers.
    pub(crate) fn for_thread(&self) -> Self {
        let timers = self.timers.clone().unwrap_or_else(|| Arc::new(Timers::real()));
        Self { timers: Some(timers), ..self.clone() }
    }

    /// Reads both clocks.
    #[must_use]
    #[inline]
    pub fn now(&self) -> Now {
        self.at(self.mono())
    }

    /// Returns both clocks at a time of the monotonic one.
    #[inline]
    pub(crate) fn at(&self, mono: Mono) -> Now {
        let elapsed_ms = i64::try_from(mono.0 / 1_000_000).unwrap_or(i64::MAX);
        Now { mono, wall: Wall(self.epoch_ms.load(Ordering::Relaxed).saturating_add(elapsed_ms)) }
    }

    /// Reads the monotonic clock.
    #[inline]
    pub(crate) fn mono(&self) -> Mono {
        if let Some(zero) = self.zero
            && let Some(now) = machine()
        {
            return Mono(now.saturating_sub(zero));
        }
        self.mono_of_others()
    }

    /// Reads simulated time, or tokio's clock.
    fn mono_of_others(&self) -> Mono {
        if let Some(simulated) = self.timers.as_ref().and_then(|timers| timers.now()) {
            return simulated;
        }
        let since = Instant::now().saturating_duration_since(self.start);
        Mono(nanos(since).0)
    }

    /// Reads the machine's wall clock again.
    pub fn follow(&self) {
        let wall = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_millis()).map_or(i64::MIN, |ms| -ms),
        };
        let elapsed = i64::try_from(Instant::now().saturating_duration_since(self.start).as_millis()).unwrap_or(i64::MAX);
        #[cfg(debug_assertions)]
        let wall = wall.saturating_add(STEP.get().filter(|(_, after)| elapsed >= *after).map_or(0, |(step, _)| *step));
        self.epoch_ms.store(wall.saturating_sub(elapsed), Ordering::Relaxed);
    }

    /// Converts a time to tokio's `Instant`, for timers.
    #[must_use]
    pub fn instant(&self, at: Mono) -> Instant {
        // Capped at thirty years: adding more would overflow on some systems.
        self.start + Duration::from_nanos(at.0.min(Nanos::from_secs(946_080_000).0))
    }

    /// Returns whether sleepers are woken by a manual poll loop instead of tokio.
    pub(crate) const fn wakes_its_own(&self) -> bool {
        self.timers.is_some()
    }

    /// Returns at `until`, never earlier.
    pub async fn sleep_until(&self, until: Mono) {
        match &self.timers {
            None => tokio::time::sleep_until(self.instant(until)).await,
            Some(timers) => Sleep::new(timers, until, || self.mono()).await,
        }
    }

    /// Returns after that long, never earlier.
    pub async fn sleep(&self, length: Duration) {
        self.sleep_until(self.mono() + nanos(length)).await;
    }

    /// Advances simulated time and wakes due sleepers. Has no effect on the machine's clock.
    pub fn advance(&self, length: Duration) {
        if let Some(timers) = &self.timers {
            timers.advance_to(self.mono() + nanos(length));
        }
    }

    /// Runs a future to its end on this thread. While everything in it waits, a simulated clock jumps to the next sleeper, so that an hour
    /// costs nothing; with the machine's clock the thread sleeps until then.
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        match &self.timers {
            Some(timers) => timers.run(future, || self.mono()),
            None => Timers::real().run(future, || self.mono()),
        }
    }
}

/// Reads the machine's monotonic clock in nanoseconds. It is the clock behind `Instant`, as a number: subtracting two `Instant`s costs more
/// than this read.
#[cfg(target_os = "linux")]
#[inline]
fn machine() -> Option<u64> {
    let at = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // It counts from the machine's start, so neither value is negative; it does not wrap for five centuries.
    Some(at.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(at.tv_nsec.cast_unsigned()))
}

/// Other systems use different clocks behind `Instant`.
#[cfg(not(target_os = "linux"))]
fn machine() -> Option<u64> {
    None
}

/// Detects whether tokio was built with `test-util`, so that its time can be paused. No `cfg` of ours shows that, but then
/// `tokio::time::pause` exists.
mod pausing {
    /// Stands in for `pause` if it does not exist.
    #[allow(dead_code, reason = "in a build with `test-util`")]
    struct Missing;

    trait Found {
        const FOUND: bool;
    }

    impl Found for () {
        const FOUND: bool = true;
    }

    impl Found for Missing {
        const FOUND: bool = false;
    }

    const fn found<T: Found>(_pause: fn() -> T) -> bool {
        T::FOUND
    }

    #[allow(dead_code, reason = "in a build with `test-util`")]
    fn pause() -> Missing {
        Missing
    }

    pub(super) const IS_POSSIBLE: bool = {
        // A glob import of the inner scope shadows names of the outer scope.
        #[allow(unused_imports, reason = "in a build without `test-util`")]
        use tokio::time::*;
        found(pause)
    };
}

/// Converts a length of time.
pub(crate) fn nanos(length: Duration) -> Nanos {
    Nanos(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_own_clock_is_the_one_that_tokio_reads() {
        let Some(zero) = machine() else { return };
        let tokios = Clock::start();
        let since = machine().map(|after| Nanos(after - zero));
        let direct = Clock { zero: Some(zero), ..tokios.clone() };
        for _ in 0..1_000 {
            let (earlier, read, later) = (tokios.mono(), direct.mono(), tokios.mono());
            // Their origins differ by at most `since`.
            assert!(earlier <= read && read <= later + since.unwrap_or_default(), "{earlier:?} {read:?} {later:?}");
        }
        assert!(tokios.zero.is_none() && pausing::IS_POSSIBLE, "these tests are built with tokio's `test-util`");
    }

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

    #[test]
    fn simulated_time_jumps_to_whoever_is_due_first() {
        let clock = Clock::simulated();
        let slept = clock.run(async {
            tokio::select! {
                () = clock.sleep(Duration::from_secs(600)) => "long",
                () = clock.sleep(Duration::from_secs(1)) => "short",
            }
        });
        assert_eq!((slept, clock.now().mono), ("short", Mono(1_000_000_000)));
        clock.run(clock.sleep(Duration::from_millis(1)));
        assert_eq!(clock.now().mono, Mono(1_001_000_000), "who was dropped is not waited for");
    }

    #[test]
    fn a_thread_sleeps_on_the_machines_clock_and_not_too_short() {
        let clock = Clock::start().for_thread();
        let before = clock.now().mono;
        clock.run(clock.sleep(Duration::from_millis(3)));
        assert!(clock.now().mono.since(before) >= Nanos::from_millis(3));
    }
}
