//! What is looked at before a database is opened for writing. Nothing is written meanwhile, so that a database that is refused stays
//! as it is, and its log with it; but a making that was cut short is undone.

use super::{BUSY, Connection, Error, OpenFlags, beside, schema};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// In the header of a database that was opened for writing and not closed: its log belongs to it.
pub(super) const IN_USE: i64 = 0x5EA_0001;
/// In the header of a database that holds everything itself.
pub(super) const CLOSED: i64 = 0x5EA_0000;

/// What a database that may be opened looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DatabaseState {
    /// There is none yet, or it is whole.
    Whole,
    /// It was in use when it was left or copied, and there is no log beside it: what the log held is missing.
    WithoutItsLog,
}

/// The ending of a copy that is about to be put in a database's place.
pub(super) const RESTORED: &str = "-restored";

/// Refuses an empty or missing database beside a copy that was to take its place, or beside a log that is not empty: SQLite would delete the log of a database without pages.
pub(super) fn look_for_its_log(path: &Path) -> Result<(), Error> {
    let copy = beside(path, RESTORED);
    if is_empty(path) && !is_empty(&copy) {
        return Err(Error::Damaged(format!("its restore was cut short; run `seawall store restore {}`", copy.display())));
    }
    let log = beside(path, "-wal");
    if is_empty(path) && has_header(&log) {
        let why = format!("it is empty, and its log {} is not; put back the database that the log belongs to", log.display());
        return Err(Error::Damaged(why));
    }
    Ok(())
}

/// Refuses a database that is damaged, newer than this program, or not the one that the log beside it belongs to.
pub(super) fn look(path: &Path) -> Result<DatabaseState, Error> {
    look_for_its_log(path)?;
    if is_empty(path) {
        return Ok(DatabaseState::Whole);
    }
    // Asked first: who reads a database makes an empty log for it. One that is in use has a log with a header.
    let has_log = has_header(&beside(path, "-wal"));
    // One whose making was cut short has a journal, which only a connection that may write can take back.
    let access = if is_empty(&beside(path, "-journal")) { OpenFlags::SQLITE_OPEN_READ_ONLY } else { OpenFlags::SQLITE_OPEN_READ_WRITE };
    let db = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    db.busy_timeout(BUSY)?;
    schema::check(&db)?;
    let mark: i64 = db.pragma_query_value(None, "application_id", |row| row.get(0))?;
    Ok(if mark == IN_USE && !has_log { DatabaseState::WithoutItsLog } else { DatabaseState::Whole })
}

fn is_empty(path: &Path) -> bool {
    path.metadata().map_or(0, |file| file.len()) == 0
}

/// Whether a log has been written to: one that only has room begins with zeros.
fn has_header(log: &Path) -> bool {
    let mut header = [0; 4];
    File::open(log).and_then(|mut file| file.read_exact(&mut header)).is_ok_and(|()| header != [0; 4])
}
