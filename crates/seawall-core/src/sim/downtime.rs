//! The chance that a call gives up while its upstream is down: every send gets a 503 until the upstream is back. The call machine decides,
//! with the breaker, the retry budget, keys, limits, pools and waiting that the configuration gives the endpoint.

use std::sync::Arc;

use super::queue::Queue;
use super::shared::SharedCells;
use super::stream;
use super::traffic::{CallMoment, Over, Traffic, WaitReason};
use crate::call::{CallPlan, Outcome};
use crate::classify::{ObservedResult, RuleSet};
use crate::config::{AtCost, Config, EndpointConfig, UpstreamConfig};
use crate::policy::IdempotencyMode;
use crate::record::{Code, Reason};
use crate::rng::Rng;
use crate::time::{Mono, Nanos, Now, Wall};

/// The upstream's response time.
const LATENCY: Nanos = Nanos::from_millis(10);
/// Enough calls for an error below two points.
const ENOUGH_CALLS: u64 = 2_000;
const MAX_RUNS: u32 = 100;
/// Calls in the part of an outage that is simulated first, and the most calls of any part.
const PART_CALLS: (f64, f64) = (4_000.0, 20_000.0);
/// The most events of one run.
const MAX_EVENTS: u32 = 500_000;
/// Calls that arrive after the upstream is back and compete with calls that waited.
const CALLS_AFTER: u32 = 1_000;
const EPOCH: Wall = Wall(1_782_864_000_000);

/// Returns for each outage the share of the calls that begin while the upstream is down and fail. Calls that a limit of ours refuses do not
/// count.
///
/// The same configuration gives the same numbers. A long outage is simulated in part: only calls that begin shortly before its end succeed,
/// and the part is long enough when hardly any call from its first half does.
#[must_use]
pub fn gives_up(
    config: &Config,
    (upstream, endpoint): (&UpstreamConfig, &EndpointConfig),
    calls_per_second: f64,
    outages: &[Nanos],
) -> Vec<f64> {
    let mut known: Vec<(Nanos, DowntimeResult)> = Vec::new();
    let mut find = |part: Nanos| match known.iter().find(|(length, _)| *length == part) {
        Some((_, found)) => *found,
        None => {
            let found = simulate(config, (upstream, endpoint), calls_per_second, part);
            known.push((part, found));
            found
        }
    };
    let chance = |outage: &Nanos| {
        let mut part = first_part(endpoint, calls_per_second, *outage);
        let mut found = find(part);
        while part < *outage && found.early * 100 > found.begun && part.as_secs_f64() * 2.0 * calls_per_second <= PART_CALLS.1 {
            part = aligned(endpoint, part.times(2), *outage);
            found = find(part);
        }
        if found.begun == 0 {
            return 0.0;
        }
        let share = found.answered as f64 / found.begun as f64;
        1.0 - share * part.as_secs_f64() / outage.as_secs_f64().max(f64::MIN_POSITIVE)
    };
    outages.iter().map(chance).collect()
}

/// The results of the calls that began in an outage.
#[derive(Clone, Copy, Debug, Default)]
struct DowntimeResult {
    begun: u64,
    answered: u64,
    /// The part of these that began in the first half of the outage.
    early: u64,
}

fn simulate(
    config: &Config,
    (upstream, endpoint): (&UpstreamConfig, &EndpointConfig),
    calls_per_second: f64,
    outage: Nanos,
) -> DowntimeResult {
    let mut sum = DowntimeResult::default();
    for run in 0..MAX_RUNS {
        let mut rng = stream(outage.0, [u64::from(run), 0, 0]);
        let begins_at = Mono(0) + endpoint.policy.breaker.window;
        let shared = SharedCells::calm(config, upstream, endpoint, calls_per_second, begins_at);
        let world = DowntimeWorld::new(shared, (begins_at, begins_at + outage), calls_per_second, is_keyed(endpoint), &mut rng);
        let found = world.finish();
        sum.begun += found.begun;
        sum.answered += found.answered;
        sum.early += found.early;
        if sum.begun >= ENOUGH_CALLS {
            break;
        }
    }
    sum
}

