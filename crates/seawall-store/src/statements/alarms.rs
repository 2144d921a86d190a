//! Alarms: a row belongs to the instance that inserted it, until another one takes it over.

use crate::error::Error;
use crate::model::alarm::{Alarm, MAX_ALARMS};
use crate::sql::{Sql, values};
use seawall_core::policy::Severity;

pub(crate) async fn list<S: Sql>(sql: &mut S) -> Result<Vec<Alarm>, Error> {
    let statement = "SELECT queue, severity, holder, raised_at, seen_at FROM alarms ORDER BY queue, severity LIMIT $1";
    let mut alarms = Vec::new();
    for mut row in sql.query(statement, values![MAX_ALARMS]).await? {
        let (queue, severity) = (row.take()?, row.word(Severity::from_word)?);
        alarms.push(Alarm { queue, severity, holder: row.take()?, raised_at: row.take()?, seen_at: row.take()? });
    }
    Ok(alarms)
}

/// Returns `false` if it is raised already.
pub(crate) async fn raise<S: Sql>(sql: &mut S, alarm: &Alarm) -> Result<bool, Error> {
    let Alarm { queue, severity, holder, raised_at, seen_at } = alarm;
    let statement = "INSERT INTO alarms (queue, severity, holder, raised_at, seen_at) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING";
    Ok(sql.execute(statement, values![queue, severity.as_str(), *holder, *raised_at, *seen_at]).await? > 0)
}

/// Replaces an alarm that has not changed.
pub(crate) async fn hold<S: Sql>(sql: &mut S, was: &Alarm, is: &Alarm) -> Result<bool, Error> {
    let statement = "UPDATE alarms SET holder = $5, raised_at = $6, seen_at = $7 \
                     WHERE queue = $1 AND severity = $2 AND holder = $3 AND seen_at = $4";
    let values = values![&was.queue, was.severity.as_str(), was.holder, was.seen_at, is.holder, is.raised_at, is.seen_at];
    Ok(sql.execute(statement, values).await? > 0)
}

/// Returns `false` if it has changed: another instance cleared it or holds it.
pub(crate) async fn clear<S: Sql>(sql: &mut S, alarm: &Alarm) -> Result<bool, Error> {
    let statement = "DELETE FROM alarms WHERE queue = $1 AND severity = $2 AND holder = $3 AND seen_at = $4";
    Ok(sql.execute(statement, values![&alarm.queue, alarm.severity.as_str(), alarm.holder, alarm.seen_at]).await? > 0)
}
