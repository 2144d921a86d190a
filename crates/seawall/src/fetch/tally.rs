//! The statistics of a run, in bounded memory: outcomes, retries, latencies, hosts, and the course over time.

use seawall_core::record::{AttemptOutcome, Decision, Reason};
use seawall_core::time::{Mono, Nanos};
use std::collections::BTreeMap;

/// The most hosts and reasons with a line of their own; the rest share a line.
const MAX_NAMES: usize = 500;
/// The most invalid lines that are shown.
const MAX_BAD: usize = 20;
/// Steps of time; when there are more, each becomes twice as long.
const MAX_STEPS: usize = 240;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TallyStep {
    pub done: u64,
    pub dead: u64,
    pub attempts: u64,
    pub retries: u64,
}

impl TallyStep {
    const fn add(&mut self, other: Self) {
        self.done += other.done;
        self.dead += other.dead;
        self.attempts += other.attempts;
        self.retries += other.retries;
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct HostTally {
    pub step: TallyStep,
    pub latencies: Latencies,
}

#[derive(Debug)]
pub(super) struct RunTally {
    started: Mono,
    pub all: TallyStep,
    /// Rows that needed more than one attempt and succeeded.
    pub healed: u64,
    pub quarantined: u64,
    /// Rows whose destination is out of reach.
    pub prohibited: u64,
    pub bad_lines: u64,
    /// The first of them, each with its problem.
    pub bad: Vec<String>,
    /// First pages with and without the member for the next page.
    pub with_next: u64,
    pub without_next: u64,
    pub bytes: u64,
    pub hosts: BTreeMap<String, HostTally>,
    /// Dead rows by class and code.
    pub reasons: BTreeMap<String, u64>,
    pub latencies: Latencies,
    pub slowest: (Nanos, String),
    pub steps: Vec<TallyStep>,
    pub step_seconds: u64,
}

impl RunTally {
    pub(super) fn new(started: Mono) -> Self {
        Self {
            started,
            all: TallyStep::default(),
            healed: 0,
            quarantined: 0,
            prohibited: 0,
            bad_lines: 0,
            bad: Vec::new(),
            with_next: 0,
            without_next: 0,
            bytes: 0,
            hosts: BTreeMap::new(),
            reasons: BTreeMap::new(),
            latencies: Latencies::default(),
            slowest: (Nanos::ZERO, String::new()),
            steps: Vec::new(),
            step_seconds: 1,
        }
    }

    pub(super) const fn elapsed(&self, now: Mono) -> Nanos {
        now.since(self.started)
    }

    fn count(&mut self, host: &str, now: Mono, what: TallyStep) {
        self.all.add(what);
        named(&mut self.hosts, host).step.add(what);
        let second = now.since(self.started).0 / 1_000_000_000;
        while second / self.step_seconds >= MAX_STEPS as u64 {
            self.steps = self
                .steps
                .chunks(2)
                .map(|pair| {
                    pair.iter().fold(TallyStep::default(), |mut sum, step| {
                        sum.add(*step);
                        sum
                    })
                })
                .collect();
            self.step_seconds *= 2;
        }
        let at = usize::try_from(second / self.step_seconds).unwrap_or(0);
        if self.steps.len() <= at {
            self.steps.resize(at + 1, TallyStep::default());
        }
        self.steps[at].add(what);
    }

    /// Counts attempts without refusals by a breaker, which sent nothing. Returns the number of attempts.
    pub(super) fn attempts(&mut self, host: &str, attempts: &[(seawall_core::time::Wall, AttemptOutcome)], now: Mono) -> u32 {
        let mut sent = 0;
        for (_, attempt) in attempts.iter().filter(|(_, attempt)| attempt.reason != Reason::CircuitOpen) {
            let retries = u64::from(matches!(attempt.decision, Decision::Retry | Decision::RotateKey | Decision::RefreshToken));
            self.count(host, now, TallyStep { attempts: 1, retries, ..TallyStep::default() });
            self.latencies.add(attempt.latency);
            named(&mut self.hosts, host).latencies.add(attempt.latency);
            sent += 1;
        }
        sent
    }

    /// Counts sends that replaced a dead connection. They are no retries, but the upstream may have received them.
    pub(super) fn resends(&mut self, host: &str, resends: u32, now: Mono) {
        if resends > 0 {
            self.count(host, now, TallyStep { attempts: u64::from(resends), ..TallyStep::default() });
        }
    }

    pub(super) fn done(&mut self, host: &str, attempts: u32, elapsed: Nanos, url: impl FnOnce() -> String, now: Mono) {
        self.count(host, now, TallyStep { done: 1, ..TallyStep::default() });
        self.healed += u64::from(attempts > 1);
        if elapsed > self.slowest.0 {
            self.slowest = (elapsed, url());
        }
    }

    /// Counts the first page of a row.
    pub(super) const fn first_page(&mut self, has_next: bool) {
        if has_next {
            self.with_next += 1;
        } else {
            self.without_next += 1;
        }
    }

    /// Counts a line without a request that can be sent.
    pub(super) fn bad_line(&mut self, what: String) {
        self.bad_lines += 1;
        if self.bad.len() < MAX_BAD {
            self.bad.push(what);
        }
    }

    pub(super) fn dead(&mut self, host: &str, class: &str, code: &str, now: Mono) {
        self.count(host, now, TallyStep { dead: 1, ..TallyStep::default() });
        *named(&mut self.reasons, &format!("{class} {code}")) += 1;
    }
}

fn named<'a, T: Default>(map: &'a mut BTreeMap<String, T>, name: &str) -> &'a mut T {
    let name = if map.len() >= MAX_NAMES && !map.contains_key(name) { "(others)" } else { name };
    if !map.contains_key(name) {
        map.insert(name.to_owned(), T::default());
    }
    map.get_mut(name).expect("it was put there")
}

