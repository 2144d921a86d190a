//! Bytes that stay allocated for each of a million limit keys.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use governor::RateLimiter;
use governor::clock::FakeRelativeClock;
use seawall_core::admit::limit::{Gcra, LimitCell};
use seawall_core::admit::table::CellTable;
use seawall_core::policy::{self, Algorithm, Fail, Mode, Rate};
use seawall_core::time::{Mono, Nanos};

use crate::ours::key;
use crate::peers::quota;

const KEYS: u64 = 1_000_000;

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged; only sizes are counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `fill` leaves allocated and what it had at most, per key.
fn measure<T>(name: &str, fill: impl FnOnce() -> T) {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let filled = fill();
    let live = LIVE.load(Ordering::Relaxed) - before;
    let peak = PEAK.load(Ordering::Relaxed) - before;
    println!("{name:<28} {:>6.1} bytes per key, {:>6.1} while growing", live as f64 / KEYS as f64, peak as f64 / KEYS as f64);
    drop(filled);
}

pub fn report() {
    measure("table", table);
    measure("governor, hash map", || {
        let limiter = RateLimiter::hashmap_with_clock(quota(), FakeRelativeClock::default());
        (0..KEYS).for_each(|at| drop(limiter.check_key(&key(at))));
        limiter
    });
    measure("governor, concurrent map", || {
        let limiter = RateLimiter::dashmap_with_clock(quota(), FakeRelativeClock::default());
        (0..KEYS).for_each(|at| drop(limiter.check_key(&key(at))));
        limiter
    });
}

fn table() -> CellTable {
    let limit = Gcra::from(&policy::LimitPolicy {
        name: String::new(),
        key: Vec::new(),
        rate: Rate::per_second(1),
        burst: 1,
        algorithm: Algorithm::TokenBucket,
        mode: Mode::Enforce,
        fail: Fail::Open,
        max_wait: Nanos::ZERO,
    });
    let mut table = CellTable::new(KEYS as u32);
    for at in 0..KEYS {
        let _ = limit.take(table.cell(&limit, key(at), Mono(1)), Mono(1), 1);
    }
    assert_eq!(table.len() as u64, KEYS);
    assert!(table.find(key(7)).is_some_and(|cell| *cell != LimitCell::default()));
    table
}
