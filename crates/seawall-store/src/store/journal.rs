//! Journals of batch runs, on both backends.

use super::{PostgresStore, SqliteStore, Store};
use crate::error::Error;
use crate::model::journal::{Durability, JournalPiece, RunId};
use crate::run_lock::{Lock, RunLock};
use crate::sql::at_once;
use crate::statements;
use bytes::Bytes;
use seawall_core::time::Wall;

#[expect(clippy::missing_errors_doc, reason = "they fail as the database fails, and only so")]
impl Store {
    /// Acquires the right to write a run's journal, unless another process has it.
    pub async fn hold_run(&self, run: RunId) -> Result<Option<RunLock>, Error> {
        let held = match self {
            Self::Sqlite(SqliteStore(backend)) => backend.hold_run(&run)?.map(Lock::Sqlite),
            Self::Postgres(PostgresStore(backend)) => backend.hold_run(&run).await?.map(Lock::Postgres),
        };
        Ok(held.map(RunLock))
    }

    /// Appends the next piece to a run's journal, with its letters. A repetition changes nothing.
    pub async fn journal_append(&self, run: RunId, piece: JournalPiece, kept: Durability, now: Wall) -> Result<(), Error> {
        match kept {
            Durability::FromUs => change!(self, repeats statements::journal::append, run, piece, now),
            Durability::FromPowerCuts => change!(self, adds statements::journal::append, run, piece, now),
        }
    }

    /// Returns pieces from a number on, in order.
    pub async fn journal(&self, run: RunId, from: u64, most: usize) -> Result<Vec<(u64, Bytes)>, Error> {
        look!(self, statements::journal::pieces, run, from, most)
    }

    /// Deletes at most `most` pieces from a number on, last first. Returns their number.
    pub async fn journal_cut(&self, run: RunId, from: u64, most: usize) -> Result<usize, Error> {
        change!(self, ends statements::journal::cut, run, from, most)
    }

    /// Deletes pieces of runs that have not been written since; 0 if there are none.
    pub async fn sweep_runs(&self, before: Wall, most: usize) -> Result<usize, Error> {
        change!(self, ends statements::journal::sweep, before, most)
    }
}
