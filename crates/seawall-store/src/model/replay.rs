//! Replays of many letters: named, durable tasks with a frozen filter, one at a time for each upstream.

use seawall_core::id::CallId;
use seawall_core::time::Wall;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewReplay {
    pub id: CallId,
    pub name: String,
    pub who: String,
    /// What is meant, as JSON, with every relative time resolved.
    pub filter: String,
    /// Whose letters these are.
    pub upstreams: Vec<String>,
    pub rate: String,
    /// So many first, and the rest when they worked.
    pub canary: u32,
    pub created_at: Wall,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayState {
    Running,
    Paused(String),
    Done,
    Cancelled,
}

impl ReplayState {
    /// Every one, paused for no reason.
    pub const ALL: [Self; 4] = [Self::Running, Self::Paused(String::new()), Self::Done, Self::Cancelled];

    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused(_) => "paused",
            Self::Done => "done",
            Self::Cancelled => "cancelled",
        }
    }

    pub(crate) const fn number(&self) -> i64 {
        match self {
            Self::Running => 0,
            Self::Paused(_) => 1,
            Self::Done => 2,
            Self::Cancelled => 3,
        }
    }

    pub(crate) fn from_number(number: i64, reason: Option<String>) -> Option<Self> {
        match number {
            0 => Some(Self::Running),
            1 => Some(Self::Paused(reason.unwrap_or_default())),
            2 => Some(Self::Done),
            3 => Some(Self::Cancelled),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayCounts {
    pub started: u64,
    pub worked: u64,
    pub failed: u64,
    /// Not replayed, for a reason that the plan or the letter gave.
    pub held_back: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    pub new: NewReplay,
    pub state: ReplayState,
    /// The last letter that was looked at; letters come newest first.
    pub position: Option<CallId>,
    pub counts: ReplayCounts,
    /// Of the last [`RECENT`] letters that ended since it was started or resumed, those that failed again.
    pub recent_failures: u32,
    pub updated_at: Wall,
}

/// Letters whose ends a replay remembers.
pub const RECENT: u32 = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    Started,
    /// This one is at an upstream that both mean.
    Underway(CallId),
}

/// What one step of a replay came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stepped {
    /// This job is at the letter.
    Started(CallId),
    HeldBack,
    /// Somebody else has been here.
    Passed,
    /// It is paused or over.
    NotRunning,
}
