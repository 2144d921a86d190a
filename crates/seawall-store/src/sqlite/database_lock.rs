//! Locks that show which processes use the database file. A process that opens it alone knows that all running jobs are orphans of an ended
//! process, and recovers them without waiting for their leases.

use super::beside;
use crate::error::Error;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// A lock on the database file itself, shared by all names of the file, such as bind mounts or a renamed file. It is `flock(2)`, which is
/// independent of the byte-range locks of SQLite. Closing any descriptor of a file drops the process's byte-range locks, so a process opens
/// one descriptor per file, before SQLite's and closed after them. Each thread with a connection keeps it alive.
#[derive(Debug)]
pub(super) struct FileLock {
    file: File,
    identity: (u64, u64),
    path: PathBuf,
}

/// The file locks of this process.
static HELD: Mutex<Vec<Weak<FileLock>>> = Mutex::new(Vec::new());

/// Tries and pause for a lock that an ending process may still hold.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(10);

impl FileLock {
    /// Opens the file, or returns the descriptor that this process has for the same name.
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

    /// Takes a shared lock. If no other process uses the database under this name, no process may hold a share under another name either.
    fn claim(&self, is_alone: bool) -> Result<(), Error> {
        for _ in 0..if is_alone { TRIES } else { 0 } {
            match self.file.try_lock() {
                // The exclusive lock shows that no other share exists; it is downgraded at once.
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

/// A lock on a file beside the database. The system releases it when the process ends in any way.
#[derive(Debug)]
pub(super) struct Owner {
    lock: File,
    is_alone: bool,
    file: Arc<FileLock>,
}

impl Owner {
    /// Joins the processes that use the database. If there are none, further processes wait until `settle`.
    pub(super) fn claim(database: &Path) -> Result<Self, Error> {
        // Opened first: fields are closed in order, and the lock beside the database has to be the last.
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

    /// Runs `alone` if no other process uses the database, then lets others join.
    pub(super) fn settle(&mut self, alone: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        if std::mem::take(&mut self.is_alone) {
            alone()?;
            self.lock.lock_shared().map_err(unavailable)?;
        }
        Ok(())
    }

    /// Returns the lock that must live as long as any connection to the database.
    pub(super) fn file(&self) -> Arc<FileLock> {
        Arc::clone(&self.file)
    }

    /// Locks a database exclusively, if no other process uses it.
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

    /// Returns whether no other process uses the database. If so, the exclusive lock is kept.
    pub(super) fn is_alone(&self) -> Result<bool, Error> {
        match self.lock.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => {
                // A failed upgrade of `flock(2)` may have released our shared lock.
                self.lock.lock_shared().map_err(unavailable)?;
                Ok(false)
            }
            Err(TryLockError::Error(error)) => Err(unavailable(error)),
        }
    }
}

/// The exclusive right to a database.
#[derive(Debug)]
pub(super) struct ExclusiveLock {
    _file: Option<Arc<FileLock>>,
    _lock: File,
}

/// The exclusive right to run the jobs of a database. Its holder recovers jobs by its own clock and its own lifetime.
#[derive(Debug)]
pub(crate) struct Serving {
    _lock: File,
}

impl Serving {
    /// Returns `None` if another process has it.
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
