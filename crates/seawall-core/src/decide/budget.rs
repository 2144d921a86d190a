//! The retry budget of one upstream: an integer cell that successes fill and retries empty, and a floor lane that refills with time.
//! Successes fund it, not requests, so that an upstream can recover: a request-funded budget keeps paying for retries while nothing
//! succeeds.

use crate::policy::{Rate, Share};
use crate::time::{Mono, Nanos};
use serde::{Deserialize, Serialize};

/// One retry in the unit of a share, so that a success earns its share exactly.
const RETRY: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

/// The lane that paid for a retry, so that a refund goes back there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryFunding {
    Earned,
    /// Paid by the floor; carries the time that one of its retries takes to refill.
    Floor(Nanos),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// In millionths of a retry.
    earned: u64,
    capacity: u64,
    /// When the floor lane is full again; not after `now` means full.
    floor_full_at: Mono,
}

/// A budget as plain numbers, for a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetData {
    /// In millionths of a retry.
    pub earned: u64,
    pub floor_full_at: u64,
}

impl Budget {
    #[must_use]
    pub const fn export(&self) -> BudgetData {
        BudgetData { earned: self.earned, floor_full_at: self.floor_full_at.0 }
    }

    /// Restores a snapshot, at most up to the capacity.
    pub fn import(&mut self, data: BudgetData) {
        self.earned = data.earned.min(self.capacity);
        self.floor_full_at = Mono(data.floor_full_at);
    }

    /// Holds at most `capacity` earned retries and starts with none: until the first success only the floor pays.
    #[must_use]
    pub const fn empty(capacity: u32) -> Self {
        Self { earned: 0, capacity: capacity as u64 * RETRY, floor_full_at: Mono(0) }
    }

    #[must_use]
    pub const fn filled(capacity: u32) -> Self {
        Self { earned: capacity as u64 * RETRY, ..Self::empty(capacity) }
    }

    /// A success earns its share of a retry.
    #[inline]
    pub fn earn(&mut self, share: Share) {
        self.earned = (self.earned + u64::from(share.0)).min(self.capacity);
    }

    /// Pays for one retry when it is decided: from the earned lane, else from the floor.
    #[must_use]
    #[inline]
    pub fn withdraw(&mut self, floor: Rate, now: Mono) -> Option<RetryFunding> {
        if self.earned >= RETRY {
            self.earned -= RETRY;
            return Some(RetryFunding::Earned);
        }
        let interval = floor_interval(floor)?;
        let full_at = self.floor_full_at.max(now) + interval;
        if full_at.since(now) > floor_depth(interval) {
            return None;
        }
        self.floor_full_at = full_at;
        Some(RetryFunding::Floor(interval))
    }

    /// Returns the token of a retry that was never sent.
    pub fn refund(&mut self, funding: RetryFunding) {
        match funding {
            RetryFunding::Earned => self.earned = (self.earned + RETRY).min(self.capacity),
            RetryFunding::Floor(interval) => self.floor_full_at = Mono(self.floor_full_at.0.saturating_sub(interval.0)),
        }
    }

    /// Retries that both lanes together could pay for now.
    #[must_use]
    pub fn tokens(&self, floor: Rate, now: Mono) -> f64 {
        let earned = self.earned as f64 / RETRY as f64;
        let Some(interval) = floor_interval(floor) else { return earned };
        let free = floor_depth(interval) - self.floor_full_at.since(now);
        earned + free.0 as f64 / interval.0 as f64
    }
}

/// Rounded down, so that a whole second holds the whole count.
fn floor_interval(floor: Rate) -> Option<Nanos> {
    floor.per.0.checked_div(floor.count).map(|interval| Nanos(interval.max(1)))
}

