//! Numbers of jobs and dead letters, for alarms, metrics and the status page.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};

/// What there is to say about the store in numbers, refreshed by upkeep.
#[derive(Debug, Default)]
pub(crate) struct StoreCounts {
    pub by_state: [AtomicU64; 6],
    pub lag_ms: AtomicI64,
    pub letters: Mutex<Vec<seawall_store::dead::Depth>>,
    pub expired: AtomicU64,
    /// Jobs whose worker had vanished.
    pub recovered: AtomicU64,
    pub poisoned: AtomicU64,
    pub lost_leases: AtomicU64,
    /// The store did not answer when it was last asked.
    pub silent: AtomicBool,
    /// Letters have been counted at least once.
    pub counted: AtomicBool,
}
