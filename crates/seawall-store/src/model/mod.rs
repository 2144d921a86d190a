//! Stored data as plain types, the same for every database.

pub mod alarm;
pub mod dead;
pub mod headers;
pub(crate) mod history;
pub mod idempotency;
pub mod job;
pub mod journal;
pub mod notes;
pub mod page;
pub mod replay;
pub mod rollup;
pub mod schedule;
