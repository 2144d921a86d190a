//! The reservation of an idempotency key, from the request to the stored result of the call. The core decides the rules of keys.

use super::identity::{KeyedRequest, fingerprint};
use super::ledger::{HeldKey, Ledger, LedgerAnswer, RequiredStores};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use seawall_core::admit::idempotency::{KeyClaim, KeyEnding, RequestFingerprint, ReserveAnswer as Kept};
use seawall_core::call::{AskAnswer, Reservation};
use seawall_core::id::CallId;
use seawall_core::policy::{Idempotency, IdempotencyMode};
use seawall_core::record::Code;
use seawall_core::time::Nanos;
use seawall_engine::driver::Keeper;
use seawall_store::idempotency::{FinishKey, ReserveKey};
use seawall_store::job::{self, Response};
use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::sync::Arc;

pub(crate) const KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Maximum bytes of a stored response. A longer or endless one is relayed and not stored.
pub(crate) const MAX_ANSWER: usize = 1 << 20;
/// Time by which a reservation outlives the call's deadline, so that only a lost call loses it.
const SLACK: Nanos = Nanos::from_secs(2);

/// Returns whether a request lacks a required key.
pub(crate) fn is_missing(idempotency: &Idempotency, method: &Method, has_key: bool) -> bool {
    idempotency.mode == IdempotencyMode::Required && !has_key && !method.is_idempotent()
}

/// Returns whether Seawall adds a key to a request.
pub(crate) fn is_generated(idempotency: &Idempotency, method: &Method, has_key: bool) -> bool {
    idempotency.mode == IdempotencyMode::Generate && !has_key && !method.is_idempotent()
}

/// A request with an idempotency key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyedCall<'a> {
    pub caller: &'a str,
    pub upstream: &'a str,
    pub method: &'a str,
    /// Path and query below the upstream.
    pub below: &'a str,
    /// The headers as sent to the upstream. The caller's own credentials are part of its identity.
    pub headers: &'a HeaderMap,
    pub body: &'a [u8],
    /// Time left for the call.
    pub left: Nanos,
}

/// The reservation of one call's key.
#[derive(Debug)]
pub(crate) struct KeyReservation {
    ledger: Arc<Ledger>,
    scope: [u8; 32],
    claim: KeyClaim,
    owner: CallId,
    /// Stores that must reply, or the call is refused. Without the others the call continues, with no guarantee.
    needs: RequiredStores,
    /// Nothing is written when it is dropped, because its owner comes back.
    stays: bool,
    progress: Cell<ReservationState>,
    stored: RefCell<Option<Response>>,
}

/// The state of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReservationState {
    Unasked,
    /// The store has been asked and has not replied.
    Asking,
    Held(HeldKey),
    Ending(HeldKey, Reservation),
    Over,
}

impl KeyReservation {
    /// Builds the reservation for a request whose policy supports keys.
    pub(crate) fn of(asked: KeyedCall<'_>, idempotency: &Idempotency, key: &str, owner: CallId, ledger: &Arc<Ledger>) -> Self {
        let KeyedCall { caller, upstream, method, below, headers, body, left } = asked;
        let content_type = headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        let required = idempotency.mode == IdempotencyMode::Required;
        Self {
            ledger: Arc::clone(ledger),
            scope: KeyedRequest { caller, upstream, method, path: below, headers, key }.scope(),
            claim: KeyClaim {
                fingerprint: RequestFingerprint(fingerprint(method, below, content_type, body)),
                lease: left + SLACK,
                ttl: idempotency.ttl,
                upstream_honours_keys: idempotency.honoured,
            },
            owner,
            needs: RequiredStores { store: required, shared: required },
            stays: false,
            progress: Cell::new(ReservationState::Unasked),
            stored: RefCell::new(None),
        }
    }

    /// For a job: it is postponed if the store does not reply, and later continues its own reservation.
    #[must_use]
    pub(crate) const fn of_job(mut self) -> Self {
        self.needs.store = true;
        self.stays = true;
        self
    }

    /// For an operator who knows the earlier outcome and wants to repeat the request.
    #[must_use]
    pub(crate) const fn forced(mut self) -> Self {
        self.claim.upstream_honours_keys = true;
        self
    }

    /// Takes the stored response of the earlier call.
    pub(crate) fn stored(&self) -> Option<Response> {
        self.stored.borrow_mut().take()
    }

    /// Leaves the reservation to the job that continues this call under the same id.
    pub(crate) fn leave(&self) {
        self.progress.set(ReservationState::Over);
    }

    /// Returns the end of a job's reservation, to be written together with the job's own end. A dead letter releases its key, since the
    /// letter itself records the request and a deliberate replay must be possible. Other instances get it first: if the job is not settled
    /// then and runs again, it gets its own response.
    pub(crate) async fn close(&self, ending: &job::JobEnding) -> Option<FinishKey> {
        let response = match ending {
            job::JobEnding::Done(response) => Some(response.clone()),
            job::JobEnding::Dead(_) | job::JobEnding::Failed { .. } => {
                if let ReservationState::Ending(held, Reservation::Done) = self.progress.get() {
                    self.progress.set(ReservationState::Ending(held, Reservation::Released));
                }
                None
            }
            job::JobEnding::Wait { .. } | job::JobEnding::Release | job::JobEnding::Cancelled => return None,
        };
        let (held, end) = self.take_end(response)?;
        self.ledger.share_end(held, &end).await;
        held.own.map(|reservation| FinishKey { reservation, ..end })
    }

