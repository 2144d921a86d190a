//! The only part of Seawall that waits, sends and reads clocks.

pub mod clock;
