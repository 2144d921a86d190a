//! Does the system recover? A server at ρ of its capacity loses nine tenths of its workers for ten seconds.
//!
//! The dip fills its queue; from then on each attempt may time out before it is served, and retries keep the queue full for ever (a
//! metastable failure). The model measures which policies break that loop, how fast, and at what price, with the product's own backoff,
//! budget, breaker and limiter.

mod arm;
mod gateway;
mod tally;
mod world;

pub use arm::{BudgetFunding, OutagePolicy};

use super::stats::{accumulate, divide};
use super::{Mean, server, stream};
use crate::policy::Share;
use crate::time::Nanos;

/// Requests per second that the server can serve.
pub const CAPACITY: f64 = server::CAPACITY;
const ATTEMPT_TIMEOUT: Nanos = Nanos::from_secs(1);
pub const DIP_START_S: u32 = 60;
pub const DIP_END_S: u32 = 70;
pub const END_S: u32 = 360;
const INCIDENT_S: (u32, u32) = (60, 120);

#[derive(Clone, Debug, PartialEq)]
pub struct OutageConfig {
    pub seed: u64,
    pub runs: u32,
    /// Offered load as a share of the capacity.
    pub rhos: Vec<Share>,
    pub arms: Vec<OutagePolicy>,
}

impl OutageConfig {
    pub const RUNS: u32 = 8;

    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, runs: Self::RUNS, rhos: [70, 80, 90].map(Share::percent).to_vec(), arms: OutagePolicy::built_in() }
    }
}

/// Means over the runs of one case.
#[derive(Clone, Debug, PartialEq)]
pub struct OutageRow {
    pub rho: Share,
    pub policy: String,
    /// The share of runs that recovered.
    pub recovered: f64,
    /// Seconds after the dip, over the runs that recovered; `None` if none did.
    pub recovery_s: Option<f64>,
    /// Attempts per request in the minute from the dip's start.
    pub amp_incident: f64,
    /// The share of that minute's requests that succeeded.
    pub success_incident: f64,
    pub goodput_per_s: Vec<f64>,
    pub attempts_per_s: Vec<f64>,
}

/// Rows in the order of `rhos`, then of `arms`.
#[must_use]
pub fn run(config: &OutageConfig) -> Vec<OutageRow> {
    let cases = config.rhos.iter().flat_map(|&rho| config.arms.iter().map(move |arm| (rho, arm)));
    cases.map(|(rho, arm)| row(config, rho, arm)).collect()
}

fn row(config: &OutageConfig, rho: Share, arm: &OutagePolicy) -> OutageRow {
    let offered = rho.as_f64() * CAPACITY;
    let [mut recovery_s, mut amp, mut success] = [Mean::default(); 3];
    let (mut goodput_per_s, mut attempts_per_s) = (Vec::new(), Vec::new());
    for run in 0..config.runs {
        // Every arm gets the same arrivals, so that arms differ by policy and not by luck.
        let tally = world::run(arm, offered, stream(config.seed, [u64::from(rho.0), u64::from(run), 1]));
        if let Some(seconds) = tally.recovery_s(offered) {
            recovery_s.add(f64::from(seconds));
        }
        amp.add(tally.amplification());
        success.add(tally.success_share());
        accumulate(&mut goodput_per_s, &tally.goodput);
        accumulate(&mut attempts_per_s, &tally.attempts);
    }
    divide(&mut goodput_per_s, config.runs);
    divide(&mut attempts_per_s, config.runs);
    OutageRow {
        rho,
        policy: arm.name.clone(),
        recovered: f64::from(recovery_s.count()) / f64::from(config.runs.max(1)),
        recovery_s: recovery_s.value(),
        amp_incident: amp.or_zero(),
        success_incident: success.or_zero(),
        goodput_per_s,
        attempts_per_s,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(policy: &str) -> OutageRow {
        let mut arms = OutagePolicy::built_in();
        arms.retain(|arm| arm.name == policy);
        let config = OutageConfig { seed: 1, runs: 1, rhos: vec![Share::percent(80)], arms };
        run(&config).remove(0)
    }

    #[test]
    fn plain_retries_keep_the_outage_alive_for_ever() {
        for policy in ["naive3", "full"] {
            let row = case(policy);
            assert_eq!(row.recovery_s, None, "{policy}");
            assert!(row.amp_incident > 2.0, "{policy}: {}", row.amp_incident);
        }
    }

    #[test]
    fn a_success_funded_budget_with_breaker_and_limiter_comes_back_at_once() {
        let row = case("succ10+breaker+aimd");
        assert!(row.recovery_s.is_some_and(|seconds| seconds < 10.0), "{:?}", row.recovery_s);
        assert!(row.amp_incident < 1.1, "{}", row.amp_incident);
        assert!(row.success_incident > 0.7, "{}", row.success_incident);
    }

    #[test]
    fn the_same_seed_gives_the_same_row() {
        assert_eq!(case("none"), case("none"));
    }
}
