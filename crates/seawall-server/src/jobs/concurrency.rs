//! Limits how many jobs of a lane run at once. A worker claims more jobs than it starts. If responses come at once, a few running jobs are
//! as fast as hundreds and stay in the processor's caches; if responses take long, all claimed jobs start. The code reads no clock: the
//! caller passes the time since the last look and the worker's busy time.

use seawall_core::time::Nanos;
use std::collections::{HashMap, VecDeque};

/// Jobs of a lane that start without measurement.
pub(super) const FEW: usize = 32;
/// Looks before the first trial, and looks between two trials after a trial without gain.
const FIRST: u32 = 3;
const REST: u32 = 50;

/// Claimed jobs that have not started, by lane.
#[derive(Debug)]
pub(super) struct Concurrency<T> {
    lanes: HashMap<String, ConcurrencyLane<T>>,
    /// Number of them in all lanes.
    in_hand: usize,
    /// Maximum jobs of a lane that run at once.
    most: usize,
}

#[derive(Debug)]
struct ConcurrencyLane<T> {
    /// Claimed jobs in the order in which they start, each with its priority.
    in_hand: VecDeque<(i64, T)>,
    /// Number of running jobs.
    begun: usize,
    /// Jobs that ended since the last look.
    ended: usize,
    /// The lane had no claimed job left at some time since the last look, so the number of ended jobs measures the claims and not the
    /// window.
    ran_out: bool,
    window: ConcurrencyWindow,
}

impl<T> Concurrency<T> {
    pub(super) fn new(most: usize) -> Self {
        Self { lanes: HashMap::new(), in_hand: 0, most }
    }

    pub(super) const fn is_idle(&self) -> bool {
        self.in_hand == 0
    }

    /// Starts the measurement. Jobs that ended earlier do not count.
    pub(super) fn begin_looks(&mut self) {
        self.lanes.values_mut().for_each(ConcurrencyLane::begin_look);
    }

    /// Adds a claimed job behind all of the same or a higher priority.
    pub(super) fn take(&mut self, lane: &str, priority: i64, job: T) {
        if !self.lanes.contains_key(lane) {
            self.lanes.insert(lane.to_owned(), ConcurrencyLane::default());
        }
        if let Some(lane) = self.lanes.get_mut(lane) {
            let place = lane.in_hand.partition_point(|(before, _)| *before >= priority);
            lane.in_hand.insert(place, (priority, job));
            self.in_hand += 1;
        }
    }

    /// Returns the next job of a lane, if it may start now, and counts it as running.
    pub(super) fn next(&mut self, lane: &str) -> Option<T> {
        let next = self.lanes.get_mut(lane)?.next()?;
        self.in_hand -= 1;
        Some(next)
    }

    /// Counts the end of a running job of a lane.
    pub(super) fn on_finished(&mut self, lane: &str) {
        if let Some(of) = self.lanes.get_mut(lane) {
            (of.begun, of.ended) = (of.begun.saturating_sub(1), of.ended + 1);
        }
    }

    /// Removes a claimed job that was not started.
    pub(super) fn remove(&mut self, lane: &str, is_it: impl Fn(&T) -> bool) {
        if let Some(of) = self.lanes.get_mut(lane) {
            let before = of.in_hand.len();
            of.in_hand.retain(|(_, job)| !is_it(job));
            self.in_hand -= before - of.in_hand.len();
        }
    }

    /// Adapts the windows to the time since the last look, of which the worker was busy for `busy`. Returns the jobs to start now.
    pub(super) fn look(&mut self, time: Nanos, busy: Nanos) -> Vec<T> {
        let mut next = Vec::new();
        for lane in self.lanes.values_mut() {
            if !lane.ran_out {
                lane.window.look(TrialResult { looks: 1, ended: lane.ended as u64, time, busy }, self.most);
            }
            lane.begin_look();
            next.extend(std::iter::from_fn(|| lane.next()));
        }
        self.in_hand -= next.len();
        next
    }

