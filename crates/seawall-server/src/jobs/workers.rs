//! State shared by the workers of a process. Each worker has a thread, connections and a lease table of its own. They share wake-ups for
//! surplus work, the limit of suspects, memory budgets, and the breakers of ad-hoc targets.

use arc_swap::ArcSwap;
use seawall_core::time::Nanos;
use seawall_engine::ad_hoc::AdHoc;
use seawall_engine::transport::Room;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use tokio::sync::{AcquireError, Notify, OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Maximum number of workers: a few are as fast as the store.
const MAX_WORKERS: usize = 4;
/// Maximum number of suspects that run at once. The first runs alone, and each that finishes allows one more. If the process crashes again
/// and again soon after its start, each crash is blamed on one job instead of several, most of them innocent.
const SUSPECTS: usize = 4;
/// Memory budget of all long job bodies in a process, in KiB. A longer body runs alone.
const BODIES_KIB: u32 = 64 * 1024;
/// Memory budget of long responses that are not written yet, for the whole process. It is separate from the budget of bodies to avoid a
/// deadlock: a job that holds a body may wait for this one, and a job that holds this one waits only for its upstream and the store.
const ANSWERS_KIB: usize = 64 * 1024;
/// Largest difference between two clocks that does not count as a step.
pub(super) const STEP: Nanos = Nanos::from_secs(2);
/// Initial value: the worker has not read the clock yet.
const UNSEEN: i64 = i64::MIN;

/// Receivers deduplicate by `webhook-id`, so a POST may be repeated. They may be down for hours, so retries are slow.
const RECEIVERS: &str = r#"timeout = { connect = "5s", attempt = "15s", total = "1m" }
retry = { attempts = 10, backoff = "full-jitter", base = "2s", cap = "1h", ambiguous = 8, retry_after_cap = "1d", unsafe = "always" }
breaker = { per = "upstream", consecutive = 5, open = "10s", open_max = "5m" }
dead_letter = { ttl = "14d" }
"#;

#[derive(Debug)]
pub(crate) struct Workers {
    /// Offset of the jobs' clock from the monotonic clock, in milliseconds, when each worker last renewed its leases.
    clocks: Vec<AtomicI64>,
    bell: Notify,
    more: Notify,
    /// Lanes in which the last tick found work.
    found: ArcSwap<Vec<String>>,
    suspects: Semaphore,
    bodies: Arc<Semaphore>,
    answers: Arc<Semaphore>,
    /// Current number of places for suspects.
    places: AtomicUsize,
    pub(super) adhoc: AdHoc,
}

impl Workers {
    /// Creates one worker per serving thread, between 1 and `MAX_WORKERS`.
    pub(super) fn new(threads: usize) -> Self {
        Self {
            clocks: (0..threads.clamp(1, MAX_WORKERS)).map(|_| AtomicI64::new(UNSEEN)).collect(),
            bell: Notify::new(),
            more: Notify::new(),
            found: ArcSwap::default(),
            suspects: Semaphore::new(1),
            bodies: Arc::new(Semaphore::new(BODIES_KIB as usize)),
            answers: Arc::new(Semaphore::new(ANSWERS_KIB)),
            places: AtomicUsize::new(1),
            adhoc: AdHoc::new(RECEIVERS),
        }
    }

    pub(crate) const fn size(&self) -> usize {
        self.clocks.len()
    }

    /// Wakes one worker because there is work.
    pub(super) fn wake_one(&self) {
        self.bell.notify_one();
    }

    pub(super) async fn rung(&self) {
        self.bell.notified().await;
    }

    /// Wakes one other worker because there is more work than one can take. `Notify` stores the permit if none waits right now.
    pub(super) fn pass_on(&self) {
        self.more.notify_one();
    }

    pub(super) async fn passed_on(&self) {
        self.more.notified().await;
    }

    /// Publishes the lanes in which a tick found work to all workers.
    pub(super) fn add_ready_lanes(&self, lanes: &[String]) {
        self.found.store(Arc::new(lanes.to_vec()));
    }

    pub(super) fn take_ready_lanes(&self) -> Vec<String> {
        self.found.load().to_vec()
    }

    /// Waits for a place to run a suspect.
    pub(super) async fn suspect(&self) -> Result<SemaphorePermit<'_>, AcquireError> {
        self.suspects.acquire().await
    }

    /// Waits until a body of this length fits into the memory budget. First come, first served.
    pub(super) async fn room_for(&self, bytes: usize) -> Result<OwnedSemaphorePermit, AcquireError> {
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).min(BODIES_KIB);
        Arc::clone(&self.bodies).acquire_many_owned(kib).await
    }

    /// Returns the memory budget that long responses share.
    pub(super) fn answers(&self) -> Room {
        Room::new(Arc::clone(&self.answers))
    }

    /// Allows one more suspect to run at once, since one has finished or a sweep interval has passed.
    pub(super) fn trust(&self) {
        let one_more = |places| (places < SUSPECTS).then_some(places + 1);
        if self.places.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok() {
            self.suspects.add_permits(1);
        }
    }

    /// Starts no more suspects.
    pub(super) fn close(&self) {
        self.suspects.close();
    }

    /// Returns whether the clock of the leases was set since this worker last renewed its leases.
    pub(super) fn was_set(&self, worker: usize, clock: i64) -> bool {
        !is_near(&self.clocks[worker], clock)
    }

    /// Returns by how much the clock was set back since this worker last renewed its leases.
    pub(super) fn set_back_by(&self, worker: usize, clock: i64) -> Option<Nanos> {
        let seen = self.clocks[worker].load(Ordering::Relaxed);
        let by = Nanos::from_millis(u64::try_from(seen.saturating_sub(clock)).unwrap_or(0));
        (seen != UNSEEN && by > STEP).then_some(by)
    }

    /// Notes that the worker's leases are based on this clock offset.
    pub(super) fn holds_by(&self, worker: usize, clock: i64) {
        self.clocks[worker].store(clock, Ordering::Relaxed);
    }

    /// Returns whether the leases of all workers are based on this clock offset. If not, live leases may look expired.
    pub(super) fn all_hold_by(&self, clock: i64) -> bool {
        self.clocks.iter().all(|seen| is_near(seen, clock))
    }
}

