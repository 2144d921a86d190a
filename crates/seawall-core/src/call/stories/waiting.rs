//! Story tests of calls that wait in line for an obstacle to end; one call's refusal does not fail the others.

use super::{EPOCH, KEYS, QUOTA, Step, World, error, status};
use crate::call::{Action, Call, CallEnd, CallPlan, CallRequest, EndpointCells, Outcome};
use crate::classify::ObservedResult;
use crate::config;
use crate::lease::RequestMark;
use crate::record::{Class, Code, ErrorKind, Reason};
use crate::rng::Rng;
use crate::time::{Mono, Nanos, Now};
use expect_test::expect;
use std::collections::BTreeSet;
use std::sync::Arc;

const fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

const fn at(ms: u64) -> Mono {
    Mono(ms * 1_000_000)
}

/// A request to a path that no other call has.
fn of_its_own(n: usize) -> CallRequest<'static> {
    CallRequest { mark: RequestMark::of("GET", &n.to_string()), ..CallRequest::plain("GET") }
}

/// The results of many calls to one upstream.
struct Crowd {
    ends: Vec<CallEnd>,
    /// When each send went out.
    sends: Vec<Mono>,
    /// The call of each send.
    senders: Vec<usize>,
    most_waiting: u32,
}

impl Crowd {
    /// Calls begin every `gap`, `count` of them; `upstream` says what becomes of the send number n at a time.
    fn run(policy: &str, count: usize, gap: Nanos, upstream: impl Fn(usize, Mono) -> Step) -> Self {
        let text = format!("[upstreams.api]\nurl = \"https://api.test\"\n{policy}");
        let config = config::load("crowd.toml", text.as_bytes()).unwrap_or_else(|invalid| panic!("{invalid}"));
        let own = Arc::clone(&config.upstreams[0]);
        let endpoint = &own.endpoints[0];
        let mut cells = EndpointCells::new(&config, &own, &endpoint.policy);
        let plan = Arc::new(CallPlan::new(&config, &own, endpoint));
        let mut rng = Rng::seeded(7);
        let mut calls: Vec<Option<(Call, Option<Step>)>> = (0..count).map(|_| None).collect();
        let mut agenda: BTreeSet<(Mono, usize)> = (0..count).map(|n| (Mono(gap.0 * n as u64), n)).collect();
        let mut crowd = Self { ends: Vec::new(), sends: Vec::new(), senders: Vec::new(), most_waiting: 0 };
        while let Some((time, n)) = agenda.pop_first() {
            let now = Now { mono: time, wall: EPOCH }.after(Nanos::ZERO);
            let mut action = match calls[n].as_mut() {
                None => {
                    let (call, action) = Call::begin(Arc::clone(&plan), &of_its_own(n), now);
                    calls[n] = Some((call, None));
                    action
                }
                Some((call, sent)) => match sent.take() {
                    Some((latency, result, headers, body)) => {
                        let seen = ObservedResult { method: "GET", result, headers: &headers, body: body.as_bytes(), latency: ms(latency) };
                        call.responded(&seen, now, &mut rng)
                    }
                    None => call.waited(now),
                },
            };
            let (call, sent) = calls[n].as_mut().expect("it has begun");
            loop {
                let _ = call.take_record();
                action = match action {
                    Action::Ask(ask) => call.answered(cells.answer(ask, now).answer, now),
                    Action::Send { .. } => {
                        let step = upstream(crowd.sends.len(), time);
                        crowd.sends.push(time);
                        crowd.senders.push(n);
                        agenda.insert((time + ms(step.0), n));
                        *sent = Some(step);
                        break;
                    }
                    Action::Wait { until, .. } => {
                        agenda.insert((until.max(time), n));
                        break;
                    }
                    Action::Refresh => call.refreshed(true, now),
                    Action::Finish(finish) => {
                        crowd.ends.push(finish);
                        break;
                    }
                };
            }
            crowd.most_waiting = crowd.most_waiting.max(cells.line.waiting());
        }
        assert_eq!(cells.line.waiting(), 0, "nobody is left in line");
        crowd
    }

    fn succeeded(&self) -> usize {
        self.ends.iter().filter(|end| end.outcome == Outcome::Success).count()
    }

    fn longest_wait(&self) -> Nanos {
        self.ends.iter().map(|end| end.waited).max().unwrap_or_default()
    }
}

const ONE_KEY: &str = "[upstreams.api.auth]\nkeys = [{ id = \"a\", secret = \"env:A\" }]\n";

const fn throttled(seconds: &'static [(&'static str, &'static str)]) -> Step {
    (10, Ok(429), seconds, "")
}

