//! Single cases of common retry semantics that no story covers: lengths of waits, ends of calls, and counts.

use super::{GET, START, asked, parts, seen};
use seawall_core::call::{Action, Ask, Call, CallPlan, CallRequest, EndpointCells, Outcome};
use seawall_core::classify::ObservedResult;
use seawall_core::classify::retry_after::retry_after;
use seawall_core::decide::CallProgress;
use seawall_core::policy::{Backoff, BackoffKind, Share};
use seawall_core::record::{AttemptStatus, Code, Decision, ErrorKind, Reason};
use seawall_core::rng::Rng;
use seawall_core::time::{Mono, Nanos, Now};
use std::sync::Arc;

const API: &str = "[upstreams.api]\nurl = \"https://api.test\"\n";

fn secs(seconds: u64) -> Nanos {
    Nanos::from_secs(seconds)
}

/// Begins a call and sends it once; the answer is its first result.
fn first(
    plan: &Arc<CallPlan>,
    cells: &mut EndpointCells,
    request: &CallRequest<'_>,
    seen: &ObservedResult<'_>,
    now: Now,
    rng: &mut Rng,
) -> (Call, Action) {
    let (mut call, action) = Call::begin(Arc::clone(plan), request, now);
    let action = asked(&mut call, action, cells, now);
    assert!(matches!(action, Action::Send { .. }), "{action:?}");
    let action = call.responded(seen, now, rng);
    let action = asked(&mut call, action, cells, now);
    (call, action)
}

#[test]
fn three_thousand_waits_in_a_row_stay_above_nothing_and_below_the_cap() {
    let cap = secs(30);
    for &kind in BackoffKind::ALL {
        let policy = Backoff { kind, base: secs(2), factor: 2.0, cap, jitter: Share::percent(25) };
        let (mut rng, mut previous) = (Rng::seeded(9), Nanos::ZERO);
        for n in 0..3_000 {
            previous = policy.draw(n, previous, &mut rng);
            assert!(previous > Nanos::ZERO && previous <= cap, "{kind} {n}: {previous}");
        }
    }
}

#[test]
fn a_date_one_day_ahead_is_a_day() {
    // START is 2026-07-01T00:00:00Z; dates get a second for clocks that differ.
    let headers = [("Retry-After", "Thu, 02 Jul 2026 00:00:00 GMT")];
    let wait = retry_after(&headers, START.wall).unwrap();
    assert!(wait >= secs(86_400) && wait <= secs(86_401), "{wait}");
    assert_eq!(retry_after(&[("retry-after", "10")], START.wall), Some(secs(10)));
}

#[test]
fn a_hint_beyond_the_deadline_ends_a_call_now_and_schedules_a_job() {
    let (mut cells, plan) = parts(&format!("{API}timeout.total = \"30s\""));
    let headers = [("Retry-After", "60")];
    let result = ObservedResult { headers: &headers, ..seen(503) };
    let mut rng = Rng::seeded(1);
    let (_, action) = first(&plan, &mut cells, &GET, &result, START, &mut rng);
    assert!(matches!(action, Action::Finish(finish) if finish.reason == Reason::DeadlineExceeded), "{action:?}");
    let (_, action) = first(&plan, &mut cells, &CallRequest { patient: true, ..GET }, &result, START, &mut rng);
    assert_eq!(action, Action::Wait { until: START.mono + secs(60), reason: Reason::ServerHint });
}

#[test]
fn ten_thousand_waits_are_never_shorter_than_the_hint() {
    let headers = [("Retry-After", "5")];
    for &kind in BackoffKind::ALL {
        let (fresh, plan) = parts(&format!("{API}retry = {{ backoff = \"{kind}\", base = \"4s\", cap = \"20s\" }}"));
        let mut rng = Rng::seeded(7);
        for _ in 0..2_000 {
            let (_, action) = first(&plan, &mut fresh.clone(), &GET, &ObservedResult { headers: &headers, ..seen(429) }, START, &mut rng);
            let Action::Wait { until, .. } = action else { panic!("{action:?}") };
            assert!(until.since(START.mono) >= secs(5), "{kind}: {}", until.since(START.mono));
        }
    }
}

