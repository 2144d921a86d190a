//! What happens next: backoff, retry budget, deadline.

pub mod alarm;
pub mod backoff;
pub mod budget;
pub mod deadline;
pub mod next;
pub mod notice;

pub use budget::{Budget, BudgetData, Funding};
pub use deadline::Deadline;
pub use next::{Facts, Next, Progress, next, repeatable};
