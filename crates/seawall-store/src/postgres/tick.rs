//! Time-based maintenance: due jobs, lost workers, deletion of old jobs.

use super::fair_order::{FIRST, ORDER, given};
use super::pool::{PooledConnection, PostgresPool};
use super::transaction::{RELAXED, ask};
use crate::error::Error;
use crate::failpoint;
use crate::model::job::{ClockTick, Holder, JobState, MIXED, SUSPECT};
use seawall_core::id::CallId;
use seawall_core::time::{Nanos, Wall};
use std::sync::OnceLock;
use std::time::Duration;

/// Maximum jobs of each kind that one tick moves, so that no transaction is long.
const MAX_MOVED: usize = 2000;
/// Jobs deleted per statement, and the pause after it.
const SWEEP: usize = 50;
const PAUSE: Duration = Duration::from_millis(10);
/// The lanes with queued jobs: one index lookup each, however many jobs they have.
const LANES: &str = "WITH RECURSIVE lane AS ((SELECT upstream FROM queue ORDER BY upstream LIMIT 1) UNION ALL \
                     SELECT (SELECT upstream FROM queue WHERE upstream > lane.upstream ORDER BY upstream LIMIT 1) \
                     FROM lane WHERE lane.upstream IS NOT NULL) SELECT upstream FROM lane WHERE upstream IS NOT NULL";
/// The next event of each kind; the only query while nothing happens.
const NEXT: &str = "SELECT (SELECT lease_until FROM claims ORDER BY lease_until LIMIT 1), \
                    (SELECT due FROM jobs WHERE waits = 1 ORDER BY due LIMIT 1), (SELECT 1 FROM queue ORDER BY upstream LIMIT 1)";

fn ready_statement() -> &'static str {
    static SQL: OnceLock<String> = OnceLock::new();
    SQL.get_or_init(|| {
        let given = given("(SELECT upstream, tenant, count(*) AS n FROM picked GROUP BY 1, 2) AS g");
        format!(
            "WITH over AS MATERIALIZED (SELECT ctid AS t FROM claims WHERE lease_until <= $1 \
             ORDER BY lease_until LIMIT {MAX_MOVED} FOR UPDATE SKIP LOCKED), \
             gone AS (DELETE FROM claims WHERE ctid = ANY(ARRAY(SELECT t FROM over)) RETURNING row AS r, lease_until AS at, cancel, begun_at, rules, \
             CASE WHEN token >> 32 = $2 THEN 0 ELSE 1 END AS crashed), \
             late AS MATERIALIZED (SELECT r, upstream, tenant, at, cancel, crashed, gone.begun_at, gone.rules FROM gone JOIN jobs ON jobs.row = gone.r), \
             due AS MATERIALIZED (SELECT row AS r, upstream, tenant, due AS at FROM jobs WHERE waits = 1 AND due <= $1 \
             ORDER BY due LIMIT {MAX_MOVED} FOR UPDATE SKIP LOCKED), \
             picked AS (SELECT r, upstream, tenant, at, cancel, 1 AS lost, crashed, begun_at, rules FROM late \
             UNION ALL SELECT r, upstream, tenant, at, 0, 0, 0, NULL, NULL FROM due), \
             placed AS (SELECT r, cancel, lost, crashed, begun_at, rules, row_number() OVER (PARTITION BY upstream, tenant ORDER BY lost DESC, at, r) - 1 AS place, \
             dense_rank() OVER (ORDER BY {ORDER}) AS own FROM picked), {given}, \
             back AS (UPDATE jobs SET waits = 0, turn = {FIRST}[placed.own] + placed.place, due = $1, \
             crashes = CASE WHEN placed.crashed = 1 AND crashes < {SUSPECT} THEN crashes + 1 \
             WHEN placed.lost > placed.crashed THEN least(crashes, {SUSPECT}) ELSE crashes END, \
             begun_at = coalesce(placed.begun_at, jobs.begun_at), \
             lost_under = CASE WHEN placed.rules IS NULL OR jobs.lost_under = placed.rules THEN jobs.lost_under \
             WHEN jobs.lost_under IS NULL THEN placed.rules ELSE {MIXED} END \
             FROM placed WHERE jobs.row = placed.r RETURNING jobs.row, jobs.priority, jobs.turn, jobs.upstream, placed.cancel, placed.lost), \
             queued AS (INSERT INTO queue (row, priority, turn, due, cancel, upstream) SELECT row, priority, turn, $1, cancel, upstream FROM back) \
             SELECT lost, (SELECT {RELAXED}) FROM back"
        )
    })
}

