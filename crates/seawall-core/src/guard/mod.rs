//! Whether the upstream is in a state to be asked: the circuit breaker.

pub mod breaker;
mod data;
mod phase;
#[cfg(test)]
mod tests;
pub mod window;

pub use breaker::{Admission, Breaker, Cause, Change, Forced, Permit, Sample, State};
pub use data::{BreakerData, PhaseData, Tally, WindowData};
pub use window::{Counts, Window};
