//! Checkpoints of the write-ahead log, by a thread beside the writer, so that no commit waits for them. Under constant writes a checkpoint
//! never reaches the end of the log, which then keeps growing. So when the log is long and little is left, the writer checkpoints the rest
//! between two commits and restarts the log.

use super::database_lock::FileLock;
use super::{Connection, Error, connect_to_fold};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Bounds of the log's length, in pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogBounds {
    /// Growth after which a checkpoint starts.
    step: i32,
    /// From this length on, the log is restarted when little is left of it.
    long: i32,
    /// From this length on, the log is restarted, whatever is left.
    longest: i32,
    /// Remaining pages small enough for the writer to checkpoint.
    little: i32,
}

impl LogBounds {
    /// 64 MiB as a rule, and little more than 128 MiB at worst.
    pub(super) const USUAL: Self = Self { step: 2000, long: 16_384, longest: 32_768, little: 200 };
}

/// Maximum checkpoints in a row; in each, fewer pages were written meanwhile than in the one before.
const ROUNDS: usize = 4;

#[derive(Debug)]
pub(super) struct WriteAheadLog {
    /// The writer should checkpoint the rest.
    due: Arc<AtomicBool>,
    /// Held during a checkpoint: SQLite would reject a second one, and a log that is too long has to wait for its turn.
    folding: Arc<Mutex<()>>,
}

impl WriteAheadLog {
    /// Starts the checkpoint thread for the log of the writing connection.
    pub(super) fn watch(writer: &mut Connection, path: &Path, bounds: LogBounds, file: Arc<FileLock>) -> Result<Self, Error> {
        // The thread ends when the writing connection is closed, and with it the hook that owns the sender.
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

    /// Checkpoints the rest if it is due. A failed checkpoint is repeated after further growth.
    pub(super) fn begin_anew_if_due(&self, writer: &Connection) {
        if self.due.swap(false, Ordering::Relaxed) {
            drop(self.checkpoint(writer));
        }
    }

    /// Checkpoints the whole log. A failed checkpoint is repeated by the next caller.
    pub(super) fn fold_all(&self, writer: &Connection) {
        let _alone = self.folding.lock().unwrap_or_else(PoisonError::into_inner);
        drop(writer.query_row("PRAGMA wal_checkpoint(FULL)", [], |_| Ok(())));
    }

    fn follow(&self, beside: &Connection, bounds: LogBounds) {
        for _ in 0..ROUNDS {
            // If the disk fails, the writer gets an error as well.
            let Ok((pages, folded)) = self.checkpoint(beside) else { return };
            if pages < bounds.long {
                return;
            }
            if pages - folded <= bounds.little {
                break;
            }
        }
        self.due.store(true, Ordering::Relaxed);
    }

    /// Checkpoints as far as no reader prevents it. Returns the pages of the log and the number of them in the database.
    fn checkpoint(&self, db: &Connection) -> Result<(i32, i32), Error> {
        let _alone = self.folding.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| Ok((row.get(1)?, row.get(2)?)))?)
    }
}

/// Builds the hook that gets the number of pages in the log after each commit.
fn hook(
    grown: SyncSender<()>,
    due: Arc<AtomicBool>,
    bounds: LogBounds,
) -> impl FnMut(&mut rusqlite::hooks::Wal, i32) -> rusqlite::Result<()> {
    let mut last = 0;
    move |_, pages| {
        // Shorter than before: the log was restarted.
        last = last.min(pages);
        if pages - last >= bounds.step {
            last = pages;
            // A full channel means that the thread is busy; it checks the length again by itself.
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
