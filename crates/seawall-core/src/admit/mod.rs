//! The admit stage: limits, bulkheads, adaptive concurrency, shedding, idempotency.

pub mod adaptive;
pub mod bulkhead;
pub mod idempotency;
pub mod layered;
pub mod limit;
pub mod line;
pub mod places;
pub mod shed;
pub mod table;
