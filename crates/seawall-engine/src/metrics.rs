//! Counters and histograms, updated by the record writer so that requests pay nothing, and rendered as Prometheus text. Label sets are
//! bounded: names come from the configuration, all other values from closed sets.

use crate::locked_cell::Locked;
use crate::record::{AttemptRecord, BreakerRecord, CallRecord, EndpointNames, Record};
use seawall_core::record::{AttemptStatus, Class, Code, Timeout};
use seawall_core::time::Nanos;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Upper bounds of the latency histograms, in milliseconds.
const BOUNDS_MS: [u32; 16] = [5, 10, 25, 50, 75, 100, 250, 500, 750, 1_000, 2_500, 5_000, 7_500, 10_000, 30_000, 60_000];

#[derive(Clone, Debug, Default)]
struct SharedHistogram {
    buckets: [u64; BOUNDS_MS.len()],
    count: u64,
    sum: f64,
}

impl SharedHistogram {
    fn observe(&mut self, length: Nanos) {
        if let Some(bucket) = self.buckets.get_mut(place(length)) {
            *bucket += 1;
        }
        self.count += 1;
        self.sum += length.as_secs_f64();
    }

    fn add(&mut self, other: &Self) {
        for (bucket, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *bucket += more;
        }
        self.count += other.count;
        self.sum += other.sum;
    }

    fn render(&self, out: &mut String, name: &str, labels: &str) {
        let mut below = 0;
        for (bound_ms, count) in BOUNDS_MS.iter().zip(&self.buckets) {
            below += count;
            let bound = f64::from(*bound_ms) / 1e3;
            put(out, format_args!("{name}_bucket{{{labels},le=\"{bound}\"}} {below}\n"));
        }
        put(
            out,
            format_args!(
                "{name}_bucket{{{labels},le=\"+Inf\"}} {}\n{name}_sum{{{labels}}} {}\n{name}_count{{{labels}}} {}\n",
                self.count, self.sum, self.count
            ),
        );
    }
}

/// Counts calls that succeeded at once, without records: metrics need nothing else from them.
#[derive(Debug, Default)]
pub(crate) struct SuccessTally(HistogramBuckets);

/// A histogram shared by threads. The last bucket is for values above every bound.
#[derive(Debug, Default)]
struct HistogramBuckets {
    buckets: [AtomicU64; BOUNDS_MS.len() + 1],
    sum_ns: AtomicU64,
}

impl SuccessTally {
    /// Counts one attempt and its call, which took equally long.
    #[inline]
    pub(crate) fn succeeded(&self, latency: Nanos) {
        self.0.mark(latency);
    }
}

