//! The lease stage: the key pool, and the time at which a provider's quota resets.

mod data;
mod passed;
pub mod pool;
pub mod reset;

pub use data::{CooldownData, KeyData, KeyPoolData};
pub use passed::PassedOver;
pub use pool::{KeyLease, KeyPool, KeySet, KeyStatus, LeaseAnswer, REFUSALS, RequestMark, Until};
pub use reset::{Reset, ResetError};
