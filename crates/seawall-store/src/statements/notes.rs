//! Snapshots, the audit list, and unnamed errors.

use crate::error::Error;
use crate::model::notes::{AuditEntry, NumberedEntry, UnnamedGroup};
use crate::model::page::MAX_ENTRIES;
use crate::sql::{Sql, first, values};
use bytes::Bytes;
use seawall_core::time::Wall;

/// Maximum audit entries.
const MAX_DEEDS: i64 = 100_000;
/// Maximum unnamed errors; the oldest are dropped first.
const MAX_UNNAMED: i64 = 10_000;
/// Maximum named errors that are read; more rules belong in the configuration file.
const MAX_NAMED: usize = 1000;

pub(crate) async fn put_snapshot<S: Sql>(sql: &mut S, name: &str, content: &Bytes, now: &Wall) -> Result<(), Error> {
    let statement = "INSERT INTO snapshots (name, at, content) VALUES ($1, $2, $3) \
                     ON CONFLICT (name) DO UPDATE SET at = excluded.at, content = excluded.content";
    sql.execute(statement, values![name, *now, content]).await.map(drop)
}

pub(crate) async fn snapshot<S: Sql>(sql: &mut S, name: &str) -> Result<Option<(Wall, Bytes)>, Error> {
    let row = first(sql, "SELECT at, content FROM snapshots WHERE name = $1", values![name]).await?;
    row.map(|mut row| Ok((row.take()?, row.take()?))).transpose()
}

pub(crate) async fn record<S: Sql>(sql: &mut S, deed: &AuditEntry) -> Result<(), Error> {
    let insert = "INSERT INTO audit (at, who, action, detail) VALUES ($1, $2, $3, $4) RETURNING number";
    let row = first(sql, insert, values![deed.at, &deed.who, &deed.action, &deed.detail]).await?;
    let number: i64 = row.map_or(Ok(0), |mut row| row.take())?;
    sql.execute("DELETE FROM audit WHERE number <= $1", values![number - MAX_DEEDS]).await.map(drop)
}

/// Lists audit entries before a number, newest first.
pub(crate) async fn audit<S: Sql>(sql: &mut S, before: &Option<i64>, limit: &usize) -> Result<Vec<NumberedEntry>, Error> {
    let statement = "SELECT number, at, who, action, detail FROM audit WHERE number < $1 ORDER BY number DESC LIMIT $2";
    let rows = sql.query(statement, values![before.unwrap_or(i64::MAX), (*limit).clamp(1, MAX_ENTRIES)]).await?;
    let deed = |mut row: crate::sql::RowReader| {
        let number = row.take()?;
        Ok(NumberedEntry { number, deed: AuditEntry { at: row.take()?, who: row.take()?, action: row.take()?, detail: row.take()? } })
    };
    rows.into_iter().map(deed).collect()
}

/// Counts errors that no rule names.
pub(crate) async fn note<S: Sql>(sql: &mut S, errors: &[UnnamedGroup]) -> Result<(), Error> {
    let mut errors: Vec<&UnnamedGroup> = errors.iter().collect();
    errors.sort_by_key(|error| &error.fingerprint);
    let statement = "INSERT INTO unnamed (fingerprint, upstream, endpoint, status, seen, first_at, last_at, sample, member, value) \
                     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) \
                     ON CONFLICT (fingerprint) DO UPDATE SET seen = unnamed.seen + excluded.seen, \
                     last_at = CASE WHEN unnamed.last_at > excluded.last_at THEN unnamed.last_at ELSE excluded.last_at END, \
                     sample = excluded.sample, member = excluded.member, value = excluded.value";
    for e in errors {
        let (member, value) = e.member.as_ref().map(|(member, value)| (member.as_str(), value.as_str())).unzip();
        let values = values![&e.fingerprint, &e.upstream, &e.endpoint, &e.status, e.seen, e.first_at, e.last_at, &e.sample, member, value];
        sql.execute(statement, values).await?;
    }
    let forget = "DELETE FROM unnamed WHERE fingerprint IN \
                  (SELECT fingerprint FROM unnamed WHERE named_as IS NULL ORDER BY last_at DESC LIMIT 1000 OFFSET $1)";
    sql.execute(forget, values![MAX_UNNAMED]).await.map(drop)
}

/// Returns the errors with a name, which are rules as well, and the newest of the others.
pub(crate) async fn unnamed<S: Sql>(sql: &mut S, limit: &usize) -> Result<Vec<UnnamedGroup>, Error> {
    let mut errors = Vec::new();
    for (which, limit) in [("named_as IS NOT NULL", MAX_NAMED), ("named_as IS NULL", (*limit).clamp(1, MAX_ENTRIES))] {
        let statement = format!(
            "SELECT fingerprint, upstream, endpoint, status, seen, first_at, last_at, sample, named_as, member, value FROM unnamed \
             WHERE {which} ORDER BY last_at DESC, fingerprint LIMIT $1"
        );
        for mut row in sql.query(&statement, values![limit]).await? {
            errors.push(UnnamedGroup {
                fingerprint: row.take()?,
                upstream: row.take()?,
                endpoint: row.take()?,
                status: row.take()?,
                seen: row.take()?,
                first_at: row.take()?,
                last_at: row.take()?,
                sample: row.take()?,
                named_as: row.take()?,
                member: row.take::<Option<String>>()?.zip(row.take()?),
            });
        }
    }
    Ok(errors)
}

/// Sets or removes the class of an error. Returns `false` if there is no such error.
pub(crate) async fn name<S: Sql>(sql: &mut S, fingerprint: &str, named_as: &Option<String>) -> Result<bool, Error> {
    Ok(sql.execute("UPDATE unnamed SET named_as = $2 WHERE fingerprint = $1", values![fingerprint, named_as]).await? > 0)
}
