//! The limits' behaviour, one sentence each.

use super::{Gcra, LimitAnswer, LimitCell};
use crate::policy::{self, Algorithm, Fail, Mode, Rate};
use crate::time::{Mono, Nanos};

fn limit(algorithm: Algorithm, count: u64, per: Nanos, burst: u64) -> Gcra {
    Gcra::from(&policy::LimitPolicy {
        name: String::from("test"),
        key: Vec::new(),
        rate: Rate { count, per },
        burst,
        algorithm,
        mode: Mode::Enforce,
        fail: Fail::Open,
        max_wait: Nanos::ZERO,
    })
}

fn per_second(algorithm: Algorithm, count: u64) -> Gcra {
    limit(algorithm, count, Nanos::from_secs(1), count)
}

fn secs(seconds: u64) -> Mono {
    Mono(0) + Nanos::from_secs(seconds)
}

const GO: LimitAnswer = LimitAnswer::Go { after: Nanos::ZERO };

/// The number of calls admitted at once.
fn burst(limit: &Gcra, cell: &mut LimitCell, now: Mono) -> u32 {
    (0..1_000).take_while(|_| limit.take(cell, now, 1) == GO).count().try_into().unwrap()
}

#[test]
fn a_cell_is_sixteen_bytes() {
    assert_eq!(size_of::<LimitCell>(), 16);
}

#[test]
fn a_token_bucket_holds_its_burst_however_long_it_rests() {
    let limit = per_second(Algorithm::TokenBucket, 5);
    let mut cell = LimitCell::default();
    for now in [secs(0), secs(2), secs(3_602)] {
        assert_eq!(burst(&limit, &mut cell, now), 5);
    }
}

#[test]
fn more_than_the_capacity_is_refused_for_good() {
    for &algorithm in Algorithm::ALL {
        let limit = per_second(algorithm, 5);
        for cost in [6, 7, 15, u64::MAX] {
            assert_eq!(limit.take(&mut LimitCell::default(), secs(1), cost), LimitAnswer::TooCostly { capacity: 5 }, "{algorithm}");
        }
        assert_eq!(limit.take(&mut LimitCell::default(), secs(1), 5), GO, "{algorithm}");
    }
}

#[test]
fn waits_are_exact_to_the_nanosecond() {
    let limit = limit(Algorithm::TokenBucket, 1, Nanos(100), 1);
    let mut cell = LimitCell::default();
    assert_eq!(limit.take(&mut cell, Mono(0), 1), GO);
    assert_eq!(limit.take(&mut cell, Mono(0), 1), LimitAnswer::Refused { retry_at: Mono(100) });
    assert_eq!(limit.take(&mut cell, Mono(99), 1), LimitAnswer::Refused { retry_at: Mono(100) });
    assert_eq!(limit.take(&mut cell, Mono(100), 1), GO);
}

#[test]
fn a_leaky_bucket_paces_its_line_and_refuses_beyond_it() {
    let limit = limit(Algorithm::LeakyBucket, 1, Nanos(100), 2);
    let mut cell = LimitCell::default();
    for after in [0, 100, 200] {
        assert_eq!(limit.take(&mut cell, Mono(0), 1), LimitAnswer::Go { after: Nanos(after) });
    }
    assert_eq!(limit.take(&mut cell, Mono(0), 1), LimitAnswer::Refused { retry_at: Mono(100) });
    assert_eq!(limit.take(&mut cell, Mono(100), 1), LimitAnswer::Go { after: Nanos(200) });
}

#[test]
fn a_line_that_has_moved_on_is_joined_at_its_end() {
    let limit = limit(Algorithm::LeakyBucket, 1, Nanos(100), 9);
    let mut cell = LimitCell::default();
    for (now, after) in [(0, 0), (0, 100), (100, 100), (100, 200)] {
        assert_eq!(limit.take(&mut cell, Mono(now), 1), LimitAnswer::Go { after: Nanos(after) });
    }
}

#[test]
fn a_rested_leaky_bucket_still_paces() {
    let limit = limit(Algorithm::LeakyBucket, 2, Nanos::from_secs(1), 4);
    let mut cell = LimitCell::default();
    for _ in 0..3 {
        let _ = limit.take(&mut cell, Mono(0), 1);
    }
    assert_eq!(limit.take(&mut cell, secs(10), 1), GO);
    assert_eq!(limit.take(&mut cell, secs(10), 1), LimitAnswer::Go { after: Nanos::from_millis(500) });
}

#[test]
fn a_cancelled_turn_is_given_back() {
    for &algorithm in Algorithm::ALL {
        let limit = per_second(algorithm, 3);
        let mut cell = LimitCell::default();
        let _ = limit.take(&mut cell, secs(1), 2);
        let before = limit.remaining(&cell, secs(1));
        let _ = limit.take(&mut cell, secs(1), 1);
        limit.refund(&mut cell, secs(1), 1);
        assert_eq!(limit.remaining(&cell, secs(1)), before, "{algorithm}");
    }
}

