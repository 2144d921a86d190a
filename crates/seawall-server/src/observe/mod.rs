//! Observability of a running gateway: recent calls, series, roll-ups, unnamed errors and events. The log writer's thread derives all of it
//! from the records that also become log lines, so requests pay nothing for it.

mod alarms;
mod audit;
mod calls;
mod events;
mod rollups;
mod series;
pub(crate) mod unnamed;

pub(crate) use alarms::{Alarms, BreakerChange, SPIKE};
pub(crate) use audit::audit;
pub(crate) use calls::{CallFilter, CallKind, CallTimeline, CallView, Calls};
pub(crate) use events::{Bus, Listener, OperatorEvent, Published, Severity, StandingEvent, StoredEvent};
pub(crate) use rollups::{RollupRequest, Rollups, ShownRollup};
pub(crate) use series::{CallRates, REFUSALS, SeriesPoint, ShownPoint, TimeSeries};
pub(crate) use unnamed::{UnnamedError, UnnamedErrors};

use super::ServerState;
use seawall_core::classify::{Rule, diagnostic, redacted};
use seawall_core::id::CallId;
use seawall_core::time::{Now, Wall};
use seawall_engine::record::{CallRecord, EndpointNames, ErrorSample, Record};
use seawall_engine::runtime::Live;
use serde::Serialize;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One hour in steps of a second for the whole process, and one hour in coarser steps per endpoint.
const HOUR: i64 = 3600;
const ENDPOINT_STEP: i64 = 10;

#[derive(Debug)]
pub(crate) struct Observer {
    /// Identifies this process as the writer of its roll-ups.
    pub writer: CallId,
    seen: Mutex<Observations>,
    pub bus: Bus,
    /// Rules that operators made from unnamed errors, with their upstreams.
    named: Mutex<Vec<(String, Rule)>>,
}

/// Maximum rules from operators; more belong in the configuration file.
const MAX_NAMED: usize = 1000;

#[derive(Debug)]
pub(crate) struct Observations {
    pub calls: Calls,
    pub all: TimeSeries,
    pub endpoints: HashMap<Arc<EndpointNames>, TimeSeries>,
    pub rollups: Rollups,
    pub errors: UnnamedErrors,
    pub alarms: Alarms,
    /// Refusals by bulkheads.
    pub overloaded: HashMap<Arc<EndpointNames>, u64>,
    pub rejected: u64,
    second: i64,
}

impl Default for Observations {
    fn default() -> Self {
        Self {
            calls: Calls::default(),
            all: TimeSeries::new(1, 3600),
            endpoints: HashMap::new(),
            rollups: Rollups::default(),
            errors: UnnamedErrors::default(),
            alarms: Alarms::default(),
            overloaded: HashMap::new(),
            rejected: 0,
            second: 0,
        }
    }
}

/// The counts of the last complete second.
#[derive(Debug, Serialize)]
struct SecondCounts {
    #[serde(flatten)]
    point: ShownPoint,
    in_flight: u32,
}

/// The category of a call's end in counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutcomeCategory {
    Success,
    /// Refused by Seawall before anything was sent.
    Rejected,
    Failed,
    /// The caller disconnected.
    Left,
    /// It became a job, whose own call is counted when it ends.
    Later,
}

fn ending(record: &CallRecord) -> OutcomeCategory {
    match (record.outcome, record.refused_by) {
        ("success", _) => OutcomeCategory::Success,
        ("cancelled", _) => OutcomeCategory::Left,
        ("enqueued", _) => OutcomeCategory::Later,
        (_, Some("admit" | "lease" | "guard")) => OutcomeCategory::Rejected,
        _ => OutcomeCategory::Failed,
    }
}

/// Returns time and endpoint of a counted record.
fn place(record: &Record) -> Option<(Wall, &Arc<EndpointNames>)> {
    match record {
        Record::Attempt(record) => Some((record.at, &record.names)),
        Record::Call(record) => Some((record.at, &record.names)),
        Record::Breaker(_) | Record::Token(_) | Record::Note(_) | Record::Idle(_) => None,
    }
}

fn is_alike(one: &Record, next: &Record) -> bool {
    match (place(one), place(next)) {
        (Some((at, names)), Some((then, others))) => Arc::ptr_eq(names, others) && at.0.div_euclid(1000) == then.0.div_euclid(1000),
        _ => false,
    }
}

/// Returns whether a roll-up counts the record.
fn is_counted(record: &Record) -> bool {
    !matches!(record, Record::Call(record) if ending(record) == OutcomeCategory::Later)
}

impl Observer {
    pub(crate) fn new(writer: CallId) -> Self {
        Self { writer, seen: Mutex::default(), bus: Bus::default(), named: Mutex::default() }
    }

