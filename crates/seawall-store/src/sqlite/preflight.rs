//! Checks before a database is opened for writing. They write nothing, so a refused database and its log stay as they are. Only an
//! interrupted creation is rolled back.

use super::{BUSY, Connection, Error, OpenFlags, beside, schema};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Header mark of a database that was opened for writing and not closed: it needs its log.
pub(super) const IN_USE: i64 = 0x5EA_0001;
/// Header mark of a database that is complete without a log.
pub(super) const CLOSED: i64 = 0x5EA_0000;

/// The state of a database that may be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DatabaseState {
    /// It does not exist yet, or is complete.
    Whole,
    /// It is marked as in use, but there is no log beside it: the content of the log is missing.
    WithoutItsLog,
}

/// The suffix of a copy that is about to replace a database.
pub(super) const RESTORED: &str = "-restored";

/// Refuses an empty or missing database beside an unfinished restore or a log that is not empty: SQLite would delete the log of a database
/// without pages.
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

/// Refuses a database that is damaged, newer than this program, or without a match to the log beside it.
pub(super) fn inspect(path: &Path) -> Result<DatabaseState, Error> {
    look_for_its_log(path)?;
    if is_empty(path) {
        return Ok(DatabaseState::Whole);
    }
    // Checked first, since opening a database creates an empty log. The log of a database in use has a header.
    let has_log = has_header(&beside(path, "-wal"));
    // An interrupted creation leaves a rollback journal, which only a writable connection can roll back.
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

/// Returns whether a log was written to: a merely preallocated one begins with zeros.
fn has_header(log: &Path) -> bool {
    let mut header = [0; 4];
    File::open(log).and_then(|mut file| file.read_exact(&mut header)).is_ok_and(|()| header != [0; 4])
}
