//! The words for what happened: classes, outcomes, decisions and reasons, as logs, metrics and headers spell them,
//! and the two records (attempt, call) that carry them.

pub mod histogram;
pub mod rollup;
pub mod spike;

use crate::time::Nanos;
use crate::words::words;

words! {
    /// What a result is, decided before anything else is.
    pub enum Class {
        Success = "success",
        Transient = "transient",
        Permanent = "permanent",
        Ambiguous = "ambiguous",
        Quota = "quota",
        Auth = "auth",
    }
}

words! {
    /// How an attempt can fail without a usable answer.
    pub enum ErrorKind {
        Timeout = "timeout",
        Dns = "dns",
        Connect = "connect",
        Reset = "reset",
        Tls = "tls",
        Malformed = "malformed",
        Schema = "schema",
    }
}

impl ErrorKind {
    /// The request provably never left us, so even an unsafe method may go again.
    #[must_use]
    pub const fn is_unsent(self) -> bool {
        matches!(self, Self::Dns | Self::Connect | Self::Tls)
    }
}

words! {
    /// Which bound something went over.
    pub enum Timeout {
        /// `timeout.connect`: there was no connection.
        Connect = "connect",
        /// `timeout.attempt`: there was no answer.
        Attempt = "attempt",
        /// `timeout.total` or the caller's own deadline, which ended an attempt early.
        Total = "total",
        /// The answer had begun and then nothing came.
        Idle = "idle",
    }
}

words! {
    /// What a wait, or a cooldown, applies to.
    pub enum Scope {
        Call = "call",
        Key = "key",
        Group = "group",
        Endpoint = "endpoint",
        Upstream = "upstream",
    }
}

words! {
    /// What is done after a result.
    pub enum Decision {
        Return = "return",
        Retry = "retry",
        RotateKey = "rotate_key",
        RefreshToken = "refresh_token",
        Defer = "defer",
        Reject = "reject",
    }
}

words! {
    /// How our own refusals and failures are named to the caller (`code`, `error`, `Seawall-Outcome`).
    pub enum Code {
        RateLimited = "rate_limited",
        KeysExhausted = "keys_exhausted",
        KeysRejected = "keys_rejected",
        Overloaded = "overloaded",
        CircuitOpen = "circuit_open",
        Paused = "paused",
        DeadlineExceeded = "deadline_exceeded",
        UpstreamUnreachable = "upstream_unreachable",
        SchemaMismatch = "schema_mismatch",
        NoUpstream = "no_upstream",
        IdempotencyKeyMissing = "idempotency_key_missing",
        IdempotencyKeyMismatch = "idempotency_key_mismatch",
        IdempotencyKeyInFlight = "idempotency_key_in_flight",
        OutcomeUnknown = "outcome_unknown",
        CallerUnknown = "caller_unknown",
        TooLarge = "too_large",
        Cancelled = "cancelled",
        BadRequest = "bad_request",
        LoopDetected = "loop_detected",
        MethodNotAllowed = "method_not_allowed",
        NotFound = "not_found",
        NotImplemented = "not_implemented",
        RequestTimeout = "request_timeout",
        StorageFull = "storage_full",
        StoreUnavailable = "store_unavailable",
        StreamCut = "stream_cut",
    }
}

impl Code {
    /// The stage that refuses with this code, for metrics.
    #[must_use]
    pub const fn stage(self) -> &'static str {
        match self {
            Self::RateLimited | Self::Overloaded | Self::CallerUnknown | Self::TooLarge | Self::NoUpstream => "admit",
            Self::IdempotencyKeyMissing | Self::IdempotencyKeyMismatch | Self::IdempotencyKeyInFlight | Self::OutcomeUnknown => "admit",
            Self::BadRequest | Self::LoopDetected | Self::MethodNotAllowed | Self::NotFound | Self::NotImplemented => "admit",
            Self::RequestTimeout | Self::StorageFull | Self::StoreUnavailable => "admit",
            Self::KeysExhausted | Self::KeysRejected => "lease",
            Self::CircuitOpen | Self::Paused => "guard",
            Self::UpstreamUnreachable | Self::SchemaMismatch | Self::Cancelled | Self::StreamCut => "attempt",
            Self::DeadlineExceeded => "decide",
        }
    }
}