#[test]
fn one_throttled_call_costs_the_others_nothing_but_time() {
    for policy in [ONE_KEY, "preset = \"aws\"", "preset = \"openai\"", ""] {
        let upstream = |n, _| if n == 0 { throttled(&[("retry-after", "2")]) } else { status(200) };
        let crowd = Crowd::run(policy, 100, ms(25), upstream);
        assert_eq!((crowd.succeeded(), crowd.sends.len()), (100, 101), "{policy}");
    }
}

#[test]
fn a_pause_binds_everybody_it_is_meant_for() {
    // Two hundred calls a second for twelve seconds, and a provider that wants to be left alone for thirty.
    for policy in [ONE_KEY, ""] {
        let upstream = |_, time| if time < at(30_000) { throttled(&[("retry-after", "30")]) } else { status(200) };
        let crowd = Crowd::run(policy, 2_400, ms(5), upstream);
        let early = crowd.sends.iter().filter(|sent| **sent < at(12_000)).count();
        assert!(early <= 12, "{policy}: {early} sends");
        assert_eq!(crowd.most_waiting, 1_000, "{policy}: the line is bounded");
    }
}

#[test]
fn throttles_at_random_do_not_stop_the_traffic() {
    for policy in [ONE_KEY, "preset = \"openai\"", ""] {
        let upstream = |n, _| if n % 20 == 7 { throttled(&[("retry-after", "1")]) } else { (50, Ok(200), &[] as &[_], "") };
        let crowd = Crowd::run(policy, 2_000, ms(25), upstream);
        assert_eq!(crowd.succeeded(), 2_000, "{policy}");
        assert!(crowd.longest_wait() < ms(2_500), "{policy}: {}", crowd.longest_wait());
    }
}

#[test]
fn a_blip_costs_no_more_calls_than_it_hits() {
    for length in [100, 1_000, 3_000, 10_000] {
        let upstream = |_, time| if time >= at(2_000) && time < at(2_000 + length) { status(503) } else { status(200) };
        let crowd = Crowd::run("", 1_000, ms(15), upstream);
        assert_eq!(crowd.succeeded(), 1_000, "{length} ms");
        assert!(crowd.sends.len() < 1_100, "{length} ms: {} sends", crowd.sends.len());
    }
}

#[test]
fn a_flapping_upstream_is_met_while_it_is_up() {
    let upstream = |_, time: Mono| if time.0 / 1_000_000_000 % 2 == 1 { status(503) } else { status(200) };
    let crowd = Crowd::run("", 1_000, ms(10), upstream);
    assert!(crowd.succeeded() >= 990, "{} of 1000, {} sends", crowd.succeeded(), crowd.sends.len());
}

#[test]
fn one_unlucky_call_does_not_open_the_breaker() {
    let mut world = World::new("retry.attempts = 8\nbreaker.consecutive = 5");
    world.call(&[status(503), status(503), status(503), status(503), status(503), status(200)]);
    assert!(world.trace.ends_with("Success (succeeded) after 6 attempts\n"), "{}", world.trace);
}

