//! The breaker's behaviour, one sentence each.

use super::{Admission, BreakerCell, BreakerSample, Cause, Forced, Permit, PhaseChange, State};
use crate::policy::{self, BreakerPer, Mode, Share};
use crate::time::{Mono, Nanos};

const LEASE: Nanos = Nanos::from_secs(1);

fn policy() -> policy::BreakerPolicy {
    policy::BreakerPolicy {
        mode: Mode::Enforce,
        per: BreakerPer::Upstream,
        window: Nanos::from_secs(10),
        failure_rate: Share::percent(50),
        min_calls: 6,
        consecutive: 0,
        slow: Nanos::ZERO,
        slow_rate: Share::WHOLE,
        open: Nanos::from_secs(5),
        open_max: Nanos::from_secs(20),
        probes: 1,
        successes: 1,
        ramp: Nanos::ZERO,
        max_wait: Nanos::ZERO,
    }
}

fn secs(seconds: u64) -> Mono {
    Mono(0) + Nanos::from_secs(seconds)
}

const OK: BreakerSample = BreakerSample::success(Nanos::ZERO);
const FAILED: BreakerSample = BreakerSample::failure(Nanos::ZERO);

fn permit(breaker: &mut BreakerCell, policy: &policy::BreakerPolicy, now: Mono) -> Permit {
    match breaker.admit(policy, LEASE, now) {
        Admission::Go(permit) => permit,
        Admission::Refused { retry_at } => panic!("refused until {retry_at:?}"),
    }
}

fn run(breaker: &mut BreakerCell, policy: &policy::BreakerPolicy, sample: BreakerSample, now: Mono) -> Option<PhaseChange> {
    let permit = permit(breaker, policy, now);
    breaker.record(policy, permit, sample, now)
}

/// Open since zero, by failures in a row.
fn tripped(policy: &policy::BreakerPolicy) -> BreakerCell {
    let mut breaker = BreakerCell::new();
    let quick = policy::BreakerPolicy { consecutive: 1, ..*policy };
    assert!(run(&mut breaker, &quick, FAILED, Mono(0)).is_some());
    breaker
}

#[test]
fn trips_at_exactly_the_rate_once_there_are_enough_calls() {
    let policy = policy::BreakerPolicy { failure_rate: Share::percent(10), min_calls: 10, ..policy() };
    for (calls, failures, opens) in [(10, 0, false), (10, 1, true), (10, 2, true), (11, 2, true), (9, 1, false)] {
        let mut breaker = BreakerCell::new();
        let permits: Vec<Permit> = (0..calls).map(|_| permit(&mut breaker, &policy, Mono(0))).collect();
        for (n, permit) in permits.into_iter().enumerate() {
            breaker.record(&policy, permit, BreakerSample { failed: n < failures, ..OK }, Mono(0));
        }
        assert_eq!(breaker.state(&policy, Mono(0)) == State::Open, opens, "{failures} of {calls}");
    }
}

#[test]
fn every_result_is_judged_also_one_a_second() {
    let policy = policy();
    let mut breaker = BreakerCell::new();
    for (second, sample) in [OK, OK, OK, FAILED, FAILED].into_iter().enumerate() {
        assert_eq!(run(&mut breaker, &policy, sample, secs(second as u64)), None);
    }
    let change = run(&mut breaker, &policy, FAILED, secs(5)).unwrap();
    assert_eq!((change.from, change.to, change.cause), (State::Closed, State::Open, Cause::FailureRate));
}

#[test]
fn failures_in_a_row_trip_whatever_the_rate() {
    let policy = policy::BreakerPolicy { consecutive: 3, min_calls: 1_000, ..policy() };
    let mut breaker = BreakerCell::new();
    for sample in [FAILED, FAILED, OK, FAILED, FAILED] {
        assert_eq!(run(&mut breaker, &policy, sample, Mono(0)), None);
    }
    assert_eq!(run(&mut breaker, &policy, FAILED, Mono(0)).unwrap().cause, Cause::Consecutive);
}

