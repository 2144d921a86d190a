//! Jobs: lists, cancellation, and waking of jobs whose condition has passed.

use crate::error::Error;
use crate::failpoint;
use crate::json;
use crate::model::job::{Cancelled, Hasten, Hastened, Job, JobFilter, JobLease, JobState, SUSPECT, StateCounts};
use crate::model::page::{Page, PageWindow};
use crate::rows::{self, JOB, PLACED, STATE};
use crate::sql::{Sql, SqlValue, count, first, values};
use crate::statements::letters;
use crate::statements::settled::{CANCELLED, letter_of};
use seawall_core::discretion::{self, REDACTED};
use seawall_core::id::CallId;
use seawall_core::time::Wall;

/// A job may move between two reads, but not forever.
const LOOKS: usize = 3;

pub(crate) async fn cancel<S: Sql>(sql: &mut S, id: &CallId, now: &Wall) -> Result<Cancelled, Error> {
    for _ in 0..LOOKS {
        let Some(mut job) = first(sql, "SELECT row, upstream, priority, turn, origin FROM jobs WHERE id = $1", values![*id]).await? else {
            return Ok(Cancelled::Unknown);
        };
        let (row, upstream, priority, turn): (i64, String, i64, i64) = (job.take()?, job.take()?, job.take()?, job.take()?);
        // Removed from its place first, so that a concurrent claim either has finished or finds nothing. Places are tried in the order in
        // which a job passes through them.
        let stopped = sql.execute("UPDATE jobs SET waits = 0 WHERE row = $1 AND waits = 1", values![row]).await? > 0
            || sql.execute(UNQUEUE, values![upstream, priority, turn, row]).await? > 0;
        if stopped {
            let end = "INSERT INTO ended (row, id, state, token, finished_at, error) VALUES ($1, $2, 5, 0, $3, $4)";
            sql.execute(end, values![row, *id, *now, CANCELLED]).await?;
            sql.execute(FREE_KEY, values![row]).await?;
            forget_secrets(sql, row).await?;
            failpoint::hit("cancel-in-transaction")?;
            if let Some(letter) = letter_of(job.take::<Option<String>>()?.as_deref())? {
                letters::replay_ended(sql, letter, false).await?;
            }
            return Ok(Cancelled::Now);
        }
        if sql.execute("UPDATE claims SET cancel = 1 WHERE row = $1", values![row]).await? > 0 {
            return Ok(Cancelled::Asked);
        }
        if let Some(mut ended) = first(sql, "SELECT state FROM ended WHERE state IN (3, 4, 5) AND id = $1", values![*id]).await? {
            return Ok(Cancelled::Over(ended.number(JobState::from_number)?));
        }
    }
    Err(Error::Unavailable("the job is changing hands".to_owned()))
}

/// Erases secret values from the request of an ended job: it is not sent again, and a dead letter has what a replay needs.
pub(crate) async fn forget_secrets<S: Sql>(sql: &mut S, row: i64) -> Result<(), Error> {
    let Some(mut job) = first(sql, "SELECT path, headers, callback FROM jobs WHERE row = $1", values![row]).await? else { return Ok(()) };
    let (path, headers, callback): (String, String, Option<String>) = (job.take()?, job.take()?, job.take()?);
    let mut pairs: Vec<(String, String)> = json::read(&headers)?;
    for (_, value) in pairs.iter_mut().filter(|(name, _)| discretion::is_secret(name)) {
        REDACTED.clone_into(value);
    }
    let callback = callback.map(|url| discretion::target(&url).into_owned());
    let statement = "UPDATE jobs SET path = $2, headers = $3, callback = $4 WHERE row = $1";
    sql.execute(statement, values![row, &*discretion::target(&path), json::pairs(&pairs), callback]).await?;
    Ok(())
}

const UNQUEUE: &str = "DELETE FROM queue WHERE upstream = $1 AND priority = $2 AND turn = $3 AND row = $4";
/// A key is free again once its job was given up on or cancelled.
pub(crate) const FREE_KEY: &str = "UPDATE jobs SET dedup = NULL WHERE row = $1 AND dedup IS NOT NULL";

