//! The embedded backend. One thread writes; requests that arrive during a commit form the next transaction. Two threads read.

pub(crate) mod backup;
mod database_lock;
mod empty_poll;
mod fair_order;
mod jobs;
#[cfg(test)]
mod plans;
mod preflight;
mod reader;
mod reserve;
mod run_lock;
mod schema;
#[cfg(test)]
mod stalled_write;
mod statement_cache;
mod upkeep;
mod wal_preallocation;
mod write_ahead_log;
mod writer;

use crate::error::Error;
use crate::model::job::{Enqueued, NewJob};
use crate::sql::{RowReader, RowSource, Sql, SqlValue, Write};
use database_lock::{Owner, Serving};
use empty_poll::Lull;
use fair_order::Turns;
use reader::ReadConnection;
pub(crate) use run_lock::SqliteRunLock;
use rusqlite::config::DbConfig;
use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, OpenFlags, params_from_iter};
use seawall_core::time::Wall;
use statement_cache::Bound;
use std::future::{Future, ready};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use tokio::sync::Notify;
use writer::WriterThread;

/// A handle; clones share one backend.
#[derive(Clone, Debug)]
pub(crate) struct Sqlite {
    writer: WriterThread,
    reader: ReadConnection,
    lull: Arc<Lull>,
    woken: Arc<Notify>,
    path: Arc<Path>,
    lost_its_log: bool,
    /// Marks the database as in use while any clone lives.
    owner: Arc<Owner>,
    /// The right to run its jobs, if this process has it.
    serving: Arc<OnceLock<Serving>>,
}

/// The context of a write: the open transaction and the turns of each lane.
pub(crate) struct Tx<'a> {
    pub(crate) db: &'a Connection,
    pub(crate) turns: &'a mut Turns,
    insert: Option<Bound<'a>>,
    queue: Option<Bound<'a>>,
    release: Option<Bound<'a>>,
    end: Option<Bound<'a>>,
    put_off: Option<Bound<'a>>,
}

impl<'a> Tx<'a> {
    const fn begun(db: &'a Connection, turns: &'a mut Turns) -> Self {
        Self { db, turns, insert: None, queue: None, release: None, end: None, put_off: None }
    }

    fn insert(&mut self) -> Result<&mut Bound<'a>, Error> {
        Bound::prepared_once(&mut self.insert, self.db, jobs::INSERT)
    }

    fn queue(&mut self) -> Result<&mut Bound<'a>, Error> {
        Bound::prepared_once(&mut self.queue, self.db, jobs::QUEUE)
    }

    fn release(&mut self) -> Result<&mut Bound<'a>, Error> {
        Bound::prepared_once(&mut self.release, self.db, jobs::RELEASE)
    }

    fn end(&mut self) -> Result<&mut Bound<'a>, Error> {
        Bound::prepared_once(&mut self.end, self.db, jobs::END)
    }

    fn put_off(&mut self) -> Result<&mut Bound<'a>, Error> {
        Bound::prepared_once(&mut self.put_off, self.db, jobs::PUT_OFF)
    }
}

/// The context of a read.
pub(crate) struct Look<'a>(&'a Connection);

