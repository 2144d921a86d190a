//! Room for the write-ahead log: zeros, until it is as long as a busy minute needs. Where a file system writes in place, as ext4 does, a
//! commit into a file that is long enough is on disk in half the time (250 and 120 µs were measured): it has its data to write, and nothing
//! about the file. SQLite takes zeros for the end of its log, as it takes whatever a log that was begun anew has left there. If the
//! last frame was torn in the middle of zeros, these complete it: a commit that nobody was told of is kept then.

use super::{Connection, beside};
use std::fs::File;
use std::io::Result;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// What some ten thousand jobs write. A log that grows beyond goes on as it can, and is used again from its beginning.
const BYTES: u64 = 16 << 20;
/// A disk has to have so many times as much to spare.
const SPARE: u64 = 16;
/// What is written at a time.
const PIECE: usize = 1 << 20;

/// Makes room in the log of a database with an open transaction that may write, so that nobody else writes to it. The log, if it is
/// longer now and should be synced; one without room is a log, too.
pub(super) fn make(db: &Connection) -> Option<File> {
    // What a path leads to is named by SQLite: the log is beside it, and not beside a link.
    let log = File::options().write(true).open(log(Path::new(db.path()?))).ok()?;
    let free = free(&log).ok()?;
    lengthen(&log, free).is_ok_and(|longer| longer).then_some(log)
}

fn log(database: &Path) -> PathBuf {
    beside(database, "-wal")
}

/// Bytes that the disk has left for us.
fn free(log: &File) -> Result<u64> {
    let disk = rustix::fs::fstatvfs(log)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Whether it is longer now.
fn lengthen(log: &File, free: u64) -> Result<bool> {
    let length = log.metadata()?.len();
    if length >= BYTES || free < SPARE * BYTES {
        return Ok(false);
    }
    // Written, not only claimed: where a file has holes, a commit has to say which it filled.
    let zeros = vec![0; PIECE];
    let written = (length..BYTES).step_by(PIECE).try_for_each(|at| log.write_all_at(&zeros, at));
    written.and_then(|()| log.set_len(BYTES)).map(|()| true).or_else(|_| log.set_len(length).map(|()| false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::{Sqlite, connect, schema};

    fn count(db: &Connection) -> i64 {
        db.query_row("SELECT count(*) FROM snapshots", [], |row| row.get(0)).unwrap()
    }

    /// A database as it is when its program is killed: itself and its log, elsewhere.
    fn copy(path: &Path, name: &str) -> Connection {
        let copy = path.with_file_name(name);
        std::fs::copy(path, &copy).unwrap();
        std::fs::copy(log(path), log(&copy)).unwrap();
        Connection::open(&copy).unwrap()
    }

    async fn write(store: &Sqlite, name: &'static str) {
        store.write(move |tx| Ok(tx.db.execute("INSERT INTO snapshots VALUES (?, 0, x'')", [name])?)).await.unwrap();
    }

    #[tokio::test]
    async fn what_is_written_into_the_room_is_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("seawall.db");
        schema::migrate(&connect(&path).unwrap()).unwrap();
        let store = Sqlite::open(&path).unwrap();
        store.make_room().await.unwrap();
        assert_eq!(log(&path).metadata().unwrap().len(), BYTES, "the folder for temporary files has to have 256 MiB left");
        assert_eq!(count(&copy(&path, "empty.db")), 0, "zeros are the end of a log");
        write(&store, "a").await;
        assert_eq!(log(&path).metadata().unwrap().len(), BYTES, "there was room for it");
        assert_eq!(count(&copy(&path, "killed.db")), 1);
    }

    #[tokio::test]
    async fn what_was_written_before_there_was_room_is_found_again_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("seawall.db");
        let store = Sqlite::open(&path).unwrap();
        write(&store, "a").await;
        assert!(log(&path).metadata().unwrap().len() < BYTES);
        store.make_room().await.unwrap();
        assert_eq!(log(&path).metadata().unwrap().len(), BYTES);
        assert_eq!(count(&copy(&path, "killed.db")), 1);
        write(&store, "b").await;
        assert_eq!(count(&copy(&path, "killed-later.db")), 2);
    }

    #[test]
    fn nothing_is_taken_from_a_disk_with_little_left_and_nothing_is_written_over() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(b"frame", 0).unwrap();
        assert!(!lengthen(&file, SPARE * BYTES - 1).unwrap());
        assert_eq!(file.metadata().unwrap().len(), 5);
        assert!(lengthen(&file, SPARE * BYTES).unwrap());
        assert_eq!(file.metadata().unwrap().len(), BYTES);
        let mut first = [1; 8];
        file.read_exact_at(&mut first, 0).unwrap();
        assert_eq!(&first, b"frame\0\0\0");
        file.set_len(BYTES + 1).unwrap();
        assert!(!lengthen(&file, u64::MAX).unwrap());
        assert_eq!(file.metadata().unwrap().len(), BYTES + 1);
    }
}
