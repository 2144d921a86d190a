//! An endpoint's checklist and figures as JSON, and a file's problems: what `check --json` prints and the admin API shows.

use crate::shape::Members;
use seawall_core::calc;
use seawall_core::config::checklist::checklist;
use seawall_core::config::{Config, Endpoint, Invalid, Upstream};
use seawall_core::time::Nanos;
use serde::Serialize;
use utoipa::ToSchema;

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

/// What an endpoint's policy comes to.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Policy {
    upstream: String,
    endpoint: String,
    r#match: String,
    profile: String,
    preset: Option<String>,
    /// By question.
    #[schema(value_type = std::collections::BTreeMap<String, Answer>)]
    checklist: Members<Answer>,
    worst_case: WorstCase,
    amplification: Amplification,
    /// The share of calls that fail, by the length of an outage.
    #[schema(value_type = std::collections::BTreeMap<String, f64>)]
    gives_up: Members<f64>,
    breaker_trips: Trips,
}

/// What the policy says to one question of the checklist.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChecklistAnswer)]
struct Answer {
    answer: String,
    /// The policy says nothing.
    gap: bool,
}

#[derive(Debug, Serialize, ToSchema)]
struct WorstCase {
    /// What a caller waits at most.
    elapsed_ms: u64,
    /// The same without the deadline.
    unbounded_ms: u64,
    attempts: u32,
    attempts_that_fit: u32,
}

#[derive(Debug, Serialize, ToSchema)]
struct Amplification {
    layers: u32,
    calls_per_second: f64,
    /// By attempts alone.
    attempts: f64,
    /// With the retry budget.
    budgeted: f64,
}

/// What can open the breaker at all.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = BreakerTrips)]
struct Trips {
    consecutive: bool,
    failure_rate: bool,
    slow_rate: bool,
}

pub(crate) fn endpoint(config: &Config, upstream: &Upstream, endpoint: &Endpoint, load: Load) -> Policy {
    let Figures { worst, amplification, gives_up, trips } = figures(config, endpoint, load);
    let checklist = checklist(config, upstream, endpoint).into_iter();
    let Load { layers, calls_per_second } = load;
    Policy {
        upstream: upstream.name.clone(),
        endpoint: endpoint.name.clone(),
        r#match: endpoint.matches.to_string(),
        profile: endpoint.policy.profile.clone(),
        preset: upstream.preset.clone(),
        checklist: checklist.map(|item| (item.question.replace(' ', "_"), Answer { answer: item.answer, gap: item.gap })).collect(),
        worst_case: WorstCase {
            elapsed_ms: worst.elapsed.as_millis(),
            unbounded_ms: worst.unbounded.as_millis(),
            attempts: endpoint.policy.retry.attempts,
            attempts_that_fit: worst.attempts_that_fit,
        },
        amplification: Amplification { layers, calls_per_second, attempts: amplification.attempts, budgeted: amplification.budgeted },
        gives_up: gives_up.into_iter().map(|(name, chance)| (name.to_owned(), chance)).collect(),
        breaker_trips: Trips { consecutive: trips.consecutive, failure_rate: trips.failure_rate, slow_rate: trips.slow_rate },
    }
}

/// Something that is wrong with a file.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub(crate) struct ConfigProblem {
    /// The key, dotted.
    pub path: Option<String>,
    pub line: Option<usize>,
    pub column: Option<usize>,
    pub message: String,
    pub help: Option<String>,
}

/// Everything that is wrong with a file.
pub(crate) fn problems(invalid: &Invalid) -> Vec<ConfigProblem> {
    let shown = invalid.problems().iter().map(|problem| {
        let (line, column) = invalid.position(problem);
        ConfigProblem {
            path: Some(problem.path.clone()),
            line: Some(line),
            column: Some(column),
            message: problem.message.clone(),
            help: problem.help.clone(),
        }
    });
    shown.collect()
}

/// A reference that cannot be used, as `` `PATH`: MESSAGE ``: the file itself is valid, so no line of it is to blame.
pub(crate) fn unfit(text: &str) -> ConfigProblem {
    let parts = text.strip_prefix('`').and_then(|rest| rest.split_once("`: "));
    let (path, message) = parts.map_or((None, text), |(path, message)| (Some(path.to_owned()), message));
    ConfigProblem { path, line: None, column: None, message: message.to_owned(), help: None }
}
