//! Seawall's policy as pure values and state machines.
//!
//! Text becomes policy ([`config`]), policy becomes decisions ([`call`], which composes the stages
//! [`admit`], [`lease`], [`guard`], [`classify`], [`decide`] and [`record`]). Nothing here reads a clock, opens a
//! socket or draws from a global generator: `Now` and `&mut Rng` are arguments, so every decision can be replayed.

pub mod admit;
pub mod calc;
pub mod call;
pub mod classify;
pub mod config;
pub mod decide;
pub mod discretion;
pub mod guard;
pub mod id;
pub mod lease;
pub mod lint;
pub mod policy;
pub mod probing;
pub mod record;
pub mod request_method;
pub mod request_target;
pub mod rng;
pub mod schedule;
pub mod sim;
pub mod spelling;
pub mod time;
pub mod units;
mod words;
