//! What the workers of a process share. Each has a thread, connections and a table of its own; but none sleeps while another knows of
//! more than it can hold, suspects are few among all of them, and what one learns of a target that somebody handed in, all know.

use arc_swap::ArcSwap;
use seawall_core::time::Nanos;
use seawall_engine::ad_hoc::AdHoc;
use seawall_engine::transport::Room;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use tokio::sync::{AcquireError, Notify, OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Workers at most: a few of them are as fast as the store.
const MAX_WORKERS: usize = 4;
/// Suspects that run side by side at most. The first runs alone, and each that comes to an end makes room for one more: if the process
/// dies soon after its start, over and over, one is blamed for each time and not several of which most are not the cause.
const SUSPECTS: usize = 4;
/// What the long bodies of all jobs that run in a process may take together, in kibibytes. One that is longer runs alone.
const BODIES_KIB: u32 = 64 * 1024;
/// Room for long answers of jobs that are not written down yet, for the whole process. It is apart from that of bodies: a job that holds its
/// body may wait for this, and whoever has this waits for nothing but its upstream and the store.
const ANSWERS_KIB: usize = 64 * 1024;
/// What two clocks may differ by without one of them having been set.
pub(super) const STEP: Nanos = Nanos::from_secs(2);
/// A worker looks at the clock before it holds anything.
const UNSEEN: i64 = i64::MIN;

/// Receivers are told apart by `webhook-id`, so a POST may go again; they may be down for hours, so it does so slowly.
const RECEIVERS: &str = r#"timeout = { connect = "5s", attempt = "15s", total = "1m" }
retry = { attempts = 10, backoff = "full-jitter", base = "2s", cap = "1h", ambiguous = 8, retry_after_cap = "1d", unsafe = "always" }
breaker = { per = "upstream", consecutive = 5, open = "10s", open_max = "5m" }
dead_letter = { ttl = "14d" }
"#;

#[derive(Debug)]
pub(crate) struct Workers {
    /// How far the jobs' clock was from the one that nobody can set, in milliseconds, when each worker last made sure of its leases.
    clocks: Vec<AtomicI64>,
    bell: Notify,
    more: Notify,
    /// The lanes in which the last tick found work.
    found: ArcSwap<Vec<String>>,
    suspects: Semaphore,
    bodies: Arc<Semaphore>,
    answers: Arc<Semaphore>,
    /// Places for suspects by now.
    places: AtomicUsize,
    pub(super) adhoc: AdHoc,
}

impl Workers {
    /// As many workers as there are threads that serve callers, within reason.
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

    /// There is work. One worker hears of it.
    pub(super) fn ring(&self) {
        self.bell.notify_one();
    }

    pub(super) async fn rung(&self) {
        self.bell.notified().await;
    }

    /// There is more work than one worker has room for. One that knows of none hears of it, now or when it has come to an end.
    pub(super) fn pass_on(&self) {
        self.more.notify_one();
    }

    pub(super) async fn passed_on(&self) {
        self.more.notified().await;
    }

    /// What a tick found is for everybody.
    pub(super) fn tell(&self, lanes: &[String]) {
        self.found.store(Arc::new(lanes.to_vec()));
    }

    pub(super) fn told(&self) -> Vec<String> {
        self.found.load().to_vec()
    }

    /// Waits for a place among the suspects that run.
    pub(super) async fn suspect(&self) -> Result<SemaphorePermit<'_>, AcquireError> {
        self.suspects.acquire().await
    }

    /// Waits until there is room for a body of this length among those that are in memory, first come, first served.
    pub(super) async fn room_for(&self, bytes: usize) -> Result<OwnedSemaphorePermit, AcquireError> {
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).min(BODIES_KIB);
        Arc::clone(&self.bodies).acquire_many_owned(kib).await
    }

    /// The room that long answers share.
    pub(super) fn answers(&self) -> Room {
        Room::new(Arc::clone(&self.answers))
    }

    /// Something was lived through, so one more suspect may run beside the others.
    pub(super) fn trust(&self) {
        let one_more = |places| (places < SUSPECTS).then_some(places + 1);
        if self.places.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok() {
            self.suspects.add_permits(1);
        }
    }

    /// No more suspects are begun.
    pub(super) fn close(&self) {
        self.suspects.close();
    }

    /// Whether the clock that leases live by was set since the worker last made sure of its own.
    pub(super) fn was_set(&self, worker: usize, clock: i64) -> bool {
        !is_near(&self.clocks[worker], clock)
    }

    /// By how much the clock was set back since the worker last made sure of its leases.
    pub(super) fn set_back_by(&self, worker: usize, clock: i64) -> Option<Nanos> {
        let seen = self.clocks[worker].load(Ordering::Relaxed);
        let by = Nanos::from_millis(u64::try_from(seen.saturating_sub(clock)).unwrap_or(0));
        (seen != UNSEEN && by > STEP).then_some(by)
    }

    /// The worker's leases are held by this clock.
    pub(super) fn holds_by(&self, worker: usize, clock: i64) {
        self.clocks[worker].store(clock, Ordering::Relaxed);
    }

    /// Whether everybody's are: otherwise leases look over that are not.
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
