//! Jobs: every change of state is one statement that names the state it changes from, and the lease where there is one.

use super::{Sqlite, Tx, row};
use crate::error::Error;
use crate::job::{Claim, Claimed, Enqueued, Lease, NewJob, Origin, Renewed, Settle, Settled, State, Tick};
use crate::progress;
use crate::rows::{self, JOB};
use crate::settled::{self, Change, Held};
use crate::sql::{Sql as _, at_once, count, json};
use rusqlite::{Connection, OptionalExtension as _, params};
use seawall_core::id::CallId;
use seawall_core::time::{Nanos, Wall};

/// Longer bodies are kept apart from the row that changes with each attempt.
const INLINE_BODY: usize = 4096;
/// What one tick moves at most, so that no transaction is long.
const TICK: usize = 2000;

impl Sqlite {
    pub(crate) async fn enqueue(&self, jobs: Vec<NewJob>, now: Wall) -> Result<Vec<Enqueued>, Error> {
        self.write(move |tx| jobs.iter().map(|job| enqueue(tx, job, now)).collect()).await
    }

    pub(crate) async fn claim(&self, claim: Claim) -> Result<Vec<Claimed>, Error> {
        self.finish(move |tx| take(tx, &claim)).await
    }

    pub(crate) async fn renew(&self, leases: Vec<Lease>, until: Wall) -> Result<Vec<Renewed>, Error> {
        self.finish(move |tx| leases.iter().map(|lease| renew(tx.db, *lease, until)).collect()).await
    }

    pub(crate) async fn settle(&self, settle: Settle) -> Result<Settled, Error> {
        self.finish(move |tx| settle_one(tx, &settle)).await
    }

    pub(crate) async fn tick(&self, now: Wall) -> Result<Tick, Error> {
        self.finish(move |tx| tick(tx, now)).await
    }

    pub(crate) async fn sweep_jobs(&self, finished_before: Wall, most: usize) -> Result<usize, Error> {
        self.finish(move |tx| sweep(tx.db, finished_before, most)).await
    }
}

pub(super) fn enqueue(tx: &mut Tx<'_>, job: &NewJob, now: Wall) -> Result<Enqueued, Error> {
    if let Some(known) = known(tx.db, job)? {
        return Ok(known);
    }
    let waits = job.run_at > now;
    let state = if waits { State::Waiting } else { State::Queued };
    let turn = if waits { 0 } else { tx.turns.next(&job.upstream, &job.tenant) };
    let inline = job.request.body.len() <= INLINE_BODY;
    let origin = if job.origin == Origin::Caller { None } else { Some(json(&job.origin)?) };
    tx.db
        .prepare_cached(
            "INSERT INTO jobs (id, state, upstream, tenant, caller, priority, turn, due, run_at, expires_at, created_at, progress, \
             dedup, fingerprint, idempotency_key, correlation_id, callback, origin, method, path, history, headers, body) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute(params![
            job.id.to_bytes(),
            state.number(),
            job.upstream,
            job.tenant,
            job.caller,
            job.priority,
            turn,
            job.run_at.max(now).0,
            job.run_at.0,
            job.expires_at.map(|at| at.0),
            now.0,
            progress::write(&job.progress),
            job.dedup,
            job.fingerprint,
            job.idempotency_key,
            job.correlation_id,
            job.callback,
            origin,
            job.request.method,
            job.request.path,
            json(&job.history)?,
            json(&job.request.headers)?,
            inline.then_some(&job.request.body[..]),
        ])?;
    if !inline {
        let row = tx.db.last_insert_rowid();
        tx.db.prepare_cached("INSERT INTO bodies (row, body) VALUES (?, ?)")?.execute(params![row, &job.request.body[..]])?;
    }
    Ok(Enqueued::New(job.id))
}

