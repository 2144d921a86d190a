//! The key pool's behaviour, one sentence each.

use super::*;

const NOW: Now = Now { mono: Mono(0), wall: Wall(1_000_000) };

fn later(seconds: u64) -> Now {
    NOW.after(Nanos::from_secs(seconds))
}

fn pool(pick: Pick, keys: u16) -> KeyPool {
    KeyPool::new(pick, &(0..keys).collect::<Vec<_>>())
}

fn tried(keys: &[u16]) -> KeySet {
    let mut set = KeySet::default();
    keys.iter().for_each(|&key| set.insert(key));
    set
}

const fn dead(seconds: u64) -> LeaseAnswer {
    LeaseAnswer::Dead { wait: Some(Nanos::from_secs(seconds)) }
}

fn lease(pool: &mut KeyPool, now: Now) -> KeyLease {
    match pool.lease(now, KeySet::default(), RequestMark::NONE) {
        LeaseAnswer::Leased(lease) => lease,
        answer @ (LeaseAnswer::Cooling { .. } | LeaseAnswer::Throttled { .. } | LeaseAnswer::Dead { .. }) => panic!("{answer:?}"),
    }
}

fn picks(pool: &mut KeyPool, count: usize) -> Vec<u16> {
    (0..count).map(|_| lease(pool, NOW).key).collect()
}

#[test]
fn the_key_with_the_fewest_failures_goes_first_and_good_keys_take_turns() {
    let mut pool = pool(Pick::FewestFailures, 3);
    assert_eq!(picks(&mut pool, 5), [0, 1, 2, 0, 1]);
    for key in [0, 0, 1] {
        pool.failed(KeyLease { key, probe: false });
    }
    assert_eq!(picks(&mut pool, 1), [2]);
    pool.succeeded(KeyLease { key: 1, probe: false }, NOW.mono);
    assert_eq!(picks(&mut pool, 3), [1, 2, 1], "a success heals one failure, and a tie goes to the key that was used longer ago");
}

#[test]
fn round_robin_takes_turns_and_passes_over_cooling_keys() {
    let mut pool = pool(Pick::RoundRobin, 3);
    assert_eq!(picks(&mut pool, 4), [0, 1, 2, 0]);
    pool.cool_key(1, Until::Mono(Mono(5)));
    assert_eq!(picks(&mut pool, 3), [2, 0, 2]);
}

#[test]
fn least_used_evens_out() {
    let mut pool = pool(Pick::LeastUsed, 3);
    assert_eq!(picks(&mut pool, 6), [0, 1, 2, 0, 1, 2]);
    let unused = lease(&mut pool, NOW);
    pool.cancel(unused, NOW.mono);
    assert_eq!(picks(&mut pool, 1), [0]);
}

#[test]
fn a_cooldown_covers_the_group_and_no_other() {
    let mut pool = KeyPool::new(Pick::FewestFailures, &[7, 7, 9]);
    pool.cool_group(0, Until::Mono(later(10).mono));
    assert_eq!(lease(&mut pool, NOW).key, 2);
    assert_eq!(pool.lease(NOW, tried(&[2]), RequestMark::NONE), LeaseAnswer::Cooling { wait: Nanos::from_secs(10) });
    assert_eq!(lease(&mut pool, later(10)).key, 0);
}

#[test]
fn cooldowns_only_move_later_on_either_clock() {
    let mut pool = pool(Pick::FewestFailures, 1);
    pool.cool_group(0, Until::Mono(later(10).mono));
    pool.cool_group(0, Until::Mono(later(5).mono));
    assert_eq!(pool.lease(NOW, KeySet::default(), RequestMark::NONE), LeaseAnswer::Cooling { wait: Nanos::from_secs(10) });
    pool.cool_group(0, Until::Wall(later(60).wall));
    assert_eq!(pool.lease(NOW, KeySet::default(), RequestMark::NONE), LeaseAnswer::Cooling { wait: Nanos::from_secs(60) });
    assert_eq!(pool.status(0, NOW).unwrap().cooling, Some(Nanos::from_secs(60)));
    assert_eq!(lease(&mut pool, later(60)).key, 0);
}

