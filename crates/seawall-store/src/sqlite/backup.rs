//! Copies of a database: written while it is in use, restored while it is not, and checked.

use super::database_lock::{Owner, Serving};
use super::preflight::DatabaseState;
use super::{BUSY, Connection, Error, OpenFlags, beside, create_private, preflight, resolved, schema};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Writes a copy of the current database. Other processes continue to use the database meanwhile.
pub(crate) fn write(database: &Path, copy: &Path) -> Result<(), Error> {
    let database = &resolved(database);
    // A process that opened the file under another name has its write-ahead log beside that name.
    if database.exists() && preflight::inspect(database)? == DatabaseState::WithoutItsLog {
        let why = "it is in use, and its log is not beside it: is this another name of the file (a hard link, a bind mount)?";
        return Err(Error::Unavailable(why.to_owned()));
    }
    if copy.exists() {
        return Err(Error::Failed(format!("{} is there already", copy.display())));
    }
    copy_to(database, copy)
}

/// Writes the copy in place of any file of that name.
fn copy_to(database: &Path, copy: &Path) -> Result<(), Error> {
    let unfinished = beside(copy, "-unfinished");
    remove(&unfinished)?;
    create_private(&unfinished);
    let db = read_only(database)?;
    db.execute("VACUUM INTO ?1", [unfinished.to_string_lossy()])?;
    drop(db);
    // The copy needs no write-ahead log, whatever the state of the original.
    let written = Connection::open(&unfinished)?;
    written.pragma_update(None, "application_id", preflight::CLOSED)?;
    drop(written);
    sync(&unfinished)?;
    std::fs::rename(&unfinished, copy).map_err(failed)?;
    sync(copy.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")))
}

/// Replaces a database that is not in use by a copy. The old database is moved aside; returns its new path.
pub(crate) fn restore(database: &Path, copy: &Path) -> Result<Option<PathBuf>, Error> {
    check(copy)?;
    let database = &resolved(database);
    let _alone = Owner::claim_alone(database)?;
    // A process that runs jobs holds this lock even if the other lock file was deleted.
    let _serving = Serving::claim(database)?.ok_or_else(|| Error::Unavailable("another process is using it".to_owned()))?;
    // Left over from an interrupted restore, this file prevents the creation of an empty database until the restore is repeated.
    let unfinished = beside(database, preflight::RESTORED);
    // Not a plain file copy: the copy may have a write-ahead log of its own.
    copy_to(&resolved(copy), &unfinished)?;
    let is_there = database.exists() || beside(database, "-wal").exists();
    let folder = database.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let aside = if is_there { Some(move_aside(database)?) } else { None };
    // Before the rename: an old log that reappears after a power cut would be applied to the copy.
    sync(folder)?;
    std::fs::rename(&unfinished, database).map_err(failed)?;
    sync(folder)?;
    Ok(aside)
}

/// Moves the database and its log to the first free name. A log that stayed would be applied to the next database.
fn move_aside(database: &Path) -> Result<PathBuf, Error> {
    let is_free = |path: &PathBuf| !path.exists() && !beside(path, "-wal").exists();
    let free = (1..1000).map(|number| beside(database, &format!(".before-{number}"))).find(is_free);
    let aside = free.ok_or_else(|| Error::Failed("there are too many old databases beside it".to_owned()))?;
    // The database goes first: a log without a database is refused, but a database without its log only causes a warning.
    for ending in ["", "-wal"] {
        let from = beside(database, ending);
        if from.exists() {
            std::fs::rename(from, beside(&aside, ending)).map_err(failed)?;
        }
    }
    remove(&beside(database, "-shm"))?;
    Ok(aside)
}

/// Reads a whole database and reports damage. Changes nothing.
pub(crate) fn check(database: &Path) -> Result<(), Error> {
    let database = &resolved(database);
    if !database.exists() {
        return Err(Error::Unavailable(format!("there is no file {}", database.display())));
    }
    preflight::inspect(database)?;
    let db = read_only(database)?;
    schema::check_all(&db)
}

fn read_only(database: &Path) -> Result<Connection, Error> {
    let db = Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    db.busy_timeout(BUSY)?;
    Ok(db)
}

fn remove(path: &Path) -> Result<(), Error> {
    if path.exists() { std::fs::remove_file(path).map_err(failed) } else { Ok(()) }
}

fn sync(path: &Path) -> Result<(), Error> {
    File::open(path).and_then(|file| file.sync_all()).map_err(failed)
}

#[expect(clippy::needless_pass_by_value, reason = "what `map_err` hands over")]
fn failed(error: std::io::Error) -> Error {
    Error::Unavailable(error.to_string())
}
