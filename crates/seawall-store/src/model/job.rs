//! A job: a call that outlives the process. Plain data, the same for every backend.
//!
//! ```text
//!            due              claim                done
//!  waiting ──────▶ queued ───────────▶ running ───────────▶ done
//!     ▲              ▲                  │  │  └─ dead letter ─▶ dead
//!     │              └── lease over ────┘  │
//!     └──────── retry, deferred ───────────┘        any but the last three ── cancel ──▶ cancelled
//! ```

use crate::model::headers::StoredHeaders;
use crate::model::idempotency::FinishKey;
use bytes::Bytes;
use seawall_core::decide::CallProgress;
use seawall_core::discretion;
use seawall_core::id::CallId;
use seawall_core::time::{Nanos, Wall};
use serde::{Deserialize, Serialize};

/// The state of a job. Databases store the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobState {
    Queued = 0,
    Running = 1,
    Waiting = 2,
    Done = 3,
    Dead = 4,
    Cancelled = 5,
}

impl JobState {
    pub const ALL: [Self; 6] = [Self::Queued, Self::Running, Self::Waiting, Self::Done, Self::Dead, Self::Cancelled];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Done => "done",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
        }
    }

    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }

    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Dead | Self::Cancelled)
    }

    pub(crate) const fn number(self) -> i64 {
        self as i64
    }

    pub(crate) fn from_number(number: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.number() == number)
    }
}

/// A job's request without credentials, which are added when it is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobRequest {
    pub method: String,
    /// The path below the upstream's URL, with its query; a full URL if the upstream is [`AD_HOC`].
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Bytes,
}

impl JobRequest {
    /// Returns whether it holds values whose names suggest secrets.
    #[must_use]
    pub fn has_secrets(&self) -> bool {
        self.headers.iter().any(|(name, _)| discretion::is_secret(name)) || discretion::secrets(&self.path).next().is_some()
    }
}

/// The lane of jobs with a full URL as target: callbacks and notifications.
pub const AD_HOC: &str = "-";

/// The origin of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobOrigin {
    #[default]
    Caller,
    /// Reports the end of the job with this id.
    Callback(String),
    Notification,
    /// A tick of a schedule for one subject.
    Schedule {
        name: String,
        subject: String,
    },
    /// The replay of a dead letter.
    Replay {
        letter: String,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct NewJob {
    pub id: CallId,
    pub upstream: String,
    pub tenant: String,
    pub caller: String,
    /// Jobs of higher priority start first.
    pub priority: i64,
    pub request: JobRequest,
    pub idempotency_key: Option<String>,
    /// Identifies equal submissions: a hash over caller, upstream, method, path and key.
    pub dedup: Option<[u8; 32]>,
    /// A hash of the whole request: the same `dedup` with another fingerprint is an error of the caller.
    pub fingerprint: [u8; 32],
    pub correlation_id: Option<String>,
    pub callback: Option<String>,
    /// Earliest start.
    pub run_at: Wall,
    /// No attempt starts later.
    pub expires_at: Option<Wall>,
    pub origin: JobOrigin,
    /// Attempts and waits of the call before it became a job.
    pub progress: CallProgress,
    pub history: Vec<Attempted>,
}

impl NewJob {
    /// Returns the job in its initial state.
    #[must_use]
    pub fn begun(self, now: Wall) -> Job {
        Job {
            id: self.id,
            upstream: self.upstream,
            tenant: self.tenant,
            caller: self.caller,
            priority: self.priority,
            request: self.request,
            state: JobState::Queued,
            progress: self.progress,
            history: self.history,
            crashes: 0,
            begun_at: None,
            lost_under: None,
            idempotency_key: self.idempotency_key,
            correlation_id: self.correlation_id,
            callback: self.callback,
            origin: self.origin,
            run_at: self.run_at,
            next_attempt_at: Some(self.run_at.max(now)),
            expires_at: self.expires_at,
            created_at: now,
            finished_at: None,
            response: None,
            error: None,
        }
    }
}

/// The result of one submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    New(CallId),
    /// The same job was submitted before.
    Known(CallId, JobState),
    /// The idempotency key belongs to another request.
    Mismatch(CallId),
}

/// One attempt, in the form shown in dead letters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempted {
    pub attempt: u32,
    pub status: String,
    pub latency_ms: f64,
    pub outcome: String,
    pub at: String,
}

/// A job that this many lost workers held is a suspect. From then on it is blamed only for losses while it runs, because most jobs that a
/// lost worker held are not the cause.
pub const SUSPECT: u32 = 2;

/// Maximum attempts in a job's history; the oldest are dropped first.
pub const MAX_HISTORY: usize = 50;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub headers: StoredHeaders,
    pub body: Bytes,
    /// The body was truncated.
    pub truncated: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    pub id: CallId,
    pub upstream: String,
    pub tenant: String,
    pub caller: String,
    pub priority: i64,
    pub request: JobRequest,
    pub state: JobState,
    pub progress: CallProgress,
    pub history: Vec<Attempted>,
    /// Number of workers lost while they held this job; from [`SUSPECT`] on, while they ran it.
    pub crashes: u32,
    /// Start of a send that may not be repeated and whose worker was lost before it knew the outcome.
    pub begun_at: Option<Wall>,
    /// The rules of the worker that was lost with it, see [`ClaimRequest::rules`]; [`MIXED`] after the loss of several with different
    /// rules.
    pub lost_under: Option<i64>,
    pub idempotency_key: Option<String>,
    pub correlation_id: Option<String>,
    pub callback: Option<String>,
    pub origin: JobOrigin,
    pub run_at: Wall,
    pub next_attempt_at: Option<Wall>,
    pub expires_at: Option<Wall>,
    pub created_at: Wall,
    pub finished_at: Option<Wall>,
    pub response: Option<Response>,
    /// Why it waits, or how it failed: a word of `Reason` or `Code`.
    pub error: Option<String>,
}

