//! A dead letter: a call that was given up on and stored with all that is known about the cause. Letters with equal failures form an issue.

use crate::model::job::{Attempted, JobRequest};
use seawall_core::id::CallId;
use seawall_core::policy::{Door, Severity};
use seawall_core::record::Class;
use seawall_core::time::Wall;

/// The data written when a call is given up on. Credentials have already been removed from the request.
#[derive(Clone, Debug, PartialEq)]
pub struct NewLetter {
    pub id: CallId,
    pub door: Door,
    pub upstream: String,
    pub endpoint: String,
    pub tenant: String,
    pub caller: String,
    /// The full URL for display.
    pub url: String,
    pub request: JobRequest,
    /// The body exceeded the limit and was truncated, so the letter cannot be replayed.
    pub body_cut: bool,
    pub class: Class,
    pub reason: String,
    pub code: String,
    /// The message of the upstream or the checker, truncated and redacted.
    pub detail: String,
    pub last_attempt_at: Option<Wall>,
    pub attempts: u32,
    pub correlation_id: Option<String>,
    pub idempotency_key: Option<String>,
    pub enqueued_at: Wall,
    pub dead_at: Wall,
    pub expires_at: Wall,
    pub severity: Severity,
    pub replayable: bool,
    pub instructions: String,
    pub history: Vec<Attempted>,
}

/// The state of a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LetterStatus {
    /// Not replayed.
    Kept = 0,
    /// A job is replaying it.
    Replaying = 1,
    /// A replay succeeded.
    Replayed = 2,
}

impl LetterStatus {
    pub const ALL: [Self; 3] = [Self::Kept, Self::Replaying, Self::Replayed];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Replaying => "replaying",
            Self::Replayed => "replayed",
        }
    }

    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == word)
    }

    pub(crate) const fn number(self) -> i64 {
        self as i64
    }

    pub(crate) fn from_number(number: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.number() == number)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Letter {
    pub letter: NewLetter,
    pub status: LetterStatus,
    /// Number of replays.
    pub replays: u32,
    /// The job that replays it, or did so last.
    pub replayed_by: Option<CallId>,
}

/// A filter of letters. All given conditions must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LetterQuery {
    pub ids: Vec<CallId>,
    pub upstream: Option<String>,
    pub endpoint: Option<String>,
    pub class: Option<Class>,
    pub code: Option<String>,
    pub severity: Option<Severity>,
    pub since: Option<Wall>,
    pub until: Option<Wall>,
    pub status: Option<LetterStatus>,
    /// A substring of the URL, the detail, the correlation id or the reason.
    pub text: Option<String>,
}

/// Letters that failed in the same way.
#[derive(Clone, Debug, PartialEq)]
pub struct Issue {
    pub upstream: String,
    pub endpoint: String,
    pub class: Class,
    pub code: String,
    pub severity: Severity,
    /// Letters that have not been replayed.
    pub open: u64,
    /// All letters ever counted.
    pub total: u64,
    pub first_at: Wall,
    pub last_at: Wall,
    /// The detail of the newest letter.
    pub detail: String,
}

/// The number of open letters in a queue (an upstream's) at a severity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Depth {
    pub queue: String,
    pub severity: Severity,
    pub open: u64,
}

/// The result of deleting expired letters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expiry {
    /// Number of deleted letters.
    pub gone: usize,
    /// Deleted letters that were still open.
    pub unheeded: Vec<Expired>,
}

/// The data that is logged about an expired letter.
#[derive(Clone, Debug, PartialEq)]
pub struct Expired {
    pub id: CallId,
    pub upstream: String,
    pub endpoint: String,
    pub class: Class,
    pub code: String,
    pub severity: Severity,
    pub dead_at: Wall,
}
