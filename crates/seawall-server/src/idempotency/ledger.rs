//! Where reservations of idempotency keys are written down: in the store, which no restart forgets, and where instances
//! share state, in Redis too, so that the keys of all of them are one. What a key means is decided by the core.

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
    /// Reservations that this instance made alone because shared state did not answer.
    alone: AtomicU64,
    /// Keys of calls that were refused, which Redis may have reserved for them without our hearing of it.
    loose: Mutex<VecDeque<([u8; 32], KeyClaim, CallId)>>,
}

/// Loose ends beyond these are left to themselves: their keys are in doubt when their leases end.
const MAX_LOOSE: usize = 1_024;
/// How many of them a call ties up on its way.
const TIED_AT_ONCE: usize = 4;

/// What a call holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldKey {
    /// In our own store, under this number.
    pub own: Option<u32>,
    shared: RedisHold,
}

/// What a call holds in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RedisHold {
    Nothing,
    Number(u32),
    /// Redis did not answer, and may have reserved the key all the same. Asked again, it knows its owner.
    Unsure(KeyClaim, CallId),
}

/// What somebody who asked for a key is told.
#[derive(Debug)]
pub(crate) enum LedgerAnswer {
    Held(HeldKey),
    /// The answer of an earlier call, where it was kept.
    Replay(Option<Response>),
    /// [`Answer`], where it is neither of the above.
    Refused(ReserveAnswer),
    /// Nobody can promise anything.
    Nothing,
}

/// Which silence means that a key cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequiredStores {
    pub store: bool,
    pub shared: bool,
}

impl Ledger {
    pub(crate) fn new(store: Store, shared: Option<Arc<shared::RedisStore>>, clock: Clock, store_clock: Arc<StoreClock>) -> Self {
        Self { store, shared, clock, store_clock, alone: AtomicU64::new(0), loose: Mutex::default() }
    }

    /// The time that reservations live by.
    pub(crate) fn now(&self) -> Wall {
        self.store_clock.now()
    }

    pub(crate) fn alone(&self) -> u64 {
        self.alone.load(Ordering::Relaxed)
    }

    /// Asks our own store first: what it knows of a key holds whatever Redis has forgotten.
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
        self.tie_up().await;
        let was_up = shared.is_up();
        let end = |ending, response| FinishKey { scope: wish.scope, reservation: 0, ending, response, ttl: wish.claim.ttl, now: wish.now };
        match shared.reserve_key(&wish.scope, &wish.claim, owner, &self.clock).await {
            Some((ReserveAnswer::Proceed { reservation }, _)) => {
                LedgerAnswer::Held(HeldKey { own, shared: RedisHold::Number(reservation) })
            }
            Some((ReserveAnswer::Replay, kept)) => {
                let response = read(&kept.into());
                // From now on it is known here too, whatever becomes of Redis.
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

    /// Writes down how a reservation ended, wherever it is held. Whoever does not hear it keeps the key in doubt.
    pub(crate) async fn finish(&self, held: HeldKey, end: FinishKey) {
        let own = async {
            if let Some(reservation) = held.own {
                // A store that fails says so itself, in its own metric and on `/readyz`.
                drop(self.store.finish_key(FinishKey { reservation, ..end.clone() }).await);
            }
        };
        tokio::join!(own, self.tell_others(held, &end));
    }

    /// The part of it that other instances see.
    pub(crate) async fn tell_others(&self, held: HeldKey, end: &FinishKey) {
        let Some(shared) = &self.shared else { return };
        if let Some(reservation) = self.number(shared, &end.scope, held.shared).await {
            let response = end.response.as_ref().map(written).unwrap_or_default();
            shared.finish_key(&end.scope, reservation, end.ending, end.ttl, &response).await;
        }
    }

    /// Under which number Redis has a key for us.
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

    /// Frees keys in Redis that belong to calls which were refused, now that it may answer again.
    pub(crate) async fn tie_up(&self) {
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

/// A response as Redis keeps it: a line of JSON, then the body.
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
