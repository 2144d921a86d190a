//! A provider's pause, shared by instances. Replies to breaker permits carry it along. The endpoint's own cell keeps the local copy, which
//! continues while Redis does not reply.

use super::redis::{Arguments, RedisStore};
use super::script_arrays::{number, ticks};
use super::scripts;
use crate::clock::Clock;
use crate::pause_cell::PauseCell;
use crate::record::EndpointNames;
use seawall_core::call::SettleAttempt;
use seawall_core::probing::{FIRST_GAP, MAX_DISPROVED};
use seawall_core::record::Scope;
use seawall_core::time::Mono;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct SharedPause {
    store: Arc<RedisStore>,
    upstream: String,
    endpoint: String,
    /// Local copies of the endpoint's and its upstream's pause.
    copies: [Arc<PauseCell>; 2],
}

impl SharedPause {
    pub(super) fn new(store: &Arc<RedisStore>, names: &EndpointNames, copies: [Arc<PauseCell>; 2]) -> Self {
        let upstream = format!("{{seawall:{}}}:paused", names.upstream);
        Self { store: Arc::clone(store), endpoint: format!("{upstream}:{}", names.endpoint), upstream, copies }
    }

    /// Returns the keys of the pauses that apply to this endpoint.
    pub(super) fn keys(&self) -> [String; 2] {
        [self.endpoint.clone(), self.upstream.clone()]
    }

    pub(super) async fn report(&self, settle: &SettleAttempt, clock: &Clock) {
        let now = clock.now().mono;
        // A pause of one caller's credential is not shared.
        if let Some((scope @ (Scope::Endpoint | Scope::Upstream), until)) = settle.pause {
            let (key, copy) = if scope == Scope::Upstream { (&self.upstream, 1) } else { (&self.endpoint, 0) };
            let arguments = Arguments::default().number(0).number(ticks(until.since(now))).number(ticks(FIRST_GAP));
            // While Redis is away, only this instance pauses.
            if let Some(reply) = self.store.run::<Vec<i64>>(&scripts::PAUSE, &[key], &arguments).await {
                let met = self.store.script_clock_at(number(&reply, 0), clock);
                if let disproved @ 1.. = number(&reply, 2) {
                    self.copies[copy].disprove(Mono(met.mono(disproved)));
                }
            }
        }
        let Some(sent_at) = settle.answer_sent_at(now) else { return };
        // Not `any`, which would stop early: both copies must be updated.
        let ended = self.copies.iter().filter(|copy| copy.answered(sent_at, now)).count();
        if ended > 0 {
            let arguments = Arguments::default().number(0).number(ticks(MAX_DISPROVED));
            self.run(&scripts::PAUSE_DISPROVED, &[&self.endpoint, &self.upstream], &arguments, clock).await;
        }
    }

    /// Ends the pause by hand, on every instance; the others see it within a second.
    pub(crate) async fn lift(&self, of_upstream: bool, clock: &Clock) {
        let key = if of_upstream { &self.upstream } else { &self.endpoint };
        self.run(&scripts::LIFT, &[key], &Arguments::default().number(0), clock).await;
    }

    async fn run(&self, script: &redis::Script, keys: &[&str], arguments: &Arguments, clock: &Clock) {
        if let Some(reply) = self.store.run::<Vec<i64>>(script, keys, arguments).await {
            self.store.script_clock_at(number(&reply, 0), clock);
        }
    }
}
