//! The handle of the configured backend. All methods behave alike on all backends; one conformance suite checks that.

use crate::error::Error;
use crate::failpoint;
use crate::location::Location;
use crate::model::dead::{self, Depth, Expiry, Issue, Letter, NewLetter};
use crate::model::job::{
    self, Cancelled, ClaimRequest, Claimed, ClockTick, Enqueued, Hasten, Hastened, Holder, Job, JobLease, NewJob, Renewed, SettleJob,
    Settled, StateCounts,
};
use crate::model::page::{Page, PageWindow};
use crate::postgres::Postgres;
use crate::sql::at_once;
use crate::sqlite::{self, Sqlite};
use crate::statements;
use crate::statements::settled::WrittenSettlement;
use seawall_core::id::CallId;
use seawall_core::time::{Nanos, Wall};
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Clone, Debug)]
pub enum Store {
    #[doc(hidden)]
    Sqlite(SqliteStore),
    #[doc(hidden)]
    Postgres(PostgresStore),
}

/// The embedded backend. Its details are private to this crate.
#[derive(Clone, Debug)]
pub struct SqliteStore(pub(crate) Sqlite);

/// The database server's backend.
#[derive(Clone, Debug)]
pub struct PostgresStore(pub(crate) Postgres);

/// Calls the same method on every backend.
macro_rules! on_each {
    ($self:ident, $name:ident $(, $argument:expr)*) => {
        match $self {
            Self::Sqlite(SqliteStore(backend)) => backend.$name($($argument),*).await,
            Self::Postgres(PostgresStore(backend)) => backend.$name($($argument),*).await,
        }
    };
}

/// Runs the same statements on every backend, in one transaction. `adds` is refused first when space runs out, `ends` changes existing
/// rows, `repeats` can be redone after a power cut. `at` names the failpoints before and after it.
macro_rules! change {
    ($self:ident, at $name:literal, $($change:tt)*) => {{
        crate::failpoint::hit(concat!($name, "-before-commit"))?;
        let changed = change!($self, $($change)*)?;
        crate::failpoint::hit(concat!($name, "-after-commit"))?;
        Ok(changed)
    }};
    ($self:ident, adds $function:path $(, $argument:ident)*) => { change!($self, write, $function $(, $argument)*) };
    ($self:ident, ends $function:path $(, $argument:ident)*) => { change!($self, finish, $function $(, $argument)*) };
    ($self:ident, repeats $function:path $(, $argument:ident)*) => { change!($self, repeat, $function $(, $argument)*) };
    ($self:ident, $weight:ident, $function:path $(, $argument:ident)*) => {
        match $self {
            Self::Sqlite(SqliteStore(backend)) => backend.$weight(move |tx| at_once($function(tx $(, &$argument)*))).await,
            Self::Postgres(PostgresStore(backend)) => {
                let mut tx = backend.begin().await?;
                let result = $function(&mut tx $(, &$argument)*).await;
                tx.end(result).await
            }
        }
    };
}

/// Runs the same read-only statements on every backend.
macro_rules! look {
    ($self:ident, $function:path $(, $argument:ident)*) => {
        match $self {
            Self::Sqlite(SqliteStore(backend)) => backend.read(move |look| at_once($function(look $(, &$argument)*))).await,
            Self::Postgres(PostgresStore(backend)) => $function(&mut backend.read_transaction().await? $(, &$argument)*).await,
        }
    };
}

mod journal;
mod tables;

impl Store {
    /// Opens the store and brings its schema up to date.
    ///
    /// # Errors
    /// When it cannot be opened, is damaged, or belongs to a newer program.
    pub async fn open(location: &Location) -> Result<Self, Error> {
        match location {
            Location::Sqlite(path) => {
                let path = path.clone();
                let opened = tokio::task::spawn_blocking(move || Sqlite::open(&path)).await;
                Ok(Self::Sqlite(SqliteStore(opened.map_err(|error| Error::Failed(error.to_string()))??)))
            }
            Location::Postgres(url) => Ok(Self::Postgres(PostgresStore(Postgres::open(url).await?))),
        }
    }

    /// Moves everything into the database file, so that a copy of the file is complete. The last call before the end.
    ///
    /// # Errors
    /// When the disk fails, or other processes do not release the database in time.
    pub async fn close(&self) -> Result<(), Error> {
        match self {
            Self::Sqlite(SqliteStore(backend)) => backend.close().await,
            Self::Postgres(_) => Ok(()),
        }
    }

    /// Returns whether the database is a copy without its write-ahead log, or has lost it: then the content of the log is missing.
    #[must_use]
    pub const fn lost_its_log(&self) -> bool {
        match self {
            Self::Sqlite(SqliteStore(backend)) => backend.lost_its_log(),
            Self::Postgres(_) => false,
        }
    }

    /// Writes a copy of an SQLite database, even while it is in use.
    ///
    /// # Errors
    /// When there is a file of that name already, or the disk fails.
    pub fn back_up(database: &Path, copy: &Path) -> Result<(), Error> {
        sqlite::backup::write(database, copy)
    }

