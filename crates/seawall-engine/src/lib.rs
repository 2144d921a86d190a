//! The only part of Seawall that waits, sends and reads clocks.
//!
//! [`driver`] runs the core's call machine; [`transport`] sends its attempts over the connections of `seawall-http`;
//! [`runtime`] holds the configuration in force with its [`state`]; [`recorder`] takes what happened to the log and the
//! [`metrics`].
//!
//! [`Policy`] is all of it around a call of your own: see [`library`].

pub mod ad_hoc;
pub mod attempt;
mod base64;
pub mod bulkhead;
pub mod cache;
pub mod caller;
pub mod clock;
pub mod credential;
pub mod credential_names;
pub mod credential_pauses;
pub mod deadlines;
pub mod drain;
pub mod driver;
pub mod ids;
pub mod library;
pub mod limits;
pub mod links;
mod locked_cell;
pub mod mask;
pub mod metrics;
mod pause_cell;
pub mod record;
pub mod recorder;
pub mod runtime;
pub mod schema;
pub mod secret;
pub mod sender;
pub mod shared;
pub mod snapshot;
pub mod state;
pub mod trace;
pub mod transport;
mod upstream_state;
pub mod upstream_target;

pub use clock::Clock;
pub use library::{Attempt, Classify, Failure, Meaning, Policies, Policy, Usual};
pub use record::Record;
pub use seawall_core::guard::State as BreakerState;
pub use seawall_core::record::{Class, Code, ErrorKind, Reason};

/// Returns 64 bits from the system's generator: the only source of randomness, read once per thread.
#[must_use]
pub fn entropy() -> u64 {
    getrandom::u64().unwrap_or_else(|_| {
        // Without a system generator the clock serves as seed; no secret depends on it.
        let clock = Clock::start().now();
        clock.mono.0 ^ clock.wall.0.unsigned_abs()
    })
}
