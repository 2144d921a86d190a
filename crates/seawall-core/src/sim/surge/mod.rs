//! One endpoint gets ten times its traffic for five minutes: what protects the rest?
//!
//! Every endpoint of a configuration has a steady load; each upstream is a server with 20 workers behind an unbounded queue. A minute of
//! calm, the surge, a minute of calm. Calls run on the real machine and share state as in the product, so the refusals, and their layers,
//! are those of the configuration.

mod load;
mod tally;
mod verdict;
mod world;

pub use tally::{Layer, Phase, SurgePoint, SurgeRow, Track};
pub use verdict::{Advice, Others, SurgeVerdict};

use super::shared::{CallerView, SharedCells};
use super::stream;
use crate::config::{CATCH_ALL, Config};
use crate::time::Nanos;
use load::SurgeLoad;
use tally::SurgeTally;

/// The calm before the surge, and after it.
pub const CALM_S: u32 = 60;

#[derive(Clone, Debug)]
pub struct SurgeCase<'a> {
    pub seed: u64,
    pub runs: u32,
    pub policy: &'a Config,
    /// `upstream/endpoint`; the first endpoint if absent.
    pub endpoint: Option<String>,
    pub factor: f64,
    /// Calls per second to each endpoint, instead of the rate that its limits suggest.
    pub rate: Option<f64>,
    /// The length of the surge, in whole seconds.
    pub surge_s: u32,
}

impl<'a> SurgeCase<'a> {
    pub const RUNS: u32 = 1;
    pub const FACTOR: f64 = 10.0;
    pub const SURGE: Nanos = Nanos::from_secs(300);

    #[must_use]
    pub fn new(seed: u64, policy: &'a Config) -> Self {
        Self { seed, runs: Self::RUNS, policy, endpoint: None, factor: Self::FACTOR, rate: None, surge_s: 300 }
    }

    /// The approximate number of calls in one run.
    #[must_use]
    pub fn calls(&self) -> f64 {
        let shared = SharedCells::new(self.policy, CallerView::OnePerEndpoint);
        let load = SurgeLoad::of(self, &shared);
        let end_s = f64::from(2 * CALM_S + self.surge_s);
        load.steady.iter().sum::<f64>() * end_s + load.steady[load.surged] * (self.factor - 1.0) * f64::from(self.surge_s)
    }
}

/// The results of the case.
#[derive(Clone, Debug, PartialEq)]
pub struct SurgeResult {
    /// For each endpoint one row before, one during and one after the surge.
    pub rows: Vec<SurgeRow>,
    /// The same endpoints, second by second.
    pub tracks: Vec<Track>,
    pub verdict: SurgeVerdict,
}

/// Every endpoint that a case can name.
#[must_use]
pub fn endpoints(config: &Config) -> Vec<String> {
    SharedCells::new(config, CallerView::OnePerEndpoint).sites.into_iter().map(|site| site.name).collect()
}

/// Endpoints that the file mentions. An upstream's catch-all endpoint counts only if it has no other.
fn is_spoken_of(config: &Config) -> Vec<bool> {
    let all = config.upstreams.iter().flat_map(|upstream| upstream.endpoints.iter().map(move |endpoint| (upstream, endpoint)));
    all.map(|(upstream, endpoint)| upstream.endpoints.len() == 1 || endpoint.name != CATCH_ALL).collect()
}

#[must_use]
pub fn run(case: &SurgeCase<'_>) -> SurgeResult {
    let load = SurgeLoad::of(case, &SharedCells::new(case.policy, CallerView::OnePerEndpoint));
    let tally = measure(case, &load);
    let verdict = verdict::of(case, &load, &tally);
    SurgeResult { rows: tally.rows(), tracks: tally.tracks(), verdict }
}

fn measure(case: &SurgeCase<'_>, load: &SurgeLoad) -> SurgeTally {
    let shared = SharedCells::new(case.policy, CallerView::OnePerEndpoint);
    let mut tally = SurgeTally::new(case, load, &shared);
    for run in 0..case.runs.max(1) {
        world::run(case, load, stream(case.seed, [u64::from(run), 2, 0]), &mut tally);
    }
    tally
}

#[cfg(test)]
mod tests;
