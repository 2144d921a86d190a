//! Properties of the whole call machine: for every policy, every script of results and every moment at which a caller leaves.

mod driver;
mod given;
mod vectors;

use driver::{Ended, World};
use given::{Fate, Job, Knobs, fates, jobs, knobs};
use proptest::prelude::*;
use seawall_core::call::{Action, Ask, AskAnswer, Call, CallPlan, CallRequest, EndpointCells, Outcome};
use seawall_core::classify::ObservedResult;
use seawall_core::config::{self, Config};
use seawall_core::decide::CallProgress;
use seawall_core::guard::{Admission, State};
use seawall_core::lease::RequestMark;
use seawall_core::policy::Rate;
use seawall_core::record::{Decision, ErrorKind, Reason};
use seawall_core::rng::Rng;
use seawall_core::time::{Mono, Nanos, Now, Wall};
use std::sync::Arc;

fn config(text: &str) -> Config {
    config::load("call.toml", text.as_bytes()).unwrap_or_else(|invalid| panic!("{invalid}"))
}

fn played(knobs: &Knobs, jobs: &[Job], fates: &[Fate], seed: u64) -> World {
    let mut world = World::new(&config(&knobs.toml()), fates, seed);
    world.play(jobs);
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// The driver asserts the properties of single steps; this test asserts those of whole calls.
    #[test]
    fn every_call_ends_within_its_attempts_and_its_deadline(knobs in knobs(), jobs in jobs(), fates in fates(), seed in any::<u64>()) {
        let world = played(&knobs, &jobs, &fates, seed);
        for (job, ended) in jobs.iter().zip(&world.ended) {
            let Some(Ended { sends, elapsed, finish }) = ended else { panic!("a call never ended:\n{}", world.trace) };
            prop_assert!(*sends <= knobs.attempts, "{sends} sends\n{}", world.trace);
            let total = if job.patient { Nanos::MAX } else { Nanos::from_millis(knobs.total_ms) };
            let total = job.deadline_ms.map_or(total, |own| total.min(Nanos::from_millis(own)));
            prop_assert!(*elapsed <= total, "took {elapsed} of {total}\n{}", world.trace);
            if let Some(finish) = finish {
                prop_assert!(finish.elapsed <= total);
                prop_assert_eq!(finish.attempts, *sends);
                let told_to_come_back = matches!(finish.outcome, Outcome::Refused(_)) && finish.retry_after.is_some();
                prop_assert!(!(job.patient && told_to_come_back), "a job waits by itself\n{}", world.trace);
            }
        }
    }

    #[test]
    fn whatever_a_call_held_is_given_back(knobs in knobs(), jobs in jobs(), fates in fates(), seed in any::<u64>()) {
        let mut world = played(&knobs, &jobs, &fates, seed);
        if let Some(pool) = &world.cells.pool {
            prop_assert_eq!((pool.running(), pool.waiting()), (0, 0), "{}", world.trace);
        }
        let breaker = world.policy.breaker;
        if world.cells.breaker.state(&breaker, world.now.mono) == State::HalfOpen {
            for _ in 0..breaker.probes {
                let admission = world.cells.breaker.admit(&breaker, Nanos::from_secs(1), world.now.mono);
                prop_assert!(matches!(admission, Admission::Go(_)), "a probe's slot is lost\n{}", world.trace);
            }
        }
        if knobs.floor == 0 {
            let earned = world.successes as f64 * world.policy.retry.budget.as_f64();
            let left = world.cells.budget.tokens(Rate::ZERO, world.now.mono);
            prop_assert!((earned - world.retries as f64 - left).abs() < 1e-6, "{earned} earned, {left} left\n{}", world.trace);
        }
    }

    #[test]
    fn retries_are_paid_for_by_successes_and_the_floor(knobs in knobs(), jobs in jobs(), fates in fates(), seed in any::<u64>()) {
        let world = played(&knobs, &jobs, &fates, seed);
        // The floor starts with one second's worth.
        let floor = f64::from(knobs.floor) * (world.now.mono.0 as f64 / 1e9 + 1.0);
        let earned = world.successes as f64 * world.policy.retry.budget.as_f64();
        prop_assert!(world.retries as f64 <= earned + floor + 1e-6, "{}", world.trace);
    }

    #[test]
    fn the_same_seed_tells_the_same_story(knobs in knobs(), jobs in jobs(), fates in fates(), seed in any::<u64>()) {
        prop_assert_eq!(played(&knobs, &jobs, &fates, seed).trace, played(&knobs, &jobs, &fates, seed).trace);
    }
}

