//! The chance that a call gives up while its upstream is down: every send is answered with 503 until the upstream is back. The call machine
//! decides, with the breaker, the retry budget, keys, limits, pools and waiting that the configuration gives the endpoint.

use std::sync::Arc;

use super::queue::Queue;
use super::shared::Shared;
use super::stream;
use super::traffic::{Over, Pause, Token, Traffic};
use crate::call::{Outcome, Plan};
use crate::classify::{RuleSet, Seen};
use crate::config::{AtCost, Config, Endpoint, Upstream};
use crate::policy::IdempotencyMode;
use crate::record::{Code, Reason};
use crate::rng::Rng;
use crate::time::{Mono, Nanos, Now, Wall};

/// How long the upstream takes for an answer.
const LATENCY: Nanos = Nanos::from_millis(10);
/// Enough calls for an error below two points.
const ENOUGH_CALLS: u64 = 2_000;
const MAX_RUNS: u32 = 100;
/// What one run simulates at most.
const MAX_CALLS: f64 = 20_000.0;
const MAX_EVENTS: u32 = 500_000;
/// Calls that go on arriving once the upstream is back: they compete with those that waited.
const CALLS_AFTER: u32 = 1_000;
const EPOCH: Wall = Wall(1_782_864_000_000);

/// Returns the share of the calls that begin while the upstream is down and are not answered. Calls that a limit of ours refuses do not count.
///
/// The same configuration gives the same number. A long outage is simulated in part: a call that begins more than its deadline before
/// the end fails, so only the last part can make a difference.
#[must_use]
pub fn gives_up(config: &Config, (upstream, endpoint): (&Upstream, &Endpoint), calls_per_second: f64, outage: Nanos) -> f64 {
    let simulated = simulated_part(endpoint, calls_per_second, outage);
    let (mut begun, mut answered) = (0, 0);
    for run in 0..MAX_RUNS {
        let mut rng = stream(outage.0, [u64::from(run), 0, 0]);
        let begins_at = Mono(0) + endpoint.policy.breaker.window;
        let shared = Shared::calm(config, upstream, endpoint, calls_per_second, begins_at);
        let world = World::new(shared, (begins_at, begins_at + simulated), calls_per_second, is_keyed(endpoint), &mut rng).finish();
        begun += world.begun;
        answered += world.answered;
        if begun >= ENOUGH_CALLS {
            break;
        }
    }
    if begun == 0 {
        return 0.0;
    }
    let share = answered as f64 / begun as f64;
    1.0 - share * simulated.as_secs_f64() / outage.as_secs_f64().max(f64::MIN_POSITIVE)
}

/// Names everything of an endpoint's configuration that its chances depend on. Endpoints with the same text have the same chances.
#[must_use]
pub fn fingerprint(config: &Config, (upstream, endpoint): (&Upstream, &Endpoint)) -> String {
    let shared = Shared::calm(config, upstream, endpoint, 1.0, Mono(0));
    let site = &shared.sites[0];
    let verdict = site.plan.rules.classify(&seen(&site.method, 503), EPOCH);
    let rules = Arc::new(RuleSet::new(Vec::new()));
    let plan = Plan { rules, at_cost: AtCost::NONE, ..Plan::clone(&site.plan) };
    let policy = &endpoint.policy;
    let keys = upstream.auth.as_ref().map(|auth| (auth.group_numbers(), auth.pick));
    let limits: Vec<_> = config.limits_of(policy).collect();
    let room = (config.pool_of(policy), limits, policy.cost, policy.waiting);
    format!("{:?}", (plan, policy.breaker, verdict, room, keys, &site.method, site.at_cost, is_keyed(endpoint)))
}

fn seen(method: &str, status: u16) -> Seen<'_> {
    Seen { method, result: Ok(status), headers: &(), body: b"", latency: LATENCY }
}

/// How much of the outage is simulated: a deadline's length, after the time that the breaker needs to settle. The end falls into the same
/// moment of the breaker's open time as the end of the whole.
fn simulated_part(endpoint: &Endpoint, calls_per_second: f64, outage: Nanos) -> Nanos {
    let policy = &endpoint.policy;
    let open = policy.breaker.open_max.max(policy.breaker.open);
    let at_most = Nanos::from_secs_f64(MAX_CALLS / calls_per_second);
    let part = (policy.timeout.total + open.times(2)).min(at_most);
    let part = part + Nanos((outage - part).0.checked_rem(open.0).unwrap_or(0)).min(at_most);
    part.min(outage)
}

