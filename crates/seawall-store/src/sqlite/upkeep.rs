//! Time-based maintenance: due jobs, lost workers, deletion of old jobs. Statements name the index that they need and fail without it, so
//! that a search for work never walks past jobs that are not due.

use super::{Sqlite, Tx, jobs};
use crate::error::Error;
use crate::failpoint;
use crate::model::job::{ClockTick, Holder, JobState, MIXED, SUSPECT};
use crate::sql::count;
use rusqlite::{Connection, OptionalExtension as _, params};
use seawall_core::id::CallId;
use seawall_core::time::{Nanos, Wall};
use std::sync::LazyLock;
use std::time::Duration;

/// Maximum jobs that one tick moves, so that no transaction is long.
const TICK: usize = 2000;
/// Jobs deleted per transaction, and the pause after it, so that other writes wait little.
const SWEEP: usize = 16;
const PAUSE: Duration = Duration::from_millis(2);

pub(super) const LATE: &str = "SELECT claims.row, upstream, tenant, claims.token >> 32, claims.begun_at, claims.rules FROM claims CROSS JOIN jobs ON jobs.row = claims.row \
                               WHERE lease_until <= ?1 ORDER BY lease_until, claims.row LIMIT ?2";
pub(super) const DUE: &str =
    "SELECT row, upstream, tenant, 0, NULL, NULL FROM jobs INDEXED BY jobs_waiting WHERE waits = 1 AND due <= ?1 ORDER BY due LIMIT ?2";
pub(super) const NEXT: &str = "SELECT due FROM jobs INDEXED BY jobs_waiting WHERE waits = 1 ORDER BY due LIMIT 1";
pub(super) const LEASED: &str = "SELECT min(lease_until) FROM claims";
/// One index lookup per lane, however many jobs it has.
pub(super) const LANE: &str = "SELECT upstream FROM queue WHERE upstream > ?1 ORDER BY upstream LIMIT 1";
/// Ids sort by age, so old ones are found without reading the recent ones.
pub(super) const OLD: &str = "SELECT number, row, id FROM ended INDEXED BY ended_listed WHERE state = ?1 AND id > ?2 AND id < ?3 \
                              AND finished_at < ?4 ORDER BY id LIMIT ?5";

static READY: LazyLock<String> = LazyLock::new(|| {
    let (crashed, lapsed) = (Why::Crashed as i64, Why::Lapsed as i64);
    let crashes =
        format!("CASE ?4 WHEN {crashed} THEN crashes + (crashes < {SUSPECT}) WHEN {lapsed} THEN min(crashes, {SUSPECT}) ELSE crashes END");
    let under = format!("CASE WHEN ?6 IS NULL OR lost_under = ?6 THEN lost_under WHEN lost_under IS NULL THEN ?6 ELSE {MIXED} END");
    format!(
        "UPDATE jobs SET waits = 0, turn = ?1, due = ?2, crashes = {crashes}, begun_at = coalesce(?5, begun_at), lost_under = {under} \
         WHERE row = ?3"
    )
});

/// The reason why a job becomes ready.
#[derive(Clone, Copy, Debug)]
enum Why {
    /// It waited and is due.
    Due = 0,
    /// Its lease expired, but the process that held it lives: not a crash, so a suspect's blame is withdrawn.
    Lapsed = 1,
    /// Its lease expired, and its worker is lost.
    Crashed = 2,
}

impl Sqlite {
    pub(crate) async fn tick(&self, now: Wall, holder: Option<Holder>) -> Result<ClockTick, Error> {
        let version = match self.lull.tick(now) {
            Ok(tick) => return Ok(tick),
            Err(version) => version,
        };
        let (tick, lease_over) = self.repeat(move |tx| tick(tx, now, holder)).await?;
        self.lull.keep(version, &tick, lease_over);
        Ok(tick)
    }

