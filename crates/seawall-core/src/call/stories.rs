//! Story tests of calls: a policy and a script of results go in, the trace of the machine's actions comes out.

use super::{Action, Call, CallPlan, CallRequest, EndpointCells};
use crate::classify::ObservedResult;
use crate::config::{self, Config};
use crate::guard::Forced;
use crate::lease::RequestMark;
use crate::record::{ErrorKind, Reason};
use crate::rng::Rng;
use crate::time::{Mono, Nanos, Now, Wall};
use expect_test::{Expect, expect};
use std::fmt::Write as _;
use std::sync::Arc;

mod waiting;

/// 2026-07-01T00:00:00Z.
const EPOCH: Wall = Wall(1_782_864_000_000);

/// One upstream in virtual time: each send takes the next result of the script.
struct World {
    config: Config,
    cells: EndpointCells,
    plan: Arc<CallPlan>,
    rng: Rng,
    now: Now,
    trace: String,
}

type Headers = &'static [(&'static str, &'static str)];

/// The attempt's duration, its result, and the response's headers and body.
type Step = (u64, Result<u16, ErrorKind>, Headers, &'static str);

const fn status(code: u16) -> Step {
    (10, Ok(code), &[], "")
}

const fn error(kind: ErrorKind) -> Step {
    (10, Err(kind), &[], "")
}

impl World {
    /// `policy` is what follows `[upstreams.api]` and its URL; waits are plain exponential so that traces stay readable.
    fn new(policy: &str) -> Self {
        let text = format!("[upstreams.api]\nurl = \"https://api.test\"\nretry.backoff = \"exponential\"\nretry.base = \"1s\"\n{policy}");
        let config = config::load("story.toml", text.as_bytes()).unwrap_or_else(|invalid| panic!("{invalid}"));
        let upstream = Arc::clone(&config.upstreams[0]);
        let endpoint = &upstream.endpoints[0];
        Self {
            cells: EndpointCells::new(&config, &upstream, &endpoint.policy),
            plan: Arc::new(CallPlan::new(&config, &upstream, endpoint)),
            rng: Rng::seeded(1),
            now: Now { mono: Mono(0), wall: EPOCH },
            trace: String::new(),
            config,
        }
    }

    fn call(&mut self, script: &[Step]) -> &mut Self {
        self.request(
            &CallRequest {
                method: "GET",
                mark: RequestMark::NONE,
                keyed: false,
                at_cost: false,
                replayable: true,
                deadline: None,
                patient: false,
            },
            script,
        )
    }

    fn post(&mut self, keyed: bool, script: &[Step]) -> &mut Self {
        self.request(
            &CallRequest {
                method: "POST",
                mark: RequestMark::NONE,
                keyed,
                at_cost: false,
                replayable: true,
                deadline: None,
                patient: false,
            },
            script,
        )
    }

    fn job(&mut self, script: &[Step]) -> &mut Self {
        self.request(
            &CallRequest {
                method: "GET",
                mark: RequestMark::NONE,
                keyed: false,
                at_cost: false,
                replayable: true,
                deadline: None,
                patient: true,
            },
            script,
        )
    }

    fn pass(&mut self, length: Nanos) -> &mut Self {
        self.now = self.now.after(length);
        self
    }

    fn request(&mut self, request: &CallRequest<'_>, script: &[Step]) -> &mut Self {
        let mut script = script.iter();
        let (mut call, mut action) = Call::begin(Arc::clone(&self.plan), request, self.now);
        loop {
            if let Some(record) = call.take_record() {
                let key = record.key.map(|key| format!(" key {key}")).unwrap_or_default();
                let wait = if record.wait > Nanos::ZERO { format!(" {}", record.wait) } else { String::new() };
                writeln!(
                    self.trace,
                    "  #{} {}{key}: {}, {}{wait} ({})",
                    record.number,
                    record.status,
                    record.outcome(),
                    record.decision,
                    record.reason
                )
                .unwrap();
            }
            action = match action {
                Action::Ask(ask) => call.answered(self.cells.answer(ask, self.now).answer, self.now),
                Action::Send { timeout, .. } => {
                    let (ms, result, headers, body) = *script.next().expect("the script has a result for each send");
                    let latency = Nanos::from_millis(ms).min(timeout);
                    self.pass(latency);
                    let seen = ObservedResult { method: request.method, result, headers: &headers, body: body.as_bytes(), latency };
                    call.responded(&seen, self.now, &mut self.rng)
                }
                Action::Wait { until, reason } => {
                    writeln!(self.trace, "  wait {} ({reason})", until.since(self.now.mono)).unwrap();
                    self.pass(until.since(self.now.mono));
                    call.waited(self.now)
                }
                Action::Refresh => {
                    writeln!(self.trace, "  refresh").unwrap();
                    call.refreshed(true, self.now)
                }
                Action::Finish(finish) => {
                    let after = finish.retry_after.map(|after| format!(", retry after {after}")).unwrap_or_default();
                    writeln!(self.trace, "{:?} ({}) after {} attempts{after}", finish.outcome, finish.reason, finish.attempts).unwrap();
                    break;
                }
            };
        }
        assert!(script.next().is_none(), "every result of the script was used:\n{}", self.trace);
        self
    }

    #[expect(clippy::needless_pass_by_value, reason = "expect! makes a value for each use")]
    fn check(&self, expected: Expect) {
        expected.assert_eq(&self.trace);
    }
}

#[test]
fn a_transient_failure_backs_off_and_heals() {
    World::new("").call(&[status(503), status(502), status(200)]).check(expect![[r#"
          #1 503: transient, retry 1s (transient_failure)
          wait 1s (transient_failure)
          #2 502: transient, retry 2s (transient_failure)
          wait 2s (transient_failure)
          #3 200: success, return (succeeded)
        Success (succeeded) after 3 attempts
    "#]]);
}

#[test]
fn a_permanent_failure_is_never_retried() {
    for code in [400, 403, 404, 422, 501] {
        let mut world = World::new("");
        world.call(&[status(code)]);
        assert!(world.trace.contains("Failed(Permanent)") && world.trace.contains("after 1 attempts"), "{}", world.trace);
    }
}

#[test]
fn exhausted_attempts_end_with_the_upstreams_own_answer() {
    World::new("retry.attempts = 3").call(&[status(503), status(503), status(503)]).check(expect![[r#"
          #1 503: transient, retry 1s (transient_failure)
          wait 1s (transient_failure)
          #2 503: transient, retry 2s (transient_failure)
          wait 2s (transient_failure)
          #3 503: transient, return (attempts_exhausted)
        Failed(Transient) (attempts_exhausted) after 3 attempts
    "#]]);
}

#[test]
fn a_server_hint_is_waited_for_when_it_is_longer() {
    World::new("").call(&[(10, Ok(429), &[("Retry-After", "7")], ""), status(200)]).check(expect![[r#"
          #1 429: transient, retry 7s (server_hint)
          wait 7s (server_hint)
          #2 200: success, return (succeeded)
        Success (succeeded) after 2 attempts
    "#]]);
    World::new("").call(&[(10, Ok(503), &[("retry-after", "0.2")], ""), status(200)]).check(expect![[r#"
          #1 503: transient, retry 1s (transient_failure)
          wait 1s (transient_failure)
          #2 200: success, return (succeeded)
        Success (succeeded) after 2 attempts
    "#]]);
}

#[test]
fn a_hint_that_does_not_fit_ends_the_call_now() {
    World::new("").call(&[(10, Ok(429), &[("Retry-After", "61")], "")]).check(expect![[r#"
          #1 429: transient, return (hint_too_long)
        Failed(Transient) (hint_too_long) after 1 attempts, retry after 1m1s
    "#]]);
    World::new("timeout.total = \"30s\"").call(&[(10, Ok(503), &[("Retry-After", "31")], "")]).check(expect![[r#"
          #1 503: transient, return (deadline_exceeded)
        Failed(Transient) (deadline_exceeded) after 1 attempts, retry after 31s
    "#]]);
}

#[test]
fn a_job_waits_where_a_caller_is_refused() {
    World::new("").job(&[(10, Ok(429), &[("Retry-After", "3600")], ""), status(200)]).check(expect![[r#"
          #1 429: transient, retry 1h (server_hint)
          wait 1h (server_hint)
          #2 200: success, return (succeeded)
        Success (succeeded) after 2 attempts
    "#]]);
}

#[test]
fn waits_stop_where_the_deadline_would_pass() {
    World::new("timeout.total = \"5s\"\ntimeout.attempt = \"1s\"\nretry.attempts = 10")
        .call(&[status(503), status(503), status(503)])
        .check(expect![[r#"
          #1 503: transient, retry 1s (transient_failure)
          wait 1s (transient_failure)
          #2 503: transient, retry 2s (transient_failure)
          wait 2s (transient_failure)
          #3 503: transient, return (deadline_exceeded)
        Failed(Transient) (deadline_exceeded) after 3 attempts
    "#]]);
}

const KEYS: &str = r#"
[upstreams.api.auth]
reset = "00:00 America/Los_Angeles"
keys = [{ id = "a", secret = "env:A" }, { id = "b", secret = "env:B" }]
[[upstreams.api.classify]]
when = { status = [403], json = { "/reason" = ["quotaExceeded"] } }
as = "quota"
"#;

const QUOTA: Step = (10, Ok(403), &[], r#"{"reason":"quotaExceeded"}"#);

#[test]
fn quota_rotates_the_key_at_once_and_cools_it_until_the_reset() {
    let mut world = World::new(KEYS);
    world.call(&[QUOTA, status(200)]).call(&[status(200)]).call(&[QUOTA]).check(expect![[r#"
          #1 403 key 0: quota, rotate_key (quota_rotation)
          #2 200 key 1: success, return (succeeded)
        Success (succeeded) after 2 attempts
          #1 200 key 1: success, return (succeeded)
        Success (succeeded) after 1 attempts
          #1 403 key 1: quota, rotate_key (quota_rotation)
        Refused(KeysExhausted) (keys_cooling) after 1 attempts, retry after 7h
    "#]]);
    // 07:00Z is midnight in Los Angeles in July.
    world.pass(Nanos::from_secs(7 * 3600)).call(&[status(200)]);
    assert!(world.trace.ends_with("Success (succeeded) after 1 attempts\n"), "{}", world.trace);
}

#[test]
fn an_expired_token_is_refreshed_once() {
    let refresh = r#"
[upstreams.api.auth.refresh]
kind = "client-credentials"
token_url = "https://api.test/token"
client_id = "env:ID"
client_secret = "env:SECRET"
"#;
    World::new(refresh).call(&[status(401), status(200)]).check(expect![[r#"
          #1 401: auth, refresh_token (token_expired)
          refresh
          #2 200: success, return (succeeded)
        Success (succeeded) after 2 attempts
    "#]]);
    World::new(refresh).call(&[status(401), status(401)]).check(expect![[r#"
          #1 401: auth, refresh_token (token_expired)
          refresh
          #2 401: auth, return (auth_failed)
        Failed(Auth) (auth_failed) after 2 attempts
    "#]]);
}

#[test]
fn a_rejected_key_is_replaced_once() {
    World::new(KEYS).call(&[status(401), status(200)]).check(expect![[r#"
          #1 401 key 0: auth, rotate_key (key_rejected)
          #2 200 key 1: success, return (succeeded)
        Success (succeeded) after 2 attempts
    "#]]);
    World::new(KEYS).call(&[status(401), status(401)]).check(expect![[r#"
          #1 401 key 0: auth, rotate_key (key_rejected)
          #2 401 key 1: auth, return (auth_failed)
        Failed(Auth) (auth_failed) after 2 attempts
    "#]]);
}

#[test]
fn a_request_that_no_key_is_accepted_for_kills_no_key() {
    let mut world = World::new(KEYS);
    for _ in 0..9 {
        world.call(&[status(401), status(401)]);
    }
    world.trace.clear();
    world.call(&[status(200)]).check(expect![[r#"
          #1 200 key 0: success, return (succeeded)
        Success (succeeded) after 1 attempts
    "#]]);
}

#[test]
fn a_key_that_is_refused_where_another_is_accepted_is_dead() {
    let mut world = World::new(KEYS);
    world.call(&[status(401), status(200)]);
    assert!(world.cells.keys.as_ref().unwrap().status(0, world.now).unwrap().dead);
    assert!(!world.cells.keys.as_ref().unwrap().status(1, world.now).unwrap().dead);
}

#[test]
fn unsafe_methods_go_again_only_where_it_is_harmless() {
    World::new("").post(false, &[status(503)]).check(expect![[r#"
          #1 503: transient, return (not_idempotent)
        Failed(Transient) (not_idempotent) after 1 attempts
    "#]]);
    World::new("").post(true, &[status(503), status(200)]).check(expect![[r#"
          #1 503: transient, retry 1s (transient_failure)
          wait 1s (transient_failure)
          #2 200: success, return (succeeded)
        Success (succeeded) after 2 attempts
    "#]]);
    World::new("").post(false, &[error(ErrorKind::Connect), status(200)]).check(expect![[r#"
          #1 connect: transient, retry 1s (transient_failure)
          wait 1s (transient_failure)
          #2 200: success, return (succeeded)
        Success (succeeded) after 2 attempts
    "#]]);
    World::new("").post(false, &[status(425), status(200)]).check(expect![[r#"
          #1 425: transient, retry 1s (transient_failure)
          wait 1s (transient_failure)
          #2 200: success, return (succeeded)
        Success (succeeded) after 2 attempts
    "#]]);
    World::new("").post(false, &[error(ErrorKind::Timeout)]).check(expect![[r#"
          #1 timeout: transient, return (not_idempotent)
        Refused(DeadlineExceeded) (not_idempotent) after 1 attempts
    "#]]);
    World::new("retry.unsafe = \"always\"").post(false, &[error(ErrorKind::Reset), status(200)]).check(expect![[r#"
          #1 reset: transient, retry 1s (transient_failure)
          wait 1s (transient_failure)
          #2 200: success, return (succeeded)
        Success (succeeded) after 2 attempts
    "#]]);
}

#[test]
fn ambiguous_failures_have_a_small_budget_and_then_count_as_permanent() {
    World::new("retry.attempts = 9\nretry.ambiguous = 1").call(&[status(409), status(409)]).check(expect![[r#"
          #1 409: ambiguous, retry 1s (ambiguous_failure)
          wait 1s (ambiguous_failure)
          #2 409: ambiguous, return (ambiguous_exhausted)
        Failed(Permanent) (ambiguous_exhausted) after 2 attempts
    "#]]);
}

#[test]
fn a_500_is_tried_once_more_where_a_repetition_may_harm() {
    for profile in ["payment", "internal", "database", "cache", "email"] {
        let mut world = World::new(&format!("profile = \"{profile}\""));
        world.call(&[status(500), status(500)]);
        assert!(world.trace.contains("wait ") && world.trace.ends_with("after 2 attempts\n"), "{profile}:\n{}", world.trace);
    }
    // A caller that only reads may retry as often as for any other transient failure.
    for (profile, attempts) in [("external-api", 5), ("fetcher", 6)] {
        let mut world = World::new(&format!("profile = \"{profile}\"\nbreaker.mode = \"off\"\ntimeout.total = \"10m\""));
        world.call(&vec![status(500); attempts]);
        assert!(world.trace.ends_with(&format!("after {attempts} attempts\n")), "{profile}:\n{}", world.trace);
    }
}

#[test]
fn a_body_that_streamed_is_not_sent_again() {
    let request = CallRequest {
        method: "PUT",
        mark: RequestMark::NONE,
        keyed: false,
        at_cost: false,
        replayable: false,
        deadline: None,
        patient: false,
    };
    World::new("").request(&request, &[status(503)]).check(expect![[r#"
          #1 503: transient, return (body_not_replayable)
        Failed(Transient) (body_not_replayable) after 1 attempts
    "#]]);
}

#[test]
fn the_breaker_opens_refuses_probes_and_closes() {
    let mut world = World::new(
        "retry.attempts = 1\nbreaker = { consecutive = 2, open = \"5s\", open_max = \"60s\", probes = 1, successes = 1, max_wait = \"0s\" }",
    );
    world
        .call(&[status(500)])
        .call(&[error(ErrorKind::Connect)])
        .call(&[])
        .pass(Nanos::from_secs(5))
        .call(&[status(200)])
        .call(&[status(200)]);
    world.check(expect![[r#"
          #1 500: transient, return (attempts_exhausted)
        Failed(Transient) (attempts_exhausted) after 1 attempts
          #1 connect: transient, return (attempts_exhausted)
        Refused(UpstreamUnreachable) (attempts_exhausted) after 1 attempts
          #1 circuit_open: circuit_open, reject 5s (circuit_open)
        Refused(CircuitOpen) (circuit_open) after 0 attempts, retry after 5s
          #1 200: success, return (succeeded)
        Success (succeeded) after 1 attempts
          #1 200: success, return (succeeded)
        Success (succeeded) after 1 attempts
    "#]]);
}

#[test]
fn a_job_waits_for_as_long_as_somebody_holds_the_breaker_open() {
    let mut world = World::new("");
    world.cells.breaker.force(Forced::Open, world.now.mono).unwrap();
    let request = CallRequest {
        method: "GET",
        mark: RequestMark::NONE,
        keyed: false,
        at_cost: false,
        replayable: true,
        deadline: None,
        patient: true,
    };
    let (mut call, mut action) = Call::begin(Arc::clone(&world.plan), &request, world.now);
    while let Action::Ask(ask) = action {
        action = call.answered(world.cells.answer(ask, world.now).answer, world.now);
    }
    let Action::Wait { until, reason } = action else { panic!("{action:?}") };
    assert_eq!((until, reason), (world.now.mono + world.plan.held_open, Reason::CircuitOpen));
}

#[test]
fn a_job_is_put_off_by_an_open_breaker_without_burning_an_attempt() {
    let mut world = World::new("retry.attempts = 2\nbreaker = { consecutive = 1, open = \"5s\", probes = 1, successes = 1 }");
    world.job(&[status(500), status(200)]).check(expect![[r#"
          #1 500: transient, retry 1s (transient_failure)
          wait 1s (transient_failure)
          #2 circuit_open: circuit_open, defer 4s (circuit_open)
          wait 4s (circuit_open)
          #2 200: success, return (succeeded)
        Success (succeeded) after 2 attempts
    "#]]);
}

#[test]
fn rate_limits_and_404s_are_no_failures_of_the_upstream() {
    let mut world = World::new("retry.attempts = 1\nbreaker.consecutive = 1");
    world.call(&[status(429)]).call(&[status(404)]).call(&[status(200)]);
    assert!(!world.trace.contains("circuit_open"), "{}", world.trace);
}

#[test]
fn an_empty_budget_returns_the_original_answer_at_once() {
    for policy in ["retry.budget = \"0%\"\nretry.budget_floor = \"0/s\"", "retry.budget_floor = \"0/s\"\nbreaker.max_wait = \"0s\""] {
        let mut world = World::new(policy);
        let began = world.now.mono;
        world.call(&[status(503)]).check(expect![[r#"
              #1 503: transient, return (budget_exhausted)
            Failed(Transient) (budget_exhausted) after 1 attempts
        "#]]);
        assert!(world.now.mono.since(began) < Nanos::from_secs(1), "{policy}");
    }
}

#[test]
fn a_retry_waits_for_the_budget_that_will_fund_it() {
    let mut world = World::new(
        "retry.attempts = 30\nretry.cap = \"10ms\"\nretry.budget = \"0%\"\nretry.budget_floor = \"2/s\"\nbreaker.consecutive = 0",
    );
    let began = world.now.mono;
    let down: Vec<_> = std::iter::repeat_n(status(503), 8).chain([status(200)]).collect();
    world.call(&down);
    assert!(world.trace.ends_with("Success (succeeded) after 9 attempts\n"), "{}", world.trace);
    let took = world.now.mono.since(began);
    assert!((Nanos::from_secs(2)..Nanos::from_secs(5)).contains(&took), "eight retries at two a second: {took:?}");
}

#[test]
fn successes_pay_for_retries() {
    let mut world = World::new("retry.budget = \"50%\"\nretry.budget_floor = \"0/s\"");
    world.call(&[status(200)]).call(&[status(200)]).call(&[status(503), status(200)]).call(&[status(503)]);
    assert!(world.trace.ends_with("Failed(Transient) (budget_exhausted) after 1 attempts\n"), "{}", world.trace);
}

#[test]
fn a_limit_refuses_and_says_when() {
    let mut world = World::new("limits = [{ name = \"qps\", rate = \"1/s\", burst = 1 }]");
    world.call(&[status(200)]).call(&[]).check(expect![[r#"
          #1 200: success, return (succeeded)
        Success (succeeded) after 1 attempts
        Refused(RateLimited) (rate_limited) after 0 attempts, retry after 990ms
    "#]]);
}

#[test]
fn the_callers_deadline_shortens_ours() {
    let request = CallRequest {
        method: "GET",
        mark: RequestMark::NONE,
        keyed: false,
        at_cost: false,
        replayable: true,
        deadline: Some(Nanos::from_millis(300)),
        patient: false,
    };
    let mut world = World::new("");
    world.request(&request, &[(10_000, Err(ErrorKind::Timeout), &[], "")]).check(expect![[r#"
          #1 timeout: transient, return (deadline_exceeded)
        Refused(DeadlineExceeded) (deadline_exceeded) after 1 attempts
    "#]]);
    assert!(world.now.mono <= Mono(300_000_000), "{:?}", world.now);
}

#[test]
fn a_cancelled_call_gives_everything_back() {
    let mut world = World::new(
        "breaker = { consecutive = 1, open = \"5s\", probes = 1, successes = 1 }\nretry.attempts = 1\nlimits = [{ name = \"qps\", rate = \"100/s\", burst = 100 }]",
    );
    world.call(&[status(500)]).pass(Nanos::from_secs(5));
    let request = CallRequest {
        method: "GET",
        mark: RequestMark::NONE,
        keyed: false,
        at_cost: false,
        replayable: true,
        deadline: None,
        patient: false,
    };
    let (mut call, mut action) = Call::begin(Arc::clone(&world.plan), &request, world.now);
    while let Action::Ask(ask) = action {
        action = call.answered(world.cells.answer(ask, world.now).answer, world.now);
    }
    assert!(matches!(action, Action::Send { .. }), "the probe is out: {action:?}");
    let abandoned = call.abandoned(world.now).expect("an attempt is out");
    assert_eq!((abandoned.number, abandoned.outcome()), (1, "cancelled"));
    let settle = call.cancelled();
    assert!(settle.cancel.is_some());
    assert_eq!(call.abandoned(world.now), None);
    let _: super::CellAnswer = world.cells.settle(&settle, world.now);
    world.call(&[status(200)]);
    assert!(world.trace.ends_with("Success (succeeded) after 1 attempts\n"), "the slot came back: {}", world.trace);
    assert_eq!(world.config.upstreams.len(), 1);
}
