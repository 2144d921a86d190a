//! Predicts the effect of a policy: worst cases, amplification, and the conditions that can open a breaker.

use crate::config::EndpointPolicy;
use crate::policy::{Backoff, BreakerPolicy, LimitPolicy, Mode, Retry};
use crate::time::Nanos;

/// The longest duration of a call, if every attempt fails as slowly as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongestCall {
    /// Attempts and waits added up, as if there were no deadline.
    pub unbounded: Nanos,
    /// The duration that the caller sees, cut off by the deadline.
    pub elapsed: Nanos,
    /// Sends that fit before the deadline if each one times out and each wait is the longest.
    pub attempts_that_fit: u32,
}

#[must_use]
pub fn worst_case(policy: &EndpointPolicy) -> LongestCall {
    let (attempt, total) = (policy.timeout.attempt, policy.timeout.total);
    let mut at = Nanos::ZERO;
    let mut fit = 0;
    let mut previous = Nanos::ZERO;
    for n in 0..policy.retry.attempts {
        if at < total {
            fit += 1;
        }
        at = at + attempt;
        if n + 1 < policy.retry.attempts {
            previous = policy.retry.backoff.range(n, previous).1;
            at = at + previous;
        }
    }
    LongestCall { unbounded: at, elapsed: at.min(total), attempts_that_fit: fit }
}

/// Sends per call when each one fails with probability `failing`: 1 + p + p² + …
#[must_use]
pub fn expected_attempts(retry: &Retry, failing: f64) -> f64 {
    let failing = failing.clamp(0.0, 1.0);
    let mut sum = 0.0;
    let mut reached = 1.0;
    for _ in 0..retry.attempts {
        sum += reached;
        reached *= failing;
    }
    sum
}

/// Sends per call while everything fails.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SendsPerCall {
    /// Bounded by attempts alone.
    pub attempts: f64,
    /// With the success-funded budget: an outage earns nothing, so only the floor's share is left.
    pub budgeted: f64,
}

/// Through `layers` that all retry like this one, at `calls_per_second` calls.
#[must_use]
pub fn amplification(retry: &Retry, layers: u32, calls_per_second: f64) -> SendsPerCall {
    let one = f64::from(retry.attempts);
    let floor = if calls_per_second > 0.0 { retry.budget_floor.per_second_f64() / calls_per_second } else { 0.0 };
    let budgeted = one.min(1.0 + floor);
    let power = i32::try_from(layers).unwrap_or(i32::MAX);
    SendsPerCall { attempts: one.powi(power), budgeted: budgeted.powi(power) }
}

/// Sends through `layers` Seawalls that detect each other: a repeated request is not repeated again, so each layer adds its retries once
/// instead of multiplying.
#[must_use]
pub fn chained(retry: &Retry, layers: u32) -> u32 {
    layers.saturating_mul(retry.attempts.saturating_sub(1)).saturating_add(1)
}

/// The number of retries that fit into a length of time when every wait is the longest.
#[must_use]
pub fn retries_that_fit(backoff: &Backoff, within: Nanos) -> u32 {
    let mut at = Nanos::ZERO;
    for n in 0..10_000 {
        at = at + backoff.ceiling(n);
        if at > within {
            return n;
        }
    }
    10_000
}

/// The conditions that could open a breaker, if any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TripCondition {
    pub consecutive: bool,
    pub failure_rate: bool,
    pub slow_rate: bool,
}

impl TripCondition {
    #[must_use]
    pub const fn any(self) -> bool {
        self.consecutive || self.failure_rate || self.slow_rate
    }
}

/// The trips of a breaker that can ever fire, given the limits in front of it and the attempt's timeout.
#[must_use]
pub fn trips(breaker: &BreakerPolicy, limits: &[LimitPolicy], attempt: Nanos) -> TripCondition {
    if breaker.mode != Mode::Enforce {
        return TripCondition::default();
    }
    let per_window = limits
        .iter()
        .filter(|limit| limit.mode == Mode::Enforce)
        .map(|limit| limit.rate.per_second_f64() * breaker.window.as_secs_f64() + limit.burst as f64)
        .fold(f64::INFINITY, f64::min);
    let enough = per_window >= f64::from(breaker.min_calls);
    let slow_possible = breaker.slow > Nanos::ZERO && breaker.slow <= attempt;
    TripCondition {
        consecutive: breaker.consecutive > 0,
        failure_rate: enough && breaker.failure_rate.0 > 0,
        slow_rate: enough && slow_possible && breaker.slow_rate.0 > 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::default_policy;
    use crate::policy::{BackoffKind, Share};

    fn doubling(base_s: u64, factor: f64, cap_s: u64) -> Backoff {
        Backoff {
            kind: BackoffKind::Exponential,
            base: Nanos::from_secs(base_s),
            factor,
            cap: Nanos::from_secs(cap_s),
            jitter: Share::ZERO,
        }
    }

    #[test]
    fn the_calculator_counts_retries_that_fit() {
        let hour = Nanos::from_secs(3600);
        for (factor, fit) in [(2.0, 11), (3.0, 8), (4.0, 6)] {
            assert_eq!(retries_that_fit(&doubling(1, factor, 3600), hour), fit, "{factor}");
        }
        assert_eq!(retries_that_fit(&doubling(1, 2.0, 6 * 3600), Nanos::from_secs(24 * 3600)), 17);
    }

    #[test]
    fn the_worst_case_adds_attempts_and_longest_waits() {
        let mut policy = default_policy();
        policy.timeout.attempt = Nanos::from_secs(10);
        policy.timeout.total = Nanos::from_secs(25);
        policy.retry.attempts = 3;
        policy.retry.backoff = doubling(1, 2.0, 60);
        let worst = worst_case(&policy);
        assert_eq!(worst.unbounded, Nanos::from_secs(33));
        assert_eq!(worst.elapsed, Nanos::from_secs(25));
        assert_eq!(worst.attempts_that_fit, 3);
    }

    #[test]
    fn amplification_multiplies_through_layers_and_budgets_stop_it() {
        let retry = default_policy().retry;
        assert!((amplification(&retry, 3, 1000.0).attempts - 125.0).abs() < 1e-9);
        assert!(amplification(&retry, 3, 1000.0).budgeted < 1.04);
        assert_eq!([0, 1, 3].map(|layers| chained(&retry, layers)), [1, 5, 13], "layers that know of each other only add");
        assert!((expected_attempts(&retry, 0.5) - 1.9375).abs() < 1e-9);
        assert!((expected_attempts(&retry, 1.0) - 5.0).abs() < 1e-9);
    }

    #[test]
    fn a_breaker_behind_a_small_limit_cannot_trip_on_rates() {
        let policy = default_policy();
        let mut breaker = policy.breaker;
        breaker.consecutive = 0;
        let limit = LimitPolicy {
            name: "slow".into(),
            key: vec![],
            rate: crate::policy::Rate { count: 1, per: Nanos::from_secs(60) },
            burst: 1,
            algorithm: crate::policy::Algorithm::TokenBucket,
            mode: Mode::Enforce,
            fail: crate::policy::Fail::Open,
            max_wait: Nanos::ZERO,
        };
        assert!(!trips(&breaker, &[limit], policy.timeout.attempt).any());
        assert!(trips(&breaker, &[], policy.timeout.attempt).any());
    }
}
