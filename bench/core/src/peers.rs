//! The same steps in other libraries. Where a library lets us hand in time, it gets a counter as ours does; where it
//! reads the clock itself, that is part of what it costs, and `clock` shows how much.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use backon::BackoffBuilder as _;
use failsafe::CircuitBreaker as _;
use governor::clock::FakeRelativeClock;
use governor::{Quota, RateLimiter};
use tower::retry::budget::{Budget as _, TpsBudget};

use crate::Operation;
use crate::ours::key;

pub const OPERATIONS: [Operation; 7] = [
    ("clock", clock),
    ("governor/check", governor_direct),
    ("governor/check_key", governor_keyed),
    ("failsafe/call", failsafe_call),
    ("recloser/call", recloser_call),
    ("tower/deposit-and-withdraw", tower_budget),
    ("backon/exponential-jitter", backon_draw),
];

fn clock(times: u64) {
    for _ in 0..times {
        black_box(Instant::now());
    }
}

pub fn quota() -> Quota {
    Quota::per_second(NonZeroU32::new(200_000).expect("not zero")).allow_burst(NonZeroU32::new(100).expect("not zero"))
}

const STEP: Duration = Duration::from_micros(10);

fn governor_direct(times: u64) {
    let clock = FakeRelativeClock::default();
    let limiter = RateLimiter::direct_with_clock(quota(), clock.clone());
    for _ in 0..times {
        clock.advance(STEP);
        let _ = black_box(limiter.check());
    }
}

fn governor_keyed(times: u64) {
    let clock = FakeRelativeClock::default();
    let limiter = RateLimiter::hashmap_with_clock(quota(), clock.clone());
    let keys: Vec<u128> = (0..1_024).map(key).collect();
    for key in &keys {
        let _ = limiter.check_key(key);
    }
    for at in 0..times {
        clock.advance(STEP);
        let _ = black_box(limiter.check_key(black_box(&keys[(at % 1_024) as usize])));
    }
}

fn failsafe_call(times: u64) {
    let breaker = failsafe::Config::new().build();
    for at in 0..times {
        let _ = black_box(breaker.call(|| Ok::<u64, ()>(at)));
    }
}

fn recloser_call(times: u64) {
    let breaker = recloser::Recloser::default();
    for at in 0..times {
        let _ = black_box(breaker.call(|| Ok::<u64, ()>(at)));
    }
}

fn tower_budget(times: u64) {
    let budget = TpsBudget::new(Duration::from_secs(10), 10, 0.2);
    for _ in 0..times {
        budget.deposit();
        black_box(budget.withdraw());
    }
}

fn backon_draw(times: u64) {
    let builder = backon::ExponentialBuilder::default().with_jitter().without_max_times().with_jitter_seed(1);
    let mut waits = builder.build();
    for _ in 0..times {
        black_box(waits.next());
    }
}
