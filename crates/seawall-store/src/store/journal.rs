//! Journals of batch runs, on either backend.

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
    /// The right to write a run's journal, unless another process has it.
    pub async fn hold_run(&self, run: RunId) -> Result<Option<RunLock>, Error> {
        let held = match self {
            Self::Sqlite(SqliteStore(backend)) => backend.hold_run(&run)?.map(Lock::Sqlite),
            Self::Postgres(PostgresStore(backend)) => backend.hold_run(&run).await?.map(Lock::Postgres),
        };
        Ok(held.map(RunLock))
    }

    /// Keeps the next piece of a run's journal, with its letters. Doing it again changes nothing.
    pub async fn journal_append(&self, run: RunId, piece: JournalPiece, kept: Durability, now: Wall) -> Result<(), Error> {
        match kept {
            Durability::FromUs => change!(self, repeats statements::journal::append, run, piece, now),
            Durability::FromPowerCuts => change!(self, adds statements::journal::append, run, piece, now),
        }
    }

    /// The first pieces from a number on, in order.
    pub async fn journal(&self, run: RunId, from: u64, most: usize) -> Result<Vec<(u64, Bytes)>, Error> {
        look!(self, statements::journal::pieces, run, from, most)
    }

    /// Forgets the last pieces from a number on, so many at most; how many it were.
    pub async fn journal_cut(&self, run: RunId, from: u64, most: usize) -> Result<usize, Error> {
        change!(self, ends statements::journal::cut, run, from, most)
    }

    /// Forgets pieces of a run that nobody has touched since; 0 when there is none.
    pub async fn sweep_runs(&self, before: Wall, most: usize) -> Result<usize, Error> {
        change!(self, ends statements::journal::sweep, before, most)
    }
}
