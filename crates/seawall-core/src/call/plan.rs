//! What the call machine needs to know of an endpoint, put together once when the configuration is loaded.

use crate::classify::{Hint, RuleSet, Verdict};
use crate::config::{Config, Endpoint, Policy, Upstream};
use crate::lease::{RequestMark, Reset, Until};
use crate::policy::{IdempotencyMode, Mode, Retry, Timeout};
use crate::record::Scope;
use crate::time::{Nanos, Now, Wall};
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct Plan {
    pub timeout: Timeout,
    pub retry: Retry,
    pub rules: Arc<RuleSet>,
    pub limited: bool,
    /// How long a call may wait for a place in its pool; `None` where it has no pool.
    pub queue_timeout: Option<Nanos>,
    pub idempotent: bool,
    /// The upstream executes a repeated key once.
    pub honoured: bool,
    /// The breaker is asked: also where it is off, if a server can tell everybody to stay away.
    pub guarded: bool,
    /// How long whoever meets a breaker is told to wait that nobody but an operator will close.
    pub held_open: Nanos,
    pub keys: u16,
    pub refreshes: bool,
    /// How long a call waits for a key to become viable.
    pub max_wait: Nanos,
    pub reset: Option<Reset>,
    /// Kept back at the end of the deadline: no attempt is started that could only answer too late.
    pub margin: Nanos,
}

impl Plan {
    #[must_use]
    pub fn new(config: &Config, upstream: &Upstream, endpoint: &Endpoint) -> Self {
        let policy = &endpoint.policy;
        let pool = config.pool_of(policy);
        let auth = upstream.auth.as_ref();
        let limited = config.limits_of(policy).any(|limit| limit.mode != Mode::Off);
        Self {
            limited,
            queue_timeout: pool.map(|pool| pool.queue_timeout),
            keys: auth.map_or(0, |auth| u16::try_from(auth.keys.len()).unwrap_or(u16::MAX)),
            refreshes: auth.is_some_and(|auth| auth.refresh.is_some()),
            max_wait: auth.map_or(Nanos::ZERO, |auth| auth.max_wait),
            reset: auth.map(|auth| auth.reset.clone()),
            ..Self::alone(policy)
        }
    }

    /// Marks a request, as evidence against keys; only where there are keys. A query is no part of it.
    #[must_use]
    pub fn mark(&self, method: &str, path: &str) -> RequestMark {
        if self.keys == 0 { RequestMark::NONE } else { RequestMark::of(method, path.split('?').next().unwrap_or(path)) }
    }

    /// The policy by itself: no limits, no pool, no keys.
    #[must_use]
    pub fn alone(policy: &Policy) -> Self {
        Self {
            timeout: policy.timeout,
            retry: policy.retry,
            rules: Arc::clone(&policy.rules),
            limited: false,
            queue_timeout: None,
            idempotent: policy.idempotency.mode != IdempotencyMode::Off,
            honoured: policy.idempotency.honoured,
            guarded: policy.breaker.mode != Mode::Off || pauses(policy),
            held_open: policy.breaker.open,
            keys: 0,
            refreshes: false,
            max_wait: Nanos::ZERO,
            reset: None,
            margin: margin(policy.timeout),
        }
    }

    /// A quota ends when its rule says, or else at the provider's next reset.
    pub(super) fn cool_until(&self, verdict: &Verdict, hint: Option<Nanos>, now: Now) -> Until {
        match (verdict.wait, hint, &self.reset) {
            (Hint::After(_), Some(length), _) => Until::Mono(now.mono + length),
            (Hint::Until(at), _, _) => Until::Wall(at),
            (_, _, Some(reset)) => Until::Wall(reset.next_after(now.wall) + verdict.skew),
            (_, _, None) => Until::Mono(now.mono + QUOTA_WITHOUT_RESET),
        }
    }

    /// A verdict's wait as a length from now; `None` leaves it to backoff.
    pub(super) fn wait_length(&self, verdict: &Verdict, now: Wall) -> Option<Nanos> {
        match verdict.wait {
            Hint::None | Hint::Backoff => None,
            Hint::After(length) => Some(length),
            Hint::Until(at) => Some(at.since(now)),
            Hint::UntilReset => self.reset.as_ref().map(|reset| reset.next_after(now).since(now) + verdict.skew),
        }
    }
}

/// Whether an answer can make other calls wait too.
fn pauses(policy: &Policy) -> bool {
    policy.rules.rules().iter().any(|rule| matches!(rule.scope, Scope::Endpoint | Scope::Upstream))
}

/// A tenth of an attempt's time, at most ten milliseconds: enough to answer the caller before its own clock runs out.
fn margin(timeout: Timeout) -> Nanos {
    Nanos(timeout.attempt.0 / 10).min(Nanos::from_millis(10)).min(Nanos(timeout.total.0 / 10))
}

/// A quota failure without any word on when it ends.
const QUOTA_WITHOUT_RESET: Nanos = Nanos::from_secs(3600);
