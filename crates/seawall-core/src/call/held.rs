//! The resources that a call holds while it runs.

use super::{KeyReport, Reservation, SettleAttempt};
use crate::admit::line::LinePlace;
use crate::decide::RetryFunding;
use crate::guard::Permit;
use crate::lease::KeyLease;
use crate::time::Mono;

/// Resources that the call holds and must return, however it ends.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeldResources {
    pub(super) limits: bool,
    /// When the call took its slot of the pool. A place in the queue belongs to the driver, which has the ticket.
    pub(super) slot: Option<Mono>,
    pub(super) reservation: bool,
    pub(super) permit: Option<Permit>,
    pub(super) key: Option<KeyLease>,
    /// A place in the line of calls that wait for this upstream.
    pub(super) line: Option<LinePlace>,
    pub(super) funding: Option<RetryFunding>,
}

impl HeldResources {
    /// Adds to `settle` what is still held. A call that was never sent takes its units back from the limits.
    pub(super) fn give_back(self, settle: &mut SettleAttempt, never_sent: bool, reservation: Reservation) {
        settle.cancel = settle.cancel.or(self.permit);
        settle.refund = self.funding;
        settle.untake = self.limits && never_sent;
        settle.leave_pool = settle.leave_pool.or(self.slot);
        settle.leave_line = self.line;
        settle.reservation = self.reservation.then_some(reservation);
        if let (None, Some(lease)) = (settle.key, self.key) {
            settle.key = Some((lease, KeyReport::Unused));
        }
    }
}
