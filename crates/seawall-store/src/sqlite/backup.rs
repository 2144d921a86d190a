//! Copies of a database: made while it is used, put in its place while it is not, and checked.

use super::database_lock::{Owner, Serving};
use super::preflight::DatabaseState;
use super::{BUSY, Connection, Error, OpenFlags, beside, create_private, preflight, resolved, schema};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Writes a copy of the database as it is now. Others go on using the database meanwhile.
pub(crate) fn write(database: &Path, copy: &Path) -> Result<(), Error> {
    let database = &resolved(database);
    // A process that uses it under another name has the log beside that name.
    if database.exists() && preflight::look(database)? == DatabaseState::WithoutItsLog {
        let why = "it is in use, and its log is not beside it: is this another name of the file (a hard link, a bind mount)?";
        return Err(Error::Unavailable(why.to_owned()));
    }
    if copy.exists() {
        return Err(Error::Failed(format!("{} is there already", copy.display())));
    }
    copy_to(database, copy)
}

/// Replaces whatever has the copy's name.
fn copy_to(database: &Path, copy: &Path) -> Result<(), Error> {
    let unfinished = beside(copy, "-unfinished");
    remove(&unfinished)?;
    create_private(&unfinished);
    let db = read_only(database)?;
    db.execute("VACUUM INTO ?1", [unfinished.to_string_lossy()])?;
    drop(db);
    // The copy has everything itself, whatever the original is in the middle of.
    let written = Connection::open(&unfinished)?;
    written.pragma_update(None, "application_id", preflight::CLOSED)?;
    drop(written);
    sync(&unfinished)?;
    std::fs::rename(&unfinished, copy).map_err(failed)?;
    sync(copy.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")))
}

/// Puts a copy in the place of the database, which nobody may be using. What was there is moved aside; says where to.
pub(crate) fn restore(database: &Path, copy: &Path) -> Result<Option<PathBuf>, Error> {
    check(copy)?;
    let database = &resolved(database);
    let _alone = Owner::claim_alone(database)?;
    // Held by a process that runs jobs, also where somebody has removed the other lock.
    let _serving = Serving::claim(database)?.ok_or_else(|| Error::Unavailable("another process is using it".to_owned()))?;
    // One that is left of a restore that was cut short keeps an empty database from being made until it is replaced.
    let unfinished = beside(database, preflight::RESTORED);
    // Not a plain copy: the file may have a log of its own.
    copy_to(&resolved(copy), &unfinished)?;
    let is_there = database.exists() || beside(database, "-wal").exists();
    let folder = database.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let aside = if is_there { Some(move_aside(database)?) } else { None };
    // Before the copy has its name: a log that is back after a power cut would be taken for the copy's own.
    sync(folder)?;
    std::fs::rename(&unfinished, database).map_err(failed)?;
    sync(folder)?;
    Ok(aside)
}

/// The first name that is free; the log goes along with its database, or it would be taken for that of the next one.
fn move_aside(database: &Path) -> Result<PathBuf, Error> {
    let is_free = |path: &PathBuf| !path.exists() && !beside(path, "-wal").exists();
    let free = (1..1000).map(|number| beside(database, &format!(".before-{number}"))).find(is_free);
    let aside = free.ok_or_else(|| Error::Failed("there are too many old databases beside it".to_owned()))?;
    // A log whose database is away is refused; a database whose log is away is only warned about.
    for ending in ["", "-wal"] {
        let from = beside(database, ending);
        if from.exists() {
            std::fs::rename(from, beside(&aside, ending)).map_err(failed)?;
        }
    }
    remove(&beside(database, "-shm"))?;
    Ok(aside)
}

/// Reads all of a database, and says what is wrong with it. Changes nothing.
pub(crate) fn check(database: &Path) -> Result<(), Error> {
    let database = &resolved(database);
    if !database.exists() {
        return Err(Error::Unavailable(format!("there is no file {}", database.display())));
    }
    preflight::look(database)?;
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
