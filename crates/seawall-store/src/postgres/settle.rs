//! Jobs are given back, and leases held: many at once, in one transaction.

use super::batch::Batch;
use super::jobs;
use super::pool::Pool;
use super::turns::{Groups, taken};
use super::tx::{Tx, ask};
use crate::error::Error;
use crate::job::{Ending, Lease, NewJob, Renewed, Settle, Settled, State};
use crate::settled::{self, Besides, Change, Held};
use deadpool_postgres::Object;
use seawall_core::time::Wall;
use std::collections::HashMap;
use std::sync::OnceLock;

impl Batch for Settle {
    type Answer = Settled;

    fn rows(&self) -> usize {
        1 + self.follow.len()
    }

    fn bytes(&self) -> usize {
        let own = match &self.ending {
            Ending::Done(response) => response.body.len(),
            Ending::Dead(letter) => letter.request.body.len(),
            Ending::Wait { .. } | Ending::Release | Ending::Failed { .. } | Ending::Cancelled => 0,
        };
        own + self.follow.iter().map(|job| job.request.body.len()).sum::<usize>()
    }

    async fn write(pool: &Pool, batch: &[Self], again: bool) -> Result<Vec<Settled>, Error> {
        let mut tx = Tx::begin(pool).await?;
        let settled = settle(&mut tx, batch, again).await;
        tx.end(settled).await
    }
}

/// Leases as columns.
struct Leases {
    rows: Vec<i64>,
    claims: Vec<i64>,
    tokens: Vec<i64>,
}

impl Leases {
    fn of(leases: impl Iterator<Item = Lease> + Clone) -> Self {
        let rows = leases.clone().map(|lease| lease.row).collect();
        let claims = leases.clone().map(|lease| lease.claim).collect();
        Self { rows, claims, tokens: leases.map(|lease| lease.token).collect() }
    }
}

/// In the order of rows, as everybody locks them.
const HELD: &str = "SELECT jobs.row, upstream, tenant, cancel, origin FROM jobs JOIN unnest($1::int8[], $2::int8[], $3::int8[]) \
                    AS held(row, claim, token) ON jobs.row = held.row AND jobs.claim = held.claim AND jobs.token = held.token \
                    WHERE state = 1 ORDER BY jobs.row FOR UPDATE OF jobs";

/// What this very claim left behind.
const LEFT: &str = "SELECT jobs.row, upstream, tenant, cancel, origin, state, finished_at, progress, history, error FROM jobs \
                    JOIN unnest($1::int8[], $2::int8[], $3::int8[]) AS held(row, claim, token) ON jobs.row = held.row \
                    AND jobs.claim = held.claim AND jobs.token = held.token WHERE state <> 1";

/// A job that nobody has claimed since.
struct Left {
    held: Held,
    state: State,
    finished_at: Option<Wall>,
    progress: String,
    history: String,
    error: Option<String>,
}

impl Left {
    /// What the settlement came to, if it is the one that left the job so. One that waited may have become ready since.
    fn by(&self, settle: &Settle) -> Result<Option<Settled>, Error> {
        let (settled, change, _) = settled::settle(settle, &self.held)?;
        let state = if change.state.is_over() { self.state == change.state } else { !self.state.is_over() };
        let rest = self.finished_at == change.finished_at
            && self.progress == change.progress
            && self.history == change.history
            && self.error == change.error.map(|error| jobs::text(error).into_owned());
        Ok((state && rest).then_some(settled))
    }
}

/// Settlements whose answer was lost with the connection are found by what they left.
async fn left(connection: &Object, leases: &Leases) -> Result<HashMap<i64, Left>, Error> {
    let mut left = HashMap::new();
    for mut row in ask(connection, LEFT, &[&leases.rows, &leases.claims, &leases.tokens]).await? {
        let number: i64 = row.take()?;
        let held = Held { upstream: row.take()?, tenant: row.take()?, cancel: row.take()?, origin: row.take()? };
        let state = row.number(State::from_number)?;
        let (finished_at, progress, history, error) = (row.take()?, row.take()?, row.take()?, row.take()?);
        left.insert(number, Left { held, state, finished_at, progress, history, error });
    }
    Ok(left)
}

async fn settle(tx: &mut Tx, batch: &[Settle], again: bool) -> Result<Vec<Settled>, Error> {
    let leases = Leases::of(batch.iter().map(|settle| settle.lease));
    let mut held: HashMap<i64, Held> = HashMap::new();
    for mut row in ask(tx.connection()?, HELD, &[&leases.rows, &leases.claims, &leases.tokens]).await? {
        held.insert(row.take()?, Held { upstream: row.take()?, tenant: row.take()?, cancel: row.take()?, origin: row.take()? });
    }
    let mut left = if again { left(tx.connection()?, &leases).await? } else { HashMap::new() };
    let (mut answers, mut changes, mut letters, mut follow) = (Vec::new(), Vec::new(), Vec::new(), Vec::<(&NewJob, Wall)>::new());
    let mut over = Vec::new();
    for settle in batch {
        // Taken out: a lease that is settled twice in one batch is lost the second time.
        let Some(held) = held.remove(&settle.lease.row) else {
            let before = left.remove(&settle.lease.row).map(|left| left.by(settle)).transpose()?.flatten();
            answers.push(before.unwrap_or(Settled::Lost));
            continue;
        };
        let (settled, change, besides) = settled::settle(settle, &held)?;
        if settled == Settled::Kept {
            follow.extend(settle.follow.iter().map(|job| (job, settle.now)));
        }
        if besides != Besides::Nothing {
            letters.push(besides);
        }
        changes.push((settle.lease.row, change));
        over.push(held);
        answers.push(settled);
    }
    write(tx.connection()?, &changes, &over).await?;
    for besides in letters {
        besides.write(tx).await?;
    }
    jobs::insert(tx.connection()?, &follow).await?;
    Ok(answers)
}

