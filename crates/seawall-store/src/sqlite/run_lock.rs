//! The lock of a batch run: a lock on a file beside the database. The system releases it when the process ends in any way.

use super::{Sqlite, beside};
use crate::error::Error;
use crate::model::journal::RunId;
use std::fmt::Write as _;
use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

/// The file is deleted with the lock.
#[derive(Debug)]
pub(crate) struct SqliteRunLock {
    path: PathBuf,
    _lock: File,
}

impl Drop for SqliteRunLock {
    fn drop(&mut self) {
        // A file that stays does no harm: only the lock counts.
        drop(std::fs::remove_file(&self.path));
    }
}

impl Sqlite {
    pub(crate) fn hold_run(&self, run: &RunId) -> Result<Option<SqliteRunLock>, Error> {
        let unavailable = |error: std::io::Error| Error::Unavailable(error.to_string());
        let ending = run[..8].iter().fold("-run-".to_owned(), |mut text, byte| {
            let _: std::fmt::Result = write!(text, "{byte:02x}");
            text
        });
        let path = beside(&self.path, &ending);
        loop {
            let lock = File::options().create(true).truncate(false).write(true).open(&path).map_err(unavailable)?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(unavailable(error)),
            }
            // Its last holder may have deleted the file between our open and our lock. Then other processes would lock another file, so we
            // try again.
            let ours = lock.metadata().map_err(unavailable)?.ino();
            if std::fs::metadata(&path).is_ok_and(|found| found.ino() == ours) {
                return Ok(Some(SqliteRunLock { path, _lock: lock }));
            }
        }
    }
}