    /// Replaces an SQLite database that is not in use by a copy. Returns the new path of the replaced one.
    ///
    /// # Errors
    /// When the copy is damaged or newer than this program, or the database is in use.
    pub fn restore(database: &Path, copy: &Path) -> Result<Option<PathBuf>, Error> {
        sqlite::backup::restore(database, copy)
    }

    /// Reads a whole SQLite database without changing it.
    ///
    /// # Errors
    /// With the damage found.
    pub fn check(database: &Path) -> Result<(), Error> {
        sqlite::backup::check(database)
    }

    /// Returns whether no other process uses it at the same time.
    #[must_use]
    pub const fn is_private(&self) -> bool {
        matches!(self, Self::Sqlite(_))
    }

    /// Claims the right to run its jobs, for the lifetime of this handle. Returns false if another process has that right. Only a file has
    /// such a lock; a server may have many users.
    ///
    /// # Errors
    /// When a lock cannot be made beside the file.
    pub fn claim_serving(&self) -> Result<bool, Error> {
        match self {
            Self::Sqlite(SqliteStore(backend)) => backend.claim_serving(),
            Self::Postgres(_) => Ok(true),
        }
    }

    /// Returns whether the backend is reachable, as far as known without a request.
    #[must_use]
    pub fn is_responsive(&self) -> bool {
        match self {
            Self::Sqlite(_) => true,
            Self::Postgres(PostgresStore(backend)) => backend.is_responsive(),
        }
    }

    /// Returns when there may be new jobs to claim, whichever process enqueued them. An earlier signal is not lost; each signal wakes one
    /// waiter. Callers must poll as well: a notification can get lost with its connection.
    pub async fn woken(&self) {
        on_each!(self, woken);
    }

    /// Reduces the database's cache: for a caller that writes much and reads little.
    ///
    /// # Errors
    /// When the database does not reply.
    pub async fn remember_little(&self) -> Result<(), Error> {
        match self {
            Self::Sqlite(SqliteStore(backend)) => backend.remember_little().await,
            // The cache belongs to the server.
            Self::Postgres(_) => Ok(()),
        }
    }

    /// Preallocates the write-ahead log: for a caller that writes often and waits for the disk each time.
    ///
    /// # Errors
    /// When the database does not reply.
    pub async fn make_room(&self) -> Result<(), Error> {
        match self {
            Self::Sqlite(SqliteStore(backend)) => backend.make_room().await,
            // The server does that itself.
            Self::Postgres(_) => Ok(()),
        }
    }

    /// Returns the time by the database's clock, if its users share one.
    ///
    /// # Errors
    /// When the database does not reply.
    pub async fn time(&self) -> Result<Option<Wall>, Error> {
        on_each!(self, time)
    }
}

/// Jobs. Methods fail only if the database fails; an error of a caller is a value.
#[expect(clippy::missing_errors_doc, reason = "said once for all of them")]
impl Store {
    /// Stores jobs. When this returns they are on disk.
    pub async fn enqueue(&self, jobs: Vec<NewJob>, now: Wall) -> Result<Vec<Enqueued>, Error> {
        failpoint::hit("enqueue-before-commit")?;
        let kept = on_each!(self, enqueue, jobs, now);
        failpoint::hit("enqueue-after-commit")?;
        kept
    }

    /// Claims jobs for the length of the lease.
    pub async fn claim(&self, claim: ClaimRequest) -> Result<Vec<Claimed>, Error> {
        failpoint::hit("claim-before-commit")?;
        let claimed = on_each!(self, claim, claim);
        if claimed.as_ref().is_ok_and(|claimed| !claimed.is_empty()) {
            failpoint::hit("claim-after-commit")?;
        }
        claimed
    }

    /// Renews leases; the replies are in their order.
    pub async fn renew(&self, leases: Vec<JobLease>, until: Wall) -> Result<Vec<Renewed>, Error> {
        failpoint::hit("renew-before-commit")?;
        let renewed = on_each!(self, renew, leases, until);
        failpoint::hit("renew-after-commit")?;
        renewed
    }

    /// Settles a job, with all that follows from it, in one transaction.
    pub async fn settle(&self, settle: impl Into<Arc<SettleJob>>) -> Result<Settled, Error> {
        let settled = self.settle_all(vec![settle.into()]).await.pop();
        settled.unwrap_or_else(|| Err(Error::Failed("a settlement was not answered".to_owned())))
    }

    /// Settles jobs; the replies are in their order. Each settlement is atomic; if one fails, others may succeed.
    pub async fn settle_all(&self, settles: Vec<Arc<SettleJob>>) -> Vec<Result<Settled, Error>> {
        let many = settles.len();
        let worded: Vec<WrittenSettlement> = settles.into_iter().map(WrittenSettlement::of).collect();
        if let Err(error) = failpoint::hit("settle-before-commit") {
            return vec![Err(error); many];
        }
        let settled = on_each!(self, settle_all, worded);
        match failpoint::hit("settle-after-commit") {
            Ok(()) => settled,
            Err(error) => vec![Err(error); many],
        }
    }

