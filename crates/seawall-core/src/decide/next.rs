//! Decides what follows a result: the one place that combines class, budgets, method and deadline.

use super::Deadline;
use crate::classify::{Classification, Hint};
use crate::lease::KeySet;
use crate::policy::{Retry, Unsafe};
use crate::record::{Class, Reason, Scope};
use crate::rng::Rng;
use crate::time::{Nanos, Now};

/// The part of its allowances that one call has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallProgress {
    /// Sends so far.
    pub attempts: u32,
    /// Retries that ambiguous failures have used.
    pub ambiguous: u32,
    /// Waits drawn so far, which is the exponent of the next one.
    pub waits: u32,
    pub previous_wait: Nanos,
    /// The token has been refreshed once in this call.
    pub refreshed: bool,
    /// The key that was refused and replaced in this call.
    pub refused_key: Option<u16>,
    /// Keys that failed in this call.
    pub tried: KeySet,
}

/// The inputs of the decision besides the verdict.
#[derive(Clone, Copy, Debug)]
pub struct DecisionInput<'a> {
    pub retry: &'a Retry,
    pub progress: &'a CallProgress,
    /// The request never left us, or the server says it did not execute it, or a second execution is harmless.
    pub repeatable: bool,
    /// The body can be sent again.
    pub replayable: bool,
    /// A job can wait for as long as the server asks, within a deadline of its own; a caller cannot.
    pub patient: bool,
    pub deadline: Deadline,
    /// Keys in the pool; 0 where there is none.
    pub keys: u16,
    pub refreshes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    Return(Reason),
    /// Wait, then send again; takes a token from the retry budget.
    Retry {
        wait: Nanos,
        reason: Reason,
    },
    /// Send again at once with another key.
    Rotate(Reason),
    Refresh,
}

/// Whether a second execution of the request is harmless by its method and key, whatever the response.
#[must_use]
pub fn repeatable(method: &str, policy: Unsafe, keyed: bool) -> bool {
    let idempotent = matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE");
    idempotent
        || match policy {
            Unsafe::Never => false,
            Unsafe::WithKey => keyed,
            Unsafe::Always => true,
        }
}

/// The decision matrix. `hint` is the verdict's wait as a length from now.
pub fn next(facts: &DecisionInput<'_>, verdict: &Classification, hint: Option<Nanos>, now: Now, rng: &mut Rng) -> NextStep {
    match verdict.class {
        Class::Success => NextStep::Return(Reason::Succeeded),
        Class::Permanent => NextStep::Return(Reason::PermanentFailure),
        Class::Quota => quota(facts, hint, now, rng),
        Class::Auth => auth(facts),
        Class::Ambiguous if facts.progress.ambiguous >= facts.retry.ambiguous => NextStep::Return(Reason::AmbiguousExhausted),
        Class::Ambiguous => retry(facts, verdict, hint, Reason::AmbiguousFailure, now, rng),
        Class::Transient => retry(facts, verdict, hint, Reason::TransientFailure, now, rng),
    }
}

/// Returns the first reason that forbids another send.
fn forbidden(facts: &DecisionInput<'_>) -> Option<Reason> {
    if facts.progress.attempts >= facts.retry.attempts {
        return Some(Reason::AttemptsExhausted);
    }
    (!facts.replayable).then_some(Reason::BodyNotReplayable)
}

/// A quota response is a refusal, so nothing was executed and any method may be sent again at once with another key.
fn quota(facts: &DecisionInput<'_>, hint: Option<Nanos>, now: Now, rng: &mut Rng) -> NextStep {
    if let Some(reason) = forbidden(facts) {
        return NextStep::Return(reason);
    }
    if facts.keys > 0 {
        return NextStep::Rotate(Reason::QuotaRotation);
    }
    match hint {
        Some(hint) if facts.patient => waiting(facts, Some(hint), Reason::ServerHint, now, rng),
        Some(_) | None => NextStep::Return(Reason::QuotaExhausted),
    }
}

/// An expired token is refreshed once; a refused key is replaced once; a second refusal is about the request and final.
fn auth(facts: &DecisionInput<'_>) -> NextStep {
    let next = if facts.refreshes && !facts.progress.refreshed {
        NextStep::Refresh
    } else if facts.keys > 1 && facts.progress.refused_key.is_none() {
        NextStep::Rotate(Reason::KeyRejected)
    } else {
        return NextStep::Return(Reason::AuthFailed);
    };
    forbidden(facts).map_or(next, NextStep::Return)
}

fn retry(facts: &DecisionInput<'_>, verdict: &Classification, hint: Option<Nanos>, why: Reason, now: Now, rng: &mut Rng) -> NextStep {
    if let Some(reason) = forbidden(facts) {
        return NextStep::Return(reason);
    }
    if !facts.repeatable && !verdict.unprocessed {
        return NextStep::Return(Reason::NotIdempotent);
    }
    if matches!(verdict.wait, Hint::None) {
        return NextStep::Retry { wait: Nanos::ZERO, reason: why };
    }
    // The key cools for as long as the server asks; this call goes on with another key.
    let hint = if facts.keys > 1 && matches!(verdict.scope, Scope::Key | Scope::Group) { None } else { hint };
    waiting(facts, hint, why, now, rng)
}

/// The longer of our own backoff and the server's wait; never early, and no wait at all if it does not fit the deadline.
fn waiting(facts: &DecisionInput<'_>, hint: Option<Nanos>, why: Reason, now: Now, rng: &mut Rng) -> NextStep {
    let backoff = facts.retry.backoff.draw(facts.progress.waits, facts.progress.previous_wait, rng);
    let wait = hint.map_or(backoff, |hint| hint.max(backoff));
    let reason = if hint.is_some_and(|hint| hint >= backoff) { Reason::ServerHint } else { why };
    if !facts.patient && hint.is_some_and(|hint| hint > facts.retry.retry_after_cap) {
        return NextStep::Return(Reason::HintTooLong);
    }
    if !facts.deadline.fits(wait, now.mono) {
        return NextStep::Return(Reason::DeadlineExceeded);
    }
    NextStep::Retry { wait, reason }
}
