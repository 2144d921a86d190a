//! The results of one way: calls, successes and latencies; and their cost in sends.

use seawall_core::time::Nanos;
use std::cell::{Cell, RefCell};

#[derive(Debug, Default)]
pub(super) struct DemoTally {
    pub begun: Cell<u64>,
    pub succeeded: Cell<u64>,
    pub failed: Cell<u64>,
    /// Microseconds of every successful call.
    latencies: RefCell<Vec<u64>>,
}

impl DemoTally {
    pub(super) fn begin(&self) {
        self.begun.set(self.begun.get() + 1);
    }

    pub(super) fn end(&self, success: bool, took: Nanos) {
        let counter = if success { &self.succeeded } else { &self.failed };
        counter.set(counter.get() + 1);
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

    /// The upstream's cost of these calls, which needed `sends` sends.
    pub(super) fn cost(&self, sends: u64) -> Cost {
        let (ended, succeeded) = (self.succeeded.get() + self.failed.get(), self.succeeded.get());
        let retries = sends.saturating_sub(ended);
        let retries_per_success = if succeeded == 0 { 0.0 } else { retries as f64 / succeeded as f64 };
        Cost { sends, retries_per_success, wasted: sends.saturating_sub(succeeded) }
    }
}

/// The upstream's cost of some calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    pub sends: u64,
    pub retries_per_success: f64,
    /// Sends without a success.
    pub wasted: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_adds_up() {
        let tally = DemoTally::default();
        for i in 0..100u64 {
            tally.begin();
            tally.end(i != 7, Nanos::from_millis(i));
        }
        assert!((tally.success_percent() - 99.0).abs() < 1e-9);
        assert_eq!(tally.p99(), Nanos::from_millis(98));
        let cost = tally.cost(150);
        assert_eq!(cost.wasted, 51);
        assert!((cost.retries_per_success - 50.0 / 99.0).abs() < 1e-9);
    }
}
