//! The keys of an upstream, shared by instances: a key that cools anywhere is used nowhere. The local copy follows the last reply, and
//! leases keys while Redis does not reply.

use super::redis::{Arguments, RedisStore, Seed};
use super::script_arrays::{self, nanos, number, ticks};
use super::scripts;
use crate::clock::Clock;
use crate::record::EndpointNames;
use crate::upstream_state::UpstreamState;
use seawall_core::call::{AskAnswer, KeyReport, SettleAttempt};
use seawall_core::lease::{KeyLease, KeyPool, KeySet, RequestMark, Until};
use seawall_core::probing::{FIRST_GAP, MAX_DISPROVED};
use seawall_core::time::{Nanos, Now};
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct SharedKeys {
    store: Arc<RedisStore>,
    copy: Arc<UpstreamState>,
    key: String,
    /// Numbers of the policy: selection, pauses of dead keys, probe intervals of cooldowns, groups.
    policy: Vec<i64>,
    count: u16,
    seed: Seed,
}

impl SharedKeys {
    pub(super) fn new(store: &Arc<RedisStore>, names: &EndpointNames, copy: Arc<UpstreamState>) -> Self {
        let (policy, count) = copy.with_keys(|pool| (policy(pool), pool.len())).unwrap_or_default();
        // Instances with another secret under the same id use a separate pool.
        let secrets: String = copy.secrets().iter().map(|secret| format!(":{secret:x}")).collect();
        let key = format!("{{seawall:{}}}:keys:{}{secrets}", names.upstream, copy.fingerprint());
        Self { store: Arc::clone(store), copy, key, policy, count: u16::try_from(count).unwrap_or(0), seed: Seed::default() }
    }

    /// Leases a key that is viable on every instance.
    pub(crate) async fn lease(&self, tried: KeySet, request: RequestMark, clock: &Clock) -> AskAnswer {
        let tried_text: String = (0..self.count).map(|key| if tried.contains(key) { '1' } else { '0' }).collect();
        let Some(reply) =
            self.run(&scripts::LEASE, |arguments| arguments.text(tried_text).number(u64::from(request.number())), clock).await
        else {
            return self.copy.lease(tried, request, clock.now());
        };
        self.learn(reply.get(5..), number(&reply, 4), clock);
        match reply.first() {
            Some(0) => AskAnswer::Key(KeyLease { key: u16::try_from(number(&reply, 1)).unwrap_or(0), probe: number(&reply, 2) == 1 }),
            Some(1) => {
                let probed = self.copy.with_keys(|pool| pool.has_probes(clock.now(), tried)).unwrap_or(false);
                AskAnswer::Cooling { wait: nanos(number(&reply, 3)), probed }
            }
            _ => AskAnswer::Dead { wait: reply.get(3).and_then(|wait| u64::try_from(*wait).ok()).map(nanos) },
        }
    }

    pub(crate) async fn report(&self, settle: &SettleAttempt, clock: &Clock) {
        let Some((lease, report)) = settle.key else { return };
        let now = clock.now();
        let (what, detail) = match report {
            KeyReport::Neutral => return,
            // Keys are counted from one here; zero means none.
            KeyReport::Succeeded { instead_of } => (1, instead_of.map_or(0, |key| u64::from(key) + 1)),
            KeyReport::Failed => (2, 0),
            KeyReport::Answered => (11, 0),
            KeyReport::Refused { request } => (3, u64::from(request.number())),
            KeyReport::Unused => (4, 0),
            KeyReport::Cool { group: false, until } => (5, ticks(left(until, now))),
            KeyReport::Cool { group: true, until } => (6, ticks(left(until, now))),
            KeyReport::Throttle { group, until } => (9 + u64::from(group), ticks(until.since(now.mono))),
        };
        if !self.send_report([what, u64::from(lease.key), u64::from(lease.probe), detail], clock).await {
            self.copy.with_keys(|pool| settle.report_to_keys(pool, now.mono));
        }
    }

    /// Rests a key by hand, on every instance; only locally if Redis does not reply.
    pub(crate) async fn cool(&self, key: u16, until: Until, clock: &Clock) {
        if !self.send_report([7, u64::from(key), 0, ticks(left(until, clock.now()))], clock).await {
            self.copy.cool_key(key, until);
        }
    }

    /// Restores a key by hand, on every instance; only locally if Redis does not reply.
    pub(crate) async fn restore(&self, key: u16, clock: &Clock) {
        if !self.send_report([8, u64::from(key), 0, 0], clock).await {
            self.copy.restore_key(key);
        }
    }

    /// Refreshes the copy. Otherwise an instance that sends nothing would keep a rest that an operator has ended, and would offer it to an
    /// empty Redis after a restart.
    pub(crate) async fn refresh(&self, clock: &Clock) {
        self.send_report([0; 4], clock).await;
    }

    /// Sends a report and applies the reply. Returns whether Redis replied.
    async fn send_report(&self, numbers: [u64; 4], clock: &Clock) -> bool {
        let told = |arguments: Arguments| numbers.into_iter().fold(arguments, Arguments::number);
        let Some(reply) = self.run(&scripts::KEY_REPORT, told, clock).await else { return false };
        self.learn(reply.get(1..), number(&reply, 0), clock);
        true
    }

    async fn run(&self, script: &redis::Script, ask: impl FnOnce(Arguments) -> Arguments, clock: &Clock) -> Option<Vec<i64>> {
        let arguments = ask(Arguments::default().number(0).numbers(self.policy.iter().copied()));
        let seed = || {
            let (met, now) = (self.store.script_clock(clock), clock.now());
            let data = self.copy.with_keys(|pool| pool.export()).unwrap_or_default();
            // The script knows one clock, so the reset of a quota is converted to it.
            let mut data = data.on(|at| met.ticks(at), |span| span / script_arrays::TICK);
            for cooldown in data.keys.iter_mut().map(|key| &mut key.cooldown).chain(&mut data.groups) {
                let wall = cooldown.wall.take().map_or(0, |wall| ticks(left(Until::Wall(seawall_core::time::Wall(wall)), now)));
                cooldown.mono = cooldown.mono.max(if wall > 0 { met.ticks + wall } else { 0 });
            }
            script_arrays::of_pool(&data)
        };
        self.store.run_seeded(&self.seed, script, &[&self.key], arguments, seed).await
    }

    fn learn(&self, said: Option<&[i64]>, ticks: u64, clock: &Clock) {
        let met = self.store.script_clock_at(ticks, clock);
        self.copy.with_keys(|pool| {
            if let Some(data) = script_arrays::pool(said.unwrap_or_default(), pool.len()) {
                pool.import(&data.on(|at| met.mono(at), |span| nanos(span).0));
            }
        });
    }
}

fn policy(pool: &KeyPool) -> Vec<i64> {
    let [first, last, unproven] = [KeyPool::FIRST_PROBE, KeyPool::LAST_PROBE, KeyPool::UNPROVEN_PROBE].map(ticks);
    let [good, longest, gap] = [KeyPool::PROVEN_GOOD, MAX_DISPROVED, FIRST_GAP].map(ticks);
    let numbers = [script_arrays::of_pick(pool.pick()), first, last, unproven, good, longest, gap, pool.len() as u64].into_iter();
    numbers.chain(pool.groups().map(|group| group as u64)).map(script_arrays::signed).collect()
}

/// Returns the remaining time of a cooldown.
fn left(until: Until, now: Now) -> Nanos {
    match until {
        Until::Mono(at) => at.since(now.mono),
        Until::Wall(at) => at.since(now.wall),
    }
}
