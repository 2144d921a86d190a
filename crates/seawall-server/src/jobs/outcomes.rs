//! What the end of a caller's call means for jobs: whether it is worth a letter or a second life, and when that begins.

use seawall_core::call::Outcome;
use seawall_core::record::{Class, Reason};
use seawall_core::time::Nanos;

/// Whether a call ended in a way that somebody may want to hear of later.
pub(crate) const fn is_failure(outcome: Outcome) -> bool {
    use seawall_core::record::Code;
    match outcome {
        Outcome::Failed(_) => true,
        // What the caller did wrong, and what it was refused, is for the caller alone.
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

/// The reasons for which a caller's exhausted call is worth a second life as a job.
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

/// How long an exhausted call rests before it goes on as a job: those that made it fail need the time. Not where it is an open
/// breaker, a pause or a cooling key: the job finds it itself, and then waits for it by name, so that it can be woken.
pub(crate) fn rest(reason: Reason, retry_after: Option<Nanos>, cap: Nanos) -> Nanos {
    let by_name = matches!(reason, Reason::CircuitOpen | Reason::ProviderPause | Reason::KeysCooling);
    if by_name { Nanos::ZERO } else { retry_after.unwrap_or(Nanos::ZERO).max(cap) }
}