const GET: CallRequest<'static> =
    CallRequest { method: "GET", mark: RequestMark::NONE, keyed: false, at_cost: false, replayable: true, deadline: None, patient: false };
const START: Now = Now { mono: Mono(0), wall: Wall(1_782_864_000_000) };

/// Replies to questions until the machine wants something else.
fn asked(call: &mut Call, mut action: Action, cells: &mut EndpointCells, now: Now) -> Action {
    while let Action::Ask(ask) = action {
        action = call.answered(cells.answer(ask, now).answer, now);
    }
    action
}

fn parts(text: &str) -> (EndpointCells, Arc<CallPlan>) {
    let config = config(text);
    let upstream = &config.upstreams[0];
    let endpoint = &upstream.endpoints[0];
    (EndpointCells::new(&config, upstream, &endpoint.policy), Arc::new(CallPlan::new(&config, upstream, endpoint)))
}

fn seen(result: u16) -> ObservedResult<'static> {
    ObservedResult { method: "GET", result: Ok(result), headers: &(), body: b"", latency: Nanos::from_millis(1) }
}

#[test]
fn a_result_from_before_the_breaker_opened_counts_nowhere() {
    let (mut cells, plan) = parts(
        "[upstreams.api]\nurl = \"https://api.test\"\nretry.attempts = 1\nbreaker = { consecutive = 1, open = \"5s\", probes = 1, successes = 1 }",
    );
    let mut rng = Rng::seeded(1);
    let begin = |cells: &mut EndpointCells, now| {
        let (mut call, action) = Call::begin(Arc::clone(&plan), &GET, now);
        let action = asked(&mut call, action, cells, now);
        assert!(matches!(action, Action::Send { .. }), "{action:?}");
        call
    };
    let mut finish = |call: &mut Call, cells: &mut EndpointCells, status, now| {
        let action = call.responded(&seen(status), now, &mut rng);
        let _: Action = asked(call, action, cells, now);
    };
    let mut old = begin(&mut cells, START);
    let mut failing = begin(&mut cells, START);
    finish(&mut failing, &mut cells, 500, START);
    let later = START.after(Nanos::from_secs(5));
    let mut probe = begin(&mut cells, later);
    finish(&mut probe, &mut cells, 200, later);
    finish(&mut old, &mut cells, 500, later);
    begin(&mut cells, later);
}

#[test]
fn a_job_that_was_put_aside_counts_the_sends_it_had() {
    // No question comes before the first send, so the machine begins by sending.
    let (_, plan) = parts("[upstreams.api]\nurl = \"https://api.test\"\nretry.attempts = 2\nbreaker.mode = \"off\"");
    let plan = Arc::new(CallPlan { guarded: false, ..(*plan).clone() });
    let progress = CallProgress { attempts: 1, ..CallProgress::default() };
    let (mut call, action) = Call::resume(plan, &CallRequest { patient: true, ..GET }, progress, START);
    assert!(matches!(action, Action::Send { number: 2, .. }), "{action:?}");
    let _: Action = call.responded(&seen(503), START, &mut Rng::seeded(1));
    assert_eq!(call.progress().attempts, 2);
}

