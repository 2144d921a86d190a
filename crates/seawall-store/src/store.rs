//! One handle for whichever backend the configuration names. Every method is the same on all of them, and one
//! conformance suite holds them to it.

use crate::dead::{self, Depth, Expired, Issue, Letter, NewLetter, Replayed};
use crate::error::Error;
use crate::job::{self, Cancelled, Claim, Claimed, Counts, Enqueued, Job, Lease, NewJob, Renewed, Settle, Settled, Tick};
use crate::location::Location;
use crate::page::{Page, Window};
use crate::sqlite::Sqlite;
use seawall_core::id::CallId;
use seawall_core::time::Wall;

#[derive(Clone, Debug)]
pub enum Store {
    #[doc(hidden)]
    Sqlite(SqliteStore),
}

/// The embedded backend, which only this crate knows the inside of.
#[derive(Clone, Debug)]
pub struct SqliteStore(pub(crate) Sqlite);

/// The same method on every backend.
macro_rules! on_each {
    ($self:ident, $name:ident $(, $argument:expr)*) => {
        match $self {
            Self::Sqlite(SqliteStore(backend)) => backend.$name($($argument),*).await,
        }
    };
}

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
            Location::Postgres(_) => Err(Error::Failed("PostgreSQL is not built in yet".to_owned())),
        }
    }
}

/// Jobs. All fail as the database fails, and only so: what a caller did wrong is a value.
#[expect(clippy::missing_errors_doc, reason = "said once for all of them")]
impl Store {
    /// Keeps jobs. When this returns they are on disk.
    pub async fn enqueue(&self, jobs: Vec<NewJob>, now: Wall) -> Result<Vec<Enqueued>, Error> {
        on_each!(self, enqueue, jobs, now)
    }

    /// Takes jobs to run, each for the length of the lease.
    pub async fn claim(&self, claim: Claim) -> Result<Vec<Claimed>, Error> {
        on_each!(self, claim, claim)
    }

    /// Holds jobs for longer; the answers are in the order of the leases.
    pub async fn renew(&self, leases: Vec<Lease>, until: Wall) -> Result<Vec<Renewed>, Error> {
        on_each!(self, renew, leases, until)
    }

    /// Gives a job back, with everything that comes of it, in one transaction.
    pub async fn settle(&self, settle: Settle) -> Result<Settled, Error> {
        on_each!(self, settle, settle)
    }

    /// Makes ready what is due, and what a vanished worker left behind.
    pub async fn tick(&self, now: Wall) -> Result<Tick, Error> {
        on_each!(self, tick, now)
    }

    pub async fn cancel(&self, id: CallId, now: Wall) -> Result<Cancelled, Error> {
        on_each!(self, cancel, id, now)
    }

    pub async fn job(&self, id: CallId) -> Result<Option<Job>, Error> {
        on_each!(self, job, id)
    }

    /// Newest first, without bodies.
    pub async fn jobs(&self, filter: job::Filter, window: Window) -> Result<Page<Job>, Error> {
        on_each!(self, jobs, filter, window)
    }

    pub async fn job_counts(&self) -> Result<Counts, Error> {
        on_each!(self, job_counts)
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
        on_each!(self, keep_letter, letter)
    }

    pub async fn letter(&self, id: CallId) -> Result<Option<Letter>, Error> {
        on_each!(self, letter, id)
    }

    /// Newest first, without bodies.
    pub async fn letters(&self, filter: dead::Filter, window: Window) -> Result<Page<Letter>, Error> {
        on_each!(self, letters, filter, window)
    }

    /// Newest first, a thousand at most.
    pub async fn issues(&self) -> Result<Vec<Issue>, Error> {
        on_each!(self, issues)
    }

    pub async fn depths(&self) -> Result<Vec<Depth>, Error> {
        on_each!(self, depths)
    }

    /// Forgets a letter; not one that is being replayed.
    pub async fn discard_letter(&self, id: CallId) -> Result<bool, Error> {
        on_each!(self, discard_letter, id)
    }

    /// Makes `job` the replay of a letter, unless one is under way.
    pub async fn replay_letter(&self, id: CallId, job: NewJob, now: Wall) -> Result<Replayed, Error> {
        on_each!(self, replay_letter, id, job, now)
    }

    /// Forgets at most so many letters whose time is over, and says which nobody looked after.
    pub async fn expire_letters(&self, now: Wall, most: usize) -> Result<Vec<Expired>, Error> {
        on_each!(self, expire_letters, now, most)
    }
}
