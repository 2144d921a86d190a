//! The real policy code in virtual time: only the clock, the network and the server are made up.
//!
//! Each model is a plain function of its configuration and a seed; the same seed gives the same numbers. The models
//! are fixed, so that their results can be held against any other simulation of the same models. How results
//! are printed, drawn and asserted on is the door's business.

pub mod contention;
pub mod downtime;
pub mod herd;
pub mod outage;
mod queue;
pub mod replay;
pub mod script;
mod server;
mod shared;
mod stats;
pub mod surge;
mod traffic;

use crate::rng::Rng;
pub use stats::Mean;

/// A generator for one run of one case. It depends on nothing but its names, so a case gives the same
/// numbers whether it is simulated alone or in the whole table.
fn stream(seed: u64, names: [u64; 3]) -> Rng {
    Rng::seeded(names.into_iter().fold(seed, |state, name| Rng::seeded(state ^ name).draw()))
}
