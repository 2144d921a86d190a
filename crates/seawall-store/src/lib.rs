//! Where Seawall keeps what must survive it: jobs, dead letters, schedules, idempotency keys and roll-ups, in SQLite or
//! PostgreSQL. Nothing here decides about a call or reads a clock: every method is told what time it is.

pub mod alarm;
pub mod dead;
mod error;
pub mod failpoint;
pub mod headers;
pub mod idempotency;
pub mod job;
pub mod journal;
pub mod location;
pub mod notes;
pub mod page;
mod postgres;
mod progress;
pub mod replay;
pub mod rollup;
mod rows;
pub mod schedule;
mod settled;
mod sql;
mod sqlite;
mod statements;
mod store;
mod words;

pub use error::Error;
pub use store::Store;