/// The same job, if it was enqueued before.
fn known(db: &Connection, job: &NewJob) -> Result<Option<Enqueued>, Error> {
    let Some(dedup) = &job.dedup else { return Ok(None) };
    let found = db
        .prepare_cached("SELECT id, state, fingerprint FROM jobs WHERE dedup = ?")?
        .query_row(params![dedup], |row| Ok((row.get::<_, [u8; 16]>(0)?, row.get::<_, i64>(1)?, row.get::<_, [u8; 32]>(2)?)))
        .optional()?;
    Ok(found.map(|(id, state, fingerprint)| {
        let id = CallId::from_bytes(id);
        if fingerprint == job.fingerprint {
            Enqueued::Known(id, State::from_number(state).unwrap_or(State::Queued))
        } else {
            Enqueued::Mismatch(id)
        }
    }))
}

fn take(tx: &mut Tx<'_>, claim: &Claim) -> Result<Vec<Claimed>, Error> {
    let mut claimed = Vec::new();
    for (upstream, most) in &claim.lanes {
        let mut statement = tx.db.prepare_cached(claim_statement())?;
        let token = i64::from_ne_bytes(claim.token.to_ne_bytes());
        let until = claim.now + claim.lease;
        let mut found = statement.query(params![token, until.0, upstream, count(*most)])?;
        while let Some(next) = found.next()? {
            let mut columns = row(next)?;
            let (mut job, lease) = rows::job(&mut columns)?;
            let turn: i64 = columns.take()?;
            job.request.body = rows::body(columns.take()?)?;
            tx.turns.claimed(upstream, turn);
            claimed.push((turn, Claimed { lease, job }));
        }
    }
    claimed.sort_by_key(|(turn, claimed)| (-claimed.job.priority, *turn));
    Ok(claimed.into_iter().map(|(_, claimed)| claimed).collect())
}

fn claim_statement() -> &'static str {
    static SQL: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    SQL.get_or_init(|| {
        format!(
            "UPDATE jobs SET state = 1, claim = claim + 1, token = ?1, lease_until = ?2 WHERE row IN \
             (SELECT row FROM jobs WHERE state = 0 AND upstream = ?3 ORDER BY priority DESC, turn LIMIT ?4) \
             RETURNING {JOB}, turn, {}",
            Tx::BODY
        )
    })
}

fn renew(db: &Connection, lease: Lease, until: Wall) -> Result<Renewed, Error> {
    let cancel: Option<bool> = db
        .prepare_cached("UPDATE jobs SET lease_until = ? WHERE row = ? AND state = 1 AND claim = ? AND token = ? RETURNING cancel")?
        .query_row(params![until.0, lease.row, lease.claim, lease.token], |row| row.get(0))
        .optional()?;
    Ok(match cancel {
        None => Renewed::Lost,
        Some(true) => Renewed::Cancelling,
        Some(false) => Renewed::Held,
    })
}

fn held(db: &Connection, lease: Lease) -> Result<Option<Held>, Error> {
    let found = db
        .prepare_cached("SELECT upstream, tenant, cancel, origin FROM jobs WHERE row = ? AND state = 1 AND claim = ? AND token = ?")?
        .query_row(params![lease.row, lease.claim, lease.token], |row| {
            Ok(Held { upstream: row.get(0)?, tenant: row.get(1)?, cancel: row.get(2)?, origin: row.get(3)? })
        })
        .optional()?;
    Ok(found)
}

fn settle_one(tx: &mut Tx<'_>, settle: &Settle) -> Result<Settled, Error> {
    let Some(held) = held(tx.db, settle.lease)? else { return Ok(Settled::Lost) };
    let (settled, change, besides) = settled::settle(settle, &held)?;
    let turn = if change.is_queued() { tx.turns.next(&held.upstream, &held.tenant) } else { 0 };
    write(tx.db, settle.lease.row, turn, &change)?;
    at_once(besides.write(tx))?;
    if settled == Settled::Kept {
        for follow in &settle.follow {
            enqueue(tx, follow, settle.now)?;
        }
    }
    Ok(settled)
}

