//! The subjects of schedules: requests that are repeated periodically, with the state of each.

use seawall_core::time::Wall;

/// The source of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubjectSource {
    Config,
    Api,
}

impl SubjectSource {
    pub const ALL: [Self; 2] = [Self::Config, Self::Api];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Api => "api",
        }
    }

    pub(crate) fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|source| source.as_str() == word)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSubject {
    pub schedule: String,
    pub subject: String,
    pub source: SubjectSource,
    /// Time of the first tick.
    pub next_at: Wall,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleSubject {
    pub schedule: String,
    pub subject: String,
    pub source: SubjectSource,
    pub next_at: Wall,
    /// An earlier tick after a failure.
    pub next_retry_at: Option<Wall>,
    pub last_ok_at: Option<Wall>,
    pub last_error: Option<String>,
    pub consecutive_failures: u32,
    /// The reason why it stopped; an operator must resume it.
    pub stopped: Option<String>,
}

impl ScheduleSubject {
    /// Returns the time of the next tick.
    #[must_use]
    pub fn due_at(&self) -> Wall {
        self.next_retry_at.unwrap_or(self.next_at)
    }
}

/// The result of one tick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TickReport {
    Ok {
        at: Wall,
    },
    Failed {
        error: String,
        retry_at: Option<Wall>,
    },
    /// Retries are useless until an operator has fixed the cause.
    Stopped {
        reason: String,
    },
}

/// A tick and its job.
#[derive(Clone, Debug)]
pub struct Firing {
    pub schedule: String,
    pub subject: String,
    /// The subject's `due_at`, as it was read.
    pub tick: Wall,
    pub next_at: Wall,
    pub job: crate::model::job::NewJob,
    pub now: Wall,
}