#[test]
fn a_job_lives_for_as_long_as_it_was_given_and_no_longer() {
    // A lifetime of 24 hours and at most 17 retries.
    let (mut cells, plan) = parts(&format!("{API}retry = {{ attempts = 18, backoff = \"exponential\", base = \"1s\", cap = \"30m\" }}"));
    let mut rng = Rng::seeded(1);
    let mut decided = |age_h: u64, attempts: u32| {
        let request = CallRequest { patient: true, deadline: Some(secs(24 * 3600) - secs(age_h * 3600)), ..GET };
        let progress = CallProgress { attempts, waits: attempts, ..CallProgress::default() };
        let (mut call, action) = Call::resume(Arc::clone(&plan), &request, progress, START);
        let action = asked(&mut call, action, &mut cells, START);
        if let Action::Finish(finish) = action {
            return finish.reason;
        }
        let _: Action = call.responded(&seen(429), START, &mut rng);
        let action = call.answered(seawall_core::call::AskAnswer::Settled { funding: None }, START);
        assert_eq!(matches!(action, Action::Wait { .. }), call.take_record().unwrap().decision == Decision::Retry);
        if let Action::Finish(finish) = action { finish.reason } else { Reason::TransientFailure }
    };
    assert_eq!(decided(23, 5), Reason::TransientFailure, "goes on");
    assert_eq!(decided(25, 5), Reason::DeadlineExceeded);
    assert_eq!(decided(23, 17), Reason::AttemptsExhausted);
}

#[test]
fn who_leaves_before_anything_was_asked_has_nothing_to_give_back() {
    let (_, plan) = parts(&format!("{API}limits = [{{ name = \"qps\", rate = \"1/s\" }}]"));
    let (mut call, action) = Call::begin(plan, &GET, START);
    assert!(matches!(action, Action::Ask(Ask::Limits)), "{action:?}");
    assert!(call.cancelled().is_nothing());
    assert_eq!(call.progress().attempts, 0);
}

#[test]
fn a_retry_that_is_never_sent_gives_its_token_back() {
    let (mut cells, plan) = parts(&format!("{API}retry = {{ budget = \"100%\", budget_floor = \"0/s\" }}\nbreaker.max_wait = \"0s\""));
    let mut rng = Rng::seeded(1);
    let none = seawall_core::policy::Rate::ZERO;
    let _ = first(&plan, &mut cells, &GET, &seen(200), START, &mut rng);
    assert_eq!(cells.budget.tokens(none, START.mono), 1.0);
    let (mut call, action) = first(&plan, &mut cells, &GET, &seen(503), START, &mut rng);
    assert!(matches!(action, Action::Wait { .. }), "{action:?}");
    assert_eq!(cells.budget.tokens(none, START.mono), 0.0, "taken when it is decided, not after the wait");
    let (_, denied) = first(&plan, &mut cells, &GET, &seen(503), START, &mut rng);
    assert!(matches!(denied, Action::Finish(finish) if finish.reason == Reason::BudgetExhausted && finish.elapsed == Nanos::ZERO));
    let settle = call.cancelled();
    let _: seawall_core::call::CellAnswer = cells.settle(&settle, START);
    assert_eq!(cells.budget.tokens(none, START.mono), 1.0);
}