fn write(db: &Connection, row: i64, turn: i64, change: &Change<'_>) -> Result<(), Error> {
    db.prepare_cached(
        "UPDATE jobs SET state = ?, turn = ?, due = coalesce(?, due), finished_at = ?, progress = ?, history = ?, error = ?, \
         dedup = CASE WHEN ? THEN dedup END, response_status = ?, response_cut = ?, response_headers = ?, response_body = ? WHERE row = ?",
    )?
    .execute(params![
        change.state.number(),
        turn,
        change.due.map(|at| at.0),
        change.finished_at.map(|at| at.0),
        change.progress,
        change.history,
        change.error,
        change.keeps_dedup,
        change.response.map(|response| response.status),
        change.response.map(|response| response.truncated),
        change.response_headers()?,
        change.response.map(|response| &response.body[..]),
        row,
    ])?;
    Ok(())
}

fn tick(tx: &mut Tx<'_>, now: Wall) -> Result<Tick, Error> {
    let recovered = ready(tx, "state = 1 AND lease_until <= ?1 ORDER BY lease_until", ", crashes = crashes + 1", now)?;
    let due = ready(tx, "state = 2 AND due <= ?1 ORDER BY due", "", now)?;
    let next = tx.db.prepare_cached("SELECT min(due) FROM jobs WHERE state = 2")?.query_row([], |row| row.get::<_, Option<i64>>(0))?;
    Ok(Tick { recovered, due, lanes: lanes(tx.db)?, next: next.map(Wall) })
}

/// Nobody runs anything any more: the next tick finds every lease over.
pub(super) fn orphan_all(db: &Connection) -> Result<(), Error> {
    db.execute("UPDATE jobs SET lease_until = 0 WHERE state = 1", [])?;
    Ok(())
}

/// Puts jobs back in line, each at its tenant's next turn.
fn ready(tx: &mut Tx<'_>, which: &str, also: &str, now: Wall) -> Result<usize, Error> {
    let found: Vec<(i64, String, String)> = tx
        .db
        .prepare_cached(&format!("SELECT row, upstream, tenant FROM jobs WHERE {which} LIMIT {TICK}"))?
        .query_map(params![now.0], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<Result<_, _>>()?;
    let mut update = tx.db.prepare_cached(&format!("UPDATE jobs SET state = 0, turn = ?, due = ?{also} WHERE row = ?"))?;
    for (row, upstream, tenant) in &found {
        update.execute(params![tx.turns.next(upstream, tenant), now.0, row])?;
    }
    Ok(found.len())
}

/// The lanes with something in them: one look into the index for each, however many jobs it has.
fn lanes(db: &Connection) -> Result<Vec<String>, Error> {
    let mut lanes: Vec<String> = Vec::new();
    let mut after = db.prepare_cached("SELECT upstream FROM jobs WHERE state = 0 AND upstream > ? ORDER BY upstream LIMIT 1")?;
    loop {
        let last = lanes.last().map_or("", String::as_str);
        match after.query_row(params![last], |row| row.get(0)).optional()? {
            Some(lane) => lanes.push(lane),
            None => return Ok(lanes),
        }
    }
}

/// Forgets jobs that are over. Ids sort by age, so old ones are found without reading the young.
fn sweep(db: &Connection, finished_before: Wall, most: usize) -> Result<usize, Error> {
    let mut gone = 0;
    for state in [State::Done, State::Dead, State::Cancelled] {
        let found: Vec<i64> = db
            .prepare_cached("SELECT row FROM jobs WHERE state = ? AND id < ? AND finished_at < ? LIMIT ?")?
            .query_map(
                params![
                    state.number(),
                    CallId::first_at(finished_before + Nanos::from_millis(1)).to_bytes(),
                    finished_before.0,
                    count(most.saturating_sub(gone))
                ],
                |row| row.get(0),
            )?
            .collect::<Result<_, _>>()?;
        for row in &found {
            db.prepare_cached("DELETE FROM jobs WHERE row = ?")?.execute(params![row])?;
            db.prepare_cached("DELETE FROM bodies WHERE row = ?")?.execute(params![row])?;
        }
        gone += found.len();
    }
    Ok(gone)
}