#[test]
fn a_step_of_the_wall_clock_does_not_touch_short_waits() {
    let mut pool = pool(Pick::FewestFailures, 1);
    pool.cool_group(0, Until::Mono(later(10).mono));
    let stepped = Now { mono: Mono(0), wall: Wall(i64::MAX) };
    assert_eq!(pool.lease(stepped, KeySet::default(), RequestMark::NONE), LeaseAnswer::Cooling { wait: Nanos::from_secs(10) });
}

#[test]
fn cooling_tells_when_the_first_untried_key_is_viable() {
    let mut pool = pool(Pick::FewestFailures, 3);
    for (key, seconds) in [(0, 10), (1, 20), (2, 30)] {
        pool.cool_key(key, Until::Mono(later(seconds).mono));
    }
    assert_eq!(pool.lease(NOW, tried(&[0]), RequestMark::NONE), LeaseAnswer::Cooling { wait: Nanos::from_secs(20) });
    assert_eq!(pool.lease(NOW, tried(&[0, 1, 2]), RequestMark::NONE), LeaseAnswer::Cooling { wait: Nanos::from_secs(10) });
}

#[test]
fn keys_tried_in_this_call_are_not_leased_again() {
    let mut pool = pool(Pick::FewestFailures, 2);
    assert_eq!(pool.lease(NOW, tried(&[0]), RequestMark::NONE), LeaseAnswer::Leased(KeyLease { key: 1, probe: false }));
    assert_eq!(pool.lease(NOW, tried(&[0, 1]), RequestMark::NONE), LeaseAnswer::Cooling { wait: Nanos::ZERO });
}

#[test]
fn a_rejected_key_is_out_until_its_probe_and_dead_is_not_cooling() {
    let mut pool = pool(Pick::FewestFailures, 1);
    let first = lease(&mut pool, NOW);
    pool.reject(first, NOW.mono);
    assert!(pool.status(0, NOW).unwrap().dead);
    assert_eq!(pool.lease(later(59), KeySet::default(), RequestMark::NONE), dead(1));
    assert_eq!(lease(&mut pool, later(60)), KeyLease { key: 0, probe: true });
    assert_eq!(pool.lease(later(60), KeySet::default(), RequestMark::NONE), dead(120), "one probe at a time");
}

/// Refuses the only key for one request to each of these paths.
fn refuse(pool: &mut KeyPool, paths: &[&str]) {
    for path in paths {
        let lease = lease(pool, NOW);
        pool.refuse(lease, RequestMark::of("GET", path), NOW.mono);
    }
}

#[test]
fn a_key_is_dead_once_several_different_requests_in_a_row_are_refused() {
    let mut pool = pool(Pick::FewestFailures, 1);
    refuse(&mut pool, &["/a", "/a", "/a", "/b", "/a", "/b"]);
    assert!(!pool.status(0, NOW).unwrap().dead, "two requests are to blame for all of it");
    refuse(&mut pool, &["/c"]);
    assert_eq!(pool.lease(later(4), KeySet::default(), RequestMark::NONE), dead(1));
    assert_eq!(lease(&mut pool, later(5)), KeyLease { key: 0, probe: true }, "nothing is proven, so it is looked at soon");
}

#[test]
fn a_success_clears_what_a_key_was_refused_for() {
    let mut pool = pool(Pick::FewestFailures, 1);
    refuse(&mut pool, &["/a", "/b"]);
    let accepted = lease(&mut pool, NOW);
    pool.succeeded(accepted, NOW.mono);
    refuse(&mut pool, &["/c", "/d"]);
    assert!(!pool.status(0, NOW).unwrap().dead);
}

