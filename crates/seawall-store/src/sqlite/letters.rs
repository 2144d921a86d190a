//! Dead letters and the issues they are grouped into. An issue's numbers change in the same transaction as its letters.

use super::rows::{self, LETTER, json};
use super::{Sqlite, Tx, jobs};
use crate::dead::{Depth, Expired, Filter, Issue, Letter, NewLetter, Replayed, Status};
use crate::error::Error;
use crate::job::{Enqueued, NewJob};
use crate::page::{Page, Window};
use bytes::Bytes;
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension as _, params, params_from_iter};
use seawall_core::id::CallId;
use seawall_core::policy::Severity;
use seawall_core::record::Class;
use seawall_core::time::Wall;

impl Sqlite {
    pub(crate) async fn keep_letter(&self, letter: NewLetter) -> Result<(), Error> {
        self.write(move |tx| keep(tx.db, &letter)).await
    }

    pub(crate) async fn letter(&self, id: CallId) -> Result<Option<Letter>, Error> {
        self.read(move |db| one(db, id)).await
    }

    pub(crate) async fn letters(&self, filter: Filter, window: Window) -> Result<Page<Letter>, Error> {
        self.read(move |db| list(db, &filter, window)).await
    }

    pub(crate) async fn issues(&self) -> Result<Vec<Issue>, Error> {
        self.read(issues).await
    }

    pub(crate) async fn depths(&self) -> Result<Vec<Depth>, Error> {
        self.read(depths).await
    }

    pub(crate) async fn discard_letter(&self, id: CallId) -> Result<bool, Error> {
        self.finish(move |tx| discard(tx.db, id)).await
    }

    pub(crate) async fn replay_letter(&self, id: CallId, job: NewJob, now: Wall) -> Result<Replayed, Error> {
        self.write(move |tx| replay(tx, id, &job, now)).await
    }

    pub(crate) async fn expire_letters(&self, now: Wall, most: usize) -> Result<Vec<Expired>, Error> {
        self.finish(move |tx| expire(tx.db, now, most)).await
    }
}

