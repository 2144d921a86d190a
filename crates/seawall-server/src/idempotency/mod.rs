//! Idempotency keys: the identity of requests, and the storage of reservations.

mod identity;
mod ledger;
mod reservation;

pub(crate) use identity::{KeyedRequest, fingerprint};
pub(crate) use ledger::Ledger;
pub(crate) use reservation::{KEY, KeyReservation, KeyedCall, MAX_ANSWER, is_generated, is_missing};
