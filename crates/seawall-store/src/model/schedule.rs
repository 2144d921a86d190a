//! A schedule's subjects: what is fetched again and again, and how that goes for each of them.

use seawall_core::time::Wall;

/// Who put a subject there.
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
    /// When it fires first.
    pub next_at: Wall,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleSubject {
    pub schedule: String,
    pub subject: String,
    pub source: SubjectSource,
    pub next_at: Wall,
    /// Earlier than `next_at`, after a failure.
    pub next_retry_at: Option<Wall>,
    pub last_ok_at: Option<Wall>,
    pub last_error: Option<String>,
    pub consecutive_failures: u32,
    /// Why it does not fire until somebody says so.
    pub stopped: Option<String>,
}

impl ScheduleSubject {
    /// The tick that comes next.
    #[must_use]
    pub fn due_at(&self) -> Wall {
        self.next_retry_at.unwrap_or(self.next_at)
    }
}

/// What one tick came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TickReport {
    Ok {
        at: Wall,
    },
    Failed {
        error: String,
        retry_at: Option<Wall>,
    },
    /// Trying again is useless until somebody has done something.
    Stopped {
        reason: String,
    },
}

/// A tick, and the job that comes of it.
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
