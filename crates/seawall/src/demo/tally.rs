//! What one way of calling came to: calls, successes, and how long the calls took.

use seawall_core::time::Nanos;
use std::cell::{Cell, RefCell};

#[derive(Debug, Default)]
pub(super) struct Tally {
    pub begun: Cell<u64>,
    pub succeeded: Cell<u64>,
    pub failed: Cell<u64>,
    /// Sends to the upstream, where the client can know.
    pub attempts: Cell<u64>,
    /// Microseconds of every call that ended well.
    latencies: RefCell<Vec<u64>>,
}

impl Tally {
    pub(super) fn begin(&self) {
        self.begun.set(self.begun.get() + 1);
    }

    pub(super) fn end(&self, success: bool, attempts: u64, took: Nanos) {
        let counter = if success { &self.succeeded } else { &self.failed };
        counter.set(counter.get() + 1);
        self.attempts.set(self.attempts.get() + attempts);
        if success {
            self.latencies.borrow_mut().push(took.0 / 1000);
        }
    }

    /// Share of ended calls that succeeded, in percent.
    pub(super) fn success_percent(&self) -> f64 {
        let ended = self.succeeded.get() + self.failed.get();
        if ended == 0 { 100.0 } else { self.succeeded.get() as f64 * 100.0 / ended as f64 }
    }

    pub(super) fn p99(&self) -> Nanos {
        let mut sorted = self.latencies.borrow().clone();
        sorted.sort_unstable();
        let at = sorted.len().saturating_sub(1) * 99 / 100;
        sorted.get(at).map_or(Nanos::ZERO, |micros| Nanos(micros * 1000))
    }

    pub(super) fn retries_per_success(&self) -> f64 {
        let calls = self.succeeded.get() + self.failed.get();
        let extra = self.attempts.get().saturating_sub(calls);
        if self.succeeded.get() == 0 { 0.0 } else { extra as f64 / self.succeeded.get() as f64 }
    }

    /// Sends that bought nothing.
    pub(super) fn wasted(&self) -> u64 {
        self.attempts.get().saturating_sub(self.succeeded.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_adds_up() {
        let tally = Tally::default();
        for i in 0..100u64 {
            tally.begin();
            tally.end(i != 7, 1 + i % 2, Nanos::from_millis(i));
        }
        assert!((tally.success_percent() - 99.0).abs() < 1e-9);
        assert_eq!(tally.p99(), Nanos::from_millis(98));
        assert_eq!(tally.wasted(), 51);
    }
}
