//! Jobs: every change of state is one statement that names the state it changes from, and the lease where there is one.

use super::bound::{maybe, text};
use super::{Columns, Sqlite, Tx};
use crate::error::Error;
use crate::failpoint;
use crate::job::{Claim, Claimed, Enqueued, Lease, NewJob, Origin, Renewed, SUSPECT, Settle, Settled, State};
use crate::progress;
use crate::rows::{self, CLAIMED};
use crate::settled::{self, Change, Held, Left, Worded};
use crate::sql::{Row, Sql as _, at_once, count, json};
use crate::statements::idempotency;
use crate::words;
use rusqlite::types::Value;
use rusqlite::types::ValueRef::{Blob, Integer};
use rusqlite::vtab::array::Array;
use rusqlite::{Connection, OptionalExtension as _, params};
use seawall_core::id::CallId;
use seawall_core::time::Wall;
use std::rc::Rc;

/// Longer bodies are kept apart from the row that changes with each attempt.
const INLINE_BODY: usize = 4096;
pub(super) const INSERT: &str = "INSERT INTO jobs (id, state, upstream, tenant, caller, priority, turn, due, run_at, expires_at, created_at, progress, \
     dedup, fingerprint, idempotency_key, correlation_id, callback, origin, method, path, history, headers, body) \
     VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
/// Changes nothing where any of what makes a settlement plain is not so.
pub(super) const SETTLE_PLAINLY: &str = "UPDATE jobs SET state = ?, due = coalesce(?, due), finished_at = ?, progress = ?, history = ?, error = ?, \
     response_status = ?, response_cut = ?, response_headers = ?, response_body = ?, crashes = min(crashes, ?) \
     WHERE row = ? AND state = 1 AND claim = ? AND token = ? AND cancel = 0 AND origin IS NULL";
/// All at once: a statement for each of them would open every index for each of them, a tenth of what it costs.
pub(super) const MARK: &str = "UPDATE jobs SET state = 1, claim = claim + 1, token = ?, lease_until = ? WHERE row IN rarray(?)";
/// Found first and then written: a statement that does both copies every row twice.
pub(super) const NEXT_IN_LANE: &str =
    "FROM jobs INDEXED BY jobs_queued WHERE state = 0 AND upstream = ?1 ORDER BY priority DESC, turn LIMIT ?2";

impl Sqlite {
    pub(crate) async fn enqueue(&self, jobs: Vec<NewJob>, now: Wall) -> Result<Vec<Enqueued>, Error> {
        // Before it is the writing thread's turn, which everybody waits for.
        let jobs: Vec<(Written, NewJob)> = jobs.into_iter().map(|job| Ok((Written::of(&job)?, job))).collect::<Result<_, Error>>()?;
        self.write(move |tx| jobs.iter().map(|(written, job)| insert(tx, job, written, now)).collect()).await
    }

    pub(crate) async fn claim(&self, claim: Claim) -> Result<Vec<Claimed>, Error> {
        if self.lull.has_nothing_for(&claim) {
            return Ok(Vec::new());
        }
        self.repeat(move |tx| take(tx, &claim)).await
    }

    pub(crate) async fn renew(&self, leases: Vec<Lease>, until: Wall) -> Result<Vec<Renewed>, Error> {
        self.repeat(move |tx| leases.iter().map(|lease| renew(tx.db, *lease, until)).collect()).await
    }

    pub(crate) async fn settle_all(&self, settles: Vec<Worded>) -> Vec<Result<Settled, Error>> {
        let many = settles.len();
        match self.finish(move |tx| settles.iter().map(|settle| settle_one(tx, settle)).collect::<Result<Vec<_>, Error>>()).await {
            Ok(settled) => settled.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error); many],
        }
    }
}

/// What of a job has to be put into words for its row.
struct Written {
    progress: String,
    origin: Option<String>,
    history: String,
    headers: String,
}

