//! The engine against real servers.

#[cfg(test)]
#[expect(dead_code, reason = "other tests use more of it")]
#[path = "../../../seawall/tests/it/servers.rs"]
mod servers;
#[cfg(test)]
mod twins;
