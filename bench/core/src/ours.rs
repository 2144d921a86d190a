//! The core's hot operations. Time is a counter: reading a clock is the engine's, and the same for everyone.

use std::hint::black_box;

use seawall_core::admit::adaptive::Adaptive;
use seawall_core::admit::bulkhead::{Bulkhead, BulkheadEntry, BulkheadRequest};
use seawall_core::admit::layered;
use seawall_core::admit::limit::{Gcra, LimitCell};
use seawall_core::admit::table::CellTable;
use seawall_core::decide::budget::Budget;
use seawall_core::guard::{Admission, BreakerCell, BreakerSample};
use seawall_core::lease::{KeyPool, KeySet, LeaseAnswer, RequestMark};
use seawall_core::policy::{self, Algorithm, Backoff, BackoffKind, BreakerPer, Fail, Mode, Pick, Rate, Share};
use seawall_core::rng::Rng;
use seawall_core::time::{Mono, Nanos, Now, Wall};

use crate::Operation;

pub const OPERATIONS: [Operation; 16] = [
    ("limit/token-bucket", |times| limit(Algorithm::TokenBucket, times)),
    ("limit/leaky-bucket", |times| limit(Algorithm::LeakyBucket, times)),
    ("limit/fixed-window", |times| limit(Algorithm::FixedWindow, times)),
    ("limit/sliding-window", |times| limit(Algorithm::SlidingWindow, times)),
    ("limit/refused", limit_refused),
    ("limit/keyed", limit_keyed),
    ("limit/three-layers", limit_layers),
    ("breaker/success", |times| breaker(times, |_| false)),
    ("breaker/one-in-eight-fails", |times| breaker(times, |at| at % 8 == 0)),
    ("budget/earn-and-withdraw", budget),
    ("backoff/full-jitter", |times| backoff(BackoffKind::FullJitter, times)),
    ("backoff/decorrelated", |times| backoff(BackoffKind::Decorrelated, times)),
    ("backoff/percent-jitter", |times| backoff(BackoffKind::PercentJitter, times)),
    ("adaptive/success", adaptive),
    ("bulkhead/enter-and-leave", bulkhead),
    ("lease/four-keys", lease),
];

/// Ten microseconds between calls.
const STEP: u64 = 10_000;
/// Far enough from zero that no cell looks fresh by accident.
const START: u64 = 1_000_000_000;

fn policy(algorithm: Algorithm, count: u64) -> Gcra {
    Gcra::from(&policy::LimitPolicy {
        name: String::new(),
        key: Vec::new(),
        rate: Rate::per_second(count),
        burst: 100,
        algorithm,
        mode: Mode::Enforce,
        fail: Fail::Open,
        max_wait: Nanos::ZERO,
    })
}

fn limit(algorithm: Algorithm, times: u64) {
    let limit = black_box(policy(algorithm, 200_000));
    let mut cell = LimitCell::default();
    for at in 0..times {
        let _ = black_box(limit.take(black_box(&mut cell), Mono(START + at * STEP), 1));
    }
}

fn limit_refused(times: u64) {
    let limit = black_box(policy(Algorithm::TokenBucket, 1));
    let mut cell = LimitCell::default();
    let _ = limit.take(&mut cell, Mono(START), 100);
    for at in 0..times {
        let _ = black_box(limit.take(black_box(&mut cell), Mono(START + at), 1));
    }
}

/// Keys as they come out of a hash.
pub fn key(at: u64) -> u128 {
    let mixed = at.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    u128::from(mixed ^ (mixed >> 31)) << 64 | u128::from(mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9))
}

fn limit_keyed(times: u64) {
    let limit = black_box(policy(Algorithm::TokenBucket, 200_000));
    let mut table = CellTable::new(10_000);
    let keys: Vec<u128> = (0..1_024).map(key).collect();
    for key in &keys {
        let _ = limit.take(table.cell(&limit, *key, Mono(1)), Mono(START), limit.capacity());
    }
    for at in 0..times {
        let now = Mono(START + at * STEP);
        let key = keys[(at % 1_024) as usize];
        let _ = black_box(limit.take(table.cell(&limit, black_box(key), now), now, 1));
    }
}

