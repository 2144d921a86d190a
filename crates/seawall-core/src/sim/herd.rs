//! The thundering herd: 500 workers fail in the same instant and retry with their own backoff. It counts the simultaneous retries, which
//! bring a recovering upstream down again.

use super::queue::Queue;
use super::stats::{accumulate, count_at, divide};
use super::{Mean, stream};
use crate::policy::{Backoff, BackoffKind, Share};
use crate::rng::Rng;
use crate::time::{Mono, Nanos};
use crate::words::words;

pub const WORKERS: u32 = 500;
/// The width of a bucket of [`HerdRow::retries_per_bucket`].
pub const BUCKET: Nanos = Nanos::from_millis(100);
const BUCKETS_PER_SECOND: usize = 10;
/// Requests per bucket that the upstream serves while its capacity is scarce.
const CAPACITY: u32 = 10;
const OUTAGE_END: Mono = Mono(10_000_000_000);

words! {
    /// The upstream's state when the workers retry.
    pub enum Scenario {
        /// Healthy again at once.
        Spike = "spike",
        /// Down until t = 10 s.
        Outage10 = "outage10",
        /// Ten requests per 100 ms, the rest fail.
        Capacity = "capacity",
    }
}

/// One policy under test: a built-in one or a user's own.
#[derive(Clone, Debug, PartialEq)]
pub struct HerdPolicy {
    pub name: String,
    pub backoff: Backoff,
    /// The maximum of sends; the send that fails at t = 0 is the first.
    pub attempts: u32,
}

impl HerdPolicy {
    /// The policies that are compared by default, worst habits first.
    #[must_use]
    pub fn built_in() -> Vec<Self> {
        let arm = |name: &str, kind, factor, percent| Self {
            name: name.to_owned(),
            backoff: Backoff { kind, base: Nanos::from_secs(1), factor, cap: Nanos::from_secs(60), jitter: Share::percent(percent) },
            attempts: 6,
        };
        vec![
            arm("fixed", BackoffKind::Exponential, 1.0, 0),
            arm("exponential", BackoffKind::Exponential, 2.0, 0),
            arm("pm25", BackoffKind::PercentJitter, 2.0, 25),
            arm("pm20", BackoffKind::PercentJitter, 2.0, 20),
            arm("equal", BackoffKind::EqualJitter, 2.0, 0),
            arm("full", BackoffKind::FullJitter, 2.0, 0),
            arm("decorrelated", BackoffKind::Decorrelated, 2.0, 0),
        ]
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct HerdConfig {
    pub seed: u64,
    pub runs: u32,
    pub scenarios: Vec<Scenario>,
    pub arms: Vec<HerdPolicy>,
}

impl HerdConfig {
    pub const RUNS: u32 = 100;

    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, runs: Self::RUNS, scenarios: Scenario::ALL.to_vec(), arms: HerdPolicy::built_in() }
    }
}

/// Means over the runs of one case.
#[derive(Clone, Debug, PartialEq)]
pub struct HerdRow {
    pub scenario: Scenario,
    pub policy: String,
    /// The most retries in one 100 ms bucket.
    pub peak100_mean: f64,
    /// The most retries in one second.
    pub peak1s_mean: f64,
    pub retries_mean: f64,
    pub succeeded_mean: f64,
    /// Workers that used up their attempts.
    pub dead_mean: f64,
    pub retries_per_bucket: Vec<f64>,
}

/// Rows in the order of `scenarios`, then of `arms`.
#[must_use]
pub fn run(config: &HerdConfig) -> Vec<HerdRow> {
    let cases = config.scenarios.iter().flat_map(|&scenario| config.arms.iter().map(move |arm| (scenario, arm)));
    cases.map(|(scenario, arm)| row(config, scenario, arm)).collect()
}

fn row(config: &HerdConfig, scenario: Scenario, arm: &HerdPolicy) -> HerdRow {
    let mut means = [Mean::default(); 5];
    let mut retries_per_bucket = Vec::new();
    for run in 0..config.runs {
        // Every arm gets the same random stream, so that arms differ by policy and not by luck.
        let herd = Herd::new(scenario, arm, stream(config.seed, [scenario as u64, u64::from(run), 0])).finish();
        let values = [herd.peak(1), herd.peak(BUCKETS_PER_SECOND), herd.retries(), herd.succeeded, herd.dead];
        for (mean, value) in means.iter_mut().zip(values) {
            mean.add(f64::from(value));
        }
        accumulate(&mut retries_per_bucket, &herd.retries_per_bucket);
    }
    divide(&mut retries_per_bucket, config.runs);
    let [peak100_mean, peak1s_mean, retries_mean, succeeded_mean, dead_mean] = means.map(|mean| mean.or_zero());
    HerdRow { scenario, policy: arm.name.clone(), peak100_mean, peak1s_mean, retries_mean, succeeded_mean, dead_mean, retries_per_bucket }
}

