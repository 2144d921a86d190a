//! The consequences of a call's end for jobs: whether it becomes a dead letter or a job, and when the job starts.

use seawall_core::call::Outcome;
use seawall_core::record::{Class, Reason};
use seawall_core::time::Nanos;

/// Returns whether a call failed in a way that an operator may want to see later.
pub(crate) const fn is_failure(outcome: Outcome) -> bool {
    use seawall_core::record::Code;
    match outcome {
        Outcome::Failed(_) => true,
        // Errors of the caller, and refusals addressed to it, concern the caller alone.
        Outcome::Refused(code) => !matches!(
            code,
            Code::Cancelled
                | Code::TooLarge
                | Code::RateLimited
                | Code::IdempotencyKeyMissing
                | Code::IdempotencyKeyMismatch
                | Code::IdempotencyKeyInFlight
                | Code::OutcomeUnknown
                | Code::StoreUnavailable
        ),
        Outcome::Success | Outcome::Replayed => false,
    }
}

/// Returns whether a caller's exhausted call may continue as a job.
pub(crate) const fn is_worth_keeping(outcome: Outcome) -> bool {
    use seawall_core::record::Code;
    match outcome {
        Outcome::Failed(class) => matches!(class, Class::Transient | Class::Ambiguous | Class::Quota),
        Outcome::Refused(code) => {
            matches!(code, Code::CircuitOpen | Code::Paused | Code::KeysExhausted | Code::UpstreamUnreachable | Code::DeadlineExceeded)
        }
        Outcome::Success | Outcome::Replayed => false,
    }
}

/// Returns the pause before an exhausted call continues as a job, so that the upstream can recover. After an open breaker, a pause or a
/// cooling key there is none: the job then waits for that condition by name and can be woken.
pub(crate) fn delay_before_job(reason: Reason, retry_after: Option<Nanos>, cap: Nanos) -> Nanos {
    let by_name = matches!(reason, Reason::CircuitOpen | Reason::ProviderPause | Reason::KeysCooling);
    if by_name { Nanos::ZERO } else { retry_after.unwrap_or(Nanos::ZERO).max(cap) }
}