/// Keeps a letter. One that is there already stays as it is: import and a crash between two writes may repeat it.
pub(super) fn keep(db: &Connection, new: &NewLetter) -> Result<(), Error> {
    let known = db.prepare_cached("SELECT 1 FROM letters WHERE id = ?")?.exists(params![new.id.to_bytes()])?;
    if known {
        return Ok(());
    }
    let issue = file(db, new)?;
    db.prepare_cached(
        "INSERT INTO letters (id, issue, status, dead_at, expires_at, replayable, door, tenant, caller, reason, attempts, \
         last_attempt_at, enqueued_at, correlation_id, idempotency_key, url, detail, instructions, method, path, history, headers, \
         body_cut, body) VALUES (?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )?
    .execute(params![
        new.id.to_bytes(),
        issue,
        new.dead_at.0,
        new.expires_at.0,
        new.replayable,
        new.door.as_str(),
        new.tenant,
        new.caller,
        new.reason,
        new.attempts,
        new.last_attempt_at.map(|at| at.0),
        new.enqueued_at.0,
        new.correlation_id,
        new.idempotency_key,
        new.url,
        new.detail,
        new.instructions,
        new.request.method,
        new.request.path,
        json(&new.history)?,
        json(&new.request.headers)?,
        new.body_cut,
        &new.request.body[..],
    ])?;
    Ok(())
}

/// Counts a letter in its issue, which it may be the first of.
fn file(db: &Connection, new: &NewLetter) -> Result<i64, Error> {
    let issue = db
        .prepare_cached(
            "INSERT INTO issues (upstream, endpoint, class, code, severity, open, total, first_at, last_at, detail) \
             VALUES (?1, ?2, ?3, ?4, ?5, 1, 1, ?6, ?6, ?7) ON CONFLICT (upstream, endpoint, class, code, severity) \
             DO UPDATE SET open = open + 1, total = total + 1, last_at = max(last_at, ?6), detail = ?7 RETURNING issue",
        )?
        .query_row(
            params![new.upstream, new.endpoint, new.class.as_str(), new.code, new.severity.as_str(), new.dead_at.0, new.detail],
            |row| row.get(0),
        )?;
    Ok(issue)
}

/// One letter of an issue stopped waiting for somebody, or began to again.
fn recount(db: &Connection, issue: i64, by: i64) -> Result<(), Error> {
    db.prepare_cached("UPDATE issues SET open = max(0, open + ?) WHERE issue = ?")?.execute(params![by, issue])?;
    Ok(())
}

fn found(db: &Connection, id: CallId) -> Result<Option<(i64, i64, Status)>, Error> {
    let found = db
        .prepare_cached("SELECT row, issue, status FROM letters WHERE id = ?")?
        .query_row(params![id.to_bytes()], |row| Ok((row.get(0)?, row.get(1)?, row.get::<_, i64>(2)?)))
        .optional()?;
    Ok(found.map(|(row, issue, status)| (row, issue, Status::from_number(status).unwrap_or(Status::Kept))))
}

/// The replay of a letter is over: it worked, or it was called off.
pub(super) fn replay_ended(db: &Connection, id: CallId, worked: bool) -> Result<(), Error> {
    let Some((row, issue, Status::Replaying)) = found(db, id)? else { return Ok(()) };
    let status = if worked { Status::Replayed } else { Status::Kept };
    db.prepare_cached("UPDATE letters SET status = ? WHERE row = ?")?.execute(params![status.number(), row])?;
    if !worked {
        recount(db, issue, 1)?;
    }
    Ok(())
}

/// The replay of a letter failed like the original, or in a new way: the letter waits again and says so.
pub(super) fn replay_failed(db: &Connection, id: CallId, new: &NewLetter) -> Result<(), Error> {
    let Some((row, _, Status::Replaying)) = found(db, id)? else { return keep(db, new) };
    let issue = file(db, new)?;
    db.prepare_cached(
        "UPDATE letters SET status = 0, issue = ?, reason = ?, detail = ?, attempts = attempts + ?, last_attempt_at = ?, dead_at = ?, \
         expires_at = ?, replayable = ?, history = ? WHERE row = ?",
    )?
    .execute(params![
        issue,
        new.reason,
        new.detail,
        new.attempts,
        new.last_attempt_at.map(|at| at.0),
        new.dead_at.0,
        new.expires_at.0,
        new.replayable,
        json(&new.history)?,
        row
    ])?;
    Ok(())
}

/// Makes a job of a letter. In one transaction, so that two who ask at once get one job.
fn replay(tx: &mut Tx<'_>, id: CallId, job: &NewJob, now: Wall) -> Result<Replayed, Error> {
    let Some((row, issue, status)) = found(tx.db, id)? else { return Ok(Replayed::NotThere) };
    match status {
        Status::Replayed => Ok(Replayed::NotThere),
        Status::Replaying => {
            let by: Option<[u8; 16]> =
                tx.db.prepare_cached("SELECT replayed_by FROM letters WHERE row = ?")?.query_row(params![row], |row| row.get(0))?;
            Ok(by.map_or(Replayed::NotThere, |by| Replayed::Underway(CallId::from_bytes(by))))
        }
        Status::Kept => {
            let by = match jobs::enqueue(tx, job, now)? {
                Enqueued::New(by) | Enqueued::Known(by, _) | Enqueued::Mismatch(by) => by,
            };
            tx.db
                .prepare_cached("UPDATE letters SET status = 1, replays = replays + 1, replayed_by = ? WHERE row = ?")?
                .execute(params![by.to_bytes(), row])?;
            recount(tx.db, issue, -1)?;
            Ok(Replayed::Started(by))
        }
    }
}

fn discard(db: &Connection, id: CallId) -> Result<bool, Error> {
    let Some((row, issue, status)) = found(db, id)? else { return Ok(false) };
    if status == Status::Replaying {
        return Ok(false);
    }
    forget(db, row, issue, status)?;
    Ok(true)
}

fn forget(db: &Connection, row: i64, issue: i64, status: Status) -> Result<(), Error> {
    db.prepare_cached("DELETE FROM letters WHERE row = ?")?.execute(params![row])?;
    if status == Status::Kept {
        recount(db, issue, -1)?;
    }
    Ok(())
}

fn expire(db: &Connection, now: Wall, most: usize) -> Result<Vec<Expired>, Error> {
    let mut statement = db.prepare_cached(
        "SELECT l.row, l.issue, l.status, l.id, l.dead_at, i.upstream, i.endpoint, i.class, i.code, i.severity \
         FROM letters l JOIN issues i USING (issue) WHERE l.expires_at <= ? AND l.status <> 1 ORDER BY l.expires_at LIMIT ?",
    )?;
    let mut rows = statement.query(params![now.0, i64::try_from(most).unwrap_or(i64::MAX)])?;
    let mut expired = Vec::new();
    while let Some(row) = rows.next()? {
        let status = Status::from_number(row.get(2)?).unwrap_or(Status::Kept);
        let entry = Expired {
            id: CallId::from_bytes(row.get(3)?),
            dead_at: Wall(row.get(4)?),
            upstream: row.get(5)?,
            endpoint: row.get(6)?,
            class: class(&row.get::<_, String>(7)?)?,
            code: row.get(8)?,
            severity: severity(&row.get::<_, String>(9)?)?,
        };
        expired.push((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, status, entry));
    }
    drop(rows);
    for (row, issue, status, _) in &expired {
        forget(db, *row, *issue, *status)?;
    }
    // What was replayed in time did not run out of it.
    Ok(expired.into_iter().filter(|(_, _, status, _)| *status == Status::Kept).map(|(_, _, _, entry)| entry).collect())
}

fn class(word: &str) -> Result<Class, Error> {
    Class::from_word(word).ok_or_else(|| Error::Damaged(format!("an issue has the unknown class `{word}`")))
}

fn severity(word: &str) -> Result<Severity, Error> {
    Severity::from_word(word).ok_or_else(|| Error::Damaged(format!("an issue has the unknown severity `{word}`")))
}

fn one(db: &Connection, id: CallId) -> Result<Option<Letter>, Error> {
    let mut statement = db.prepare_cached(&format!("SELECT {LETTER}, l.body FROM letters l JOIN issues i USING (issue) WHERE l.id = ?"))?;
    let mut rows = statement.query(params![id.to_bytes()])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let mut letter = rows::letter(row)?;
    letter.letter.request.body = Bytes::from(row.get::<_, Option<Vec<u8>>>("body")?.unwrap_or_default());
    Ok(Some(letter))
}

/// The issues that a filter can mean. Their number is small, and with it lists need not walk past other issues' letters.
fn meant(db: &Connection, filter: &Filter) -> Result<Option<Vec<i64>>, Error> {
    if filter.upstream.is_none()
        && filter.endpoint.is_none()
        && filter.class.is_none()
        && filter.code.is_none()
        && filter.severity.is_none()
    {
        return Ok(None);
    }
    let found = db
        .prepare_cached(
            "SELECT issue FROM issues WHERE (?1 IS NULL OR upstream = ?1) AND (?2 IS NULL OR endpoint = ?2) \
             AND (?3 IS NULL OR class = ?3) AND (?4 IS NULL OR code = ?4) AND (?5 IS NULL OR severity = ?5)",
        )?
        .query_map(
            params![filter.upstream, filter.endpoint, filter.class.map(Class::as_str), filter.code, filter.severity.map(Severity::as_str)],
            |row| row.get(0),
        )?
        .collect::<Result<_, _>>()?;
    Ok(Some(found))
}

/// How many of the newest letters are looked through for a text.
const SEARCHED: usize = 100_000;

fn list(db: &Connection, filter: &Filter, window: Window) -> Result<Page<Letter>, Error> {
    let statuses = filter.status.map_or_else(|| Status::ALL.to_vec(), |status| vec![status]);
    let mut letters = Vec::new();
    if filter.ids.is_empty() {
        match meant(db, filter)? {
            Some(issues) => {
                for (issue, status) in issues.iter().flat_map(|issue| statuses.iter().map(move |status| (*issue, *status))) {
                    run(db, filter, window, status, Some(issue), &mut letters)?;
                }
            }
            None => {
                for status in statuses {
                    run(db, filter, window, status, None, &mut letters)?;
                }
            }
        }
    } else {
        for id in &filter.ids {
            letters.extend(one(db, *id)?.filter(|letter| filter.status.is_none_or(|status| letter.status == status)));
        }
        let before = window.after;
        letters.retain(|letter| before.is_none_or(|before| letter.letter.id < before));
    }
    letters.sort_by_key(|letter| std::cmp::Reverse(letter.letter.id));
    letters.truncate(window.rows());
    Ok(window.page(letters, |letter| letter.letter.id))
}

/// The newest letters of one status, and of one issue where one is meant.
fn run(db: &Connection, filter: &Filter, window: Window, status: Status, issue: Option<i64>, into: &mut Vec<Letter>) -> Result<(), Error> {
    let mut values: Vec<Value> = vec![Value::Integer(status.number()), Value::Blob(before(filter, window).to_vec())];
    let mut sql = "SELECT id FROM letters WHERE status = ?1 AND id < ?2".to_owned();
    if let Some(issue) = issue {
        values.push(Value::Integer(issue));
        sql += " AND issue = ?3";
    }
    if let Some(since) = filter.since {
        values.push(Value::Blob(CallId::first_at(since).to_bytes().to_vec()));
        sql += &format!(" AND id >= ?{}", values.len());
    }
    sql += " ORDER BY id DESC";
    if let Some(text) = &filter.text {
        values.push(Value::Text(text.clone()));
        let n = values.len();
        sql = format!(
            "SELECT l.id FROM ({sql} LIMIT {SEARCHED}) AS newest CROSS JOIN letters l ON l.id = newest.id WHERE instr(l.url, ?{n}) \
             OR instr(l.detail, ?{n}) OR instr(l.reason, ?{n}) OR l.correlation_id = ?{n} ORDER BY l.id DESC"
        );
    }
    sql += &format!(" LIMIT {}", window.rows());
    let sql = format!("SELECT {LETTER} FROM ({sql}) AS page CROSS JOIN letters l ON l.id = page.id JOIN issues i USING (issue)");
    let mut statement = db.prepare_cached(&sql)?;
    let mut rows = statement.query(params_from_iter(values))?;
    while let Some(row) = rows.next()? {
        into.push(rows::letter(row)?);
    }
    Ok(())
}

fn before(filter: &Filter, window: Window) -> [u8; 16] {
    let cursor = window.after.map_or([0xff; 16], CallId::to_bytes);
    filter.until.map_or(cursor, |until| cursor.min(CallId::first_at(until).to_bytes()))
}

fn issues(db: &Connection) -> Result<Vec<Issue>, Error> {
    let mut statement = db.prepare_cached(
        "SELECT upstream, endpoint, class, code, severity, open, total, first_at, last_at, detail FROM issues ORDER BY last_at DESC LIMIT 1000",
    )?;
    let mut rows = statement.query([])?;
    let mut issues = Vec::new();
    while let Some(row) = rows.next()? {
        issues.push(Issue {
            upstream: row.get(0)?,
            endpoint: row.get(1)?,
            class: class(&row.get::<_, String>(2)?)?,
            code: row.get(3)?,
            severity: severity(&row.get::<_, String>(4)?)?,
            open: u64::try_from(row.get::<_, i64>(5)?).unwrap_or(0),
            total: u64::try_from(row.get::<_, i64>(6)?).unwrap_or(0),
            first_at: Wall(row.get(7)?),
            last_at: Wall(row.get(8)?),
            detail: row.get(9)?,
        });
    }
    Ok(issues)
}

fn depths(db: &Connection) -> Result<Vec<Depth>, Error> {
    let mut statement = db.prepare_cached("SELECT upstream, severity, sum(open) FROM issues GROUP BY upstream, severity")?;
    let mut rows = statement.query([])?;
    let mut depths = Vec::new();
    while let Some(row) = rows.next()? {
        let severity = severity(&row.get::<_, String>(1)?)?;
        depths.push(Depth { queue: row.get(0)?, severity, open: u64::try_from(row.get::<_, i64>(2)?).unwrap_or(0) });
    }
    Ok(depths)
}