    /// Forgets idle lanes and all measurements. A window as wide as the worker's limit leaves no claimed job waiting, so it would never be
    /// measured again.
    pub(super) fn sweep(&mut self) {
        self.lanes.retain(|_, lane| lane.begun > 0 || !lane.in_hand.is_empty());
        self.lanes.values_mut().for_each(|lane| lane.window = ConcurrencyWindow::default());
    }
}

impl<T> Default for ConcurrencyLane<T> {
    fn default() -> Self {
        Self { in_hand: VecDeque::new(), begun: 0, ended: 0, ran_out: true, window: ConcurrencyWindow::default() }
    }
}

impl<T> ConcurrencyLane<T> {
    fn begin_look(&mut self) {
        (self.ended, self.ran_out) = (0, self.in_hand.is_empty());
    }

    fn next(&mut self) -> Option<T> {
        if self.begun >= self.window.size {
            return None;
        }
        let Some((_, next)) = self.in_hand.pop_front() else {
            self.ran_out = true;
            return None;
        };
        self.begun += 1;
        Some(next)
    }
}

/// The limit of running jobs: doubled while that pays, halved if that costs little.
///
/// ```text
/// Resting ── rest is over ──▶ Tried ── a look later ──▶ Judged ──▶ it pays: Resting, for one look
///    ▲ └── the worker is busy: a long one first                └─▶ it does not: as before, and Resting for long
///    └─────────┘
/// ```
/// While resting, a lane whose jobs take longer than two looks skips the trial: its window doubles each time.
#[derive(Debug)]
struct ConcurrencyWindow {
    size: usize,
    phase: TrialPhase,
    /// Direction of the next trial.
    way: Way,
}

#[derive(Clone, Copy, Debug)]
enum TrialPhase {
    /// Rests for this many more looks, and accumulates measurements.
    Resting(u32, TrialResult),
    /// Another size is on trial; jobs that end now were started under the old size.
    Tried(TrialBaseline),
    /// Jobs that end now measure the size on trial.
    Judged(TrialBaseline),
}

/// Measurement over a number of looks: jobs that ended, time, and busy time of the worker.
#[derive(Clone, Copy, Debug, Default)]
struct TrialResult {
    looks: u32,
    ended: u64,
    time: Nanos,
    busy: Nanos,
}

/// The size before a trial and its rate of ended jobs per second.
#[derive(Clone, Copy, Debug)]
struct TrialBaseline {
    size: usize,
    rate: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

impl TrialResult {
    fn and(self, more: Self) -> Self {
        let (looks, ended) = (self.looks.saturating_add(more.looks), self.ended.saturating_add(more.ended));
        Self { looks, ended, time: self.time + more.time, busy: self.busy + more.busy }
    }

    fn rate(self) -> u64 {
        self.ended.saturating_mul(1_000_000_000) / self.time.0.max(1)
    }

    /// Returns whether the worker is probably CPU-bound, so that a larger window would not help: it is busy for at least 40 % of the time
    /// (it shares the processors with its peers), and each slot has finished several jobs per look.
    fn is_busy(self, size: usize) -> bool {
        self.busy.0 / 2 >= self.time.0 / 5 && self.ended >= 4 * size as u64 * u64::from(self.looks)
    }
}

impl Default for ConcurrencyWindow {
    fn default() -> Self {
        Self { size: FEW, phase: TrialPhase::Resting(FIRST, TrialResult::default()), way: Way::Up }
    }
}

impl ConcurrencyWindow {
    fn look(&mut self, seen: TrialResult, most: usize) {
        self.phase = match self.phase {
            TrialPhase::Resting(..) if seen.ended < self.size as u64 / 2 => {
                self.size = (self.size * 2).min(most);
                TrialPhase::Resting(FIRST, TrialResult::default())
            }
            TrialPhase::Resting(looks, before) if looks > 1 => TrialPhase::Resting(looks - 1, before.and(seen)),
            TrialPhase::Resting(_, before) => self.attempt(before.and(seen), most),
            TrialPhase::Tried(before) => TrialPhase::Judged(before),
            TrialPhase::Judged(before) if self.pays(seen.rate(), before.rate) => TrialPhase::Resting(1, TrialResult::default()),
            TrialPhase::Judged(before) => {
                self.size = before.size;
                self.way = if self.way == Way::Up { Way::Down } else { Way::Up };
                TrialPhase::Resting(REST, TrialResult::default())
            }
        };
    }

