//! Limits, their table, and the bulkhead.

use std::collections::BTreeMap;

use proptest::prelude::*;
use seawall_core::admit::bulkhead::{Bulkhead, BulkheadEntry, BulkheadRequest, QueueTicket};
use seawall_core::admit::layered::{self, Answers};
use seawall_core::admit::limit::{Gcra, LimitAnswer, LimitCell};
use seawall_core::admit::table::CellTable;
use seawall_core::policy::{self, Algorithm, Fail, Mode, Rate};
use seawall_core::time::{Mono, Nanos};

fn policy() -> impl Strategy<Value = policy::LimitPolicy> {
    (prop::sample::select(Algorithm::ALL), prop_oneof![1..40u64, 1..2_000u64], 1..10_000_000_000u64, 1..50u64).prop_map(
        |(algorithm, count, per, burst)| policy::LimitPolicy {
            name: String::from("any"),
            key: Vec::new(),
            rate: Rate { count, per: Nanos(per) },
            burst,
            algorithm,
            mode: Mode::Enforce,
            fail: Fail::Open,
            max_wait: Nanos::ZERO,
        },
    )
}

fn limit() -> impl Strategy<Value = Gcra> {
    policy().prop_map(|policy| Gcra::from(&policy))
}

fn goes(answer: LimitAnswer) -> bool {
    matches!(answer, LimitAnswer::Go { .. })
}

/// The most that a limit may ever let through in this time.
fn most(policy: &policy::LimitPolicy, length: Nanos) -> u64 {
    let Rate { count, per } = policy.rate;
    match policy.algorithm {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => length.0 / (per.0 / count).max(1) + policy.burst + 1,
        Algorithm::FixedWindow | Algorithm::SlidingWindow => (length.0 / per.0 + 1) * count,
    }
}

/// A cell after some life of pauses in nanoseconds and costs.
fn lived(limit: &Gcra, life: &[(u64, u64)]) -> (LimitCell, Mono) {
    let (mut cell, mut now) = (LimitCell::default(), Mono(1_000));
    for (pause, cost) in life {
        now = now + Nanos(*pause);
        let _ = limit.take(&mut cell, now, *cost);
    }
    (cell, now)
}

fn life() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((prop_oneof![Just(0), 0..3_000_000_000u64], 1..20u64), 0..80)
}

proptest! {
    #[test]
    fn who_is_refused_is_admitted_exactly_when_told(limit in limit(), life in life(), cost in 1..20u64) {
        let (cell, now) = lived(&limit, &life);
        if let LimitAnswer::Refused { retry_at } = limit.check(&cell, now, cost) {
            prop_assert!(retry_at > now);
            let early = limit.check(&cell, Mono(retry_at.0 - 1), cost);
            prop_assert!(matches!(early, LimitAnswer::Refused { .. }), "admitted 1 ns early: {early:?}");
            let answer = limit.check(&cell, retry_at, cost);
            prop_assert!(goes(answer), "{answer:?} at {retry_at:?}");
        }
    }

    #[test]
    fn a_check_never_differs_from_the_take_and_a_refusal_spends_nothing(limit in limit(), life in life(), cost in 1..20u64) {
        let (mut cell, now) = lived(&limit, &life);
        let before = cell;
        let answer = limit.check(&cell, now, cost);
        prop_assert_eq!(limit.take(&mut cell, now, cost), answer);
        if !goes(answer) {
            prop_assert_eq!(cell, before);
        }
    }

    #[test]
    fn what_remains_is_what_can_be_taken(limit in limit(), life in life()) {
        let (mut cell, now) = lived(&limit, &life);
        let (remaining, reset) = limit.remaining(&cell, now);
        if remaining > 0 {
            prop_assert!(goes(limit.check(&cell, now, remaining)), "less than what remains");
        }
        if limit.is_idle(&cell, now) {
            prop_assert_eq!((remaining, reset), limit.remaining(&LimitCell::default(), now));
        }
        prop_assert!(limit.is_idle(&cell, now + reset));
        let before = remaining;
        if goes(limit.take(&mut cell, now, 1)) {
            limit.refund(&mut cell, now, 1);
            prop_assert_eq!(limit.remaining(&cell, now).0, before);
        }
    }

    #[test]
    fn a_changed_limit_never_lets_more_through_at_once(was in limit(), new in limit(), life in life()) {
        let (cell, now) = lived(&was, &life);
        if !was.is_idle(&cell, now) {
            let rebased = new.rebase(&was, &cell, now);
            prop_assert!(new.remaining(&rebased, now).0 <= was.remaining(&cell, now).0);
        }
    }

    #[test]
    fn a_rate_is_never_exceeded_by_more_than_the_burst(policy in policy(), pauses in prop::collection::vec(0..200_000_000u64, 1..300)) {
        let limit = Gcra::from(&policy);
        let (mut cell, mut now, mut admitted) = (LimitCell::default(), Mono(5), 0u64);
        for pause in pauses {
            now = now + Nanos(pause);
            admitted += u64::from(goes(limit.take(&mut cell, now, 1)));
        }
        prop_assert!(admitted <= most(&policy, now.since(Mono(5))));
    }

    #[test]
    fn layers_take_all_or_nothing(lives in prop::collection::vec((limit(), life()), 1..7), cost in 1..20u64) {
        let now = lives.iter().map(|(limit, life)| lived(limit, life).1).max().unwrap_or_default();
        let (limits, mut cells): (Vec<Gcra>, Vec<LimitCell>) = lives.iter().map(|(limit, life)| (*limit, lived(limit, life).0)).unzip();
        let before = cells.clone();
        let answers: Vec<LimitAnswer> = limits.iter().zip(&cells).map(|(limit, cell)| limit.check(cell, now, cost)).collect();
        let mut layers: Vec<(&Gcra, &mut LimitCell)> = limits.iter().zip(&mut cells).collect();
        match layered::take_all(&mut layers, now, cost) {
            Answers::Go { after, shadowed } => {
                prop_assert_eq!(shadowed, 0);
                prop_assert!(answers.iter().all(|answer| matches!(answer, LimitAnswer::Go { after: one } if *one <= after)), "one refused");
                return Ok(());
            }
            Answers::Refused { layer, retry_at } => {
                prop_assert_eq!(answers[layer], LimitAnswer::Refused { retry_at });
                prop_assert!(answers.iter().all(|answer| !matches!(answer, LimitAnswer::Refused { retry_at: other } if *other > retry_at)), "not the latest");
            }
            Answers::TooCostly { layer, capacity } => prop_assert_eq!(answers[layer], LimitAnswer::TooCostly { capacity }),
        }
        prop_assert_eq!(cells, before);
    }

    #[test]
    fn the_table_is_a_bounded_map_that_forgets_only_idle_cells(
        limit in limit(),
        events in prop::collection::vec((0..40u128, 0..500_000_000u64), 1..400),
    ) {
        let mut table = CellTable::new(16);
        let mut model: BTreeMap<u128, LimitCell> = BTreeMap::new();
        let mut now = Mono(1);
        for (key, pause) in events {
            now = now + Nanos(pause);
            let overflowed = table.overflowed();
            let answer = limit.take(table.cell(&limit, key, now), now, 1);
            if table.overflowed() == overflowed {
                let cell = model.entry(key).or_default();
                prop_assert_eq!(answer, limit.take(cell, now, 1));
            }
            prop_assert!(table.len() <= 16);
        }
    }
}

