//! Replays a recorded attempt log under another policy: how would the same calls have ended?
//!
//! Calls begin at their recorded times. Attempt k under the new policy gets the result of the recorded attempt k; beyond the recording it
//! gets a result drawn from the same endpoint's results at that time. Calls run on the real machine and share breakers, budgets, keys and
//! pools as in the product.

mod behaviour;
mod log;
mod world;

pub use log::{MALFORMED_SHOWN, MAX_ATTEMPTS, RecordedLog};

use super::stream;
use crate::config::Config;
use crate::record::Reason;
use behaviour::Behaviour;
use world::ReplayedCall;

#[derive(Clone, Debug)]
pub struct ReplayCase<'a> {
    pub seed: u64,
    pub runs: u32,
    pub policy: &'a Config,
    pub log: &'a RecordedLog,
}

/// One policy's results. Counts are means over the runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Results {
    pub succeeded: f64,
    /// Calls that did not succeed.
    pub dead: f64,
    pub attempts: f64,
    /// Attempts after a call's first.
    pub retries: f64,
    /// Time between arrival and end in which no attempt was in flight.
    pub waited_s: f64,
}

impl Results {
    #[must_use]
    pub fn success(&self) -> f64 {
        self.succeeded / (self.succeeded + self.dead).max(1.0)
    }

    /// `None` without a success.
    #[must_use]
    pub fn retries_per_success(&self) -> Option<f64> {
        (self.succeeded > 0.0).then(|| self.retries / self.succeeded)
    }

    fn call(&mut self, success: bool, attempts: u32, waited_s: f64) {
        *(if success { &mut self.succeeded } else { &mut self.dead }) += 1.0;
        self.attempts += f64::from(attempts);
        self.retries += f64::from(attempts.saturating_sub(1));
        self.waited_s += waited_s;
    }

    fn add(&mut self, other: &Self) {
        self.succeeded += other.succeeded;
        self.dead += other.dead;
        self.attempts += other.attempts;
        self.retries += other.retries;
        self.waited_s += other.waited_s;
    }

    fn divide(&mut self, by: f64) {
        for value in [&mut self.succeeded, &mut self.dead, &mut self.attempts, &mut self.retries, &mut self.waited_s] {
            *value /= by;
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct ReplayRow {
    /// `None` in the total.
    pub upstream: Option<String>,
    pub endpoint: Option<String>,
    pub calls: u32,
    pub before: Results,
    pub after: Results,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ReplayResult {
    /// One for each endpoint with calls, then the total.
    pub rows: Vec<ReplayRow>,
    /// Results that were not recorded, as a share of all that the new policy requested.
    pub drawn: f64,
    /// Calls that the new policy refuses before they are sent, by reason.
    pub refused: Vec<(Reason, f64)>,
    /// Upstreams of the log that the configuration does not have, with their calls.
    pub unknown: Vec<(String, u32)>,
    /// Upstreams without any recorded response, with their calls.
    pub silent: Vec<(String, u32)>,
}

/// Calls of the log that can be replayed, with their endpoints.
struct Chosen {
    calls: Vec<(usize, usize)>,
    unknown: Vec<(String, u32)>,
    silent: Vec<(String, u32)>,
}

#[must_use]
pub fn run(case: &ReplayCase<'_>) -> ReplayResult {
    let sites = sites(case.policy);
    let behaviour = Behaviour::of(case.log);
    let chosen = choose(case, &sites, &behaviour);
    let mut rows: Vec<ReplayRow> = sites.iter().map(|(upstream, endpoint)| row(Some(upstream), Some(endpoint))).collect();
    for &(call, site) in &chosen.calls {
        let recorded = &case.log.calls[call];
        rows[site].calls += 1;
        rows[site].before.call(recorded.is_success(), recorded.attempts(), recorded.waited_s());
    }
    let mut asked = ReplayedCall::default();
    for run in 0..case.runs.max(1) {
        world::run(case, &behaviour, &chosen.calls, stream(case.seed, [u64::from(run), 3, 0]), (&mut rows, &mut asked));
    }
    rows.retain(|row| row.calls > 0);
    let mut total = row(None, None);
    for row in &mut rows {
        row.after.divide(f64::from(case.runs.max(1)));
        total.calls += row.calls;
        total.before.add(&row.before);
        total.after.add(&row.after);
    }
    rows.push(total);
    let refused = asked.refused.iter().map(|(&reason, &calls)| (reason, f64::from(calls) / f64::from(case.runs.max(1)))).collect();
    ReplayResult { rows, drawn: asked.drawn as f64 / asked.results.max(1) as f64, refused, unknown: chosen.unknown, silent: chosen.silent }
}

fn row(upstream: Option<&str>, endpoint: Option<&str>) -> ReplayRow {
    let (upstream, endpoint) = (upstream.map(str::to_owned), endpoint.map(str::to_owned));
    ReplayRow { upstream, endpoint, calls: 0, before: Results::default(), after: Results::default() }
}

/// In the order in which shared state numbers them.
fn sites(config: &Config) -> Vec<(&str, &str)> {
    let each = config.upstreams.iter().flat_map(|upstream| upstream.endpoints.iter().map(move |endpoint| (upstream, endpoint)));
    each.map(|(upstream, endpoint)| (upstream.name.as_str(), endpoint.name.as_str())).collect()
}

fn choose(case: &ReplayCase<'_>, sites: &[(&str, &str)], behaviour: &Behaviour) -> Chosen {
    let mut chosen = Chosen { calls: Vec::new(), unknown: Vec::new(), silent: Vec::new() };
    for (index, call) in case.log.calls.iter().enumerate() {
        let (upstream, endpoint) = case.log.names(call);
        // An endpoint without a name in the configuration becomes the upstream's catch-all endpoint.
        let own = sites.iter().position(|site| *site == (upstream, endpoint));
        let site = own.or_else(|| sites.iter().rposition(|(name, _)| *name == upstream));
        match site {
            None => count(&mut chosen.unknown, upstream),
            Some(_) if !behaviour.knows(call) => count(&mut chosen.silent, upstream),
            Some(site) => chosen.calls.push((index, site)),
        }
    }
    chosen.calls.sort_by_key(|&(call, _)| case.log.calls[call].began_ms());
    chosen
}

fn count(counts: &mut Vec<(String, u32)>, name: &str) {
    match counts.iter_mut().find(|(known, _)| known == name) {
        Some((_, calls)) => *calls += 1,
        None => counts.push((name.to_owned(), 1)),
    }
}

#[cfg(test)]
mod tests;
