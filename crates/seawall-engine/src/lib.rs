//! The only part of Seawall that waits, sends and reads clocks.
//!
//! [`drive`] runs the core's call machine; [`transport`] sends its attempts over the connections of `seawall-http`;
//! [`live`] holds the configuration in force with its [`state`]; [`recorder`] takes what happened to the log and the
//! [`metrics`].
//!
//! [`Policy`] is all of it around a call of your own: see [`library`].

pub mod adhoc;
pub mod attempt;
mod base64;
pub mod cache;
pub mod caller;
pub mod clock;
pub mod closing;
pub mod credential;
pub mod credential_names;
pub mod credential_pauses;
pub mod deadlines;
pub mod drive;
pub mod ids;
pub mod library;
pub mod limits;
pub mod links;
pub mod live;
mod locked;
pub mod mask;
pub mod memory;
pub mod metrics;
mod pause_cell;
pub mod pools;
pub mod record;
pub mod recorder;
pub mod schema;
pub mod secret;
pub mod sending;
pub mod shared;
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

/// Sixty-four bits from the system's generator: where chance enters, once per thread.
#[must_use]
pub fn entropy() -> u64 {
    getrandom::u64().unwrap_or_else(|_| {
        // Without a system generator the address of a fresh allocation and the clock must do; nothing secret hangs on it.
        let clock = Clock::start().now();
        clock.mono.0 ^ clock.wall.0.unsigned_abs()
    })
}
