//! Rows become values here, and only here.

use crate::dead::{Letter, NewLetter, Status};
use crate::error::Error;
use crate::job::{Job, Lease, Origin, Request, Response, State};
use crate::progress;
use crate::sql::{Row, Source, read_json};
use bytes::Bytes;
use seawall_core::policy::{Door, Severity};
use seawall_core::record::Class;

/// What a worker has to know of a job, without its body.
macro_rules! claimed {
    () => {
        "row, id, upstream, tenant, caller, priority, claim, token, crashes, run_at, expires_at, created_at, progress, \
         idempotency_key, correlation_id, callback, origin, method, path, history, headers"
    };
}
pub(crate) const CLAIMED: &str = claimed!();
/// What a job is, without the two values that may be long.
pub(crate) const JOB: &str = concat!(claimed!(), ", state, due, finished_at, error, response_status, response_cut, response_headers");

/// A job whose claim is written, without its body: nothing is said about how it may have ended or what it waited for. With the lease
/// that its last claim has.
pub(crate) fn claimed(c: &mut Row<impl Source>) -> Result<(Job, Lease), Error> {
    let (row, id) = (c.take()?, c.take()?);
    let (upstream, tenant, caller, priority) = (c.take()?, c.take()?, c.take()?, c.take()?);
    let lease = Lease { row, claim: c.take()?, token: c.take()? };
    let crashes = c.take()?;
    let (run_at, expires_at, created_at) = (c.take()?, c.take()?, c.take()?);
    let progress = progress::read(&c.take::<String>()?);
    let (idempotency_key, correlation_id, callback) = (c.take()?, c.take()?, c.take()?);
    let origin = origin(c.take()?)?;
    let (method, path) = (c.take()?, c.take()?);
    let (history, headers) = (c.json()?, c.json()?);
    let request = Request { method, path, headers, body: Bytes::new() };
    let job = Job {
        id,
        upstream,
        tenant,
        caller,
        priority,
        request,
        state: State::Running,
        progress,
        history,
        crashes,
        idempotency_key,
        correlation_id,
        callback,
        origin,
        run_at,
        next_attempt_at: None,
        expires_at,
        created_at,
        finished_at: None,
        response: None,
        error: None,
    };
    Ok((job, lease))
}

/// The job without its bodies.
pub(crate) fn job(c: &mut Row<impl Source>) -> Result<Job, Error> {
    let (mut job, _) = claimed(c)?;
    job.state = c.number(State::from_number)?;
    let due = c.take()?;
    job.next_attempt_at = matches!(job.state, State::Queued | State::Waiting).then_some(due);
    (job.finished_at, job.error) = (c.take()?, c.take()?);
    job.response = response(c)?;
    Ok(job)
}

/// A response without its body.
pub(crate) fn response(c: &mut Row<impl Source>) -> Result<Option<Response>, Error> {
    let (status, cut, headers): (Option<u16>, Option<bool>, Option<String>) = (c.take()?, c.take()?, c.take()?);
    let Some(status) = status else { return Ok(None) };
    let headers = read_json(headers.as_deref().unwrap_or("[]"))?;
    Ok(Some(Response { status, headers, body: Bytes::new(), truncated: cut.unwrap_or(false) }))
}

/// Most jobs come from callers, and are not told so.
pub(crate) fn origin(text: Option<String>) -> Result<Origin, Error> {
    text.map_or(Ok(Origin::Caller), |text| read_json(&text))
}

/// What a letter is, without its body; `letters l JOIN issues i`.
pub(crate) const LETTER: &str = "l.id, l.status, l.dead_at, l.expires_at, l.replays, l.replayed_by, l.replayable, l.door, l.tenant, \
     l.caller, l.reason, l.attempts, l.last_attempt_at, l.enqueued_at, l.correlation_id, l.idempotency_key, l.url, l.detail, \
     l.instructions, l.method, l.path, l.history, l.headers, l.body_cut, i.upstream, i.endpoint, i.class, i.code, i.severity";

pub(crate) fn letter(c: &mut Row) -> Result<Letter, Error> {
    let id = c.take()?;
    let status = c.number(Status::from_number)?;
    let (dead_at, expires_at, replays, replayed_by, replayable) = (c.take()?, c.take()?, c.take()?, c.take()?, c.take()?);
    let door = c.word(Door::from_word)?;
    let (tenant, caller, reason, attempts) = (c.take()?, c.take()?, c.take()?, c.take()?);
    let (last_attempt_at, enqueued_at) = (c.take()?, c.take()?);
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
    Ok(Letter { letter, status, replays, replayed_by })
}

/// A body must be there, if only an empty one.
pub(crate) fn body(found: Option<Bytes>) -> Result<Bytes, Error> {
    found.ok_or_else(|| Error::Damaged("a job has lost its body".to_owned()))
}