#[test]
fn a_key_is_in_doubt_as_soon_as_one_of_its_sends_is() {
    use seawall_core::call::Reservation;
    use seawall_core::record::ErrorKind;
    let text = "[upstreams.api]\nurl = \"https://api.test\"\nretry = { attempts = 2, unsafe = \"with-key\" }";
    let scripts: [(&[Result<u16, ErrorKind>], Reservation); 8] = [
        (&[Ok(200)], Reservation::Done),
        (&[Ok(503), Ok(503)], Reservation::Released),
        (&[Ok(504), Ok(504)], Reservation::Done),
        (&[Ok(404)], Reservation::Done),
        (&[Err(ErrorKind::Timeout), Ok(503)], Reservation::Unknown),
        (&[Err(ErrorKind::Connect), Err(ErrorKind::Connect)], Reservation::Released),
        (&[Err(ErrorKind::Timeout), Err(ErrorKind::Connect)], Reservation::Unknown),
        (&[Err(ErrorKind::Reset), Ok(425)], Reservation::Unknown),
    ];
    for (script, expected) in scripts {
        let (mut cells, plan) = parts(text);
        let request = CallRequest { method: "POST", mark: RequestMark::NONE, keyed: true, ..GET };
        let (mut now, mut rng, mut results) = (START, Rng::seeded(1), script.iter());
        let (mut call, mut action) = Call::begin(plan, &request, now);
        let mut ended = None;
        loop {
            action = match action {
                Action::Ask(ask) => {
                    if let Ask::Settle(settle) = ask {
                        ended = settle.reservation.or(ended);
                    }
                    call.answered(cells.answer(ask, now).answer, now)
                }
                Action::Send { .. } => {
                    let seen = ObservedResult { method: "POST", result: *results.next().unwrap(), ..seen(0) };
                    call.responded(&seen, now, &mut rng)
                }
                Action::Wait { until, .. } => {
                    now = now.after(until.since(now.mono));
                    call.waited(now)
                }
                Action::Refresh => call.refreshed(true, now),
                Action::Finish(_) => break,
            };
        }
        assert_eq!(ended, Some(expected), "{script:?}");
    }
}

#[test]
fn a_job_keeps_its_idempotency_key_while_it_is_put_off() {
    let (mut cells, plan) = parts(
        "[upstreams.api]\nurl = \"https://api.test\"\nretry = { attempts = 3 }\nbreaker = { consecutive = 1, open = \"5s\", probes = 1, successes = 1 }",
    );
    let request = CallRequest { method: "POST", mark: RequestMark::NONE, keyed: true, patient: true, ..GET };
    let (mut now, mut rng) = (START, Rng::seeded(1));
    let (mut call, mut action) = Call::begin(plan, &request, now);
    let (mut reserved, mut settled, mut results) = (0, Vec::new(), [503, 200].into_iter());
    while !matches!(action, Action::Finish(_)) {
        action = match action {
            Action::Ask(ask) => {
                reserved += u32::from(ask == Ask::Reserve);
                if let Ask::Settle(settle) = ask {
                    settled.extend(settle.reservation);
                }
                call.answered(cells.answer(ask, now).answer, now)
            }
            Action::Send { .. } => call.responded(&ObservedResult { method: "POST", ..seen(results.next().unwrap()) }, now, &mut rng),
            Action::Wait { until, .. } => {
                now = now.after(until.since(now.mono));
                call.waited(now)
            }
            Action::Refresh | Action::Finish(_) => unreachable!(),
        };
    }
    assert_eq!((reserved, settled), (1, vec![seawall_core::call::Reservation::Done]));
}

