//! The gateway's state, shared by all requests: the product's own budget, breaker and limiter, combined as an [`OutagePolicy`] says. Only the
//! comparators' arithmetic is defined here.

use super::{ATTEMPT_TIMEOUT, BudgetFunding, OutagePolicy};
use crate::admit::adaptive::Adaptive;
use crate::decide::budget::{self, Budget};
use crate::guard::breaker::{Admission, BreakerCell, BreakerSample, Permit};
use crate::policy::{Rate, Share};
use crate::time::{Mono, Nanos};

const BUDGET_CAPACITY: u32 = 100;

/// The resources of an attempt in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    permit: Option<Permit>,
    sent: Mono,
}

#[derive(Debug)]
pub(super) struct OutageGateway<'a> {
    arm: &'a OutagePolicy,
    budget: Budget,
    window: RetryWindow,
    breaker: BreakerCell,
    adaptive: Adaptive,
    in_flight: u32,
}

/// The source that paid for a retry.
#[derive(Clone, Copy, Debug)]
pub(super) enum Payment {
    Nothing,
    Budget(budget::RetryFunding),
}

impl<'a> OutageGateway<'a> {
    pub(super) fn new(arm: &'a OutagePolicy) -> Self {
        Self {
            arm,
            budget: Budget::filled(BUDGET_CAPACITY),
            window: RetryWindow::default(),
            breaker: BreakerCell::new(),
            adaptive: Adaptive::new(20, 1, 200),
            in_flight: 0,
        }
    }

    /// A request's first try earns, in the funding kinds that count requests.
    pub(super) fn arrived(&mut self, now: Mono) {
        match self.arm.funding {
            BudgetFunding::Unlimited | BudgetFunding::Successes => {}
            BudgetFunding::Requests(share) => self.budget.earn(share),
            BudgetFunding::Window { .. } => self.window.slot(now).requests += 1,
        }
    }

    /// Returns `None` for a local rejection.
    pub(super) fn admit(&mut self, now: Mono) -> Option<Pass> {
        let permit = match &self.arm.breaker {
            None => None,
            Some(policy) => match self.breaker.admit(policy, ATTEMPT_TIMEOUT, now) {
                Admission::Go(permit) => Some(permit),
                Admission::Refused { .. } => return None,
            },
        };
        if self.arm.adaptive && self.in_flight >= self.adaptive.limit() {
            if let Some(permit) = permit {
                self.breaker.cancel(permit);
            }
            return None;
        }
        self.in_flight += 1;
        Some(Pass { permit, sent: now })
    }

    pub(super) fn succeeded(&mut self, pass: Pass, now: Mono) {
        if self.arm.funding == BudgetFunding::Successes {
            self.budget.earn(self.arm.retry.budget);
        }
        self.adaptive.succeeded(self.in_flight);
        self.ended(pass, BreakerSample::success(now.since(pass.sent)), now);
    }

    pub(super) fn failed(&mut self, pass: Pass, repeated: bool, now: Mono) {
        self.adaptive.dropped();
        self.ended(pass, BreakerSample { failed: true, repeated, latency: now.since(pass.sent) }, now);
    }

    fn ended(&mut self, pass: Pass, sample: BreakerSample, now: Mono) {
        self.in_flight -= 1;
        if let (Some(policy), Some(permit)) = (&self.arm.breaker, pass.permit) {
            self.breaker.record(policy, permit, sample, now);
        }
    }

    /// Pays for a retry when it is decided, as the product does.
    pub(super) fn pay(&mut self, now: Mono) -> Option<Payment> {
        match self.arm.funding {
            BudgetFunding::Unlimited => Some(Payment::Nothing),
            BudgetFunding::Successes => self.budget.withdraw(self.arm.retry.budget_floor, now).map(Payment::Budget),
            BudgetFunding::Requests(_) => self.budget.withdraw(Rate::ZERO, now).map(Payment::Budget),
            BudgetFunding::Window { share, floor } => self.window.withdraw(share, floor, now).then_some(Payment::Nothing),
        }
    }

    /// Refunds a retry that was paid for, then rejected and never sent.
    pub(super) fn refund(&mut self, payment: Payment) {
        match payment {
            Payment::Nothing => {}
            Payment::Budget(funding) => self.budget.refund(funding),
        }
    }
}

const SLOTS: usize = 10;
const SLOT: Nanos = Nanos::from_secs(1);

#[derive(Clone, Copy, Debug, Default)]
struct WindowSlot {
    number: u64,
    requests: u64,
    retries: u64,
}

/// Requests and retries of the last ten seconds, in ten slots.
#[derive(Debug, Default)]
struct RetryWindow([WindowSlot; SLOTS]);

impl RetryWindow {
    fn slot(&mut self, now: Mono) -> &mut WindowSlot {
        let number = now.0 / SLOT.0;
        let slot = &mut self.0[(number % SLOTS as u64) as usize];
        if slot.number != number {
            *slot = WindowSlot { number, ..WindowSlot::default() };
        }
        slot
    }

    fn withdraw(&mut self, share: Share, floor: Rate, now: Mono) -> bool {
        let number = now.0 / SLOT.0;
        let live = self.0.iter().filter(|slot| slot.number + SLOTS as u64 > number);
        let (requests, retries) = live.fold((0, 0), |(requests, retries), slot| (requests + slot.requests, retries + slot.retries));
        let floor = floor.per_second_f64() * SLOTS as f64 * SLOT.as_secs_f64();
        let allowed = (retries as f64) < share.as_f64() * requests as f64 + floor;
        if allowed {
            self.slot(now).retries += 1;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_forgets_what_is_ten_seconds_old() {
        let (share, floor) = (Share::percent(20), Rate::ZERO);
        let at = |seconds: u64| Mono(0) + Nanos::from_secs(seconds);
        let mut window = RetryWindow::default();
        window.slot(at(0)).requests = 10;
        assert!(window.withdraw(share, floor, at(1)));
        assert!(window.withdraw(share, floor, at(9)));
        assert!(!window.withdraw(share, floor, at(9)));
        assert!(!window.withdraw(share, floor, at(10)), "the requests are gone");
        window.slot(at(11)).requests = 6;
        assert!(window.withdraw(share, floor, at(11)), "one retry of second 9 is left");
    }

    #[test]
    fn the_floor_is_for_the_whole_window() {
        let mut window = RetryWindow::default();
        let allowed = (0..500).filter(|_| window.withdraw(Share::ZERO, Rate::per_second(10), Mono(5))).count();
        assert_eq!(allowed, 100);
    }
}
