//! What a driver gives to a call, what the call tells it to do, and how a call ends.

use super::{Ask, CallPlan};
use crate::decide::repeatable;
use crate::lease::RequestMark;
use crate::policy::Unsafe;
use crate::record::{AttemptStatus, Class, Code, ErrorKind, Reason};
use crate::time::{Mono, Nanos};

/// What the driver must do next.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// Ask shared state and bring the answer to [`super::Call::answered`].
    Ask(Ask),
    /// Send attempt `number` and bring the result to [`super::Call::responded`].
    Send {
        number: u32,
        timeout: Nanos,
        key: Option<u16>,
    },
    /// Come back to [`super::Call::waited`] at this time, never earlier.
    Wait {
        until: Mono,
        reason: Reason,
    },
    /// Refresh the token (one refresh for all calls that wait for it), then [`super::Call::refreshed`].
    Refresh,
    Finish(CallEnd),
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallEnd {
    pub outcome: Outcome,
    pub reason: Reason,
    pub attempts: u32,
    pub elapsed: Nanos,
    /// How much of that the call waited for a key, a pause or a breaker.
    pub waited: Nanos,
    /// For refusals: when to come back, counted from now.
    pub retry_after: Option<Nanos>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Success,
    /// The upstream's own last answer, whatever it was, is what the caller gets.
    Failed(Class),
    /// There is no answer of the upstream's to give; this is ours.
    Refused(Code),
    /// An earlier call with the same idempotency key has the answer.
    Replayed,
}

impl Outcome {
    /// A failed call ends with the upstream's answer if there is one, and with our name for the failure otherwise.
    pub(super) fn of(class: Class, status: AttemptStatus, reason: Reason) -> Self {
        match (class, status) {
            (Class::Success, _) => Self::Success,
            (Class::Ambiguous, AttemptStatus::Http(_)) if reason == Reason::AmbiguousExhausted => Self::Failed(Class::Permanent),
            (class, AttemptStatus::Http(_)) => Self::Failed(class),
            (_, AttemptStatus::Error(ErrorKind::Timeout)) => Self::Refused(Code::DeadlineExceeded),
            (_, AttemptStatus::Error(ErrorKind::Schema)) => Self::Refused(Code::SchemaMismatch),
            (_, AttemptStatus::Error(_)) => Self::Refused(Code::UpstreamUnreachable),
            (_, AttemptStatus::CircuitOpen) => Self::Refused(Code::CircuitOpen),
        }
    }
}

/// What the machine must know of the request.
#[derive(Clone, Copy, Debug)]
pub struct CallRequest<'a> {
    /// Upper case.
    pub method: &'a str,
    /// Tells whether two refusals of a key are about different requests; see [`super::CallPlan::mark`].
    pub mark: RequestMark,
    /// It carries an idempotency key.
    pub keyed: bool,
    /// Executing it twice costs no more than money; see [`crate::config::AtCost`].
    pub at_cost: bool,
    /// Its body can be sent again.
    pub replayable: bool,
    /// The caller's own deadline, which only ever shortens ours; for a job, what is left of its life.
    pub deadline: Option<Nanos>,
    /// A job: it waits where a caller would be refused.
    pub patient: bool,
}

impl<'a> CallRequest<'a> {
    /// A request without a key whose body can be sent again.
    #[must_use]
    pub const fn plain(method: &'a str) -> Self {
        Self { method, mark: RequestMark::NONE, keyed: false, at_cost: false, replayable: true, deadline: None, patient: false }
    }

    /// Whether sending it twice is harmless by what it is, under this plan.
    #[must_use]
    pub fn is_repeatable(&self, plan: &CallPlan) -> bool {
        let at_cost = self.at_cost && plan.retry.unsafe_methods != Unsafe::Never;
        at_cost || repeatable(self.method, plan.retry.unsafe_methods, self.keyed)
    }
}