/// The questions of a job, up to its end.
fn questions(
    policy: &str,
    request: &CallRequest<'_>,
    begun: AskAnswer,
    results: &[Result<u16, ErrorKind>],
) -> (Vec<Ask>, Vec<Reason>, u32) {
    let (mut cells, plan) = parts(&format!("[upstreams.api]\nurl = \"https://api.test\"\nbreaker.mode = \"off\"\n{policy}"));
    let (mut call, mut action) = Call::begin(plan, &CallRequest { patient: true, ..*request }, START);
    let (mut asks, mut waits, mut sends, mut results) = (Vec::new(), Vec::new(), 0, results.iter());
    loop {
        action = match action {
            Action::Ask(Ask::Begin) => {
                asks.push(Ask::Begin);
                call.answered(begun, START)
            }
            Action::Ask(ask) => call.answered(cells.answer(ask, START).answer, START),
            Action::Send { .. } => {
                sends += 1;
                call.responded(
                    &ObservedResult { method: request.method, result: *results.next().unwrap(), ..seen(200) },
                    START,
                    &mut Rng::seeded(1),
                )
            }
            Action::Wait { reason, .. } => {
                waits.push(reason);
                if begun == AskAnswer::NotBegun {
                    return (asks, waits, sends);
                }
                call.waited(START)
            }
            Action::Refresh => unreachable!(),
            Action::Finish(_) => return (asks, waits, sends),
        };
    }
}

#[test]
fn only_a_job_that_may_not_be_repeated_is_noted_before_it_is_sent_and_once() {
    let post = CallRequest { method: "POST", ..GET };
    let noted = |policy, request| questions(policy, &request, AskAnswer::Begun, &[Ok(200)]).0.len();
    assert_eq!(noted("", post), 1);
    assert_eq!(noted("retry.unsafe = \"never\"", CallRequest { keyed: true, ..post }), 1);
    for (policy, request) in [
        ("", GET),
        ("", CallRequest { method: "PUT", ..GET }),
        ("", CallRequest { keyed: true, ..post }),
        ("retry.unsafe = \"always\"", post),
    ] {
        assert_eq!(noted(policy, request), 0, "{policy} {request:?}");
    }
    assert_eq!(
        questions("", &post, AskAnswer::Begun, &[Err(ErrorKind::Connect), Ok(200)]),
        (vec![Ask::Begin], vec![Reason::TransientFailure], 2),
        "one note for both"
    );
    assert_eq!(
        questions("", &post, AskAnswer::NotBegun, &[]),
        (vec![Ask::Begin], vec![Reason::TurnedAway], 0),
        "what is not noted is not sent"
    );
}

#[test]
fn a_server_that_tells_everybody_to_stay_away_is_heard_without_a_breaker() {
    let (mut cells, plan) = parts(
        "[upstreams.api]\nurl = \"https://api.test\"\nretry = { attempts = 1, retry_after_cap = \"1s\" }\nbreaker.mode = \"off\"\n[[upstreams.api.classify]]\nwhen = { status = [429] }\nas = \"transient\"\nscope = \"upstream\"\nwait = \"9s\"",
    );
    let plan = Arc::new(CallPlan { pause_wait: Nanos::ZERO, ..(*plan).clone() });
    let (mut call, action) = Call::begin(Arc::clone(&plan), &GET, START);
    let action = asked(&mut call, action, &mut cells, START);
    assert!(matches!(action, Action::Send { .. }), "{action:?}");
    let action = call.responded(&seen(429), START, &mut Rng::seeded(1));
    let _: Action = asked(&mut call, action, &mut cells, START);
    assert_eq!(call.take_record().unwrap().decision, Decision::Return);
    let (mut next, action) = Call::begin(plan, &GET, START);
    let Action::Ask(ask) = action else { panic!("{action:?}") };
    let answer = cells.answer(ask, START).answer;
    assert_eq!(answer, AskAnswer::Paused { until: Mono(0) + Nanos::from_secs(9), own: false });
    let Action::Finish(finish) = next.answered(answer, START) else { panic!("it is refused at once") };
    assert_eq!(finish.retry_after, Some(Nanos::from_secs(9)));
}
