//! Properties of the stages: what holds for every policy and every order of events.

mod admit;
mod decide;
mod guard;
mod lease;
