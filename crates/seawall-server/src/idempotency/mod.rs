//! Idempotency keys: which requests are the same, and where their reservations are written down.

mod identity;
mod ledger;
mod reservation;

pub(crate) use identity::{KeyedRequest, fingerprint};
pub(crate) use ledger::Ledger;
pub(crate) use reservation::{KEY, KeyReservation, KeyedCall, MAX_ANSWER, is_made, is_missing};
