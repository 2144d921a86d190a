//! Corrections after the clock was set back: waiting jobs keep their remaining wait.

use crate::error::Error;
use crate::sql::{Sql, first, values};
use seawall_core::id::CallId;
use seawall_core::time::{Nanos, Wall};

/// Tolerance for events that were due around the step.
const SLACK_MS: i64 = 5_000;

/// Shifts times that were set before the clock step and lie at least that far ahead: retries, ticks and reservations. Times written since
/// by the new clock are nearer, and times given by a submitter stay unchanged.
pub(crate) async fn set_back<S: Sql>(sql: &mut S, now: &Wall, by: &Nanos) -> Result<u64, Error> {
    let by = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
    let ahead = Wall(now.0.saturating_add(by).saturating_sub(SLACK_MS));
    // A job without an attempt waits for a time that its submitter gave.
    let retries = "UPDATE jobs SET due = due - $1 WHERE waits = 1 AND error IS NOT NULL AND due >= $2";
    let mut moved = sql.execute(retries, values![by, ahead]).await?;
    let ticks = "UPDATE subjects SET next_at = next_at - $1, next_retry_at = next_retry_at - $1, last_tick = last_tick - $1 \
                 WHERE coalesce(next_retry_at, next_at) >= $2";
    moved += sql.execute(ticks, values![by, ahead]).await?;
    moved +=
        sql.execute("UPDATE keys SET lease_until = lease_until - $1 WHERE state = 0 AND lease_until >= $2", values![by, ahead]).await?;
    Ok(moved)
}

/// Returns the creation time of the newest job, a time that the clock has reached before.
pub(crate) async fn newest<S: Sql>(sql: &mut S) -> Result<Option<Wall>, Error> {
    let newest = first(sql, "SELECT id FROM jobs ORDER BY id DESC LIMIT 1", &[]).await?;
    Ok(newest.map(|mut row| row.take::<CallId>()).transpose()?.map(CallId::created_at))
}
