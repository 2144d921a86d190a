//! The embedded backend: one thread writes, and what arrives while it writes is committed together; two threads read.

mod jobs;
mod letters;
mod owner;
mod reader;
mod reserve;
mod rows;
mod schema;
mod turns;
mod writer;

use crate::error::Error;
use owner::Owner;
use reader::Reader;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::path::Path;
use std::sync::Arc;
use turns::Turns;
use writer::Writer;

/// A handle that every clone shares.
#[derive(Clone, Debug)]
pub(crate) struct Sqlite {
    writer: Writer,
    reader: Reader,
    /// Says that somebody is using the database, for as long as any clone lives.
    _owner: Arc<Owner>,
}

/// What a write works on: the open transaction, and whose turn it is in each lane.
pub(crate) struct Tx<'a> {
    pub(crate) db: &'a Connection,
    pub(crate) turns: &'a mut Turns,
}

impl Sqlite {
    /// Opens or makes the database, and brings its schema up to date.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let db = connect(path)?;
        schema::migrate(&db)?;
        let owner = Owner::claim(path, || jobs::orphan_all(&db))?;
        let turns = Turns::load(&db)?;
        Ok(Self { writer: Writer::start(db, turns, path)?, reader: Reader::start(path)?, _owner: Arc::new(owner) })
    }

    /// Runs `work` in a transaction; returns once it is on disk.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Tx<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.writer.run(writer::Weight::Adds, work).await
    }

    /// As `write`, for work that ends something and so has a claim to the space kept back for it.
    pub(crate) async fn finish<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Tx<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.writer.run(writer::Weight::Ends, work).await
    }

    /// Runs `work` on a connection that cannot write. It sees what has been acknowledged.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.reader.run(work).await
    }
}

fn connect(path: &Path) -> Result<Connection, Error> {
    let db = Connection::open(path)?;
    db.busy_timeout(BUSY)?;
    // FULL: an acknowledged commit survives a power cut, not only a crash of ours.
    db.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA temp_store = MEMORY; PRAGMA cache_size = -32768; \
         PRAGMA journal_size_limit = 67108864; PRAGMA wal_autocheckpoint = 4000;",
    )?;
    db.set_prepared_statement_cache_capacity(64);
    Ok(db)
}

fn connect_to_read(path: &Path) -> Result<Connection, Error> {
    let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    db.busy_timeout(BUSY)?;
    db.execute_batch("PRAGMA query_only = ON; PRAGMA temp_store = MEMORY; PRAGMA cache_size = -16384;")?;
    Ok(db)
}

/// How long another process may keep the database locked.
const BUSY: std::time::Duration = std::time::Duration::from_secs(5);

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        let text = error.to_string();
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::Full,
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => Self::ReadOnly(text),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged(text),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::CannotOpen | ErrorCode::SystemIoFailure) => {
                Self::Unavailable(text)
            }
            _ => Self::Failed(text),
        }
    }
}
