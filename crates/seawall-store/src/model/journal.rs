//! Journals of batch runs: ordered pieces with opaque content.

use crate::model::dead::NewLetter;
use bytes::Bytes;
use seawall_core::id::CallId;

/// Identifies a run.
pub type RunId = [u8; 32];

/// The progress of a run since the piece before, with its dead letters: stored as a whole or not at all.
#[derive(Clone, Debug, Default)]
pub struct JournalPiece {
    pub number: u64,
    pub content: Bytes,
    pub letters: Vec<NewLetter>,
    /// Letters that are deleted with this write.
    pub outdated: Vec<CallId>,
}

/// The durability of a piece when its write returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Survives the end of this process.
    FromUs,
    /// Survives a power cut, with every piece before it.
    FromPowerCuts,
}
