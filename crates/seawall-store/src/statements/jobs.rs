//! Looking at jobs, calling them off, and calling those in that wait for nothing any more.

use crate::error::Error;
use crate::failpoint;
use crate::job::{Cancelled, Counts, Filter, Hasten, Hastened, Job, Lease, SUSPECT, State};
use crate::page::{Page, Window};
use crate::rows::{self, JOB};
use crate::settled::{CANCELLED, letter_of};
use crate::sql::{Sql, Value, count, first, values};
use crate::statements::letters;
use seawall_core::id::CallId;
use seawall_core::time::Wall;

pub(crate) async fn cancel<S: Sql>(sql: &mut S, id: &CallId, now: &Wall) -> Result<Cancelled, Error> {
    // Written first, so that whoever claims it at this moment is over or has to wait.
    let stopped = first(
        sql,
        "UPDATE jobs SET state = 5, finished_at = $2, error = $3, dedup = NULL WHERE id = $1 AND state IN (0, 2) RETURNING origin",
        values![*id, *now, CANCELLED],
    )
    .await?;
    if let Some(mut row) = stopped {
        failpoint::hit("cancel-in-transaction")?;
        if let Some(letter) = letter_of(row.take::<Option<String>>()?.as_deref())? {
            letters::replay_ended(sql, letter, false).await?;
        }
        return Ok(Cancelled::Now);
    }
    if sql.execute("UPDATE jobs SET cancel = 1 WHERE id = $1 AND state = 1", values![*id]).await? > 0 {
        return Ok(Cancelled::Asked);
    }
    match first(sql, "SELECT state FROM jobs WHERE id = $1", values![*id]).await? {
        None => Ok(Cancelled::Unknown),
        Some(mut row) => match row.number(State::from_number)? {
            state @ (State::Done | State::Dead | State::Cancelled) => Ok(Cancelled::Over(state)),
            // It changed between two looks; asking again finds it.
            State::Queued | State::Running | State::Waiting => Err(Error::Unavailable("the job is changing hands".to_owned())),
        },
    }
}

/// Blames a suspect for the end of its worker in advance; a settlement takes that back. Whoever is told again, because an answer got
/// lost, finds its own blame: nobody else's comes with this lease.
pub(crate) async fn blame<S: Sql>(sql: &mut S, lease: &Lease) -> Result<bool, Error> {
    let Lease { row, claim, token } = *lease;
    let statement = "UPDATE jobs SET crashes = $4 + 1 WHERE row = $1 AND claim = $2 AND token = $3 AND state = 1 AND crashes >= $4";
    Ok(sql.execute(statement, values![row, claim, token, SUSPECT]).await? > 0)
}

/// What one transaction calls in at most, so that nobody waits long behind it.
const HASTENED: usize = 200;
/// How far apart those are in milliseconds that are called in together: a hundred in a second, so that no herd forms.
const APART_MS: i64 = 10;

/// Walks on from where the last batch ended; a job that was called in is due before that place.
pub(crate) const WAITING_FOR: &str =
    "SELECT row, due FROM jobs WHERE state = 2 AND due >= $3 AND upstream = $1 AND error = $2 ORDER BY due LIMIT $4";

pub(crate) async fn hasten<S: Sql>(sql: &mut S, wish: &Hasten) -> Result<Hastened, Error> {
    // What is due before all of them would be is left as it is.
    let end = Wall(wish.from.0.saturating_add(APART_MS * count(HASTENED)));
    let statement = format!("{WAITING_FOR}{}", S::LOCK);
    let found = sql.query(&statement, values![&wish.upstream, wish.reason, end.max(wish.after), count(HASTENED)]).await?;
    let (is_full, mut jobs, mut after) = (found.len() == HASTENED, 0, wish.after);
    for (mut row, place) in found.into_iter().zip(0i64..) {
        let (job, due): (i64, Wall) = (row.take()?, row.take()?);
        let sooner = Wall(wish.from.0 + place * APART_MS);
        jobs += sql.execute("UPDATE jobs SET due = $2 WHERE row = $1 AND state = 2", values![job, sooner]).await?;
        failpoint::hit("hasten-in-transaction")?;
        after = due;
    }
    Ok(Hastened { jobs, next: is_full.then(|| Hasten { from: end, after, ..wish.clone() }) })
}