/// Blames a suspect in advance for the loss of its worker; a settlement withdraws that. A repetition after a lost reply finds its own
/// blame, since no other worker has this lease.
pub(crate) async fn blame<S: Sql>(sql: &mut S, lease: &JobLease) -> Result<bool, Error> {
    let held = format!("SELECT 1 FROM claims WHERE row = $1 AND token = $2{}", S::LOCK);
    if first(sql, &held, values![lease.row, lease.token]).await?.is_none() {
        return Ok(false);
    }
    let statement = "UPDATE jobs SET crashes = $2 + 1 WHERE row = $1 AND crashes >= $2";
    Ok(sql.execute(statement, values![lease.row, SUSPECT]).await? > 0)
}

/// Maximum jobs woken per transaction, so that other writes wait little.
const HASTENED: usize = 200;
/// Milliseconds between woken jobs: a hundred per second, to avoid a thundering herd.
const APART_MS: i64 = 10;

/// Continues behind the last batch; jobs woken earlier are due before that position.
pub(crate) const WAITING_FOR: &str =
    "SELECT row, due FROM jobs WHERE waits = 1 AND due >= $3 AND upstream = $1 AND error = $2 ORDER BY due LIMIT $4";

pub(crate) async fn hasten<S: Sql>(sql: &mut S, wish: &Hasten) -> Result<Hastened, Error> {
    // Jobs that are due before the end of this batch anyway stay as they are.
    let end = Wall(wish.from.0.saturating_add(APART_MS * count(HASTENED)));
    let statement = format!("{WAITING_FOR}{}", S::LOCK);
    let found = sql.query(&statement, values![&wish.upstream, wish.reason, end.max(wish.after), count(HASTENED)]).await?;
    let (is_full, mut jobs, mut after) = (found.len() == HASTENED, 0, wish.after);
    for (mut row, place) in found.into_iter().zip(0i64..) {
        let (job, due): (i64, Wall) = (row.take()?, row.take()?);
        let sooner = Wall(wish.from.0 + place * APART_MS);
        jobs += sql.execute("UPDATE jobs SET due = $2 WHERE row = $1 AND waits = 1", values![job, sooner]).await?;
        failpoint::hit("hasten-in-transaction")?;
        after = due;
    }
    Ok(Hastened { jobs, next: is_full.then(|| Hasten { from: end, after, ..wish.clone() }) })
}

pub(crate) async fn one<S: Sql>(sql: &mut S, id: &CallId) -> Result<Option<Job>, Error> {
    let statement = format!("SELECT {JOB}, {}, ended.response_body FROM {PLACED} WHERE jobs.id = $1", S::BODY);
    let Some(mut row) = first(sql, &statement, values![*id]).await? else { return Ok(None) };
    let mut job = rows::job(&mut row)?;
    job.request.body = rows::body(row.take()?)?;
    let answer: Option<bytes::Bytes> = row.take()?;
    if let Some(response) = &mut job.response {
        response.body = answer.unwrap_or_default();
    }
    Ok(Some(job))
}

/// Returns the body of a claimed job, or `None` if the job is gone.
pub(crate) async fn body<S: Sql>(sql: &mut S, lease: &JobLease) -> Result<Option<bytes::Bytes>, Error> {
    let found = first(sql, &format!("SELECT {} FROM jobs WHERE jobs.row = $1", S::BODY), values![lease.row]).await?;
    found.map(|mut row| rows::body(row.take()?)).transpose()
}

/// A page of one state is first searched among this many of the newest jobs: if most jobs have that state, it is found there.
const NEWEST: usize = 1000;
/// Up to this many open jobs of one state are sorted for a list; among more, the walk starts at the newest.
const SORTED: usize = 50_000;

pub(crate) async fn list<S: Sql>(sql: &mut S, filter: &JobFilter, window: &PageWindow) -> Result<Page<Job>, Error> {
    // Jobs of one correlation id are few, whatever their state.
    let open = filter.state.filter(|state| !state.is_over() && filter.correlation_id.is_none());
    if open.is_some() {
        let newest = found(sql, filter, window, Among::Newest).await?;
        if newest.len() >= window.rows() {
            return Ok(window.page(newest, |job| job.id));
        }
    }
    let few = match open {
        Some(state) => first(sql, &few_statement(state), &[]).await?.map_or(Ok(false), |mut row| row.take())?,
        None => false,
    };
    let jobs = found(sql, filter, window, if few { Among::Few } else { Among::All }).await?;
    Ok(window.page(jobs, |job| job.id))
}