#[test]
fn a_call_is_one_failure_whatever_its_retries_do() {
    let policy = policy::BreakerPolicy { consecutive: 3, ..policy() };
    let mut breaker = BreakerCell::new();
    let again = BreakerSample { repeated: true, ..FAILED };
    for sample in [OK, OK, OK, FAILED, again, again, again, again, FAILED, again] {
        assert_eq!(run(&mut breaker, &policy, sample, Mono(0)), None, "two of five calls have failed");
    }
    assert_eq!(run(&mut breaker, &policy, FAILED, Mono(0)).unwrap().cause, Cause::Consecutive);
}

#[test]
fn a_result_exactly_at_the_slow_threshold_is_slow() {
    let policy = policy::BreakerPolicy { slow: Nanos(100), slow_rate: Share::percent(50), min_calls: 2, ..policy() };
    let mut breaker = BreakerCell::new();
    assert_eq!(run(&mut breaker, &policy, BreakerSample::success(Nanos(99)), Mono(0)), None);
    let change = run(&mut breaker, &policy, BreakerSample::success(Nanos(100)), Mono(0)).unwrap();
    assert_eq!(change.cause, Cause::SlowRate);
}

#[test]
fn open_ends_at_its_last_nanosecond_and_not_before() {
    let policy = policy();
    let mut breaker = tripped(&policy);
    let almost = Mono(4_999_999_999);
    assert_eq!(breaker.admit(&policy, LEASE, almost), Admission::Refused { retry_at: Some(secs(5)) });
    assert_eq!(breaker.retry_at(&policy, almost), Some(secs(5)));
    assert_eq!(breaker.state(&policy, secs(5)), State::HalfOpen);
    assert!(permit(&mut breaker, &policy, secs(5)).is_probe());
}

#[test]
fn half_open_lets_exactly_its_probes_through() {
    for probes in [1, 2] {
        let policy = policy::BreakerPolicy { probes, successes: 10, ..policy() };
        let mut breaker = tripped(&policy);
        let admitted = (0..100).filter(|_| matches!(breaker.admit(&policy, LEASE, secs(5)), Admission::Go(_))).count();
        assert_eq!(admitted, probes as usize);
        assert_eq!(breaker.state(&policy, secs(5)), State::HalfOpen);
    }
}

#[test]
fn enough_probe_successes_close_and_one_failure_reopens() {
    let policy = policy::BreakerPolicy { successes: 3, ..policy() };
    let mut breaker = tripped(&policy);
    assert_eq!(run(&mut breaker, &policy, OK, secs(5)), None);
    assert_eq!(run(&mut breaker, &policy, OK, secs(5)), None);
    let change = run(&mut breaker, &policy, OK, secs(5)).unwrap();
    assert_eq!((change.from, change.to, change.cause), (State::HalfOpen, State::Closed, Cause::ProbesSucceeded));

    let mut breaker = tripped(&policy);
    assert_eq!(run(&mut breaker, &policy, OK, secs(5)), None);
    let change = run(&mut breaker, &policy, FAILED, secs(5)).unwrap();
    assert_eq!((change.to, change.cause), (State::Open, Cause::ProbeFailed));
}

#[test]
fn a_slow_probe_is_no_success() {
    let policy = policy::BreakerPolicy { slow: Nanos(100), ..policy() };
    let mut breaker = tripped(&policy);
    let change = run(&mut breaker, &policy, BreakerSample::success(Nanos(100)), secs(5)).unwrap();
    assert_eq!(change.cause, Cause::ProbeFailed);
}

#[test]
fn a_cancelled_probe_gives_its_slot_back_and_counts_as_nothing() {
    let policy = policy();
    let mut breaker = tripped(&policy);
    let probe = permit(&mut breaker, &policy, secs(5));
    assert_eq!(breaker.admit(&policy, LEASE, secs(5)), Admission::Refused { retry_at: Some(secs(6)) });
    breaker.cancel(probe);
    assert_eq!(breaker.state(&policy, secs(5)), State::HalfOpen);
    assert!(permit(&mut breaker, &policy, secs(5)).is_probe());
}