impl HistogramBuckets {
    #[inline]
    fn mark(&self, length: Nanos) {
        self.buckets[place(length)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(length.0, Ordering::Relaxed);
    }

    fn drain(&self) -> SharedHistogram {
        let mut histogram =
            SharedHistogram { sum: Nanos(self.sum_ns.swap(0, Ordering::Relaxed)).as_secs_f64(), ..SharedHistogram::default() };
        for (i, bucket) in self.buckets.iter().enumerate() {
            let marked = bucket.swap(0, Ordering::Relaxed);
            histogram.count += marked;
            if let Some(bucket) = histogram.buckets.get_mut(i) {
                *bucket = marked;
            }
        }
        histogram
    }
}

/// Returns the bucket of a length; the number of bounds if it exceeds all.
#[inline]
fn place(length: Nanos) -> usize {
    BOUNDS_MS.iter().position(|bound_ms| length <= Nanos::from_millis(u64::from(*bound_ms))).unwrap_or(BOUNDS_MS.len())
}

#[derive(Debug, Default)]
struct EndpointCounts {
    attempts: BTreeMap<(AttemptStatus, &'static str), u64>,
    calls: BTreeMap<(Arc<str>, &'static str), u64>,
    retries: BTreeMap<(Arc<str>, &'static str), u64>,
    rejections: BTreeMap<(&'static str, &'static str), u64>,
    timeouts: BTreeMap<Timeout, u64>,
    /// Sends that replaced a connection which had died while it was idle.
    resends: u64,
    transitions: BTreeMap<(&'static str, &'static str), u64>,
    attempt_seconds: SharedHistogram,
    call_seconds: SharedHistogram,
}

/// Counts of an endpoint's outcomes in one scrape, for the demo and for tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointTotals {
    pub calls: u64,
    pub successes: u64,
    pub attempts: u64,
    /// Sends that replaced a dead connection; attempts do not count them.
    pub resends: u64,
    pub retries: u64,
}

#[derive(Debug)]
pub struct Metrics(Locked<HashMap<Arc<EndpointNames>, EndpointCounts>>);

impl Default for Metrics {
    fn default() -> Self {
        Self(Locked::new(HashMap::new()))
    }
}

impl Metrics {
    pub(crate) fn count(&self, records: &[Record]) {
        let mut all = self.0.lock();
        // Records of one call follow each other, so most lookups are skipped.
        let mut last: Option<(&Arc<EndpointNames>, &mut EndpointCounts)> = None;
        for record in records {
            // The reporter of a note counts it.
            let Some(names) = record.names() else { continue };
            let counts = match last {
                Some((same, counts)) if Arc::ptr_eq(same, names) => counts,
                _ => all.entry(Arc::clone(names)).or_default(),
            };
            match record {
                Record::Attempt(record) => counts.attempt(record),
                Record::Call(record) => counts.call(record),
                Record::Idle(_) => *counts.timeouts.entry(Timeout::Idle).or_default() += 1,
                // The call's own record has its outcome.
                Record::Token(_) | Record::Note(_) => {}
                Record::Breaker(BreakerRecord { change, .. }) => {
                    *counts.transitions.entry((change.from.as_str(), change.to.as_str())).or_default() += 1;
                }
            }
            last = Some((names, counts));
        }
    }

    /// Adds calls that were counted without records.
    pub(crate) fn absorb(&self, names: &Arc<EndpointNames>, caller: &Arc<str>, tally: &SuccessTally) {
        let mut all = self.0.lock();
        let counts = all.entry(Arc::clone(names)).or_default();
        let marked = tally.0.drain();
        counts.attempt_seconds.add(&marked);
        counts.call_seconds.add(&marked);
        if marked.count > 0 {
            let success = Class::Success.as_str();
            *counts.attempts.entry((AttemptStatus::Http(200), success)).or_default() += marked.count;
            *counts.calls.entry((Arc::clone(caller), success)).or_default() += marked.count;
        }
    }

    #[must_use]
    pub fn totals(&self) -> EndpointTotals {
        let mut totals = EndpointTotals::default();
        for counts in self.0.lock().values() {
            totals.calls += counts.calls.values().sum::<u64>();
            totals.successes += counts.calls.iter().filter(|((_, outcome), _)| *outcome == "success").map(|(_, n)| n).sum::<u64>();
            totals.attempts +=
                counts.attempts.iter().filter(|((status, _), _)| *status != AttemptStatus::CircuitOpen).map(|(_, n)| n).sum::<u64>();
            totals.resends += counts.resends;
            totals.retries += counts.retries.values().sum::<u64>();
        }
        totals
    }

    /// Renders the counters and histograms as Prometheus text.
    pub fn render(&self, out: &mut String) {
        let counts = self.0.lock();
        let mut sorted: Vec<(&Arc<EndpointNames>, &EndpointCounts)> = counts.iter().collect();
        sorted.sort_by_key(|(names, _)| *names);
        family(out, "seawall_calls_total", "counter", "Calls by how they ended");
        for (names, counts) in &sorted {
            for ((caller, outcome), n) in &counts.calls {
                put(
                    out,
                    format_args!("seawall_calls_total{{{},caller=\"{}\",outcome=\"{outcome}\"}} {n}\n", labels(names), escape(caller)),
                );
            }
        }
        family(out, "seawall_attempts_total", "counter", "Sends to the upstream by status and class");
        for (names, counts) in &sorted {
            for ((status, outcome), n) in &counts.attempts {
                put(out, format_args!("seawall_attempts_total{{{},status=\"{status}\",outcome=\"{outcome}\"}} {n}\n", labels(names)));
            }
        }
        family(out, "seawall_retries_total", "counter", "Decisions to send again");
        for (names, counts) in &sorted {
            for ((caller, reason), n) in &counts.retries {
                put(
                    out,
                    format_args!("seawall_retries_total{{{},caller=\"{}\",reason=\"{reason}\"}} {n}\n", labels(names), escape(caller)),
                );
            }
        }
        family(out, "seawall_breaker_transitions_total", "counter", "Changes of a breaker's state");
        for (names, counts) in &sorted {
            for ((from, to), n) in &counts.transitions {
                put(out, format_args!("seawall_breaker_transitions_total{{{},from=\"{from}\",to=\"{to}\"}} {n}\n", labels(names)));
            }
        }
        family(
            out,
            "seawall_resends_total",
            "counter",
            "Sends that replaced a connection which had died while it was idle; no attempt counts them",
        );
        for (names, counts) in sorted.iter().filter(|(_, counts)| counts.resends > 0) {
            put(out, format_args!("seawall_resends_total{{{}}} {}\n", labels(names), counts.resends));
        }
        per_upstream(out, &sorted);
        family(out, "seawall_attempt_seconds", "histogram", "Time of one send");
        sorted.iter().for_each(|(names, counts)| counts.attempt_seconds.render(out, "seawall_attempt_seconds", &labels(names)));
        family(out, "seawall_call_seconds", "histogram", "Time of a call, waits included");
        sorted.iter().for_each(|(names, counts)| counts.call_seconds.render(out, "seawall_call_seconds", &labels(names)));
    }
}

/// Renders families without endpoint labels.
fn per_upstream(out: &mut String, sorted: &[(&Arc<EndpointNames>, &EndpointCounts)]) {
    let mut rejections: BTreeMap<(&'static str, &'static str, &str), u64> = BTreeMap::new();
    let mut timeouts: BTreeMap<(&str, Timeout), u64> = BTreeMap::new();
    for (names, counts) in sorted {
        for kind in Timeout::ALL {
            *timeouts.entry((&names.upstream, *kind)).or_default() += counts.timeouts.get(kind).copied().unwrap_or(0);
        }
        for ((stage, code), n) in &counts.rejections {
            *rejections.entry((stage, code, &names.upstream)).or_default() += n;
        }
    }
    family(out, "seawall_rejections_total", "counter", "Calls that we refused, by stage and code");
    for ((stage, code, upstream), n) in rejections {
        put(out, format_args!("seawall_rejections_total{{stage=\"{stage}\",code=\"{code}\",upstream=\"{}\"}} {n}\n", escape(upstream)));
    }
    family(out, "seawall_timeouts_total", "counter", "What went over a bound, by bound");
    for ((upstream, kind), n) in timeouts {
        put(out, format_args!("seawall_timeouts_total{{upstream=\"{}\",kind=\"{kind}\"}} {n}\n", escape(upstream)));
    }
}

impl EndpointCounts {
    fn attempt(&mut self, record: &AttemptRecord) {
        let attempt = &record.attempt;
        *self.attempts.entry((attempt.status, attempt.outcome())).or_default() += 1;
        self.resends += u64::from(record.resends);
        if attempt.is_repeated() {
            *self.retries.entry((Arc::clone(&record.caller), attempt.reason.as_str())).or_default() += 1;
        }
        // The latency of an attempt that its caller abandoned is unknown.
        if attempt.status != AttemptStatus::CircuitOpen && attempt.outcome() != Code::Cancelled.as_str() {
            self.attempt_seconds.observe(attempt.latency);
        }
        if let Some(timeout) = record.timeout {
            *self.timeouts.entry(timeout).or_default() += 1;
        }
    }

    fn call(&mut self, record: &CallRecord) {
        *self.calls.entry((Arc::clone(&record.caller), record.outcome)).or_default() += 1;
        self.call_seconds.observe(record.elapsed);
        if let Some(stage) = record.refused_by {
            *self.rejections.entry((stage, record.outcome)).or_default() += 1;
        }
    }
}

/// Writes the two lines that open a family.
pub fn family(out: &mut String, name: &str, kind: &str, help: &str) {
    put(out, format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
}

/// Returns `upstream="…",endpoint="…"`.
#[must_use]
pub fn labels(names: &EndpointNames) -> String {
    format!("upstream=\"{}\",endpoint=\"{}\"", escape(&names.upstream), escape(&names.endpoint))
}

/// Escapes a label's value for the text format.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

pub(crate) fn as_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _: Result<(), std::fmt::Error> = out.write_fmt(text);
}
