//! The request that a driver gives to a call, the actions that the call returns, and its end.

use super::{Ask, CallPlan};
use crate::decide::repeatable;
use crate::lease::RequestMark;
use crate::policy::Unsafe;
use crate::record::{AttemptStatus, Class, Code, ErrorKind, Reason};
use crate::time::{Mono, Nanos};

/// The driver's next step.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// Ask shared state and pass the reply to [`super::Call::answered`].
    Ask(Ask),
    /// Send attempt `number` and pass the result to [`super::Call::responded`].
    Send {
        number: u32,
        timeout: Nanos,
        key: Option<u16>,
    },
    /// Call [`super::Call::waited`] at this time, never earlier.
    Wait {
        until: Mono,
        reason: Reason,
    },
    /// Refresh the token (once for all calls that wait for it), then call [`super::Call::refreshed`].
    Refresh,
    Finish(CallEnd),
}

/// The end of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallEnd {
    pub outcome: Outcome,
    pub reason: Reason,
    pub attempts: u32,
    pub elapsed: Nanos,
    /// The part of the duration that the call waited for a key, a pause or a breaker.
    pub waited: Nanos,
    /// For refusals: when to come back, counted from now.
    pub retry_after: Option<Nanos>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Success,
    /// The caller gets the upstream's last response.
    Failed(Class),
    /// The upstream gave no response to relay; the caller gets ours.
    Refused(Code),
    /// The caller gets the stored response of an earlier call with the same idempotency key.
    Replayed,
}

impl Outcome {
    /// A failed call ends with the upstream's response if there is one, and with our name for the failure otherwise.
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

/// The properties of the request that the machine needs.
#[derive(Clone, Copy, Debug)]
pub struct CallRequest<'a> {
    /// Upper case.
    pub method: &'a str,
    /// Tells whether two refusals of a key are about different requests; see [`super::CallPlan::mark`].
    pub mark: RequestMark,
    /// The request has an idempotency key.
    pub keyed: bool,
    /// A second execution costs no more than money; see [`crate::config::AtCost`].
    pub at_cost: bool,
    /// The body can be sent again.
    pub replayable: bool,
    /// The caller's own deadline, which can only shorten ours; for a job, the rest of its lifetime.
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

    /// Whether a second execution is harmless under this plan.
    #[must_use]
    pub fn is_repeatable(&self, plan: &CallPlan) -> bool {
        let at_cost = self.at_cost && plan.retry.unsafe_methods != Unsafe::Never;
        at_cost || repeatable(self.method, plan.retry.unsafe_methods, self.keyed)
    }
}
