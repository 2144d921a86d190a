//! State that several instances share in Redis: limits, breakers, key cooldowns, idempotency keys, tokens.
//!
//! A call asks the same questions as ever; [`link`] puts them to [`redis`], where one script for each operation is the
//! twin of the core's pure function. While Redis does not answer, the process goes on with what it knows: its own copy
//! of breakers and keys, and its share of the limits. With `shared = "local"` nothing of this is there.

mod breaker;
mod idempotency;
mod keys;
mod limits;
pub mod link;
mod pause;
pub mod redis;
pub mod script_arrays;
pub mod scripts;
pub(crate) mod token;

pub(crate) use breaker::OwnCells;
pub use limits::{SharedLimits, Took};
pub use link::Link;
pub(crate) use link::Receipts;
pub use redis::{News, RedisStore};
