//! Jobs: each transaction that takes a job from one place puts it into another, and checks the lease if there is one.

use super::statement_cache::{optional_value, text};
use super::{Columns, Sqlite, Tx};
use crate::error::Error;
use crate::failpoint;
use crate::json;
use crate::model::history;
use crate::model::job::{
    ClaimRequest, Claimed, Enqueued, JobLease, JobOrigin, JobState, NewJob, Renewed, SHORT_BODY, SUSPECT, SettleJob, Settled,
};
use crate::progress;
use crate::rows::{self, CLAIMED, GIVEN_BACK, LEFT, PLACED, STATE};
use crate::sql::{RowReader, Sql as _, at_once, count, values};
use crate::statements::idempotency;
use crate::statements::jobs::{FREE_KEY, forget_secrets};
use crate::statements::settled::{self, JobChange, SettledJob, SettlingJob, WrittenSettlement};
use rusqlite::types::ValueRef::{Blob, Integer};
use rusqlite::{Connection, OptionalExtension as _, params};
use seawall_core::id::CallId;
use seawall_core::time::Wall;
use std::sync::LazyLock;

/// Longer bodies have a table of their own, since a job's row is rewritten each time the job is postponed.
const INLINE_BODY: usize = 4096;
pub(super) const INSERT: &str = "INSERT INTO jobs (id, waits, upstream, tenant, caller, priority, turn, due, run_at, expires_at, created_at, progress, \
     dedup, fingerprint, idempotency_key, correlation_id, callback, origin, method, path, history, headers, body) \
     VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
pub(super) const QUEUE: &str = "INSERT INTO queue (upstream, priority, turn, row, due) VALUES (?, ?, ?, ?, ?)";
/// Puts a ready job back into the queue with the values of its row.
const QUEUE_AGAIN: &str = "INSERT INTO queue SELECT upstream, priority, turn, jobs.row, due, coalesce(cancel, 0) \
     FROM jobs LEFT JOIN claims ON claims.row = jobs.row WHERE jobs.row = ?";
/// The first jobs of a lane. `queue` has the order, `jobs` the rest.
pub(super) const NEXT_IN_LANE: &str = "FROM queue CROSS JOIN jobs ON jobs.row = queue.row WHERE queue.upstream = ?1 \
     ORDER BY queue.priority DESC, queue.turn, queue.row LIMIT ?2";
/// Claims all found jobs of one priority by range. Separate lookups per job would cost more than moving the rows.
pub(super) const MARK: &str = "INSERT INTO claims (row, token, lease_until, cancel, rules) SELECT row, ?5, ?6, cancel, ?7 FROM queue WHERE upstream = ?1 AND priority = ?2 AND (turn, row) <= (?3, ?4)";
pub(super) const UNQUEUE: &str = "DELETE FROM queue WHERE upstream = ?1 AND priority = ?2 AND (turn, row) <= (?3, ?4)";
pub(super) const RELEASE: &str = "DELETE FROM claims WHERE row = ? AND token = ? AND cancel <= ?";
pub(super) const END: &str = "INSERT INTO ended (row, id, state, token, finished_at, progress, history, error, response_status, response_cut, \
     response_headers, response_body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
pub(super) const PUT_OFF: &str = "UPDATE jobs SET waits = ?, turn = ?, due = coalesce(?, due), token = ?, progress = ?, history = ?, error = ?, \
     crashes = min(crashes, ?) WHERE row = ?";

impl Sqlite {
    pub(crate) async fn enqueue(&self, jobs: Vec<NewJob>, now: Wall) -> Result<Vec<Enqueued>, Error> {
        // Serialised here, before the turn of the writer thread, which all writes wait for.
        let jobs: Vec<(JobColumns, NewJob)> = jobs.into_iter().map(|job| Ok((JobColumns::of(&job)?, job))).collect::<Result<_, Error>>()?;
        self.write(move |tx| jobs.iter().map(|(written, job)| insert(tx, job, written, now)).collect()).await
    }

    pub(crate) async fn claim(&self, claim: ClaimRequest) -> Result<Vec<Claimed>, Error> {
        if self.lull.has_nothing_for(&claim) {
            return Ok(Vec::new());
        }
        self.repeat(move |tx| take(tx, &claim)).await
    }

