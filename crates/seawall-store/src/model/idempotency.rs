//! Idempotency keys that outlive the process: the core decides, the answer is kept beside the entry.

use crate::model::job::Response;
use seawall_core::admit::idempotency::{KeyClaim, KeyEnding, ReserveAnswer};
use seawall_core::id::CallId;
use seawall_core::time::{Nanos, Wall};

/// A wish to execute under a key.
#[derive(Clone, Copy, Debug)]
pub struct ReserveKey {
    /// A hash over whatever makes two keys the same.
    pub scope: [u8; 32],
    pub claim: KeyClaim,
    /// The job that asks: it recognises its own reservation when it comes back.
    pub owner: Option<CallId>,
    pub now: Wall,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    pub answer: ReserveAnswer,
    /// What is to be replayed.
    pub stored: Option<Response>,
}

/// The end of a reservation.
#[derive(Clone, Debug)]
pub struct FinishKey {
    pub scope: [u8; 32],
    pub reservation: u32,
    pub ending: KeyEnding,
    pub response: Option<Response>,
    pub ttl: Nanos,
    pub now: Wall,
}