#[derive(Clone, Debug)]
enum Event {
    Arrive { priority: u32, patience: u64 },
    Leave,
    GiveUp,
    Resize(u32),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        5 => (0..4u32, 1..5_000u64).prop_map(|(priority, patience)| Event::Arrive { priority, patience }),
        4 => Just(Event::Leave),
        1 => Just(Event::GiveUp),
        1 => (0..6u32).prop_map(Event::Resize),
    ]
}

proptest! {
    #[test]
    fn a_bulkhead_never_runs_above_its_cap_and_every_slot_comes_back(
        events in prop::collection::vec((event(), 0..400u64), 1..300),
        cap in 1..5u32,
        queue in 0..5u32,
    ) {
        let policy = policy::BulkheadPolicy { name: String::new(), concurrent: cap, queue, queue_timeout: Nanos(2_000), priority: 0, adaptive: false };
        let mut bulkhead = Bulkhead::new(&policy);
        let (mut running, mut line, mut now): (u32, Vec<QueueTicket>, Mono) = (0, Vec::new(), Mono(0));
        for (event, pause) in events {
            now = now + Nanos(pause);
            match event {
                Event::Arrive { priority, patience } => match bulkhead.enter(BulkheadRequest { priority, deadline: now + Nanos(patience) }, now) {
                    BulkheadEntry::Go => {
                        running += 1;
                        prop_assert!(running <= bulkhead.cap());
                    }
                    BulkheadEntry::Queued { ticket, displaced, .. } => {
                        line.retain(|waiting| Some(*waiting) != displaced);
                        line.push(ticket);
                    }
                    BulkheadEntry::Refused(_) => {}
                },
                Event::Leave => if running > 0 {
                    running -= 1;
                    bulkhead.leave(Nanos(pause));
                },
                Event::GiveUp => if let Some(ticket) = line.pop() {
                    bulkhead.cancel(ticket);
                },
                Event::Resize(cap) => bulkhead.resize(cap),
            }
            while let Some(granted) = bulkhead.grant(now) {
                prop_assert!(line.contains(&granted), "a stranger was let in");
                line.retain(|waiting| *waiting != granted);
                running += 1;
                prop_assert!(running <= bulkhead.cap());
            }
            prop_assert_eq!(bulkhead.running(), running);
            prop_assert!(bulkhead.waiting() <= queue as usize && bulkhead.waiting() <= line.len());
        }
        (0..running).for_each(|_| bulkhead.leave(Nanos(1)));
        prop_assert_eq!(bulkhead.running(), 0);
    }
}
