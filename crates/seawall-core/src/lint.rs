//! Warnings about policies that are valid and still may not do what their author expects: stable codes, one line each, and a longer
//! explanation on request.

use crate::config::model::{Config, EndpointConfig, UpstreamConfig};
use crate::config::place::{self, SecretRef};
use crate::policy::{BackoffKind, Mode, OnExhausted, Share, Unsafe};
use crate::time::Nanos;
use crate::{admit, calc};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    pub code: &'static str,
    /// The subject: `upstream/endpoint`, or a key path.
    pub subject: String,
    pub message: String,
    /// The `file:line` of the value; empty if it is inherited.
    pub origin: String,
}

/// Code, title, and the text of `seawall check --explain CODE`.
pub const CODES: &[(&str, &str, &str)] = &[
    (
        "SW001",
        "the deadline cuts the attempts short",
        "attempts × timeout.attempt plus the waits is longer than timeout.total, so in a slow outage the last attempts are never sent. Shorten timeout.attempt, lower retry.attempts, or raise timeout.total.",
    ),
    (
        "SW002",
        "the first wait is shorter than a round trip",
        "With retry.base below the time a request needs, the first retry arrives before the failure has had any time to pass. Twenty milliseconds is the least that makes sense over a network.",
    ),
    (
        "SW003",
        "the longest wait exceeds the deadline",
        "retry.cap is longer than timeout.total, so waits that long can never happen and the cap has no effect.",
    ),
    (
        "SW004",
        "the breaker can never open",
        "No trip can fire: `consecutive` is 0 and the limits in front of the endpoint let through fewer calls per window than min_calls, or the mode is not enforce. Set consecutive, lower min_calls, or lengthen the window.",
    ),
    (
        "SW005",
        "unsafe methods are retried without a key",
        "retry.unsafe = \"always\" sends POST and PATCH again even when nobody knows whether the first one was executed. Use \"with-key\" and let callers send an Idempotency-Key, or idempotency.mode = \"generate\" where the upstream honours keys.",
    ),
    (
        "SW006",
        "a server hint may exceed the deadline",
        "retry.retry_after_cap is longer than timeout.total: hints between the two are accepted by the cap and then refused by the deadline, so the call ends early all the same. Keep the cap below the deadline.",
    ),
    (
        "SW007",
        "all keys share one quota",
        "Every key is in the same group, so a quota failure cools all of them at once and rotation has nowhere to go. Give keys of separate projects separate groups.",
    ),
    (
        "SW008",
        "a secret is missing",
        "The environment variable is not set, or the file cannot be read. `serve` refuses to start, and so does `check` without --elsewhere.",
    ),
    (
        "SW009",
        "the admin port is open to the network",
        "It holds dead letters and can replay requests. A bearer token guards it, but it travels in clear text: put TLS in front, or listen on 127.0.0.1.",
    ),
    (
        "SW010",
        "there is no retry budget",
        "retry.budget of 100 % lets every call be retried: during an outage the load multiplies by retry.attempts, which can keep the upstream down. 10 % to 20 % of successes is enough for healing.",
    ),
    (
        "SW011",
        "scheduled requests fire together",
        "spread = \"0%\" starts all subjects of a schedule in the same instant. Leave the spread at 100 % of the interval.",
    ),
    (
        "SW012",
        "retries come back together",
        "Plain exponential backoff has no jitter: callers that failed together retry together. `seawall sim herd` shows the difference.",
    ),
    (
        "SW013",
        "slow calls can never trip the breaker",
        "breaker.slow is not below timeout.attempt, so a result that slow is already a timeout. Lower it, or set \"0s\" to say that it is not wanted.",
    ),
    (
        "SW014",
        "attempts multiply through layers",
        "An upstream of this file is a Seawall listener itself: attempts multiply. Say `seawall = true` of it, so that it does not repeat our repeats, or retry in one layer only, the one nearest to the failing dependency.",
    ),
    ("SW015", "credentials travel in clear text", "The upstream has keys and its URL is http:// to a host that is not this machine."),
    (
        "SW016",
        "quota failures have no other key to go to",
        "There is one key only: when it is out of quota, calls wait for the reset. Add a second key with a group of its own.",
    ),
    (
        "SW017",
        "the breaker looks back less than two attempts",
        "breaker.window is shorter than twice timeout.attempt: slow failures leave the window before enough of them are in it.",
    ),
    (
        "SW018",
        "calls may queue for longer than they may take",
        "The pool's queue_timeout is not below timeout.total, so a queued call can spend its whole deadline waiting.",
    ),
    ("SW019", "failed work is not kept", "dead_letter.from is empty: what jobs and batches give up on is only logged."),
    ("SW020", "a file is missing", "A schema or certificate cannot be read: `serve` will not start with it."),
    ("SW021", "the first wait is longer than the cap", "retry.base exceeds retry.cap, so every wait is the cap and nothing grows."),
    (
        "SW022",
        "a call costs more than a limit ever holds",
        "cost is above the limit's burst (for windows: above its count), so no wait helps and every such call is refused with 429. Raise burst, or lower cost.",
    ),
    (
        "SW023",
        "an open breaker refuses calls at once",
        "A call that meets the open breaker gets 503 circuit_open although it has time left: breaker.max_wait or waiting is zero, or breaker.open is longer than max_wait or the deadline allows. An outage then costs every call that comes while the breaker is open, however short it is. Leave max_wait at its default and keep open well below it, or give the endpoint a fallback.",
    ),
    (
        "SW024",
        "a throttled key refuses calls at once",
        "All keys share one quota and auth.max_wait is \"0s\": when the provider throttles one call, every other call gets 429 keys_exhausted until the key may be used again. Without max_wait calls wait for it within their deadline.",
    ),
    (
        "SW025",
        "the breaker stays open for longer than calls wait",
        "Each failed probe doubles the open time up to breaker.open_max, which is longer than breaker.max_wait or the deadline allows. In a long outage calls are refused at once again, and they still are for up to open_max after the upstream is back. Lower open_max, or raise max_wait.",
    ),
    (
        "SW026",
        "no retry is ever paid for",
        "retry.budget and retry.budget_floor are both zero, so every retry is denied and retry.attempts has no effect. Say attempts = 1 where none is wanted; otherwise leave the budget at 20% and 10/s.",
    ),
];

