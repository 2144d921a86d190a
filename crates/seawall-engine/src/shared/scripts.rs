//! The scripts, one for each operation on shared state, each put together from what it needs.

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
    /// Gives back what a call took and did not use.
    REFUND = "clock.lua", "limit.lua", "refund.lua";
    /// Empties limits until a provider's time.
    /// Asks a breaker for leave to send.
    PERMIT = "clock.lua", "breaker.lua", "permit.lua";
    /// Tells a breaker how a send went.
    REPORT = "clock.lua", "breaker.lua", "report.lua";
    /// Holds a breaker by hand, or lets go of it.
    FORCE = "clock.lua", "breaker.lua", "force.lua";
    /// Tells everybody that a server asked them to stay away.
    PAUSE = "clock.lua", "pause.lua";
    /// Ends such pauses because a probe was answered.
    PAUSE_DISPROVED = "clock.lua", "pausedisproved.lua";
    /// Ends such pauses by hand.
    LIFT = "clock.lua", "lift.lua";
    /// Leases a key.
    LEASE = "clock.lua", "keys.lua", "lease.lua";
    /// Tells a key pool what an attempt did to a key.
    KEY_REPORT = "clock.lua", "keys.lua", "keyreport.lua";
    /// Asks to execute under an idempotency key.
    RESERVE = "clock.lua", "key.lua", "reserve.lua";
    /// Ends a reservation of an idempotency key.
    FINISH = "clock.lua", "key.lua", "finish.lua";
    /// Says that this instance is there, and hears how many are.
    BEAT = "clock.lua", "beat.lua";
    /// The token that instances share, or the right to fetch one.
    TOKEN = "clock.lua", "token.lua";
    /// Puts a fetched token where the others find it.
    TOKEN_KEEP = "clock.lua", "tokenkeep.lua";
}
