//! State that several instances share in Redis: limits, breakers, key cooldowns, idempotency keys, tokens.
//!
//! A call asks the same questions as with local state; [`link`] sends them to [`redis`], where the script of each operation is the
//! twin of the core's pure function. While Redis does not reply, the process continues with its own copy of breakers and keys, and
//! its share of the limits. With `shared = "local"` none of this exists.

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
