//! A pause that a provider asked for, told to every instance. It is heard together with the breaker, by whoever asks for leave
//! to send; ours is kept in the endpoint's own cell, and goes on when Redis does not answer.

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
    /// Our own copies, of the endpoint's pause and of its upstream's.
    copies: [Arc<PauseCell>; 2],
}

impl SharedPause {
    pub(super) fn new(store: &Arc<RedisStore>, names: &EndpointNames, copies: [Arc<PauseCell>; 2]) -> Self {
        let upstream = format!("{{seawall:{}}}:paused", names.upstream);
        Self { store: Arc::clone(store), endpoint: format!("{upstream}:{}", names.endpoint), upstream, copies }
    }

    /// Where the pauses are that this endpoint heeds.
    pub(super) fn keys(&self) -> [String; 2] {
        [self.endpoint.clone(), self.upstream.clone()]
    }

    pub(super) async fn report(&self, settle: &SettleAttempt, clock: &Clock) {
        let now = clock.now().mono;
        // A pause of one caller's credential is this instance's own.
        if let Some((scope @ (Scope::Endpoint | Scope::Upstream), until)) = settle.pause {
            let (key, copy) = if scope == Scope::Upstream { (&self.upstream, 1) } else { (&self.endpoint, 0) };
            let arguments = Arguments::default().number(0).number(ticks(until.since(now))).number(ticks(FIRST_GAP));
            // While Redis is away the pause is ours alone.
            if let Some(reply) = self.store.run::<Vec<i64>>(&scripts::PAUSE, &[key], &arguments).await {
                let met = self.store.met(number(&reply, 0), clock);
                if let disproved @ 1.. = number(&reply, 2) {
                    self.copies[copy].disprove(Mono(met.mono(disproved)));
                }
            }
        }
        let Some(sent_at) = settle.answer_sent_at(now) else { return };
        // Not `any`: both copies have to hear of it.
        let ended = self.copies.iter().filter(|copy| copy.answered(sent_at, now)).count();
        if ended > 0 {
            let arguments = Arguments::default().number(0).number(ticks(MAX_DISPROVED));
            self.run(&scripts::PAUSE_DISPROVED, &[&self.endpoint, &self.upstream], &arguments, clock).await;
        }
    }

    /// By hand: the pause is over, on every instance. The others hear of it within a second.
    pub(crate) async fn lift(&self, of_upstream: bool, clock: &Clock) {
        let key = if of_upstream { &self.upstream } else { &self.endpoint };
        self.run(&scripts::LIFT, &[key], &Arguments::default().number(0), clock).await;
    }

    async fn run(&self, script: &redis::Script, keys: &[&str], arguments: &Arguments, clock: &Clock) {
        if let Some(reply) = self.store.run::<Vec<i64>>(script, keys, arguments).await {
            self.store.met(number(&reply, 0), clock);
        }
    }
}
