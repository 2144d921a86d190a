//! The circuit breaker of one upstream or endpoint: counts results, and stops sending while the upstream fails. Policy and time are
//! arguments of every call, so one cell survives a reload and a simulator can drive it.

use super::phase::{BreakerPhase, Probes};
use super::window::{BucketCounts, SlidingWindow};
use crate::policy::{self, Mode, Share};
use crate::time::{Mono, Nanos};
use crate::words::words;

/// The share that the ramp begins with.
const RAMP_START: Share = Share::percent(10);

words! {
    pub enum State { Closed = "closed", HalfOpen = "half-open", Open = "open" }
}

words! {
    /// The reason for a change of state.
    pub enum Cause {
        FailureRate = "failure-rate",
        SlowRate = "slow-rate",
        Consecutive = "consecutive",
        OpenElapsed = "open-elapsed",
        ProbeFailed = "probe-failed",
        ProbesSucceeded = "probes-succeeded",
        Forced = "forced",
    }
}

words! {
    /// An operator's override of the breaker.
    pub enum Forced { Open = "open", Closed = "closed", Auto = "auto" }
}

/// A result as the breaker counts it. Our own refusals, cancellations and a caller's bad body are never samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerSample {
    pub failed: bool,
    /// The same call has failed before. A call is one piece of evidence, so that only its first failure counts.
    pub repeated: bool,
    pub latency: Nanos,
}

impl BreakerSample {
    #[must_use]
    pub const fn success(latency: Nanos) -> Self {
        Self { failed: false, repeated: false, latency }
    }

    /// The first failure of a call.
    #[must_use]
    pub const fn failure(latency: Nanos) -> Self {
        Self { failed: true, repeated: false, latency }
    }
}

/// While all probes are in flight, a refused call may ask again after this time: a result is due any moment.
pub const WHILE_PROBING: Nanos = Nanos::from_secs(1);

/// Permission to send once. It belongs to one generation: a result from another generation changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    pub generation: u32,
    /// The probe's slot, if this permit is for a probe.
    pub probe: Option<u32>,
}

impl Permit {
    #[must_use]
    pub const fn is_probe(self) -> bool {
        self.probe.is_some()
    }
}