    /// Ends a reservation left by lost workers, when the job is given up on. If the request may be repeated with its key, the key becomes
    /// free.
    pub(crate) async fn give_up(&self, ending: &job::JobEnding, is_repeatable: bool) -> Option<FinishKey> {
        if self.ask().await != AskAnswer::Reserved {
            return None;
        }
        self.settle(if is_repeatable { Reservation::Released } else { Reservation::Unknown });
        self.close(ending).await
    }

    /// Writes the end of the reservation. The response may be passed on after this returns: if the store failed, the key stays reserved and
    /// then in doubt, so nothing is executed twice.
    pub(crate) async fn finish(&self, response: Option<Response>) {
        if let Some((held, end)) = self.take_end(response) {
            self.ledger.finish(held, end).await;
        }
    }

    fn take_end(&self, response: Option<Response>) -> Option<(HeldKey, FinishKey)> {
        let ReservationState::Ending(held, how) = self.progress.replace(ReservationState::Over) else { return None };
        Some((held, self.end(how, response.filter(|_| how == Reservation::Done))))
    }

    fn end(&self, how: Reservation, response: Option<Response>) -> FinishKey {
        let ending = match how {
            Reservation::Done => KeyEnding::Done,
            Reservation::Released => KeyEnding::Released,
            Reservation::Unknown => KeyEnding::Unknown,
        };
        FinishKey { scope: self.scope, reservation: 0, ending, response, ttl: self.claim.ttl, now: self.ledger.now() }
    }

    fn reserve_request(&self) -> ReserveKey {
        ReserveKey { scope: self.scope, claim: self.claim, owner: Some(self.owner), now: self.ledger.now() }
    }

    async fn ask(&self) -> AskAnswer {
        self.progress.set(ReservationState::Asking);
        let told = self.ledger.reserve(self.reserve_request(), self.owner, self.needs).await;
        self.progress.set(ReservationState::Over);
        match told {
            LedgerAnswer::Held(held) => {
                self.progress.set(ReservationState::Held(held));
                AskAnswer::Reserved
            }
            LedgerAnswer::Replay(stored) => match stored.filter(|response| !response.truncated) {
                Some(response) => {
                    *self.stored.borrow_mut() = Some(response);
                    AskAnswer::Replayed
                }
                None => AskAnswer::KeyRefused(Code::OutcomeUnknown),
            },
            LedgerAnswer::Refused(Kept::Mismatch) => AskAnswer::KeyRefused(Code::IdempotencyKeyMismatch),
            LedgerAnswer::Refused(Kept::InFlight { .. }) => AskAnswer::KeyRefused(Code::IdempotencyKeyInFlight),
            LedgerAnswer::Refused(Kept::Unknown | Kept::Replay | Kept::Proceed { .. }) => AskAnswer::KeyRefused(Code::OutcomeUnknown),
            LedgerAnswer::Nothing => AskAnswer::KeyRefused(Code::StoreUnavailable),
        }
    }
}

impl Keeper for KeyReservation {
    fn reserve(&self) -> Pin<Box<dyn Future<Output = AskAnswer> + '_>> {
        Box::pin(self.ask())
    }

    fn settle(&self, reservation: Reservation) {
        if let ReservationState::Held(held) = self.progress.get() {
            self.progress.set(ReservationState::Ending(held, reservation));
        }
    }
}

/// When a caller disconnects, its call is dropped; the state of its key is written all the same.
impl Drop for KeyReservation {
    fn drop(&mut self) {
        let (ledger, wish) = (Arc::clone(&self.ledger), self.reserve_request());
        match self.progress.get() {
            _ if self.stays => {}
            ReservationState::Unasked | ReservationState::Held(_) | ReservationState::Over => {}
            ReservationState::Ending(held, how) => {
                // The response is lost, so it cannot be replayed.
                let how = if how == Reservation::Done { Reservation::Unknown } else { how };
                let end = self.end(how, None);
                tokio::task::spawn_local(async move { ledger.finish(held, end).await });
            }
            ReservationState::Asking => {
                let (end, owner, needs) = (self.end(Reservation::Released, None), self.owner, self.needs);
                tokio::task::spawn_local(async move {
                    // A repeated reservation returns the number under which the key is ours, if it is.
                    if let LedgerAnswer::Held(held) = ledger.reserve(wish, owner, needs).await {
                        ledger.finish(held, end).await;
                    }
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_methods_that_are_not_idempotent_need_a_key() {
        let rule = |mode| Idempotency { mode, ttl: Nanos::from_secs(1), honoured: false };
        let (required, generate) = (rule(IdempotencyMode::Required), rule(IdempotencyMode::Generate));
        for (method, needs) in
            [(Method::POST, true), (Method::PATCH, true), (Method::GET, false), (Method::PUT, false), (Method::DELETE, false)]
        {
            assert_eq!(is_missing(&required, &method, false), needs, "{method}");
            assert_eq!(is_generated(&generate, &method, false), needs, "{method}");
            assert!(!is_missing(&required, &method, true) && !is_generated(&generate, &method, true));
            assert!(!is_missing(&generate, &method, false) && !is_generated(&required, &method, false));
        }
    }
}
