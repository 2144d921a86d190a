//! Raised alarms: one row each, held by one instance for all that share the store.

use seawall_core::id::CallId;
use seawall_core::policy::Severity;
use seawall_core::time::Wall;

/// Maximum alarms per query.
pub const MAX_ALARMS: usize = 1000;

/// An alarm for a queue with too many dead letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alarm {
    pub queue: String,
    pub severity: Severity,
    /// The process that will clear it.
    pub holder: CallId,
    pub raised_at: Wall,
    /// Time of the holder's last sign of life.
    pub seen_at: Wall,
}
