//! Quarters of an hour of each endpoint: attempts by outcome, retries, refusals, open time and latencies. Rows live here
//! until they are a day old.

use super::{as_f64, ms, when};
use seawall_core::record::Status;
use seawall_core::record::histogram::Histogram;
use seawall_core::time::{Nanos, Wall};
use seawall_engine::live::Names;
use seawall_engine::recorder::{AttemptRecord, CallRecord};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

const QUARTER_MS: i64 = 15 * 60 * 1000;
/// Rows that are remembered, whatever their age.
const MOST: usize = 20_000;
const OLDEST_MS: i64 = 24 * 60 * 60 * 1000;

#[derive(Debug, Default)]
struct Row {
    attempts: BTreeMap<&'static str, u64>,
    calls: u64,
    success: u64,
    retries: u64,
    rejects: u64,
    open: Nanos,
    latency: Histogram,
}

#[derive(Debug, Default)]
pub(crate) struct Rollups(BTreeMap<(i64, Arc<Names>), Row>);

impl Rollups {
    fn row(&mut self, at: Wall, names: &Arc<Names>) -> &mut Row {
        let start = at.0.div_euclid(QUARTER_MS) * QUARTER_MS;
        self.0.entry((start, Arc::clone(names))).or_default()
    }

    pub(super) fn attempt(&mut self, record: &AttemptRecord) {
        let (attempt, row) = (&record.attempt, self.row(record.at, &record.names));
        *row.attempts.entry(attempt.outcome()).or_default() += 1;
        row.retries += u64::from(attempt.is_repeated());
        if attempt.status != Status::CircuitOpen {
            row.latency.add(attempt.latency);
        }
    }

    pub(super) fn call(&mut self, record: &CallRecord) {
        let ending = super::ending(record);
        if ending == super::Ending::Later {
            return;
        }
        let row = self.row(record.at, &record.names);
        row.calls += 1;
        row.success += u64::from(ending == super::Ending::Success);
        row.rejects += u64::from(ending == super::Ending::Rejected);
    }

    pub(super) fn open(&mut self, at: Wall, names: &Arc<Names>, length: Nanos) {
        let row = self.row(at, names);
        row.open = row.open + length;
    }

    pub(super) fn forget(&mut self, now: Wall) {
        let oldest = now.0.saturating_sub(OLDEST_MS);
        while self.0.first_key_value().is_some_and(|((start, _), _)| *start < oldest || self.0.len() > MOST) {
            self.0.pop_first();
        }
    }

    /// Rows that begin in `from..to`, oldest first.
    pub(crate) fn rows(&self, from: Option<Wall>, to: Option<Wall>, upstream: Option<&str>) -> Vec<Value> {
        let wanted = self.0.iter().filter(|((start, names), _)| {
            from.is_none_or(|from| *start >= from.0)
                && to.is_none_or(|to| *start < to.0)
                && upstream.is_none_or(|name| names.upstream == name)
        });
        wanted.map(|((start, names), row)| row.json(*start, names)).collect()
    }
}

impl Row {
    fn json(&self, start: i64, names: &Names) -> Value {
        let sends: u64 = self.attempts.iter().filter(|(outcome, _)| **outcome != "circuit_open").map(|(_, count)| count).sum();
        let transient = self.attempts.get("transient").copied().unwrap_or(0);
        let quantile = |per_mille| self.latency.quantile(per_mille).map_or(Value::Null, ms);
        json!({
            "at": when(Wall(start)),
            "upstream": names.upstream,
            "endpoint": names.endpoint,
            "attempts": self.attempts,
            "calls": self.calls,
            "success": self.success,
            "transient_rate": as_f64(transient) / as_f64(sends.max(1)),
            "retries_per_success": as_f64(self.retries) / as_f64(self.success.max(1)),
            "circuit_open_minutes": self.open.as_secs_f64() / 60.0,
            "p50_ms": quantile(500),
            "p95_ms": quantile(950),
            "p99_ms": quantile(990),
            "rejects": self.rejects,
        })
    }
}
