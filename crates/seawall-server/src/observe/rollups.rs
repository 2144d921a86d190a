//! Roll-ups of 15 minutes per endpoint, as counted by this process. They stay in memory until the store has them, and a little longer.
//! Earlier rows and rows of other processes are in the store.

use super::{OutcomeCategory, as_f64};
use crate::json_shapes::{Time, ms};
use seawall_core::id::CallId;
use seawall_core::record::rollup::Rollup;
use seawall_core::time::{Nanos, Wall};
use seawall_engine::record::EndpointNames;
use seawall_store::rollup::RollupRow;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use utoipa::ToSchema;

const QUARTER_MS: i64 = 15 * 60 * 1000;
/// Maximum rows in memory while the store is unavailable.
const MAX_ROWS: usize = 20_000;
/// Time for which stored rows stay in memory, for late records.
const OLDEST_MS: i64 = 60 * 60 * 1000;

/// Start of the interval, and endpoint.
type RollupKey = (i64, Arc<EndpointNames>);

#[derive(Debug, Default)]
struct RollupCount {
    rollup: Rollup,
    /// Changed since the last write to the store.
    changed: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Rollups(BTreeMap<RollupKey, RollupCount>);

/// A request for the rows that begin in `from..to`.
#[derive(Debug)]
pub(crate) struct RollupRequest {
    pub from: Wall,
    pub to: Wall,
    pub upstream: Option<String>,
}

impl Rollups {
    pub(crate) fn row(&mut self, at: Wall, names: &Arc<EndpointNames>) -> &mut Rollup {
        let start = at.0.div_euclid(QUARTER_MS) * QUARTER_MS;
        let counted = self.0.entry((start, Arc::clone(names))).or_default();
        counted.changed = true;
        &mut counted.rollup
    }

    pub(crate) fn open(&mut self, at: Wall, names: &Arc<EndpointNames>, length: Nanos) {
        self.row(at, names).open(length);
    }

    pub(crate) fn forget(&mut self, now: Wall) {
        let oldest = now.0.saturating_sub(OLDEST_MS);
        self.0.retain(|(start, _), counted| counted.changed || *start >= oldest);
        while self.0.len() > MAX_ROWS {
            self.0.pop_first();
        }
    }

    /// Takes the changed rows. They count as stored unless `give_back` follows.
    pub(crate) fn take_changed(&mut self, writer: CallId) -> Vec<RollupRow> {
        let row = |((start, names), counted): (&RollupKey, &mut RollupCount)| {
            std::mem::take(&mut counted.changed).then(|| RollupRow {
                start_at: Wall(*start),
                upstream: names.upstream.clone(),
                endpoint: names.endpoint.clone(),
                writer,
                rollup: counted.rollup.clone(),
            })
        };
        self.0.iter_mut().filter_map(row).collect()
    }

    /// Marks rows that the store did not accept as changed.
    pub(crate) fn give_back(&mut self, rows: &[RollupRow]) {
        let refused: HashSet<(i64, &str, &str)> = rows.iter().map(|row| (row.start_at.0, &*row.upstream, &*row.endpoint)).collect();
        for ((start, names), counted) in &mut self.0 {
            counted.changed |= refused.contains(&(*start, &*names.upstream, &*names.endpoint));
        }
    }