    pub(crate) fn seen(&self) -> MutexGuard<'_, Observations> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Processes records. The log writer calls this many times per second.
    pub(crate) fn observe(&self, records: &[Record], shared: &ServerState) {
        let now = shared.clock.now();
        let second = now.wall.0.div_euclid(1000);
        let mut seen = self.seen();
        if records.is_empty() && second == seen.second {
            return;
        }
        let live = shared.live.load();
        // Records of one endpoint and second mostly follow each other, so their counters are looked up once.
        for run in records.chunk_by(is_alike) {
            seen.run(run);
        }
        for record in records {
            seen.alarms.record(record, &live, &self.bus);
        }
        if second != seen.second {
            seen.second = second;
            self.tick(&mut seen, &live, shared, now);
        }
    }

    /// Runs once per second: checks time-based conditions and publishes the counts of the last second.
    fn tick(&self, seen: &mut Observations, live: &Live, shared: &ServerState, now: Now) {
        let Observations { alarms, rollups, endpoints, all, .. } = seen;
        alarms.poll(live, rollups, &self.bus, now);
        alarms.depths(&shared.desk.counts, &self.bus, now.wall);
        if seen.second % ENDPOINT_STEP == 0 {
            alarms.retries(live, endpoints, &self.bus, now.wall);
            rollups.forget(now.wall);
            endpoints.retain(|_, series| !series.is_older_than(HOUR, now.wall));
        }
        self.bus.tick(&SecondCounts { point: all.second(seen.second - 1).shown(), in_flight: in_flight(live) });
    }

    /// Adds a rule. It applies once the caller of this function builds the next configuration.
    pub(crate) fn remember(&self, upstream: &str, rule: Rule) {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        named.retain(|(of, known)| of != upstream || known.name != rule.name);
        named.insert(0, (upstream.to_owned(), rule));
        named.truncate(MAX_NAMED);
    }

    /// Does the same for all rules in the store. Returns whether any is new.
    pub(crate) fn rename(&self, rules: Vec<(String, Rule)>) -> bool {
        let known = self.named.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let new: Vec<(String, Rule)> = rules.into_iter().filter(|rule| !known.contains(rule)).collect();
        let is_news = !new.is_empty();
        new.into_iter().for_each(|(upstream, rule)| self.remember(&upstream, rule));
        is_news
    }

    /// Adds the operators' rules in front of those in the file.
    pub(crate) fn add_named(&self, config: &mut seawall_core::config::Config) {
        let named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        for upstream in &mut config.upstreams {
            let own: Vec<&Rule> = named.iter().filter(|(of, _)| *of == upstream.name).map(|(_, rule)| rule).collect();
            if !own.is_empty() {
                Arc::make_mut(upstream).add_rules(&own);
            }
        }
    }
}

impl Observations {
    /// Adds consecutive records of one endpoint and second.
    fn run(&mut self, run: &[Record]) {
        let Some((at, names)) = run.first().and_then(place) else { return };
        let Self { calls, all, endpoints, rollups, errors, overloaded, rejected, .. } = self;
        let all = all.at(at);
        let own = endpoints.entry(Arc::clone(names)).or_insert_with(|| TimeSeries::new(ENDPOINT_STEP, 360)).at(at);
        let mut row = run.iter().any(is_counted).then(|| rollups.row(at, names));
        for record in run {
            match record {
                Record::Attempt(record) => {
                    calls.attempt(record);
                    all.attempt(record);
                    own.attempt(record);
                    row.iter_mut().for_each(|row| row.attempt(&record.attempt));
                    if let Some(sample) = record.sample.as_ref().filter(|_| !record.attempt.named) {
                        errors.attempt(record, sample);
                    }
                }
                Record::Call(record) => {
                    let ending = ending(record);
                    calls.call(record);
                    all.call(record.elapsed, ending);
                    own.call(record.elapsed, ending);
                    row.iter_mut().for_each(|row| rollups::call(row, ending));
                    if ending == OutcomeCategory::Rejected {
                        *rejected += 1;
                        own.refused(record.outcome);
                    }
                    if record.outcome == "overloaded" {
                        *overloaded.entry(Arc::clone(&record.names)).or_default() += 1;
                    }
                }
                Record::Breaker(_) | Record::Token(_) | Record::Note(_) | Record::Idle(_) => {}
            }
        }
    }

    /// Returns the last minute of one endpoint.
    pub(crate) fn minute(&self, names: &Arc<EndpointNames>, now: Wall) -> SeriesPoint {
        self.endpoints.get(names).map(|series| series.last(60, now)).unwrap_or_default()
    }
}

/// Returns the message of an upstream's response in one line, with likely secrets redacted. Known secrets were masked when the sample was
/// taken.
fn excerpt(sample: &ErrorSample) -> String {
    redacted(&diagnostic(&sample.body, &sample.content_type))
}

pub(crate) fn in_flight(live: &Live) -> u32 {
    live.upstreams.iter().map(|upstream| upstream.in_flight.load(Ordering::Relaxed)).sum()
}

/// Appends an item and drops the oldest beyond `most`.
fn bounded<T>(ring: &mut VecDeque<T>, most: usize, item: T) {
    if ring.len() >= most {
        ring.pop_front();
    }
    ring.push_back(item);
}

#[expect(clippy::cast_precision_loss, reason = "numbers for people")]
pub(crate) const fn as_f64(count: u64) -> f64 {
    count as f64
}
