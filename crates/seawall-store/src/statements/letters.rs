//! Dead letters: stored, replayed and deleted. An issue's counts change in the same transaction as its letters.

use super::issues::{self, file, recount, uncount};
use super::replay;
use crate::error::Error;
use crate::failpoint;
use crate::json;
use crate::model::dead::{Expired, Expiry, Letter, LetterQuery, LetterStatus, NewLetter};
use crate::model::history;
use crate::model::job::{Enqueued, NewJob};
use crate::model::page::{Page, PageWindow};
use crate::rows::{self, LETTER};
use crate::sql::{Sql, SqlValue, Write, first, values};
use seawall_core::id::CallId;
use seawall_core::policy::Severity;
use seawall_core::record::Class;
use seawall_core::time::Wall;

/// Stores a letter. An existing one stays unchanged: an import or a crash may repeat the write.
pub(crate) async fn keep<S: Sql>(sql: &mut S, new: &NewLetter) -> Result<(), Error> {
    if first(sql, "SELECT 1 FROM letters WHERE id = $1", values![new.id]).await?.is_some() {
        return Ok(());
    }
    let issue = file(sql, new).await?;
    failpoint::hit("keep-in-transaction")?;
    let kept = sql
        .execute(
            "INSERT INTO letters (id, issue, status, dead_at, expires_at, replayable, door, tenant, caller, reason, attempts, \
         last_attempt_at, enqueued_at, correlation_id, idempotency_key, url, detail, instructions, method, path, history, headers, \
         body_cut, body) VALUES ($1, $2, 0, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, \
         $22, $23) ON CONFLICT DO NOTHING",
            values![
                new.id,
                issue,
                new.dead_at,
                new.expires_at,
                new.replayable,
                new.door.as_str(),
                &new.tenant,
                &new.caller,
                &new.reason,
                new.attempts,
                new.last_attempt_at,
                new.enqueued_at,
                &new.correlation_id,
                &new.idempotency_key,
                &new.url,
                &new.detail,
                &new.instructions,
                &new.request.method,
                &new.request.path,
                history::to_json(&new.history),
                json::pairs(&new.request.headers),
                new.body_cut,
                &new.request.body,
            ],
        )
        .await?;
    // A concurrent request has stored it meanwhile.
    if kept == 0 { uncount(sql, issue).await } else { Ok(()) }
}

pub(crate) async fn keep_all<S: Sql>(sql: &mut S, letters: &[NewLetter]) -> Result<(), Error> {
    for letter in letters {
        keep(sql, letter).await?;
    }
    Ok(())
}

async fn found<S: Sql>(sql: &mut S, id: CallId) -> Result<Option<(i64, i64, LetterStatus)>, Error> {
    let row = first(sql, "SELECT row, issue, status FROM letters WHERE id = $1", values![id]).await?;
    row.map(|mut row| Ok((row.take()?, row.take()?, row.number(LetterStatus::from_number)?))).transpose()
}

/// Ends the replay of a letter that succeeded or was cancelled.
pub(crate) async fn replay_ended<S: Sql>(sql: &mut S, id: CallId, worked: bool) -> Result<(), Error> {
    let Some((row, issue, LetterStatus::Replaying)) = found(sql, id).await? else { return Ok(()) };
    let status = if worked { LetterStatus::Replayed } else { LetterStatus::Kept };
    sql.execute("UPDATE letters SET status = $1 WHERE row = $2", values![status.number(), row]).await?;
    replay::ended(sql, row, worked).await?;
    if worked { Ok(()) } else { recount(sql, issue, 1).await }
}

/// Ends the replay of a letter that failed in the same or a new way: the letter is open again, with the new error.
pub(crate) async fn replay_failed<S: Sql>(sql: &mut S, id: CallId, new: &NewLetter) -> Result<(), Error> {
    let Some((row, _, LetterStatus::Replaying)) = found(sql, id).await? else { return keep(sql, new).await };
    let issue = file(sql, new).await?;
    sql.execute(
        "UPDATE letters SET status = 0, issue = $1, reason = $2, detail = $3, attempts = attempts + $4, last_attempt_at = $5, \
         dead_at = $6, expires_at = $7, replayable = $8, history = $9 WHERE row = $10",
        values![
            issue,
            &new.reason,
            &new.detail,
            new.attempts,
            new.last_attempt_at,
            new.dead_at,
            new.expires_at,
            new.replayable,
            history::to_json(&new.history),
            row
        ],
    )
    .await?;
    replay::ended(sql, row, false).await
}

/// Creates the job of a letter's replay, in one transaction, so that two concurrent requests create one job. Returns `None` if a job is
/// replaying it, or it is replayed or gone.
pub(super) async fn replay<S: Write>(sql: &mut S, id: &CallId, job: &NewJob, now: &Wall) -> Result<Option<CallId>, Error> {
    // The write comes first: of two concurrent requests, the second waits here for the first and then changes nothing.
    let taken = first(
        sql,
        "UPDATE letters SET status = 1, replays = replays + 1, replayed_by = $1 WHERE id = $2 AND status = 0 RETURNING row, issue",
        values![job.id, *id],
    )
    .await?;
    let Some(mut taken) = taken else { return Ok(None) };
    let (row, issue): (i64, i64) = (taken.take()?, taken.take()?);
    let by = match sql.enqueue(job, *now).await? {
        Enqueued::New(by) => by,
        Enqueued::Known(by, _) | Enqueued::Mismatch(by) => {
            sql.execute("UPDATE letters SET replayed_by = $1 WHERE row = $2", values![by, row]).await?;
            by
        }
    };
    recount(sql, issue, -1).await?;
    Ok(Some(by))
}

