//! The guard stage: the circuit breaker, and pauses that a provider asked for.

pub mod breaker;
mod data;
pub mod pause;
mod phase;
#[cfg(test)]
mod tests;
pub mod window;

pub use breaker::{Admission, BreakerCell, BreakerSample, Cause, Forced, Permit, PhaseChange, State};
pub use data::{BreakerData, PhaseData, WindowCounts, WindowData};
pub use pause::PauseState;
pub use window::{BucketCounts, SlidingWindow};
