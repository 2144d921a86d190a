//! Backoff and budget.

use proptest::prelude::*;
use seawall_core::decide::budget::{Budget, RetryFunding};
use seawall_core::policy::{Backoff, BackoffKind, Rate, Share};
use seawall_core::rng::Rng;
use seawall_core::time::{Mono, Nanos};

fn kind() -> impl Strategy<Value = BackoffKind> {
    prop::sample::select(BackoffKind::ALL)
}

fn backoff() -> impl Strategy<Value = Backoff> {
    (kind(), any::<u64>(), prop_oneof![Just(2.0), 1.0..100.0f64], any::<u64>(), 0..=1_000_000u32).prop_map(
        |(kind, base, factor, cap, jitter)| Backoff {
            kind,
            base: Nanos(base >> (base % 64)),
            factor,
            cap: Nanos(cap >> (cap % 64)),
            jitter: Share(jitter),
        },
    )
}

proptest! {
    #[test]
    fn a_wait_is_within_its_range_and_never_above_the_cap(policy in backoff(), n in any::<u32>(), prev in any::<u64>(), seed in any::<u64>()) {
        let (least, most) = policy.range(n, Nanos(prev));
        prop_assert!(least <= most && most <= policy.cap);
        let mut rng = Rng::seeded(seed);
        for _ in 0..20 {
            let wait = policy.draw(n, Nanos(prev), &mut rng);
            prop_assert!(least <= wait && wait <= most);
        }
    }

    #[test]
    fn ceilings_never_fall_however_far_they_grow(policy in backoff(), n in any::<u32>()) {
        prop_assert!(policy.ceiling(n) <= policy.ceiling(n.saturating_add(1)));
        prop_assert!(policy.ceiling(u32::MAX) <= policy.cap);
    }

    #[test]
    fn every_jitter_keeps_its_spread_at_the_cap(kind in prop::sample::select(&BackoffKind::ALL[1..]), cap_ms in 1_000..100_000u64, n in 60..u32::MAX, seed in any::<u64>()) {
        let cap = Nanos::from_millis(cap_ms);
        let policy = Backoff { kind, base: Nanos::from_millis(500), factor: 2.0, cap, jitter: Share::percent(25) };
        let mut rng = Rng::seeded(seed);
        let mut waits: Vec<u64> = (0..1_000).map(|_| policy.draw(n, cap, &mut rng).0).collect();
        waits.sort_unstable();
        waits.dedup();
        let most = waits[waits.len() - 1];
        prop_assert!(waits.len() >= 900);
        prop_assert!((most - waits[0]) * 4 >= most);
    }

    #[test]
    fn retries_are_at_most_the_share_of_the_successes_and_the_floor(
        steps in prop::collection::vec((any::<bool>(), 0..50_000_000u64), 1..500),
        percent in 0..=100u32,
        floor in 0..20u64,
    ) {
        let (share, rate) = (Share::percent(percent), Rate::per_second(floor));
        let mut budget = Budget::empty(100);
        let (mut now, mut successes, mut retries) = (Mono(0), 0u64, 0u64);
        for (succeeds, pause) in steps {
            now = now + Nanos(pause);
            if succeeds {
                successes += 1;
                budget.earn(share);
            } else {
                retries += u64::from(budget.withdraw(rate, now).is_some());
            }
        }
        // The floor lane starts with one second's worth.
        let floor_worth = floor as f64 * (now.0 as f64 / 1e9 + 1.0);
        prop_assert!(retries as f64 <= successes as f64 * share.as_f64() + floor_worth + 1e-6);
    }

    #[test]
    fn a_refund_leaves_the_budget_as_it_was(earned in 0..500u32, floor in 0..20u64, at in 1_000_000_000..u64::MAX / 2, count in 1..50usize) {
        let (rate, now) = (Rate::per_second(floor), Mono(at));
        let mut budget = Budget::empty(100);
        (0..earned).for_each(|_| budget.earn(Share::percent(20)));
        let before = budget.tokens(rate, now);
        let paid: Vec<RetryFunding> = (0..count).map_while(|_| budget.withdraw(rate, now)).collect();
        paid.into_iter().for_each(|funding| budget.refund(funding));
        prop_assert!((budget.tokens(rate, now) - before).abs() < 1e-6);
    }
}
