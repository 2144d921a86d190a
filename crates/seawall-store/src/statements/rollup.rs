//! Roll-ups: what comes is added to what is there.

use crate::error::Error;
use crate::rollup::{Counts, Latencies, Rollup};
use crate::sql::{Row, Sql, first, json, values};
use seawall_core::time::Wall;

/// Rows that one question brings at most: a week of a hundred endpoints.
const MOST: usize = 70_000;

fn numbers(row: &mut Row) -> Result<(Counts, Latencies), Error> {
    let counts = row.json()?;
    let bytes: Vec<u8> = row.take()?;
    let latencies = Latencies::from_bytes(&bytes).ok_or_else(|| Error::Damaged("a roll-up's latencies cannot be read".to_owned()))?;
    Ok((counts, latencies))
}

pub(crate) async fn add<S: Sql>(sql: &mut S, rollups: &[Rollup]) -> Result<(), Error> {
    let mut rollups: Vec<&Rollup> = rollups.iter().collect();
    // In one order for all, so that nobody waits in a circle.
    rollups.sort_by_key(|rollup| (rollup.start_at, &rollup.upstream, &rollup.endpoint));
    let select = format!("SELECT counts, latencies FROM rollups WHERE start_at = $1 AND upstream = $2 AND endpoint = $3{}", S::LOCK);
    for Rollup { start_at, upstream, endpoint, counts, latencies } in rollups {
        let insert =
            "INSERT INTO rollups (start_at, upstream, endpoint, counts, latencies) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING";
        if sql.execute(insert, values![*start_at, upstream, endpoint, json(counts)?, &latencies.to_bytes()[..]]).await? > 0 {
            continue;
        }
        let Some(mut row) = first(sql, &select, values![*start_at, upstream, endpoint]).await? else { continue };
        let (mut sum, mut all) = numbers(&mut row)?;
        sum.add(counts);
        all.add(latencies);
        let update = "UPDATE rollups SET counts = $4, latencies = $5 WHERE start_at = $1 AND upstream = $2 AND endpoint = $3";
        sql.execute(update, values![*start_at, upstream, endpoint, json(&sum)?, &all.to_bytes()[..]]).await?;
    }
    Ok(())
}

/// From the first time up to, but not with, the second; oldest first.
pub(crate) async fn between<S: Sql>(sql: &mut S, from: &Wall, to: &Wall, upstream: &Option<String>) -> Result<Vec<Rollup>, Error> {
    let mut values = values![*from, *to, MOST].to_vec();
    let mut wanted = "start_at >= $1 AND start_at < $2".to_owned();
    if let Some(upstream) = upstream {
        values.push(upstream.into());
        wanted += " AND upstream = $4";
    }
    let statement = format!(
        "SELECT start_at, upstream, endpoint, counts, latencies FROM rollups WHERE {wanted} ORDER BY start_at, upstream, endpoint LIMIT $3"
    );
    let mut rollups = Vec::new();
    for mut row in sql.query(&statement, &values).await? {
        let (start_at, upstream, endpoint) = (row.take()?, row.take()?, row.take()?);
        let (counts, latencies) = numbers(&mut row)?;
        rollups.push(Rollup { start_at, upstream, endpoint, counts, latencies });
    }
    Ok(rollups)
}

/// What one sweep forgets, so that no transaction is long: more than a day of a hundred endpoints.
const SWEPT: usize = 10_000;

/// Forgets the oldest; what is left is left for the next sweep.
pub(crate) async fn sweep<S: Sql>(sql: &mut S, before: &Wall) -> Result<usize, Error> {
    let statement = "DELETE FROM rollups WHERE (start_at, upstream, endpoint) IN \
                     (SELECT start_at, upstream, endpoint FROM rollups WHERE start_at < $1 ORDER BY start_at LIMIT $2)";
    let gone = sql.execute(statement, values![*before, SWEPT]).await?;
    Ok(usize::try_from(gone).unwrap_or(usize::MAX))
}
