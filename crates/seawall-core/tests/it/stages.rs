//! Properties of the stages for every policy and every order of events.

mod admit;
mod decide;
mod guard;
mod lease;
