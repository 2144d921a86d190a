//! The layer that protected the other endpoints, in one sentence; without one, a change that would, found by simulation.

use std::fmt;
use std::sync::Arc;

use super::load::SurgeLoad;
use super::tally::{Layer, Phase, Second, SurgeTally, p99};
use super::{SurgeCase, measure};
use crate::config::{Config, EndpointPolicy};
use crate::policy::{Algorithm, BulkheadPolicy, Fail, LimitKey, LimitPolicy, Mode, Rate};
use crate::sim::server::SERVICE_MEAN_S;
use crate::time::Nanos;

/// The least success before the surge: below it there is nothing to protect.
const WELL: f64 = 0.95;
/// A layer that refused less than this did not take part.
const NOTABLE: f64 = 0.01;
/// The loss of success that may be random.
const SUCCESS_LOSS: f64 = 0.01;
/// The same for a single endpoint, whose calls are fewer.
const WORST_LOSS: f64 = 0.02;
/// The factor by which the 99th percentile may grow before it counts as harm.
const SLOWER: f64 = 1.5;

#[derive(Clone, Debug, PartialEq)]
pub struct SurgeVerdict {
    pub surged: String,
    /// The share of the surge that was refused before it was sent.
    pub refused: f64,
    /// The layer that refused most of it, as `pool export` or `limit qps`, and its share.
    pub refused_by: Option<(String, f64)>,
    /// `None` without another endpoint.
    pub others: Option<Others>,
    pub advice: Option<Advice>,
}

/// All the other endpoints together.
#[derive(Clone, Debug, PartialEq)]
pub struct Others {
    pub endpoints: usize,
    pub success_before: f64,
    pub success_during: f64,
    pub p99_ms_before: f64,
    pub p99_ms_during: f64,
    /// The endpoint that lost most, and its remaining success.
    pub worst: (String, f64),
    /// The layer that cost them most of their calls.
    pub lost_to: Option<String>,
    most_lost: f64,
}

/// A change to the surged endpoint that was simulated and protects the others.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// In the file's syntax.
    pub change: String,
    pub others: Others,
}

impl Others {
    /// Whether their success was high enough before the surge to be worth protecting.
    #[must_use]
    pub fn were_well(&self) -> bool {
        self.success_before >= WELL
    }

    #[must_use]
    pub fn are_protected(&self) -> bool {
        let lost = self.success_before - self.success_during;
        self.were_well() && lost <= SUCCESS_LOSS && self.most_lost <= WORST_LOSS && self.p99_ms_during <= self.p99_ms_before * SLOWER
    }
}

pub(super) fn of(case: &SurgeCase<'_>, load: &SurgeLoad, tally: &SurgeTally) -> SurgeVerdict {
    let surged = &tally.sites[tally.surged];
    let during = &surged.seconds[tally.range(Phase::During)];
    let offered = sum(during, |second| second.offered).max(1.0);
    let refused = sum(during, |second| second.refused.iter().sum()) / offered;
    let others = others(tally);
    let harmed = others.as_ref().is_some_and(|others| others.were_well() && !others.are_protected());
    SurgeVerdict {
        surged: surged.name.clone(),
        refused,
        refused_by: largest(tally, &[tally.surged]).map(|(name, count)| (name, count / offered)).filter(|(_, share)| *share >= NOTABLE),
        others,
        advice: if harmed { advice(case, load) } else { None },
    }
}

