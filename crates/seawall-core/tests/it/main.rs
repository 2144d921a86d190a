//! The core as its users see it, in one binary.

#[cfg(test)]
mod call;
#[cfg(test)]
mod presets;
#[cfg(test)]
mod stages;
