//! Where Seawall keeps what must survive it: jobs, dead letters, schedules, idempotency keys and roll-ups, in SQLite or
//! PostgreSQL. Nothing here decides about a call or reads a clock: every method is told what time it is.

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
