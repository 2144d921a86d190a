//! An endpoint's checklist and figures as JSON, and a file's problems: what `check --json` prints and the admin API shows.

use seawall_core::calc;
use seawall_core::config::checklist::checklist;
use seawall_core::config::{Config, Endpoint, Invalid, Upstream};
use seawall_core::time::Nanos;
use serde_json::{Value, json};

/// The outages whose survival is worth knowing.
const OUTAGES: [(&str, Nanos); 3] = [("10s", Nanos::from_secs(10)), ("60s", Nanos::from_secs(60)), ("10m", Nanos::from_secs(600))];

/// What the amplification is computed for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub layers: u32,
    pub calls_per_second: f64,
}

impl Default for Load {
    fn default() -> Self {
        Self { layers: 1, calls_per_second: 100.0 }
    }
}

/// What the calculators say about one endpoint.
#[derive(Debug)]
pub(crate) struct Figures {
    pub worst: calc::WorstCase,
    pub amplification: calc::Amplification,
    pub gives_up: [(&'static str, f64); 3],
    pub trips: calc::Trips,
}

pub(crate) fn figures(config: &Config, endpoint: &Endpoint, load: Load) -> Figures {
    let policy = &endpoint.policy;
    let limits: Vec<_> = config.limits_of(policy).cloned().collect();
    Figures {
        worst: calc::worst_case(policy),
        amplification: calc::amplification(&policy.retry, load.layers, load.calls_per_second),
        gives_up: OUTAGES.map(|(name, length)| (name, calc::gives_up(policy, length))),
        trips: calc::trips(&policy.breaker, &limits, policy.timeout.attempt),
    }
}

pub(crate) fn endpoint(config: &Config, upstream: &Upstream, endpoint: &Endpoint, load: Load) -> Value {
    let figures = figures(config, endpoint, load);
    let checklist: serde_json::Map<String, Value> = checklist(config, upstream, endpoint)
        .into_iter()
        .map(|item| (item.question.replace(' ', "_"), json!({ "answer": item.answer, "gap": item.gap })))
        .collect();
    let gives_up: serde_json::Map<String, Value> =
        figures.gives_up.iter().map(|(name, chance)| ((*name).to_owned(), json!(chance))).collect();
    json!({
        "upstream": upstream.name,
        "endpoint": endpoint.name,
        "match": endpoint.matches.to_string(),
        "profile": endpoint.policy.profile,
        "preset": upstream.preset,
        "checklist": checklist,
        "worst_case": {
            "elapsed_ms": figures.worst.elapsed.as_millis(),
            "unbounded_ms": figures.worst.unbounded.as_millis(),
            "attempts": endpoint.policy.retry.attempts,
            "attempts_that_fit": figures.worst.attempts_that_fit,
        },
        "amplification": { "layers": load.layers, "calls_per_second": load.calls_per_second, "attempts": figures.amplification.attempts, "budgeted": figures.amplification.budgeted },
        "gives_up": gives_up,
        "breaker_trips": { "consecutive": figures.trips.consecutive, "failure_rate": figures.trips.failure_rate, "slow_rate": figures.trips.slow_rate },
    })
}

/// Everything that is wrong with a file.
pub(crate) fn problems(invalid: &Invalid) -> Vec<Value> {
    let shown = invalid.problems().iter().map(|problem| {
        let (line, column) = invalid.position(problem);
        json!({ "path": problem.path, "line": line, "column": column, "message": problem.message, "help": problem.help })
    });
    shown.collect()
}
