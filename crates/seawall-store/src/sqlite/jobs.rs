//! Jobs: every change of state is one statement that names the state it changes from, and the lease where there is one.

use super::rows::{self, JOB, json};
use super::{Sqlite, Tx, letters};
use crate::error::Error;
use crate::failpoint;
use crate::job::{
    Attempted, Cancelled, Claim, Claimed, Counts, Ending, Enqueued, Filter, Job, Lease, MOST_HISTORY, NewJob, Origin, Renewed, Settle,
    Settled, State, Tick,
};
use crate::page::{Page, Window};
use crate::progress;
use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, params};
use seawall_core::id::CallId;
use seawall_core::time::{Nanos, Wall};

/// Longer bodies are kept apart from the row that changes with each attempt.
const INLINE_BODY: usize = 4096;
/// What one tick moves at most, so that no transaction is long.
const TICK: usize = 2000;

impl Sqlite {
    pub(crate) async fn enqueue(&self, jobs: Vec<NewJob>, now: Wall) -> Result<Vec<Enqueued>, Error> {
        failpoint::hit("enqueue-before-commit")?;
        let kept = self.write(move |tx| jobs.iter().map(|job| enqueue(tx, job, now)).collect()).await;
        failpoint::hit("enqueue-after-commit")?;
        kept
    }

    pub(crate) async fn claim(&self, claim: Claim) -> Result<Vec<Claimed>, Error> {
        failpoint::hit("claim-before-commit")?;
        let claimed = self.finish(move |tx| take(tx, &claim)).await;
        if claimed.as_ref().is_ok_and(|claimed| !claimed.is_empty()) {
            failpoint::hit("claim-after-commit")?;
        }
        claimed
    }

    pub(crate) async fn renew(&self, leases: Vec<Lease>, until: Wall) -> Result<Vec<Renewed>, Error> {
        self.finish(move |tx| leases.iter().map(|lease| renew(tx.db, *lease, until)).collect()).await
    }

    pub(crate) async fn settle(&self, settle: Settle) -> Result<Settled, Error> {
        failpoint::hit("settle-before-commit")?;
        let settled = self.finish(move |tx| settle_one(tx, &settle)).await;
        failpoint::hit("settle-after-commit")?;
        settled
    }

    pub(crate) async fn tick(&self, now: Wall) -> Result<Tick, Error> {
        self.finish(move |tx| tick(tx, now)).await
    }

    pub(crate) async fn cancel(&self, id: CallId, now: Wall) -> Result<Cancelled, Error> {
        self.finish(move |tx| cancel(tx.db, id, now)).await
    }

    pub(crate) async fn job(&self, id: CallId) -> Result<Option<Job>, Error> {
        self.read(move |db| one(db, id)).await
    }

    pub(crate) async fn jobs(&self, filter: Filter, window: Window) -> Result<Page<Job>, Error> {
        self.read(move |db| list(db, &filter, window)).await
    }

    pub(crate) async fn job_counts(&self) -> Result<Counts, Error> {
        self.read(counts).await
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
        let mut rows = statement.query(params![token, until.0, upstream, i64::try_from(*most).unwrap_or(i64::MAX)])?;
        while let Some(row) = rows.next()? {
            let (mut job, lease) = rows::job(row)?;
            let turn: i64 = row.get("turn")?;
            let body: Option<Vec<u8>> = row.get("body")?;
            job.request.body = whole_body(tx.db, lease.row, body)?;
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
             RETURNING {JOB}, turn, body"
        )
    })
}

