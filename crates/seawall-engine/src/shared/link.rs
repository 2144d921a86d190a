//! One endpoint's end of shared state: the questions of its calls, put to Redis, and what is done when nobody answers.

use super::breaker::SharedBreaker;
use super::keys::SharedKeys;
use super::limits::{Receipt, SharedLimits};
use super::redis::{Late, Store};
use crate::clock::Clock;
use crate::limits::Limits;
use crate::live::Names;
use crate::state::{Locked, UpstreamState};
use seawall_core::call::Settle;
use seawall_core::config::Policy;
use seawall_core::guard::{Breaker, Change};
use std::sync::Arc;

#[derive(Debug)]
pub struct Link {
    store: Arc<Store>,
    pub(crate) limits: SharedLimits,
    /// Those that count by credential.
    pub(crate) key_limits: SharedLimits,
    pub(crate) breaker: SharedBreaker,
    pub(crate) keys: SharedKeys,
}

impl Link {
    pub(crate) fn new(
        store: &Arc<Store>,
        names: &Arc<Names>,
        policy: &Policy,
        breaker: Arc<Locked<Breaker>>,
        upstream: Arc<UpstreamState>,
        (limits, key_limits): (&Limits, &Limits),
    ) -> Self {
        Self {
            store: Arc::clone(store),
            limits: SharedLimits::new(store, names, limits, policy.cost),
            key_limits: SharedLimits::new(store, names, key_limits, policy.cost),
            breaker: SharedBreaker::new(store, names, breaker, policy.breaker),
            keys: SharedKeys::new(store, names, upstream),
        }
    }

    /// Tells shared state what an attempt did; what nobody there hears, our own copies do.
    pub(crate) async fn report(&self, settle: &Settle, receipt: Option<&Receipt>, clock: &Clock) -> Option<Change> {
        let (change, (), ()) =
            tokio::join!(self.breaker.report(settle, clock), self.keys.report(settle, clock), self.limits.settle(settle, receipt, clock),);
        change
    }

    /// The same for a caller who is gone: nobody waits for it.
    pub(crate) fn report_late(self: &Arc<Self>, settle: &Settle, receipt: Option<Receipt>) {
        self.store.report_late(Late { link: Arc::clone(self), settle: *settle, receipt });
    }
}