/// Latencies in buckets that grow by an eighth: a percentile is off by a sixteenth at most.
#[derive(Clone, Debug)]
pub(super) struct Latencies {
    buckets: [u32; 160],
    count: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { buckets: [0; 160], count: 0 }
    }
}

/// The upper end of the first bucket.
const LEAST_MS: f64 = 0.02;
const GROWTH: f64 = 1.125;

impl Latencies {
    fn add(&mut self, latency: Nanos) {
        let step = (latency.as_millis_f64() / LEAST_MS).max(1.0).ln() / GROWTH.ln();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between zero and a few hundred")]
        let at = (step as usize).min(self.buckets.len() - 1);
        self.buckets[at] = self.buckets[at].saturating_add(1);
        self.count += 1;
    }

    /// In milliseconds; `None` without samples.
    pub(super) fn percentile(&self, share: f64) -> Option<f64> {
        let mut seen = 0.0;
        let wanted = share * self.count as f64;
        let at = self.buckets.iter().position(|bucket| {
            seen += f64::from(*bucket);
            seen >= wanted && seen > 0.0
        })?;
        Some(LEAST_MS * GROWTH.powf(at as f64 + 0.5))
    }

    /// Upper ends in milliseconds and counts, from the first bucket with samples to the last.
    pub(super) fn shape(&self) -> Vec<(f64, u32)> {
        let first = self.buckets.iter().position(|bucket| *bucket > 0).unwrap_or(0);
        let last = self.buckets.iter().rposition(|bucket| *bucket > 0).map_or(first, |last| last + 1);
        (first..last).map(|at| (LEAST_MS * GROWTH.powf(at as f64 + 1.0), self.buckets[at])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_near_what_was_measured() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.percentile(0.5), None);
        for ms in 1..=1000 {
            latencies.add(Nanos::from_millis(ms));
        }
        for (share, expected) in [(0.5, 500.0), (0.99, 990.0)] {
            let found = latencies.percentile(share).unwrap();
            assert!((found / expected - 1.0).abs() < 0.13, "{share}: {found}");
        }
    }

    #[test]
    fn time_and_names_are_bounded() {
        let mut tally = RunTally::new(Mono(0));
        for second in 0..5000 {
            tally.done(&format!("host{second}"), 1, Nanos(1), String::new, Mono(Nanos::from_secs(second).0));
        }
        assert!(tally.steps.len() <= MAX_STEPS && tally.hosts.len() <= MAX_NAMES + 1);
        assert_eq!(tally.steps.iter().map(|step| step.done).sum::<u64>(), 5000);
        assert_eq!(tally.hosts["(others)"].step.done, 4500);
    }
}
