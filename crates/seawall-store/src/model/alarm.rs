//! Alarms that are raised: a row each, which one instance holds for all that share the store.

use seawall_core::id::CallId;
use seawall_core::policy::Severity;
use seawall_core::time::Wall;

/// Alarms that one question brings at most.
pub const MAX_ALARMS: usize = 1000;

/// A queue of dead letters that is too deep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alarm {
    pub queue: String,
    pub severity: Severity,
    /// The process that says when it is over.
    pub holder: CallId,
    pub raised_at: Wall,
    /// When the holder was last heard of.
    pub seen_at: Wall,
}
