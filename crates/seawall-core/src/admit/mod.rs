//! Who may start: limits, bulkheads, adaptive concurrency, shedding, idempotency.

pub mod adaptive;
pub mod layered;
pub mod limit;
pub mod table;