async fn found<S: Sql>(sql: &mut S, filter: &JobFilter, window: &PageWindow, among: Among) -> Result<Vec<Job>, Error> {
    let (statement, values) = list_statement(filter, window, among);
    let rows = sql.query(&statement, &values).await?;
    rows.into_iter().map(|mut row| rows::job(&mut row)).collect()
}

/// The part of the jobs that a list searches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Among {
    /// From the newest on, to the end.
    All,
    /// Only the newest.
    Newest,
    /// All jobs of a state that has few.
    Few,
}

/// Returns the table of a state, in an index order. Sequential scans are disabled in PostgreSQL; if only a scan is possible, the planner
/// cannot distinguish good plans from bad ones.
const fn place(state: JobState) -> &'static str {
    match state {
        JobState::Queued => "queue ORDER BY upstream",
        JobState::Running => "claims",
        JobState::Waiting => "jobs WHERE waits = 1",
        JobState::Done | JobState::Dead | JobState::Cancelled => "ended",
    }
}

pub(crate) fn few_statement(state: JobState) -> String {
    format!("SELECT count(*) < {SORTED} FROM (SELECT 1 FROM {} LIMIT {SORTED}) AS few", place(state))
}

pub(crate) fn list_statement(filter: &JobFilter, window: &PageWindow, among: Among) -> (String, Vec<SqlValue>) {
    let before = window.after.map_or([0xff; 16], CallId::to_bytes);
    let mut values: Vec<SqlValue> = vec![before.into(), window.rows().into()];
    let (mut jobs, mut id, mut wanted) = (PLACED.to_owned(), "jobs.id", String::new());
    match filter.state {
        // Jobs of one correlation id are few, so they are sorted instead of searched among all ended jobs.
        Some(state) if state.is_over() && filter.correlation_id.is_none() => {
            jobs = "ended JOIN jobs ON jobs.row = ended.row LEFT JOIN claims ON claims.row = jobs.row".to_owned();
            id = "ended.id";
            wanted += &format!(" AND ended.state = {}", state.number());
        }
        Some(state) if among == Among::Few => wanted += &format!(" AND jobs.row IN (SELECT row FROM {} LIMIT {SORTED})", place(state)),
        // The state is in the job's own row.
        Some(JobState::Waiting) => wanted += " AND jobs.waits = 1",
        Some(state) => wanted += &format!(" AND {STATE} = {}", state.number()),
        None => {}
    }
    if among == Among::Newest {
        jobs = format!("(SELECT * FROM jobs WHERE id < $1 ORDER BY id DESC LIMIT {NEWEST}) AS {PLACED}");
    }
    if let Some(upstream) = &filter.upstream {
        values.push(upstream.into());
        wanted += &format!(" AND jobs.upstream = ${}", values.len());
    }
    if let Some(correlation) = &filter.correlation_id {
        values.push(correlation.into());
        wanted += &format!(" AND jobs.row IN (SELECT row FROM jobs WHERE correlation_id = ${})", values.len());
    }
    (format!("SELECT {JOB} FROM {jobs} WHERE {id} < $1{wanted} ORDER BY {id} DESC LIMIT $2"), values)
}

/// Each state has its own table or index.
pub(crate) const COUNTS: &str = "SELECT 0, count(*) FROM queue UNION ALL SELECT 1, count(*) FROM claims \
                                 UNION ALL SELECT 2, count(*) FROM jobs WHERE waits = 1 \
                                 UNION ALL SELECT state, count(*) FROM ended GROUP BY state";
pub(crate) const OLDEST: &str = "SELECT min(due) FROM queue";

pub(crate) async fn counts<S: Sql>(sql: &mut S) -> Result<StateCounts, Error> {
    let mut counts = StateCounts::default();
    for mut row in sql.query(COUNTS, &[]).await? {
        let (state, count): (i64, u64) = (row.take()?, row.take()?);
        if let Some(place) = usize::try_from(state).ok().and_then(|state| counts.by_state.get_mut(state)) {
            *place = count;
        }
    }
    let oldest = first(sql, OLDEST, &[]).await?;
    counts.oldest_queued = oldest.map(|mut row| row.take()).transpose()?.flatten();
    Ok(counts)
}
