//! Optimistic concurrency: N clients, one row, each must write once (the AWS "exponential backoff and jitter" experiment).
//!
//! A try is read → version → write(version), four hops of `abs(Normal(10, 2))` ms; the write succeeds only if no other write got there
//! first. It shows the benefit of jitter when clients contend with each other.

use super::queue::Queue;
use super::{Mean, stream};
use crate::policy::{Backoff, BackoffKind, Share};
use crate::rng::Rng;
use crate::time::{Mono, Nanos};
use crate::words::words;

const HOP_MEAN_S: f64 = 0.010;
const HOP_DEVIATION_S: f64 = 0.002;
const BASE: Nanos = Nanos::from_millis(5);
const CAP: Nanos = Nanos::from_millis(2000);

words! {
    /// A client's wait after it lost the race.
    pub enum Strategy {
        None = "none",
        Exponential = "exponential",
        Equal = "equal",
        Full = "full",
        Decorrelated = "decorrelated",
    }
}

impl Strategy {
    /// The product's own backoff; `None` does not wait.
    const fn backoff(self) -> Option<Backoff> {
        let (kind, cap) = match self {
            Self::None => return None,
            Self::Exponential => (BackoffKind::Exponential, CAP),
            Self::Equal => (BackoffKind::EqualJitter, CAP),
            Self::Full => (BackoffKind::FullJitter, CAP),
            // The model is `min(cap, U(base, 3s))`, which piles up at the cap; the product narrows the range instead and stays spread.
            // Drawn without a cap the two agree, so the model's clamp is applied to the draw.
            Self::Decorrelated => (BackoffKind::Decorrelated, Nanos::MAX),
        };
        Some(Backoff { kind, base: BASE, factor: 2.0, cap, jitter: Share::ZERO })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentionConfig {
    pub seed: u64,
    pub runs: u32,
    pub clients: Vec<u32>,
    pub strategies: Vec<Strategy>,
}

impl ContentionConfig {
    pub const RUNS: u32 = 100;

    /// The whole published table: 10 to 200 clients under every strategy.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, runs: Self::RUNS, clients: (1..=20).map(|tens| tens * 10).collect(), strategies: Strategy::ALL.to_vec() }
    }
}

/// Means over the runs of one case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ContentionRow {
    pub clients: u32,
    pub strategy: Strategy,
    /// Writes that reached the server.
    pub calls_mean: f64,
    /// When the last client got its response.
    pub time_ms_mean: f64,
}

/// Rows in the order of `clients`, then of `strategies`.
#[must_use]
pub fn run(config: &ContentionConfig) -> Vec<ContentionRow> {
    let cases = config.clients.iter().flat_map(|&clients| config.strategies.iter().map(move |&strategy| (clients, strategy)));
    cases.map(|(clients, strategy)| row(config, clients, strategy)).collect()
}

fn row(config: &ContentionConfig, clients: u32, strategy: Strategy) -> ContentionRow {
    let (mut calls, mut time_ms) = (Mean::default(), Mean::default());
    for run in 0..config.runs {
        let rng = stream(config.seed, [u64::from(clients), strategy as u64, u64::from(run)]);
        let race = Race::new(clients, strategy.backoff(), rng).finish();
        calls.add(race.calls as f64);
        time_ms.add(race.ended.since(Mono(0)).as_millis_f64());
    }
    ContentionRow { clients, strategy, calls_mean: calls.or_zero(), time_ms_mean: time_ms.or_zero() }
}

/// Events at the server. The two hops on the client's side involve no other client, so they are part of the delay before these events.
#[derive(Clone, Copy, Debug)]
enum ContentionEvent {
    Read { client: usize },
    Write { client: usize, version: u32 },
}

#[derive(Clone, Copy, Debug)]
struct ContentionClient {
    failures: u32,
    wait: Nanos,
}

#[derive(Debug)]
struct Race {
    backoff: Option<Backoff>,
    rng: Rng,
    clients: Vec<ContentionClient>,
    queue: Queue<ContentionEvent>,
    version: u32,
    calls: u64,
    ended: Mono,
}

impl Race {
    fn new(clients: u32, backoff: Option<Backoff>, rng: Rng) -> Self {
        let count = clients as usize;
        let mut race = Self {
            backoff,
            rng,
            clients: vec![ContentionClient { failures: 0, wait: BASE }; count],
            queue: Queue::with_capacity(count),
            version: 0,
            calls: 0,
            ended: Mono(0),
        };
        for client in 0..count {
            let arrival = Mono(0) + race.hop();
            race.queue.push(arrival, ContentionEvent::Read { client });
        }
        race
    }

    fn finish(mut self) -> Self {
        while let Some((now, event)) = self.queue.pop() {
            match event {
                ContentionEvent::Read { client } => {
                    let arrival = now + self.hop() + self.hop();
                    self.queue.push(arrival, ContentionEvent::Write { client, version: self.version });
                }
                ContentionEvent::Write { client, version } => self.write(now, client, version),
            }
        }
        self
    }

    fn write(&mut self, now: Mono, client: usize, version: u32) {
        self.calls += 1;
        let answered = now + self.hop();
        self.ended = self.ended.max(answered);
        if version == self.version {
            self.version += 1;
        } else {
            let arrival = answered + self.hop() + self.wait(client);
            self.queue.push(arrival, ContentionEvent::Read { client });
        }
    }

    fn wait(&mut self, client: usize) -> Nanos {
        let Some(backoff) = &self.backoff else { return Nanos::ZERO };
        let state = &mut self.clients[client];
        // Raised before use: the experiment's first wait is already base × 2.
        state.failures += 1;
        state.wait = backoff.draw(state.failures, state.wait, &mut self.rng).min(CAP);
        state.wait
    }

    fn hop(&mut self) -> Nanos {
        Nanos::from_secs_f64(self.rng.normal(HOP_MEAN_S, HOP_DEVIATION_S).abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(clients: u32, strategies: &[Strategy]) -> Vec<ContentionRow> {
        run(&ContentionConfig { seed: 1, runs: 4, clients: vec![clients], strategies: strategies.to_vec() })
    }

    #[test]
    fn a_client_without_rivals_writes_once() {
        let rows = small(1, Strategy::ALL);
        assert!(rows.iter().all(|row| (row.calls_mean - 1.0).abs() < 1e-9), "{rows:?}");
    }

    #[test]
    fn every_client_succeeds_exactly_once() {
        for &strategy in Strategy::ALL {
            let race = Race::new(50, strategy.backoff(), Rng::seeded(3)).finish();
            assert_eq!(race.version, 50, "{strategy}");
        }
    }

    #[test]
    fn full_jitter_needs_less_than_half_the_calls_of_plain_exponential_backoff() {
        let rows = small(100, &[Strategy::None, Strategy::Exponential, Strategy::Full]);
        assert!(rows[2].calls_mean < rows[1].calls_mean / 2.0, "{rows:?}");
        assert!(rows[1].calls_mean < rows[0].calls_mean, "{rows:?}");
    }

    #[test]
    fn a_case_gives_the_same_numbers_alone_and_in_a_table() {
        let table = small(30, Strategy::ALL);
        let alone = small(30, &[Strategy::Full]);
        assert_eq!(alone[0], table[3]);
    }
}
