//! Submission of jobs: one statement per batch.

use super::batch::BatchCommand;
use super::fair_order::{FIRST, Groups, given};
use super::pool::{PooledConnection, PostgresPool};
use super::transaction::ask;
use crate::error::Error;
use crate::json;
use crate::model::history;
use crate::model::job::{Enqueued, JobOrigin, JobState, NewJob};
use crate::progress;
use crate::rows::{PLACED, STATE};
use crate::sql::text;
use seawall_core::id::CallId;
use seawall_core::time::Wall;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

#[derive(Debug)]
pub(super) struct Enqueue {
    pub(super) jobs: Vec<NewJob>,
    pub(super) now: Wall,
}

impl BatchCommand for Enqueue {
    type Answer = Vec<Enqueued>;

    fn rows(&self) -> usize {
        self.jobs.len()
    }

    fn bytes(&self) -> usize {
        self.jobs.iter().map(|job| job.request.body.len()).sum()
    }

    /// A job that exists already is found by its id.
    fn is_in_doubt(&self) -> bool {
        false
    }

    async fn write(pool: &PostgresPool, batch: &[Self], _doubt: &mut [bool]) -> Result<Vec<Vec<Enqueued>>, Error> {
        let connection = pool.get().await?;
        let jobs: Vec<(&NewJob, Wall)> = batch.iter().flat_map(|one| one.jobs.iter().map(|job| (job, one.now))).collect();
        let mut done = insert(&connection, &jobs).await?.into_iter();
        let mut ready = jobs.iter().filter(|(job, now)| job.run_at <= *now).map(|(job, _)| *job).peekable();
        if ready.peek().is_some() {
            pool.bell().ring_for(ready);
        }
        Ok(batch.iter().map(|one| done.by_ref().take(one.jobs.len()).collect()).collect())
    }
}

/// Builds a column of texts.
fn texts<'a>(jobs: &[(&'a NewJob, Wall)], of: impl Fn(&'a NewJob) -> &'a str) -> Vec<Cow<'a, str>> {
    jobs.iter().map(|(job, _)| text(of(job))).collect()
}

/// Builds a column of optional texts.
fn optional_column<'a>(jobs: &[(&'a NewJob, Wall)], of: impl Fn(&'a NewJob) -> &'a Option<String>) -> Vec<Option<Cow<'a, str>>> {
    jobs.iter().map(|(job, _)| of(job).as_deref().map(text)).collect()
}

/// Inserts in the order of arrival: of two jobs with one key the first is kept, whatever the plan.
fn insert_statement() -> &'static str {
    static SQL: OnceLock<String> = OnceLock::new();
    SQL.get_or_init(|| {
        let given = given("unnest($1::text[], $2::text[], $3::int8[]) AS g(upstream, tenant, n)");
        format!(
            "WITH {given}, kept AS (INSERT INTO jobs (turn, id, waits, upstream, tenant, caller, priority, due, run_at, expires_at, created_at, \
             progress, dedup, fingerprint, idempotency_key, correlation_id, callback, origin, method, path, history, headers, body) \
             SELECT CASE WHEN j.waits = 0 THEN {FIRST}[j.own] + j.place ELSE 0 END, j.id, j.waits, j.upstream, j.tenant, j.caller, \
             j.priority, j.due, j.run_at, j.expires_at, j.created_at, j.progress, j.dedup, j.fingerprint, j.idempotency_key, \
             j.correlation_id, j.callback, j.origin, j.method, j.path, j.history, j.headers, j.body \
             FROM unnest($4::int8[], $5::bytea[], $6::int2[], $7::text[], $8::text[], $9::text[], $10::int8[], $11::int8[], $12::int8[], \
             $13::int8[], $14::int8[], $15::text[], $16::bytea[], $17::bytea[], $18::text[], $19::text[], $20::text[], $21::text[], \
             $22::text[], $23::text[], $24::text[], $25::text[], $26::bytea[], $27::int8[]) WITH ORDINALITY AS j(place, id, waits, upstream, tenant, caller, priority, \
             due, run_at, expires_at, created_at, progress, dedup, fingerprint, idempotency_key, correlation_id, callback, origin, method, \
             path, history, headers, body, own, number) \
             ORDER BY j.number ON CONFLICT DO NOTHING RETURNING row, priority, turn, due, upstream, waits, id), \
             queued AS (INSERT INTO queue (row, priority, turn, due, upstream) \
             SELECT row, priority, turn, due, upstream FROM kept WHERE waits = 0) \
             SELECT id FROM kept"
        )
    })
}

