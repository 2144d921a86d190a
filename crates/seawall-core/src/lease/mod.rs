//! Which credential is used: the key pool, and when a provider's quota comes back.

mod data;
mod passed;
pub mod pool;
pub mod reset;

pub use data::{CooldownData, KeyData, KeyPoolData};
pub use passed::PassedOver;
pub use pool::{KeyLease, KeyPool, KeySet, KeyStatus, LeaseAnswer, REFUSALS, RequestMark, Until};
pub use reset::{Reset, ResetError};
