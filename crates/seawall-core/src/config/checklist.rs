//! The endpoint checklist: questions that every endpoint's configuration must answer before production traffic.

use super::model::{Config, EndpointConfig, UpstreamConfig};
use crate::policy::{IdempotencyMode, LimitKey, LimitPolicy, Mode, OnExhausted, Unsafe};
use crate::time::Nanos;

/// One question and the configuration's answer; `gap` if nothing protects against it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub question: &'static str,
    pub answer: String,
    pub gap: bool,
}

fn item(question: &'static str, answer: impl Into<String>) -> Item {
    Item { question, answer: answer.into(), gap: false }
}

fn gap(question: &'static str, answer: impl Into<String>) -> Item {
    Item { question, answer: answer.into(), gap: true }
}

#[must_use]
pub fn checklist(config: &Config, upstream: &UpstreamConfig, endpoint: &EndpointConfig) -> Vec<Item> {
    let policy = &endpoint.policy;
    let limits: Vec<&LimitPolicy> = config.limits_of(policy).filter(|limit| limit.mode == Mode::Enforce).collect();
    let mut items = limit_items(&limits, policy.cost);
    items.push(item(
        "deadline",
        format!("{} in all, shortened by Seawall-Timeout-Ms{}", policy.timeout.total, forwarded(policy.deadline_header.as_deref())),
    ));
    items.push(item("downstream timeouts", format!("connect {}, attempt {}", policy.timeout.connect, policy.timeout.attempt)));
    items.push(retry(endpoint));
    items.push(idempotency(endpoint));
    items.push(match config.pool_of(policy) {
        Some(pool) => item(
            "concurrency",
            format!("pool {}: {} at once, {} in line for up to {}", pool.name, pool.concurrent, pool.queue, pool.queue_timeout),
        ),
        None => gap("concurrency", "no pool: a slow upstream may take every connection"),
    });
    items.push(degraded(endpoint));
    items.push(item(
        "overload answer",
        format!("429 rate_limited or 503 overloaded, with Retry-After and {}", policy.error_shape.described()),
    ));
    items.push(item("breaker", breaker(endpoint)));
    items.push(item("dashboard", format!("endpoint \"{}\" of upstream \"{}\" in logs and metrics", endpoint.name, upstream.name)));
    items
}

fn limit_items(limits: &[&LimitPolicy], cost: u64) -> Vec<Item> {
    if limits.is_empty() {
        return vec![
            gap("caller key", "no limit: callers are not told apart"),
            item("cost", format!("{cost} per call")),
            gap("burst", "no limit"),
            gap("sustained", "no limit"),
        ];
    }
    let list = |part: &dyn Fn(&LimitPolicy) -> String| {
        limits.iter().map(|limit| format!("{}: {}", limit.name, part(limit))).collect::<Vec<_>>().join("; ")
    };
    vec![
        item("caller key", list(&|limit| keys(&limit.key))),
        item("cost", format!("{cost} per call")),
        item("burst", list(&|limit| limit.burst.to_string())),
        item("sustained", list(&|limit| limit.rate.to_string())),
    ]
}

/// A limit's key in the file's syntax.
#[must_use]
pub fn keys(key: &[LimitKey]) -> String {
    let words: Vec<String> = key
        .iter()
        .map(|part| match part {
            LimitKey::Global => "global".to_owned(),
            LimitKey::Ip => "ip".to_owned(),
            LimitKey::Caller => "caller".to_owned(),
            LimitKey::User => "user".to_owned(),
            LimitKey::Tenant => "tenant".to_owned(),
            LimitKey::Upstream => "upstream".to_owned(),
            LimitKey::Endpoint => "endpoint".to_owned(),
            LimitKey::Key => "key".to_owned(),
            LimitKey::Header(name) => format!("header:{name}"),
        })
        .collect();
    words.join(" + ")
}

fn forwarded(header: Option<&str>) -> String {
    header.map(|name| format!(", told upstream as {name}")).unwrap_or_default()
}

fn retry(endpoint: &EndpointConfig) -> Item {
    let retry = &endpoint.policy.retry;
    if retry.attempts == 1 {
        return item("retry", "never");
    }
    let methods = match retry.unsafe_methods {
        Unsafe::Never => "idempotent methods only",
        Unsafe::WithKey => "POST only with an Idempotency-Key",
        Unsafe::Always => "every method, also without a key",
    };
    item(
        "retry",
        format!(
            "{} attempts, {} from {} to {}, budget {} + {}; {methods}",
            retry.attempts, retry.backoff.kind, retry.backoff.base, retry.backoff.cap, retry.budget, retry.budget_floor
        ),
    )
}

fn idempotency(endpoint: &EndpointConfig) -> Item {
    let idempotency = endpoint.policy.idempotency;
    match idempotency.mode {
        IdempotencyMode::Off => gap("idempotency", "off: a repeated POST runs twice"),
        mode => item("idempotency", format!("keys {mode}, results kept for {}", idempotency.ttl)),
    }
}

fn degraded(endpoint: &EndpointConfig) -> Item {
    let policy = &endpoint.policy;
    let mut answers = Vec::new();
    if policy.cache.stale_if_error > Nanos::ZERO {
        answers.push(format!("cached answer up to {} old", policy.cache.stale_if_error));
    }
    if let Some(fallback) = &policy.fallback {
        answers.push(format!("static {} {}", fallback.status, fallback.content_type));
    }
    if policy.on_exhausted == OnExhausted::Enqueue {
        answers.push("becomes a job (202)".to_owned());
    }
    if answers.is_empty() {
        gap("degraded answer", "none: the failure is passed on")
    } else {
        item("degraded answer", answers.join(", then "))
    }
}

fn breaker(endpoint: &EndpointConfig) -> String {
    let breaker = &endpoint.policy.breaker;
    match breaker.mode {
        Mode::Off => "off".to_owned(),
        mode => format!(
            "per {}: opens at {} in a row or {} of ≥ {} in {}, for {} up to {}{}",
            breaker.per,
            breaker.consecutive,
            breaker.failure_rate,
            breaker.min_calls,
            breaker.window,
            breaker.open,
            breaker.open_max,
            if mode == Mode::Shadow { " (shadow: never refuses)" } else { "" }
        ),
    }
}
