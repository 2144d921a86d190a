//! The key pool under every order of events.

use proptest::prelude::*;
use seawall_core::lease::{KeyLease, KeyPool, KeySet, LeaseAnswer, RequestMark, Reset, Until};
use seawall_core::policy::Pick;
use seawall_core::time::{Nanos, Now, Wall};

/// The request that keys are refused for.
const REQUEST: RequestMark = RequestMark::from_number(1);

#[derive(Clone, Debug)]
enum Event {
    Lease,
    Succeed,
    Fail,
    Reject,
    Refuse(u32),
    Cancel,
    CoolMono(u64),
    CoolWall(u64),
    Restore(u16),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => Just(Event::Lease),
        2 => Just(Event::Succeed),
        2 => Just(Event::Fail),
        1 => Just(Event::Reject),
        2 => (1..6u32).prop_map(Event::Refuse),
        1 => Just(Event::Cancel),
        2 => (0..200_000u64).prop_map(Event::CoolMono),
        1 => (0..200_000u64).prop_map(Event::CoolWall),
        1 => (0..4u16).prop_map(Event::Restore),
    ]
}

proptest! {
    #[test]
    fn a_leased_key_is_never_cooling_nor_tried_and_waits_are_exact(
        pick in prop::sample::select(Pick::ALL),
        groups in prop::collection::vec(0..3u16, 1..5),
        tried in any::<u8>(),
        events in prop::collection::vec((event(), 0..60_000u64), 1..150),
    ) {
        let mut pool = KeyPool::new(pick, &groups);
        let mut set = KeySet::default();
        (0..8).filter(|bit| tried >> bit & 1 == 1).for_each(|bit| set.insert(bit));
        let mut now = Now { mono: Default::default(), wall: Wall(0) };
        let mut last = KeyLease { key: 0, probe: false };
        for (event, pause) in events {
            now = now.after(Nanos::from_millis(pause));
            match event {
                Event::Lease => last = lease(&mut pool, now, set)?.unwrap_or(last),
                Event::Succeed => pool.succeeded(last, now.mono),
                Event::Fail => pool.failed(last),
                Event::Reject => pool.reject(last, now.mono),
                Event::Refuse(request) => pool.refuse(last, RequestMark::from_number(request), now.mono),
                Event::Cancel => pool.cancel(last, now.mono),
                Event::CoolMono(ms) => pool.cool_group(last.key, Until::Mono(now.mono + Nanos::from_millis(ms))),
                Event::CoolWall(ms) => pool.cool_group(last.key, Until::Wall(now.wall + Nanos::from_millis(ms))),
                Event::Restore(key) => pool.restore(key),
            }
        }
    }

    #[test]
    fn a_reset_is_later_and_at_most_a_long_day_away(hour in 0..24u8, minute in 0..60u8, zone in prop::sample::select(ZONES), at in 0..4_102_444_800_000i64) {
        let reset = Reset::parse(&format!("{hour:02}:{minute:02} {zone}")).unwrap();
        let next = reset.next_after(Wall(at));
        prop_assert!(next > Wall(at));
        prop_assert!(next.since(Wall(at)) <= Nanos::from_secs(26 * 3_600));
        prop_assert!(reset.next_after(next) > next);
    }
}

/// With half-hour offsets, with a change of half an hour, and on both sides of the date line (Samoa skipped a whole
/// day in 2011, so it is not here: its resets are two days apart then).
const ZONES: &[&str] = &["America/Los_Angeles", "Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe", "UTC", "Pacific/Auckland"];

fn lease(pool: &mut KeyPool, now: Now, tried: KeySet) -> Result<Option<KeyLease>, TestCaseError> {
    match pool.lease(now, tried, REQUEST) {
        LeaseAnswer::Leased(lease) => {
            let status = pool.status(lease.key, now).expect("a leased key is in the pool");
            prop_assert_eq!(status.cooling, None);
            prop_assert!(!tried.contains(lease.key));
            prop_assert_eq!(status.dead, lease.probe);
            Ok(Some(lease))
        }
        LeaseAnswer::Cooling { wait } | LeaseAnswer::Throttled { wait } => {
            let later = now.after(wait);
            let viable = wait == Nanos::ZERO || matches!(pool.clone().lease(later, KeySet::default(), REQUEST), LeaseAnswer::Leased(_));
            prop_assert!(viable, "nobody is viable after the wait");
            Ok(None)
        }
        LeaseAnswer::Dead { wait } => {
            let later = now.after(wait.expect("there are keys"));
            prop_assert!(
                matches!(pool.clone().lease(later, KeySet::default(), REQUEST), LeaseAnswer::Leased(_)),
                "no probe is due after the wait"
            );
            prop_assert!((0..4).filter_map(|key| pool.status(key, now)).all(|status| status.dead));
            Ok(None)
        }
    }
}
