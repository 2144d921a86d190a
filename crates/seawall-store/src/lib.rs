//! Where Seawall keeps jobs, dead letters and roll-ups. For now: which database a store URL names.

pub mod location;
