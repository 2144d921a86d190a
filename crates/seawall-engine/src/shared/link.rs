//! The connection of one endpoint to shared state: its calls' questions to Redis, and the fallback if Redis does not reply.

use super::breaker::{OwnCells, RedisBreaker};
use super::keys::SharedKeys;
use super::limits::{Receipt, SharedLimits};
use super::pause::SharedPause;
use super::redis::{Late, RedisStore};
use crate::clock::Clock;
use crate::limits::EndpointLimits;
use crate::record::EndpointNames;
use crate::upstream_state::UpstreamState;
use seawall_core::call::{KeyReport, SettleAttempt};
use seawall_core::config::EndpointPolicy;
use seawall_core::guard::PhaseChange;
use std::sync::Arc;

#[derive(Debug)]
pub struct Link {
    store: Arc<RedisStore>,
    pub limits: SharedLimits,
    /// Limits per credential.
    pub(crate) key_limits: SharedLimits,
    pub(crate) breaker: RedisBreaker,
    pub(crate) keys: SharedKeys,
    pub(crate) pause: SharedPause,
}

/// Receipts of an attempt for shared limits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Receipts {
    pub call: Option<Receipt>,
    /// Receipt for the limits per credential.
    pub key: Option<Receipt>,
}

impl Link {
    pub(crate) fn new(
        store: &Arc<RedisStore>,
        names: &Arc<EndpointNames>,
        policy: &EndpointPolicy,
        own: OwnCells,
        upstream: Arc<UpstreamState>,
        (limits, key_limits): (&EndpointLimits, &EndpointLimits),
    ) -> Self {
        let pause = SharedPause::new(store, names, own.pauses.clone());
        Self {
            store: Arc::clone(store),
            limits: SharedLimits::new(store, names, limits, policy.cost),
            key_limits: SharedLimits::new(store, names, key_limits, policy.cost),
            breaker: RedisBreaker::new(store, names, own, policy.breaker, pause.keys()),
            keys: SharedKeys::new(store, names, upstream),
            pause,
        }
    }

    /// Reports an attempt to shared state; local copies apply what Redis does not get.
    pub(crate) async fn report(&self, settle: &SettleAttempt, receipts: &Receipts, clock: &Clock) -> Option<PhaseChange> {
        let unused = matches!(settle.key, Some((_, KeyReport::Unused)));
        let key_limits = async {
            if let Some(receipt) = receipts.key.as_ref().filter(|_| unused) {
                self.key_limits.refund(receipt).await;
            }
        };
        let (change, (), (), (), ()) = tokio::join!(
            self.breaker.report(settle, clock),
            self.keys.report(settle, clock),
            self.limits.settle(settle, receipts.call.as_ref()),
            self.pause.report(settle, clock),
            key_limits,
        );
        change
    }

    /// Does the same for a caller that has gone, in the background.
    pub(crate) fn report_late(self: &Arc<Self>, settle: &SettleAttempt, receipts: Receipts) {
        self.store.report_late(Late { link: Arc::clone(self), settle: *settle, receipts });
    }
}