    pub(crate) async fn renew(&self, leases: Vec<JobLease>, until: Wall) -> Result<Vec<Renewed>, Error> {
        self.repeat(move |tx| leases.iter().map(|lease| renew(tx.db, *lease, until)).collect()).await
    }

    pub(crate) async fn begin_send(&self, lease: JobLease, now: Wall) -> Result<bool, Error> {
        self.finish(move |tx| {
            let mut begin = tx.db.prepare_cached("UPDATE claims SET begun_at = ? WHERE row = ? AND token = ?")?;
            Ok(begin.execute(params![now.0, lease.row, lease.token])? > 0)
        })
        .await
    }

    pub(crate) async fn settle_all(&self, settles: Vec<WrittenSettlement>) -> Vec<Result<Settled, Error>> {
        let many = settles.len();
        match self.finish(move |tx| settles.iter().map(|settle| settle_one(tx, settle)).collect::<Result<Vec<_>, Error>>()).await {
            Ok(settled) => settled.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error); many],
        }
    }
}

/// The serialised columns of a job.
struct JobColumns {
    progress: String,
    origin: Option<String>,
    history: String,
    headers: String,
}

impl JobColumns {
    fn of(job: &NewJob) -> Result<Self, Error> {
        Ok(Self {
            progress: progress::write(&job.progress),
            origin: if job.origin == JobOrigin::Caller { None } else { Some(json::write(&job.origin)?) },
            history: history::to_json(&job.history),
            headers: json::pairs(&job.request.headers),
        })
    }
}

pub(super) fn enqueue(tx: &mut Tx<'_>, job: &NewJob, now: Wall) -> Result<Enqueued, Error> {
    insert(tx, job, &JobColumns::of(job)?, now)
}

fn insert(tx: &mut Tx<'_>, job: &NewJob, written: &JobColumns, now: Wall) -> Result<Enqueued, Error> {
    if let Some(known) = find_duplicate(tx.db, job)? {
        return Ok(known);
    }
    let waits = job.run_at > now;
    let due = job.run_at.max(now).0;
    let turn = if waits { 0 } else { tx.turns.next(&job.upstream, &job.tenant) };
    let inline = job.request.body.len() <= INLINE_BODY;
    let id = job.id.to_bytes();
    tx.insert()?.execute([
        Blob(&id),
        Integer(waits.into()),
        text(&job.upstream),
        text(&job.tenant),
        text(&job.caller),
        Integer(job.priority),
        Integer(turn),
        Integer(due),
        Integer(job.run_at.0),
        optional_value(job.expires_at, |at| Integer(at.0)),
        Integer(now.0),
        text(&written.progress),
        optional_value(job.dedup.as_ref(), |dedup| Blob(dedup)),
        Blob(&job.fingerprint),
        optional_value(job.idempotency_key.as_deref(), text),
        optional_value(job.correlation_id.as_deref(), text),
        optional_value(job.callback.as_deref(), text),
        optional_value(written.origin.as_deref(), text),
        text(&job.request.method),
        text(&job.request.path),
        text(&written.history),
        text(&written.headers),
        optional_value(inline.then_some(&job.request.body[..]), Blob),
    ])?;
    let row = tx.db.last_insert_rowid();
    if !waits {
        tx.queue()?.execute([text(&job.upstream), Integer(job.priority), Integer(turn), Integer(row), Integer(due)])?;
    }
    if !inline {
        tx.db.prepare_cached("INSERT INTO bodies (row, body) VALUES (?, ?)")?.execute(params![row, &job.request.body[..]])?;
    }
    Ok(Enqueued::New(job.id))
}

/// Returns the same job, if it was submitted before.
fn find_duplicate(db: &Connection, job: &NewJob) -> Result<Option<Enqueued>, Error> {
    let Some(dedup) = &job.dedup else { return Ok(None) };
    let found = db
        .prepare_cached(&KNOWN)?
        .query_row(params![dedup], |row| Ok((row.get::<_, [u8; 16]>(0)?, row.get::<_, i64>(1)?, row.get::<_, [u8; 32]>(2)?)))
        .optional()?;
    Ok(found.map(|(id, state, fingerprint)| {
        let id = CallId::from_bytes(id);
        if fingerprint == job.fingerprint {
            Enqueued::Known(id, JobState::from_number(state).unwrap_or(JobState::Queued))
        } else {
            Enqueued::Mismatch(id)
        }
    }))
}

