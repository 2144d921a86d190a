//! The dead letter of a failed row.

use super::destination::Destination;
use super::lanes::StartedRow;
use seawall_core::policy::Door;
use seawall_core::time::Now;
use seawall_server::letter::{self, Cause, LetterPlace};
use seawall_store::dead::NewLetter;
use seawall_store::job::{AD_HOC, JobOrigin, JobRequest, NewJob};

/// Makes the letter of a row, with the names of its run and its caller.
pub(super) fn dead_letter(run: &StartedRow, to: Option<&Destination>, cause: Cause, (name, caller): (&str, &str), now: Now) -> NewLetter {
    let row = &run.row;
    let configured = to.is_some_and(|to| to.configured);
    let key = row.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("idempotency-key")).map(|(_, value)| value.clone());
    let job = NewJob {
        id: run.id,
        upstream: if configured { row.lane.to_string() } else { AD_HOC.to_owned() },
        tenant: String::new(),
        caller: caller.to_owned(),
        priority: 0,
        request: JobRequest {
            method: row.method.clone(),
            path: if configured { row.below.clone() } else { format!("{}{}", row.lane, row.below) },
            headers: row.headers.clone(),
            body: row.body.clone(),
        },
        idempotency_key: key,
        dedup: None,
        fingerprint: [0; 32],
        correlation_id: Some(name.to_owned()),
        callback: None,
        run_at: run.started.wall,
        expires_at: None,
        origin: JobOrigin::Caller,
        progress: run.progress,
        history: Vec::new(),
    };
    let place = LetterPlace { upstream: to.map(|to| &*to.upstream), endpoint: to.map(|to| &*to.endpoint) };
    let history = letter::history(&[], &run.history);
    letter::letter(&job.begun(run.started.wall), Door::Batch, &place, cause, &history, now.wall)
}
