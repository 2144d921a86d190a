//! Subjects of schedules. The instance that advances the subject gets the tick, and creates its job in the same transaction.

use crate::error::Error;
use crate::failpoint;
use crate::model::page::MAX_ENTRIES;
use crate::model::schedule::{Firing, NewSubject, ScheduleSubject, SubjectSource, TickReport};
use crate::sql::{RowReader, Sql, Write, values};

const SUBJECT: &str = "schedule, subject, source, next_at, next_retry_at, last_ok_at, last_error, failures, stopped";

fn subject(mut row: RowReader) -> Result<ScheduleSubject, Error> {
    Ok(ScheduleSubject {
        schedule: row.take()?,
        subject: row.take()?,
        source: row.word(SubjectSource::parse)?,
        next_at: row.take()?,
        next_retry_at: row.take()?,
        last_ok_at: row.take()?,
        last_error: row.take()?,
        consecutive_failures: row.take()?,
        stopped: row.take()?,
    })
}

/// Adds missing subjects; existing ones stay unchanged. Returns the number added.
pub(crate) async fn put<S: Sql>(sql: &mut S, new: &[NewSubject]) -> Result<usize, Error> {
    let mut added = 0;
    for NewSubject { schedule, subject, source, next_at } in new {
        let update = "UPDATE subjects SET source = $3 WHERE schedule = $1 AND subject = $2";
        if sql.execute(update, values![schedule, subject, source.as_str()]).await? == 0 {
            let insert = "INSERT INTO subjects (schedule, subject, source, next_at) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";
            added += usize::try_from(sql.execute(insert, values![schedule, subject, source.as_str(), *next_at]).await?).unwrap_or(0);
        }
    }
    Ok(added)
}

pub(crate) async fn remove<S: Sql>(sql: &mut S, schedule: &str, subject: &str) -> Result<bool, Error> {
    Ok(sql.execute("DELETE FROM subjects WHERE schedule = $1 AND subject = $2", values![schedule, subject]).await? > 0)
}

/// Lists subjects by name, behind a cursor; of one schedule or of all.
pub(crate) async fn list<S: Sql>(
    sql: &mut S,
    schedule: &Option<String>,
    after: &Option<(String, String)>,
    limit: &usize,
) -> Result<Vec<ScheduleSubject>, Error> {
    let (last_schedule, last_subject) = after.clone().unwrap_or_default();
    let limit = (*limit).clamp(1, MAX_ENTRIES);
    let rows = if let Some(schedule) = schedule {
        let statement = format!("SELECT {SUBJECT} FROM subjects WHERE schedule = $1 AND subject > $2 ORDER BY subject LIMIT $3");
        sql.query(&statement, values![schedule, last_subject, limit]).await?
    } else {
        let statement = format!("SELECT {SUBJECT} FROM subjects WHERE (schedule, subject) > ($1, $2) ORDER BY schedule, subject LIMIT $3");
        sql.query(&statement, values![last_schedule, last_subject, limit]).await?
    };
    rows.into_iter().map(subject).collect()
}

/// Lists due subjects, longest due first.
pub(crate) async fn due<S: Sql>(sql: &mut S, now: &seawall_core::time::Wall, most: &usize) -> Result<Vec<ScheduleSubject>, Error> {
    let statement = format!(
        "SELECT {SUBJECT} FROM subjects WHERE stopped IS NULL AND coalesce(next_retry_at, next_at) <= $1 \
         ORDER BY coalesce(next_retry_at, next_at) LIMIT $2"
    );
    sql.query(&statement, values![*now, (*most).clamp(1, MAX_ENTRIES)]).await?.into_iter().map(subject).collect()
}

/// Advances a subject and creates the job of its tick. Returns `false` if another instance took the tick, or the subject is stopped or
/// gone.
pub(crate) async fn fire<S: Write>(sql: &mut S, firing: &Firing) -> Result<bool, Error> {
    let Firing { schedule, subject, tick, next_at, job, now } = firing;
    let moved = sql
        .execute(
            "UPDATE subjects SET last_tick = $3, next_at = $4, next_retry_at = NULL WHERE schedule = $1 AND subject = $2 \
             AND coalesce(next_retry_at, next_at) = $3 AND stopped IS NULL AND (last_tick IS NULL OR last_tick < $3)",
            values![schedule, subject, *tick, *next_at],
        )
        .await?;
    if moved > 0 {
        failpoint::hit("fire-in-transaction")?;
        sql.enqueue(job, *now).await?;
    }
    Ok(moved > 0)
}

pub(crate) async fn report<S: Sql>(sql: &mut S, schedule: &str, subject: &str, report: &TickReport) -> Result<bool, Error> {
    let changed = match report {
        TickReport::Ok { at } => {
            let statement = "UPDATE subjects SET last_ok_at = $3, last_error = NULL, failures = 0, next_retry_at = NULL \
                             WHERE schedule = $1 AND subject = $2";
            sql.execute(statement, values![schedule, subject, *at]).await?
        }
        TickReport::Failed { error, retry_at } => {
            let statement = "UPDATE subjects SET last_error = $3, failures = failures + 1, next_retry_at = $4 \
                             WHERE schedule = $1 AND subject = $2";
            sql.execute(statement, values![schedule, subject, error, *retry_at]).await?
        }
        TickReport::Stopped { reason } => {
            let statement =
                "UPDATE subjects SET last_error = $3, stopped = $3, failures = failures + 1 WHERE schedule = $1 AND subject = $2";
            sql.execute(statement, values![schedule, subject, reason]).await?
        }
    };
    Ok(changed > 0)
}

/// Resumes a stopped subject.
pub(crate) async fn resume<S: Sql>(sql: &mut S, schedule: &str, subject: &str, next_at: &seawall_core::time::Wall) -> Result<bool, Error> {
    let statement = "UPDATE subjects SET stopped = NULL, failures = 0, next_retry_at = NULL, next_at = $3, last_tick = NULL \
                     WHERE schedule = $1 AND subject = $2 AND stopped IS NOT NULL";
    Ok(sql.execute(statement, values![schedule, subject, *next_at]).await? > 0)
}