    /// Deletes a few jobs per transaction, so that arriving writes get their turn in between.
    pub(crate) async fn sweep_jobs(&self, finished_before: Wall, most: usize) -> Result<usize, Error> {
        let mut gone = 0;
        for state in [JobState::Done, JobState::Dead, JobState::Cancelled] {
            let mut after = [0; 16];
            while gone < most {
                let few = SWEEP.min(most - gone);
                let (swept, last) = self.repeat(move |tx| sweep(tx.db, state, after, finished_before, few)).await?;
                gone += swept;
                match last {
                    Some(last) if swept == few => after = last,
                    _ => break,
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
        Ok(gone)
    }
}

/// Runs a tick. Returns its result and the expiry of the first lease.
fn tick(tx: &mut Tx<'_>, now: Wall, holder: Option<Holder>) -> Result<(ClockTick, Option<Wall>), Error> {
    let lost_by = |prefix| if holder.is_some_and(|alive| alive.prefix() == prefix) { Why::Lapsed } else { Why::Crashed };
    let recovered = ready(tx, LATE, now, lost_by)?;
    for row in &recovered {
        tx.db.prepare_cached("DELETE FROM claims WHERE row = ?")?.execute(params![row])?;
    }
    let (recovered, due) = (recovered.len(), ready(tx, DUE, now, |_| Why::Due)?.len());
    // A tick that moves nothing is not a step for failpoints.
    if recovered + due > 0 {
        failpoint::hit("tick-before-commit")?;
    }
    let next = first(tx.db, NEXT)?;
    Ok((ClockTick { recovered, due, lanes: lanes(tx.db)?, next }, first(tx.db, LEASED)?))
}

fn first(db: &Connection, statement: &str) -> Result<Option<Wall>, Error> {
    Ok(db.prepare_cached(statement)?.query_row([], |row| row.get(0)).optional()?.flatten().map(Wall))
}

/// Expires all leases, since no process runs jobs any more. The next tick recovers the jobs.
pub(super) fn orphan_all(db: &Connection) -> Result<(), Error> {
    db.execute("UPDATE claims SET lease_until = 0", [])?;
    Ok(())
}

/// Puts jobs back into the queue, each at its tenant's next turn. `why` derives the reason from the first half of a claim's token. Returns
/// their rows.
fn ready(tx: &mut Tx<'_>, which: &str, now: Wall, why: impl Fn(i64) -> Why) -> Result<Vec<i64>, Error> {
    type Found = (i64, String, String, i64, Option<i64>, Option<i64>);
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?));
    let found: Vec<Found> = tx.db.prepare_cached(which)?.query_map(params![now.0, count(TICK)], read)?.collect::<Result<_, _>>()?;
    let mut update = tx.db.prepare_cached(&READY)?;
    for (row, upstream, tenant, prefix, begun_at, rules) in &found {
        update.execute(params![tx.turns.next(upstream, tenant), now.0, row, why(*prefix) as i64, begun_at, rules])?;
        jobs::queue_again(tx.db, *row)?;
    }
    Ok(found.into_iter().map(|(row, ..)| row).collect())
}

/// Returns the lanes that have queued jobs.
fn lanes(db: &Connection) -> Result<Vec<String>, Error> {
    let mut lanes: Vec<String> = Vec::new();
    let mut after = db.prepare_cached(LANE)?;
    loop {
        let last = lanes.last().map_or("", String::as_str);
        match after.query_row(params![last], |row| row.get(0)).optional()? {
            Some(lane) => lanes.push(lane),
            None => return Ok(lanes),
        }
    }
}

/// Deletes ended jobs of one state. Returns their number and the cursor for the next call.
fn sweep(db: &Connection, state: JobState, after: [u8; 16], before: Wall, most: usize) -> Result<(usize, Option<[u8; 16]>), Error> {
    let youngest = CallId::first_at(before + Nanos::from_millis(1)).to_bytes();
    let found: Vec<(i64, i64, [u8; 16])> = db
        .prepare_cached(OLD)?
        .query_map(params![state.number(), after, youngest, before.0, count(most)], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<Result<_, _>>()?;
    let mut forget_end = db.prepare_cached("DELETE FROM ended WHERE number = ?")?;
    let mut forget = db.prepare_cached("DELETE FROM jobs WHERE row = ? RETURNING body IS NULL")?;
    for (number, row, _) in &found {
        forget_end.execute(params![number])?;
        let body_apart = forget.query_row(params![row], |row| row.get(0)).optional()?;
        if body_apart == Some(true) {
            db.prepare_cached("DELETE FROM bodies WHERE row = ?")?.execute(params![row])?;
        }
    }
    Ok((found.len(), found.last().map(|(.., id)| *id)))
}