impl Sqlite {
    /// Opens or creates the database, and brings its schema up to date.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let path = &resolved(path);
        preflight::look_for_its_log(path)?;
        create_private(path);
        let mut owner = Owner::claim(path)?;
        let found = preflight::inspect(path)?;
        let db = connect(path).and_then(|db| schema::migrate(&db).map(|()| db))?;
        owner.settle(|| upkeep::orphan_all(&db))?;
        mark_in_use(&db)?;
        let turns = Turns::load(&db)?;
        let woken = Arc::new(Notify::new());
        Ok(Self {
            writer: WriterThread::start(db, turns, path, Arc::clone(&woken), &owner)?,
            reader: ReadConnection::start(path, &owner)?,
            lull: Arc::new(Lull::watch(path)?),
            woken,
            path: Arc::from(path.as_path()),
            lost_its_log: found == preflight::DatabaseState::WithoutItsLog,
            owner: Arc::new(owner),
            serving: Arc::default(),
        })
    }

    /// Claims the right to run jobs while any clone lives. Returns whether this process has it.
    pub(crate) fn claim_serving(&self) -> Result<bool, Error> {
        if self.serving.get().is_some() {
            return Ok(true);
        }
        // If another thread of ours was first, the second lock is dropped.
        Ok(Serving::claim(&self.path)?.is_some_and(|serving| self.serving.set(serving).is_ok()))
    }

    /// Runs `work` in a transaction; returns once it is on disk.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Tx<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.writer.run(writer::Weight::Adds, work).await
    }

    /// Like `write`, for work that ends something and may therefore use the reserved disk space.
    pub(crate) async fn finish<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Tx<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.writer.run(writer::Weight::Ends, work).await
    }

    /// Like `finish`, for work that can be redone after a power cut: its commit does not wait for the disk.
    pub(crate) async fn repeat<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Tx<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.writer.run(writer::Weight::Repeats, work).await
    }

    pub(crate) async fn remember_little(&self) -> Result<(), Error> {
        self.repeat(|tx| Ok(tx.db.pragma_update(None, "cache_size", LITTLE)?)).await
    }

    /// Returns whether the database lacks its write-ahead log, so that the content of the log is missing.
    pub(crate) const fn lost_its_log(&self) -> bool {
        self.lost_its_log
    }

    /// Moves the whole write-ahead log into the database, so that a copy of the file is complete. If other processes use the database, the
    /// last one does it.
    pub(crate) async fn close(&self) -> Result<(), Error> {
        let (path, owner) = (Arc::clone(&self.path), Arc::clone(&self.owner));
        let fold = move || {
            if !owner.is_alone()? {
                return Ok(());
            }
            let db = connect_to_fold(&path)?;
            db.busy_timeout(BUSY)?;
            db.pragma_update(None, "application_id", preflight::CLOSED)?;
            let busy: bool = db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
            if busy { Err(Error::Unavailable("its log is still in use".to_owned())) } else { Ok(()) }
        };
        tokio::task::spawn_blocking(fold).await.map_err(|error| Error::Failed(error.to_string()))?
    }

    /// Preallocates the log within a transaction of ours, so that no other connection writes to it.
    pub(crate) async fn make_room(&self) -> Result<(), Error> {
        let longer = self.repeat(|tx| Ok(wal_preallocation::make(tx.db))).await?;
        // Outside of the transaction: other commits meanwhile wait for the disk as usual.
        longer.map_or(Ok(()), |log| log.sync_data().map_err(|error| Error::Unavailable(error.to_string())))
    }

    pub(crate) async fn woken(&self) {
        self.woken.notified().await;
    }

    #[expect(clippy::unused_async, reason = "the same on every backend")]
    pub(crate) async fn time(&self) -> Result<Option<Wall>, Error> {
        Ok(None)
    }

    /// Runs `work` on a read-only connection. It sees all acknowledged writes.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Look<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.reader.run(move |db| work(&mut Look(db))).await
    }
}

/// A job's body, which is in a table of its own if it is long.
const BODY: &str = "coalesce(jobs.body, (SELECT b.body FROM bodies b WHERE b.row = jobs.row))";

impl Sql for Tx<'_> {
    const FIND: &'static str = "instr";
    const BODY: &'static str = BODY;
    const LOCK: &'static str = "";

    fn query(&mut self, sql: &str, values: &[SqlValue]) -> impl Future<Output = Result<Vec<RowReader>, Error>> + Send {
        ready(query(self.db, sql, values))
    }

    fn execute(&mut self, sql: &str, values: &[SqlValue]) -> impl Future<Output = Result<u64, Error>> + Send {
        ready(execute(self.db, sql, values))
    }
}

impl Write for Tx<'_> {
    fn enqueue(&mut self, job: &NewJob, now: Wall) -> impl Future<Output = Result<Enqueued, Error>> + Send {
        ready(jobs::enqueue(self, job, now))
    }
}

impl Sql for Look<'_> {
    const FIND: &'static str = "instr";
    const BODY: &'static str = BODY;
    const LOCK: &'static str = "";

    fn query(&mut self, sql: &str, values: &[SqlValue]) -> impl Future<Output = Result<Vec<RowReader>, Error>> + Send {
        ready(query(self.0, sql, values))
    }

    fn execute(&mut self, sql: &str, values: &[SqlValue]) -> impl Future<Output = Result<u64, Error>> + Send {
        ready(execute(self.0, sql, values))
    }
}

fn query(db: &Connection, sql: &str, values: &[SqlValue]) -> Result<Vec<RowReader>, Error> {
    let mut statement = db.prepare_cached(&sql.replace('$', "?"))?;
    let mut found = statement.query(params_from_iter(values))?;
    let mut rows = Vec::new();
    while let Some(next) = found.next()? {
        rows.push(row(next)?);
    }
    Ok(rows)
}

