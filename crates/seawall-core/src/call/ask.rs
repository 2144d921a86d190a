//! The questions a call puts to shared state, and the answers. Plain data: the local backend, the simulator and any
//! remote one answer the same questions.

use crate::admit::layered::Answers;
use crate::admit::line::{Lane, LinePlace};
use crate::decide::RetryFunding;
use crate::guard::{Admission, BreakerSample, Permit};
use crate::lease::{self, KeyLease, KeySet, RequestMark, Until};
use crate::record::{Code, Scope};
use crate::time::{Mono, Nanos};

/// One question, or one report that is answered by `Answer::Settled`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ask {
    /// Take the cost from every limit, or from none.
    Limits,
    /// A place in the pool; whoever waits for one gives up at this time.
    Pool {
        give_up: Mono,
    },
    /// Reserve the idempotency key.
    Reserve,
    /// The breaker's leave to send; a probe may be out for `lease`.
    Permit {
        lease: Nanos,
    },
    /// A key for this request that is viable and not among those already tried.
    Key {
        tried: KeySet,
        request: RequestMark,
    },
    /// A place in the line of calls that wait for the upstream, unless the call has one, and when to ask for its turn. What it waits for
    /// is ready at that time.
    Line {
        place: Option<LinePlace>,
        lane: Lane,
        ready_at: Mono,
    },
    /// Whether it is this call's turn to look again.
    Turn {
        place: LinePlace,
    },
    /// Note that the request is about to be sent, where that outlives the process: a job's that may not be sent twice.
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
    /// In line; `Call::granted` follows, or the time to give up.
    PoolQueued,
    PoolFull {
        shed: bool,
    },
    Reserved,
    /// The stored answer of an earlier call with the same key.
    Replayed,
    KeyRefused(Code),
    Permitted(Permit),
    Open {
        retry_at: Option<Mono>,
    },
    /// The provider asked to be left alone until then.
    Paused {
        until: Mono,
        /// It binds the caller's own credential alone.
        own: bool,
    },
    Key(KeyLease),
    /// Every key is cooling; the first is viable after this long.
    Cooling {
        wait: Nanos,
        /// A probe may end that sooner.
        probed: bool,
    },
    /// Every key was rejected by the provider; the next probe is due after this long, if anybody knows.
    Dead {
        wait: Option<Nanos>,
    },
    /// In line; the call asks for its turn then.
    InLine {
        place: LinePlace,
        at: Mono,
    },
    /// It is the call's turn to look again.
    Turn,
    /// As many calls wait already as may.
    LineFull,
    /// The send is noted, or nobody has to know of it.
    Begun,
    /// It could not be noted, so nothing may be sent.
    NotBegun,
    Settled {
        funding: Option<RetryFunding>,
    },
}

/// The stages' own answers, as the call hears them: whoever keeps the state, this is what it means.
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

/// Where there is no pool of keys, there is no key.
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

/// What an attempt did to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyReport {
    Succeeded {
        /// A key that the provider refused for the same request: now it is known that the key was to blame.
        instead_of: Option<u16>,
    },
    /// Used, and neither better nor worse for it.
    Neutral,
    /// As neutral, but the upstream answered and asked for no wait: a key that was cooling is not throttled any more.
    Answered,
    Failed,
    /// Out of quota: no use of it, or of its group, before then.
    Cool {
        group: bool,
        until: Until,
    },
    /// Told to wait: no use of it, or of its group, before then, but for a probe now and then.
    Throttle {
        group: bool,
        until: Mono,
    },
    /// The provider did not accept it for this request, and there is no other key to ask. Whether the key or the request is to
    /// blame is not known. In a pool the replacement's answer is the evidence, so that a refusal there is only `Failed`.
    Refused {
        request: RequestMark,
    },
    /// Leased and never sent.
    Unused,
}

/// How a reserved idempotency key ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reservation {
    Done,
    /// Nothing was executed: the same key may run.
    Released,
    /// Sent, and no answer: nobody knows.
    Unknown,
}

/// Everything that is given back, reported or asked for at the end of an attempt, in one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SettleAttempt {
    pub sample: Option<(Permit, BreakerSample)>,
    /// A permit that counts as nothing: our own refusal, a caller who left, a server that only said "later".
    pub cancel: Option<Permit>,
    pub key: Option<(KeyLease, KeyReport)>,
    /// A success funds retries.
    pub earn: bool,
    /// The upstream answered, and asked nobody to wait: whoever waits because it once did may go on.
    pub answered: bool,
    /// A retry wants a token.
    pub withdraw: bool,
    /// A token whose retry was never sent.
    pub refund: Option<RetryFunding>,
    /// The server asked everybody on this endpoint or upstream to stay away, or everybody with the caller's own credential
    /// (`Scope::Key`).
    pub pause: Option<(Scope, Mono)>,
    /// Limits that were taken by a call that was then refused by us.
    pub untake: bool,
    /// A slot of the pool, held since then.
    pub leave_pool: Option<Mono>,
    /// The call waits no more.
    pub leave_line: Option<LinePlace>,
    pub reservation: Option<Reservation>,
}

impl SettleAttempt {
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}
