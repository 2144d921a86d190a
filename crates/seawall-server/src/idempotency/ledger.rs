//! Storage of idempotency key reservations: in the store, which survives restarts, and also in Redis if instances share state. The core
//! decides the rules of keys.

use crate::store_clock::StoreClock;
use bytes::Bytes;
use seawall_core::admit::idempotency::{KeyClaim, KeyEnding, ReserveAnswer};
use seawall_core::id::CallId;
use seawall_core::time::Wall;
use seawall_engine::clock::Clock;
use seawall_engine::shared;
use seawall_store::Store;
use seawall_store::idempotency::{FinishKey, ReserveKey};
use seawall_store::job::Response;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Debug)]
pub(crate) struct Ledger {
    store: Store,
    shared: Option<Arc<shared::RedisStore>>,
    clock: Clock,
    store_clock: Arc<StoreClock>,
    /// Reservations made without shared state because Redis did not reply.
    alone: AtomicU64,
    /// Keys of refused calls that Redis may have reserved although its reply was lost.
    loose: Mutex<VecDeque<([u8; 32], KeyClaim, CallId)>>,
}

/// Maximum of these; any more stay reserved until their leases end.
const MAX_LOOSE: usize = 1_024;
/// Maximum of these that one call cleans up.
const TIED_AT_ONCE: usize = 4;

/// A key that a call holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldKey {
    /// Its reservation number in the store.
    pub own: Option<u32>,
    shared: RedisHold,
}

/// The reservation of a call in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RedisHold {
    Nothing,
    Number(u32),
    /// Redis did not reply, and may have reserved the key. A repeated request recognises the owner.
    Unsure(KeyClaim, CallId),
}

/// The result of a reservation.
#[derive(Debug)]
pub(crate) enum LedgerAnswer {
    Held(HeldKey),
    /// The response of an earlier call, if it was stored.
    Replay(Option<Response>),
    /// A [`ReserveAnswer`] that refuses the call.
    Refused(ReserveAnswer),
    /// No store gives a guarantee.
    Nothing,
}

/// The stores that must reply for a key to be reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequiredStores {
    pub store: bool,
    pub shared: bool,
}

impl Ledger {
    pub(crate) fn new(store: Store, shared: Option<Arc<shared::RedisStore>>, clock: Clock, store_clock: Arc<StoreClock>) -> Self {
        Self { store, shared, clock, store_clock, alone: AtomicU64::new(0), loose: Mutex::default() }
    }

    /// Returns the time by the clock that reservations go by.
    pub(crate) fn now(&self) -> Wall {
        self.store_clock.now()
    }

    pub(crate) fn alone(&self) -> u64 {
        self.alone.load(Ordering::Relaxed)
    }

    /// Reserves a key, in our own store first: its record of a key holds even if Redis has lost it.
    pub(crate) async fn reserve(&self, wish: ReserveKey, owner: CallId, needs: RequiredStores) -> LedgerAnswer {
        let own = match self.store.reserve_key(wish).await {
            Ok(reserved) => match reserved.answer {
                ReserveAnswer::Proceed { reservation } => Some(reservation),
                ReserveAnswer::Replay => return LedgerAnswer::Replay(reserved.stored),
                answer @ (ReserveAnswer::Mismatch | ReserveAnswer::InFlight { .. } | ReserveAnswer::Unknown) => {
                    return LedgerAnswer::Refused(answer);
                }
            },
            Err(_) if needs.store => return LedgerAnswer::Nothing,
            Err(_) => None,
        };
        let ours = HeldKey { own, shared: RedisHold::Nothing };
        let Some(shared) = &self.shared else { return LedgerAnswer::Held(ours) };
        self.release_loose_ends().await;
        let was_up = shared.is_up();
        let end = |ending, response| FinishKey { scope: wish.scope, reservation: 0, ending, response, ttl: wish.claim.ttl, now: wish.now };
        match shared.reserve_key(&wish.scope, &wish.claim, owner, &self.clock).await {
            Some((ReserveAnswer::Proceed { reservation }, _)) => {
                LedgerAnswer::Held(HeldKey { own, shared: RedisHold::Number(reservation) })
            }
            Some((ReserveAnswer::Replay, kept)) => {
                let response = read(&kept.into());
                // Stored here too, so that the result survives a loss of Redis.
                self.finish(ours, end(KeyEnding::Done, response.clone())).await;
                LedgerAnswer::Replay(response)
            }
            Some((answer, _)) => {
                self.finish(ours, end(KeyEnding::Released, None)).await;
                LedgerAnswer::Refused(answer)
            }
            None if needs.shared => {
                if was_up {
                    self.leave_loose((wish.scope, wish.claim, owner));
                }
                self.finish(ours, end(KeyEnding::Released, None)).await;
                LedgerAnswer::Nothing
            }
            None => {
                self.alone.fetch_add(1, Ordering::Relaxed);
                LedgerAnswer::Held(HeldKey { own, shared: RedisHold::Unsure(wish.claim, owner) })
            }
        }
    }

