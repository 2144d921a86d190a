//! Roll-ups: each row has a single writer.

use crate::error::Error;
use crate::json;
use crate::model::rollup::{MAX_ROLLUPS, RollupRow, from_bytes, to_bytes};
use crate::sql::{Sql, values};
use seawall_core::record::rollup::Rollup;
use seawall_core::time::Wall;

pub(crate) async fn put<S: Sql>(sql: &mut S, rows: &[RollupRow]) -> Result<(), Error> {
    let statement = "INSERT INTO rollups (start_at, upstream, endpoint, writer, counts, latencies) VALUES ($1, $2, $3, $4, $5, $6) \
                     ON CONFLICT (start_at, upstream, endpoint, writer) DO UPDATE SET counts = excluded.counts, latencies = excluded.latencies";
    for RollupRow { start_at, upstream, endpoint, writer, rollup } in rows {
        let latencies = to_bytes(&rollup.latency);
        sql.execute(statement, values![*start_at, upstream, endpoint, *writer, json::write(rollup)?, &latencies[..]]).await?;
    }
    Ok(())
}

/// Lists the rows of `from..to`, oldest first.
pub(crate) async fn between<S: Sql>(sql: &mut S, from: &Wall, to: &Wall, upstream: &Option<String>) -> Result<Vec<RollupRow>, Error> {
    let mut values = values![*from, *to, MAX_ROLLUPS].to_vec();
    let mut wanted = "start_at >= $1 AND start_at < $2".to_owned();
    if let Some(upstream) = upstream {
        values.push(upstream.into());
        wanted += " AND upstream = $4";
    }
    let statement = format!(
        "SELECT start_at, upstream, endpoint, writer, counts, latencies FROM rollups WHERE {wanted} \
         ORDER BY start_at, upstream, endpoint, writer LIMIT $3"
    );
    let mut rows = Vec::new();
    for mut row in sql.query(&statement, &values).await? {
        let (start_at, upstream, endpoint, writer) = (row.take()?, row.take()?, row.take()?, row.take()?);
        let mut rollup: Rollup = row.json()?;
        let latencies: Vec<u8> = row.take()?;
        rollup.latency = from_bytes(&latencies).ok_or_else(|| Error::Damaged("a roll-up's latencies cannot be read".to_owned()))?;
        rows.push(RollupRow { start_at, upstream, endpoint, writer, rollup });
    }
    Ok(rows)
}

/// Maximum rows deleted per sweep, so that no transaction is long: more than a day of a hundred endpoints.
const SWEPT: usize = 10_000;

/// Deletes the oldest rows; the next sweep continues.
pub(crate) async fn sweep<S: Sql>(sql: &mut S, before: &Wall) -> Result<usize, Error> {
    let statement = "DELETE FROM rollups WHERE (start_at, upstream, endpoint, writer) IN \
                     (SELECT start_at, upstream, endpoint, writer FROM rollups WHERE start_at < $1 ORDER BY start_at LIMIT $2)";
    let gone = sql.execute(statement, values![*before, SWEPT]).await?;
    Ok(usize::try_from(gone).unwrap_or(usize::MAX))
}
