//! Which credential is used: the key pool, and when a provider's quota comes back.

mod data;
mod passed;
pub mod pool;
pub mod reset;

pub use data::{CooldownData, KeyData, KeyPoolData};
pub use passed::PassedOver;
pub use pool::{Answer, KeyPool, KeySet, KeyStatus, Lease, REFUSALS, RequestMark, Until};
pub use reset::{Reset, ResetError};
