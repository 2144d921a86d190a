//! Durable jobs: calls that are kept before they are acknowledged, and driven by the same machine as the gateway's until
//! they are done or dead. Workers have threads and connections of their own, so that a backlog never touches a caller.

mod alarm;
pub(crate) mod callback;
mod claim;
mod crew;
mod desk;
mod held;
pub(crate) mod letter_filter;
mod life;
pub(crate) mod lines;
mod outcomes;
mod pace;
mod reevaluate;
pub(crate) mod replay;
mod replay_run;
mod run;
pub(crate) mod schedule;
pub(crate) mod submit;
mod upkeep;
pub(crate) mod view;

pub(crate) use claim::work;
pub(crate) use desk::JobContext;
pub(crate) use outcomes::{is_failure, is_worth_keeping, rest};
pub(crate) use submit::{outside, plain_key};
pub(crate) use upkeep::keep_up;
pub(crate) use view::job as view;