    /// Writes the end of a reservation to all stores that hold it. In a store that does not get it, the key stays in doubt.
    pub(crate) async fn finish(&self, held: HeldKey, end: FinishKey) {
        let own = async {
            if let Some(reservation) = held.own {
                // A failing store reports itself, in its own metric and on `/readyz`.
                drop(self.store.finish_key(FinishKey { reservation, ..end.clone() }).await);
            }
        };
        tokio::join!(own, self.share_end(held, &end));
    }

    /// Writes the end of a reservation to the state that other instances see.
    pub(crate) async fn share_end(&self, held: HeldKey, end: &FinishKey) {
        let Some(shared) = &self.shared else { return };
        if let Some(reservation) = self.number(shared, &end.scope, held.shared).await {
            let response = end.response.as_ref().map(written).unwrap_or_default();
            shared.finish_key(&end.scope, reservation, end.ending, end.ttl, &response).await;
        }
    }

    /// Returns our reservation number in Redis.
    async fn number(&self, shared: &shared::RedisStore, scope: &[u8; 32], there: RedisHold) -> Option<u32> {
        match there {
            RedisHold::Nothing => None,
            RedisHold::Number(number) => Some(number),
            RedisHold::Unsure(claim, owner) => match shared.reserve_key(scope, &claim, owner, &self.clock).await? {
                (ReserveAnswer::Proceed { reservation }, _) => Some(reservation),
                (ReserveAnswer::Replay | ReserveAnswer::Mismatch | ReserveAnswer::InFlight { .. } | ReserveAnswer::Unknown, _) => None,
            },
        }
    }

    fn leave_loose(&self, end: ([u8; 32], KeyClaim, CallId)) {
        let mut loose = self.loose.lock().unwrap_or_else(PoisonError::into_inner);
        if loose.len() < MAX_LOOSE {
            loose.push_back(end);
        }
    }

    /// Releases keys in Redis that belong to refused calls, once Redis replies again.
    pub(crate) async fn release_loose_ends(&self) {
        let Some(shared) = &self.shared else { return };
        for _ in 0..TIED_AT_ONCE {
            if !shared.is_up() {
                return;
            }
            let Some((scope, claim, owner)) = self.loose.lock().unwrap_or_else(PoisonError::into_inner).pop_front() else { return };
            if let Some(number) = self.number(shared, &scope, RedisHold::Unsure(claim, owner)).await {
                shared.finish_key(&scope, number, KeyEnding::Released, claim.ttl, &[]).await;
            }
            if !shared.is_up() {
                self.leave_loose((scope, claim, owner));
            }
        }
    }
}

/// Encodes a response for Redis: a line of JSON, then the body.
fn written(response: &Response) -> Vec<u8> {
    let head = serde_json::json!([response.status, response.truncated, response.headers]);
    [head.to_string().as_bytes(), b"\n", &response.body].concat()
}

fn read(kept: &Bytes) -> Option<Response> {
    let end = kept.iter().position(|byte| *byte == b'\n')?;
    let (status, truncated, headers) = serde_json::from_slice(&kept[..end]).ok()?;
    Some(Response { status, truncated, headers, body: kept.slice(end + 1..) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_store::headers::StoredHeaders;

    #[test]
    fn a_response_is_read_as_it_was_written() {
        let headers: StoredHeaders = [("a", "b\"\u{e9}"), ("a", "")].into_iter().collect();
        for body in ["", "\n", "line\nline"] {
            let response = Response { status: 201, headers: headers.clone(), body: body.into(), truncated: body.is_empty() };
            assert_eq!(read(&written(&response).into()), Some(response));
        }
        assert_eq!(read(&Bytes::new()), None, "nothing was kept");
        assert_eq!(read(&Bytes::from_static(b"[201]\nx")), None);
    }
}
