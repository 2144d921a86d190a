//! The vocabulary of results: classes, outcomes, decisions and reasons, as logs, metrics and headers spell them, and the two records
//! (attempt, call) that carry them.

pub mod histogram;
pub mod rollup;
pub mod spike;

use crate::time::Nanos;
use crate::words::words;

words! {
    /// The class of a result, which all later decisions depend on.
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
    /// The ways in which an attempt can fail without a usable response.
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
    /// The request provably never left us, so even an unsafe method may be sent again.
    #[must_use]
    pub const fn is_unsent(self) -> bool {
        matches!(self, Self::Dns | Self::Connect | Self::Tls)
    }
}

words! {
    /// The timeout that was exceeded.
    pub enum Timeout {
        /// `timeout.connect`: there was no connection.
        Connect = "connect",
        /// `timeout.attempt`: there was no response.
        Attempt = "attempt",
        /// `timeout.total` or the caller's own deadline, which ended an attempt early.
        Total = "total",
        /// The response had begun and then nothing came.
        Idle = "idle",
    }
}

words! {
    /// The scope of a wait or a cooldown.
    pub enum Scope {
        Call = "call",
        Key = "key",
        Group = "group",
        Endpoint = "endpoint",
        Upstream = "upstream",
    }
}

words! {
    /// The decision after a result.
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
    /// Names of our own refusals and failures for the caller (`code`, `error`, `Seawall-Outcome`).
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

/// The status of an attempt: the upstream's status code, or the kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AttemptStatus {
    Http(u16),
    Error(ErrorKind),
    CircuitOpen,
}

impl AttemptStatus {
    /// Parses the output of `Display`.
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
    /// The reason for a decision: one code for each branch of `call.rs`, and one for requests that never became a call.
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
        /// A provider asked for a pause of the endpoint or upstream.
        ProviderPause = "provider_pause",
        KeysCooling = "keys_cooling",
        KeysDead = "keys_dead",
        RateLimited = "rate_limited",
        ExceedsCapacity = "exceeds_capacity",
        PoolFull = "pool_full",
        QueueTimeout = "queue_timeout",
        Shed = "shed",
        /// The program stops before the call's wait ends.
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

/// One send, or one refusal by the breaker, as the attempt's log line shows it.
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
    /// Whether a rule other than a catch-all matched.
    pub named: bool,
    pub decision: Decision,
    pub wait: Nanos,
    pub reason: Reason,
}

impl AttemptOutcome {
    /// Whether the request is sent again, by whatever means.
    #[must_use]
    pub const fn is_repeated(&self) -> bool {
        matches!(self.decision, Decision::Retry | Decision::RotateKey | Decision::RefreshToken)
    }

    /// The `outcome` field: the class, except that the breaker's refusals and attempts that the caller abandoned have names of their own.
    #[must_use]
    pub const fn outcome(&self) -> &'static str {
        match (self.status, self.reason) {
            (AttemptStatus::CircuitOpen, _) => "circuit_open",
            (_, Reason::Cancelled) => Code::Cancelled.as_str(),
            (AttemptStatus::Http(_) | AttemptStatus::Error(_), _) => self.class.as_str(),
        }
    }
}
