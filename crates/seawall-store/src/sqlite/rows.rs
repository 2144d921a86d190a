//! Rows become values here, and only here.

use crate::dead::{Letter, NewLetter, Status};
use crate::error::Error;
use crate::job::{Attempted, Job, Lease, Origin, Request, Response, State};
use crate::progress;
use bytes::Bytes;
use rusqlite::Row;
use rusqlite::types::FromSql;
use seawall_core::id::CallId;
use seawall_core::policy::{Door, Severity};
use seawall_core::record::Class;
use seawall_core::time::Wall;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What a job is, without the two values that may be long.
pub(super) const JOB: &str = "row, id, state, upstream, tenant, caller, priority, due, claim, token, crashes, run_at, expires_at, \
     created_at, finished_at, progress, error, idempotency_key, correlation_id, callback, origin, method, path, history, headers, \
     response_status, response_cut, response_headers";

/// A row read by the names of its columns' order: whoever adds a column to the list adds a line below.
struct Columns<'a, 'r> {
    row: &'a Row<'r>,
    next: usize,
}

impl Columns<'_, '_> {
    fn take<T: FromSql>(&mut self) -> Result<T, Error> {
        let index = self.next;
        self.next += 1;
        Ok(self.row.get(index)?)
    }

    fn id(&mut self) -> Result<CallId, Error> {
        self.take().map(CallId::from_bytes)
    }

    fn wall(&mut self) -> Result<Wall, Error> {
        self.take().map(Wall)
    }

    fn maybe_wall(&mut self) -> Result<Option<Wall>, Error> {
        Ok(self.take::<Option<i64>>()?.map(Wall))
    }

    fn json<T: DeserializeOwned>(&mut self) -> Result<T, Error> {
        let text: String = self.take()?;
        serde_json::from_str(&text).map_err(|error| Error::Damaged(format!("a row cannot be read: {error}")))
    }

    fn word<T>(&mut self, parse: impl Fn(&str) -> Option<T>) -> Result<T, Error> {
        let word: String = self.take()?;
        parse(&word).ok_or_else(|| Error::Damaged(format!("a row has the unknown word `{word}`")))
    }
}

pub(super) fn json(value: &impl Serialize) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|error| Error::Failed(error.to_string()))
}

/// The job without its bodies, and the lease that its last claim has.
pub(super) fn job(row: &Row<'_>) -> Result<(Job, Lease), Error> {
    let mut c = Columns { row, next: 0 };
    let lease_row = c.take()?;
    let id = c.id()?;
    let number: i64 = c.take()?;
    let state = State::from_number(number).ok_or_else(|| Error::Damaged(format!("a job is in the unknown state {number}")))?;
    let (upstream, tenant, caller, priority) = (c.take()?, c.take()?, c.take()?, c.take()?);
    let due = c.wall()?;
    let lease = Lease { row: lease_row, claim: c.take()?, token: c.take()? };
    let crashes = c.take()?;
    let (run_at, expires_at, created_at, finished_at) = (c.wall()?, c.maybe_wall()?, c.wall()?, c.maybe_wall()?);
    let progress = progress::read(&c.take::<String>()?);
    let (error, idempotency_key, correlation_id, callback) = (c.take()?, c.take()?, c.take()?, c.take()?);
    let origin: Option<String> = c.take()?;
    let origin = match origin {
        None => Origin::Caller,
        Some(text) => serde_json::from_str(&text).map_err(|error| Error::Damaged(format!("a job's origin cannot be read: {error}")))?,
    };
    let (method, path) = (c.take()?, c.take()?);
    let history: Vec<Attempted> = c.json()?;
    let headers = c.json()?;
    let status: Option<u16> = c.take()?;
    let cut: Option<bool> = c.take()?;
    let response_headers: Option<String> = c.take()?;
    let response = match status {
        None => None,
        Some(status) => {
            let headers = serde_json::from_str(response_headers.as_deref().unwrap_or("[]"))
                .map_err(|error| Error::Damaged(format!("a response cannot be read: {error}")))?;
            Some(Response { status, headers, body: Bytes::new(), truncated: cut.unwrap_or(false) })
        }
    };
    let next_attempt_at = matches!(state, State::Queued | State::Waiting).then_some(due);
    let request = Request { method, path, headers, body: Bytes::new() };
    let job = Job {
        id,
        upstream,
        tenant,
        caller,
        priority,
        request,
        state,
        progress,
        history,
        crashes,
        idempotency_key,
        correlation_id,
        callback,
        origin,
        run_at,
        next_attempt_at,
        expires_at,
        created_at,
        finished_at,
        response,
        error,
    };
    Ok((job, lease))
}

/// What a letter is, without its body; `letters l JOIN issues i`.
pub(super) const LETTER: &str = "l.id, l.status, l.dead_at, l.expires_at, l.replays, l.replayed_by, l.replayable, l.door, l.tenant, \
     l.caller, l.reason, l.attempts, l.last_attempt_at, l.enqueued_at, l.correlation_id, l.idempotency_key, l.url, l.detail, \
     l.instructions, l.method, l.path, l.history, l.headers, l.body_cut, i.upstream, i.endpoint, i.class, i.code, i.severity";

pub(super) fn letter(row: &Row<'_>) -> Result<Letter, Error> {
    let mut c = Columns { row, next: 0 };
    let id = c.id()?;
    let number: i64 = c.take()?;
    let status = Status::from_number(number).ok_or_else(|| Error::Damaged(format!("a letter has the unknown status {number}")))?;
    let (dead_at, expires_at) = (c.wall()?, c.wall()?);
    let replays = c.take()?;
    let replayed_by: Option<[u8; 16]> = c.take()?;
    let replayable = c.take()?;
    let door = c.word(Door::from_word)?;
    let (tenant, caller, reason, attempts) = (c.take()?, c.take()?, c.take()?, c.take()?);
    let (last_attempt_at, enqueued_at) = (c.maybe_wall()?, c.wall()?);
    let (correlation_id, idempotency_key, url, detail, instructions) = (c.take()?, c.take()?, c.take()?, c.take()?, c.take()?);
    let (method, path) = (c.take()?, c.take()?);
    let (history, headers) = (c.json()?, c.json()?);
    let body_cut = c.take()?;
    let (upstream, endpoint) = (c.take()?, c.take()?);
    let (class, code, severity) = (c.word(Class::from_word)?, c.take()?, c.word(Severity::from_word)?);
    let letter = NewLetter {
        id,
        door,
        upstream,
        endpoint,
        tenant,
        caller,
        url,
        request: Request { method, path, headers, body: Bytes::new() },
        body_cut,
        class,
        reason,
        code,
        detail,
        last_attempt_at,
        attempts,
        correlation_id,
        idempotency_key,
        enqueued_at,
        dead_at,
        expires_at,
        severity,
        replayable,
        instructions,
        history,
    };
    Ok(Letter { letter, status, replays, replayed_by: replayed_by.map(CallId::from_bytes) })
}