/// The status of an attempt: what the upstream said, or how it failed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AttemptStatus {
    Http(u16),
    Error(ErrorKind),
    CircuitOpen,
}

impl AttemptStatus {
    /// Reads what `Display` writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let known = ErrorKind::from_word(text).map(Self::Error).or_else(|| text.parse().ok().map(Self::Http));
        if text == "circuit_open" { Some(Self::CircuitOpen) } else { known }
    }
}

impl std::fmt::Display for AttemptStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Http(code) => write!(f, "{code}"),
            Self::Error(kind) => f.write_str(kind.as_str()),
            Self::CircuitOpen => f.write_str("circuit_open"),
        }
    }
}

words! {
    /// Why a decision was taken: one code for each branch of `call.rs`, and one for calls that never got that far.
    pub enum Reason {
        Succeeded = "succeeded",
        TransientFailure = "transient_failure",
        AmbiguousFailure = "ambiguous_failure",
        ServerHint = "server_hint",
        QuotaRotation = "quota_rotation",
        QuotaExhausted = "quota_exhausted",
        TokenExpired = "token_expired",
        KeyRejected = "key_rejected",
        PermanentFailure = "permanent_failure",
        AttemptsExhausted = "attempts_exhausted",
        AmbiguousExhausted = "ambiguous_exhausted",
        BudgetExhausted = "budget_exhausted",
        DeadlineExceeded = "deadline_exceeded",
        HintTooLong = "hint_too_long",
        NotIdempotent = "not_idempotent",
        BodyNotReplayable = "body_not_replayable",
        AuthFailed = "auth_failed",
        CircuitOpen = "circuit_open",
        /// A provider asked everybody on the endpoint or upstream to stay away.
        ProviderPause = "provider_pause",
        KeysCooling = "keys_cooling",
        KeysDead = "keys_dead",
        RateLimited = "rate_limited",
        ExceedsCapacity = "exceeds_capacity",
        PoolFull = "pool_full",
        QueueTimeout = "queue_timeout",
        Shed = "shed",
        /// The program ends before the wait of the call does.
        Draining = "draining",
        /// Refused before it became a call.
        TurnedAway = "turned_away",
        IdempotencyReplayed = "idempotency_replayed",
        IdempotencyRefused = "idempotency_refused",
        Queued = "queued",
        Paced = "paced",
        Cancelled = "cancelled",
        Cached = "cached",
        /// The response broke off after its first byte had gone to the caller.
        StreamCut = "stream_cut",
    }
}

/// One send, or one refusal by the breaker, as the attempt log line tells it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttemptOutcome {
    /// From 1.
    pub number: u32,
    pub status: AttemptStatus,
    /// Index of the leased key in its pool.
    pub key: Option<u16>,
    pub latency: Nanos,
    pub elapsed: Nanos,
    pub class: Class,
    /// Whether a rule other than a catch-all named it.
    pub named: bool,
    pub decision: Decision,
    pub wait: Nanos,
    pub reason: Reason,
}

impl AttemptOutcome {
    /// Whether it is sent again, by whatever means.
    #[must_use]
    pub const fn is_repeated(&self) -> bool {
        matches!(self.decision, Decision::Retry | Decision::RotateKey | Decision::RefreshToken)
    }

    /// The `outcome` field: the class, except that the breaker's refusals and what a caller gave up are named for what
    /// they are.
    #[must_use]
    pub const fn outcome(&self) -> &'static str {
        match (self.status, self.reason) {
            (AttemptStatus::CircuitOpen, _) => "circuit_open",
            (_, Reason::Cancelled) => Code::Cancelled.as_str(),
            (AttemptStatus::Http(_) | AttemptStatus::Error(_), _) => self.class.as_str(),
        }
    }
}
