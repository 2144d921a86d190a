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

/// Where a job is in its life. The numbers are what databases keep.
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

/// What is sent, but for credentials: those are injected when it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobRequest {
    pub method: String,
    /// Below the upstream's URL, with its query; a whole URL where the upstream is [`AD_HOC`].
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Bytes,
}

impl JobRequest {
    /// Whether it holds values that are called like secrets.
    #[must_use]
    pub fn has_secrets(&self) -> bool {
        self.headers.iter().any(|(name, _)| discretion::is_secret(name)) || discretion::secrets(&self.path).next().is_some()
    }
}

/// The lane of jobs whose target is a whole URL that somebody handed in: callbacks and notifications.
pub const AD_HOC: &str = "-";

/// Why a job exists besides that a caller asked for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobOrigin {
    #[default]
    Caller,
    /// Tells somebody how that job ended.
    Callback(String),
    Notification,
    /// A tick of a schedule for one subject.
    Schedule {
        name: String,
        subject: String,
    },
    /// A dead letter's second chance.
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
    /// Higher goes first.
    pub priority: i64,
    pub request: JobRequest,
    pub idempotency_key: Option<String>,
    /// What makes two enqueues the same job: a hash over caller, upstream, method, path and key.
    pub dedup: Option<[u8; 32]>,
    /// A hash of the whole request: the same `dedup` with another fingerprint is a mistake of the caller.
    pub fingerprint: [u8; 32],
    pub correlation_id: Option<String>,
    pub callback: Option<String>,
    /// Not before.
    pub run_at: Wall,
    /// No attempt after.
    pub expires_at: Option<Wall>,
    pub origin: JobOrigin,
    /// What it had used up before it became a job.
    pub progress: CallProgress,
    pub history: Vec<Attempted>,
}

impl NewJob {
    /// As it is in the moment in which it is kept.
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

/// What became of one enqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    New(CallId),
    /// The same job was enqueued before.
    Known(CallId, JobState),
    /// The idempotency key belongs to another request.
    Mismatch(CallId),
}

/// One attempt, as dead letters tell it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempted {
    pub attempt: u32,
    pub status: String,
    pub latency_ms: f64,
    pub outcome: String,
    pub at: String,
}

/// A job that so many workers had when they vanished is suspected, and blamed for no other end than one that it was begun before: most
/// of those that a worker has at its end are not the cause.
pub const SUSPECT: u32 = 2;

/// Attempts that a job remembers; the oldest are forgotten first.
pub const MAX_HISTORY: usize = 50;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub headers: StoredHeaders,
    pub body: Bytes,
    /// The body was longer than what is kept.
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
    /// How often a worker vanished while it had this job; from [`SUSPECT`] on, while it ran this job.
    pub crashes: u32,
    /// When a send was begun whose worker was lost before it could tell the outcome, where that send may not be repeated.
    pub begun_at: Option<Wall>,
    /// The rules of the worker that was lost with it, see [`ClaimRequest::rules`]; [`MIXED`] where several were lost that went by different ones.
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

/// Proof that a worker has a job. Writes that carry an older one change nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobLease {
    pub(crate) row: i64,
    pub(crate) id: CallId,
    pub(crate) token: i64,
    /// A caller asked for the job: it is nobody else's replay or tick, and its end is told to nothing else in the store.
    pub(crate) by_caller: bool,
}

/// By its row alone: whoever holds many of these rarely has two of one job.
impl std::hash::Hash for JobLease {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.row.hash(state);
    }
}

#[derive(Clone, Debug)]
pub struct Claimed {
    pub lease: JobLease,
    pub job: Job,
    /// The length of a body that was left in the store, where it is longer than [`SHORT_BODY`].
    pub body_left: Option<usize>,
    /// Those of the [`ClaimRequest`].
    pub rules: i64,
}

/// The rules of workers that did not go by the same ones. Nobody goes by these.
pub const MIXED: i64 = -1;

/// Bodies up to this length come with their claim: a worker may claim hundreds of jobs long before it begins them.
pub const SHORT_BODY: usize = 16 * 1024;

/// One run of a program, as the tokens of its claims name it: a lease that runs out while its own process lives is not the end of
/// that process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder(u32);

impl Holder {
    /// Of a number that was drawn by chance.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The token of its claim with this number.
    #[must_use]
    pub fn token(self, claim: u32) -> u64 {
        u64::from(self.0) << 32 | u64::from(claim)
    }

    /// What all of its tokens begin with, as databases keep them.
    pub(crate) fn prefix(self) -> i64 {
        i64::from_ne_bytes(self.token(0).to_ne_bytes()) >> 32
    }
}

/// A wish for work.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// How many jobs of which upstream.
    pub lanes: Vec<(String, usize)>,
    /// What tells this claim from any other: a [`Holder`]'s, or drawn by chance.
    pub token: u64,
    pub lease: Nanos,
    pub now: Wall,
    /// A number for the rules by which the worker tells what may be repeated, and so is begun without a note.
    pub rules: i64,
}

/// What a renewal found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    Held,
    /// Somebody wants the job cancelled: stop, and settle it.
    Cancelling,
    /// The job is somebody else's now, or over.
    Lost,
}

/// How a worker gives a job back.
#[derive(Clone, Debug)]
pub enum JobEnding {
    /// Later, with what has been used up so far.
    Wait {
        until: Wall,
        reason: &'static str,
    },
    /// Not started after all, or cut off by a drain: it is as if it had not been claimed.
    Release,
    Done(Response),
    /// Given up on. The letter is kept in the same transaction.
    Dead(Box<crate::model::dead::NewLetter>),
    /// Given up on where no letters are wanted.
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
    /// What the upstream said last to a job that is given up on.
    pub answer: Option<Response>,
    /// Jobs that come of this one, kept in the same transaction: its callback.
    pub follow: Vec<NewJob>,
    /// The end of the reservation that it ran under, in the same transaction: a job is never over before its key is.
    pub key: Option<FinishKey>,
    /// The secrets of its request are needed no longer once it is over.
    pub forgets: bool,
    pub now: Wall,
    /// The very same was asked before, and nobody knows what came of it: what it left is looked for.
    pub again: bool,
}

/// What a settlement came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    Kept,
    /// The job should have waited, but was asked to be cancelled meanwhile.
    Cancelled,
    /// The lease was lost: nothing was changed.
    Lost,
}

/// What time itself brought about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClockTick {
    /// Jobs whose worker vanished.
    pub recovered: usize,
    /// Jobs whose time has come.
    pub due: usize,
    /// Lanes that have something to claim.
    pub lanes: Vec<String>,
    /// When the next waiting job is due.
    pub next: Option<Wall>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    Now,
    /// It is running; its worker has been told.
    Asked,
    /// Too late: it is over.
    Over(JobState),
    Unknown,
}

/// Which waiting jobs need not wait any longer. They become due one after the other, not all at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hasten {
    pub upstream: String,
    /// What they wait for: a word of `Reason`.
    pub reason: &'static str,
    /// When the first of them becomes due.
    pub from: Wall,
    /// Those that were due before have been looked at.
    pub(crate) after: Wall,
}

impl Hasten {
    #[must_use]
    pub const fn new(upstream: String, reason: &'static str, from: Wall) -> Self {
        Self { upstream, reason, from, after: from }
    }
}

/// A part of what was wished for, and how to go on.
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

/// How many jobs are in each state, and since when the oldest queued one has been there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateCounts {
    pub by_state: [u64; 6],
    pub oldest_queued: Option<Wall>,
}
