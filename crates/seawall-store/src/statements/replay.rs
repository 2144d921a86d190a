//! Replays of many letters. A step advances the position and creates the letter's job in one transaction.

use super::letters;
use crate::error::Error;
use crate::failpoint;
use crate::json;
use crate::model::job::NewJob;
use crate::model::page::{Page, PageWindow};
use crate::model::replay::{Created, NewReplay, RECENT, Replay, ReplayCounts, ReplayState, Stepped};
use crate::sql::{RowReader, Sql, Write, first, values};
use seawall_core::id::CallId;
use seawall_core::time::Wall;

const REPLAY: &str = "id, state, reason, name, who, filter, upstreams, rate, canary, created_at, position, started, worked, failed, \
                      held_back, updated_at, recent";

fn replay(mut row: RowReader) -> Result<Replay, Error> {
    let id = row.take()?;
    let (number, reason) = (row.take()?, row.take()?);
    let state =
        ReplayState::from_number(number, reason).ok_or_else(|| Error::Damaged(format!("a replay is in the unknown state {number}")))?;
    let new = NewReplay {
        id,
        name: row.take()?,
        who: row.take()?,
        filter: row.take()?,
        upstreams: row.json()?,
        rate: row.take()?,
        canary: row.take()?,
        created_at: row.take()?,
    };
    let position = row.take()?;
    let counts = ReplayCounts { started: row.take()?, worked: row.take()?, failed: row.take()?, held_back: row.take()? };
    let (updated_at, recent): (Wall, i64) = (row.take()?, row.take()?);
    Ok(Replay { new, state, position, counts, recent_failures: recent.count_ones(), updated_at })
}

/// Starts a replay, unless a running one covers a common upstream.
pub(crate) async fn create<S: Sql>(sql: &mut S, new: &NewReplay) -> Result<Created, Error> {
    let mut upstreams = new.upstreams.clone();
    // In one lock order, to avoid deadlocks.
    upstreams.sort();
    upstreams.dedup();
    for (taken, upstream) in upstreams.iter().enumerate() {
        let take = "INSERT INTO replaying (upstream, replay) VALUES ($1, $2) ON CONFLICT DO NOTHING";
        if sql.execute(take, values![upstream, new.id]).await? > 0 {
            continue;
        }
        let found = first(sql, "SELECT replay FROM replaying WHERE upstream = $1", values![upstream]).await?;
        for upstream in &upstreams[..taken] {
            sql.execute("DELETE FROM replaying WHERE upstream = $1 AND replay = $2", values![upstream, new.id]).await?;
        }
        // It ended between the two statements; a repeated request succeeds.
        return found
            .map_or_else(|| Err(Error::Unavailable("a replay is just ending".to_owned())), |mut row| row.take().map(Created::Underway));
    }
    sql.execute(
        "INSERT INTO replays (id, state, name, who, filter, upstreams, rate, canary, created_at, updated_at) \
         VALUES ($1, 0, $2, $3, $4, $5, $6, $7, $8, $8)",
        values![new.id, &new.name, &new.who, &new.filter, json::write(&new.upstreams)?, &new.rate, new.canary, new.created_at],
    )
    .await?;
    Ok(Created::Started)
}

pub(crate) async fn one<S: Sql>(sql: &mut S, id: &CallId) -> Result<Option<Replay>, Error> {
    first(sql, &format!("SELECT {REPLAY} FROM replays WHERE id = $1"), values![*id]).await?.map(replay).transpose()
}

/// Lists replays, newest first.
pub(crate) async fn list<S: Sql>(sql: &mut S, window: &PageWindow) -> Result<Page<Replay>, Error> {
    let before = window.after.map_or([0xff; 16], CallId::to_bytes);
    let statement = format!("SELECT {REPLAY} FROM replays WHERE id < $1 ORDER BY id DESC LIMIT $2");
    let found = sql.query(&statement, values![before, window.rows()]).await?;
    Ok(window.page(found.into_iter().map(replay).collect::<Result<_, _>>()?, |replay| replay.new.id))
}

/// Pauses, resumes or ends a replay. Returns `false` if it is over or does not exist.
pub(crate) async fn set<S: Sql>(sql: &mut S, id: &CallId, state: &ReplayState, now: &Wall) -> Result<bool, Error> {
    let reason = if let ReplayState::Paused(reason) = state { Some(reason.as_str()) } else { None };
    // Resuming resets the recent failures, which the operator knows.
    let statement = "UPDATE replays SET state = $2, reason = $3, updated_at = $4, recent = recent * $5 \
                     WHERE id = $1 AND state < 2";
    let keeps_recent = i64::from(*state != ReplayState::Running);
    let changed = sql.execute(statement, values![*id, state.number(), reason, *now, keeps_recent]).await? > 0;
    if changed && matches!(state, ReplayState::Done | ReplayState::Cancelled) {
        sql.execute("DELETE FROM replaying WHERE replay = $1", values![*id]).await?;
    }
    Ok(changed)
}

/// Advances a replay to the next letter, with its job, or without one if the letter is held back.
pub(crate) async fn step<S: Write>(sql: &mut S, id: &CallId, letter: &CallId, job: &Option<NewJob>, now: &Wall) -> Result<Stepped, Error> {
    let move_on = "UPDATE replays SET position = $2, updated_at = $3 WHERE id = $1 AND state = 0 AND (position IS NULL OR position > $2)";
    if sql.execute(move_on, values![*id, *letter, *now]).await? == 0 {
        let running = first(sql, "SELECT 1 FROM replays WHERE id = $1 AND state = 0", values![*id]).await?.is_some();
        return Ok(if running { Stepped::Passed } else { Stepped::NotRunning });
    }
    failpoint::hit("step-in-transaction")?;
    if let Some(job) = job
        && let Some(by) = letters::replay(sql, letter, job, now).await?
    {
        sql.execute("UPDATE letters SET replay = $1 WHERE id = $2", values![*id, *letter]).await?;
        sql.execute("UPDATE replays SET started = started + 1 WHERE id = $1", values![*id]).await?;
        return Ok(Stepped::Started(by));
    }
    sql.execute("UPDATE replays SET held_back = held_back + 1 WHERE id = $1", values![*id]).await?;
    Ok(Stepped::HeldBack)
}

/// Counts the end of a letter's job in its replay, if any.
pub(super) async fn ended<S: Sql>(sql: &mut S, letter: i64, worked: bool) -> Result<(), Error> {
    let (count, bit) = if worked { ("worked = worked + 1", 0) } else { ("failed = failed + 1", 1) };
    let count = format!("{count}, recent = (recent * 2 + {bit}) & {}", (1_i64 << RECENT) - 1);
    let belongs = "(SELECT replay FROM letters WHERE row = $1 AND replay IS NOT NULL)";
    if sql.execute(&format!("UPDATE replays SET {count} WHERE id = {belongs}"), values![letter]).await? > 0 {
        sql.execute("UPDATE letters SET replay = NULL WHERE row = $1", values![letter]).await?;
    }
    Ok(())
}
