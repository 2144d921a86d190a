//! The write-ahead log is folded into the database by a thread of its own, beside the writer, so that no commit waits for
//! it. A log that is written to all the time is never folded in to its end, and goes on growing; so when it is long, and
//! little is left, the writer does the rest between two commits and begins it anew.

use super::database_lock::FileLock;
use super::{Connection, Error, connect_to_fold};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Lengths of the log, in pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogBounds {
    /// What it has grown by when it is folded in again.
    step: i32,
    /// It is begun anew when little is left of it.
    long: i32,
    /// It is begun anew, whatever is left.
    longest: i32,
    /// What is left when the writer is asked to do the rest.
    little: i32,
}

impl LogBounds {
    /// 64 MiB as a rule, and little more than 128 at worst.
    pub(super) const USUAL: Self = Self { step: 2000, long: 16_384, longest: 32_768, little: 200 };
}

/// Each time less was written meanwhile than the time before.
const ROUNDS: usize = 4;

#[derive(Debug)]
pub(super) struct WriteAheadLog {
    /// It is time for the writer to do the rest.
    due: Arc<AtomicBool>,
    /// Held by whoever folds: a second one would be turned away, and a log that is too long has to wait for its turn.
    folding: Arc<Mutex<()>>,
}

impl WriteAheadLog {
    /// Watches over the log of the connection that writes.
    pub(super) fn watch(writer: &mut Connection, path: &Path, bounds: LogBounds, file: Arc<FileLock>) -> Result<Self, Error> {
        // Ends when the writing connection is closed, and its hook with it.
        let (grown, growing) = sync_channel::<()>(1);
        let beside = connect_to_fold(path)?;
        let log = Self { due: Arc::new(AtomicBool::new(false)), folding: Arc::default() };
        let (due, own) = (Arc::clone(&log.due), Self { due: Arc::clone(&log.due), folding: Arc::clone(&log.folding) });
        let serve = move || {
            while growing.recv().is_ok() {
                own.follow(&beside, bounds);
            }
            drop(beside);
            drop(file);
        };
        let thread = std::thread::Builder::new().name("store-folder".to_owned());
        thread.spawn(serve).map_err(|error| Error::Unavailable(error.to_string()))?;
        writer.wal_hook(Some(hook(grown, due, bounds)))?;
        Ok(log)
    }

    /// Folds in the rest, if it is time. What cannot be folded in now is tried again when it has grown.
    pub(super) fn begin_anew_if_due(&self, writer: &Connection) {
        if self.due.swap(false, Ordering::Relaxed) {
            drop(self.fold(writer));
        }
    }

    /// Folds in all of it. What cannot be folded in now is tried again by whoever asks next.
    pub(super) fn fold_all(&self, writer: &Connection) {
        let _alone = self.folding.lock().unwrap_or_else(PoisonError::into_inner);
        drop(writer.query_row("PRAGMA wal_checkpoint(FULL)", [], |_| Ok(())));
    }

    fn follow(&self, beside: &Connection, bounds: LogBounds) {
        for _ in 0..ROUNDS {
            // A disk that fails says so to the writer too.
            let Ok((pages, folded)) = self.fold(beside) else { return };
            if pages < bounds.long {
                return;
            }
            if pages - folded <= bounds.little {
                break;
            }
        }
        self.due.store(true, Ordering::Relaxed);
    }

    /// Folds in what nobody is in the way of: the pages of the log, and how many of them are in the database.
    fn fold(&self, db: &Connection) -> Result<(i32, i32), Error> {
        let _alone = self.folding.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| Ok((row.get(1)?, row.get(2)?)))?)
    }
}

/// Hears how many pages the log has after each commit.
fn hook(
    grown: SyncSender<()>,
    due: Arc<AtomicBool>,
    bounds: LogBounds,
) -> impl FnMut(&mut rusqlite::hooks::Wal, i32) -> rusqlite::Result<()> {
    let mut last = 0;
    move |_, pages| {
        // Shorter than before, it was begun anew.
        last = last.min(pages);
        if pages - last >= bounds.step {
            last = pages;
            // One that is at work looks again by itself.
            let _busy = grown.try_send(());
        }
        if pages >= bounds.longest {
            due.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::connect;
    use crate::sqlite::database_lock::Owner;

    #[test]
    fn a_log_that_is_written_to_all_the_time_stays_short() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("seawall.db");
        std::fs::write(&path, b"").unwrap();
        let owner = Owner::claim(&path).unwrap();
        let mut db = connect(&path).unwrap();
        let bounds = LogBounds { step: 20, long: 100, longest: 200, little: 10 };
        let log = WriteAheadLog::watch(&mut db, &path, bounds, owner.file()).unwrap();
        db.execute_batch("CREATE TABLE t (body BLOB); PRAGMA synchronous = OFF").unwrap();
        for _ in 0..300 {
            db.execute("INSERT INTO t VALUES (zeroblob(40000))", []).unwrap();
            log.begin_anew_if_due(&db);
        }
        let bytes = std::fs::metadata(folder.path().join("seawall.db-wal")).unwrap().len();
        assert!(bytes < 600 * 4120, "3000 pages were written, and the log has {bytes} bytes");
    }
}
