//! Errors of a store. Callers of this crate map them to a status.

/// A fault of the environment, as the database reports it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nothing can be added until there is space again; running jobs can still be finished.
    #[error("the disk is full")]
    Full,
    #[error("the database is read-only: {0}")]
    ReadOnly(String),
    /// Not a database, or an incomplete one.
    #[error("the database is damaged: {0}")]
    Damaged(String),
    #[error("the database has schema {found}, and this program knows schemas up to {known}: use a newer Seawall")]
    NewerSchema { found: u32, known: u32 },
    /// Not reachable, restarting, or too busy to respond in time.
    #[error("the database does not answer: {0}")]
    Unavailable(String),
    /// The queue of writes is full: requests come faster than the disk can write.
    #[error("the database is behind with its writes")]
    Busy,
    #[error("the database failed: {0}")]
    Failed(String),
}

impl Error {
    /// Returns whether the same request may succeed later without intervention.
    #[must_use]
    pub const fn passes(&self) -> bool {
        matches!(self, Self::Full | Self::Unavailable(_) | Self::Busy)
    }
}
