//! Issues: letters with equal failures, and their counts.

use crate::error::Error;
use crate::model::dead::{Depth, Issue, LetterQuery, NewLetter};
use crate::sql::{Sql, SqlValue, first, values};
use seawall_core::policy::Severity;
use seawall_core::record::Class;

/// Counts a letter in its issue, and creates the issue with the first letter.
pub(super) async fn file<S: Sql>(sql: &mut S, new: &NewLetter) -> Result<i64, Error> {
    let row = first(
        sql,
        "INSERT INTO issues (upstream, endpoint, class, code, severity, open, total, first_at, last_at, detail) \
         VALUES ($1, $2, $3, $4, $5, 1, 1, $6, $6, $7) ON CONFLICT (upstream, endpoint, class, code, severity) DO UPDATE SET \
         open = issues.open + 1, total = issues.total + 1, detail = excluded.detail, \
         last_at = CASE WHEN issues.last_at > excluded.last_at THEN issues.last_at ELSE excluded.last_at END RETURNING issue",
        values![&new.upstream, &new.endpoint, new.class.as_str(), &new.code, new.severity.as_str(), new.dead_at, &new.detail],
    )
    .await?;
    row.ok_or_else(|| Error::Failed("an issue was not kept".to_owned()))?.take()
}

/// Reverts `file` for a letter that existed already.
pub(super) async fn uncount<S: Sql>(sql: &mut S, issue: i64) -> Result<(), Error> {
    sql.execute("UPDATE issues SET open = open - 1, total = total - 1 WHERE issue = $1", values![issue]).await?;
    Ok(())
}

/// Changes the number of an issue's open letters.
pub(super) async fn recount<S: Sql>(sql: &mut S, issue: i64, by: i64) -> Result<(), Error> {
    sql.execute("UPDATE issues SET open = CASE WHEN open + $1 < 0 THEN 0 ELSE open + $1 END WHERE issue = $2", values![by, issue]).await?;
    Ok(())
}

/// Returns the issues that a filter matches. They are few, and spare lists the walk past letters of other issues.
pub(super) async fn matching_issues<S: Sql>(sql: &mut S, filter: &LetterQuery) -> Result<Option<Vec<i64>>, Error> {
    let mut wanted: Vec<(&str, SqlValue)> = Vec::new();
    wanted.extend(filter.upstream.as_ref().map(|upstream| ("upstream", upstream.into())));
    wanted.extend(filter.endpoint.as_ref().map(|endpoint| ("endpoint", endpoint.into())));
    wanted.extend(filter.class.map(|class| ("class", class.as_str().into())));
    wanted.extend(filter.code.as_ref().map(|code| ("code", code.into())));
    wanted.extend(filter.severity.map(|severity| ("severity", severity.as_str().into())));
    if wanted.is_empty() {
        return Ok(None);
    }
    let conditions: Vec<String> = (1..).zip(&wanted).map(|(n, (column, _))| format!("{column} = ${n}")).collect();
    let values: Vec<SqlValue> = wanted.into_iter().map(|(_, value)| value).collect();
    let rows = sql.query(&format!("SELECT issue FROM issues WHERE {}", conditions.join(" AND ")), &values).await?;
    rows.into_iter().map(|mut row| row.take()).collect::<Result<_, _>>().map(Some)
}

pub(crate) async fn list<S: Sql>(sql: &mut S) -> Result<Vec<Issue>, Error> {
    let statement = "SELECT upstream, endpoint, class, code, severity, open, total, first_at, last_at, detail FROM issues \
                     ORDER BY last_at DESC LIMIT 1000";
    let mut issues = Vec::new();
    for mut row in sql.query(statement, &[]).await? {
        issues.push(Issue {
            upstream: row.take()?,
            endpoint: row.take()?,
            class: row.word(Class::from_word)?,
            code: row.take()?,
            severity: row.word(Severity::from_word)?,
            open: row.take()?,
            total: row.take()?,
            first_at: row.take()?,
            last_at: row.take()?,
            detail: row.take()?,
        });
    }
    Ok(issues)
}

pub(crate) async fn depths<S: Sql>(sql: &mut S) -> Result<Vec<Depth>, Error> {
    let statement = "SELECT upstream, severity, CAST(sum(open) AS BIGINT) FROM issues GROUP BY upstream, severity";
    let mut depths = Vec::new();
    for mut row in sql.query(statement, &[]).await? {
        depths.push(Depth { queue: row.take()?, severity: row.word(Severity::from_word)?, open: row.take()? });
    }
    Ok(depths)
}