#[test]
fn a_late_failure_while_open_neither_opens_again_nor_longer() {
    let (mut cells, plan) = parts(&format!(
        "{API}retry.attempts = 1\nbreaker = {{ consecutive = 1, open = \"5s\", probes = 1, successes = 1, max_wait = \"0s\" }}"
    ));
    let mut rng = Rng::seeded(1);
    let (mut late, action) = Call::begin(Arc::clone(&plan), &GET, START);
    assert!(matches!(asked(&mut late, action, &mut cells, START), Action::Send { .. }));
    let _ = first(&plan, &mut cells, &GET, &seen(500), START, &mut rng);
    let later = START.after(secs(3));
    let Action::Ask(settle) = late.responded(&seen(500), later, &mut rng) else { panic!("a result is reported") };
    assert_eq!(cells.answer(settle, later).change, None);
    let (mut refused, action) = Call::begin(plan, &GET, later);
    let Action::Finish(finish) = asked(&mut refused, action, &mut cells, later) else { panic!("it is open") };
    assert_eq!((finish.outcome, finish.retry_after), (Outcome::Refused(Code::CircuitOpen), Some(secs(2))));
}

#[test]
fn our_own_refusals_are_no_samples() {
    let text = format!(
        "[pools.p]\nconcurrent = 1\n{API}pool = \"p\"\nlimits = [{{ name = \"qps\", rate = \"1/s\", burst = 2 }}]\nbreaker.consecutive = 1"
    );
    let (mut cells, plan) = parts(&text);
    let (mut inside, action) = Call::begin(Arc::clone(&plan), &GET, START);
    assert!(matches!(asked(&mut inside, action, &mut cells, START), Action::Send { .. }));
    let mut refused = |code| {
        let (mut call, action) = Call::begin(Arc::clone(&plan), &GET, START);
        let action = asked(&mut call, action, &mut cells, START);
        assert!(matches!(action, Action::Finish(finish) if finish.outcome == Outcome::Refused(code)), "{action:?}");
        assert!(call.take_record().is_none_or(|record| record.status == AttemptStatus::CircuitOpen));
        assert_eq!(cells.breaker.counts(START.mono).calls, 0);
    };
    refused(Code::Overloaded);
    // The call that the pool refused returned its cost to the limit.
    refused(Code::Overloaded);
}

#[test]
fn a_timeout_of_ours_is_a_failure_and_a_caller_who_leaves_is_nothing() {
    let (mut cells, plan) = parts(&format!("{API}retry.attempts = 1\nbreaker.consecutive = 0"));
    let mut rng = Rng::seeded(1);
    let timeout = ObservedResult { result: Err(ErrorKind::Timeout), ..seen(0) };
    let _ = first(&plan, &mut cells, &GET, &timeout, START, &mut rng);
    assert_eq!(cells.breaker.counts(START.mono).failed, 1);
    let (mut leaving, action) = Call::begin(plan, &GET, START);
    assert!(matches!(asked(&mut leaving, action, &mut cells, START), Action::Send { .. }));
    let settle = leaving.cancelled();
    assert_eq!(cells.settle(&settle, START).change, None);
    assert_eq!(cells.breaker.counts(START.mono).calls, 1);
}

#[test]
fn the_time_in_line_comes_out_of_the_deadline() {
    let text = format!(
        "[pools.p]\nconcurrent = 1\nqueue = 1\nqueue_timeout = \"8s\"\n{API}pool = \"p\"\ntimeout = {{ attempt = \"10s\", total = \"10s\" }}"
    );
    let (mut cells, plan) = parts(&text);
    let (mut inside, action) = Call::begin(Arc::clone(&plan), &GET, START);
    assert!(matches!(asked(&mut inside, action, &mut cells, START), Action::Send { .. }));
    let (mut waiting, action) = Call::begin(plan, &GET, START);
    let action = asked(&mut waiting, action, &mut cells, START);
    assert_eq!(action, Action::Wait { until: Mono(0) + secs(8), reason: Reason::Queued });
    let later = START.after(secs(7));
    let action = waiting.granted(later);
    let Action::Send { timeout, .. } = asked(&mut waiting, action, &mut cells, later) else { panic!("it has a slot") };
    assert!(timeout < secs(3) && timeout > Nanos::from_millis(2_900), "{timeout}");
}
