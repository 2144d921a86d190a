//! Replays of many letters: named, durable tasks with a fixed filter, one at a time per upstream.

use seawall_core::id::CallId;
use seawall_core::time::Wall;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewReplay {
    pub id: CallId,
    pub name: String,
    pub who: String,
    /// The filter as JSON, with absolute times.
    pub filter: String,
    /// The upstreams of the letters.
    pub upstreams: Vec<String>,
    pub rate: String,
    /// This many letters go first; the rest follow when they have succeeded.
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
    /// All states; paused without a reason.
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
    /// Not replayed, for a reason in the plan or the letter.
    pub held_back: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    pub new: NewReplay,
    pub state: ReplayState,
    /// The last processed letter; letters come newest first.
    pub position: Option<CallId>,
    pub counts: ReplayCounts,
    /// Failures among the last [`RECENT`] letters that ended since the start or the last resumption.
    pub recent_failures: u32,
    pub updated_at: Wall,
}

/// Number of recent letters whose results a replay keeps.
pub const RECENT: u32 = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    Started,
    /// This running replay covers a common upstream.
    Underway(CallId),
}

/// The result of one step of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stepped {
    /// This job replays the letter.
    Started(CallId),
    HeldBack,
    /// Another instance has already processed the letter.
    Passed,
    /// It is paused or over.
    NotRunning,
}
