//! What holds for the core as its users see it.

mod presets;
mod stages;
