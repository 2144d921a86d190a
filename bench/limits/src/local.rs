//! A check of three layers in the process: the core's cells alone, and the engine's with their keys and locks. The peer is
//! three limiters of governor asked one after the other, which unlike ours do not give back when a later one refuses.

use crate::shared::{live, who};
use governor::clock::FakeRelativeClock;
use governor::{Quota, RateLimiter};
use seawall_core::admit::layered;
use seawall_core::admit::limit::{Gcra, LimitCell};
use seawall_core::policy::{self, Algorithm, Fail, Mode, Rate};
use seawall_core::time::{Mono, Nanos};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

type Operation = (&'static str, fn(u64));

pub const OPERATIONS: [Operation; 5] =
    [("empty", empty), ("cells", cells), ("governor/check", governor_direct), ("limits", limits), ("governor/check_key", governor_keyed)];

/// Ten microseconds between calls, far from zero.
const STEP: u64 = 10_000;
const START: u64 = 1_000_000_000;
const RATES: [u32; 3] = [200_000, 300_000, 400_000];

fn empty(times: u64) {
    for at in 0..times {
        black_box(at);
    }
}

fn cells(times: u64) {
    let limit = |count: u32| {
        let rate = Rate::per_second(u64::from(count));
        let (name, key, algorithm) = (String::new(), Vec::new(), Algorithm::TokenBucket);
        Gcra::from(&policy::LimitPolicy {
            name,
            key,
            rate,
            burst: 100,
            algorithm,
            mode: Mode::Enforce,
            fail: Fail::Open,
            max_wait: Nanos::ZERO,
        })
    };
    let (limits, mut cells) = (black_box(RATES.map(limit)), [LimitCell::default(); 3]);
    for at in 0..times {
        let [a, b, c] = black_box(&mut cells);
        let mut layers = [(&limits[0], a), (&limits[1], b), (&limits[2], c)];
        let _ = black_box(layered::take_all(&mut layers, Mono(START + at * STEP), 1));
    }
}

fn quota(count: u32) -> Quota {
    let number = |count| NonZeroU32::new(count).expect("not zero");
    Quota::per_second(number(count)).allow_burst(number(100))
}

fn governor_direct(times: u64) {
    let clock = FakeRelativeClock::default();
    let limiters = RATES.map(|count| RateLimiter::direct_with_clock(quota(count), clock.clone()));
    for _ in 0..times {
        clock.advance(Duration::from_nanos(STEP));
        let _ = black_box(limiters.iter().all(|limiter| limiter.check().is_ok()));
    }
}

/// By upstream, by address and by caller.
fn limits(times: u64) {
    let live = live("local");
    let endpoint = &live.upstreams[0].endpoints[0];
    let headers = http::HeaderMap::new();
    for at in 0..times {
        let who = black_box(who(&headers));
        let _ = black_box(endpoint.state.limits.take_all(&who, &endpoint.names, 1, Mono(START + at * STEP)));
    }
}

fn governor_keyed(times: u64) {
    let clock = FakeRelativeClock::default();
    let whole = RateLimiter::direct_with_clock(quota(RATES[0]), clock.clone());
    let by_address = RateLimiter::hashmap_with_clock(quota(RATES[1]), clock.clone());
    let by_caller = RateLimiter::hashmap_with_clock(quota(RATES[2]), clock.clone());
    let (address, caller) = (IpAddr::V4(Ipv4Addr::LOCALHOST), "a-caller");
    for _ in 0..times {
        clock.advance(Duration::from_nanos(STEP));
        // Its map wants a key of its own type, so that a caller's name becomes a String each time.
        let asked = whole.check().is_ok()
            && by_address.check_key(black_box(&address)).is_ok()
            && by_caller.check_key(black_box(&caller.to_owned())).is_ok();
        black_box(asked);
    }
}

/// Nanoseconds of each, in turn, the least of many rounds: whatever else the machine does only adds.
pub fn times() {
    const ROUNDS: u32 = 200;
    const EACH: u64 = 20_000;
    let mut least = [Duration::MAX; OPERATIONS.len()];
    for _ in 0..ROUNDS {
        for ((_, run), least) in OPERATIONS.iter().zip(&mut least) {
            let begun = Instant::now();
            run(EACH);
            *least = begun.elapsed().min(*least);
        }
    }
    for ((name, _), least) in OPERATIONS.iter().zip(least) {
        println!("{name} {:.1}", least.as_secs_f64() * 1e9 / EACH as f64);
    }
}