/// The environment outside the file, as far as warnings need it.
pub trait Surroundings {
    fn has_secret(&self, secret: &SecretRef) -> bool;
    fn has_file(&self, path: &str) -> bool;
}

/// All warnings about a valid configuration, in the order of the file's upstreams.
#[must_use]
pub fn warnings(config: &Config, around: &dyn Surroundings) -> Vec<Warning> {
    let mut found = Vec::new();
    for (path, secret) in config.secrets() {
        if !around.has_secret(&secret) {
            found.push(warning("SW008", path, format!("{secret} is not there")));
        }
    }
    if let Some(tls) = config.server.tls.as_ref().filter(|tls| !around.has_file(&tls.cert)) {
        found.push(warning("SW020", "server.tls.cert", format!("{} cannot be read", tls.cert)));
    }
    if !place::is_loopback(&config.server.admin) {
        found.push(warning("SW009", "server.admin", format!("listens on {}", config.server.admin)));
    }
    for schedule in config.schedules.iter().filter(|schedule| schedule.spread == Share::ZERO && schedule.subjects.len() != 1) {
        found.push(warning("SW011", format!("schedules.{}", schedule.name), "all subjects start in the same instant"));
    }
    for upstream in &config.upstreams {
        credentials(upstream, &mut found);
        let layers = layers_behind(config, upstream);
        for endpoint in &upstream.endpoints {
            let subject = format!("{}/{}", upstream.name, endpoint.name);
            endpoint_warnings(config, endpoint, &subject, &mut found);
            waiting_warnings(endpoint, &subject, &mut found);
            if let Some(path) = endpoint.policy.schema.as_deref().filter(|path| !around.has_file(path)) {
                found.push(warning("SW020", format!("{subject}.schema"), format!("{path} cannot be read")));
            }
            if layers > 1 && !upstream.seawall {
                let attempts = calc::amplification(&endpoint.policy.retry, layers, 0.0).attempts;
                found.push(warning("SW014", subject, format!("{layers} layers make up to {attempts} sends of one call")));
            }
        }
    }
    found.dedup();
    found
}

