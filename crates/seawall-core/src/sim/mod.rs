//! Simulations of the real policy code in virtual time: only the clock, the network and the server are simulated.
//!
//! Each model is a plain function of its configuration and a seed; the same seed gives the same numbers. The models are fixed, so that
//! their results can be compared with any other simulation of the same models. The `sim` command prints, draws and asserts on results.

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

/// A generator for one run of one case. It depends only on its names, so a case gives the same numbers whether it is simulated alone or in
/// the whole table.
fn stream(seed: u64, names: [u64; 3]) -> Rng {
    Rng::seeded(names.into_iter().fold(seed, |state, name| Rng::seeded(state ^ name).draw()))
}