fn whole_body(db: &Connection, row: i64, inline: Option<Vec<u8>>) -> Result<Bytes, Error> {
    if let Some(body) = inline {
        return Ok(Bytes::from(body));
    }
    let body: Option<Vec<u8>> =
        db.prepare_cached("SELECT body FROM bodies WHERE row = ?")?.query_row(params![row], |row| row.get(0)).optional()?;
    body.map(Bytes::from).ok_or_else(|| Error::Damaged("a job has lost its body".to_owned()))
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

/// What is needed of a job that is being settled.
struct Held {
    upstream: String,
    tenant: String,
    cancel: bool,
    origin: Option<String>,
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
    let letter = letter_of(held.origin.as_deref())?;
    let settled = match &settle.ending {
        Ending::Wait { .. } | Ending::Release if held.cancel => Settled::Cancelled,
        Ending::Cancelled => Settled::Cancelled,
        Ending::Wait { .. } | Ending::Release | Ending::Done(_) | Ending::Dead(_) | Ending::Failed { .. } => Settled::Kept,
    };
    if settled == Settled::Cancelled {
        over(tx.db, settle, State::Cancelled, Some("cancelled"))?;
        if let Some(letter) = letter {
            letters::replay_ended(tx.db, letter, false)?;
        }
        return Ok(settled);
    }
    match &settle.ending {
        Ending::Wait { until, reason } => put_off(tx, settle, &held, *until, reason)?,
        Ending::Release => release(tx, settle, &held)?,
        Ending::Done(response) => {
            over(tx.db, settle, State::Done, None)?;
            tx.db
                .prepare_cached(
                    "UPDATE jobs SET response_status = ?, response_cut = ?, response_headers = ?, response_body = ? WHERE row = ?",
                )?
                .execute(params![response.status, response.truncated, json(&response.headers)?, &response.body[..], settle.lease.row])?;
            if let Some(letter) = letter {
                letters::replay_ended(tx.db, letter, true)?;
            }
        }
        Ending::Dead(new) => {
            over(tx.db, settle, State::Dead, Some(&new.code))?;
            match letter {
                Some(letter) => letters::replay_failed(tx.db, letter, new)?,
                None => letters::keep(tx.db, new)?,
            }
        }
        Ending::Failed { code } => {
            over(tx.db, settle, State::Dead, Some(code))?;
            if let Some(letter) = letter {
                letters::replay_ended(tx.db, letter, false)?;
            }
        }
        Ending::Cancelled => {}
    }
    failpoint::hit("settle-in-transaction")?;
    for follow in &settle.follow {
        enqueue(tx, follow, settle.now)?;
    }
    Ok(settled)
}

/// The dead letter that a job is a replay of.
fn letter_of(origin: Option<&str>) -> Result<Option<CallId>, Error> {
    let Some(text) = origin else { return Ok(None) };
    let origin: Origin = serde_json::from_str(text).map_err(|error| Error::Damaged(format!("a job's origin cannot be read: {error}")))?;
    match origin {
        Origin::Replay { letter } => Ok(CallId::parse(&letter)),
        Origin::Caller | Origin::Callback(_) | Origin::Notification | Origin::Schedule { .. } => Ok(None),
    }
}

fn recent(history: &[Attempted]) -> Result<String, Error> {
    json(&&history[history.len().saturating_sub(MOST_HISTORY)..])
}

fn put_off(tx: &mut Tx<'_>, settle: &Settle, held: &Held, until: Wall, reason: &str) -> Result<(), Error> {
    let now_due = until <= settle.now;
    let turn = if now_due { tx.turns.next(&held.upstream, &held.tenant) } else { 0 };
    let state = if now_due { State::Queued } else { State::Waiting };
    tx.db.prepare_cached("UPDATE jobs SET state = ?, due = ?, turn = ?, progress = ?, history = ?, error = ? WHERE row = ?")?.execute(
        params![state.number(), until.0, turn, progress::write(&settle.progress), recent(&settle.history)?, reason, settle.lease.row],
    )?;
    Ok(())
}

fn release(tx: &mut Tx<'_>, settle: &Settle, held: &Held) -> Result<(), Error> {
    let turn = tx.turns.next(&held.upstream, &held.tenant);
    tx.db.prepare_cached("UPDATE jobs SET state = 0, turn = ?, progress = ?, history = ? WHERE row = ?")?.execute(params![
        turn,
        progress::write(&settle.progress),
        recent(&settle.history)?,
        settle.lease.row
    ])?;
    Ok(())
}

fn over(db: &Connection, settle: &Settle, state: State, error: Option<&str>) -> Result<(), Error> {
    db.prepare_cached(
        "UPDATE jobs SET state = ?1, finished_at = ?2, progress = ?3, history = ?4, error = ?5, \
         dedup = CASE WHEN ?1 = 3 THEN dedup END WHERE row = ?6",
    )?
    .execute(params![
        state.number(),
        settle.now.0,
        progress::write(&settle.progress),
        recent(&settle.history)?,
        error,
        settle.lease.row
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

fn cancel(db: &Connection, id: CallId, now: Wall) -> Result<Cancelled, Error> {
    let found = db
        .prepare_cached("SELECT row, state, origin FROM jobs WHERE id = ?")?
        .query_row(params![id.to_bytes()], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, Option<String>>(2)?)))
        .optional()?;
    let Some((row, number, origin)) = found else { return Ok(Cancelled::Unknown) };
    match State::from_number(number) {
        Some(State::Queued | State::Waiting) => {
            db.prepare_cached("UPDATE jobs SET state = 5, finished_at = ?, error = 'cancelled', dedup = NULL WHERE row = ?")?
                .execute(params![now.0, row])?;
            if let Some(letter) = letter_of(origin.as_deref())? {
                letters::replay_ended(db, letter, false)?;
            }
            Ok(Cancelled::Now)
        }
        Some(State::Running) => {
            db.prepare_cached("UPDATE jobs SET cancel = 1 WHERE row = ?")?.execute(params![row])?;
            Ok(Cancelled::Asked)
        }
        Some(state @ (State::Done | State::Dead | State::Cancelled)) => Ok(Cancelled::Over(state)),
        None => Err(Error::Damaged(format!("a job is in the unknown state {number}"))),
    }
}

fn one(db: &Connection, id: CallId) -> Result<Option<Job>, Error> {
    let mut statement = db.prepare_cached(&format!("SELECT {JOB}, body, response_body FROM jobs WHERE id = ?"))?;
    let mut rows = statement.query(params![id.to_bytes()])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let (mut job, lease) = rows::job(row)?;
    job.request.body = whole_body(db, lease.row, row.get("body")?)?;
    if let Some(response) = &mut job.response {
        response.body = Bytes::from(row.get::<_, Option<Vec<u8>>>("response_body")?.unwrap_or_default());
    }
    Ok(Some(job))
}

fn list(db: &Connection, filter: &Filter, window: Window) -> Result<Page<Job>, Error> {
    let mut sql = format!("SELECT {JOB} FROM jobs WHERE id < ?1");
    if let Some(state) = filter.state {
        sql += &format!(" AND state = {}", state.number());
    }
    sql += " AND (?2 IS NULL OR upstream = ?2)";
    // The unary plus keeps the index of ids out of it: few jobs have one correlation.
    sql += if filter.correlation_id.is_some() { " AND correlation_id = ?3 ORDER BY +id" } else { " AND ?3 IS NULL ORDER BY id" };
    sql += " DESC LIMIT ?4";
    let before = window.after.map_or([0xff; 16], CallId::to_bytes);
    let rows = i64::try_from(window.rows()).unwrap_or(i64::MAX);
    let mut statement = db.prepare_cached(&sql)?;
    let mut found = statement.query(params![before, filter.upstream, filter.correlation_id, rows])?;
    let mut jobs = Vec::new();
    while let Some(row) = found.next()? {
        jobs.push(rows::job(row)?.0);
    }
    Ok(window.page(jobs, |job| job.id))
}

fn counts(db: &Connection) -> Result<Counts, Error> {
    let mut counts = Counts::default();
    let mut statement = db.prepare_cached("SELECT state, count(*) FROM jobs GROUP BY state")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (state, count): (i64, i64) = (row.get(0)?, row.get(1)?);
        if let Some(place) = usize::try_from(state).ok().and_then(|state| counts.by_state.get_mut(state)) {
            *place = u64::try_from(count).unwrap_or(0);
        }
    }
    let oldest = db
        .prepare_cached("SELECT due FROM jobs WHERE state = 0 ORDER BY id LIMIT 1")?
        .query_row([], |row| row.get::<_, i64>(0))
        .optional()?;
    counts.oldest_queued = oldest.map(Wall);
    Ok(counts)
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
                    i64::try_from(most.saturating_sub(gone)).unwrap_or(i64::MAX)
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
