//! The power fails while a store is in use. A process is recorded that does what Seawall does with its store; then, for thousands of
//! moments, the files are made as a disk may hold them that lost its power then, and the store is opened. What was acknowledged before
//! that moment has to be there, and nothing that nobody asked for.
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