/// The length of the part that is simulated first: enough calls, and enough time for an open time that grows.
fn first_part(endpoint: &EndpointConfig, calls_per_second: f64, outage: Nanos) -> Nanos {
    let breaker = &endpoint.policy.breaker;
    let growing = if breaker.open_max > breaker.open { breaker.open_max.times(3) } else { Nanos::ZERO };
    let part = Nanos::from_secs_f64(PART_CALLS.0 / calls_per_second).max(growing);
    aligned(endpoint, part.min(Nanos::from_secs_f64(PART_CALLS.1 / calls_per_second)), outage)
}

/// Extends the part a little, so that it ends at the same phase of the breaker's open time as the whole outage.
fn aligned(endpoint: &EndpointConfig, part: Nanos, outage: Nanos) -> Nanos {
    let open = endpoint.policy.breaker.open_max.max(endpoint.policy.breaker.open);
    (part + Nanos((outage - part).0.checked_rem(open.0).unwrap_or(0))).min(outage)
}

/// Describes every setting that an endpoint's chances depend on. Endpoints with the same text have the same chances.
#[must_use]
pub fn fingerprint(config: &Config, (upstream, endpoint): (&UpstreamConfig, &EndpointConfig)) -> String {
    let shared = SharedCells::calm(config, upstream, endpoint, 1.0, Mono(0));
    let site = &shared.sites[0];
    let verdict = site.plan.rules.classify(&seen(&site.method, 503), EPOCH);
    let rules = Arc::new(RuleSet::new(Vec::new()));
    let plan = CallPlan { rules, at_cost: AtCost::NONE, ..CallPlan::clone(&site.plan) };
    let policy = &endpoint.policy;
    let keys = upstream.auth.as_ref().map(|auth| (auth.group_numbers(), auth.pick));
    let limits: Vec<_> = config.limits_of(policy).collect();
    let room = (config.pool_of(policy), limits, policy.cost, policy.waiting);
    format!("{:?}", (plan, policy.breaker, verdict, room, keys, &site.method, site.at_cost, is_keyed(endpoint)))
}

fn seen(method: &str, status: u16) -> ObservedResult<'_> {
    ObservedResult { method, result: Ok(status), headers: &(), body: b"", latency: LATENCY }
}

/// Whether requests to the endpoint have an idempotency key, from their callers or generated.
fn is_keyed(endpoint: &EndpointConfig) -> bool {
    matches!(endpoint.policy.idempotency.mode, IdempotencyMode::Required | IdempotencyMode::Generate)
}

#[derive(Clone, Copy, Debug)]
enum DowntimeEvent {
    Arrival,
    Answer { token: CallMoment, status: u16 },
    Woken(CallMoment),
}

#[derive(Debug)]
struct DowntimeWorld {
    traffic: Traffic,
    plan: Arc<CallPlan>,
    method: Arc<str>,
    keyed: bool,
    queue: Queue<DowntimeEvent>,
    arrivals: Rng,
    gap_s: f64,
    /// The begin and end of the outage.
    down: (Mono, Mono),
    after: u32,
    /// For each call, by its number, when it began, if in the outage.
    counted: Vec<Option<Mono>>,
    /// Calls that began in the outage and have not ended.
    open: u32,
    found: DowntimeResult,
}

impl DowntimeWorld {
    fn new(shared: SharedCells, down: (Mono, Mono), calls_per_second: f64, keyed: bool, rng: &mut Rng) -> Self {
        let site = &shared.sites[0];
        let (plan, method) = (Arc::clone(&site.plan), Arc::clone(&site.method));
        let mut world = Self {
            traffic: Traffic::over(shared, rng.fork()),
            plan,
            method,
            keyed,
            queue: Queue::with_capacity(1024),
            arrivals: rng.fork(),
            gap_s: 1.0 / calls_per_second,
            down,
            after: 0,
            counted: Vec::new(),
            open: 0,
            found: DowntimeResult::default(),
        };
        let first = down.0 + world.gap();
        // If calls are rare, place one in the outage, because the question is what happens to such a call.
        let first = if first < down.1 { first } else { down.0 + Nanos(world.arrivals.up_to(down.1.since(down.0).0.saturating_sub(1))) };
        world.queue.push(first, DowntimeEvent::Arrival);
        world
    }

