//! The core from outside, in one binary.

#[cfg(test)]
mod presets;
