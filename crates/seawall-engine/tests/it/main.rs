//! The engine and its library from outside: against real servers, the same story as the gateway and the simulator, the
//! core's own properties, everything given back, and errors of the compiler that a human can read.

#[cfg(test)]
mod compile;
#[cfg(test)]
mod holds;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod reservations;
#[cfg(test)]
#[expect(dead_code, reason = "other tests use more of it")]
#[path = "../../../seawall/tests/it/servers.rs"]
mod servers;
#[cfg(test)]
mod service;
#[cfg(test)]
mod traces;
#[cfg(test)]
mod twins;