#[test]
fn a_key_that_was_accepted_within_a_minute_is_not_dead_whatever_it_is_refused_for() {
    let mut pool = pool(Pick::FewestFailures, 1);
    let accepted = lease(&mut pool, NOW);
    pool.succeeded(accepted, NOW.mono);
    let refused_at = |pool: &mut KeyPool, path: &str, now: Now| {
        let lease = lease(pool, now);
        pool.refuse(lease, RequestMark::of("GET", path), now.mono);
        pool.status(0, now).unwrap().dead
    };
    for path in ["/a", "/b", "/c", "/d", "/e"] {
        assert!(!refused_at(&mut pool, path, later(59)), "{path}");
    }
    assert!(!refused_at(&mut pool, "/e", later(60)), "this request was refused before");
    assert!(refused_at(&mut pool, "/f", later(60)), "a minute without one that is accepted");
}

#[test]
fn a_key_that_nothing_is_proven_of_is_probed_every_five_seconds() {
    let mut pool = pool(Pick::FewestFailures, 1);
    refuse(&mut pool, &["/a", "/b", "/c"]);
    for seconds in [5, 10, 15, 20] {
        let probe = lease(&mut pool, later(seconds));
        assert!(probe.probe);
        pool.refuse(probe, RequestMark::of("GET", &format!("/{seconds}")), later(seconds).mono);
        assert_eq!(pool.lease(later(seconds + 4), KeySet::default(), RequestMark::NONE), dead(1));
    }
    let cancelled = lease(&mut pool, later(25));
    pool.cancel(cancelled, later(25).mono);
    let probe = lease(&mut pool, later(25));
    assert!(probe.probe, "a probe that was not sent is due again");
    assert_eq!(pool.lease(later(26), KeySet::default(), RequestMark::NONE), dead(4));
    pool.succeeded(probe, later(26).mono);
    assert!(!lease(&mut pool, later(26)).probe);
}

#[test]
fn a_request_that_a_key_was_refused_for_is_its_probe_only_where_no_other_comes() {
    let mut pool = pool(Pick::FewestFailures, 1);
    refuse(&mut pool, &["/a", "/b", "/c"]);
    let ask = |pool: &mut KeyPool, path: &str, now: Now| pool.lease(now, KeySet::default(), RequestMark::of("GET", path));
    assert_eq!(ask(&mut pool, "/c", later(5)), dead(5));
    assert_eq!(ask(&mut pool, "/good", later(5)), LeaseAnswer::Leased(KeyLease { key: 0, probe: true }));
    assert_eq!(ask(&mut pool, "/c", later(14)), dead(1));
    assert_eq!(ask(&mut pool, "/c", later(15)), LeaseAnswer::Leased(KeyLease { key: 0, probe: true }));
}

#[test]
fn a_throttle_that_a_probe_has_disproved_does_not_begin_again_before_its_end() {
    let mut pool = pool(Pick::FewestFailures, 1);
    pool.throttle(0, true, later(30).mono, NOW.mono);
    let probe = lease(&mut pool, later(1));
    assert!(probe.probe);
    pool.succeeded(probe, later(1).mono);
    pool.throttle(0, true, later(50).mono, later(29).mono);
    assert!(!lease(&mut pool, later(29)).probe, "this refusal binds its own call alone");
    pool.throttle(0, true, later(60).mono, later(30).mono);
    assert_eq!(pool.lease(later(30), KeySet::default(), RequestMark::NONE), LeaseAnswer::Throttled { wait: Nanos::from_secs(30) });
    pool.cool_group(0, Until::Mono(later(90).mono));
    assert_eq!(pool.lease(later(60), KeySet::default(), RequestMark::NONE), LeaseAnswer::Cooling { wait: Nanos::from_secs(30) });
}

#[test]
fn requests_are_told_apart_by_method_and_path() {
    assert_eq!(RequestMark::of("GET", "/a"), RequestMark::of("GET", "/a"));
    assert_ne!(RequestMark::of("GET", "/a"), RequestMark::of("POST", "/a"));
    assert_ne!(RequestMark::of("GET", "/a"), RequestMark::of("GET", "/b"));
}