    /// Merges stored rows with the rows in memory, which replace the stored ones of this process; oldest first.
    pub(crate) fn with(&self, stored: &[RollupRow], writer: CallId, asked: &RollupRequest) -> Vec<ShownRollup> {
        let mut sums: BTreeMap<(i64, &str, &str), Rollup> = BTreeMap::new();
        let here = self.0.iter().filter(|((start, names), _)| {
            *start >= asked.from.0 && *start < asked.to.0 && asked.upstream.as_ref().is_none_or(|name| names.upstream == *name)
        });
        for ((start, names), counted) in here {
            sums.insert((*start, &names.upstream, &names.endpoint), counted.rollup.clone());
        }
        let own: Vec<(i64, &str, &str)> = sums.keys().copied().collect();
        for row in stored {
            let place = (row.start_at.0, row.upstream.as_str(), row.endpoint.as_str());
            if row.writer != writer || own.binary_search(&place).is_err() {
                sums.entry(place).or_default().merge(&row.rollup);
            }
        }
        sums.iter().map(|((start, upstream, endpoint), rollup)| shown(*start, upstream, endpoint, rollup)).collect()
    }
}

/// Counts a call in a row; a call that continues as a job is counted when it ends.
pub(crate) fn call(row: &mut Rollup, ending: OutcomeCategory) {
    if ending != OutcomeCategory::Later {
        row.calls += 1;
        row.success += u64::from(ending == OutcomeCategory::Success);
        row.rejects += u64::from(ending == OutcomeCategory::Rejected);
    }
}

/// A quarter of an hour of one endpoint.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Rollup)]
pub(crate) struct ShownRollup {
    /// Its beginning.
    at: Time,
    upstream: String,
    endpoint: String,
    /// By outcome.
    #[schema(value_type = BTreeMap<String, u64>)]
    attempts: BTreeMap<Cow<'static, str>, u64>,
    calls: u64,
    success: u64,
    transient_rate: f64,
    retries_per_success: f64,
    circuit_open_minutes: f64,
    p50_ms: Option<f64>,
    p95_ms: Option<f64>,
    p99_ms: Option<f64>,
    rejects: u64,
}

fn shown(start: i64, upstream: &str, endpoint: &str, rollup: &Rollup) -> ShownRollup {
    let quantile = |per_mille| rollup.latency.quantile(per_mille).map(ms);
    ShownRollup {
        at: Time(Wall(start)),
        upstream: upstream.to_owned(),
        endpoint: endpoint.to_owned(),
        attempts: rollup.attempts.clone(),
        calls: rollup.calls,
        success: rollup.success,
        transient_rate: as_f64(rollup.transient()) / as_f64(rollup.sends().max(1)),
        retries_per_success: as_f64(rollup.retries) / as_f64(rollup.success.max(1)),
        circuit_open_minutes: Nanos(rollup.open_ns).as_secs_f64() / 60.0,
        p50_ms: quantile(500),
        p95_ms: quantile(950),
        p99_ms: quantile(990),
        rejects: rollup.rejects,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(to: i64) -> RollupRequest {
        RollupRequest { from: Wall(0), to: Wall(to), upstream: None }
    }

    #[test]
    fn what_is_here_replaces_what_was_written_from_here_and_adds_to_what_others_wrote() {
        let (names, us, other) = (Arc::new(EndpointNames::new("u", "e")), CallId::from_bytes([1; 16]), CallId::from_bytes([2; 16]));
        let mut rollups = Rollups::default();
        rollups.open(Wall(5), &names, Nanos::from_secs(60));
        let mut stored = rollups.take_changed(us);
        assert_eq!(rollups.take_changed(us), [], "it is written once");
        rollups.open(Wall(6), &names, Nanos::from_secs(60));
        stored.push(RollupRow { writer: other, ..stored[0].clone() });
        let minutes = |rows: &[ShownRollup]| rows.iter().map(|row| row.circuit_open_minutes).collect::<Vec<_>>();
        assert_eq!(minutes(&rollups.with(&stored, us, &asked(QUARTER_MS))), [3.0]);
        assert!(rollups.with(&[], us, &asked(0)).is_empty(), "nothing begins before that");
        rollups.give_back(&stored);
        assert_eq!(rollups.take_changed(us).len(), 1, "what was not taken is written again");
        rollups.forget(Wall(QUARTER_MS + OLDEST_MS));
        assert_eq!(minutes(&rollups.with(&stored, us, &asked(QUARTER_MS))), [2.0], "then the store alone is asked");
        rollups.open(Wall(7), &names, Nanos::from_secs(60));
        rollups.forget(Wall(QUARTER_MS + OLDEST_MS));
        assert_eq!(rollups.take_changed(us).len(), 1, "what is not written is not forgotten");
    }
}
