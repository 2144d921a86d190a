//! The conformance suite: runs every case on each backend. A case does not know its backend.

#[cfg(test)]
mod broken;
#[cfg(test)]
mod claims;
#[cfg(test)]
mod cluster;
#[cfg(test)]
mod dead;
#[cfg(test)]
mod disks;
#[cfg(test)]
mod endings;
#[cfg(test)]
mod failures;
#[cfg(test)]
mod files;
#[cfg(test)]
mod journal;
#[cfg(test)]
mod lulls;
#[cfg(test)]
mod model;
#[cfg(test)]
mod opening;
#[cfg(test)]
mod plans;
#[cfg(test)]
mod stage;
#[cfg(test)]
mod tables;
#[cfg(test)]
mod upgrade;
#[cfg(test)]
mod wire;
