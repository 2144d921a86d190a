//! Idempotency keys shared by instances: reserved and ended in one script each, on Redis's clock. The format of stored responses is left to
//! the caller.

use super::redis::{Arguments, RedisStore};
use super::script_arrays::{nanos, number, ticks};
use super::scripts;
use crate::clock::Clock;
use seawall_core::admit::idempotency::{KeyClaim, KeyEnding, ReserveAnswer};
use seawall_core::id::CallId;
use seawall_core::time::Nanos;

fn name(scope: &[u8; 32]) -> String {
    let hash: String = scope.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{{seawall:{hash}}}:idempotency")
}

impl RedisStore {
    /// Reserves a key. Returns the stored response for a replay; `None` if Redis does not reply.
    pub async fn reserve_key(&self, scope: &[u8; 32], claim: &KeyClaim, owner: CallId, clock: &Clock) -> Option<(ReserveAnswer, Vec<u8>)> {
        let arguments = Arguments::default()
            .number(0)
            .text(claim.fingerprint.0)
            .text(owner.to_bytes())
            .number(ticks(claim.lease))
            .number(ticks(claim.ttl))
            .number(u64::from(claim.upstream_honours_keys));
        let (kind, value, response): (i64, i64, Vec<u8>) = self.run(&scripts::RESERVE, &[&name(scope)], &arguments).await?;
        let answer = match kind {
            0 => ReserveAnswer::Proceed { reservation: u32::try_from(value).unwrap_or(0) },
            1 => ReserveAnswer::Replay,
            2 => ReserveAnswer::Mismatch,
            3 => ReserveAnswer::InFlight { retry_at: clock.now().wall + nanos(number(&[value], 0)) },
            _ => ReserveAnswer::Unknown,
        };
        Some((answer, response))
    }

    /// Ends a reservation. Returns `false` if it was lost in the meantime, and `None` if Redis does not reply.
    pub async fn finish_key(&self, scope: &[u8; 32], reservation: u32, ending: KeyEnding, ttl: Nanos, response: &[u8]) -> Option<bool> {
        let how = match ending {
            KeyEnding::Done => 1,
            KeyEnding::Released => 2,
            KeyEnding::Unknown => 3,
        };
        let arguments = Arguments::default().number(0).number(u64::from(reservation)).number(how).number(ticks(ttl)).text(response);
        self.run::<i64>(&scripts::FINISH, &[&name(scope)], &arguments).await.map(|held| held == 1)
    }
}
