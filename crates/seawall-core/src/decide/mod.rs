//! The decide stage: backoff, retry budget, deadline, and the decision after each result.

pub mod alarm;
pub mod backoff;
pub mod budget;
pub mod deadline;
pub mod next;
pub mod notice;

pub use budget::{Budget, BudgetData, RetryFunding};
pub use deadline::Deadline;
pub use next::{CallProgress, DecisionInput, NextStep, next, repeatable};