    fn finish(mut self) -> DowntimeResult {
        for _ in 0..MAX_EVENTS {
            let Some((now, event)) = self.queue.pop() else { break };
            if now >= self.down.1 && self.open == 0 {
                break;
            }
            self.step(Now { mono: now, wall: EPOCH + now.since(Mono(0)) }, event);
        }
        self.found
    }

    fn step(&mut self, now: Now, event: DowntimeEvent) {
        match event {
            DowntimeEvent::Arrival => self.arrival(now),
            DowntimeEvent::Answer { token, status } => {
                let verdict = self.plan.rules.classify(&seen(&self.method, status), now.wall);
                if let Some(pause) = self.traffic.judged(token, Ok(status), &verdict, now) {
                    self.follow(pause, now);
                }
            }
            DowntimeEvent::Woken(token) => {
                if let Some(pause) = self.traffic.waited(token, now) {
                    self.follow(pause, now);
                }
            }
        }
        while let Some(pause) = self.traffic.called(now) {
            self.follow(pause, now);
        }
    }

    fn arrival(&mut self, now: Now) {
        let counts = now.mono < self.down.1;
        self.after += u32::from(!counts);
        if self.after < CALLS_AFTER {
            let next = now.mono + self.gap();
            self.queue.push(next, DowntimeEvent::Arrival);
        }
        let (id, pause) = self.traffic.begin(0, self.keyed, now);
        let began = counts.then_some(now.mono);
        match self.counted.get_mut(id as usize) {
            Some(old) => *old = began,
            None => self.counted.push(began),
        }
        self.open += u32::from(counts);
        self.found.begun += u64::from(counts);
        self.follow(pause, now);
    }

    fn follow(&mut self, pause: WaitReason, now: Now) {
        match pause {
            WaitReason::Result { token, timeout, .. } => {
                let status = if now.mono < self.down.1 { 503 } else { 200 };
                self.queue.push(now.mono + LATENCY.min(timeout), DowntimeEvent::Answer { token, status });
            }
            WaitReason::Until { token, at } => self.queue.push(at, DowntimeEvent::Woken(token)),
            WaitReason::Over(over) => self.over(&over),
        }
    }

    fn over(&mut self, over: &Over) {
        let Some(began) = self.counted[over.id as usize] else { return };
        self.open -= 1;
        match over.finish.outcome {
            Outcome::Success | Outcome::Replayed => {
                self.found.answered += 1;
                self.found.early += u64::from(began.since(self.down.0) < self.down.1.since(began));
            }
            Outcome::Refused(Code::RateLimited) if over.finish.reason == Reason::RateLimited => self.found.begun -= 1,
            Outcome::Failed(_) | Outcome::Refused(_) => {}
        }
    }

