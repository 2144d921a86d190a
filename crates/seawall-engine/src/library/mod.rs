//! The same policy around any call, without the gateway: the core's call machine driven for a closure, a `tower` service
//! or a plain thread. Nothing here decides; `docs/reference/library.md` is its manual.
//!
//! The least supported Rust is the workspace's `rust-version`, 1.95.

#![warn(missing_docs)]

mod attempt;
mod calling;
mod classify;
mod driver;
mod failure;
mod judge;
mod layer;
mod light;
mod meaning;
mod policy;
mod report;
mod request;
mod sharing;

pub use attempt::Attempt;
pub use calling::Calling;
pub use classify::{Classify, Usual};
pub use failure::Failure;
pub use judge::{Errors, Judge, Responses};
pub use layer::{PolicyLayer, PolicyService, Resend};
pub use meaning::Meaning;
pub use policy::{Policies, Policy, Unusable};
pub use request::Request;