fn others(tally: &SurgeTally) -> Option<Others> {
    let others: Vec<usize> = tally.taking_part().map(|(index, _)| index).filter(|&index| index != tally.surged).collect();
    let seconds = |phase: Phase| -> Vec<Second> {
        others.iter().flat_map(|&site| tally.sites[site].seconds[tally.range(phase)].iter().cloned()).collect()
    };
    let (before, during) = (seconds(Phase::Before), seconds(Phase::During));
    let success = |seconds: &[Second]| sum(seconds, |second| second.succeeded) / sum(seconds, |second| second.offered).max(1.0);
    let slowest = |seconds: &[Second]| p99(seconds.iter().flat_map(|second| second.elapsed_ms.iter().copied())).unwrap_or(0.0);
    let timed_out = sum(&during, |second| second.admitted) - sum(&during, |second| second.succeeded);
    let refusing = largest(tally, &others);
    let lost_to = match refusing {
        Some((name, count)) if count > timed_out => Some(name),
        _ if timed_out > 0.0 => Some("timeouts of their upstream".to_owned()),
        _ => None,
    };
    let lost = |&site: &usize| {
        let own = |phase: Phase| success(&tally.sites[site].seconds[tally.range(phase)]);
        (own(Phase::Before) - own(Phase::During), own(Phase::During), site)
    };
    let (most_lost, left, worst) = others.iter().map(lost).max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(Others {
        endpoints: others.len(),
        worst: (tally.sites[worst].name.clone(), left),
        most_lost,
        success_before: success(&before),
        success_during: success(&during),
        p99_ms_before: slowest(&before),
        p99_ms_during: slowest(&during),
        lost_to,
    })
}

/// The layer that refused most of these endpoints' calls during the surge, and the number.
fn largest(tally: &SurgeTally, sites: &[usize]) -> Option<(String, f64)> {
    let mut found: Vec<(String, f64)> = Vec::new();
    let mut add = |name: String, count: f64| match found.iter_mut().find(|(known, _)| *known == name) {
        Some((_, sum)) => *sum += count,
        None => found.push((name, count)),
    };
    for &index in sites {
        let site = &tally.sites[index];
        for (limit, &count) in site.by_limit.iter().enumerate() {
            add(format!("limit {}", tally.limits[limit]), f64::from(count));
        }
        let during = &site.seconds[tally.range(Phase::During)];
        for &layer in Layer::ALL {
            let count = during.iter().map(|second| f64::from(second.refused[layer as usize])).sum();
            match (layer, site.pool) {
                (Layer::Limit, _) => {}
                (Layer::Pool, Some(pool)) => add(format!("pool {}", tally.pools[pool]), count),
                (Layer::Pool, None) => {}
                (Layer::Breaker, _) => add("the breaker".to_owned(), count),
                (Layer::Keys, _) => add("the keys' quota".to_owned(), count),
                (Layer::Deadline, _) => add("the deadline".to_owned(), count),
            }
        }
    }
    found.into_iter().filter(|(_, count)| *count > 0.0).max_by(|a, b| a.1.total_cmp(&b.1))
}

fn sum(seconds: &[Second], of: fn(&Second) -> u32) -> f64 {
    seconds.iter().map(|second| f64::from(of(second))).sum()
}

/// Tries a limit, then a pool, of twice the endpoint's need in calm; the traffic stays the same.
fn advice(case: &SurgeCase<'_>, load: &SurgeLoad) -> Option<Advice> {
    [limited(case, load), pooled(case, load)].into_iter().find_map(|(change, policy)| {
        let tried = SurgeCase { policy: &policy, runs: 1, ..case.clone() };
        let others = others(&measure(&tried, load))?;
        others.are_protected().then_some(Advice { change, others })
    })
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "loads are positive and far below the type's end")]
fn limited(case: &SurgeCase<'_>, load: &SurgeLoad) -> (String, Config) {
    let twice = load.steady[load.surged] * 2.0;
    let rate = if twice >= 1.0 {
        Rate::per_second(twice.ceil() as u64)
    } else {
        Rate { count: (twice * 3600.0).ceil() as u64, per: Nanos::from_secs(3600) }
    };
    let limit = LimitPolicy {
        name: "surge".to_owned(),
        key: vec![LimitKey::Endpoint],
        rate,
        burst: rate.count,
        algorithm: Algorithm::TokenBucket,
        mode: Mode::Enforce,
        fail: Fail::Open,
        max_wait: Nanos::ZERO,
    };
    let change = format!("`limits = [ {{ name = \"surge\", key = \"endpoint\", rate = \"{rate}\" }} ]`");
    (change, changed(case, load.surged, |policy| policy.limits.push(limit.clone())))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "loads are positive and far below the type's end")]
