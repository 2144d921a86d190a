//! Room for the write-ahead log: zeros, until it is as long as a busy minute needs. A commit into a file that is long enough is on disk in
//! half the time: the file system has its data to write, and nothing about the file. SQLite takes zeros for the end of its log, as it
//! takes whatever a log that was begun anew has left there.

use super::{Connection, beside};
use std::fs::File;
use std::io::Result;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// What some ten thousand jobs write. One that grows beyond goes on as it can, and is used again from its beginning.
const BYTES: u64 = 16 << 20;
/// A disk has to have so many times as much to spare.
const SPARE: u64 = 16;

/// Makes room in the log of this database, to which nobody writes meanwhile. A log without room is a log, too.
pub(super) fn make(db: &Connection, database: &Path) {
    if db.execute_batch("BEGIN IMMEDIATE").is_ok() {
        drop(File::options().write(true).open(log(database)).and_then(|log| lengthen(&log, free(&log)?)));
        drop(db.execute_batch("ROLLBACK"));
    }
}

fn log(database: &Path) -> PathBuf {
    beside(database, "-wal")
}

/// Bytes that the disk has left for us.
fn free(log: &File) -> Result<u64> {
    let disk = rustix::fs::fstatvfs(log)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

fn lengthen(log: &File, free: u64) -> Result<()> {
    let length = log.metadata()?.len();
    if length >= BYTES || free < SPARE * BYTES {
        return Ok(());
    }
    // Written, not only claimed: where a file has holes, a commit has to say which it filled.
    let zeros = vec![0; usize::try_from(BYTES - length).unwrap_or(0)];
    let written = log.write_all_at(&zeros, length).and_then(|()| log.sync_all());
    written.or_else(|_| log.set_len(length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::Sqlite;

    #[tokio::test]
    async fn a_log_has_room_before_anything_is_written_and_what_was_written_is_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("seawall.db");
        let count = |db: &Connection| db.query_row("SELECT count(*) FROM snapshots", [], |row| row.get::<_, i64>(0));
        let store = Sqlite::open(&path).unwrap();
        assert_eq!(log(&path).metadata().unwrap().len(), BYTES);
        store.write(|tx| Ok(tx.db.execute("INSERT INTO snapshots VALUES ('x', 0, x'')", [])?)).await.unwrap();
        // As a program leaves it that is killed.
        let copy = folder.path().join("copy.db");
        std::fs::copy(&path, &copy).unwrap();
        std::fs::copy(log(&path), log(&copy)).unwrap();
        let copied = Connection::open(&copy).unwrap();
        make(&copied, &copy);
        assert_eq!(count(&copied).unwrap(), 1);
        assert_eq!(log(&path).metadata().unwrap().len(), BYTES, "none of it was in the way");
    }

    #[test]
    fn nothing_is_taken_from_a_disk_with_little_left_and_nothing_is_written_over() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(b"frame", 0).unwrap();
        lengthen(&file, SPARE * BYTES - 1).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 5);
        lengthen(&file, SPARE * BYTES).unwrap();
        assert_eq!(file.metadata().unwrap().len(), BYTES);
        let mut first = [1; 8];
        file.read_exact_at(&mut first, 0).unwrap();
        assert_eq!(&first, b"frame\0\0\0");
        file.set_len(BYTES + 1).unwrap();
        lengthen(&file, u64::MAX).unwrap();
        assert_eq!(file.metadata().unwrap().len(), BYTES + 1);
    }
}
