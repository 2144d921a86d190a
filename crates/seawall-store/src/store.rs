//! One handle for whichever backend the configuration names. Every method is the same on all of them, and one
//! conformance suite holds them to it.

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

/// The embedded backend, which only this crate knows the inside of.
#[derive(Clone, Debug)]
pub struct SqliteStore(pub(crate) Sqlite);

/// The server's backend.
#[derive(Clone, Debug)]
pub struct PostgresStore(pub(crate) Postgres);

/// The same method on every backend.
macro_rules! on_each {
    ($self:ident, $name:ident $(, $argument:expr)*) => {
        match $self {
            Self::Sqlite(SqliteStore(backend)) => backend.$name($($argument),*).await,
            Self::Postgres(PostgresStore(backend)) => backend.$name($($argument),*).await,
        }
    };
}

/// The same statements on every backend, in one transaction: `adds` what is refused first when space runs out, `ends`
/// what is there, `repeats` what would be done over after a power cut. `at` names the failpoints before it and after it.
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

/// The same statements on every backend, that only read.
macro_rules! look {
    ($self:ident, $function:path $(, $argument:ident)*) => {
        match $self {
            Self::Sqlite(SqliteStore(backend)) => backend.read(move |look| at_once($function(look $(, &$argument)*))).await,
            Self::Postgres(PostgresStore(backend)) => $function(&mut backend.look().await? $(, &$argument)*).await,
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

    /// Puts everything into the database itself, so that a copy of its file is all of it. Called when nothing more is written.
    ///
    /// # Errors
    /// When the disk fails, or others do not let go of the database in time.
    pub async fn close(&self) -> Result<(), Error> {
        match self {
            Self::Sqlite(SqliteStore(backend)) => backend.close().await,
            Self::Postgres(_) => Ok(()),
        }
    }

    /// Whether the database is a copy that was made without its log, or has lost it: then what the log held is missing.
    #[must_use]
    pub const fn lost_its_log(&self) -> bool {
        match self {
            Self::Sqlite(SqliteStore(backend)) => backend.lost_its_log(),
            Self::Postgres(_) => false,
        }
    }

    /// Writes a copy of an SQLite database, also while it is in use.
    ///
    /// # Errors
    /// When there is a file of that name already, or the disk fails.
    pub fn back_up(database: &Path, copy: &Path) -> Result<(), Error> {
        sqlite::backup::write(database, copy)
    }

    /// Puts a copy in the place of an SQLite database that nobody uses. Says where the one that was there is now.
    ///
    /// # Errors
    /// When the copy is damaged or newer than this program, or the database is in use.
    pub fn restore(database: &Path, copy: &Path) -> Result<Option<PathBuf>, Error> {
        sqlite::backup::restore(database, copy)
    }

    /// Reads all of an SQLite database and changes nothing.
    ///
    /// # Errors
    /// With what is wrong with it.
    pub fn check(database: &Path) -> Result<(), Error> {
        sqlite::backup::check(database)
    }

    /// Whether no other process uses it at the same time.
    #[must_use]
    pub const fn is_private(&self) -> bool {
        matches!(self, Self::Sqlite(_))
    }

    /// Takes the right to run its jobs, for as long as a handle of ours lives. Whether there is such a right: a file has one, and a server as
    /// many as it has users.
    ///
    /// # Errors
    /// When a lock cannot be made beside the file.
    pub fn claim_serving(&self) -> Result<bool, Error> {
        match self {
            Self::Sqlite(SqliteStore(backend)) => backend.claim_serving(),
            Self::Postgres(_) => Ok(true),
        }
    }

    /// Whether anything is heard of it, where that can be told without asking.
    #[must_use]
    pub fn is_heard(&self) -> bool {
        match self {
            Self::Sqlite(_) => true,
            Self::Postgres(PostgresStore(backend)) => backend.is_heard(),
        }
    }

    /// Returns when there may be something new to claim, whichever process enqueued it. A call that comes late returns at
    /// once; of several who wait, one is woken. Who waits must poll too: a notification can get lost with its connection.
    pub async fn woken(&self) {
        on_each!(self, woken);
    }

    /// Keeps little of the database in memory: for whoever writes much and reads none of it.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn remember_little(&self) -> Result<(), Error> {
        match self {
            Self::Sqlite(SqliteStore(backend)) => backend.remember_little().await,
            // The memory is the server's.
            Self::Postgres(_) => Ok(()),
        }
    }

    /// Makes room ahead for what is about to be written: for whoever writes often, and waits for the disk each time.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn make_room(&self) -> Result<(), Error> {
        match self {
            Self::Sqlite(SqliteStore(backend)) => backend.make_room().await,
            // A server sees to that itself.
            Self::Postgres(_) => Ok(()),
        }
    }

    /// The database's clock, where it has one that all its users share.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn time(&self) -> Result<Option<Wall>, Error> {
        on_each!(self, time)
    }
}

/// Jobs. All fail as the database fails, and only so: what a caller did wrong is a value.
#[expect(clippy::missing_errors_doc, reason = "said once for all of them")]
impl Store {
    /// Keeps jobs. When this returns they are on disk.
    pub async fn enqueue(&self, jobs: Vec<NewJob>, now: Wall) -> Result<Vec<Enqueued>, Error> {
        failpoint::hit("enqueue-before-commit")?;
        let kept = on_each!(self, enqueue, jobs, now);
        failpoint::hit("enqueue-after-commit")?;
        kept
    }

    /// Takes jobs to run, each for the length of the lease.
    pub async fn claim(&self, claim: ClaimRequest) -> Result<Vec<Claimed>, Error> {
        failpoint::hit("claim-before-commit")?;
        let claimed = on_each!(self, claim, claim);
        if claimed.as_ref().is_ok_and(|claimed| !claimed.is_empty()) {
            failpoint::hit("claim-after-commit")?;
        }
        claimed
    }