    /// Makes due jobs and jobs with expired leases available. An expired lease counts as a crash of its worker, unless the worker belongs
    /// to the calling holder, which is alive.
    pub async fn tick(&self, now: Wall, holder: Option<Holder>) -> Result<ClockTick, Error> {
        let tick = on_each!(self, tick, now, holder)?;
        if tick.recovered + tick.due > 0 {
            failpoint::hit("tick-after-commit")?;
        }
        Ok(tick)
    }

    /// The clock behind the stored times was set back by this much: shifts waiting jobs so that each keeps its remaining wait. Returns
    /// their number.
    pub async fn set_back(&self, now: Wall, by: Nanos) -> Result<u64, Error> {
        change!(self, ends statements::clock::set_back, now, by)
    }

    /// Returns the creation time of the newest job, by the clock at that time.
    pub async fn newest_job(&self) -> Result<Option<Wall>, Error> {
        look!(self, statements::clock::newest)
    }

    pub async fn cancel(&self, id: CallId, now: Wall) -> Result<Cancelled, Error> {
        change!(self, at "cancel", ends statements::jobs::cancel, id, now)
    }

    /// Notes that a suspect starts: if its worker is lost now, the suspect is blamed. Returns whether the job is a suspect and the lease
    /// still ours. May be repeated.
    pub async fn blame(&self, lease: JobLease) -> Result<bool, Error> {
        change!(self, at "blame", repeats statements::jobs::blame, lease)
    }

    /// Notes on disk that a request which may not be repeated is about to be sent: if the lease is lost after that, the outcome is unknown.
    /// Returns whether the lease is still ours. May be repeated.
    pub async fn begin_send(&self, lease: JobLease, now: Wall) -> Result<bool, Error> {
        failpoint::hit("begin-before-commit")?;
        let begun = on_each!(self, begin_send, lease, now)?;
        failpoint::hit("begin-after-commit")?;
        Ok(begun)
    }

    /// Makes jobs due whose condition has passed, one batch per call.
    pub async fn hasten(&self, wish: Hasten) -> Result<Hastened, Error> {
        change!(self, at "hasten", ends statements::jobs::hasten, wish)
    }

    /// Returns the body that a claim left in the store, or `None` if the job is gone.
    pub async fn body(&self, lease: JobLease) -> Result<Option<bytes::Bytes>, Error> {
        look!(self, statements::jobs::body, lease)
    }

    pub async fn job(&self, id: CallId) -> Result<Option<Job>, Error> {
        look!(self, statements::jobs::one, id)
    }

    /// Lists jobs, newest first, without bodies.
    pub async fn jobs(&self, filter: job::JobFilter, window: PageWindow) -> Result<Page<Job>, Error> {
        look!(self, statements::jobs::list, filter, window)
    }

    pub async fn job_counts(&self) -> Result<StateCounts, Error> {
        look!(self, statements::jobs::counts)
    }

    /// Deletes at most `most` jobs that ended before that time. Returns their number.
    pub async fn sweep_jobs(&self, finished_before: Wall, most: usize) -> Result<usize, Error> {
        on_each!(self, sweep_jobs, finished_before, most)
    }
}

/// Dead letters.
#[expect(clippy::missing_errors_doc, reason = "said once for all of them")]
impl Store {
    /// Stores a letter; an existing one with this id stays unchanged.
    pub async fn keep_letter(&self, letter: NewLetter) -> Result<(), Error> {
        change!(self, at "keep", adds statements::letters::keep, letter)
    }

    /// Stores letters, all of them or none.
    pub async fn keep_letters(&self, letters: Vec<NewLetter>) -> Result<(), Error> {
        change!(self, adds statements::letters::keep_all, letters)
    }

    pub async fn letter(&self, id: CallId) -> Result<Option<Letter>, Error> {
        look!(self, statements::letters::one, id)
    }

    /// Lists letters, newest first, without bodies.
    pub async fn letters(&self, filter: dead::LetterQuery, window: PageWindow) -> Result<Page<Letter>, Error> {
        look!(self, statements::letters::list, filter, window)
    }

    /// Lists issues, newest first, at most a thousand.
    pub async fn issues(&self) -> Result<Vec<Issue>, Error> {
        look!(self, statements::issues::list)
    }

    pub async fn depths(&self) -> Result<Vec<Depth>, Error> {
        look!(self, statements::issues::depths)
    }

    /// Deletes a letter, unless it is being replayed.
    pub async fn discard_letter(&self, id: CallId) -> Result<bool, Error> {
        change!(self, ends statements::letters::discard, id)
    }

    /// Deletes at most `most` expired letters, and returns the ones that were still open.
    pub async fn expire_letters(&self, now: Wall, most: usize) -> Result<Expiry, Error> {
        let expired = change!(self, ends statements::letters::expire, now, most)?;
        if expired.gone > 0 {
            failpoint::hit("expire-after-commit")?;
        }
        Ok(expired)
    }
}