    fn gap(&mut self) -> Nanos {
        Nanos::from_secs_f64(self.arrivals.exponential(self.gap_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chance(policy: &str, load: f64, outage_ms: u64) -> f64 {
        let text = format!("[upstreams.a]\nurl = \"https://a.test\"\n{policy}");
        let config = crate::config::load("t", text.as_bytes()).unwrap();
        let upstream = &config.upstreams[0];
        gives_up(&config, (upstream, &upstream.endpoints[0]), load, &[Nanos::from_millis(outage_ms)])[0]
    }

    #[test]
    fn calls_wait_for_an_outage_that_is_over_in_time() {
        let chances = [100, 1_000, 10_000].map(|length| chance("", 100.0, length));
        assert!(chances.iter().all(|chance| *chance < 0.005), "{chances:?}");
        let chances = [60, 600].map(|seconds| chance("", 100.0, seconds * 1_000));
        assert!((0.75..0.9).contains(&chances[0]), "of a minute only the last seconds wait: {chances:?}");
        assert!((0.97..1.0).contains(&chances[1]), "{chances:?}");
    }

    #[test]
    fn the_load_decides_whether_a_breaker_opens_and_whether_its_line_is_long_enough() {
        let chances = [1.0, 100.0, 1_000.0].map(|load| chance("", load, 5_000));
        assert!(chances[0] < 0.05, "a call in a second opens no breaker, and its attempts take four to seven seconds: {chances:?}");
        assert!(chances[1] < 0.005, "{chances:?}");
        assert!((0.75..0.85).contains(&chances[2]), "a thousand of five thousand may wait: {chances:?}");
    }

    #[test]
    fn a_breaker_that_refuses_at_once_gives_up_what_retries_alone_would_save() {
        let patient = "retry = { attempts = 20, base = \"500ms\", cap = \"2s\" }\ntimeout.total = \"5m\"\n";
        let refusing = format!("{patient}breaker = {{ consecutive = 5, open = \"5s\", open_max = \"5s\", max_wait = \"0s\" }}");
        let without = format!("{patient}breaker.mode = \"off\"");
        assert!(chance(&refusing, 40.0, 10_000) > 0.9);
        assert!(chance(&without, 1.0, 10_000) < 0.05);
        assert!(chance(&without, 100.0, 10_000) > 0.5, "the retry budget does not pay for all of them");
    }

    #[test]
    fn an_unsafe_method_is_given_up_on_unless_it_has_a_key() {
        let post = |more: &str| {
            format!("endpoints = [{{ name = \"p\", match = \"POST /x\" }}]\nbreaker.mode = \"off\"\nrepeat = \"never\"\n{more}")
        };
        assert!(chance(&post(""), 1.0, 1_000) > 0.99);
        assert!(chance(&post("idempotency.mode = \"required\""), 1.0, 200) < 0.2);
    }

    #[test]
    fn what_a_limit_refuses_is_no_call_that_gives_up() {
        let limited = chance("limits = [{ name = \"l\", rate = \"20/s\" }]", 1_000.0, 5_000);
        assert!(limited < 0.05, "{limited}");
    }

    #[test]
    fn the_same_policy_gives_the_same_number_and_a_rare_call_is_asked_about_too() {
        let rare = chance("breaker.mode = \"off\"", 0.001, 8_000);
        assert_eq!(rare, chance("breaker.mode = \"off\"", 0.001, 8_000));
        assert!((0.1..0.4).contains(&rare), "{rare}");
    }

    #[test]
    fn a_long_outage_is_simulated_in_a_part_that_ends_as_the_whole_does() {
        let part = |policy: &str, load: f64| {
            let config = crate::config::load("t", format!("[upstreams.a]\nurl = \"https://a.test\"\n{policy}").as_bytes()).unwrap();
            first_part(&config.upstreams[0].endpoints[0], load, Nanos::from_secs(86_400))
        };
        assert_eq!(part("", 100.0), Nanos::from_secs(40));
        assert_eq!(part("", 0.001), Nanos::from_secs(86_400));
        let end = part("breaker = { open = \"7s\", open_max = \"7s\" }", 100.0);
        assert_eq!((Nanos::from_secs(86_400) - end).0 % Nanos::from_secs(7).0, 0, "{end}");
        assert!(part("breaker.open_max = \"50s\"", 100.0) >= Nanos::from_secs(150), "the open time has grown by then");
    }

    #[test]
    fn the_part_grows_until_hardly_any_call_of_its_first_half_is_answered() {
        let retry =
            "retry = { attempts = 8, backoff = \"full-jitter\", base = \"20s\", factor = 1.0, cap = \"20s\", budget_floor = \"1000/s\" }";
        let chance = chance(&format!("breaker.mode = \"off\"\n{retry}"), 80.0, 600_000);
        assert!((0.86..0.9).contains(&chance), "seven waits of ten seconds, so the last seventy of ten minutes: {chance}");
    }
}
