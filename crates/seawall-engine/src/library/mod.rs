//! The gateway's policy around any call: the core's call machine driven for a closure, a `tower` service or a plain
//! thread. No decisions are made here; `docs/reference/library.md` is its manual.
//!
//! The least supported Rust is the workspace's `rust-version`, 1.95.

#![warn(missing_docs)]

mod attempt;
mod classification;
mod classify;
mod failure;
mod fast_path;
mod future;
mod layer;
mod library_driver;
mod outcome;
mod policy;
mod report;
mod request;
mod sharing;

pub use attempt::Attempt;
pub use classification::Meaning;
pub use classify::{Classify, Usual};
pub use failure::Failure;
pub use future::Calling;
pub use layer::{PolicyLayer, PolicyService, Resend};
pub use outcome::{Errors, Judge, Responses};
pub use policy::{Policies, Policy, Unusable};
pub use request::Request;