#[test]
fn a_window_admits_its_count_again_when_it_is_over() {
    let limit = limit(Algorithm::FixedWindow, 3, Nanos::from_millis(100), 3);
    let mut cell = LimitCell::default();
    assert_eq!(burst(&limit, &mut cell, Mono(7)), 3);
    assert_eq!(limit.take(&mut cell, Mono(8), 1), LimitAnswer::Refused { retry_at: Mono(100_000_007) });
    assert_eq!(burst(&limit, &mut cell, Mono(100_000_007)), 3);
}

#[test]
fn a_window_begins_with_its_first_call() {
    let limit = limit(Algorithm::FixedWindow, 3, Nanos::from_millis(100), 3);
    let mut cell = LimitCell::default();
    assert_eq!(limit.take(&mut cell, Mono(99_000_000), 1), GO);
    assert_eq!(burst(&limit, &mut cell, Mono(101_000_000)), 2, "no second window at a multiple of the length");
    assert_eq!(burst(&limit, &mut cell, Mono(199_000_000)), 3);
}

#[test]
fn a_refund_of_a_past_window_gives_nothing_to_this_one() {
    let limit = limit(Algorithm::FixedWindow, 3, Nanos::from_millis(100), 3);
    let mut cell = LimitCell::default();
    let _ = limit.take(&mut cell, Mono(0), 3);
    assert_eq!(burst(&limit, &mut cell, Mono(100_000_000)), 3);
    limit.refund(&mut cell, Mono(0), 3);
    assert_eq!(burst(&limit, &mut cell, Mono(100_000_001)), 0);
}

#[test]
fn a_sliding_window_counts_the_last_window_by_what_is_left_of_it() {
    let limit = limit(Algorithm::SlidingWindow, 10, Nanos::from_secs(1), 10);
    let mut cell = LimitCell::default();
    assert_eq!(burst(&limit, &mut cell, secs(1)), 10);
    assert_eq!(burst(&limit, &mut cell, secs(2)), 0, "no double burst at the border");
    assert_eq!(burst(&limit, &mut cell, Mono(2_500_000_000)), 5);
    assert_eq!(burst(&limit, &mut cell, secs(10)), 10);
}

#[test]
fn one_call_of_seven_waits_as_long_as_seven_calls_of_one() {
    let limit = limit(Algorithm::TokenBucket, 10, Nanos::from_secs(1), 10);
    let (mut one, mut many) = (LimitCell::default(), LimitCell::default());
    let _ = limit.take(&mut one, Mono(0), 7);
    for _ in 0..7 {
        let _ = limit.take(&mut many, Mono(0), 1);
    }
    assert_eq!(one, many);
}

#[test]
fn a_faster_rate_shortens_waits_and_lets_nothing_burst() {
    let slow = per_second(Algorithm::TokenBucket, 1);
    let fast = per_second(Algorithm::TokenBucket, 2);
    let mut cell = LimitCell::default();
    let _ = slow.take(&mut cell, Mono(0), 1);
    let mut cell = fast.rebase(&slow, &cell, Mono(0));
    assert_eq!(fast.take(&mut cell, Mono(0), 1), LimitAnswer::Refused { retry_at: Mono(500_000_000) });
    assert_eq!(burst(&fast, &mut cell, secs(1)), 2);
}

#[test]
fn no_change_of_a_limit_gives_more_than_there_was() {
    for &from in Algorithm::ALL {
        for &to in Algorithm::ALL {
            let was = per_second(from, 10);
            let mut cell = LimitCell::default();
            let _ = was.take(&mut cell, secs(1), 10);
            let _ = was.take(&mut cell, secs(1), 1);
            for count in [1, 10, 1_000] {
                let new = limit(to, count, Nanos::from_secs(10), count);
                let rebased = new.rebase(&was, &cell, secs(1));
                assert_eq!(new.remaining(&rebased, secs(1)).0, 0, "{from} to {to} {count}");
            }
        }
    }
}

#[test]
fn remaining_and_reset_tell_what_is_left() {
    let at = secs(1);
    let expected = [
        (Algorithm::TokenBucket, 7, 300),
        (Algorithm::LeakyBucket, 7, 300),
        (Algorithm::FixedWindow, 7, 1_000),
        (Algorithm::SlidingWindow, 7, 2_000),
    ];
    for (algorithm, left, reset_ms) in expected {
        let limit = per_second(algorithm, 10);
        let mut cell = LimitCell::default();
        assert_eq!(limit.remaining(&cell, at), (10, Nanos::ZERO), "{algorithm}");
        let _ = limit.take(&mut cell, at, 3);
        assert_eq!(limit.remaining(&cell, at), (left, Nanos::from_millis(reset_ms)), "{algorithm}");
        assert!(limit.is_idle(&cell, at + Nanos::from_millis(reset_ms)), "{algorithm}");
        assert!(!limit.is_idle(&cell, Mono((at + Nanos::from_millis(reset_ms)).0 - 1)), "{algorithm}");
    }
}

#[test]
fn a_rate_of_nothing_admits_nothing() {
    for &algorithm in Algorithm::ALL {
        let limit = per_second(algorithm, 0);
        assert_eq!(limit.take(&mut LimitCell::default(), secs(1), 1), LimitAnswer::TooCostly { capacity: 0 });
    }
}
