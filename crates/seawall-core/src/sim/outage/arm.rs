//! The policies in the outage model: combinations of the product's own parts, and comparators that the product does not offer because of
//! their results here.

use crate::policy::{Backoff, BackoffKind, BreakerPer, BreakerPolicy, Mode, Rate, Retry, Share, Unsafe};
use crate::time::Nanos;

/// The funding of retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetFunding {
    /// Retries need no funding.
    Unlimited,
    /// The product's budget: successes earn `retry.budget`, and `retry.budget_floor` is always allowed.
    Successes,
    /// A comparator: first tries earn, whether or not they succeed.
    Requests(Share),
    /// A comparator (Finagle): over ten seconds, this share of the requests plus a rate.
    Window { share: Share, floor: Rate },
}

/// One policy under test: a built-in one or a user's own.
#[derive(Clone, Debug, PartialEq)]
pub struct OutagePolicy {
    pub name: String,
    pub retry: Retry,
    pub funding: BudgetFunding,
    pub breaker: Option<BreakerPolicy>,
    /// Whether attempts in flight are limited by the adaptive limiter.
    pub adaptive: bool,
    /// The server's queue; `None` is without bound.
    pub bounded: Option<usize>,
}

impl OutagePolicy {
    /// A resolved policy of the product.
    #[must_use]
    pub fn of_policy(name: String, retry: Retry, breaker: BreakerPolicy, adaptive: bool) -> Self {
        let breaker = (breaker.mode == Mode::Enforce).then_some(breaker);
        Self { name, retry, funding: BudgetFunding::Successes, breaker, adaptive, bounded: None }
    }

    /// The policies that are compared by default, from no defence to full defence.
    #[must_use]
    pub fn built_in() -> Vec<Self> {
        let ten = Share::percent(10);
        let succ10 = || Self { retry: Retry { budget: ten, ..full_jitter() }, ..Self::plain("succ10", BudgetFunding::Successes) };
        let budget10 = |name| Self::plain(name, BudgetFunding::Requests(ten));
        vec![
            Self { retry: Retry { attempts: 1, ..full_jitter() }, ..Self::plain("none", BudgetFunding::Unlimited) },
            Self { retry: at_once(), ..Self::plain("naive3", BudgetFunding::Unlimited) },
            Self::plain("full", BudgetFunding::Unlimited),
            budget10("budget10"),
            Self::plain("budget20", BudgetFunding::Requests(Share::percent(20))),
            Self::plain("finagle20", BudgetFunding::Window { share: Share::percent(20), floor: Rate::per_second(10) }),
            succ10(),
            Self { breaker: Some(breaker(5, 5)), ..budget10("budget10+breaker5") },
            Self { breaker: Some(breaker(60, 1)), ..budget10("budget10+breaker60x1") },
            Self { name: "succ10+breaker5".to_owned(), breaker: Some(breaker(5, 5)), ..succ10() },
            Self { adaptive: true, ..budget10("budget10+aimd") },
            Self { name: "succ10+breaker+aimd".to_owned(), breaker: Some(breaker(5, 5)), adaptive: true, ..succ10() },
            Self { bounded: Some(100), ..Self::plain("full+bounded", BudgetFunding::Unlimited) },
        ]
    }

    fn plain(name: &str, funding: BudgetFunding) -> Self {
        Self { name: name.to_owned(), retry: full_jitter(), funding, breaker: None, adaptive: false, bounded: None }
    }
}

const fn full_jitter() -> Retry {
    let (base, cap) = (Nanos::from_millis(100), Nanos::from_secs(10));
    Retry {
        attempts: 4,
        backoff: Backoff { kind: BackoffKind::FullJitter, base, factor: 2.0, cap, jitter: Share::ZERO },
        ambiguous: u32::MAX,
        retry_after_cap: Nanos::MAX,
        budget: Share::ZERO,
        budget_floor: Rate::ZERO,
        unsafe_methods: Unsafe::Never,
    }
}

const fn at_once() -> Retry {
    let retry = full_jitter();
    Retry { backoff: Backoff { kind: BackoffKind::Exponential, base: Nanos::ZERO, ..retry.backoff }, ..retry }
}

/// Only the failure rate trips, and the open time does not grow, so that arms differ only as their names say.
const fn breaker(open_s: u64, probes: u32) -> BreakerPolicy {
    BreakerPolicy {
        mode: Mode::Enforce,
        per: BreakerPer::Upstream,
        window: Nanos::from_secs(10),
        failure_rate: Share::percent(50),
        min_calls: 20,
        consecutive: 0,
        slow: Nanos::ZERO,
        slow_rate: Share::WHOLE,
        open: Nanos::from_secs(open_s),
        open_max: Nanos::from_secs(open_s),
        probes,
        successes: probes,
        ramp: Nanos::ZERO,
        max_wait: Nanos::ZERO,
    }
}