#[test]
fn a_probe_that_nobody_reports_on_frees_its_slot_and_counts_as_nothing() {
    let policy = policy();
    let mut breaker = tripped(&policy);
    let lost = permit(&mut breaker, &policy, secs(5));
    assert_eq!(breaker.admit(&policy, LEASE, Mono(5_999_999_999)), Admission::Refused { retry_at: Some(secs(6)) });
    assert_eq!((breaker.state(&policy, secs(60)), breaker.retry_at(&policy, secs(60))), (State::HalfOpen, None));
    let probe = permit(&mut breaker, &policy, secs(6));
    assert!(probe.is_probe() && probe == lost);
    assert_eq!(breaker.settle(&policy, secs(60)), None);
}

#[test]
fn time_alone_is_told_once() {
    let policy = policy();
    let mut breaker = tripped(&policy);
    assert_eq!(breaker.settle(&policy, secs(4)), None);
    assert_eq!(breaker.settle(&policy, secs(5)).unwrap().cause, Cause::OpenElapsed);
    assert_eq!(breaker.settle(&policy, secs(60)), None);
}

#[test]
fn failed_probes_double_the_open_time_up_to_its_maximum_and_closing_resets_it() {
    let policy = policy();
    let mut breaker = tripped(&policy);
    let mut now = Mono(0);
    for seconds in [5, 10, 20, 20] {
        let until = breaker.retry_at(&policy, now).unwrap();
        assert_eq!(until.since(now), Nanos::from_secs(seconds));
        now = until;
        run(&mut breaker, &policy, FAILED, now);
    }
    now = breaker.retry_at(&policy, now).unwrap();
    run(&mut breaker, &policy, OK, now);
    let quick = policy::BreakerPolicy { consecutive: 1, ..policy };
    run(&mut breaker, &quick, FAILED, now);
    assert_eq!(breaker.retry_at(&policy, now).unwrap().since(now), policy.open);
}

#[test]
fn a_result_of_another_generation_changes_nothing() {
    let policy = policy();
    let mut breaker = BreakerCell::new();
    let old = permit(&mut breaker, &policy, Mono(0));
    let quick = policy::BreakerPolicy { consecutive: 1, ..policy };
    run(&mut breaker, &quick, FAILED, Mono(0));
    assert_eq!(breaker.record(&quick, old, FAILED, secs(1)), None, "a late failure opens nothing twice");
    assert_eq!(breaker.retry_at(&policy, secs(1)), Some(secs(5)), "and extends nothing");
    run(&mut breaker, &policy, OK, secs(5));
    assert_eq!(breaker.record(&quick, old, FAILED, secs(6)), None);
    assert_eq!(breaker.counts(secs(6)).calls, 0);
    breaker.cancel(old);
}

#[test]
fn refusals_are_not_samples() {
    let policy = policy();
    let mut breaker = tripped(&policy);
    let counts = breaker.counts(secs(1));
    for _ in 0..10 {
        assert!(matches!(breaker.admit(&policy, LEASE, secs(1)), Admission::Refused { .. }));
    }
    assert_eq!(breaker.counts(secs(1)), counts);
}

#[test]
fn forced_open_stays_open_whatever_time_and_results_say() {
    let policy = policy();
    let mut breaker = BreakerCell::new();
    let running = permit(&mut breaker, &policy, Mono(0));
    let change = breaker.force(Forced::Open, Mono(0)).unwrap();
    assert_eq!((change.to, change.cause), (State::Open, Cause::Forced));
    assert_eq!(breaker.record(&policy, running, OK, secs(1)), None);
    assert_eq!(breaker.admit(&policy, LEASE, secs(6)), Admission::Refused { retry_at: None });
    assert_eq!(breaker.open_time(secs(6)), Nanos::from_secs(6));
    breaker.force(Forced::Auto, secs(7));
    assert_eq!(breaker.state(&policy, secs(7)), State::Closed);
    assert_eq!(breaker.counts(secs(7)).calls, 0);
    assert_eq!(breaker.open_time(secs(9)), Nanos::from_secs(7));
}