/// One second's worth, and never less than one retry.
fn floor_depth(interval: Nanos) -> Nanos {
    interval.max(Nanos(SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn withdrawals(budget: &mut Budget, floor: Rate, now: Mono) -> u32 {
        let mut count = 0;
        while count < 10_000 && budget.withdraw(floor, now).is_some() {
            count += 1;
        }
        count
    }

    #[test]
    fn nothing_earned_and_no_floor_pays_for_nothing() {
        let mut budget = Budget::empty(100);
        assert_eq!(budget.withdraw(Rate::ZERO, Mono(0)), None);
    }

    #[test]
    fn successes_pay_for_exactly_their_share_of_retries() {
        for (percent, retries) in [(10, 100), (15, 150), (30, 300), (40, 400), (51, 510), (70, 700), (100, 1000)] {
            let mut budget = Budget::empty(1000);
            for _ in 0..1000 {
                budget.earn(Share::percent(percent));
            }
            assert_eq!(withdrawals(&mut budget, Rate::ZERO, Mono(0)), retries, "{percent}%");
        }
    }

    #[test]
    fn what_is_earned_is_capped() {
        let mut budget = Budget::empty(3);
        for _ in 0..100 {
            budget.earn(Share::WHOLE);
        }
        assert_eq!(withdrawals(&mut budget, Rate::ZERO, Mono(0)), 3);
        assert_eq!(withdrawals(&mut Budget::filled(7), Rate::ZERO, Mono(0)), 7);
    }

    #[test]
    fn the_floor_starts_full_and_refills_with_time() {
        let floor = Rate::per_second(3);
        let mut budget = Budget::empty(100);
        assert_eq!(withdrawals(&mut budget, floor, Mono(0)), 3);
        assert_eq!(withdrawals(&mut budget, floor, Mono(333_333_333)), 1);
        assert_eq!(withdrawals(&mut budget, floor, Mono(u64::MAX / 2)), 3, "idle time is worth one second at most");
    }

    #[test]
    fn a_floor_below_one_a_second_still_holds_one_retry() {
        let floor = Rate { count: 2, per: Nanos::from_secs(60) };
        let mut budget = Budget::empty(100);
        assert_eq!(withdrawals(&mut budget, floor, Mono(0)), 1);
        assert_eq!(withdrawals(&mut budget, floor, Mono(29_999_999_999)), 0);
        assert_eq!(withdrawals(&mut budget, floor, Mono(30_000_000_000)), 1);
    }

    #[test]
    fn a_refund_goes_back_to_the_lane_that_paid() {
        let floor = Rate::per_second(1);
        let mut budget = Budget::filled(1);
        let before = budget;
        let first = budget.withdraw(floor, Mono(5)).unwrap();
        assert_eq!(first, RetryFunding::Earned);
        let second = budget.withdraw(floor, Mono(5)).unwrap();
        assert_eq!(budget.withdraw(floor, Mono(5)), None);
        budget.refund(second);
        budget.refund(first);
        assert_eq!(budget.tokens(floor, Mono(5)), before.tokens(floor, Mono(5)));
    }

    #[test]
    fn a_budget_survives_the_way_out_and_back_within_its_capacity() {
        let mut budget = Budget::filled(5);
        assert!(budget.withdraw(Rate::per_second(1), Mono(7)).is_some());
        let mut back = Budget::empty(5);
        back.import(budget.export());
        assert_eq!(back, budget);
        let mut smaller = Budget::empty(2);
        smaller.import(budget.export());
        assert_eq!(withdrawals(&mut smaller, Rate::ZERO, Mono(7)), 2);
    }

    #[test]
    fn refunds_never_overfill() {
        let mut budget = Budget::filled(1);
        budget.refund(RetryFunding::Earned);
        budget.refund(RetryFunding::Floor(Nanos::from_secs(1)));
        assert_eq!(budget.tokens(Rate::per_second(1), Mono(0)), 2.0);
    }

    #[test]
    fn the_end_of_time_pays_nothing_it_cannot_book() {
        let floor = Rate::per_second(1);
        let mut budget = Budget::empty(1);
        assert!(budget.withdraw(floor, Mono(u64::MAX - 5)).is_some());
        assert!(budget.tokens(floor, Mono::MAX).is_finite());
    }
}
