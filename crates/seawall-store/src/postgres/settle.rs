//! Settlements and renewals, in batches of one transaction each.

use super::batch::BatchCommand;
use super::fair_order::{FIRST, Groups, given};
use super::job_changes::ChangeColumns;
use super::pool::{PooledConnection, PostgresPool};
use super::transaction::{RELAXED, Tx, ask};
use super::{idempotency_keys, job_changes, jobs};
use crate::error::Error;
use crate::failpoint;
use crate::model::job::{JobEnding, JobLease, NewJob, Renewed, SettleJob, Settled};
use crate::rows::{GIVEN_BACK, LEFT, PLACED};
use crate::statements::jobs::forget_secrets;
use crate::statements::settled::{self, JobChange, SettledJob, SettlingJob, SideEffect, WrittenSettlement};
use seawall_core::time::Wall;
use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;
use tokio_postgres::types::ToSql;

impl BatchCommand for WrittenSettlement {
    type Answer = Settled;

    fn rows(&self) -> usize {
        1 + self.settle.follow.len()
    }

    fn bytes(&self) -> usize {
        let settle = &self.settle;
        let own = match &settle.ending {
            JobEnding::Done(response) => response.body.len(),
            JobEnding::Dead(letter) => letter.request.body.len(),
            JobEnding::Wait { .. } | JobEnding::Release | JobEnding::Failed { .. } | JobEnding::Cancelled => 0,
        };
        let said = settle.answer.as_ref().map_or(0, |response| response.body.len());
        let kept = settle.key.iter().filter_map(|key| key.response.as_ref()).map(|response| response.body.len()).sum::<usize>();
        own + said + kept + settle.follow.iter().map(|job| job.request.body.len()).sum::<usize>()
    }

    fn is_in_doubt(&self) -> bool {
        self.settle.again
    }

    async fn write(pool: &PostgresPool, batch: &[Self], doubt: &mut [bool]) -> Result<Vec<Settled>, Error> {
        let plain = settle_plain(&pool.get().await?, batch).await?;
        let mut rest: Vec<(&Self, bool)> = Vec::new();
        for ((settle, settled), doubt) in batch.iter().zip(&plain).zip(doubt) {
            match settled {
                Some(_) => *doubt = true,
                None => rest.push((settle, *doubt)),
            }
        }
        if rest.is_empty() {
            return Ok(plain.into_iter().flatten().collect());
        }
        let mut tx = Tx::begin(pool).await?;
        let settled = settle(&mut tx, &rest).await;
        let mut settled = tx.end(settled).await?.into_iter();
        Ok(plain.into_iter().map(|plain| plain.or_else(|| settled.next()).unwrap_or(Settled::Lost)).collect())
    }
}

/// Leases as columns, in the order of rows: the lock order of all statements.
pub(super) struct Leases {
    pub(super) rows: Vec<i64>,
    pub(super) tokens: Vec<i64>,
}

impl Leases {
    pub(super) fn of(leases: impl Iterator<Item = JobLease>) -> Self {
        let mut leases: Vec<(i64, i64)> = leases.map(|lease| (lease.row, lease.token)).collect();
        leases.sort_unstable();
        let (rows, tokens) = leases.into_iter().unzip();
        Self { rows, tokens }
    }
}

const HELD: &str = "SELECT held.row, held.token, upstream, tenant, cancel, origin FROM unnest($1::int8[], $2::int8[]) AS held(row, token) \
                    CROSS JOIN LATERAL (SELECT cancel FROM claims WHERE claims.row = held.row AND claims.token = held.token FOR UPDATE) AS claim \
                    CROSS JOIN LATERAL (SELECT upstream, tenant, origin FROM jobs WHERE jobs.row = held.row OFFSET 0) AS job";

/// Finds settlements whose reply was lost with the connection by their traces.
async fn find_settled(connection: &PooledConnection, leases: &Leases) -> Result<HashMap<(i64, i64), SettledJob>, Error> {
    let statement = format!(
        "SELECT held.row, held.token, {LEFT} FROM {PLACED} JOIN unnest($1::int8[], $2::int8[]) AS held(row, token) \
         ON jobs.row = held.row AND {GIVEN_BACK} = held.token"
    );
    let mut left = HashMap::new();
    for mut row in ask(connection, &statement, &[&leases.rows, &leases.tokens]).await? {
        left.insert((row.take()?, row.take()?), SettledJob::read(&mut row)?);
    }
    Ok(left)
}