#[test]
fn a_disproved_throttle_begins_again_a_minute_after_the_probe_however_long_it_was() {
    let mut pool = pool(Pick::RoundRobin, 1);
    pool.throttle(0, true, later(3_600).mono, NOW.mono);
    let probe = lease(&mut pool, later(1));
    pool.succeeded(probe, later(1).mono);
    pool.throttle(0, true, later(100).mono, later(60).mono);
    assert!(!lease(&mut pool, later(60)).probe, "this refusal binds its own call alone");
    pool.throttle(0, true, later(600).mono, later(61).mono);
    assert!(matches!(pool.lease(later(61), KeySet::default(), RequestMark::NONE), LeaseAnswer::Throttled { .. }));
}

#[test]
fn probes_of_a_dead_key_come_half_as_often_each_time_down_to_one_an_hour() {
    let mut pool = pool(Pick::FewestFailures, 1);
    let first = lease(&mut pool, NOW);
    pool.reject(first, NOW.mono);
    let mut at = 60;
    for pause in [120, 240, 480, 960, 1_920, 3_600, 3_600] {
        let probe = lease(&mut pool, later(at));
        pool.reject(probe, later(at).mono);
        assert_eq!(pool.lease(later(at + pause - 1), KeySet::default(), RequestMark::NONE), dead(1));
        at += pause;
    }
}

#[test]
fn a_successful_probe_revives_and_a_late_success_of_an_older_call_does_not() {
    let mut pool = pool(Pick::FewestFailures, 1);
    let (old, first) = (lease(&mut pool, NOW), lease(&mut pool, NOW));
    pool.reject(first, NOW.mono);
    pool.succeeded(old, NOW.mono);
    assert_eq!(pool.lease(NOW, KeySet::default(), RequestMark::NONE), dead(60));
    let probe = lease(&mut pool, later(60));
    pool.succeeded(probe, NOW.mono);
    assert_eq!(lease(&mut pool, later(60)), KeyLease { key: 0, probe: false });
}

#[test]
fn a_cancelled_probe_is_due_again() {
    let mut pool = pool(Pick::FewestFailures, 1);
    let first = lease(&mut pool, NOW);
    pool.reject(first, NOW.mono);
    let probe = lease(&mut pool, later(60));
    pool.cancel(probe, later(60).mono);
    assert!(lease(&mut pool, later(60)).probe);
}

#[test]
fn a_due_probe_goes_before_live_keys_but_not_while_its_group_cools() {
    let mut pool = pool(Pick::FewestFailures, 2);
    pool.reject(KeyLease { key: 0, probe: false }, NOW.mono);
    assert_eq!(lease(&mut pool, NOW).key, 1);
    pool.cool_group(0, Until::Mono(later(70).mono));
    assert_eq!(lease(&mut pool, later(60)).key, 1);
    assert_eq!(lease(&mut pool, later(70)), KeyLease { key: 0, probe: true });
}

#[test]
fn a_key_restored_by_hand_is_as_new() {
    let mut pool = pool(Pick::FewestFailures, 1);
    let first = lease(&mut pool, NOW);
    pool.reject(first, NOW.mono);
    pool.cool_group(0, Until::Wall(later(1_000).wall));
    pool.restore(0);
    assert_eq!(lease(&mut pool, NOW), KeyLease { key: 0, probe: false });
    assert_eq!(pool.status(0, NOW).unwrap().fails, 0);
}

#[test]
fn an_unknown_key_is_nothing() {
    let mut pool = pool(Pick::RoundRobin, 1);
    pool.reject(KeyLease { key: 9, probe: true }, NOW.mono);
    pool.cool_group(9, Until::Mono(Mono(5)));
    pool.restore(9);
    assert_eq!(pool.status(9, NOW), None);
    assert_eq!(KeyPool::new(Pick::RoundRobin, &[]).lease(NOW, KeySet::default(), RequestMark::NONE), LeaseAnswer::Dead { wait: None });
    assert_eq!(pool.len(), 1);
}
