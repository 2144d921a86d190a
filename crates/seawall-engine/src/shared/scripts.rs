//! The Lua scripts, one per operation on shared state, each composed of common parts.

use redis::Script;
use std::sync::LazyLock;

macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident = $($part:literal),+;)+) => {
        $($(#[$doc])* pub static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(concat!($(include_str!(concat!("scripts/", $part))),+)));)+
    };
}

scripts! {
    /// Takes a cost from several limits, or from none.
    TAKE = "clock.lua", "limit.lua", "take.lua";
    /// Gives back tokens that a call did not use.
    REFUND = "clock.lua", "limit.lua", "refund.lua";
    /// Requests a permit from a breaker.
    PERMIT = "clock.lua", "breaker.lua", "permit.lua";
    /// Reports the result of a send to a breaker.
    REPORT = "clock.lua", "breaker.lua", "report.lua";
    /// Forces or releases a breaker.
    FORCE = "clock.lua", "breaker.lua", "force.lua";
    /// Publishes a pause that a provider asked for.
    PAUSE = "clock.lua", "pause.lua";
    /// Ends such pauses because a probe got a response.
    PAUSE_DISPROVED = "clock.lua", "pausedisproved.lua";
    /// Ends such pauses by hand.
    LIFT = "clock.lua", "lift.lua";
    /// Leases a key.
    LEASE = "clock.lua", "keys.lua", "lease.lua";
    /// Reports the effect of an attempt on a key to the key pool.
    KEY_REPORT = "clock.lua", "keys.lua", "keyreport.lua";
    /// Reserves an idempotency key.
    RESERVE = "clock.lua", "key.lua", "reserve.lua";
    /// Ends a reservation of an idempotency key.
    FINISH = "clock.lua", "key.lua", "finish.lua";
    /// Sends this instance's heartbeat and returns the number of instances.
    BEAT = "clock.lua", "beat.lua";
    /// Returns the shared token, or the right to fetch one.
    TOKEN = "clock.lua", "token.lua";
    /// Stores a fetched token for other instances.
    TOKEN_KEEP = "clock.lua", "tokenkeep.lua";
}
