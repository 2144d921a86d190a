//! The journals of batch runs: pieces in order, and the right to write them. What a piece says is the run's own business.

use crate::dead::NewLetter;
use crate::{postgres, sqlite};
use bytes::Bytes;
use seawall_core::id::CallId;

/// What tells one run from others.
pub type Run = [u8; 32];

/// What a run did since the piece before, with the dead letters that came of it: kept whole or not at all.
#[derive(Clone, Debug, Default)]
pub struct Piece {
    pub number: u64,
    pub content: Bytes,
    pub letters: Vec<NewLetter>,
    /// Letters that are forgotten with this.
    pub outdated: Vec<CallId>,
}

/// How safe a piece is when its writer hears of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// From the end of this process.
    FromUs,
    /// From a power cut too, with every piece before it.
    FromPowerCuts,
}

/// Nobody else is at the same run for as long as this lives, or its process.
#[derive(Debug)]
pub struct Held(#[expect(dead_code, reason = "it is held, not looked at")] pub(crate) Hold);

#[derive(Debug)]
pub(crate) enum Hold {
    Sqlite(#[expect(dead_code, reason = "it is held, not looked at")] sqlite::RunLock),
    Postgres(#[expect(dead_code, reason = "it is held, not looked at")] postgres::RunLock),
}