#[test]
fn a_call_waits_for_the_breaker_and_goes_on_where_it_was() {
    let mut world = World::new("retry.attempts = 2\nbreaker = { consecutive = 1, open = \"2s\", probes = 1, successes = 1 }");
    world.call(&[status(500), status(200)]).check(expect![[r#"
          #1 500: transient, retry 1s (transient_failure)
          wait 1s (transient_failure)
          wait 50ms (circuit_open)
          wait 50ms (circuit_open)
          wait 50ms (circuit_open)
          wait 50ms (circuit_open)
          wait 50ms (circuit_open)
          wait 50ms (circuit_open)
          wait 50ms (circuit_open)
          wait 50ms (circuit_open)
          wait 50ms (circuit_open)
          wait 50ms (circuit_open)
          wait 50ms (circuit_open)
          wait 50ms (circuit_open)
          wait 50ms (circuit_open)
          wait 50ms (circuit_open)
          wait 50ms (circuit_open)
          wait 50ms (circuit_open)
          wait 50ms (circuit_open)
          wait 50ms (circuit_open)
          wait 50ms (circuit_open)
          wait 50ms (circuit_open)
          #2 200: success, return (succeeded)
        Success (succeeded) after 2 attempts
    "#]]);
}

#[test]
fn a_wait_that_does_not_fit_is_refused_at_once() {
    let mut world = World::new("retry.attempts = 1\nbreaker = { consecutive = 1, open = \"6s\", open_max = \"60s\", max_wait = \"5s\" }");
    world.call(&[error(ErrorKind::Connect)]).call(&[]).check(expect![[r#"
          #1 connect: transient, return (attempts_exhausted)
        Refused(UpstreamUnreachable) (attempts_exhausted) after 1 attempts
          #1 circuit_open: circuit_open, reject 6s (circuit_open)
        Refused(CircuitOpen) (circuit_open) after 0 attempts, retry after 6s
    "#]]);
    let mut world = World::new(KEYS);
    world.call(&[QUOTA, QUOTA]);
    assert!(world.trace.ends_with("Refused(KeysExhausted) (keys_cooling) after 2 attempts, retry after 7h\n"), "{}", world.trace);
}

#[test]
fn calls_wait_for_a_limit_as_long_as_it_says() {
    let limited = |max_wait: &str| format!("[[upstreams.api.limits]]\nname = \"a\"\nrate = \"10/s\"\nburst = 1\nmax_wait = \"{max_wait}\"");
    let healthy = |_, _| status(200);
    // Twenty concurrent calls: two seconds' worth of the limit.
    assert_eq!(Crowd::run(&limited("0s"), 20, Nanos::ZERO, healthy).succeeded(), 1);
    let some = Crowd::run(&limited("1s"), 20, Nanos::ZERO, healthy);
    assert!((9..=11).contains(&some.succeeded()), "{}", some.succeeded());
    let all = Crowd::run(&limited("3s"), 20, Nanos::ZERO, healthy);
    assert_eq!(all.succeeded(), 20);
    assert!(all.ends.iter().any(|end| end.waited > Nanos::from_millis(1_500)), "the last one waited two seconds");
    assert_eq!(some.ends.iter().find(|end| end.outcome != Outcome::Success).map(|end| end.reason), Some(Reason::RateLimited));
}

#[test]
fn calls_go_on_in_the_order_in_which_they_came() {
    // The first call meets the throttle or opens the breaker; the others arrive while it lasts, and each retries many times.
    let pause = "retry.attempts = 1";
    let keys = &format!("{pause}\n{ONE_KEY}");
    let breaker = "retry.attempts = 1\nbreaker = { consecutive = 1, open = \"2s\", open_max = \"2s\" }";
    for policy in [pause, keys, breaker] {
        let throttle = |time| time < at(2_010);
        let upstream = |_, time| match policy.contains("breaker") {
            true if time < at(2_000) => status(503),
            false if throttle(time) => throttled(&[("retry-after", "2")]),
            _ => (1, Ok(200), &[] as &[_], ""),
        };
        let crowd = Crowd::run(policy, 41, ms(25), upstream);
        let waited: Vec<usize> = crowd.sends.iter().zip(&crowd.senders).filter(|(time, _)| **time >= at(2_010)).map(|(_, n)| *n).collect();
        let inversions = (0..waited.len()).flat_map(|a| (0..a).map(move |b| (a, b))).filter(|(a, b)| waited[*a] < waited[*b]).count();
        assert!(waited.len() >= 30, "{policy}: {waited:?}");
        assert_eq!(inversions, 0, "{policy}: {waited:?}");
    }
}

#[test]
fn a_line_without_places_refuses() {
    let upstream = |n, _| if n == 0 { throttled(&[("retry-after", "2")]) } else { status(200) };
    let crowd = Crowd::run(&format!("waiting = 0\n{ONE_KEY}"), 2, ms(50), upstream);
    let outcomes: Vec<Outcome> = crowd.ends.iter().map(|end| end.outcome).collect();
    assert_eq!(outcomes, [Outcome::Refused(Code::KeysExhausted), Outcome::Success], "the throttled call's own wait is no place in line");
}

#[test]
fn a_pause_that_is_too_long_to_wait_for_is_waited_for_until_a_probe_ends_it() {
    for policy in [ONE_KEY, ""] {
        let upstream = |n, _| if n % 50 == 7 { throttled(&[("retry-after", "120")]) } else { (50, Ok(200), &[] as &[_], "") };
        let crowd = Crowd::run(policy, 400, ms(25), upstream);
        // The throttled calls themselves end with their 429: two minutes do not fit.
        assert!(crowd.succeeded() >= 388, "{policy}: {}", crowd.succeeded());
    }
}

#[test]
fn a_call_in_line_leaves_its_slot_to_others() {
    let text = "pool = \"p\"\nbreaker = { consecutive = 1, open = \"2s\" }\nretry.attempts = 1\n[pools.p]\nconcurrent = 1\n";
    let mut world = World::new(text);
    world.call(&[status(500)]);
    let (mut call, mut action) = Call::begin(Arc::clone(&world.plan), &CallRequest::plain("GET"), world.now);
    while let Action::Ask(ask) = action {
        action = call.answered(world.cells.answer(ask, world.now).answer, world.now);
    }
    assert!(matches!(action, Action::Wait { .. }), "{action:?}");
    assert_eq!(world.cells.pool.as_ref().unwrap().running(), 0);
}

#[test]
fn a_short_deadline_still_leaves_room_for_a_short_wait() {
    let request = CallRequest { deadline: Some(ms(900)), ..CallRequest::plain("GET") };
    let mut world = World::new("retry.attempts = 1\nbreaker = { consecutive = 1, open = \"250ms\", probes = 1, successes = 1 }");
    world.call(&[status(500)]).request(&request, &[status(200)]);
    assert!(world.trace.ends_with("Success (succeeded) after 1 attempts\n"), "{}", world.trace);
}

#[test]
fn a_throttled_path_beside_a_healthy_one_holds_it_up_once() {
    for policy in [ONE_KEY, ""] {
        let upstream = |n: usize, _| if n.is_multiple_of(2) { throttled(&[("retry-after", "30")]) } else { (50, Ok(200), &[] as &[_], "") };
        let crowd = Crowd::run(policy, 400, ms(25), upstream);
        let waited = crowd.ends.iter().filter(|end| end.waited > ms(1_000)).count();
        assert_eq!(waited, 0, "{policy}: {} at most", crowd.longest_wait());
    }
}

/// One key is rejected: by three requests that it is refused for.
fn refused(policy: &str) -> World {
    let mut world = World::new(policy);
    for path in ["/a", "/b", "/c"] {
        world.request(&CallRequest { mark: RequestMark::of("GET", path), ..CallRequest::plain("GET") }, &[status(401)]);
    }
    world.trace.clear();
    world
}

#[test]
fn a_rejected_key_is_waited_for_until_a_probe_has_found_it_good() {
    let mut world = refused(ONE_KEY);
    world.call(&[status(200)]);
    assert!(world.trace.starts_with("  wait 50ms (keys_dead)\n"), "{}", world.trace);
    assert!(world.trace.ends_with("Success (succeeded) after 1 attempts\n"), "{}", world.trace);
}

#[test]
fn a_rejected_key_that_cannot_be_waited_for_is_refused_and_says_when() {
    let mut world = refused("[upstreams.api.auth]\nmax_wait = \"1s\"\nkeys = [{ id = \"a\", secret = \"env:A\" }]\n");
    world.call(&[]).check(expect![[r#"
        Refused(KeysRejected) (keys_dead) after 0 attempts, retry after 5s
    "#]]);
}

#[test]
fn a_job_is_put_off_by_a_rejected_key() {
    let mut world = refused(ONE_KEY);
    world.job(&[status(200)]).check(expect![[r#"
          wait 5s (keys_dead)
          #1 200 key 0: success, return (succeeded)
        Success (succeeded) after 1 attempts
    "#]]);
}

#[test]
fn paths_that_a_key_is_refused_for_cost_the_others_nothing() {
    for refused in [3, 5] {
        let upstream = |n: usize, _| if n % 10 >= 10 - refused { status(401) } else { status(200) };
        let crowd = Crowd::run(ONE_KEY, 2_000, ms(33), upstream);
        let denied = crowd.ends.iter().filter(|end| end.outcome == Outcome::Failed(Class::Auth)).count();
        assert_eq!((denied, crowd.succeeded()), (200 * refused, 2_000 - 200 * refused));
    }
}

/// An upstream that takes thirty calls in each second and asks the others to come back in a second, or only refuses them.
fn limited_to_thirty(hint: &'static [(&'static str, &'static str)]) -> impl Fn(usize, Mono) -> Step {
    let window = std::cell::Cell::new((0, 0));
    move |_, at| {
        let second = at.0 / 1_000_000_000;
        let used = if window.get().0 == second { window.get().1 } else { 0 };
        window.set((second, used + 1));
        if used >= 30 { throttled(hint) } else { status(200) }
    }
}

#[test]
fn a_burst_beyond_a_providers_limit_waits_for_the_retry_budget() {
    for (policy, hint) in [("", &[("retry-after", "1")] as &[_]), (ONE_KEY, &[("retry-after", "1")]), ("", &[]), (ONE_KEY, &[])] {
        let crowd = Crowd::run(policy, 200, Nanos::ZERO, limited_to_thirty(hint));
        assert_eq!(crowd.succeeded(), 200, "{policy} {hint:?}");
        assert!(crowd.sends.len() <= 2 * 200, "{policy} {hint:?}: {} sends", crowd.sends.len());
    }
    // The deadline ends it, with the provider's own answer.
    let short = Crowd::run("timeout.total = \"3s\"", 200, Nanos::ZERO, limited_to_thirty(&[("retry-after", "1")]));
    assert!((40..200).contains(&short.succeeded()), "{}", short.succeeded());
    let failed = short.ends.iter().filter(|end| end.outcome != Outcome::Success);
    assert!(failed.clone().all(|end| end.outcome == Outcome::Failed(Class::Transient)), "{:?}", failed.collect::<Vec<_>>());
}
