//! A dead letter: a call that was given up on and kept, with everything that is known about why. Letters that failed the
//! same way are one issue.

use crate::model::job::{Attempted, JobRequest};
use seawall_core::id::CallId;
use seawall_core::policy::{Door, Severity};
use seawall_core::record::Class;
use seawall_core::time::Wall;

/// What is written when a call is given up on. Its request holds no credential: those were taken out before.
#[derive(Clone, Debug, PartialEq)]
pub struct NewLetter {
    pub id: CallId,
    pub door: Door,
    pub upstream: String,
    pub endpoint: String,
    pub tenant: String,
    pub caller: String,
    /// The whole URL, as people read it.
    pub url: String,
    pub request: JobRequest,
    /// The body was longer than what is kept, so it cannot be sent again from here.
    pub body_cut: bool,
    pub class: Class,
    pub reason: String,
    pub code: String,
    /// What the upstream or the checker said, cut and redacted.
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

/// What is being done about a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LetterStatus {
    /// Nothing yet.
    Kept = 0,
    /// A job is at it.
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
    /// How often it has been tried again.
    pub replays: u32,
    /// The job that is at it, or was last.
    pub replayed_by: Option<CallId>,
}

/// Letters that an operator means. Everything that is given must match.
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
    /// Somewhere in the URL, the detail, the correlation id or the reason.
    pub text: Option<String>,
}

/// Letters that failed the same way.
#[derive(Clone, Debug, PartialEq)]
pub struct Issue {
    pub upstream: String,
    pub endpoint: String,
    pub class: Class,
    pub code: String,
    pub severity: Severity,
    /// Letters that wait for somebody.
    pub open: u64,
    /// Letters there ever were.
    pub total: u64,
    pub first_at: Wall,
    pub last_at: Wall,
    /// The newest letter's.
    pub detail: String,
}

/// How many letters wait in a queue (an upstream's) at a severity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Depth {
    pub queue: String,
    pub severity: Severity,
    pub open: u64,
}

/// Letters whose time was over.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expiry {
    /// How many are gone.
    pub gone: usize,
    /// Those of them that nobody looked after.
    pub unheeded: Vec<Expired>,
}

/// What a letter that ran out of time leaves in the log.
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