fn write_statement() -> &'static str {
    static SQL: OnceLock<String> = OnceLock::new();
    SQL.get_or_init(|| {
        let taken = taken("unnest($1::text[], $2::text[], $3::int8[]) AS g(upstream, tenant, n)");
        format!(
            "WITH {taken} UPDATE jobs SET state = s.state, turn = coalesce(taken.first + s.place, 0), due = coalesce(s.due, jobs.due), \
             finished_at = s.finished_at, progress = s.progress, history = s.history, error = s.error, \
             dedup = CASE WHEN s.keeps_dedup THEN jobs.dedup END, response_status = s.status, response_cut = s.cut, \
             response_headers = s.headers, response_body = s.body \
             FROM unnest($4::int8[], $5::int2[], $6::text[], $7::text[], $8::int8[], $9::int8[], $10::int8[], $11::text[], $12::text[], \
             $13::text[], $14::bool[], $15::int4[], $16::int2[], $17::text[], $18::bytea[]) AS s(row, state, upstream, tenant, place, due, \
             finished_at, progress, history, error, keeps_dedup, status, cut, headers, body) \
             LEFT JOIN taken ON s.state = 0 AND taken.upstream = s.upstream AND taken.tenant = s.tenant WHERE jobs.row = s.row"
        )
    })
}

async fn write(connection: &Object, changes: &[(i64, Change<'_>)], held: &[Held]) -> Result<(), Error> {
    if changes.is_empty() {
        return Ok(());
    }
    let mut groups = Groups::default();
    let place = |((_, change), held): (&(i64, Change<'_>), &'_ Held)| (change.is_queued(), held.upstream.clone(), held.tenant.clone());
    let lanes: Vec<(bool, String, String)> = changes.iter().zip(held).map(place).collect();
    let places: Vec<i64> =
        lanes.iter().map(|(queued, upstream, tenant)| if *queued { groups.place(upstream, tenant) } else { 0 }).collect();
    let (group_upstreams, group_tenants, group_counts) = groups.columns();
    let change = || changes.iter().map(|(_, change)| change);
    let response = || change().map(|change| change.response);
    let rows: Vec<i64> = changes.iter().map(|(row, _)| *row).collect();
    let states: Vec<i16> = change().map(|change| change.state as i16).collect();
    let upstreams: Vec<&str> = held.iter().map(|held| held.upstream.as_str()).collect();
    let tenants: Vec<&str> = held.iter().map(|held| held.tenant.as_str()).collect();
    let dues: Vec<Option<i64>> = change().map(|change| change.due.map(|at| at.0)).collect();
    let finished: Vec<Option<i64>> = change().map(|change| change.finished_at.map(|at| at.0)).collect();
    let progress: Vec<&str> = change().map(|change| change.progress.as_str()).collect();
    let histories: Vec<&str> = change().map(|change| change.history.as_str()).collect();
    let errors: Vec<Option<_>> = change().map(|change| change.error.map(jobs::text)).collect();
    let keeps: Vec<bool> = change().map(|change| change.keeps_dedup).collect();
    let statuses: Vec<Option<i32>> = response().map(|response| response.map(|response| response.status.into())).collect();
    let cuts: Vec<Option<i16>> = response().map(|response| response.map(|response| response.truncated.into())).collect();
    let headers: Vec<Option<String>> = change().map(Change::response_headers).collect::<Result<_, _>>()?;
    let bodies: Vec<Option<&[u8]>> = response().map(|response| response.map(|response| &response.body[..])).collect();
    ask(
        connection,
        write_statement(),
        &[
            &group_upstreams,
            &group_tenants,
            &group_counts,
            &rows,
            &states,
            &upstreams,
            &tenants,
            &places,
            &dues,
            &finished,
            &progress,
            &histories,
            &errors,
            &keeps,
            &statuses,
            &cuts,
            &headers,
            &bodies,
        ],
    )
    .await?;
    if group_counts.is_empty() { Ok(()) } else { jobs::wake(connection).await }
}

const RENEW: &str = "WITH mine AS MATERIALIZED (SELECT jobs.row AS r FROM jobs JOIN unnest($1::int8[], $2::int8[], $3::int8[]) \
                     AS held(row, claim, token) ON jobs.row = held.row AND jobs.claim = held.claim AND jobs.token = held.token \
                     WHERE state = 1 ORDER BY jobs.row FOR UPDATE OF jobs) \
                     UPDATE jobs SET lease_until = $4 FROM mine WHERE jobs.row = mine.r RETURNING jobs.row, jobs.cancel";

pub(super) async fn renew(pool: &Pool, leases: &[Lease], until: Wall) -> Result<Vec<Renewed>, Error> {
    let columns = Leases::of(leases.iter().copied());
    let mut found: HashMap<i64, bool> = HashMap::new();
    for mut row in ask(&pool.get().await?, RENEW, &[&columns.rows, &columns.claims, &columns.tokens, &until.0]).await? {
        found.insert(row.take()?, row.take()?);
    }
    Ok(leases
        .iter()
        .map(|lease| match found.get(&lease.row) {
            None => Renewed::Lost,
            Some(true) => Renewed::Cancelling,
            Some(false) => Renewed::Held,
        })
        .collect())
}