fn limit_layers(times: u64) {
    let limits = black_box([200_000, 300_000, 400_000].map(|count| policy(Algorithm::TokenBucket, count)));
    let mut cells = [LimitCell::default(); 3];
    for at in 0..times {
        let [a, b, c] = black_box(&mut cells);
        let mut layers = [(&limits[0], a), (&limits[1], b), (&limits[2], c)];
        let _ = black_box(layered::take_all(&mut layers, Mono(START + at * STEP), 1));
    }
}

fn breaker(times: u64, fails: fn(u64) -> bool) {
    let policy = black_box(policy::BreakerPolicy {
        mode: Mode::Enforce,
        per: BreakerPer::Endpoint,
        window: Nanos::from_secs(10),
        failure_rate: Share::percent(50),
        min_calls: 20,
        consecutive: 5,
        slow: Nanos::from_secs(2),
        slow_rate: Share::percent(80),
        open: Nanos::from_secs(5),
        open_max: Nanos::from_secs(60),
        probes: 1,
        successes: 2,
        ramp: Nanos::from_secs(10),
        max_wait: Nanos::ZERO,
    });
    let mut breaker = BreakerCell::new();
    for at in 0..times {
        let now = Mono(START + at * STEP);
        let breaker = black_box(&mut breaker);
        if let Admission::Go(permit) = breaker.admit(&policy, Nanos::from_secs(10), now) {
            black_box(breaker.record(
                &policy,
                permit,
                BreakerSample { failed: fails(at), repeated: false, latency: Nanos(5_000_000) },
                now,
            ));
        }
    }
}

fn budget(times: u64) {
    let mut budget = Budget::empty(100);
    let floor = black_box(Rate::per_second(10));
    for at in 0..times {
        let budget = black_box(&mut budget);
        budget.earn(Share::percent(20));
        black_box(budget.withdraw(floor, Mono(START + at * STEP)));
    }
}

fn backoff(kind: BackoffKind, times: u64) {
    let (base, cap) = (Nanos::from_millis(500), Nanos::from_secs(60));
    let policy = black_box(Backoff { kind, base, factor: 2.0, cap, jitter: Share::percent(25) });
    let mut rng = Rng::seeded(1);
    let mut prev = Nanos::ZERO;
    for at in 0..times {
        prev = black_box(policy.draw(black_box((at & 3) as u32), prev, &mut rng));
    }
}

fn adaptive(times: u64) {
    let mut adaptive = Adaptive::new(20, 1, 1_000);
    for _ in 0..times {
        let adaptive = black_box(&mut adaptive);
        adaptive.succeeded(15);
        black_box(adaptive.limit());
    }
}

fn bulkhead(times: u64) {
    let (name, queue_timeout) = (String::new(), Nanos::from_secs(1));
    let mut bulkhead =
        Bulkhead::new(&policy::BulkheadPolicy { name, concurrent: 8, queue: 8, queue_timeout, priority: 0, adaptive: false });
    for at in 0..times {
        let now = Mono(START + at * STEP);
        let bulkhead = black_box(&mut bulkhead);
        if bulkhead.enter(BulkheadRequest { priority: 0, deadline: Mono::MAX }, now) == BulkheadEntry::Go {
            bulkhead.leave(Nanos(1_000));
            black_box(bulkhead.grant(now));
        }
    }
}

fn lease(times: u64) {
    let mut pool = KeyPool::new(Pick::RoundRobin, &[0, 1, 2, 3]);
    for at in 0..times {
        let now = Now { mono: Mono(START + at * STEP), wall: Wall(START as i64) };
        if let LeaseAnswer::Leased(lease) = black_box(&mut pool).lease(now, KeySet::default(), RequestMark::NONE) {
            pool.succeeded(black_box(lease), now.mono);
        }
    }
}
