//! The journals of batch runs: pieces in order. What a piece says is the run's own business.

use crate::model::dead::NewLetter;
use bytes::Bytes;
use seawall_core::id::CallId;

/// What tells one run from others.
pub type RunId = [u8; 32];

/// What a run did since the piece before, with the dead letters that came of it: kept whole or not at all.
#[derive(Clone, Debug, Default)]
pub struct JournalPiece {
    pub number: u64,
    pub content: Bytes,
    pub letters: Vec<NewLetter>,
    /// Letters that are forgotten with this.
    pub outdated: Vec<CallId>,
}

/// How safe a piece is when its writer hears of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// From the end of this process.
    FromUs,
    /// From a power cut too, with every piece before it.
    FromPowerCuts,
}
