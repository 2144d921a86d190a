//! A breaker shared by instances. The local copy follows the last reply, and decides while Redis does not reply.

use super::redis::{Arguments, RedisStore, Seed};
use super::script_arrays::{self, Meeting, nanos, number, ticks};
use super::scripts;
use crate::clock::Clock;
use crate::locked_cell::Locked;
use crate::pause_cell::PauseCell;
use crate::record::EndpointNames;
use seawall_core::call::{AskAnswer, SettleAttempt};
use seawall_core::guard::breaker::{WHILE_PROBING, ramp_pause};
use seawall_core::guard::{BreakerCell, BreakerSample, Forced, Permit, PhaseChange, PhaseData};
use seawall_core::policy::{self, BreakerPer};
use seawall_core::time::{Mono, Nanos};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// For this long a breaker known to be closed counts as closed. Another instance may open it in the meantime. A half-open breaker, where
/// every probe counts, is always asked.
const FRESH: Nanos = Nanos::from_millis(100);

/// First number in the reply of the permit script.
const GO: i64 = 0;
const REFUSED: i64 = 1;
const RAMP: i64 = 3;
const PAUSED: i64 = 4;
/// The provider's pause lasts, and this call is its probe.
const PROBE: i64 = 5;

/// The local cells that follow shared state.
#[derive(Debug)]
pub(crate) struct OwnCells {
    pub breaker: Arc<Locked<BreakerCell>>,
    /// The pauses of the endpoint and of its upstream.
    pub pauses: [Arc<PauseCell>; 2],
}

#[derive(Debug)]
pub(crate) struct RedisBreaker {
    store: Arc<RedisStore>,
    copy: Arc<Locked<BreakerCell>>,
    guard: policy::BreakerPolicy,
    key: String,
    /// Time, on our clock, at which the copy was last known to be closed.
    closed_at: AtomicU64,
    pause_keys: [String; 2],
    /// The local pauses of the endpoint and of its upstream.
    pauses: [Arc<PauseCell>; 2],
    seed: Seed,
}

impl RedisBreaker {
    pub(super) fn new(
        store: &Arc<RedisStore>,
        names: &EndpointNames,
        own: OwnCells,
        guard: policy::BreakerPolicy,
        pause_keys: [String; 2],
    ) -> Self {
        let OwnCells { breaker: copy, pauses } = own;
        let place = match guard.per {
            BreakerPer::Upstream => String::new(),
            BreakerPer::Endpoint => format!(":{}", names.endpoint),
        };
        let key = format!("{{seawall:{}}}:breaker{place}", names.upstream);
        Self { store: Arc::clone(store), copy, guard, key, closed_at: AtomicU64::new(0), pause_keys, pauses, seed: Seed::default() }
    }

    /// Returns a permit for one send of a call that the local pauses let through.
    pub(crate) async fn permit(&self, lease: Nanos, clock: &Clock) -> AskAnswer {
        let known = self.known();
        if let Some(generation) = known.filter(|_| self.is_fresh(clock.now().mono)) {
            return AskAnswer::Permitted(Permit { generation, probe: None });
        }
        let arguments =
            Arguments::default().number(0).number(ticks(lease)).signed(known.map_or(-1, i64::from)).number(ticks(WHILE_PROBING));
        let [endpoint, upstream] = &self.pause_keys;
        let Some(reply) = self.run(&scripts::PERMIT, &[&self.key, endpoint, upstream], arguments, clock).await else {
            // The local pauses let this call through; if one lasts, this call is its probe by the local schedule.
            return self.copy.lock().admit(&self.guard, lease, clock.now().mono).into();
        };
        let met = self.learn(&reply, number(&reply, 4), clock);
        let let_through = reply.first() == Some(&GO);
        if self.known().is_some() && let_through {
            // Reports do not renew this, because only permits carry news of pauses.
            self.closed_at.store(met.mono.0, Ordering::Relaxed);
        }
        match (reply.first(), number(&reply, 1)) {
            (Some(&(GO | PROBE)), _) => {
                if let_through {
                    self.pauses.iter().for_each(|pause| pause.follow_redis_end());
                }
                let generation = u32::try_from(number(&reply, 2)).unwrap_or(0);
                AskAnswer::Permitted(Permit { generation, probe: reply.get(3).and_then(|slot| u32::try_from(*slot).ok()) })
            }
            (Some(&REFUSED), wait) => AskAnswer::Open { retry_at: Some(met.mono + nanos(wait)) },
            (Some(&PAUSED), wait) => {
                let until = met.mono + nanos(wait);
                self.pauses[0].follow_redis(until, met.mono);
                AskAnswer::Paused { until, own: false }
            }
            (Some(&RAMP), _) => AskAnswer::Open { retry_at: Some(met.mono + ramp_pause(self.guard.ramp)) },
            (_, _) => AskAnswer::Open { retry_at: None },
        }
    }

