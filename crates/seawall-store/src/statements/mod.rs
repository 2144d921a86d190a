//! Statements that both databases understand, and the rules between them, written once.

pub(crate) mod issues;
pub(crate) mod jobs;
pub(crate) mod letters;
