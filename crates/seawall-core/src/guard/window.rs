//! A sliding window of results in ten slots with running sums: recording touches one slot, idle gaps cost at most
//! ten. Time is cut into slots at multiples of a tenth of the window, so a sample is gone after exactly one window.

use super::data::WindowData;
use crate::time::{Mono, Nanos};

pub(super) const SLOTS: usize = 10;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketCounts {
    pub calls: u32,
    pub failed: u32,
    pub slow: u32,
}

#[derive(Clone, Debug, Default)]
pub struct SlidingWindow {
    sum: BucketCounts,
    filling: BucketCounts,
    /// The previous slots, as a ring; the one at `current` is stale while it is being filled.
    slots: [BucketCounts; SLOTS],
    /// The end of the slot that is being filled; zero before the first sample.
    slot_end: Mono,
    slot: Nanos,
    current: usize,
}

impl SlidingWindow {
    /// Counts one result and returns the sums that include it.
    #[inline]
    pub fn record(&mut self, length: Nanos, failed: bool, slow: bool, now: Mono) -> BucketCounts {
        if now >= self.slot_end {
            self.advance(length, now);
        }
        // The slot being filled is kept outside the ring, so that the path of every call has no index and no bounds check. Four billion
        // results do not fit into any window, so these cannot wrap.
        self.filling.calls = self.filling.calls.wrapping_add(1);
        self.sum.calls = self.sum.calls.wrapping_add(1);
        if failed || slow {
            for counts in [&mut self.filling, &mut self.sum] {
                counts.failed = counts.failed.saturating_add(u32::from(failed));
                counts.slow = counts.slow.saturating_add(u32::from(slow));
            }
        }
        self.sum
    }

    /// Replaces the window's contents with successes at a steady rate, up to `now`.
    pub(super) fn fill(&mut self, length: Nanos, per_second: f64, now: Mono) {
        self.clear();
        let slot = length.as_secs_f64() / SLOTS as f64;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float becomes an integer at the integer's bounds")]
        let upto = |slots: usize| (per_second * slot * slots as f64) as u32;
        let start = Mono(now.0.saturating_sub(length.0));
        for number in 0..SLOTS {
            let calls = upto(number + 1) - upto(number);
            self.advance(length, start + Nanos(length.0 / SLOTS as u64 * number as u64));
            self.filling.calls = self.filling.calls.saturating_add(calls);
            self.sum.calls = self.sum.calls.saturating_add(calls);
        }
    }

    /// The window's counts at `now`.
    #[must_use]
    pub fn counts(&self, now: Mono) -> BucketCounts {
        let mut seen = self.clone();
        if now >= seen.slot_end {
            seen.advance(Nanos(seen.slot.0.saturating_mul(SLOTS as u64)), now);
        }
        seen.sum
    }

    pub(super) fn export(&self) -> WindowData {
        WindowData {
            sum: self.sum.into(),
            filling: self.filling.into(),
            slots: self.slots.map(Into::into),
            slot_end: self.slot_end.0,
            slot: self.slot.0,
            current: u8::try_from(self.current).unwrap_or(0),
        }
    }

    pub(super) fn import(data: &WindowData) -> Self {
        Self {
            sum: data.sum.into(),
            filling: data.filling.into(),
            slots: data.slots.map(Into::into),
            slot_end: Mono(data.slot_end),
            slot: Nanos(data.slot),
            current: usize::from(data.current) % SLOTS,
        }
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// A changed length (a new policy) starts an empty window, because the old slots have other bounds.
    #[cold]
    fn advance(&mut self, length: Nanos, now: Mono) {
        let slot = Nanos((length.0 / SLOTS as u64).max(1));
        let start = Mono(now.0 - now.0 % slot.0);
        let passed = (start.since(self.slot_end).0 / slot.0).saturating_add(1);
        if slot != self.slot || passed >= SLOTS as u64 {
            *self = Self { slot, ..Self::default() };
        } else {
            for _ in 0..passed {
                self.slots[self.current] = std::mem::take(&mut self.filling);
                self.current = (self.current + 1) % SLOTS;
                self.forget_current();
            }
        }
        self.slot_end = start + slot;
    }

    fn forget_current(&mut self) {
        let gone = std::mem::take(&mut self.slots[self.current]);
        self.sum.calls = self.sum.calls.saturating_sub(gone.calls);
        self.sum.failed = self.sum.failed.saturating_sub(gone.failed);
        self.sum.slow = self.sum.slow.saturating_sub(gone.slow);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Nanos = Nanos::from_secs(10);

    fn at(ms: u64) -> Mono {
        Mono(0) + Nanos::from_millis(ms)
    }

    #[test]
    fn samples_leave_one_slot_at_a_time() {
        let mut window = SlidingWindow::default();
        for second in 0..10 {
            window.record(LENGTH, false, false, at(second * 1000));
        }
        assert_eq!(window.counts(at(9_999)).calls, 10);
        assert_eq!(window.counts(at(10_000)).calls, 9);
        assert_eq!(window.counts(at(11_000)).calls, 8);
    }

    #[test]
    fn samples_are_gone_after_exactly_one_window() {
        let mut window = SlidingWindow::default();
        window.record(LENGTH, true, true, at(500));
        window.record(LENGTH, true, false, at(500));
        assert_eq!(window.counts(at(500)), BucketCounts { calls: 2, failed: 2, slow: 1 });
        assert_eq!(window.counts(at(10_500)), BucketCounts::default());
        assert_eq!(window.counts(at(10_501)), BucketCounts::default());
    }

    #[test]
    fn idle_gaps_of_any_length_leave_only_the_new_sample() {
        for gap in [10_000, 11_000, 99_000, u64::MAX / 2_000_000] {
            let mut window = SlidingWindow::default();
            window.record(LENGTH, true, false, at(0));
            assert_eq!(window.record(LENGTH, false, false, at(gap)), BucketCounts { calls: 1, failed: 0, slow: 0 }, "{gap}");
        }
    }

    #[test]
    fn a_new_length_starts_over() {
        let mut window = SlidingWindow::default();
        window.record(LENGTH, true, false, at(0));
        assert_eq!(window.record(Nanos::from_secs(60), true, false, at(1_000)).calls, 1);
    }

    #[test]
    fn the_end_of_time_and_an_empty_length_are_survived() {
        let mut window = SlidingWindow::default();
        window.record(Nanos::ZERO, true, false, Mono::MAX);
        assert!(window.record(Nanos::ZERO, true, false, Mono::MAX).calls >= 1);
        assert_eq!(SlidingWindow::default().counts(Mono::MAX), BucketCounts::default());
    }

    #[test]
    fn sums_equal_the_slots_after_any_walk() {
        let mut window = SlidingWindow::default();
        let mut rng = crate::rng::Rng::seeded(4);
        let mut now = Mono(0);
        let mut samples: Vec<(u64, bool)> = Vec::new();
        for _ in 0..5_000 {
            now = now + Nanos(rng.up_to(2_500_000_000));
            let failed = rng.up_to(1) == 1;
            let counts = window.record(LENGTH, failed, false, now);
            samples.push((now.0 / 1_000_000_000, failed));
            let live = samples.iter().filter(|(slot, _)| slot + 10 > now.0 / 1_000_000_000);
            let (mut calls, mut failures) = (0, 0);
            for (_, failed) in live {
                calls += 1;
                failures += u32::from(*failed);
            }
            assert_eq!((counts.calls, counts.failed), (calls, failures));
        }
    }
}
