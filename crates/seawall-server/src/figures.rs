//! Figures of endpoints and problems of files as JSON: the output of `check --json` and of the admin API.

use crate::json_shapes::Members;
use seawall_core::calc;
use seawall_core::config::checklist::checklist;
use seawall_core::config::{Config, EndpointConfig, Invalid, UpstreamConfig};
use seawall_core::sim::downtime;
use seawall_core::time::Nanos;
use seawall_core::units;
use serde::Serialize;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use utoipa::ToSchema;

/// An outage to simulate, with its length as written.
#[derive(Clone, Debug)]
pub struct Outage {
    name: String,
    length: Nanos,
}

impl Outage {
    pub fn parse(text: &str) -> Result<Self, String> {
        let length = units::duration(text)?;
        if length == Nanos::ZERO {
            return Err("an outage takes some time".to_owned());
        }
        Ok(Self { name: text.to_owned(), length })
    }
}

/// The load for which amplification and probabilities are computed.
#[derive(Clone, Debug)]
pub struct FigureLoad {
    pub layers: u32,
    pub calls_per_second: f64,
    pub outages: Vec<Outage>,
}

impl Default for FigureLoad {
    fn default() -> Self {
        let usual = [("10s", Nanos::from_secs(10)), ("60s", Nanos::from_secs(60)), ("10m", Nanos::from_secs(600))];
        let outages = usual.map(|(name, length)| Outage { name: name.to_owned(), length }).into();
        Self { layers: 1, calls_per_second: 100.0, outages }
    }
}

/// Calculators for one load. Probabilities are simulated once for all endpoints with equal policies.
#[derive(Debug, Default)]
pub struct Calculator {
    pub load: FigureLoad,
    chances: Mutex<HashMap<String, Arc<OnceLock<Vec<f64>>>>>,
}

/// Maximum policies with stored probabilities; beyond that the map is cleared.
const MAX_REMEMBERED: usize = 10_000;

/// The figures of one endpoint.
#[derive(Debug)]
pub struct Figures {
    pub worst: calc::LongestCall,
    pub amplification: calc::SendsPerCall,
    /// The share of calls that fail, by length of the outage.
    pub gives_up: Vec<(String, f64)>,
    pub trips: calc::TripCondition,
}

impl Calculator {
    pub fn new(load: FigureLoad) -> Self {
        Self { load, chances: Mutex::default() }
    }

    pub fn figures(&self, config: &Config, upstream: &UpstreamConfig, endpoint: &EndpointConfig) -> Figures {
        let policy = &endpoint.policy;
        let limits: Vec<_> = config.limits_of(policy).cloned().collect();
        let names = self.load.outages.iter().map(|outage| outage.name.clone());
        Figures {
            worst: calc::worst_case(policy),
            amplification: calc::amplification(&policy.retry, self.load.layers, self.load.calls_per_second),
            gives_up: names.zip(self.chances(config, upstream, endpoint)).collect(),
            trips: calc::trips(&policy.breaker, &limits, policy.timeout.attempt),
        }
    }

    /// Returns whether the probabilities of an endpoint are known without a simulation.
    pub fn knows(&self, config: &Config, upstream: &UpstreamConfig, endpoint: &EndpointConfig) -> bool {
        let known = self.chances.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&downtime::fingerprint(config, (upstream, endpoint))).is_some_and(|chances| chances.get().is_some())
    }

    /// Returns the probabilities; simulates them if unknown, which takes some milliseconds per policy.
    pub fn chances(&self, config: &Config, upstream: &UpstreamConfig, endpoint: &EndpointConfig) -> Vec<f64> {
        let place = (upstream, endpoint);
        let chances = {
            let mut known = self.chances.lock().unwrap_or_else(PoisonError::into_inner);
            if known.len() >= MAX_REMEMBERED {
                known.clear();
            }
            Arc::clone(known.entry(downtime::fingerprint(config, place)).or_default())
        };
        let outages: Vec<Nanos> = self.load.outages.iter().map(|outage| outage.length).collect();
        let simulate = || downtime::gives_up(config, place, self.load.calls_per_second, &outages);
        chances.get_or_init(simulate).clone()
    }

    /// Returns the figures of an endpoint's policy.
    pub fn policy(&self, config: &Config, upstream: &UpstreamConfig, endpoint: &EndpointConfig) -> PolicyFigures {
        let Figures { worst, amplification, gives_up, trips } = self.figures(config, upstream, endpoint);
        let checklist = checklist(config, upstream, endpoint).into_iter();
        let FigureLoad { layers, calls_per_second, .. } = self.load;
        PolicyFigures {
            upstream: upstream.name.clone(),
            endpoint: endpoint.name.clone(),
            r#match: endpoint.matches.to_string(),
            profile: endpoint.policy.profile.clone(),
            preset: upstream.preset.clone(),
            checklist: checklist
                .map(|item| (item.question.replace(' ', "_"), ChecklistAnswer { answer: item.answer, gap: item.gap }))
                .collect(),
            worst_case: WorstCaseFigure {
                elapsed_ms: worst.elapsed.as_millis(),
                unbounded_ms: worst.unbounded.as_millis(),
                attempts: endpoint.policy.retry.attempts,
                attempts_that_fit: worst.attempts_that_fit,
            },
            amplification: AmplificationFigure {
                layers,
                calls_per_second,
                attempts: amplification.attempts,
                budgeted: amplification.budgeted,
            },
            gives_up: gives_up.into_iter().collect(),
            breaker_trips: TripsFigure { consecutive: trips.consecutive, failure_rate: trips.failure_rate, slow_rate: trips.slow_rate },
        }
    }
}

/// An endpoint's checklist and figures.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Policy)]
pub struct PolicyFigures {
    upstream: String,
    endpoint: String,
    r#match: String,
    profile: String,
    preset: Option<String>,
    /// By question.
    #[schema(value_type = std::collections::BTreeMap<String, ChecklistAnswer>)]
    checklist: Members<ChecklistAnswer>,
    worst_case: WorstCaseFigure,
    amplification: AmplificationFigure,
    /// The share of the calls in an outage that fail, by the outage's length.
    #[schema(value_type = std::collections::BTreeMap<String, f64>)]
    gives_up: Members<f64>,
    breaker_trips: TripsFigure,
}

/// What the policy says to one question of the checklist.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChecklistAnswer)]
struct ChecklistAnswer {
    answer: String,
    /// The policy says nothing.
    gap: bool,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = WorstCase)]
struct WorstCaseFigure {
    /// What a caller waits at most.
    elapsed_ms: u64,
    /// The same without the deadline.
    unbounded_ms: u64,
    attempts: u32,
    attempts_that_fit: u32,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Amplification)]
struct AmplificationFigure {
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
struct TripsFigure {
    consecutive: bool,
    failure_rate: bool,
    slow_rate: bool,
}

/// Something that is wrong with a file.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct ConfigProblem {
    /// The key, dotted.
    pub path: Option<String>,
    pub line: Option<usize>,
    pub column: Option<usize>,
    pub message: String,
    pub help: Option<String>,
}

/// Lists all problems of a file.
pub fn problems(invalid: &Invalid) -> Vec<ConfigProblem> {
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

/// Describes an unusable reference, given as `` `PATH`: MESSAGE ``. The file itself is valid, so no line is named.
pub fn unfit(text: &str) -> ConfigProblem {
    let parts = text.strip_prefix('`').and_then(|rest| rest.split_once("`: "));
    let (path, message) = parts.map_or((None, text), |(path, message)| (Some(path.to_owned()), message));
    ConfigProblem { path, line: None, column: None, message: message.to_owned(), help: None }
}
