//! Notes of requests that may not be sent twice, written before they are sent. Concurrent notes share one statement, whose commit waits for
//! the server's disk.

use super::batch::BatchCommand;
use super::pool::PostgresPool;
use super::settle::Leases;
use super::transaction::ask;
use crate::error::Error;
use crate::model::job::JobLease;
use seawall_core::time::Wall;
use std::collections::HashSet;

#[derive(Debug)]
pub(super) struct Begin {
    pub(super) lease: JobLease,
    pub(super) now: Wall,
}

/// Claims are locked in the order of rows, like everywhere, to avoid deadlocks.
const BEGIN: &str = "WITH mine AS MATERIALIZED (SELECT held.row AS r FROM unnest($1::int8[], $2::int8[]) AS held(row, token) \
                     CROSS JOIN LATERAL (SELECT 1 FROM claims WHERE claims.row = held.row AND claims.token = held.token FOR UPDATE) AS claim) \
                     UPDATE claims SET begun_at = $3 WHERE row = ANY(ARRAY(SELECT r FROM mine)) RETURNING row, token";

impl BatchCommand for Begin {
    type Answer = bool;

    fn rows(&self) -> usize {
        1
    }

    fn bytes(&self) -> usize {
        0
    }

    /// A repeated note changes nothing.
    fn is_in_doubt(&self) -> bool {
        false
    }

    async fn write(pool: &PostgresPool, batch: &[Self], _doubt: &mut [bool]) -> Result<Vec<bool>, Error> {
        let leases = Leases::of(batch.iter().map(|begin| begin.lease));
        let now = batch.iter().map(|begin| begin.now.0).min().unwrap_or_default();
        let mut begun: HashSet<(i64, i64)> = HashSet::new();
        for mut row in ask(&pool.get().await?, BEGIN, &[&leases.rows, &leases.tokens, &now]).await? {
            begun.insert((row.take()?, row.take()?));
        }
        Ok(batch.iter().map(|begin| begun.contains(&(begin.lease.row, begin.lease.token))).collect())
    }
}