/// A worker's next send. `retry` counts from 0.
#[derive(Clone, Copy, Debug)]
struct Send {
    retry: u32,
    wait: Nanos,
}

#[derive(Debug)]
struct Herd<'a> {
    scenario: Scenario,
    arm: &'a HerdPolicy,
    rng: Rng,
    queue: Queue<Send>,
    retries_per_bucket: Vec<u32>,
    succeeded: u32,
    dead: u32,
}

impl<'a> Herd<'a> {
    fn new(scenario: Scenario, arm: &'a HerdPolicy, rng: Rng) -> Self {
        let mut herd = Self {
            scenario,
            arm,
            rng,
            queue: Queue::with_capacity(WORKERS as usize),
            retries_per_bucket: Vec::new(),
            succeeded: 0,
            dead: 0,
        };
        for _ in 0..WORKERS {
            herd.failed(Mono(0), 0, Nanos::ZERO);
        }
        herd
    }

    fn finish(mut self) -> Self {
        while let Some((now, send)) = self.queue.pop() {
            let bucket = now.0 / BUCKET.0;
            count_at(&mut self.retries_per_bucket, bucket);
            if self.is_served(now) {
                self.succeeded += 1;
            } else {
                self.failed(now, send.retry + 1, send.wait);
            }
        }
        self
    }

    /// The current retry is already counted in its bucket.
    fn is_served(&self, now: Mono) -> bool {
        match self.scenario {
            Scenario::Spike => true,
            Scenario::Outage10 => now >= OUTAGE_END,
            // Time only moves forward, so the bucket of `now` is the last one.
            Scenario::Capacity => self.retries_per_bucket.last().is_some_and(|&retries| retries <= CAPACITY),
        }
    }

    fn failed(&mut self, now: Mono, retry: u32, previous: Nanos) {
        if retry + 1 >= self.arm.attempts {
            self.dead += 1;
            return;
        }
        let wait = self.arm.backoff.draw(retry, previous, &mut self.rng);
        self.queue.push(now + wait, Send { retry, wait });
    }

    fn retries(&self) -> u32 {
        self.retries_per_bucket.iter().sum()
    }

    fn peak(&self, buckets: usize) -> u32 {
        self.retries_per_bucket.chunks(buckets).map(|chunk| chunk.iter().sum()).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(scenario: Scenario) -> Vec<HerdRow> {
        run(&HerdConfig { runs: 3, scenarios: vec![scenario], ..HerdConfig::new(1) })
    }

    fn peak(rows: &[HerdRow], policy: &str) -> f64 {
        rows.iter().find(|row| row.policy == policy).unwrap().peak100_mean
    }

    #[test]
    fn every_worker_ends_exactly_once() {
        for &scenario in Scenario::ALL {
            for row in small(scenario) {
                assert!((row.succeeded_mean + row.dead_mean - f64::from(WORKERS)).abs() < 1e-9, "{row:?}");
            }
        }
    }

    #[test]
    fn without_jitter_all_come_back_in_one_bucket_and_full_jitter_spreads_them_most() {
        let rows = small(Scenario::Spike);
        assert!((peak(&rows, "exponential") - 500.0).abs() < 1e-9);
        assert!((peak(&rows, "fixed") - 500.0).abs() < 1e-9);
        assert!(peak(&rows, "full") < peak(&rows, "equal"));
        assert!(peak(&rows, "equal") < 200.0);
        assert!(peak(&rows, "pm25") < peak(&rows, "pm20") + 30.0);
    }

    #[test]
    fn a_healthy_upstream_needs_one_retry_per_worker() {
        for row in small(Scenario::Spike) {
            assert!((row.retries_mean - 500.0).abs() < 1e-9 && row.dead_mean < 1e-9, "{row:?}");
        }
    }

    #[test]
    fn fixed_waits_die_in_an_outage_that_exponential_ones_outlive() {
        let rows = small(Scenario::Outage10);
        let dead = |policy: &str| rows.iter().find(|row| row.policy == policy).unwrap().dead_mean;
        assert!((dead("fixed") - 500.0).abs() < 1e-9);
        assert!(dead("exponential") < 1e-9);
    }

    #[test]
    fn scarce_capacity_serves_ten_of_a_bucket() {
        let rows = small(Scenario::Capacity);
        let exponential = rows.iter().find(|row| row.policy == "exponential").unwrap();
        assert!((exponential.succeeded_mean - 50.0).abs() < 1e-9, "five retries, ten served each: {exponential:?}");
    }
}
