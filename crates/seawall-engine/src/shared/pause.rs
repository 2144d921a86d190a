//! A pause that a server asked for, told to every instance. It is heard together with the breaker, by whoever asks for leave
//! to send; ours is kept in the endpoint's own cell, and goes on when nobody answers.

use super::numbers::{number, ticks};
use super::redis::{Arguments, Store};
use super::scripts;
use crate::clock::Clock;
use crate::live::Names;
use seawall_core::call::Settle;
use seawall_core::record::Scope;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct SharedPause {
    store: Arc<Store>,
    upstream: String,
    endpoint: String,
}

impl SharedPause {
    pub(super) fn new(store: &Arc<Store>, names: &Names) -> Self {
        let upstream = format!("{{seawall:{}}}:pause", names.upstream);
        Self { store: Arc::clone(store), endpoint: format!("{upstream}:{}", names.endpoint), upstream }
    }

    /// Where the pauses are that this endpoint heeds.
    pub(super) fn keys(&self) -> [String; 2] {
        [self.endpoint.clone(), self.upstream.clone()]
    }

    pub(super) async fn report(&self, settle: &Settle, clock: &Clock) {
        let Some((scope, until)) = settle.pause else { return };
        let key = if scope == Scope::Upstream { &self.upstream } else { &self.endpoint };
        let arguments = Arguments::default().number(0).number(ticks(until.since(clock.now().mono)));
        // While Redis is away the pause is ours alone.
        if let Some(reply) = self.store.run::<Vec<i64>>(&scripts::PAUSE, &[key], &arguments).await {
            self.store.met(number(&reply, 0), clock);
        }
    }
}
