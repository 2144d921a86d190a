//! Durable jobs: calls that are kept before they are acknowledged, and driven by the same machine as the gateway's until
//! they are done or dead. Workers have threads and connections of their own, so that a backlog never touches a caller.

mod alarm;
mod api;
pub(super) mod callback;
mod claim;
mod crew;
mod desk;
mod held;
mod identity;
mod letters_api;
mod life;
mod lines;
mod outcomes;
mod pace;
mod reevaluate;
mod replay;
mod replay_api;
mod replay_run;
mod run;
mod schedule;
mod schedule_api;
mod submit;
mod transfer;
mod upkeep;
mod view;

use super::admin::paths::Paths;
pub(super) use claim::work;
pub(crate) use desk::{Counts, Desk};
pub(super) use identity::{KeyedRequest, fingerprint};
pub(super) use outcomes::{is_failure, is_worth_keeping, rest};
pub(super) use submit::{outside, plain_key};
pub(super) use upkeep::keep_up;
pub(super) use view::job as view;

/// What the admin API has of all this.
pub(super) fn paths() -> Paths {
    api::paths().merge(letters_api::paths()).merge(replay_api::paths()).merge(schedule_api::paths()).merge(transfer::paths())
}