fn is_near(seen: &AtomicI64, clock: i64) -> bool {
    let seen = seen.load(Ordering::Relaxed);
    seen == UNSEEN || Nanos::from_millis(seen.abs_diff(clock)) <= STEP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_trusts_a_clock_that_was_set_before_all_hold_their_leases_by_it() {
        let crew = Workers::new(2);
        crew.holds_by(0, 1_000);
        assert!(crew.all_hold_by(1_000), "the other has not begun");
        crew.holds_by(1, 1_400);
        assert!(!crew.was_set(0, 2_900) && crew.all_hold_by(2_900), "clocks differ a little");
        assert!(crew.was_set(0, 60_000) && crew.was_set(0, -60_000));
        assert_eq!((crew.set_back_by(0, 60_000), crew.set_back_by(0, -60_000)), (None, Some(Nanos::from_secs(61))));
        crew.holds_by(0, 60_000);
        assert!(!crew.was_set(0, 60_000) && !crew.all_hold_by(60_000));
        crew.holds_by(1, 60_001);
        assert!(crew.all_hold_by(60_000));
    }

    #[tokio::test]
    async fn suspects_are_few_however_much_is_lived_through() {
        let crew = Workers::new(8);
        assert_eq!((crew.size(), crew.suspects.available_permits()), (MAX_WORKERS, 1));
        let first = crew.suspect().await.unwrap();
        assert_eq!(crew.suspects.available_permits(), 0);
        drop(first);
        (0..9).for_each(|_| crew.trust());
        assert_eq!(crew.suspects.available_permits(), SUSPECTS);
        crew.close();
        assert!(crew.suspect().await.is_err());
    }

    #[tokio::test]
    async fn bodies_wait_until_there_is_room_and_the_longest_is_let_in_alone() {
        let crew = Arc::new(Workers::new(1));
        let wait = |bytes| {
            let crew = Arc::clone(&crew);
            tokio::spawn(async move { crew.room_for(bytes).await.unwrap() })
        };
        let small = crew.room_for(1).await.unwrap();
        let huge = wait(usize::MAX);
        tokio::task::yield_now().await;
        assert!(!huge.is_finished(), "not beside another");
        drop(small);
        let huge = huge.await.unwrap();
        let next = wait(1);
        tokio::task::yield_now().await;
        assert!(!next.is_finished(), "nor another beside it");
        drop(huge);
        drop(next.await.unwrap());
    }

    #[test]
    fn one_worker_at_least() {
        assert_eq!(Workers::new(0).size(), 1);
    }
}
