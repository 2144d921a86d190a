//! Schema migrations, applied in order, each in a transaction of its own: a crash between two leaves the first complete.

use crate::error::Error;
use rusqlite::Connection;

const STEPS: &[&str] = &[
    include_str!("migrations/0001.sql"),
    include_str!("migrations/0002.sql"),
    include_str!("migrations/0003.sql"),
    include_str!("migrations/0004.sql"),
    include_str!("migrations/0005.sql"),
    include_str!("migrations/0006.sql"),
    include_str!("migrations/0007.sql"),
    include_str!("migrations/0008.sql"),
    include_str!("migrations/0009.sql"),
];

/// A database up to this size is checked completely before use.
const CHECKED_BYTES: i64 = 64 << 20;

pub(super) fn migrate(db: &Connection) -> Result<(), Error> {
    let known = u32::try_from(STEPS.len()).unwrap_or(u32::MAX);
    let found: u32 = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if found > known {
        return Err(Error::NewerSchema { found, known });
    }
    for (number, step) in (1u32..).zip(STEPS) {
        // Read again inside the transaction, since another process may migrate at the same time.
        db.execute_batch("BEGIN IMMEDIATE")?;
        let at: u32 = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
        let applied = if at < number { db.execute_batch(&format!("{step}; PRAGMA user_version = {number};")) } else { Ok(()) };
        match applied {
            Ok(()) => db.execute_batch("COMMIT")?,
            Err(error) => {
                db.execute_batch("ROLLBACK")?;
                return Err(error.into());
            }
        }
    }
    Ok(())
}

/// Refuses a database that is damaged, as far as a quick check shows, or newer than this program.
pub(super) fn check(db: &Connection) -> Result<(), Error> {
    let (found, known) = (db.pragma_query_value(None, "user_version", |row| row.get(0))?, u32::try_from(STEPS.len()).unwrap_or(u32::MAX));
    if found > known {
        return Err(Error::NewerSchema { found, known });
    }
    let pages: i64 = db.pragma_query_value(None, "page_count", |row| row.get(0))?;
    let size: i64 = db.pragma_query_value(None, "page_size", |row| row.get(0))?;
    if pages.saturating_mul(size) > CHECKED_BYTES {
        return Ok(());
    }
    verdict(db, "PRAGMA quick_check(1)")
}

/// Checks every page and every index.
pub(super) fn check_all(db: &Connection) -> Result<(), Error> {
    verdict(db, "PRAGMA integrity_check(1)")
}

fn verdict(db: &Connection, question: &str) -> Result<(), Error> {
    let verdict: String = db.query_row(question, [], |row| row.get(0))?;
    if verdict == "ok" { Ok(()) } else { Err(Error::Damaged(verdict)) }
}