fn pooled(case: &SurgeCase<'_>, load: &SurgeLoad) -> (String, Config) {
    let concurrent = (load.steady[load.surged] * 2.0 * SERVICE_MEAN_S).ceil() as u32;
    let pool = BulkheadPolicy {
        name: "surge".to_owned(),
        concurrent,
        queue: concurrent,
        queue_timeout: Nanos::from_millis(500),
        priority: 10,
        adaptive: false,
    };
    let mut policy = changed(case, load.surged, |policy| policy.pool = Some("surge".to_owned()));
    policy.pools.push(pool);
    (format!("a pool of its own with `concurrent = {concurrent}, queue = {concurrent}`"), policy)
}

/// The configuration with another policy for the surged endpoint.
fn changed(case: &SurgeCase<'_>, surged: usize, change: impl Fn(&mut EndpointPolicy)) -> Config {
    let mut config = case.policy.clone();
    let mut place = 0;
    for upstream in &mut config.upstreams {
        let count = upstream.endpoints.len();
        if (place..place + count).contains(&surged) {
            change(&mut Arc::make_mut(&mut Arc::make_mut(upstream).endpoints[surged - place]).policy);
        }
        place += count;
    }
    config
}

impl fmt::Display for SurgeVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let surged = &self.surged;
        let refusal = self.refused_by.as_ref().map(|(name, share)| format!("{name} refused {} of the surge on {surged}", percent(*share)));
        let Some(others) = &self.others else {
            let refusal = refusal.unwrap_or_else(|| format!("nothing refused the surge on {surged}"));
            return write!(f, "{refusal}; there is no other endpoint to protect");
        };
        let who = match others.endpoints {
            1 => "the other endpoint".to_owned(),
            count => format!("the other {count} endpoints"),
        };
        if !others.were_well() {
            let before = percent(others.success_before);
            let why = "their usual load is more than their limits, pools or upstreams take";
            return write!(f, "{who} had only {before} success before the surge on {surged} began, so nothing can be said: {why}");
        }
        if others.are_protected() {
            let refusal = refusal.unwrap_or_else(|| format!("nothing refused the surge on {surged}, and nothing had to"));
            return write!(f, "{refusal}; {who} {}", others.kept());
        }
        match refusal {
            Some(refusal) => write!(f, "{refusal}, which did not protect {who}: ")?,
            None => write!(f, "nothing protected {who} from the surge on {surged}: ")?,
        }
        write!(f, "success went from {} to {}", percent(others.success_before), percent(others.success_during))?;
        if others.endpoints > 1 {
            write!(f, " (worst {} with {})", others.worst.0, percent(others.worst.1))?;
        }
        write!(f, ", p99 from {} to {}", milliseconds(others.p99_ms_before), milliseconds(others.p99_ms_during))?;
        if let Some(name) = &others.lost_to {
            write!(f, ", lost to {name}")?;
        }
        match &self.advice {
            Some(advice) => write!(f, "; {} on {surged} would protect them: simulated, they {}", advice.change, advice.others.kept()),
            None => write!(f, "; neither a limit nor a pool of twice its usual load on {surged} would help: the others need limits too"),
        }
    }
}

impl Others {
    fn kept(&self) -> String {
        let slower = if self.p99_ms_before > 0.0 { self.p99_ms_during / self.p99_ms_before - 1.0 } else { 0.0 };
        let sign = if slower < 0.0 { '−' } else { '+' };
        format!("kept {} success, p99 {sign}{:.0} %", percent(self.success_during), slower.abs() * 100.0)
    }
}

/// Never rounds a loss away: 100 % is all of it.
fn percent(share: f64) -> String {
    let hundred = share * 100.0;
    if hundred > 99.0 && hundred < 100.0 { format!("{:.1} %", (hundred * 10.0).floor() / 10.0) } else { format!("{hundred:.0} %") }
}

fn milliseconds(ms: f64) -> String {
    if ms >= 1000.0 { format!("{:.1} s", ms / 1000.0) } else { format!("{ms:.0} ms") }
}