pub(super) static KNOWN: LazyLock<String> =
    LazyLock::new(|| format!("SELECT jobs.id, {STATE}, jobs.fingerprint FROM {PLACED} WHERE jobs.dedup = ?"));

fn take(tx: &mut Tx<'_>, claim: &ClaimRequest) -> Result<Vec<Claimed>, Error> {
    let token = i64::from_ne_bytes(claim.token.to_ne_bytes());
    let mut claimed = Vec::with_capacity(claim.lanes.iter().map(|(_, most)| most).sum());
    for (upstream, most) in &claim.lanes {
        let first = claimed.len();
        let mut statement = tx.db.prepare_cached(&CLAIM)?;
        let mut found = statement.query(params![upstream, count(*most)])?;
        while let Some(next) = found.next()? {
            let mut columns = RowReader::from(Columns::of(next));
            let (mut job, lease) = rows::claimed(&mut columns, token)?;
            let turn: i64 = columns.take()?;
            let (body, body_left) = rows::claimed_body(&mut columns)?;
            job.request.body = body;
            tx.turns.claimed(upstream, turn);
            claimed.push((turn, Claimed { lease, job, body_left, rules: claim.rules }));
        }
        mark(tx.db, upstream, &claimed[first..], claim)?;
    }
    claimed.sort_by_key(|(turn, claimed)| (-claimed.job.priority, *turn));
    Ok(claimed.into_iter().map(|(_, claimed)| claimed).collect())
}

static CLAIM: LazyLock<String> = LazyLock::new(|| {
    let apart = "(SELECT {} FROM bodies b WHERE b.row = jobs.row{})";
    let short = apart.replacen("{}", "b.body", 1).replacen("{}", &format!(" AND length(b.body) <= {SHORT_BODY}"), 1);
    let length = apart.replacen("{}", "length(b.body)", 1).replacen("{}", "", 1);
    format!("SELECT {CLAIMED}, queue.turn, coalesce(jobs.body, {short}), {length} {NEXT_IN_LANE}")
});

/// Writes the claims for the first jobs of a lane, given in their order.
fn mark(db: &Connection, upstream: &str, claimed: &[(i64, Claimed)], claim: &ClaimRequest) -> Result<(), Error> {
    let until = claim.now + claim.lease;
    let (mut mark, mut unqueue) = (db.prepare_cached(MARK)?, db.prepare_cached(UNQUEUE)?);
    for alike in claimed.chunk_by(|(_, one), (_, next)| one.job.priority == next.job.priority) {
        let Some((turn, last)) = alike.last() else { continue };
        let JobLease { row, token, .. } = last.lease;
        let marked = mark.execute(params![upstream, last.job.priority, turn, row, token, until.0, claim.rules])?;
        let gone = unqueue.execute(params![upstream, last.job.priority, turn, row])?;
        // They were found in this very transaction.
        if (marked, gone) != (alike.len(), alike.len()) {
            return Err(Error::Damaged(format!("of {} jobs that were found {marked} are queued", alike.len())));
        }
    }
    Ok(())
}

fn renew(db: &Connection, lease: JobLease, until: Wall) -> Result<Renewed, Error> {
    let cancel: Option<bool> = db
        .prepare_cached("UPDATE claims SET lease_until = ? WHERE row = ? AND token = ? RETURNING cancel")?
        .query_row(params![until.0, lease.row, lease.token], |row| row.get(0))
        .optional()?;
    Ok(match cancel {
        None => Renewed::Lost,
        Some(true) => Renewed::Cancelling,
        Some(false) => Renewed::Held,
    })
}

fn find_leased(db: &Connection, lease: JobLease) -> Result<Option<SettlingJob>, Error> {
    const HELD: &str = "SELECT upstream, tenant, cancel, origin FROM claims JOIN jobs ON jobs.row = claims.row \
                        WHERE claims.row = ? AND claims.token = ?";
    of_lease(db, HELD, lease)?.map(|mut held| SettlingJob::read(&mut held)).transpose()
}

/// Returns what this claim's settlement has left behind.
fn find_settled(db: &Connection, lease: JobLease) -> Result<Option<SettledJob>, Error> {
    let statement = format!("SELECT {LEFT} FROM {PLACED} WHERE jobs.row = ? AND {GIVEN_BACK} = ?");
    of_lease(db, &statement, lease)?.map(|mut left| SettledJob::read(&mut left)).transpose()
}

