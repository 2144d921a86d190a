//! An endpoint's plan for the call machine, built once when the configuration is loaded.

use crate::classify::{Classification, Hint, RuleSet};
use crate::config::{AtCost, Config, EndpointConfig, EndpointPolicy, UpstreamConfig};
use crate::lease::{RequestMark, Reset, Until};
use crate::policy::{IdempotencyMode, Mode, OnExhausted, Retry, Timeout};
use crate::record::Scope;
use crate::time::{Nanos, Now, Wall};
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct CallPlan {
    pub timeout: Timeout,
    pub retry: Retry,
    /// Unsafe requests that may be sent again without a key.
    pub at_cost: AtCost,
    pub rules: Arc<RuleSet>,
    pub limited: bool,
    /// The longest wait for room in the limits.
    pub limit_wait: Nanos,
    /// The longest wait in the pool's queue; `None` without a pool.
    pub queue_timeout: Option<Nanos>,
    pub idempotent: bool,
    /// The upstream executes a repeated key once.
    pub honoured: bool,
    /// Calls ask the breaker. This is true even with the breaker off if a response can pause the endpoint or upstream.
    pub guarded: bool,
    /// The time that a probe of the breaker holds its permit: as long as the breaker's open time, so that slow probes do not hold up a
    /// healthy upstream, and no longer than an attempt may take.
    pub probe_lease: Nanos,
    /// The `Retry-After` for a breaker that an operator holds open.
    pub held_open: Nanos,
    pub keys: u16,
    pub refreshes: bool,
    /// The longest wait for a viable key.
    pub key_wait: Nanos,
    /// The longest wait for an open breaker, and for a retry's budget.
    pub breaker_wait: Nanos,
    /// The longest wait for the end of a provider's pause, the same as for a response that asks this call to wait.
    pub pause_wait: Nanos,
    pub reset: Option<Reset>,
    /// Time reserved at the end of the deadline: no attempt starts that could only finish too late.
    pub margin: Nanos,
}

impl CallPlan {
    #[must_use]
    pub fn new(config: &Config, upstream: &UpstreamConfig, endpoint: &EndpointConfig) -> Self {
        let policy = &endpoint.policy;
        let pool = config.pool_of(policy);
        let auth = upstream.auth.as_ref();
        let alone = Self::alone(policy);
        // An adaptive pool learns from the breaker's samples, even with the breaker off.
        let guarded = alone.guarded || pool.is_some_and(|pool| pool.adaptive);
        let limited = config.limits_of(policy).any(|limit| limit.mode != Mode::Off);
        let limit_wait = config.limits_of(policy).filter(|limit| limit.mode == Mode::Enforce).map(|limit| limit.max_wait).min();
        Self {
            limited,
            limit_wait: unless_elsewhere(policy, limit_wait.unwrap_or(Nanos::ZERO)),
            queue_timeout: pool.map(|pool| pool.queue_timeout),
            keys: auth.map_or(0, |auth| u16::try_from(auth.keys.len()).unwrap_or(u16::MAX)),
            refreshes: auth.is_some_and(|auth| auth.refresh.is_some()),
            key_wait: auth.map_or(Nanos::ZERO, |auth| auth.max_wait.unwrap_or(unless_elsewhere(policy, Nanos::MAX))),
            reset: auth.map(|auth| auth.reset.clone()),
            guarded,
            ..alone
        }
    }

    /// Whether callers send the credential that the upstream sees, because the upstream has neither keys nor a token of ours.
    #[must_use]
    pub const fn takes_callers_credentials(&self) -> bool {
        self.keys == 0 && !self.refreshes
    }

    /// Marks a request as evidence against keys, if there are any. The mark ignores the query.
    #[must_use]
    pub fn mark(&self, method: &str, path: &str) -> RequestMark {
        if self.keys == 0 { RequestMark::NONE } else { RequestMark::of(method, path.split('?').next().unwrap_or(path)) }
    }

    /// The policy by itself: no limits, no pool, no keys.
    #[must_use]
    pub fn alone(policy: &EndpointPolicy) -> Self {
        Self {
            timeout: policy.timeout,
            retry: policy.retry,
            at_cost: policy.at_cost.clone(),
            rules: Arc::clone(&policy.rules),
            limited: false,
            limit_wait: Nanos::ZERO,
            queue_timeout: None,
            idempotent: policy.idempotency.mode != IdempotencyMode::Off,
            honoured: policy.idempotency.honoured,
            guarded: policy.breaker.mode != Mode::Off || pauses(policy),
            probe_lease: policy.breaker.open.max(MIN_PROBE).min(policy.timeout.attempt + policy.timeout.connect),
            held_open: policy.breaker.open.max(MIN_HELD_OPEN),
            keys: 0,
            refreshes: false,
            key_wait: Nanos::ZERO,
            breaker_wait: match policy.breaker.mode {
                Mode::Enforce => unless_elsewhere(policy, policy.breaker.max_wait),
                Mode::Shadow | Mode::Off => Nanos::ZERO,
            },
            pause_wait: unless_elsewhere(policy, policy.retry.retry_after_cap),
            reset: None,
            margin: margin(policy.timeout),
        }
    }

    /// Returns the end of a quota: the rule's time, or else the provider's next reset.
    pub(super) fn cool_until(&self, verdict: &Classification, hint: Option<Nanos>, now: Now) -> Until {
        match (verdict.wait, hint, &self.reset) {
            (Hint::After(_), Some(length), _) => Until::Mono(now.mono + length),
            (Hint::Until(at), _, _) => Until::Wall(at),
            (_, _, Some(reset)) => Until::Wall(reset.next_after(now.wall) + verdict.skew),
            (_, _, None) => Until::Mono(now.mono + QUOTA_WITHOUT_RESET),
        }
    }

    /// A verdict's wait as a length from now; `None` leaves it to backoff.
    pub(super) fn wait_length(&self, verdict: &Classification, now: Wall) -> Option<Nanos> {
        match verdict.wait {
            Hint::None | Hint::Backoff => None,
            Hint::After(length) => Some(length),
            Hint::Until(at) => Some(at.since(now)),
            Hint::UntilReset => self.reset.as_ref().map(|reset| reset.next_after(now).since(now) + verdict.skew),
        }
    }
}

/// No wait for a call that has an alternative: a fallback, a stale response, or a job.
fn unless_elsewhere(policy: &EndpointPolicy, wait: Nanos) -> Nanos {
    let stale = policy.cache.stale_if_error > Nanos::ZERO;
    if policy.fallback.is_some() || stale || policy.on_exhausted == OnExhausted::Enqueue { Nanos::ZERO } else { wait }
}

/// Whether a response can make other calls wait too.
fn pauses(policy: &EndpointPolicy) -> bool {
    policy.rules.rules().iter().any(|rule| rule.scope != Scope::Call)
}

/// A tenth of an attempt's time, at most ten milliseconds: enough to reply to the caller before its own timeout.
fn margin(timeout: Timeout) -> Nanos {
    Nanos(timeout.attempt.0 / 10).min(Nanos::from_millis(10)).min(Nanos(timeout.total.0 / 10))
}

/// The shortest time that a probe holds its permit.
const MIN_PROBE: Nanos = Nanos::from_millis(250);

/// Only an operator closes a breaker that is held open, so callers need not retry more often than this.
const MIN_HELD_OPEN: Nanos = Nanos::from_secs(5);

/// The assumed length of a quota failure that does not say when it ends.
const QUOTA_WITHOUT_RESET: Nanos = Nanos::from_secs(3600);
