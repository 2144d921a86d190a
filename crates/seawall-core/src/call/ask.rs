//! The questions that a call asks shared state, and the replies. Plain data: the local backend, the simulator and any remote backend reply
//! to the same questions.

use crate::admit::layered::Answers;
use crate::admit::line::{Lane, LinePlace};
use crate::decide::RetryFunding;
use crate::guard::{Admission, BreakerSample, Permit};
use crate::lease::{self, KeyLease, KeySet, RequestMark, Until};
use crate::record::{Code, Scope};
use crate::time::{Mono, Nanos};

/// A question, or a report, to which the reply is `AskAnswer::Settled`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ask {
    /// Take the cost from every limit, or from none.
    Limits,
    /// A slot of the pool; the call leaves the queue at `give_up`.
    Pool {
        give_up: Mono,
    },
    /// Reserve the idempotency key.
    Reserve,
    /// The breaker's permit to send; a probe may be in flight for `lease`.
    Permit {
        lease: Nanos,
    },
    /// A viable key for this request that the call has not tried yet.
    Key {
        tried: KeySet,
        request: RequestMark,
    },
    /// Join the line of calls that wait for the upstream, unless the call has a place, and learn when to ask for the turn. The obstacle
    /// ends at `ready_at`.
    Line {
        place: Option<LinePlace>,
        lane: Lane,
        ready_at: Mono,
    },
    /// Whether it is this call's turn to try again.
    Turn {
        place: LinePlace,
    },
    /// Record durably that a job's request is about to be sent, if it may not be sent twice.
    Begin,
    Settle(SettleAttempt),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AskAnswer {
    /// Go, but not before `after` (a paced limit).
    Limited {
        after: Nanos,
    },
    /// A limit refuses until then; `None` if it will always refuse a call this costly.
    OverLimit {
        retry_at: Option<Mono>,
    },
    PoolEntered,
    /// Queued; `Call::granted` follows, or the time to give up.
    PoolQueued,
    PoolFull {
        shed: bool,
    },
    Reserved,
    /// The stored response of an earlier call with the same key.
    Replayed,
    KeyRefused(Code),
    Permitted(Permit),
    Open {
        retry_at: Option<Mono>,
    },
    /// The provider asked for no requests until then.
    Paused {
        until: Mono,
        /// The pause applies only to the caller's own credential.
        own: bool,
    },
    Key(KeyLease),
    /// Every key is cooling; the first is viable after this long.
    Cooling {
        wait: Nanos,
        /// A probe may end the cooldown sooner.
        probed: bool,
    },
    /// The provider rejected every key; the next probe is due after this long, if that is known.
    Dead {
        wait: Option<Nanos>,
    },
    /// In line; the call asks for its turn at `at`.
    InLine {
        place: LinePlace,
        at: Mono,
    },
    /// It is the call's turn to try again.
    Turn,
    /// The waiting line is full.
    LineFull,
    /// The send is recorded, or needs no record.
    Begun,
    /// The send could not be recorded, so nothing may be sent.
    NotBegun,
    Settled {
        funding: Option<RetryFunding>,
    },
}

/// Translates the breaker's reply, the same for every backend.
impl From<Admission> for AskAnswer {
    #[inline]
    fn from(admission: Admission) -> Self {
        match admission {
            Admission::Go(permit) => Self::Permitted(permit),
            Admission::Refused { retry_at } => Self::Open { retry_at },
        }
    }
}

impl From<Answers> for AskAnswer {
    fn from(answers: Answers) -> Self {
        match answers {
            Answers::Go { after, .. } => Self::Limited { after },
            Answers::Refused { retry_at, .. } => Self::OverLimit { retry_at: Some(retry_at) },
            Answers::TooCostly { .. } => Self::OverLimit { retry_at: None },
        }
    }
}

/// An endpoint without a key pool needs no key.
impl From<Option<lease::LeaseAnswer>> for AskAnswer {
    fn from(answer: Option<lease::LeaseAnswer>) -> Self {
        match answer {
            Some(lease::LeaseAnswer::Leased(lease)) => Self::Key(lease),
            Some(lease::LeaseAnswer::Cooling { wait }) => Self::Cooling { wait, probed: false },
            Some(lease::LeaseAnswer::Throttled { wait }) => Self::Cooling { wait, probed: true },
            Some(lease::LeaseAnswer::Dead { wait }) => Self::Dead { wait },
            None => Self::Dead { wait: None },
        }
    }
}

/// The effect of an attempt on its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyReport {
    Succeeded {
        /// A key that the provider refused for the same request; this success shows that the key was to blame.
        instead_of: Option<u16>,
    },
    /// Used, with no effect on the key's state.
    Neutral,
    /// As `Neutral`, but the upstream responded and asked for no wait: a cooling key is no longer throttled.
    Answered,
    Failed,
    /// Out of quota: neither the key nor its group is used before then.
    Cool {
        group: bool,
        until: Until,
    },
    /// Throttled: neither the key nor its group is used before then, except for an occasional probe.
    Throttle {
        group: bool,
        until: Mono,
    },
    /// The provider refused the key for this request, and there is no other key to try. The key or the request may be to blame. In a pool
    /// the replacement's result is the evidence, so that a refusal there is only `Failed`.
    Refused {
        request: RequestMark,
    },
    /// Leased and never sent.
    Unused,
}

/// The final state of a reserved idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reservation {
    Done,
    /// Nothing was executed: a call with the same key may run.
    Released,
    /// Sent without a response: it may or may not have been executed.
    Unknown,
}

/// Every return, report and request at the end of an attempt, in one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SettleAttempt {
    pub sample: Option<(Permit, BreakerSample)>,
    /// A permit without a sample: our own refusal, a caller who left, a server that only said "later".
    pub cancel: Option<Permit>,
    pub key: Option<(KeyLease, KeyReport)>,
    /// A success funds retries.
    pub earn: bool,
    /// The upstream responded and asked for no wait, so calls that wait because of an earlier throttle may go on.
    pub answered: bool,
    /// A retry asks the budget for a token.
    pub withdraw: bool,
    /// The token of a retry that was never sent.
    pub refund: Option<RetryFunding>,
    /// The server asked for a pause of this endpoint, of its upstream, or of the caller's own credential (`Scope::Key`).
    pub pause: Option<(Scope, Mono)>,
    /// Returns the cost to the limits: we refused the call after it took them.
    pub untake: bool,
    /// Returns a slot of the pool that was taken at this time.
    pub leave_pool: Option<Mono>,
    /// The call no longer waits in line.
    pub leave_line: Option<LinePlace>,
    pub reservation: Option<Reservation>,
}

impl SettleAttempt {
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}
