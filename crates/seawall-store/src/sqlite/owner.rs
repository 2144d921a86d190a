//! Who is using the database file. Whoever opens it and finds nobody else there knows that every running job is an orphan
//! of a process that ended, and need not wait for its lease.

use super::beside;
use crate::error::Error;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::Path;

/// A lock on a file beside the database; the system lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub(super) struct Owner {
    lock: File,
}

impl Owner {
    /// Runs `alone` if nobody else uses the database, then joins whoever does.
    pub(super) fn claim(database: &Path, alone: impl FnOnce() -> Result<(), Error>) -> Result<Self, Error> {
        let lock = File::options().create(true).truncate(false).write(true).open(beside(database, "-lock")).map_err(unavailable)?;
        match lock.try_lock() {
            Ok(()) => alone()?,
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(unavailable(error)),
        }
        lock.lock_shared().map_err(unavailable)?;
        Ok(Self { lock })
    }

    /// The right to a database that nobody else uses.
    pub(super) fn claim_alone(database: &Path) -> Result<Self, Error> {
        let lock = File::options().create(true).truncate(false).write(true).open(beside(database, "-lock")).map_err(unavailable)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { lock }),
            Err(TryLockError::WouldBlock) => Err(Error::Unavailable("another process is using it".to_owned())),
            Err(TryLockError::Error(error)) => Err(unavailable(error)),
        }
    }

    /// Whether nobody else uses the database. Who asks keeps the whole lock then.
    pub(super) fn is_alone(&self) -> Result<bool, Error> {
        match self.lock.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => {
                // The attempt may have let go of the share that we had.
                self.lock.lock_shared().map_err(unavailable)?;
                Ok(false)
            }
            Err(TryLockError::Error(error)) => Err(unavailable(error)),
        }
    }
}

/// The right to run the jobs of a database, of which there is one: its holder decides what of them is whose by its own clock and its own life.
#[derive(Debug)]
pub(crate) struct Serving {
    _lock: File,
}

impl Serving {
    /// None where another process has it.
    pub(super) fn claim(database: &Path) -> Result<Option<Self>, Error> {
        let lock = File::options().create(true).truncate(false).write(true).open(beside(database, "-serving")).map_err(unavailable)?;
        match lock.try_lock() {
            Ok(()) => Ok(Some(Self { _lock: lock })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(unavailable(error)),
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "what `map_err` hands over")]
fn unavailable(error: std::io::Error) -> Error {
    match error.kind() {
        ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => Error::ReadOnly(error.to_string()),
        _ => Error::Unavailable(error.to_string()),
    }
}
