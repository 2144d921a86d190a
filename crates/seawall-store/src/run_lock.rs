//! The right to write a run's journal.

use crate::{postgres, sqlite};

/// Excludes every other process from the same run until it is dropped.
#[derive(Debug)]
pub struct RunLock(#[expect(dead_code, reason = "it is held, not looked at")] pub(crate) Lock);

#[derive(Debug)]
pub(crate) enum Lock {
    Sqlite(#[expect(dead_code, reason = "it is held, not looked at")] sqlite::SqliteRunLock),
    Postgres(#[expect(dead_code, reason = "it is held, not looked at")] postgres::PostgresRunLock),
}