async fn settle(tx: &mut Tx, batch: &[(&WrittenSettlement, bool)]) -> Result<Vec<Settled>, Error> {
    let leases = Leases::of(batch.iter().map(|(worded, _)| worded.settle.lease));
    let mut held: HashMap<(i64, i64), SettlingJob> = HashMap::new();
    for mut row in ask(tx.connection()?, HELD, &[&leases.rows, &leases.tokens]).await? {
        held.insert((row.take()?, row.take()?), SettlingJob::read(&mut row)?);
    }
    let in_doubt = batch.iter().any(|(_, doubt)| *doubt);
    let mut left = if in_doubt { find_settled(tx.connection()?, &leases).await? } else { HashMap::new() };
    let (mut answers, mut changes, mut letters, mut follow) = (Vec::new(), Vec::new(), Vec::new(), Vec::<(&NewJob, Wall)>::new());
    let (mut over, mut ended, mut forgotten) = (Vec::new(), Vec::new(), Vec::new());
    for (worded, doubt) in batch {
        let settle = &worded.settle;
        // Removed from the map: a lease that is settled twice in one batch is lost the second time.
        let lease = (settle.lease.row, settle.lease.token);
        let Some(held) = held.remove(&lease) else {
            let before = left.remove(&lease).filter(|_| *doubt).map(|left| left.by(worded)).transpose()?.flatten();
            answers.push(before.unwrap_or(Settled::Lost));
            continue;
        };
        let (settled, change, besides) = settled::settle(worded, &held)?;
        if settled == Settled::Kept {
            follow.extend(settle.follow.iter().map(|job| (job, settle.now)));
        }
        if besides != SideEffect::Nothing {
            letters.push(besides);
        }
        ended.extend(&settle.key);
        forgotten.extend((settle.forgets && change.finished_at.is_some()).then_some(settle.lease.row));
        changes.push((settle.lease, change));
        over.push(held);
        answers.push(settled);
    }
    write(tx.connection()?, &changes, &over).await?;
    failpoint::hit("settle-in-transaction")?;
    if !follow.is_empty() || changes.iter().any(|(_, change)| change.is_queued()) {
        tx.ring();
    }
    for besides in letters {
        besides.write(tx).await?;
    }
    forgotten.sort_unstable();
    for row in forgotten {
        forget_secrets(tx, row).await?;
    }
    idempotency_keys::finish(tx.connection()?, &ended).await?;
    jobs::insert(tx.connection()?, &follow).await?;
    Ok(answers)
}

/// Builds the statement for jobs whose claims are locked.
fn write_statement() -> &'static str {
    static SQL: OnceLock<String> = OnceLock::new();
    SQL.get_or_init(|| {
        let given = given("unnest($1::text[], $2::text[], $3::int8[]) AS g(upstream, tenant, n)");
        let (gone, over) = (job_changes::release_claims(3, &[("own", "int8"), ("place", "int8"), ("keeps_dedup", "bool")], ""), job_changes::insert_finished());
        let off = job_changes::requeue(&format!("CASE WHEN gone.state = 0 THEN {FIRST}[gone.own] + gone.place ELSE 0 END"));
        format!(
            "WITH {given}, {gone}, {over}, {off}, \
             queued AS (INSERT INTO queue (row, priority, turn, due, upstream) SELECT row, priority, turn, due, upstream FROM off WHERE waits = 0), \
             freed AS (UPDATE jobs SET dedup = NULL FROM gone WHERE jobs.row = gone.row AND gone.state >= 3 AND NOT gone.keeps_dedup \
             AND jobs.dedup IS NOT NULL) SELECT row, token FROM gone"
        )
    })
}

