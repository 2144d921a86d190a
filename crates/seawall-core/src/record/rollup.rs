//! One endpoint's statistics for a span of time. Rollups of two spans, or of two processes, add up to exactly the rollup of both.

use super::histogram::StepHistogram;
use super::{AttemptOutcome, AttemptStatus};
use crate::time::Nanos;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rollup {
    /// By outcome, as log lines spell it.
    pub attempts: BTreeMap<Cow<'static, str>, u64>,
    pub calls: u64,
    pub success: u64,
    pub retries: u64,
    pub rejects: u64,
    /// The time that the breaker was open.
    pub open_ns: u64,
    /// Latencies of attempts that were sent. Text formats write it separately, in a shorter form.
    #[serde(skip)]
    pub latency: StepHistogram,
}

impl Rollup {
    pub fn attempt(&mut self, attempt: &AttemptOutcome) {
        *self.attempts.entry(Cow::Borrowed(attempt.outcome())).or_default() += 1;
        self.retries += u64::from(attempt.is_repeated());
        if attempt.status != AttemptStatus::CircuitOpen {
            self.latency.add(attempt.latency);
        }
    }

    pub fn open(&mut self, length: Nanos) {
        self.open_ns = self.open_ns.saturating_add(length.0);
    }

    pub fn merge(&mut self, more: &Self) {
        let Self { attempts, calls, success, retries, rejects, open_ns, latency } = more;
        for (outcome, count) in attempts {
            let sum = self.attempts.entry(outcome.clone()).or_default();
            *sum = sum.saturating_add(*count);
        }
        let pairs = [
            (&mut self.calls, calls),
            (&mut self.success, success),
            (&mut self.retries, retries),
            (&mut self.rejects, rejects),
            (&mut self.open_ns, open_ns),
        ];
        for (sum, more) in pairs {
            *sum = sum.saturating_add(*more);
        }
        self.latency.merge(latency);
    }

    /// Attempts that a breaker did not refuse.
    #[must_use]
    pub fn sends(&self) -> u64 {
        let sent = self.attempts.iter().filter(|(outcome, _)| outcome.as_ref() != "circuit_open");
        sent.map(|(_, count)| count).sum()
    }

    #[must_use]
    pub fn transient(&self) -> u64 {
        self.attempts.get("transient").copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_the_whole() {
        let part = |outcome: &'static str, count, micros: u64| {
            let mut latency = StepHistogram::default();
            latency.add(Nanos(micros * 1000));
            let attempts = BTreeMap::from([(Cow::Borrowed(outcome), count), (Cow::Borrowed("circuit_open"), 1)]);
            Rollup { attempts, calls: count, success: 1, retries: 2, rejects: 3, open_ns: 4, latency }
        };
        let (mut sum, mut other) = (part("transient", 5, 10), part("success", 7, 20_000));
        sum.merge(&part("success", 7, 20_000));
        other.merge(&part("transient", 5, 10));
        assert_eq!(sum, other, "in whatever order");
        assert_eq!((sum.calls, sum.success, sum.retries, sum.rejects, sum.open_ns), (12, 2, 4, 6, 8));
        assert_eq!((sum.sends(), sum.transient(), sum.attempts["circuit_open"], sum.latency.count()), (12, 5, 2, 2));
    }
}