    /// Reports the result of a send. Giving back a permit that is no probe needs no report.
    pub(super) async fn report(&self, settle: &SettleAttempt, clock: &Clock) -> Option<PhaseChange> {
        if settle.sample.is_none() && settle.cancel.is_none_or(|permit| permit.probe.is_none()) {
            return None;
        }
        let permit = |permit: Option<Permit>| {
            let probe = permit.and_then(|permit| permit.probe).map_or(-1, i64::from);
            [permit.map_or(-1, |permit| i64::from(permit.generation)), probe]
        };
        let sample = settle.sample.map_or(BreakerSample::success(Nanos::ZERO), |(_, sample)| sample);
        let arguments = Arguments::default()
            .number(0)
            .signed(self.known().map_or(-1, i64::from))
            .numbers(permit(settle.cancel))
            .numbers(permit(settle.sample.map(|(permit, _)| permit)))
            .number(script_arrays::of_failure(sample))
            .number(sample.latency.0 / script_arrays::TICK);
        let Some(reply) = self.run(&scripts::REPORT, &[&self.key], arguments, clock).await else {
            return settle.report_to_breaker(&mut self.copy.lock(), &self.guard, clock.now().mono);
        };
        self.change(&reply, clock)
    }

    /// Forces or releases the breaker on every instance; only the local one if Redis does not reply.
    pub(crate) async fn force(&self, forced: Forced, clock: &Clock) -> Option<PhaseChange> {
        let arguments = Arguments::default().number(0).number(script_arrays::of_forced(forced));
        let Some(reply) = self.run(&scripts::FORCE, &[&self.key], arguments, clock).await else {
            return self.copy.lock().force(forced, clock.now().mono);
        };
        self.change(&reply, clock).filter(|change| change.from != change.to)
    }

    /// Applies a script's reply and returns the change.
    fn change(&self, reply: &[i64], clock: &Clock) -> Option<PhaseChange> {
        let met = self.learn(reply, number(reply, 0), clock);
        let [_, from, to, cause, age, ..] = reply[..] else { return None };
        let (from, to, cause) = script_arrays::change(from, to, cause)?;
        let ago = nanos(u64::try_from(age).unwrap_or(0));
        Some(PhaseChange { from, to, cause, at: Mono(met.mono.0.saturating_sub(ago.0)) })
    }

    /// Returns the generation of the copy while it is closed, so that the script need not repeat it.
    fn known(&self) -> Option<u32> {
        self.copy.lock().closed_generation()
    }

    fn is_fresh(&self, now: Mono) -> bool {
        let closed_at = self.closed_at.load(Ordering::Relaxed);
        closed_at > 0 && now.since(Mono(closed_at)) < FRESH && self.store.is_up()
    }

    async fn run(&self, script: &redis::Script, keys: &[&str], arguments: Arguments, clock: &Clock) -> Option<Vec<i64>> {
        let arguments = script_arrays::of_guard(&self.guard, ticks).into_iter().fold(arguments, Arguments::number);
        let seed = || {
            let met = self.store.script_clock(clock);
            let data = self.copy.lock().export();
            let worth = data.generation > 0;
            let data = data.on(|at| met.ticks(at), |span| span / script_arrays::TICK);
            if worth { script_arrays::of_breaker(&data) } else { Vec::new() }
        };
        self.store.run_seeded(&self.seed, script, keys, arguments, seed).await
    }

    /// Applies the state in a script's reply; it is empty if the copy is current.
    fn learn(&self, reply: &[i64], ticks: u64, clock: &Clock) -> Meeting {
        let met = self.store.script_clock_at(ticks, clock);
        if let Some(data) = script_arrays::breaker(reply.get(5..).unwrap_or_default()) {
            if data.phase != PhaseData::Closed {
                self.closed_at.store(0, Ordering::Relaxed);
            }
            *self.copy.lock() = BreakerCell::import(&data.on(|at| met.mono(at), |span| nanos(span).0));
        }
        met
    }
}