/// The holder of a key may be cancelled between two statements, but hardly several times in a row for one job.
const ROUNDS: usize = 5;

/// Inserts jobs that do not exist yet; the replies are in order.
pub(super) async fn insert(connection: &PooledConnection, jobs: &[(&NewJob, Wall)]) -> Result<Vec<Enqueued>, Error> {
    let mut answers: Vec<Option<Enqueued>> = vec![None; jobs.len()];
    let mut open: Vec<usize> = (0..jobs.len()).collect();
    for _ in 0..ROUNDS {
        let round: Vec<(&NewJob, Wall)> = open.iter().map(|index| jobs[*index]).collect();
        for (index, answer) in open.iter().zip(once(connection, &round).await?) {
            answers[*index] = answer;
        }
        open.retain(|index| answers[*index].is_none());
        if open.is_empty() {
            break;
        }
    }
    answers.into_iter().map(|answer| answer.ok_or_else(|| Error::Unavailable("a key is changing hands".to_owned()))).collect()
}

/// Tries to insert each job. The result is `None` if a job was refused for a key that is free by now.
async fn once(connection: &PooledConnection, jobs: &[(&NewJob, Wall)]) -> Result<Vec<Option<Enqueued>>, Error> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    let (upstreams, tenants) = (texts(jobs, |job| &job.upstream), texts(jobs, |job| &job.tenant));
    let mut groups = Groups::default();
    let (mut places, mut waiting): (Vec<i64>, Vec<i16>) = (Vec::new(), Vec::new());
    for (index, (job, now)) in jobs.iter().enumerate() {
        let waits = job.run_at > *now;
        waiting.push(waits.into());
        places.push(if waits { 0 } else { groups.place(&upstreams[index], &tenants[index]) });
    }
    let (group_upstreams, group_tenants, group_counts) = groups.columns();
    let own = groups.numbers(upstreams.iter().zip(&tenants).map(|(upstream, tenant)| (&**upstream, &**tenant)));
    let ids: Vec<Vec<u8>> = jobs.iter().map(|(job, _)| job.id.to_bytes().to_vec()).collect();
    let number = |of: &dyn Fn(&NewJob, Wall) -> i64| -> Vec<i64> { jobs.iter().map(|(job, now)| of(job, *now)).collect() };
    let expires: Vec<Option<i64>> = jobs.iter().map(|(job, _)| job.expires_at.map(|at| at.0)).collect();
    let used: Vec<String> = jobs.iter().map(|(job, _)| progress::write(&job.progress)).collect();
    let dedups: Vec<Option<&[u8]>> = jobs.iter().map(|(job, _)| job.dedup.as_ref().map(|hash| &hash[..])).collect();
    let fingerprints: Vec<&[u8]> = jobs.iter().map(|(job, _)| &job.fingerprint[..]).collect();
    let origin = |job: &NewJob| if job.origin == JobOrigin::Caller { Ok(None) } else { json::write(&job.origin).map(Some) };
    let origins: Vec<Option<String>> = jobs.iter().map(|(job, _)| origin(job)).collect::<Result<_, _>>()?;
    let histories: Vec<String> = jobs.iter().map(|(job, _)| history::to_json(&job.history)).collect();
    let headers: Vec<String> = jobs.iter().map(|(job, _)| json::pairs(&job.request.headers)).collect();
    let bodies: Vec<&[u8]> = jobs.iter().map(|(job, _)| &job.request.body[..]).collect();
    let keep = ask(
        connection,
        insert_statement(),
        &[
            &group_upstreams,
            &group_tenants,
            &group_counts,
            &places,
            &ids,
            &waiting,
            &upstreams,
            &tenants,
            &texts(jobs, |job| &job.caller),
            &number(&|job, _| job.priority),
            &number(&|job, now| job.run_at.max(now).0),
            &number(&|job, _| job.run_at.0),
            &expires,
            &number(&|_, now| now.0),
            &used,
            &dedups,
            &fingerprints,
            &optional_column(jobs, |job| &job.idempotency_key),
            &optional_column(jobs, |job| &job.correlation_id),
            &optional_column(jobs, |job| &job.callback),
            &origins,
            &texts(jobs, |job| &job.request.method),
            &texts(jobs, |job| &job.request.path),
            &histories,
            &headers,
            &bodies,
            &own,
        ],
    )
    .await?;
    let mut kept = keep.into_iter().map(|mut row| row.take()).collect::<Result<HashSet<CallId>, Error>>()?;
    // Removed from the set, because a second job with the same id was not inserted.
    let new: Vec<bool> = jobs.iter().map(|(job, _)| kept.remove(&job.id)).collect();
    let left: Vec<&NewJob> = jobs.iter().zip(&new).filter(|(_, new)| !**new).map(|((job, _), _)| *job).collect();
    let there = if left.is_empty() { ExistingJobs::default() } else { find_existing(connection, &left).await? };
    jobs.iter().zip(new).map(|((job, now), new)| if new { Ok(Some(Enqueued::New(job.id))) } else { there.of(job, *now) }).collect()
}