pub(crate) async fn one<S: Sql>(sql: &mut S, id: &CallId) -> Result<Option<Job>, Error> {
    let statement = format!("SELECT {JOB}, {}, response_body FROM jobs WHERE id = $1", S::BODY);
    let Some(mut row) = first(sql, &statement, values![*id]).await? else { return Ok(None) };
    let mut job = rows::job(&mut row)?;
    job.request.body = rows::body(row.take()?)?;
    let answer: Option<bytes::Bytes> = row.take()?;
    if let Some(response) = &mut job.response {
        response.body = answer.unwrap_or_default();
    }
    Ok(Some(job))
}

/// A page of one state is looked for among so many of the newest before anything else: where most jobs have that state, it is there.
const NEWEST: usize = 1000;
/// Up to so many open jobs of one state are sorted for a list; among more, the newest are found by walking from the newest.
const SORTED: usize = 50_000;

pub(crate) async fn list<S: Sql>(sql: &mut S, filter: &Filter, window: &Window) -> Result<Page<Job>, Error> {
    let open = filter.state.filter(|state| !state.is_over());
    if open.is_some() && filter.correlation_id.is_none() {
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

async fn found<S: Sql>(sql: &mut S, filter: &Filter, window: &Window, among: Among) -> Result<Vec<Job>, Error> {
    let (statement, values) = list_statement(filter, window, among);
    let rows = sql.query(&statement, &values).await?;
    rows.into_iter().map(|mut row| rows::job(&mut row)).collect()
}

/// Where a list is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Among {
    /// From the newest on, for as long as it takes.
    All,
    /// The newest, and no others.
    Newest,
    /// All of a state that has few.
    Few,
}

pub(crate) fn few_statement(state: State) -> String {
    let number = state.number();
    format!("SELECT count(*) < {SORTED} FROM (SELECT 1 FROM jobs WHERE state = {number} LIMIT {SORTED}) AS few")
}

pub(crate) fn list_statement(filter: &Filter, window: &Window, among: Among) -> (String, Vec<Value>) {
    let before = window.after.map_or([0xff; 16], CallId::to_bytes);
    let mut values: Vec<Value> = vec![before.into(), window.rows().into()];
    let mut wanted = "id < $1".to_owned();
    if let Some(state) = filter.state {
        let number = state.number();
        // Said twice, because SQLite uses an index of some rows only for who repeats which.
        let over = if state.is_over() { " AND state >= 3" } else { "" };
        wanted += &format!(" AND state = {number}{over}");
        if among == Among::Few {
            wanted = format!("row IN (SELECT row FROM jobs WHERE state = {number}) AND {wanted}");
        }
    }
    if let Some(upstream) = &filter.upstream {
        values.push(upstream.into());
        wanted += &format!(" AND upstream = ${}", values.len());
    }
    if let Some(correlation) = &filter.correlation_id {
        values.push(correlation.into());
        // Few jobs have one correlation, so they are sorted rather than looked for among all.
        wanted = format!("row IN (SELECT row FROM jobs WHERE correlation_id = ${}) AND {wanted}", values.len());
    }
    let jobs = match among {
        Among::All | Among::Few => "jobs".to_owned(),
        Among::Newest => format!("(SELECT * FROM jobs WHERE id < $1 ORDER BY id DESC LIMIT {NEWEST}) AS jobs"),
    };
    (format!("SELECT {JOB} FROM {jobs} WHERE {wanted} ORDER BY id DESC LIMIT $2"), values)
}

/// Each state by its own index.
pub(crate) const COUNTS: &str = "SELECT 0, count(*) FROM jobs WHERE state = 0 UNION ALL SELECT 1, count(*) FROM jobs WHERE state = 1 \
                                 UNION ALL SELECT 2, count(*) FROM jobs WHERE state = 2 \
                                 UNION ALL SELECT state, count(*) FROM jobs WHERE state >= 3 GROUP BY state";
pub(crate) const OLDEST: &str = "SELECT min(due) FROM jobs WHERE state = 0";

pub(crate) async fn counts<S: Sql>(sql: &mut S) -> Result<Counts, Error> {
    let mut counts = Counts::default();
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
