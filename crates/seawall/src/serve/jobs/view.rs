//! Jobs and dead letters as the API shows them. Credentials that callers sent along are not shown, nor what an upstream repeats of them
//! to anybody but its caller.

use crate::letter;
use seawall_core::discretion::{REDACTED, is_secret, target};
use seawall_core::time::Wall;
use seawall_engine::live::Live;
use seawall_store::dead::{Issue, Letter};
use seawall_store::job::{AD_HOC, Job, Origin, Response};
use serde_json::{Map, Value, json};
use std::sync::Arc;

pub(super) fn headers(pairs: &[(String, String)]) -> Value {
    let mut shown: Map<String, Value> = Map::new();
    for (name, value) in pairs {
        let value = if is_secret(name) { REDACTED } else { value.as_str() };
        match shown.get_mut(name) {
            Some(Value::String(before)) => *before = format!("{before}, {value}"),
            _ => {
                shown.insert(name.clone(), Value::String(value.to_owned()));
            }
        }
    }
    Value::Object(shown)
}

/// A body and how it is written: as it is where it is text, in base64 where it is not.
pub(super) fn body(bytes: &[u8]) -> (Value, Value) {
    use base64::Engine as _;
    match std::str::from_utf8(bytes) {
        Ok("") => (Value::Null, Value::Null),
        Ok(text) => (json!(text), json!("utf-8")),
        Err(_) => (json!(base64::engine::general_purpose::STANDARD.encode(bytes)), json!("base64")),
    }
}

fn when(at: Option<Wall>) -> Value {
    at.map_or(Value::Null, |at| json!(at.to_string()))
}

/// A job as its own caller sees it: the answer is as it was.
pub(crate) fn job(job: &Job) -> Value {
    answered(job, job.response.as_ref())
}

/// A job as anybody else sees it.
pub(super) fn discreet_job(job: &Job, live: &Live) -> Value {
    let response = job.response.as_ref().map(|response| discreet_answer(job, response, live));
    answered(job, response.as_ref())
}

/// A job's answer without what the upstream was told in confidence and repeated.
pub(super) fn discreet_answer(job: &Job, response: &Response, live: &Live) -> Response {
    letter::discreet_answer(response.clone(), live.named(&job.upstream).map(Arc::as_ref), &job.request)
}

fn answered(job: &Job, response: Option<&Response>) -> Value {
    let (text, encoding) = body(&job.request.body);
    let response = response.map(|response| {
        let (text, encoding) = body(&response.body);
        json!({
            "status": response.status,
            "headers": headers(&response.headers),
            "body": text,
            "body_encoding": encoding,
            "truncated": response.truncated,
        })
    });
    json!({
        "id": job.id.to_string(),
        "upstream": if job.upstream == AD_HOC { Value::Null } else { json!(job.upstream) },
        "method": job.request.method,
        "path": target(&job.request.path),
        "headers": headers(&job.request.headers),
        "body": text,
        "body_encoding": encoding,
        "state": job.state.as_str(),
        "attempts": job.progress.attempts,
        "crashes": job.crashes,
        "priority": job.priority,
        "tenant": job.tenant,
        "caller": job.caller,
        "origin": origin(&job.origin),
        "next_attempt_at": when(job.next_attempt_at),
        "created_at": job.created_at.to_string(),
        "finished_at": when(job.finished_at),
        "expires_at": when(job.expires_at),
        "run_at": job.run_at.to_string(),
        "response": response,
        "error": job.error,
        "correlation_id": job.correlation_id,
        "idempotency_key": job.idempotency_key,
        "callback": job.callback.as_deref().map(target),
        "history": job.history,
    })
}

fn origin(origin: &Origin) -> Value {
    match origin {
        Origin::Caller => json!({ "kind": "caller" }),
        Origin::Callback(job) => json!({ "kind": "callback", "job": job }),
        Origin::Notification => json!({ "kind": "notification" }),
        Origin::Schedule { name, subject } => json!({ "kind": "schedule", "schedule": name, "subject": subject }),
        Origin::Replay { letter } => json!({ "kind": "replay", "letter": letter }),
    }
}

pub(super) fn letter(kept: &Letter) -> Value {
    let letter = &kept.letter;
    let (text, encoding) = body(&letter.request.body);
    json!({
        "id": letter.id.to_string(),
        "queue": letter.upstream,
        "endpoint": letter.endpoint,
        "door": letter.door.as_str(),
        "original": {
            "method": letter.request.method,
            "url": target(&letter.url),
            "path": target(&letter.request.path),
            "headers": headers(&letter.request.headers),
            "body": text,
            "body_encoding": encoding,
            "body_cut": letter.body_cut,
        },
        "class": letter.class.as_str(),
        "failure_reason": letter.reason,
        "failure_code": letter.code,
        "error_detail": letter.detail,
        "last_attempt_at": when(letter.last_attempt_at),
        "total_attempts": letter.attempts,
        "message_id": letter.id.to_string(),
        "correlation_id": letter.correlation_id,
        "idempotency_key": letter.idempotency_key,
        "caller": letter.caller,
        "tenant": letter.tenant,
        "enqueued_at": letter.enqueued_at.to_string(),
        "dead_lettered_at": letter.dead_at.to_string(),
        "expires_at": letter.expires_at.to_string(),
        "severity": letter.severity.as_str(),
        "replayable": letter.replayable,
        "replay_instructions": letter.instructions,
        "status": kept.status.as_str(),
        "replays": kept.replays,
        "replayed_by": kept.replayed_by.map(|id| id.to_string()),
        "history": letter.history,
    })
}

pub(super) fn issue(issue: &Issue) -> Value {
    json!({
        "upstream": issue.upstream,
        "endpoint": issue.endpoint,
        "class": issue.class.as_str(),
        "code": issue.code,
        "severity": issue.severity.as_str(),
        "open": issue.open,
        "total": issue.total,
        "first_at": issue.first_at.to_string(),
        "last_at": issue.last_at.to_string(),
        "detail": issue.detail,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_text_is_written_in_base64() {
        assert_eq!(body(b"plain"), (json!("plain"), json!("utf-8")));
        assert_eq!(body(b"\xff\x00"), (json!("/wA="), json!("base64")));
        assert_eq!(body(b""), (Value::Null, Value::Null));
    }

    #[test]
    fn credentials_are_not_shown() {
        let pairs = [("Authorization", "Bearer abc"), ("accept", "a"), ("accept", "b")].map(|(n, v)| (n.to_owned(), v.to_owned()));
        assert_eq!(headers(&pairs), json!({ "Authorization": "[redacted]", "accept": "a, b" }));
    }
}