/// Proof that a worker holds a job. Writes with an outdated lease change nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobLease {
    pub(crate) row: i64,
    pub(crate) id: CallId,
    pub(crate) token: i64,
    /// The job comes from a caller: it is no replay or tick, so its end changes nothing else in the store.
    pub(crate) by_caller: bool,
}

/// Hashes the row alone: a table of leases rarely has two of one job.
impl std::hash::Hash for JobLease {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.row.hash(state);
    }
}

#[derive(Clone, Debug)]
pub struct Claimed {
    pub lease: JobLease,
    pub job: Job,
    /// The length of a body that the claim left in the store because it exceeds [`SHORT_BODY`].
    pub body_left: Option<usize>,
    /// The rules of the [`ClaimRequest`].
    pub rules: i64,
}

/// The rules of several workers that differed. No worker has this number.
pub const MIXED: i64 = -1;

/// Bodies up to this length come with their claim. A worker may claim hundreds of jobs long before it starts them.
pub const SHORT_BODY: usize = 16 * 1024;

/// Identifies one run of a program in the tokens of its claims. A lease that expires while its own process lives does not count as a crash
/// of that process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder(u32);

impl Holder {
    /// Creates it from a random number.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Returns the token of the claim with this number.
    #[must_use]
    pub fn token(self, claim: u32) -> u64 {
        u64::from(self.0) << 32 | u64::from(claim)
    }

    /// Returns the common prefix of its tokens, in the form that databases store.
    pub(crate) fn prefix(self) -> i64 {
        i64::from_ne_bytes(self.token(0).to_ne_bytes()) >> 32
    }
}

/// A request to claim jobs.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// Maximum jobs per upstream.
    pub lanes: Vec<(String, usize)>,
    /// Unique token of this claim: from a [`Holder`], or random.
    pub token: u64,
    pub lease: Nanos,
    pub now: Wall,
    /// A number for the rules by which the worker decides that a request may be repeated and is started without a note.
    pub rules: i64,
}

/// The result of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    Held,
    /// The job is to be cancelled: stop and settle it.
    Cancelling,
    /// Another worker holds the job now, or it is over.
    Lost,
}

/// The way in which a worker gives a job back.
#[derive(Clone, Debug)]
pub enum JobEnding {
    /// Runs again later and keeps its progress.
    Wait {
        until: Wall,
        reason: &'static str,
    },
    /// Not started, or cut off by a drain: as if it had not been claimed.
    Release,
    Done(Response),
    /// Given up on. The letter is stored in the same transaction.
    Dead(Box<crate::model::dead::NewLetter>),
    /// Given up on, with letters turned off.
    Failed {
        code: String,
    },
    Cancelled,
}

#[derive(Clone, Debug)]
pub struct SettleJob {
    pub lease: JobLease,
    pub ending: JobEnding,
    pub progress: CallProgress,
    pub history: Vec<Attempted>,
    /// The last response to a job that is given up on.
    pub answer: Option<Response>,
    /// Jobs that follow from this one, stored in the same transaction: its callback.
    pub follow: Vec<NewJob>,
    /// The end of its key's reservation, in the same transaction: a job is never over before its key is.
    pub key: Option<FinishKey>,
    /// The secrets of its request may be erased once it is over.
    pub forgets: bool,
    pub now: Wall,
    /// A repetition: the reply to an equal request was lost, so the store checks whether that one was applied.
    pub again: bool,
}

/// The result of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    Kept,
    /// The job was cancelled meanwhile instead of waiting for a retry.
    Cancelled,
    /// The lease was lost: nothing was changed.
    Lost,
}

/// The result of a tick.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClockTick {
    /// Jobs recovered from lost workers.
    pub recovered: usize,
    /// Jobs that became due.
    pub due: usize,
    /// Lanes with jobs to claim.
    pub lanes: Vec<String>,
    /// The time at which the next waiting job is due.
    pub next: Option<Wall>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    Now,
    /// It is running, and its worker will be told to stop.
    Asked,
    /// Too late: it is over.
    Over(JobState),
    Unknown,
}

/// A request to wake waiting jobs. They become due one after the other, not all at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hasten {
    pub upstream: String,
    /// The condition that they wait for: a word of `Reason`.
    pub reason: &'static str,
    /// The time at which the first of them becomes due.
    pub from: Wall,
    /// Jobs that were due before this time have been processed.
    pub(crate) after: Wall,
}

impl Hasten {
    #[must_use]
    pub const fn new(upstream: String, reason: &'static str, from: Wall) -> Self {
        Self { upstream, reason, from, after: from }
    }
}

/// The result of one batch, and the request for the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hastened {
    pub jobs: u64,
    pub next: Option<Hasten>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFilter {
    pub state: Option<JobState>,
    pub upstream: Option<String>,
    pub correlation_id: Option<String>,
}

/// The number of jobs in each state, and the time since which the oldest queued one waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateCounts {
    pub by_state: [u64; 6],
    pub oldest_queued: Option<Wall>,
}
