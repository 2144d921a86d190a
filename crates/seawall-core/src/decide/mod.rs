//! What happens next: backoff, retry budget, deadline.

pub mod backoff;
pub mod budget;
pub mod deadline;