pub(crate) async fn discard<S: Sql>(sql: &mut S, id: &CallId) -> Result<bool, Error> {
    let gone = first(sql, "DELETE FROM letters WHERE id = $1 AND status <> 1 RETURNING issue, status", values![*id]).await?;
    let Some(mut row) = gone else { return Ok(false) };
    let (issue, status) = (row.take()?, row.number(LetterStatus::from_number)?);
    if status == LetterStatus::Kept {
        recount(sql, issue, -1).await?;
    }
    Ok(true)
}

pub(crate) async fn expire<S: Sql>(sql: &mut S, now: &Wall, most: &usize) -> Result<Expiry, Error> {
    let rows = sql
        .query(
            "SELECT l.row, l.status, l.issue, l.id, i.upstream, i.endpoint, i.class, i.code, i.severity, l.dead_at FROM letters l \
             JOIN issues i USING (issue) WHERE l.expires_at <= $1 AND l.status <> 1 ORDER BY l.expires_at LIMIT $2",
            values![*now, *most],
        )
        .await?;
    let mut expiry = Expiry::default();
    for mut row in rows {
        let (number, status): (i64, i64) = (row.take()?, row.take()?);
        // Another request may have deleted it, or begun to replay it.
        let gone = sql.execute("DELETE FROM letters WHERE row = $1 AND status = $2", values![number, status]).await?;
        expiry.gone += usize::from(gone > 0);
        // A replayed letter does not count as expired.
        if gone == 0 || status != LetterStatus::Kept.number() {
            continue;
        }
        failpoint::hit("expire-in-transaction")?;
        recount(sql, row.take()?, -1).await?;
        expiry.unheeded.push(Expired {
            id: row.take()?,
            upstream: row.take()?,
            endpoint: row.take()?,
            class: row.word(Class::from_word)?,
            code: row.take()?,
            severity: row.word(Severity::from_word)?,
            dead_at: row.take()?,
        });
    }
    Ok(expiry)
}

pub(crate) async fn one<S: Sql>(sql: &mut S, id: &CallId) -> Result<Option<Letter>, Error> {
    let statement = format!("SELECT {LETTER}, l.body FROM letters l JOIN issues i USING (issue) WHERE l.id = $1");
    let Some(mut row) = first(sql, &statement, values![*id]).await? else { return Ok(None) };
    let mut letter = rows::letter(&mut row)?;
    letter.letter.request.body = row.take::<Option<bytes::Bytes>>()?.unwrap_or_default();
    Ok(Some(letter))
}

/// Maximum letters, newest first, in which a text is searched.
const SEARCHED: usize = 100_000;

pub(crate) async fn list<S: Sql>(sql: &mut S, filter: &LetterQuery, window: &PageWindow) -> Result<Page<Letter>, Error> {
    let statuses = filter.status.map_or_else(|| LetterStatus::ALL.to_vec(), |status| vec![status]);
    let mut letters = Vec::new();
    if filter.ids.is_empty() {
        let issues =
            issues::matching_issues(sql, filter).await?.map_or_else(|| vec![None], |issues| issues.into_iter().map(Some).collect());
        for issue in issues {
            for status in &statuses {
                run(sql, filter, *window, *status, issue, &mut letters).await?;
            }
        }
    } else {
        for id in &filter.ids {
            letters.extend(one(sql, id).await?.filter(|letter| filter.status.is_none_or(|status| letter.status == status)));
        }
        letters.retain(|letter| window.after.is_none_or(|before| letter.letter.id < before));
    }
    letters.sort_by_key(|letter| std::cmp::Reverse(letter.letter.id));
    letters.truncate(window.rows());
    Ok(window.page(letters, |letter| letter.letter.id))
}

/// Returns the newest letters of one status, and of one issue if given.
async fn run<S: Sql>(
    sql: &mut S,
    filter: &LetterQuery,
    window: PageWindow,
    status: LetterStatus,
    issue: Option<i64>,
    into: &mut Vec<Letter>,
) -> Result<(), Error> {
    let mut values: Vec<SqlValue> = vec![status.number().into(), before(filter, window).into()];
    // Compared and sorted as one: for a status that most letters have, or none, the planner would otherwise walk by id alone past all the
    // others.
    let mut page = "SELECT id FROM letters WHERE (status, id) < ($1, $2) AND status >= $1".to_owned();
    if let Some(issue) = issue {
        values.push(issue.into());
        page += " AND issue = $3";
    }
    if let Some(since) = filter.since {
        values.push(CallId::first_at(since).into());
        page += &format!(" AND id >= ${}", values.len());
    }
    page += " ORDER BY status DESC, id DESC";
    if let Some(text) = &filter.text {
        values.push(text.into());
        let (n, find) = (values.len(), S::FIND);
        page = format!(
            "SELECT l.id FROM ({page} LIMIT {SEARCHED}) AS newest CROSS JOIN letters l WHERE l.id = newest.id AND \
             ({find}(l.url, ${n}) > 0 OR {find}(l.detail, ${n}) > 0 OR {find}(l.reason, ${n}) > 0 OR l.correlation_id = ${n}) \
             ORDER BY l.id DESC"
        );
    }
    let statement = format!(
        "SELECT {LETTER} FROM ({page} LIMIT {}) AS page CROSS JOIN letters l CROSS JOIN issues i WHERE l.id = page.id AND i.issue = l.issue",
        window.rows()
    );
    for mut row in sql.query(&statement, &values).await? {
        into.push(rows::letter(&mut row)?);
    }
    Ok(())
}

fn before(filter: &LetterQuery, window: PageWindow) -> [u8; 16] {
    let cursor = window.after.map_or([0xff; 16], CallId::to_bytes);
    filter.until.map_or(cursor, |until| cursor.min(CallId::first_at(until).to_bytes()))
}