pub(super) async fn tick(pool: &PostgresPool, now: Wall, holder: Option<Holder>) -> Result<ClockTick, Error> {
    let connection = pool.get().await?;
    let mut tick = ClockTick::default();
    let mut seen = read_clock_work(&connection).await?;
    if [seen.lease_over, seen.due].into_iter().flatten().any(|at| at <= now) {
        failpoint::hit("tick-before-commit")?;
        for mut row in ask(&connection, ready_statement(), &[&now.0, &holder.map(Holder::prefix)]).await? {
            let lost: bool = row.take()?;
            *(if lost { &mut tick.recovered } else { &mut tick.due }) += 1;
        }
        pool.bell().positions.clear();
        seen = read_clock_work(&connection).await?;
    }
    Ok(ClockTick { lanes: seen.lanes, next: seen.due, ..tick })
}

struct TickReading {
    /// Expiry of the first lease.
    lease_over: Option<Wall>,
    /// Time at which the first waiting job is due.
    due: Option<Wall>,
    lanes: Vec<String>,
}

async fn read_clock_work(connection: &PooledConnection) -> Result<TickReading, Error> {
    let next = ask(connection, NEXT, &[]).await?;
    let mut next = next.into_iter().next().ok_or_else(|| Error::Failed("a look found nothing".to_owned()))?;
    let (lease_over, due) = (next.take()?, next.take()?);
    let lanes = if next.take::<Option<i64>>()?.is_some() { ask(connection, LANES, &[]).await? } else { Vec::new() };
    Ok(TickReading { lease_over, due, lanes: lanes.into_iter().map(|mut row| row.take()).collect::<Result<_, _>>()? })
}

/// Deletes ended jobs, a few at a time with pauses, so that other requests get the server in between.
pub(super) async fn sweep(pool: &PostgresPool, finished_before: Wall, most: usize) -> Result<usize, Error> {
    let mut gone = 0;
    for state in [JobState::Done, JobState::Dead, JobState::Cancelled] {
        let mut after = vec![0; 16];
        while gone < most {
            let few = SWEEP.min(most - gone);
            let swept = forget(&pool.get().await?, state, &after, finished_before, few).await?;
            gone += swept.len();
            let is_all = swept.len() < few;
            tokio::time::sleep(PAUSE).await;
            match swept.into_iter().max() {
                Some(last) if !is_all => after = last,
                _ => break,
            }
        }
    }
    if gone < most {
        // A tenant whose last turn has passed would begin at its lane's present anyway, so its row is not needed.
        let idle = format!(
            "DELETE FROM turns t USING lanes l WHERE t.upstream = l.upstream AND t.last < l.present AND (t.upstream, t.tenant) IN \
             (SELECT t.upstream, t.tenant FROM turns t JOIN lanes l USING (upstream) WHERE t.last < l.present LIMIT 1000) \
             RETURNING (SELECT {RELAXED})"
        );
        ask(&pool.get().await?, &idle, &[]).await?;
    }
    Ok(gone)
}

/// Selects ids of jobs of one state to delete. Ids sort by age, so old ones are found without reading the recent ones. The walk begins
/// after the last deleted ids, whose index entries are not vacuumed yet. State and id are compared and sorted as one, and the state is a
/// literal; otherwise the planner reads all ended jobs.
async fn forget(
    connection: &PooledConnection,
    state: JobState,
    after: &[u8],
    finished_before: Wall,
    most: usize,
) -> Result<Vec<Vec<u8>>, Error> {
    let before = CallId::first_at(finished_before + Nanos::from_millis(1)).to_bytes();
    let statement = format!(
        "WITH gone AS (DELETE FROM ended WHERE ctid = ANY(ARRAY(SELECT ctid FROM ended WHERE (state, id) > ({state}, $1) \
         AND (state, id) < ({state}, $2) AND finished_at < $3 ORDER BY state, id LIMIT {most} FOR UPDATE SKIP LOCKED)) RETURNING row, id), \
         forgotten AS (DELETE FROM jobs WHERE row = ANY(ARRAY(SELECT row FROM gone))) \
         SELECT id, (SELECT {RELAXED}) FROM gone",
        state = state.number()
    );
    let gone = ask(connection, &statement, &[&after, &&before[..], &finished_before.0]).await?;
    gone.into_iter().map(|mut row| row.take()).collect()
}

pub(super) async fn time(pool: &PostgresPool) -> Result<Wall, Error> {
    let now = ask(&pool.get().await?, "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::int8", &[]).await?;
    now.into_iter().next().ok_or_else(|| Error::Failed("the database does not know the time".to_owned()))?.take()
}