/// Whether requests to the endpoint have an idempotency key, their callers' own or one that is made for them.
fn is_keyed(endpoint: &Endpoint) -> bool {
    matches!(endpoint.policy.idempotency.mode, IdempotencyMode::Required | IdempotencyMode::Generate)
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Arrival,
    Answer { token: Token, status: u16 },
    Woken(Token),
}

#[derive(Debug)]
struct World {
    traffic: Traffic,
    plan: Arc<Plan>,
    method: Arc<str>,
    keyed: bool,
    queue: Queue<Event>,
    arrivals: Rng,
    gap_s: f64,
    /// When the outage begins and when it ends.
    down: (Mono, Mono),
    after: u32,
    /// Whether a call began in the outage, by its number.
    counted: Vec<bool>,
    /// Calls that began in the outage and have not ended.
    open: u32,
    begun: u64,
    answered: u64,
}

impl World {
    fn new(shared: Shared, down: (Mono, Mono), calls_per_second: f64, keyed: bool, rng: &mut Rng) -> Self {
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
            begun: 0,
            answered: 0,
        };
        let first = down.0 + world.gap();
        // Where calls are rare, the question is what happens to one that does fall into the outage.
        let first = if first < down.1 { first } else { down.0 + Nanos(world.arrivals.up_to(down.1.since(down.0).0.saturating_sub(1))) };
        world.queue.push(first, Event::Arrival);
        world
    }

    fn finish(mut self) -> Self {
        for _ in 0..MAX_EVENTS {
            let Some((now, event)) = self.queue.pop() else { break };
            if now >= self.down.1 && self.open == 0 {
                break;
            }
            self.step(Now { mono: now, wall: EPOCH + now.since(Mono(0)) }, event);
        }
        self
    }

    fn step(&mut self, now: Now, event: Event) {
        match event {
            Event::Arrival => self.arrival(now),
            Event::Answer { token, status } => {
                let verdict = self.plan.rules.classify(&seen(&self.method, status), now.wall);
                if let Some(pause) = self.traffic.judged(token, Ok(status), &verdict, now) {
                    self.follow(pause, now);
                }
            }
            Event::Woken(token) => {
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
            self.queue.push(next, Event::Arrival);
        }
        let (id, pause) = self.traffic.begin(0, self.keyed, now);
        match self.counted.get_mut(id as usize) {
            Some(old) => *old = counts,
            None => self.counted.push(counts),
        }
        self.open += u32::from(counts);
        self.begun += u64::from(counts);
        self.follow(pause, now);
    }

    fn follow(&mut self, pause: Pause, now: Now) {
        match pause {
            Pause::Result { token, timeout, .. } => {
                let status = if now.mono < self.down.1 { 503 } else { 200 };
                self.queue.push(now.mono + LATENCY.min(timeout), Event::Answer { token, status });
            }
            Pause::Until { token, at } => self.queue.push(at, Event::Woken(token)),
            Pause::Over(over) => self.over(&over),
        }
    }

    fn over(&mut self, over: &Over) {
        if !self.counted[over.id as usize] {
            return;
        }
        self.open -= 1;
        match over.finish.outcome {
            Outcome::Success | Outcome::Replayed => self.answered += 1,
            Outcome::Refused(Code::RateLimited) if over.finish.reason == Reason::RateLimited => self.begun -= 1,
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
        gives_up(&config, (upstream, &upstream.endpoints[0]), load, Nanos::from_millis(outage_ms))
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
        assert!(chances[0] > 0.6, "a call in a second opens no breaker, and four attempts take one second: {chances:?}");
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
        let rare = chance("breaker.mode = \"off\"", 0.001, 5_000);
        assert_eq!(rare, chance("breaker.mode = \"off\"", 0.001, 5_000));
        assert!((0.5..1.0).contains(&rare), "{rare}");
    }

    #[test]
    fn a_long_outage_is_not_simulated_as_a_whole() {
        let part = |policy: &str, load: f64| {
            let config = crate::config::load("t", format!("[upstreams.a]\nurl = \"https://a.test\"\n{policy}").as_bytes()).unwrap();
            simulated_part(&config.upstreams[0].endpoints[0], load, Nanos::from_secs(86_400))
        };
        let whole = part("", 1.0);
        assert!(whole >= Nanos::from_secs(180) && whole < Nanos::from_secs(190), "{whole}");
        assert!(part("", 1_000.0) < Nanos::from_secs(41));
        let open = Nanos::from_secs(7);
        let end = part("breaker = { open = \"7s\", open_max = \"7s\" }", 1.0);
        assert_eq!((Nanos::from_secs(86_400) - end).0 % open.0, 0, "{end}");
    }
}
