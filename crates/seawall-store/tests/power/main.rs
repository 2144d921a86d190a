//! Power cuts while a store is in use. A process that uses its store as Seawall does is recorded. Then, for thousands of moments,
//! the files are built as a disk may contain them after a power cut at that moment, and the store is opened. Everything acknowledged
//! before that moment has to be there, and nothing that was never requested.
//!
//! `SEAWALL_POWER_CUTS` names how many moments, `SEAWALL_POWER_SEED` which.
#![cfg(target_os = "linux")]

#[cfg(test)]
mod disk;
#[cfg(test)]
mod promises;
#[cfg(test)]
mod recording;
#[cfg(test)]
mod verdict;
#[cfg(test)]
mod workload;