#[test]
fn forced_closed_admits_and_never_trips() {
    let policy = policy::BreakerPolicy { consecutive: 1, ..policy() };
    let mut breaker = tripped(&policy);
    breaker.force(Forced::Closed, secs(1));
    for _ in 0..10 {
        assert_eq!(run(&mut breaker, &policy, FAILED, secs(1)), None);
    }
    assert_eq!(breaker.state(&policy, secs(1)), State::Closed);
}

#[test]
fn off_admits_everything_and_records_nothing() {
    let policy = policy::BreakerPolicy { mode: Mode::Off, consecutive: 1, ..policy() };
    let mut breaker = BreakerCell::new();
    for _ in 0..10 {
        assert_eq!(run(&mut breaker, &policy, FAILED, Mono(0)), None);
    }
    assert_eq!(breaker.counts(Mono(0)).calls, 0);
}

#[test]
fn shadow_reports_each_crossing_once_and_never_refuses() {
    let policy = policy::BreakerPolicy { mode: Mode::Shadow, consecutive: 3, min_calls: 1_000, ..policy() };
    let mut breaker = BreakerCell::new();
    let mut changes = Vec::new();
    for sample in [FAILED; 6].into_iter().chain([OK]).chain([FAILED; 4]) {
        changes.extend(run(&mut breaker, &policy, sample, Mono(0)));
    }
    assert_eq!(changes.len(), 2);
    assert_eq!(breaker.counts(Mono(0)).calls, 11);
    assert_eq!(breaker.state(&policy, Mono(0)), State::Closed);
}

#[test]
fn a_policy_that_stops_enforcing_lets_an_open_breaker_go() {
    let enforcing = policy();
    let mut breaker = tripped(&enforcing);
    let shadow = policy::BreakerPolicy { mode: Mode::Shadow, ..enforcing };
    assert_eq!(breaker.state(&shadow, secs(1)), State::Closed);
    permit(&mut breaker, &shadow, secs(1));
    permit(&mut breaker, &enforcing, secs(1));
}

#[test]
fn the_admitted_share_grows_over_the_ramp() {
    let policy = policy::BreakerPolicy { ramp: Nanos::from_secs(10), ..policy() };
    let mut breaker = tripped(&policy);
    run(&mut breaker, &policy, OK, secs(5));
    let mut admitted = |second: u64| {
        let now = secs(5 + second);
        (0..100).filter(|_| matches!(breaker.admit(&policy, LEASE, now), Admission::Go(_))).count()
    };
    assert_eq!([0, 5, 9, 10].map(&mut admitted), [11, 55, 91, 100]);
}

#[test]
fn a_refusal_in_the_ramp_says_to_come_back_soon() {
    let policy = policy::BreakerPolicy { ramp: Nanos::from_secs(10), ..policy() };
    let mut breaker = tripped(&policy);
    run(&mut breaker, &policy, OK, secs(5));
    permit(&mut breaker, &policy, secs(5));
    let Admission::Refused { retry_at: Some(at) } = breaker.admit(&policy, LEASE, secs(5)) else { panic!("the ramp admits all") };
    assert!(at > secs(5) && at < secs(6));
}

#[test]
fn open_time_adds_up_without_the_half_open_times() {
    let policy = policy();
    let mut breaker = tripped(&policy);
    assert_eq!(breaker.open_time(secs(3)), Nanos::from_secs(3));
    assert_eq!(breaker.open_time(secs(30)), Nanos::from_secs(5));
    run(&mut breaker, &policy, FAILED, secs(30));
    assert_eq!(breaker.open_time(secs(34)), Nanos::from_secs(9));
}

#[test]
fn the_end_of_time_does_not_overflow() {
    let policy = policy::BreakerPolicy { consecutive: 1, ..policy() };
    let mut breaker = BreakerCell::new();
    let now = Mono(u64::MAX - 5_000_000_000 + 10_000_000);
    run(&mut breaker, &policy, FAILED, now);
    assert_eq!(breaker.retry_at(&policy, now), Some(Mono::MAX));
}
