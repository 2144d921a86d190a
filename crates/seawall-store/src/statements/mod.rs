//! Statements and rules common to both databases, written once.

pub(crate) mod alarms;
pub(crate) mod clock;
pub(crate) mod idempotency;
pub(crate) mod issues;
pub(crate) mod jobs;
pub(crate) mod journal;
pub(crate) mod letters;
pub(crate) mod notes;
pub(crate) mod replay;
pub(crate) mod rollup;
pub(crate) mod schedule;
pub(crate) mod settled;
