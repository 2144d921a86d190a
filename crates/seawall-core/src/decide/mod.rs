//! The decide stage: how long to wait, whether the budget pays for it, and whether it fits the deadline.

pub mod backoff;