fn execute(db: &Connection, sql: &str, values: &[SqlValue]) -> Result<u64, Error> {
    let changed = db.prepare_cached(&sql.replace('$', "?"))?.execute(params_from_iter(values))?;
    Ok(u64::try_from(changed).unwrap_or(u64::MAX))
}

fn row(row: &rusqlite::Row<'_>) -> Result<RowReader, Error> {
    let count = row.as_ref().column_count();
    let mut columns = Columns::of(row);
    Ok(RowReader::new((0..count).map(|_| columns.value()).collect::<Result<_, Error>>()?))
}

/// A row read directly from the current position of the statement.
struct Columns<'a> {
    row: &'a rusqlite::Row<'a>,
    next: usize,
}

impl<'a> Columns<'a> {
    const fn of(row: &'a rusqlite::Row<'a>) -> Self {
        Self { row, next: 0 }
    }
}

impl RowSource for Columns<'_> {
    fn value(&mut self) -> Result<SqlValue, Error> {
        let value = self.row.get_ref(self.next)?;
        self.next += 1;
        Ok(match value {
            ValueRef::Null => SqlValue::Null,
            ValueRef::Integer(number) => SqlValue::Integer(number),
            ValueRef::Text(text) => SqlValue::Text(match std::str::from_utf8(text) {
                Ok(text) => text.to_owned(),
                Err(_) => String::from_utf8_lossy(text).into_owned(),
            }),
            ValueRef::Blob(bytes) => SqlValue::Bytes(bytes.to_vec()),
            ValueRef::Real(_) => return Err(Error::Damaged("a column holds a fraction where none belongs".to_owned())),
        })
    }
}

impl ToSql for SqlValue {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Integer(number) => ValueRef::Integer(*number),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

/// Returns the path with this suffix beside the database.
fn beside(database: &Path, ending: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// Resolves a path to the file itself. Locks and logs are beside that file, so that several names of one database share them.
fn resolved(path: &Path) -> PathBuf {
    let of_folder = || {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some(folder.canonicalize().ok()?.join(path.file_name()?))
    };
    path.canonicalize().ok().or_else(of_folder).unwrap_or_else(|| path.to_owned())
}

/// Creates an empty file that only its owner may read, unless it exists; its log gets the same permissions. An error shows when the file is
/// opened.
fn create_private(path: &Path) {
    drop(std::fs::File::options().create_new(true).write(true).mode(0o600).open(path));
}

fn connect(path: &Path) -> Result<Connection, Error> {
    let db = Connection::open(path)?;
    db.busy_timeout(BUSY)?;
    // FULL: an acknowledged commit survives a power cut, not only a crash of the process. The cache is just large enough for active jobs:
    // after a page split, a commit walks the whole cache.
    db.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA temp_store = MEMORY; PRAGMA cache_size = -8192; \
         PRAGMA journal_size_limit = 67108864;",
    )?;
    db.set_prepared_statement_cache_capacity(64);
    // Without this, closing a connection would checkpoint and delete the log, even of a database that is refused.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    steady(&db)?;
    Ok(db)
}

/// Marks in the file that it needs its log, so that a copy of only one of them is detected.
fn mark_in_use(db: &Connection) -> Result<(), Error> {
    db.pragma_update(None, "application_id", preflight::IN_USE)?;
    db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
    Ok(())
}

/// Makes SQLite plan a statement once instead of for every bound value. With partial indexes, SQLite inspects values to see whether an
/// index applies, and a new plan costs ten times as much as the statement.
fn steady(db: &Connection) -> Result<(), Error> {
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

fn connect_to_read(path: &Path) -> Result<Connection, Error> {
    let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    db.busy_timeout(BUSY)?;
    db.execute_batch("PRAGMA query_only = ON; PRAGMA temp_store = MEMORY; PRAGMA cache_size = -16384;")?;
    steady(&db)?;
    Ok(db)
}

/// Cache size in KiB; negative, as SQLite defines it.
const LITTLE: i64 = -2048;

/// Opens a connection for checkpoints, without a busy timeout.
fn connect_to_fold(path: &Path) -> Result<Connection, Error> {
    let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    Ok(db)
}

/// Maximum wait for another process's lock on the database.
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
