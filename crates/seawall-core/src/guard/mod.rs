//! Whether the upstream is in a state to be asked: the circuit breaker, and pauses that a provider asked for.

pub mod breaker;
mod data;
pub mod pause;
mod phase;
#[cfg(test)]
mod tests;
pub mod window;

pub use breaker::{Admission, Breaker, Cause, Change, Forced, Permit, Sample, State};
pub use data::{BreakerData, PhaseData, Tally, WindowData};
pub use pause::Pause;
pub use window::{Counts, Window};
