//! Who may start: limits, bulkheads, adaptive concurrency, shedding, idempotency.

pub mod adaptive;