async fn write(connection: &PooledConnection, changes: &[(JobLease, JobChange<'_>)], held: &[SettlingJob]) -> Result<(), Error> {
    if changes.is_empty() {
        return Ok(());
    }
    let mut groups = Groups::default();
    let places =
        changes.iter().zip(held).map(|((_, change), held)| if change.is_queued() { groups.place(&held.upstream, &held.tenant) } else { 0 });
    let places: Vec<i64> = places.collect();
    let (group_upstreams, group_tenants, group_counts) = groups.columns();
    let own = groups.numbers(held.iter().map(|held| (held.upstream.as_str(), held.tenant.as_str())));
    let keeps: Vec<bool> = changes.iter().map(|(_, change)| change.keeps_dedup).collect();
    let columns = ChangeColumns::of(changes);
    let mut values: Vec<&(dyn ToSql + Sync)> = vec![&group_upstreams, &group_tenants, &group_counts];
    values.extend([&own as &(dyn ToSql + Sync), &places, &keeps]);
    values.extend(columns.values());
    ask(connection, write_statement(), &values).await.map(drop)
}

fn plain_statement() -> &'static str {
    static SQL: OnceLock<String> = OnceLock::new();
    SQL.get_or_init(|| {
        let (gone, over, off) =
            (job_changes::release_claims(0, &[], " AND claims.cancel = 0"), job_changes::insert_finished(), job_changes::requeue("0"));
        format!("WITH {gone}, {over}, {off} SELECT row, token FROM gone")
    })
}

/// Returns whether a settlement changes nothing but the job itself.
const fn is_short(settle: &SettleJob) -> bool {
    settle.follow.is_empty() && settle.key.is_none() && !settle.forgets
}

/// Writes all short settlements of a batch in one statement. Returns their results.
async fn settle_plain(connection: &PooledConnection, batch: &[WrittenSettlement]) -> Result<Vec<Option<Settled>>, Error> {
    let mut answers = vec![None; batch.len()];
    let mut plain = Vec::new();
    for (index, one) in batch.iter().enumerate().filter(|(_, one)| is_short(&one.settle)) {
        plain.extend(settled::plain(one)?.map(|(settled, change)| (index, settled, (one.settle.lease, change))));
    }
    if plain.is_empty() {
        return Ok(answers);
    }
    failpoint::hit("settle-in-transaction")?;
    // In the order of rows, the lock order of all statements. A lease that is settled twice is lost the second time.
    plain.sort_by_key(|(_, _, (lease, _))| (lease.row, lease.token));
    plain.dedup_by_key(|(_, _, (lease, _))| (lease.row, lease.token));
    let (places, changes): (Vec<(usize, Settled)>, Vec<_>) =
        plain.into_iter().map(|(index, settled, change)| ((index, settled), change)).unzip();
    let columns = ChangeColumns::of(&changes);
    let mut written: HashSet<(i64, i64)> = HashSet::new();
    for mut row in ask(connection, plain_statement(), &columns.values()).await? {
        written.insert((row.take()?, row.take()?));
    }
    for ((index, settled), (lease, _)) in places.into_iter().zip(&changes) {
        answers[index] = written.contains(&(lease.row, lease.token)).then_some(settled);
    }
    Ok(answers)
}

const RENEW: &str = "WITH mine AS MATERIALIZED (SELECT held.row AS r FROM unnest($1::int8[], $2::int8[]) AS held(row, token) \
                     CROSS JOIN LATERAL (SELECT 1 FROM claims WHERE claims.row = held.row AND claims.token = held.token FOR UPDATE) AS claim) \
                     UPDATE claims SET lease_until = $3 WHERE row = ANY(ARRAY(SELECT r FROM mine)) RETURNING row, token, cancel";

pub(super) async fn renew(pool: &PostgresPool, leases: &[JobLease], until: Wall) -> Result<Vec<Renewed>, Error> {
    let columns = Leases::of(leases.iter().copied());
    let mut found: HashMap<(i64, i64), bool> = HashMap::new();
    let statement = format!("{RENEW}, (SELECT {RELAXED})");
    for mut row in ask(&pool.get().await?, &statement, &[&columns.rows, &columns.tokens, &until.0]).await? {
        found.insert((row.take()?, row.take()?), row.take()?);
    }
    Ok(leases
        .iter()
        .map(|lease| match found.get(&(lease.row, lease.token)) {
            None => Renewed::Lost,
            Some(true) => Renewed::Cancelling,
            Some(false) => Renewed::Held,
        })
        .collect())
}