fn of_lease(db: &Connection, statement: &str, lease: JobLease) -> Result<Option<RowReader>, Error> {
    let mut statement = db.prepare_cached(statement)?;
    let mut found = statement.query(params![lease.row, lease.token])?;
    found.next()?.map(super::row).transpose()
}

fn settle_one(tx: &mut Tx<'_>, worded: &WrittenSettlement) -> Result<Settled, Error> {
    let settle = &worded.settle;
    if let Some((settled, change)) = settled::plain(worded)?
        && release(tx, settle.lease, Cancel::No)?
    {
        failpoint::hit("settle-in-transaction")?;
        write(tx, settle, 0, &change)?;
        return conclude(tx, settle, settled);
    }
    let Some(held) = find_leased(tx.db, settle.lease)? else {
        let left = if settle.again { find_settled(tx.db, settle.lease)? } else { None };
        return Ok(left.map(|left| left.by(worded)).transpose()?.flatten().unwrap_or(Settled::Lost));
    };
    let (settled, change, besides) = settled::settle(worded, &held)?;
    let turn = if change.is_queued() { tx.turns.next(&held.upstream, &held.tenant) } else { 0 };
    release(tx, settle.lease, Cancel::Perhaps)?;
    write(tx, settle, turn, &change)?;
    failpoint::hit("settle-in-transaction")?;
    at_once(besides.write(tx))?;
    conclude(tx, settle, settled)
}

/// Whether the released claim may have a request for cancellation.
#[derive(Clone, Copy, Debug)]
enum Cancel {
    No,
    Perhaps,
}

/// Deletes a claim. Returns whether it existed.
fn release(tx: &mut Tx<'_>, lease: JobLease, cancel: Cancel) -> Result<bool, Error> {
    Ok(tx.release()?.execute([Integer(lease.row), Integer(lease.token), Integer(cancel as i64)])? > 0)
}

fn conclude(tx: &mut Tx<'_>, settle: &SettleJob, settled: Settled) -> Result<Settled, Error> {
    if settled == Settled::Kept {
        for follow in &settle.follow {
            enqueue(tx, follow, settle.now)?;
        }
    }
    if let Some(key) = &settle.key {
        // If the reservation was lost meanwhile, its new owner ends it.
        at_once(idempotency::finish(tx, key))?;
    }
    Ok(settled)
}

/// Moves a job without a claim to the place of its new state.
fn write(tx: &mut Tx<'_>, settle: &SettleJob, turn: i64, change: &JobChange<'_>) -> Result<(), Error> {
    let (lease, forgets) = (settle.lease, settle.forgets);
    if let Some(finished_at) = change.finished_at {
        end(tx, lease, finished_at, change)?;
        if forgets {
            at_once(forget_secrets(tx, lease.row))?;
        }
        return if change.keeps_dedup { Ok(()) } else { at_once(tx.execute(FREE_KEY, values![lease.row])).map(drop) };
    }
    tx.put_off()?.execute([
        Integer((!change.is_queued()).into()),
        Integer(turn),
        optional_value(change.due, |at| Integer(at.0)),
        Integer(lease.token),
        text(change.progress),
        text(change.history),
        optional_value(change.error, text),
        Integer(SUSPECT.into()),
        Integer(lease.row),
    ])?;
    if change.is_queued() { queue_again(tx.db, lease.row) } else { Ok(()) }
}

pub(super) fn queue_again(db: &Connection, row: i64) -> Result<(), Error> {
    db.prepare_cached(QUEUE_AGAIN)?.execute(params![row])?;
    Ok(())
}

fn end(tx: &mut Tx<'_>, lease: JobLease, finished_at: Wall, change: &JobChange<'_>) -> Result<(), Error> {
    let (id, response) = (lease.id.to_bytes(), change.response);
    tx.end()?.execute([
        Integer(lease.row),
        Blob(&id),
        Integer(change.state.number()),
        Integer(lease.token),
        Integer(finished_at.0),
        text(change.progress),
        text(change.history),
        optional_value(change.error, text),
        optional_value(response, |response| Integer(response.status.into())),
        optional_value(response, |response| Integer(response.truncated.into())),
        optional_value(response, |response| text(response.headers.as_json())),
        optional_value(response, |response| Blob(&response.body)),
    ])?;
    Ok(())
}
