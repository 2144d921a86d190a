//! Numbers of jobs and dead letters, for alarms, metrics and the status page.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};

/// Counts from the store, refreshed by the maintenance.
#[derive(Debug, Default)]
pub(crate) struct StoreCounts {
    pub by_state: [AtomicU64; 6],
    pub lag_ms: AtomicI64,
    pub letters: Mutex<Vec<seawall_store::dead::Depth>>,
    pub expired: AtomicU64,
    /// Jobs whose worker was lost.
    pub recovered: AtomicU64,
    pub poisoned: AtomicU64,
    pub lost_leases: AtomicU64,
    /// The store did not reply to the latest request.
    pub silent: AtomicBool,
    /// Letters have been counted at least once.
    pub counted: AtomicBool,
}
