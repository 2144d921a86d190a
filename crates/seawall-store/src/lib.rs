//! Durable state of Seawall in SQLite or PostgreSQL: jobs, dead letters, schedules, idempotency keys and roll-ups. This crate decides
//! nothing about calls and reads no clock: callers pass the time to every method.

mod error;
pub mod failpoint;
mod json;
pub mod location;
mod model;
mod postgres;
mod progress;
mod rows;
mod run_lock;
mod sql;
mod sqlite;
mod statements;
mod store;

pub use error::Error;
pub use model::{alarm, dead, headers, idempotency, job, journal, notes, page, replay, rollup, schedule};
pub use run_lock::RunLock;
pub use store::Store;
