//! The breaker under every order of events.

use proptest::prelude::*;
use seawall_core::guard::{Admission, BreakerCell, BreakerSample, Forced, Permit, State};
use seawall_core::policy::{self, BreakerPer, Mode, Share};
use seawall_core::time::{Mono, Nanos};

#[derive(Clone, Debug)]
enum Step {
    Pause(u64),
    Admit,
    /// Reports the oldest or the newest permit that is out.
    Report {
        newest: bool,
        failed: bool,
    },
    Cancel,
    Force(Forced),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..3_000u64).prop_map(Step::Pause),
        6 => Just(Step::Admit),
        5 => any::<(bool, bool)>().prop_map(|(newest, failed)| Step::Report { newest, failed }),
        1 => Just(Step::Cancel),
        1 => prop::sample::select(Forced::ALL).prop_map(Step::Force),
    ]
}

fn policy() -> impl Strategy<Value = policy::BreakerPolicy> {
    (1..4u32, 1..4u32, 0..4u32, prop::sample::select(Mode::ALL), 0..5u64).prop_map(|(probes, successes, consecutive, mode, ramp)| {
        policy::BreakerPolicy {
            mode,
            per: BreakerPer::Upstream,
            window: Nanos::from_secs(10),
            failure_rate: Share::percent(50),
            min_calls: 4,
            consecutive,
            slow: Nanos::ZERO,
            slow_rate: Share::WHOLE,
            open: Nanos::from_secs(2),
            open_max: Nanos::from_secs(9),
            probes,
            successes,
            ramp: Nanos::from_secs(ramp),
            max_wait: Nanos::ZERO,
        }
    })
}

const LEASE: Nanos = Nanos::from_secs(4);

/// A breaker with the permits that are out, and what must hold after every step.
struct World {
    policy: policy::BreakerPolicy,
    breaker: BreakerCell,
    out: Vec<Permit>,
    now: Mono,
}

impl World {
    fn run(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let state = self.breaker.state(&self.policy, self.now);
        match *step {
            Step::Pause(ms) => self.now = self.now + Nanos::from_millis(ms),
            Step::Admit => self.admit(state)?,
            Step::Report { newest, failed } => self.report(newest, failed)?,
            Step::Cancel => {
                if let Some(permit) = self.out.pop() {
                    let _ = self.breaker.settle(&self.policy, self.now);
                    self.breaker.cancel(permit);
                }
            }
            Step::Force(forced) => {
                self.breaker.force(forced, self.now);
            }
        }
        Ok(())
    }

    fn admit(&mut self, state: State) -> Result<(), TestCaseError> {
        match self.breaker.admit(&self.policy, LEASE, self.now) {
            Admission::Go(permit) => {
                prop_assert_eq!(permit.is_probe(), state == State::HalfOpen);
                prop_assert_ne!(state, State::Open);
                self.out.push(permit);
            }
            Admission::Refused { retry_at } => {
                prop_assert!(self.policy.mode == Mode::Enforce || self.breaker.forced() == Forced::Open);
                prop_assert!(retry_at.is_none_or(|at| at > self.now));
            }
        }
        prop_assert_eq!(self.breaker.state(&self.policy, self.now), state, "asking does not change the state");
        Ok(())
    }

    fn report(&mut self, newest: bool, failed: bool) -> Result<(), TestCaseError> {
        if self.out.is_empty() {
            return Ok(());
        }
        let permit = self.out.remove(if newest { self.out.len() - 1 } else { 0 });
        let before = self.breaker.state(&self.policy, self.now);
        while self.breaker.settle(&self.policy, self.now).is_some() {}
        let change = self.breaker.record(&self.policy, permit, BreakerSample { failed, repeated: false, latency: Nanos::ZERO }, self.now);
        let after = self.breaker.state(&self.policy, self.now);
        match change {
            Some(change) if self.policy.mode == Mode::Enforce => prop_assert_eq!((change.from, change.to), (before, after)),
            Some(_) | None => prop_assert_eq!(before, after),
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn every_change_is_told_and_open_never_admits(policy in policy(), steps in prop::collection::vec(step(), 1..200)) {
        let mut world = World { policy, breaker: BreakerCell::new(), out: Vec::new(), now: Mono(0) };
        for step in &steps {
            world.run(step)?;
        }
    }

    #[test]
    fn half_open_never_has_more_than_its_probes_out(
        probes in 1..5u32,
        events in prop::collection::vec((0..1_000u64, 0..3u8), 1..100),
    ) {
        let policy = policy::BreakerPolicy {
            mode: Mode::Enforce, per: BreakerPer::Upstream, window: Nanos::from_secs(10), failure_rate: Share::percent(50),
            min_calls: 1, consecutive: 1, slow: Nanos::ZERO, slow_rate: Share::WHOLE, open: Nanos::from_secs(1),
            open_max: Nanos::from_secs(1), probes, successes: u32::MAX, ramp: Nanos::ZERO, max_wait: Nanos::ZERO,
        };
        let mut breaker = BreakerCell::new();
        let Admission::Go(first) = breaker.admit(&policy, LEASE, Mono(0)) else { panic!("a new breaker refuses") };
        breaker.record(&policy, first, BreakerSample::failure(Nanos::ZERO), Mono(0));
        let mut now = Mono(0) + policy.open;
        let mut out: Vec<(Permit, Mono)> = Vec::new();
        for (pause, event) in events {
            now = now + Nanos::from_millis(pause);
            // A probe that outlives its lease is no longer out: it has reopened the breaker.
            let expired = out.iter().any(|(_, at)| now >= *at + LEASE);
            if expired {
                out.clear();
            }
            match event {
                0 => if let Admission::Go(permit) = breaker.admit(&policy, LEASE, now) { out.push((permit, now)) },
                1 => if let Some((permit, _)) = out.pop() { breaker.cancel(permit) },
                _ => if let Some((permit, _)) = out.pop() {
                    prop_assert_eq!(breaker.record(&policy, permit, BreakerSample::success(Nanos::ZERO), now), None);
                },
            }
            prop_assert!(out.len() <= probes as usize);
        }
    }

    #[test]
    fn an_open_breaker_asks_again_exactly_when_it_said(at in 0..u64::MAX / 2, open_ns in 1..100_000_000_000u64) {
        let policy = policy::BreakerPolicy {
            mode: Mode::Enforce, per: BreakerPer::Upstream, window: Nanos::from_secs(10), failure_rate: Share::percent(50),
            min_calls: 1, consecutive: 1, slow: Nanos::ZERO, slow_rate: Share::WHOLE, open: Nanos(open_ns),
            open_max: Nanos(open_ns), probes: 1, successes: 1, ramp: Nanos::ZERO, max_wait: Nanos::ZERO,
        };
        let mut breaker = BreakerCell::new();
        let Admission::Go(first) = breaker.admit(&policy, LEASE, Mono(at)) else { panic!("a new breaker refuses") };
        breaker.record(&policy, first, BreakerSample::failure(Nanos::ZERO), Mono(at));
        let Admission::Refused { retry_at: Some(retry_at) } = breaker.admit(&policy, LEASE, Mono(at)) else { panic!("not open") };
        prop_assert_eq!(breaker.clone().admit(&policy, LEASE, Mono(retry_at.0 - 1)), Admission::Refused { retry_at: Some(retry_at) });
        prop_assert!(matches!(breaker.admit(&policy, LEASE, retry_at), Admission::Go(_)), "still refused");
    }
}
