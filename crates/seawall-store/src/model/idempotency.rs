//! Persistent idempotency keys: the core has the rules, and the response is stored beside the entry.

use crate::model::job::Response;
use seawall_core::admit::idempotency::{KeyClaim, KeyEnding, ReserveAnswer};
use seawall_core::id::CallId;
use seawall_core::time::{Nanos, Wall};

/// A request to reserve a key.
#[derive(Clone, Copy, Debug)]
pub struct ReserveKey {
    /// A hash over the values that identify a key.
    pub scope: [u8; 32],
    pub claim: KeyClaim,
    /// The job that asks; it recognises its own reservation when it runs again.
    pub owner: Option<CallId>,
    pub now: Wall,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    pub answer: ReserveAnswer,
    /// The response to replay.
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
