//! Durable jobs: calls that are stored before they are acknowledged and driven by the same call machine as the gateway's, until they are
//! done or dead. Workers have threads and connections of their own, so that a backlog never delays a caller.

pub(crate) mod callback;
mod concurrency;
mod context;
mod job_call;
mod leases;
pub(crate) mod letter_filter;
pub(crate) mod line_stream;
mod maintenance;
mod outcomes;
mod queue_alarm;
mod reevaluation;
pub(crate) mod replay;
mod replay_run;
mod runner;
pub(crate) mod schedule;
pub(crate) mod submit;
mod target;
pub(crate) mod view;
mod worker;
mod workers;

pub(crate) use context::JobContext;
pub(crate) use maintenance::run;
pub(crate) use outcomes::{delay_before_job, is_failure, is_worth_keeping};
pub(crate) use submit::{outside, plain_key};
pub(crate) use view::job as view;
pub(crate) use worker::work;
