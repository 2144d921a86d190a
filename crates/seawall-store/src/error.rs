//! How a store can fail. Which status a caller gets for it is the doors' business.

/// The world misbehaving, as far as a database shows it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nothing can be added until there is room again; what is running can still be finished.
    #[error("the disk is full")]
    Full,
    #[error("the database is read-only: {0}")]
    ReadOnly(String),
    /// Not a database, or not a whole one.
    #[error("the database is damaged: {0}")]
    Damaged(String),
    #[error("the database has schema {found}, and this program knows schemas up to {known}: use a newer Seawall")]
    NewerSchema { found: u32, known: u32 },
    /// Not reachable, restarting, or too busy to answer in time.
    #[error("the database does not answer: {0}")]
    Unavailable(String),
    /// The queue of writes is full: more is asked for than the disk can keep up with.
    #[error("the database is behind with its writes")]
    Busy,
    #[error("the database failed: {0}")]
    Failed(String),
}

impl Error {
    /// Whether the same request may work in a while without anybody's help.
    #[must_use]
    pub const fn passes(&self) -> bool {
        matches!(self, Self::Full | Self::Unavailable(_) | Self::Busy)
    }
}
