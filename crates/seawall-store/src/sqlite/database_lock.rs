//! Who is using the database file. Whoever opens it and finds nobody else there knows that every running job is an orphan
//! of a process that ended, and need not wait for its lease.

use super::beside;
use crate::error::Error;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// A lock on the database file itself, which two names of one file share: a bind mount, or a file that was renamed. It is `flock(2)`, which
/// does not meet the byte ranges that SQLite locks. Closing any descriptor of a file drops the byte ranges that the process has locked, so
/// a process has one descriptor of this kind for each file, opened before SQLite's and closed after them. Each thread with a
/// connection keeps it.
#[derive(Debug)]
pub(super) struct FileLock {
    file: File,
    identity: (u64, u64),
    path: PathBuf,
}

/// The locks that this process has.
static HELD: Mutex<Vec<Weak<FileLock>>> = Mutex::new(Vec::new());

/// How often a lock is asked for that a process on its way out may still hold, and how long in between.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(10);

impl FileLock {
    /// Opens the file, or finds it opened by this process under the same name.
    fn open(path: &Path) -> Result<Arc<Self>, Error> {
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        let found = path.metadata().map_err(unavailable)?;
        if found.is_dir() {
            return Err(Error::Unavailable("it is a folder; name a file in it".to_owned()));
        }
        if found.nlink() > 1 {
            let why = format!("its file has {} names (hard links), and a log beside each; remove all but one", found.nlink());
            return Err(Error::Unavailable(why));
        }
        let identity = (found.dev(), found.ino());
        held.retain(|lock| lock.strong_count() > 0);
        if let Some(lock) = held.iter().filter_map(Weak::upgrade).find(|lock| lock.identity == identity) {
            return if lock.path == path { Ok(lock) } else { Err(other_name()) };
        }
        let file = File::options().read(true).write(true).open(path).map_err(unavailable)?;
        let lock = Arc::new(Self { file, identity, path: path.to_owned() });
        held.push(Arc::downgrade(&lock));
        Ok(lock)
    }

    /// Takes a share of the lock. Where nobody else uses the database under this name, nobody may have a share already.
    fn claim(&self, is_alone: bool) -> Result<(), Error> {
        for _ in 0..if is_alone { TRIES } else { 0 } {
            match self.file.try_lock() {
                // Only for a moment, but long enough to know that nobody has a share.
                Ok(()) => return self.share(),
                Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
                Err(TryLockError::Error(error)) => return Err(unavailable(error)),
            }
        }
        if is_alone { Err(other_name()) } else { self.share() }
    }

    fn share(&self) -> Result<(), Error> {
        match self.file.try_lock_shared() {
            Ok(()) => Ok(()),
            Err(TryLockError::WouldBlock) => Err(other_name()),
            Err(TryLockError::Error(error)) => Err(unavailable(error)),
        }
    }
}

fn other_name() -> Error {
    Error::Unavailable(
        "its file is in use under another name (a bind mount, or it was renamed); use that name, or end that process".to_owned(),
    )
}

/// A lock on a file beside the database; the system lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub(super) struct Owner {
    lock: File,
    is_alone: bool,
    file: Arc<FileLock>,
}

impl Owner {
    /// Joins the processes that use the database. If there are none, the next process waits until `settle`.
    pub(super) fn claim(database: &Path) -> Result<Self, Error> {
        // First: the system closes files in their order, and the lock beside the database has to be the last.
        let file = FileLock::open(database)?;
        let lock = open_beside(database, "-lock")?;
        let is_alone = match lock.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => {
                lock.lock_shared().map_err(unavailable)?;
                false
            }
            Err(TryLockError::Error(error)) => return Err(unavailable(error)),
        };
        file.claim(is_alone)?;
        Ok(Self { lock, is_alone, file })
    }

    /// Runs `alone` if nobody else uses the database, then lets others join.
    pub(super) fn settle(&mut self, alone: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        if std::mem::take(&mut self.is_alone) {
            alone()?;
            self.lock.lock_shared().map_err(unavailable)?;
        }
        Ok(())
    }

    /// The lock that is kept for as long as a connection to the database is open.
    pub(super) fn file(&self) -> Arc<FileLock> {
        Arc::clone(&self.file)
    }

    /// Takes the right to a database that nobody else uses.
    pub(super) fn claim_alone(database: &Path) -> Result<ExclusiveLock, Error> {
        let lock = open_beside(database, "-lock")?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::Unavailable("another process is using it".to_owned())),
            Err(TryLockError::Error(error)) => return Err(unavailable(error)),
        }
        let file = if database.exists() { Some(FileLock::open(database)?) } else { None };
        if let Some(file) = &file {
            file.claim(true)?;
        }
        Ok(ExclusiveLock { _file: file, _lock: lock })
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

/// The right to a database that nobody else uses.
#[derive(Debug)]
pub(super) struct ExclusiveLock {
    _file: Option<Arc<FileLock>>,
    _lock: File,
}

/// The right to run the jobs of a database, of which there is one: its holder decides what of them is whose by its own clock and its own life.
#[derive(Debug)]
pub(crate) struct Serving {
    _lock: File,
}

impl Serving {
    /// None where another process has it.
    pub(super) fn claim(database: &Path) -> Result<Option<Self>, Error> {
        let lock = open_beside(database, "-serving")?;
        match lock.try_lock() {
            Ok(()) => Ok(Some(Self { _lock: lock })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(unavailable(error)),
        }
    }
}

fn open_beside(database: &Path, ending: &str) -> Result<File, Error> {
    File::options().create(true).truncate(false).write(true).open(beside(database, ending)).map_err(unavailable)
}

#[expect(clippy::needless_pass_by_value, reason = "what `map_err` hands over")]
fn unavailable(error: std::io::Error) -> Error {
    match error.kind() {
        ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => Error::ReadOnly(error.to_string()),
        _ => Error::Unavailable(error.to_string()),
    }
}