#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    Go(Permit),
    /// `None`: an operator holds it open, with no known end.
    Refused {
        retry_at: Option<Mono>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseChange {
    pub from: State,
    pub to: State,
    pub cause: Cause,
    /// When the change took effect: the end of an open time is noticed later than it happens.
    pub at: Mono,
}

/// ```text
///          rate, slow rate or failures in a row
///   Closed ───────────────────────────────────► Open ◄──────────────┐
///     ▲ ▲                                        │ open time over   │ a probe failed:
///     │ └─ Ramping (share grows to the whole)    ▼                  │ open again, twice as long
///     │        ▲                              HalfOpen ─────────────┘
///     │        └──── enough probes succeeded ────┘
///     └── auto ── ForcedOpen, ForcedClosed  (entered and left only by hand)
/// ```
#[derive(Clone, Debug)]
pub struct BreakerCell {
    pub(super) phase: BreakerPhase,
    pub(super) generation: u32,
    pub(super) consecutive: u32,
    /// A shadow breaker that would be open: it reports the crossing once.
    pub(super) crossed: bool,
    pub(super) window: SlidingWindow,
    /// Finished open times; the running one is added on reading.
    pub(super) opened_for: Nanos,
}

impl Default for BreakerCell {
    fn default() -> Self {
        Self::new()
    }
}

impl BreakerCell {
    #[must_use]
    pub fn new() -> Self {
        Self {
            phase: BreakerPhase::Closed,
            generation: 0,
            consecutive: 0,
            crossed: false,
            window: SlidingWindow::default(),
            opened_for: Nanos::ZERO,
        }
    }

    /// Fills the window that ends now with successes, as after a long calm at this rate.
    pub fn prime(&mut self, policy: &policy::BreakerPolicy, per_second: f64, now: Mono) {
        self.window.fill(policy.window, per_second, now);
    }

    /// Asks to send once. A probe's slot is free again after `lease`. An attempt ends before that, so only a probe that is never reported
    /// outlives it: its process died, or never received the permit.
    #[inline]
    pub fn admit(&mut self, policy: &policy::BreakerPolicy, lease: Nanos, now: Mono) -> Admission {
        if matches!(self.phase, BreakerPhase::Closed) {
            return Admission::Go(Permit { generation: self.generation, probe: None });
        }
        self.admit_guarded(policy, lease, now)
    }

    #[cold]
    fn admit_guarded(&mut self, policy: &policy::BreakerPolicy, lease: Nanos, now: Mono) -> Admission {
        if policy.mode != Mode::Enforce && self.forced() != Forced::Open {
            self.disarm(policy.mode);
            return Admission::Go(Permit { generation: self.generation, probe: None });
        }
        while self.settle(policy, now).is_some() {}
        let generation = self.generation;
        match &mut self.phase {
            BreakerPhase::Closed | BreakerPhase::ForcedClosed => Admission::Go(Permit { generation, probe: None }),
            BreakerPhase::Ramping { since, credit } => {
                let passed = now.since(*since);
                if passed >= policy.ramp {
                    self.phase = BreakerPhase::Closed;
                    return Admission::Go(Permit { generation, probe: None });
                }
                if ramp_admits(credit, passed, policy.ramp) {
                    Admission::Go(Permit { generation, probe: None })
                } else {
                    Admission::Refused { retry_at: Some(now + ramp_pause(policy.ramp)) }
                }
            }
            BreakerPhase::Open { until, .. } => Admission::Refused { retry_at: Some(*until) },
            BreakerPhase::HalfOpen { probes, .. } => match probes.lease(now + lease, now) {
                Some(slot) => Admission::Go(Permit { generation, probe: Some(slot) }),
                None => Admission::Refused { retry_at: probes.first_expiry().map(|expiry| expiry.min(now + WHILE_PROBING)) },
            },
            BreakerPhase::ForcedOpen { .. } => Admission::Refused { retry_at: None },
        }
    }

    /// Records the result of a permit and returns the change that it caused.
    #[inline]
    pub fn record(&mut self, policy: &policy::BreakerPolicy, permit: Permit, sample: BreakerSample, now: Mono) -> Option<PhaseChange> {
        if policy.mode == Mode::Off {
            return None;
        }
        let slow = policy.slow > Nanos::ZERO && sample.latency >= policy.slow;
        if matches!(self.phase, BreakerPhase::Closed | BreakerPhase::Ramping { .. }) {
            if permit.generation != self.generation {
                return None;
            }
            if sample.failed && sample.repeated {
                return None;
            }
            self.consecutive = if sample.failed { self.consecutive.saturating_add(1) } else { 0 };
            let counts = self.window.record(policy.window, sample.failed, slow, now);
            if counts.failed | counts.slow == 0 {
                self.crossed = false;
                return None;
            }
            return self.judge(policy, counts, now);
        }
        self.record_guarded(policy, permit, sample.failed || slow, now)
    }

    /// Whether the counts cross a threshold; exactly one change per crossing, also in shadow. A separate function, so that the healthy path
    /// does not pay for its registers.
    #[inline(never)]
    fn judge(&mut self, policy: &policy::BreakerPolicy, counts: BucketCounts, now: Mono) -> Option<PhaseChange> {
        let Some(cause) = trip(policy, counts, self.consecutive) else {
            self.crossed = false;
            return None;
        };
        let change = PhaseChange { from: State::Closed, to: State::Open, cause, at: now };
        if policy.mode == Mode::Enforce {
            self.open(policy.open, now);
            return Some(change);
        }
        (!std::mem::replace(&mut self.crossed, true)).then_some(change)
    }

    #[cold]
    fn record_guarded(&mut self, policy: &policy::BreakerPolicy, permit: Permit, unhealthy: bool, now: Mono) -> Option<PhaseChange> {
        // Time first: if the open time has ended, results from before it belong to an old generation.
        if let Some(change) = self.settle(policy, now) {
            return Some(change);
        }
        if permit.generation != self.generation {
            return None;
        }
        let BreakerPhase::HalfOpen { probes, successes, length } = &mut self.phase else { return None };
        let slot = permit.probe?;
        probes.release(slot);
        if unhealthy {
            let length = doubled(policy, *length);
            self.open(length, now);
            return Some(PhaseChange { from: State::HalfOpen, to: State::Open, cause: Cause::ProbeFailed, at: now });
        }
        *successes = successes.saturating_add(1);
        if *successes < policy.successes {
            return None;
        }
        self.close();
        if policy.ramp > Nanos::ZERO {
            self.phase = BreakerPhase::Ramping { since: now, credit: Share::WHOLE.0 };
        }
        Some(PhaseChange { from: State::HalfOpen, to: State::Closed, cause: Cause::ProbesSucceeded, at: now })
    }

    /// Applies the passage of time: open times end without any traffic. [`admit`](Self::admit) settles too; call this first to learn of the
    /// change.
    #[inline]
    pub fn settle(&mut self, policy: &policy::BreakerPolicy, now: Mono) -> Option<PhaseChange> {
        match &self.phase {
            BreakerPhase::Closed
            | BreakerPhase::Ramping { .. }
            | BreakerPhase::HalfOpen { .. }
            | BreakerPhase::ForcedOpen { .. }
            | BreakerPhase::ForcedClosed => None,
            BreakerPhase::Open { since, until, length } => {
                if now < *until {
                    return None;
                }
                let (until, length) = (*until, *length);
                self.opened_for = self.opened_for + until.since(*since);
                let probes = Probes::new(policy.probes);
                self.enter(BreakerPhase::HalfOpen { probes, successes: 0, length });
                Some(PhaseChange { from: State::Open, to: State::HalfOpen, cause: Cause::OpenElapsed, at: until })
            }
        }
    }

    /// The permit was not used, or its caller left: the slot is free again and nothing is counted.
    pub fn cancel(&mut self, permit: Permit) {
        if permit.generation != self.generation {
            return;
        }
        if let (BreakerPhase::HalfOpen { probes, .. }, Some(slot)) = (&mut self.phase, permit.probe) {
            probes.release(slot);
        }
    }

    /// The state as of `now`, with expired open times applied.
    #[must_use]
    pub fn state(&self, policy: &policy::BreakerPolicy, now: Mono) -> State {
        match &self.phase {
            BreakerPhase::ForcedOpen { .. } => State::Open,
            _ if policy.mode != Mode::Enforce => State::Closed,
            phase => phase.state(now),
        }
    }

    /// When an open breaker admits again; `None` unless it is open for a known time.
    #[must_use]
    pub fn retry_at(&self, policy: &policy::BreakerPolicy, now: Mono) -> Option<Mono> {
        let until = match &self.phase {
            BreakerPhase::Open { until, .. } => *until,
            BreakerPhase::Closed
            | BreakerPhase::Ramping { .. }
            | BreakerPhase::HalfOpen { .. }
            | BreakerPhase::ForcedOpen { .. }
            | BreakerPhase::ForcedClosed => return None,
        };
        (policy.mode == Mode::Enforce && now < until).then_some(until)
    }

    /// All the time spent open until `now`, half-open not included: the source of "circuit-open minutes".
    #[must_use]
    pub fn open_time(&self, now: Mono) -> Nanos {
        let running = match self.phase {
            BreakerPhase::Open { since, until, .. } => now.min(until).since(since),
            BreakerPhase::ForcedOpen { since } => now.since(since),
            BreakerPhase::Closed | BreakerPhase::Ramping { .. } | BreakerPhase::HalfOpen { .. } | BreakerPhase::ForcedClosed => Nanos::ZERO,
        };
        self.opened_for + running
    }

    /// The generation of a breaker that is closed and lets everything through.
    #[must_use]
    pub const fn closed_generation(&self) -> Option<u32> {
        if matches!(self.phase, BreakerPhase::Closed) { Some(self.generation) } else { None }
    }

    /// The window's counts at `now`.
    #[must_use]
    pub fn counts(&self, now: Mono) -> BucketCounts {
        self.window.counts(now)
    }

    /// Holds the breaker open or closed until the next call of this; `Auto` releases it, closed and with fresh counts.
    pub fn force(&mut self, forced: Forced, now: Mono) -> Option<PhaseChange> {
        let from = self.phase.state(now);
        self.opened_for = self.open_time(now);
        self.close();
        match forced {
            Forced::Open => self.phase = BreakerPhase::ForcedOpen { since: now },
            Forced::Closed => self.phase = BreakerPhase::ForcedClosed,
            Forced::Auto => {}
        }
        let to = self.phase.state(now);
        (from != to).then_some(PhaseChange { from, to, cause: Cause::Forced, at: now })
    }

    #[must_use]
    pub const fn forced(&self) -> Forced {
        match self.phase {
            BreakerPhase::ForcedOpen { .. } => Forced::Open,
            BreakerPhase::ForcedClosed => Forced::Closed,
            BreakerPhase::Closed | BreakerPhase::Ramping { .. } | BreakerPhase::Open { .. } | BreakerPhase::HalfOpen { .. } => Forced::Auto,
        }
    }

    /// A policy in shadow mode closes an open breaker. With the mode off, the breaker is not consulted at all.
    fn disarm(&mut self, mode: Mode) {
        if mode == Mode::Shadow && self.forced() == Forced::Auto {
            self.close();
        }
    }

    fn open(&mut self, length: Nanos, since: Mono) {
        self.enter(BreakerPhase::Open { since, until: since + length, length });
    }

    fn close(&mut self) {
        self.consecutive = 0;
        self.crossed = false;
        self.window.clear();
        self.enter(BreakerPhase::Closed);
    }

    fn enter(&mut self, phase: BreakerPhase) {
        self.phase = phase;
        self.generation = self.generation.wrapping_add(1);
    }
}

fn doubled(policy: &policy::BreakerPolicy, length: Nanos) -> Nanos {
    length.times(2).min(policy.open_max.max(policy.open))
}

#[inline]
fn trip(policy: &policy::BreakerPolicy, counts: BucketCounts, consecutive: u32) -> Option<Cause> {
    if policy.consecutive > 0 && consecutive >= policy.consecutive {
        return Some(Cause::Consecutive);
    }
    if counts.calls < policy.min_calls {
        return None;
    }
    let whole = u64::from(counts.calls);
    if counts.failed > 0 && policy.failure_rate.is_reached_by(u64::from(counts.failed), whole) {
        return Some(Cause::FailureRate);
    }
    (counts.slow > 0 && policy.slow_rate.is_reached_by(u64::from(counts.slow), whole)).then_some(Cause::SlowRate)
}

/// Adds the share of this moment to the credit and pays one admission from it: evenly, without randomness.
fn ramp_admits(credit: &mut u32, passed: Nanos, ramp: Nanos) -> bool {
    let grown = u128::from(passed.0) * u128::from(Share::WHOLE.0 - RAMP_START.0) / u128::from(ramp.0.max(1));
    let share = RAMP_START.0.saturating_add(u32::try_from(grown).unwrap_or(Share::WHOLE.0));
    *credit = credit.saturating_add(share);
    if *credit < Share::WHOLE.0 {
        return false;
    }
    *credit -= Share::WHOLE.0;
    true
}

/// The `retry_at` distance for a call that the ramp refuses: long enough not to be a busy loop, short against the ramp.
#[must_use]
pub fn ramp_pause(ramp: Nanos) -> Nanos {
    Nanos((ramp.0 / 32).clamp(1_000_000, 1_000_000_000))
}