/// The existing jobs in place of those which were not inserted.
#[derive(Default)]
struct ExistingJobs {
    by_id: HashMap<CallId, FoundJob>,
    by_dedup: HashMap<Vec<u8>, FoundJob>,
}

#[derive(Clone)]
struct FoundJob {
    id: CallId,
    state: JobState,
    fingerprint: Vec<u8>,
    upstream: String,
    created_at: Wall,
}

async fn find_existing(connection: &PooledConnection, jobs: &[&NewJob]) -> Result<ExistingJobs, Error> {
    let ids: Vec<Vec<u8>> = jobs.iter().map(|job| job.id.to_bytes().to_vec()).collect();
    let dedups: Vec<&[u8]> = jobs.iter().filter_map(|job| job.dedup.as_ref().map(|hash| &hash[..])).collect();
    let found = format!("SELECT jobs.dedup, jobs.id, {STATE}, jobs.fingerprint, jobs.upstream, jobs.created_at FROM {PLACED}");
    let statement = format!("{found} WHERE jobs.id = ANY($1) UNION {found} WHERE jobs.dedup = ANY($2)");
    let mut there = ExistingJobs::default();
    for mut row in ask(connection, &statement, &[&ids, &dedups]).await? {
        let dedup: Option<Vec<u8>> = row.take()?;
        let (id, state) = (row.take()?, row.number(JobState::from_number)?);
        let found = FoundJob { id, state, fingerprint: row.take()?, upstream: row.take()?, created_at: row.take()? };
        there.by_dedup.extend(dedup.map(|dedup| (dedup, found.clone())));
        there.by_id.insert(found.id, found);
    }
    Ok(there)
}

impl ExistingJobs {
    fn of(&self, job: &NewJob, now: Wall) -> Result<Option<Enqueued>, Error> {
        if let Some(found) = self.by_id.get(&job.id) {
            // It is the same job, from a batch that was committed before its connection broke.
            let own = found.fingerprint[..] == job.fingerprint && found.upstream == text(&job.upstream) && found.created_at == now;
            return if own {
                Ok(Some(Enqueued::New(job.id)))
            } else {
                Err(Error::Failed("a job with this id is there already".to_owned()))
            };
        }
        let holder = job.dedup.and_then(|dedup| self.by_dedup.get(&dedup[..]));
        Ok(holder.map(|found| {
            if found.fingerprint[..] == job.fingerprint { Enqueued::Known(found.id, found.state) } else { Enqueued::Mismatch(found.id) }
        }))
    }
}