impl Written {
    fn of(job: &NewJob) -> Result<Self, Error> {
        Ok(Self {
            progress: progress::write(&job.progress),
            origin: if job.origin == Origin::Caller { None } else { Some(json(&job.origin)?) },
            history: words::history(&job.history)?,
            headers: words::pairs(&job.request.headers)?,
        })
    }
}

pub(super) fn enqueue(tx: &mut Tx<'_>, job: &NewJob, now: Wall) -> Result<Enqueued, Error> {
    insert(tx, job, &Written::of(job)?, now)
}

fn insert(tx: &mut Tx<'_>, job: &NewJob, written: &Written, now: Wall) -> Result<Enqueued, Error> {
    if let Some(known) = known(tx.db, job)? {
        return Ok(known);
    }
    let waits = job.run_at > now;
    let state = if waits { State::Waiting } else { State::Queued };
    let turn = if waits { 0 } else { tx.turns.next(&job.upstream, &job.tenant) };
    let inline = job.request.body.len() <= INLINE_BODY;
    let id = job.id.to_bytes();
    tx.insert()?.execute([
        Blob(&id),
        Integer(state.number()),
        text(&job.upstream),
        text(&job.tenant),
        text(&job.caller),
        Integer(job.priority),
        Integer(turn),
        Integer(job.run_at.max(now).0),
        Integer(job.run_at.0),
        maybe(job.expires_at, |at| Integer(at.0)),
        Integer(now.0),
        text(&written.progress),
        maybe(job.dedup.as_ref(), |dedup| Blob(dedup)),
        Blob(&job.fingerprint),
        maybe(job.idempotency_key.as_deref(), text),
        maybe(job.correlation_id.as_deref(), text),
        maybe(job.callback.as_deref(), text),
        maybe(written.origin.as_deref(), text),
        text(&job.request.method),
        text(&job.request.path),
        text(&written.history),
        text(&written.headers),
        maybe(inline.then_some(&job.request.body[..]), Blob),
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
    let token = i64::from_ne_bytes(claim.token.to_ne_bytes());
    let mut claimed = Vec::with_capacity(claim.lanes.iter().map(|(_, most)| most).sum());
    for (upstream, most) in &claim.lanes {
        let mut statement = tx.db.prepare_cached(claim_statement())?;
        let mut found = statement.query(params![upstream, count(*most)])?;
        while let Some(next) = found.next()? {
            let mut columns = Row::from(Columns::of(next));
            let (mut job, mut lease) = rows::claimed(&mut columns)?;
            let turn: i64 = columns.take()?;
            job.request.body = rows::body(columns.take()?)?;
            lease.claim += 1;
            lease.token = token;
            tx.turns.claimed(upstream, turn);
            claimed.push((turn, Claimed { lease, job }));
        }
    }
    mark(tx.db, claimed.iter().map(|(_, claimed)| claimed.lease.row), token, claim.now + claim.lease)?;
    claimed.sort_by_key(|(turn, claimed)| (-claimed.job.priority, *turn));
    Ok(claimed.into_iter().map(|(_, claimed)| claimed).collect())
}

/// Writes down whose they are now.
fn mark(db: &Connection, rows: impl ExactSizeIterator<Item = i64>, token: i64, until: Wall) -> Result<(), Error> {
    let expected = rows.len();
    if expected == 0 {
        return Ok(());
    }
    let list: Array = Rc::new(rows.map(Value::Integer).collect());
    let marked = db.prepare_cached(MARK)?.execute(params![token, until.0, list])?;
    // They were found in this very transaction.
    if marked == expected { Ok(()) } else { Err(Error::Damaged(format!("of {expected} jobs that were found {marked} are there"))) }
}

fn claim_statement() -> &'static str {
    static SQL: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    SQL.get_or_init(|| format!("SELECT {CLAIMED}, turn, {} {NEXT_IN_LANE}", Tx::BODY))
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
    const HELD: &str = "SELECT upstream, tenant, cancel, origin FROM jobs WHERE row = ? AND claim = ? AND token = ? AND state = 1";
    Ok(of_lease(db, HELD, lease)?.map(|(held, _)| held))
}

/// What this very claim left behind.
fn left(db: &Connection, lease: Lease) -> Result<Option<Left>, Error> {
    const LEFT: &str = "SELECT upstream, tenant, cancel, origin, state, finished_at, progress, history, error FROM jobs \
                        WHERE row = ? AND claim = ? AND token = ? AND state <> 1";
    of_lease(db, LEFT, lease)?.map(|(held, mut rest)| Left::read(held, &mut rest)).transpose()
}

/// A job by its last lease, and what else was asked for.
fn of_lease(db: &Connection, statement: &str, lease: Lease) -> Result<Option<(Held, Row)>, Error> {
    let mut statement = db.prepare_cached(statement)?;
    let mut found = statement.query(params![lease.row, lease.claim, lease.token])?;
    let Some(mut found) = found.next()?.map(super::row).transpose()? else { return Ok(None) };
    Ok(Some((Held::read(&mut found)?, found)))
}

fn settle_one(tx: &mut Tx<'_>, worded: &Worded) -> Result<Settled, Error> {
    let settle = &worded.settle;
    if let Some(settled) = settle_plainly(tx, worded)? {
        return conclude(tx, settle, settled);
    }
    let Some(held) = held(tx.db, settle.lease)? else {
        let left = if settle.again { left(tx.db, settle.lease)? } else { None };
        return Ok(left.map(|left| left.by(worded)).transpose()?.flatten().unwrap_or(Settled::Lost));
    };
    let (settled, change, besides) = settled::settle(worded, &held)?;
    let turn = if change.is_queued() { tx.turns.next(&held.upstream, &held.tenant) } else { 0 };
    write(tx.db, settle.lease.row, turn, &change)?;
    failpoint::hit("settle-in-transaction")?;
    at_once(besides.write(tx))?;
    conclude(tx, settle, settled)
}

fn conclude(tx: &mut Tx<'_>, settle: &Settle, settled: Settled) -> Result<Settled, Error> {
    if settled == Settled::Kept {
        for follow in &settle.follow {
            enqueue(tx, follow, settle.now)?;
        }
    }
    if let Some(key) = &settle.key {
        // One that was lost meanwhile is somebody else's to end.
        at_once(idempotency::finish(tx, key))?;
    }
    Ok(settled)
}

fn settle_plainly(tx: &mut Tx<'_>, worded: &Worded) -> Result<Option<Settled>, Error> {
    let Some((settled, change)) = settled::plain(worded)? else { return Ok(None) };
    failpoint::hit("settle-in-transaction")?;
    let (lease, response) = (worded.settle.lease, change.response);
    let changed = tx.settle_plainly()?.execute([
        Integer(change.state.number()),
        maybe(change.due, |at| Integer(at.0)),
        maybe(change.finished_at, |at| Integer(at.0)),
        text(change.progress),
        text(change.history),
        maybe(change.error, text),
        maybe(response, |response| Integer(response.status.into())),
        maybe(response, |response| Integer(response.truncated.into())),
        maybe(change.response_headers, text),
        maybe(response, |response| Blob(&response.body)),
        Integer(SUSPECT.into()),
        Integer(lease.row),
        Integer(lease.claim),
        Integer(lease.token),
    ])?;
    Ok((changed > 0).then_some(settled))
}

fn write(db: &Connection, row: i64, turn: i64, change: &Change<'_>) -> Result<(), Error> {
    db.prepare_cached(
        "UPDATE jobs SET state = ?, turn = ?, due = coalesce(?, due), finished_at = ?, progress = ?, history = ?, error = ?, \
         dedup = CASE WHEN ? THEN dedup END, response_status = ?, response_cut = ?, response_headers = ?, response_body = ?, \
         crashes = CASE WHEN ? = 4 THEN crashes ELSE min(crashes, ?) END WHERE row = ?",
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
        change.response_headers,
        change.response.map(|response| &response.body[..]),
        change.state.number(),
        SUSPECT,
        row,
    ])?;
    Ok(())
}