fn warning(code: &'static str, subject: impl Into<String>, message: impl Into<String>) -> Warning {
    Warning { code, subject: subject.into(), message: message.into(), origin: String::new() }
}

/// The number of Seawalls on the way to this upstream: the upstream may be a listener of this very file.
fn layers_behind(config: &Config, upstream: &UpstreamConfig) -> u32 {
    let authority = upstream.url.authority();
    let is_own = config.server.listen == authority || config.upstreams.iter().any(|other| other.listen.as_ref() == Some(&authority));
    if is_own { 2 } else { 1 }
}

fn credentials(upstream: &UpstreamConfig, found: &mut Vec<Warning>) {
    let Some(auth) = &upstream.auth else { return };
    let subject = format!("upstreams.{}.auth", upstream.name);
    if auth.keys.len() > 1 && auth.groups() == 1 {
        found.push(warning("SW007", &subject, format!("{} keys, one group", auth.keys.len())));
    }
    if auth.keys.len() == 1 {
        found.push(warning("SW016", &subject, "one key"));
    }
    if !auth.keys.is_empty() && auth.groups() == 1 && auth.max_wait == Some(Nanos::ZERO) {
        found.push(warning("SW024", &subject, "max_wait is 0s"));
    }
    let local = place::is_loopback(&format!("{}:{}", upstream.url.host, upstream.url.port));
    if !upstream.url.tls && !local {
        found.push(warning("SW015", subject, format!("{} is not https", upstream.url)));
    }
}

fn endpoint_warnings(config: &Config, endpoint: &EndpointConfig, subject: &str, found: &mut Vec<Warning>) {
    let policy = &endpoint.policy;
    let (timeout, retry, breaker) = (policy.timeout, policy.retry, policy.breaker);
    let mut push = |code: &'static str, key: &str, message: String| {
        let origin = origin(endpoint, key);
        found.push(Warning { code, subject: subject.to_owned(), message, origin });
    };
    // A value that the user did not write is the preset's or profile's own choice, made for its API.
    let wrote = |key: &str| !origin(endpoint, key).is_empty();
    let worst = calc::worst_case(policy);
    let schedule = ["timeout.attempt", "timeout.total", "retry.attempts", "retry.base", "retry.cap"];
    if retry.attempts > 1 && worst.attempts_that_fit < retry.attempts && schedule.into_iter().any(wrote) {
        push(
            "SW001",
            "timeout.total",
            format!(
                "{} of {} attempts fit into {} if each takes {}",
                worst.attempts_that_fit, retry.attempts, timeout.total, timeout.attempt
            ),
        );
    }
    if retry.attempts > 1 && retry.backoff.base < Nanos::from_millis(20) && policy.profile != "cache" {
        push("SW002", "retry.base", format!("base is {}", retry.backoff.base));
    }
    if retry.backoff.cap > timeout.total {
        push("SW003", "retry.cap", format!("cap {} exceeds total {}", retry.backoff.cap, timeout.total));
    }
    if retry.backoff.base > retry.backoff.cap {
        push("SW021", "retry.base", format!("base {} exceeds cap {}", retry.backoff.base, retry.backoff.cap));
    }
    let limits: Vec<_> = config.limits_of(policy).cloned().collect();
    for limit in limits.iter().filter(|limit| limit.mode == Mode::Enforce) {
        let capacity = admit::limit::Gcra::from(limit).capacity();
        if policy.cost > capacity {
            push("SW022", "cost", format!("cost {} and limit {} holds {capacity}", policy.cost, limit.name));
        }
    }
    let trips = calc::trips(&breaker, &limits, timeout.attempt);
    if !trips.any() && breaker.mode != Mode::Off {
        push(
            "SW004",
            "breaker.min_calls",
            format!("mode {}, consecutive {}, min_calls {} in {}", breaker.mode, breaker.consecutive, breaker.min_calls, breaker.window),
        );
    }
    if retry.unsafe_methods == Unsafe::Always && retry.attempts > 1 {
        push("SW005", "retry.unsafe", "POST and PATCH may be executed twice".to_owned());
    }
    // These two inherit from longer timeouts, and are harmless there: the deadline comes first anyway.
    if retry.retry_after_cap > timeout.total && wrote("retry.retry_after_cap") {
        push("SW006", "retry.retry_after_cap", format!("retry_after_cap {} exceeds total {}", retry.retry_after_cap, timeout.total));
    }
    if retry.budget >= Share::WHOLE && retry.attempts > 1 {
        push("SW010", "retry.budget", format!("budget is {}", retry.budget));
    }
    if retry.backoff.kind == BackoffKind::Exponential && retry.attempts > 1 {
        push("SW012", "retry.backoff", "no jitter".to_owned());
    }
    if breaker.slow > timeout.attempt && breaker.mode == Mode::Enforce && wrote("breaker.slow") {
        push("SW013", "breaker.slow", format!("slow {} is above the attempt timeout {}", breaker.slow, timeout.attempt));
    }
    if breaker.window < timeout.attempt.times(2) && breaker.mode == Mode::Enforce && (wrote("breaker.window") || wrote("timeout.attempt")) {
        push("SW017", "breaker.window", format!("window {} and attempt timeout {}", breaker.window, timeout.attempt));
    }
    if let Some(pool) = config.pool_of(policy).filter(|pool| pool.queue > 0 && pool.queue_timeout >= timeout.total) {
        push("SW018", "timeout.total", format!("pool {} queues for up to {}, total is {}", pool.name, pool.queue_timeout, timeout.total));
    }
    if policy.dead_letter.from.is_empty() {
        push("SW019", "dead_letter.from", "no door leaves dead letters".to_owned());
    }
}