    /// Starts a trial. It stays below `most`: a window of that size leaves no claimed job waiting and could not be measured.
    fn attempt(&mut self, seen: TrialResult, most: usize) -> TrialPhase {
        let before = TrialBaseline { size: self.size, rate: seen.rate() };
        if self.size <= FEW {
            self.way = Way::Up;
        } else if self.size >= most / 2 {
            self.way = Way::Down;
        }
        self.size = match self.way {
            Way::Up if seen.is_busy(self.size) && seen.looks < REST => return TrialPhase::Resting(REST, seen),
            Way::Up => (self.size * 2).min(most / 2),
            Way::Down => (self.size / 2).max(FEW),
        };
        TrialPhase::Tried(before)
    }

    /// Returns whether a trial pays: a larger window must gain a quarter, a smaller one may cost an eighth.
    const fn pays(&self, rate: u64, before: u64) -> bool {
        match self.way {
            Way::Up => rate >= before.saturating_add(before / 4),
            Way::Down => rate >= before - before / 8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_SLOTS: usize = 256;
    const LOOK: Nanos = Nanos::from_millis(10);

    /// Simulates a lane that never runs out of jobs.
    struct Upstream {
        latency: Nanos,
        /// Jobs per second that the processors can do, and the share of the worker.
        most_rate: u64,
        own_percent: u64,
    }

    impl Upstream {
        fn seen(&self, size: usize) -> TrialResult {
            let able = self.most_rate * LOOK.0 / 1_000_000_000;
            let ended = able.min(size as u64 * LOOK.0 / self.latency.0);
            TrialResult { looks: 1, ended, time: LOOK, busy: Nanos(LOOK.0 * self.own_percent * ended / 100 / able) }
        }

        /// Returns the window after each look.
        fn sizes(&self, looks: usize) -> Vec<usize> {
            let mut window = ConcurrencyWindow::default();
            let mut next = || {
                window.look(self.seen(window.size), MAX_SLOTS);
                window.size
            };
            (0..looks).map(|_| next()).collect()
        }
    }

    fn after(looks: usize, latency: Nanos) -> usize {
        Upstream { latency, most_rate: 30_000, own_percent: 100 }.sizes(looks)[looks - 1]
    }

    #[test]
    fn where_answers_come_at_once_few_are_enough() {
        let at_once = Upstream { latency: Nanos(200_000), most_rate: 30_000, own_percent: 50 };
        assert!(at_once.sizes(50).iter().all(|size| *size == FEW), "for half a second nothing is tried while the worker is busy");
    }

    #[test]
    fn more_side_by_side_that_brings_nothing_is_taken_back() {
        // Other threads use most of the processors, so the worker sleeps for most of the time.
        for (own_percent, most_rate) in [(20, 10_000), (50, 10_000), (20, 3_000), (50, 3_000), (20, 1_700)] {
            let crowded = Upstream { latency: Nanos(200_000), most_rate, own_percent };
            let sizes = crowded.sizes(500);
            assert!(sizes.iter().all(|size| *size <= 2 * FEW), "{most_rate}");
            let more = sizes.iter().filter(|size| **size > FEW).count();
            assert!((2..30).contains(&more), "a trial is short, and the next one far: {more}");
        }
    }

    #[test]
    fn where_answers_take_their_time_all_go_together() {
        assert_eq!(after(3, Nanos::from_secs(1)), MAX_SLOTS);
        assert_eq!(after(3, Nanos::from_millis(50)), MAX_SLOTS);
    }

    #[test]
    fn as_many_go_together_as_bring_more() {
        assert_eq!((after(14, Nanos::from_millis(10)), after(14, Nanos::from_millis(5))), (MAX_SLOTS / 2, MAX_SLOTS / 2));
        assert_eq!((after(40, Nanos::from_millis(2)), after(80, Nanos::from_millis(2))), (FEW, 64), "a busy worker takes its time to try");
        let beside_another = Upstream { latency: Nanos::from_millis(10), most_rate: 30_000, own_percent: 1_000 };
        assert_eq!(beside_another.sizes(14)[13], MAX_SLOTS / 2, "whoever else keeps the worker busy");
    }

    #[test]
    fn a_window_shrinks_when_answers_come_sooner() {
        let mut window = ConcurrencyWindow { size: MAX_SLOTS / 2, ..ConcurrencyWindow::default() };
        let at_once = Upstream { latency: Nanos(200_000), most_rate: 30_000, own_percent: 50 };
        (0..20).for_each(|_| window.look(at_once.seen(window.size), MAX_SLOTS));
        assert_eq!(window.size, FEW);
    }

    fn pace(of: impl IntoIterator<Item = (&'static str, i64)>) -> Concurrency<i64> {
        let mut pace = Concurrency::new(MAX_SLOTS);
        of.into_iter().for_each(|(lane, priority)| pace.take(lane, priority, priority));
        pace
    }

    #[test]
    fn what_matters_more_is_begun_first_and_no_lane_waits_for_another() {
        let mut pace = pace([("u", 0), ("u", 5), ("u", 0), ("u", 7), ("v", 1)]);
        assert_eq!(std::iter::from_fn(|| pace.next("u")).collect::<Vec<_>>(), [7, 5, 0, 0]);
        assert!(!pace.is_idle() && pace.next("w").is_none());
        assert_eq!(pace.next("v"), Some(1));
        assert!(pace.is_idle());
    }

    #[test]
    fn one_that_ends_makes_room_for_one_of_its_lane() {
        let mut pace = pace((0..2 * FEW).map(|_| ("u", 0)).chain([("v", 1)]));
        assert_eq!(std::iter::from_fn(|| pace.next("u")).count(), FEW);
        pace.on_finished("v");
        assert_eq!(pace.next("u"), None);
        pace.on_finished("u");
        assert_eq!((pace.next("u"), pace.next("u")), (Some(0), None));
    }

    #[test]
    fn what_was_not_begun_can_be_taken_back() {
        let mut pace = pace([("u", 3), ("u", 2)]);
        pace.remove("u", |job| *job == 3);
        pace.remove("u", |job| *job == 3);
        assert_eq!((pace.next("u"), pace.is_idle(), pace.next("u")), (Some(2), true, None));
        pace.sweep();
        assert_eq!(pace.lanes.len(), 1, "one is begun");
        pace.on_finished("u");
        pace.sweep();
        assert!(pace.lanes.is_empty());
    }

    fn begin_all(pace: &mut Concurrency<i64>) -> usize {
        std::iter::from_fn(|| pace.next("u")).count()
    }

    #[test]
    fn a_lane_that_came_between_two_looks_says_nothing() {
        let mut pace = pace((0..2 * FEW).map(|_| ("u", 0)));
        assert_eq!(begin_all(&mut pace), FEW);
        assert!(pace.look(LOOK, Nanos::ZERO).is_empty(), "it was not there for all of it");
        assert_eq!(pace.look(LOOK, Nanos::ZERO).len(), FEW, "none has ended in all that time");
    }

    #[test]
    fn a_lane_that_ran_out_says_nothing() {
        let mut pace = pace((0..FEW + 1).map(|_| ("u", 0)));
        assert_eq!(begin_all(&mut pace), FEW);
        pace.look(LOOK, Nanos::ZERO);
        (0..2).for_each(|_| pace.on_finished("u"));
        assert_eq!(begin_all(&mut pace), 1, "the last");
        (0..FEW).for_each(|_| pace.take("u", 0, 0));
        assert_eq!(begin_all(&mut pace), 1);
        assert!(pace.look(LOOK, Nanos::ZERO).is_empty(), "few have ended, since there was nothing to begin");
    }

    #[test]
    fn what_was_learned_is_forgotten_after_a_while() {
        let mut pace = pace((0..MAX_SLOTS).map(|_| ("u", 0)));
        begin_all(&mut pace);
        (0..4).for_each(|_| drop(pace.look(LOOK, Nanos::ZERO)));
        assert!(pace.is_idle(), "all of them go together");
        pace.sweep();
        pace.take("u", 0, 0);
        pace.on_finished("u");
        assert_eq!(pace.next("u"), None);
    }
}