    /// Holds jobs for longer; the answers are in the order of the leases.
    pub async fn renew(&self, leases: Vec<JobLease>, until: Wall) -> Result<Vec<Renewed>, Error> {
        failpoint::hit("renew-before-commit")?;
        let renewed = on_each!(self, renew, leases, until);
        failpoint::hit("renew-after-commit")?;
        renewed
    }

    /// Gives a job back, with everything that comes of it, in one transaction.
    pub async fn settle(&self, settle: impl Into<Arc<SettleJob>>) -> Result<Settled, Error> {
        let settled = self.settle_all(vec![settle.into()]).await.pop();
        settled.unwrap_or_else(|| Err(Error::Failed("a settlement was not answered".to_owned())))
    }

    /// Gives jobs back, the answers are in their order. Each is whole, with everything that comes of it; where one fails, others may.
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

    /// Makes ready what is due, and jobs whose lease is over. Each of these counts as a crash of its worker, but for those of the holder
    /// that asks: it lives.
    pub async fn tick(&self, now: Wall, holder: Option<Holder>) -> Result<ClockTick, Error> {
        let tick = on_each!(self, tick, now, holder)?;
        if tick.recovered + tick.due > 0 {
            failpoint::hit("tick-after-commit")?;
        }
        Ok(tick)
    }

    /// The clock that times here were written by was set back by that much: what waits keeps what remained of its wait. How many do.
    pub async fn set_back(&self, now: Wall, by: Nanos) -> Result<u64, Error> {
        change!(self, ends statements::clock::set_back, now, by)
    }

    /// When the newest job was made, by the clock of that time.
    pub async fn newest_job(&self) -> Result<Option<Wall>, Error> {
        look!(self, statements::clock::newest)
    }

    pub async fn cancel(&self, id: CallId, now: Wall) -> Result<Cancelled, Error> {
        change!(self, at "cancel", ends statements::jobs::cancel, id, now)
    }

    /// Before a suspect is begun: if this is the last that is heard of its worker, the suspect is to blame. Whether it is one, and
    /// still ours; as often as it is asked.
    pub async fn blame(&self, lease: JobLease) -> Result<bool, Error> {
        change!(self, at "blame", repeats statements::jobs::blame, lease)
    }

    /// Notes on disk that the request of a job is about to be sent, where it may not be sent twice: if the lease is lost after that, nobody
    /// knows the outcome. Whether the job is still ours; as often as it is asked.
    pub async fn begin_send(&self, lease: JobLease, now: Wall) -> Result<bool, Error> {
        failpoint::hit("begin-before-commit")?;
        let begun = on_each!(self, begin_send, lease, now)?;
        failpoint::hit("begin-after-commit")?;
        Ok(begun)
    }

    /// Makes jobs due that wait for what is over, a batch at a time.
    pub async fn hasten(&self, wish: Hasten) -> Result<Hastened, Error> {
        change!(self, at "hasten", ends statements::jobs::hasten, wish)
    }

    /// The body that a claim left behind. None where the job is gone.
    pub async fn body(&self, lease: JobLease) -> Result<Option<bytes::Bytes>, Error> {
        look!(self, statements::jobs::body, lease)
    }

    pub async fn job(&self, id: CallId) -> Result<Option<Job>, Error> {
        look!(self, statements::jobs::one, id)
    }

    /// Newest first, without bodies.
    pub async fn jobs(&self, filter: job::JobFilter, window: PageWindow) -> Result<Page<Job>, Error> {
        look!(self, statements::jobs::list, filter, window)
    }

    pub async fn job_counts(&self) -> Result<StateCounts, Error> {
        look!(self, statements::jobs::counts)
    }

    /// Forgets at most so many jobs that were over before that time; how many it were.
    pub async fn sweep_jobs(&self, finished_before: Wall, most: usize) -> Result<usize, Error> {
        on_each!(self, sweep_jobs, finished_before, most)
    }
}

/// Dead letters.
#[expect(clippy::missing_errors_doc, reason = "said once for all of them")]
impl Store {
    /// Keeps a letter; one with this id that is there already stays as it is.
    pub async fn keep_letter(&self, letter: NewLetter) -> Result<(), Error> {
        change!(self, at "keep", adds statements::letters::keep, letter)
    }

    /// Keeps letters, all of them or none.
    pub async fn keep_letters(&self, letters: Vec<NewLetter>) -> Result<(), Error> {
        change!(self, adds statements::letters::keep_all, letters)
    }

    pub async fn letter(&self, id: CallId) -> Result<Option<Letter>, Error> {
        look!(self, statements::letters::one, id)
    }

    /// Newest first, without bodies.
    pub async fn letters(&self, filter: dead::LetterQuery, window: PageWindow) -> Result<Page<Letter>, Error> {
        look!(self, statements::letters::list, filter, window)
    }

    /// Newest first, a thousand at most.
    pub async fn issues(&self) -> Result<Vec<Issue>, Error> {
        look!(self, statements::issues::list)
    }

    pub async fn depths(&self) -> Result<Vec<Depth>, Error> {
        look!(self, statements::issues::depths)
    }

    /// Forgets a letter; not one that is being replayed.
    pub async fn discard_letter(&self, id: CallId) -> Result<bool, Error> {
        change!(self, ends statements::letters::discard, id)
    }

    /// Forgets at most so many letters whose time is over, and says which nobody looked after.
    pub async fn expire_letters(&self, now: Wall, most: usize) -> Result<Expiry, Error> {
        let expired = change!(self, ends statements::letters::expire, now, most)?;
        if expired.gone > 0 {
            failpoint::hit("expire-after-commit")?;
        }
        Ok(expired)
    }
}