/// Warnings about calls that are refused although they could wait. A profile's own value gives no warning: its page explains the choice.
fn waiting_warnings(endpoint: &EndpointConfig, subject: &str, found: &mut Vec<Warning>) {
    let policy = &endpoint.policy;
    let (breaker, total) = (policy.breaker, policy.timeout.total);
    let mut push = |code: &'static str, key: &str, message: String| {
        found.push(Warning { code, subject: subject.to_owned(), message, origin: origin(endpoint, key) });
    };
    let wrote = |key: &str| !origin(endpoint, key).is_empty();
    if policy.retry.budget == Share::ZERO && policy.retry.budget_floor.count == 0 && policy.retry.attempts > 1 {
        push("SW026", "retry.budget_floor", format!("attempts {} with an empty budget", policy.retry.attempts));
    }
    let stale = policy.cache.stale_if_error > Nanos::ZERO;
    let elsewhere = policy.fallback.is_some() || stale || policy.on_exhausted == OnExhausted::Enqueue;
    if breaker.mode != Mode::Enforce || elsewhere {
        return;
    }
    let patience = breaker.max_wait.min(total);
    let long = |key: &str| wrote(key) || wrote("breaker.max_wait") || wrote("timeout.total");
    if patience == Nanos::ZERO {
        if wrote("breaker.max_wait") {
            push("SW023", "breaker.max_wait", "max_wait is 0s".to_owned());
        }
    } else if policy.waiting == 0 {
        push("SW023", "waiting", "waiting is 0".to_owned());
    } else if breaker.open > patience && long("breaker.open") {
        push("SW023", "breaker.open", format!("open {}, and calls wait for {patience} at most", breaker.open));
    } else if breaker.open_max > patience && long("breaker.open_max") {
        push("SW025", "breaker.open_max", format!("open_max {}, and calls wait for {patience} at most", breaker.open_max));
    }
}

/// `file:line` of the value behind a dotted key, where the user wrote it.
fn origin(endpoint: &EndpointConfig, key: &str) -> String {
    let node = match key.split_once('.') {
        Some((table, key)) => endpoint.tree.table(table).and_then(|table| table.node(key)),
        None => endpoint.tree.node(key),
    };
    node.filter(|node| node.origin.is_explicit()).map(|node| node.origin.to_string()).unwrap_or_default()
}
