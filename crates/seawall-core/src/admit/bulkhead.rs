//! A named pool of slots with a bounded queue: highest priority first, then first come. It knows ids and times, not tasks: the driver wakes
//! granted calls, sets their timers and returns every slot.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::policy::{self, Share};
use crate::time::{Mono, Nanos};
use crate::words::words;

/// A place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueTicket {
    /// Reversed, so that the first ticket in the map is the next to be granted.
    priority: Reverse<u32>,
    number: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkheadRequest {
    pub priority: u32,
    pub deadline: Mono,
}

words! {
    /// The reason for a refusal.
    pub enum Refusal {
        /// Every slot and every place in the queue is taken.
        Full = "full",
        /// Waiting would outlast the caller's deadline.
        Deadline = "deadline",
    }
}

#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BulkheadEntry {
    /// The call has a slot until `leave`.
    Go,
    /// Queued until `until` at the latest: then `cancel`. `displaced` lost its place to this call and is refused now.
    Queued {
        ticket: QueueTicket,
        until: Mono,
        displaced: Option<QueueTicket>,
    },
    Refused(Refusal),
}

#[derive(Clone, Debug)]
pub struct Bulkhead {
    cap: u32,
    running: u32,
    queue: usize,
    queue_timeout: Nanos,
    /// The queue, with the time at which each call gives up.
    waiting: BTreeMap<QueueTicket, Mono>,
    numbers: u64,
    /// The time for which a slot is held, as a moving average over eight.
    held: Nanos,
}

impl Bulkhead {
    #[must_use]
    pub fn new(policy: &policy::BulkheadPolicy) -> Self {
        Self {
            cap: policy.concurrent,
            running: 0,
            queue: usize::try_from(policy.queue).unwrap_or(usize::MAX),
            queue_timeout: policy.queue_timeout,
            waiting: BTreeMap::new(),
            numbers: 0,
            held: Nanos::ZERO,
        }
    }

    pub fn enter(&mut self, arrival: BulkheadRequest, now: Mono) -> BulkheadEntry {
        if arrival.deadline <= now {
            return BulkheadEntry::Refused(Refusal::Deadline);
        }
        if self.running < self.cap && self.waiting.is_empty() {
            self.running += 1;
            return BulkheadEntry::Go;
        }
        if self.queue == 0 || self.queue_timeout == Nanos::ZERO {
            return BulkheadEntry::Refused(Refusal::Full);
        }
        let ticket = QueueTicket { priority: Reverse(arrival.priority), number: self.numbers };
        if now + self.expected_wait(ticket) >= arrival.deadline {
            return BulkheadEntry::Refused(Refusal::Deadline);
        }
        let Ok(displaced) = self.make_room(ticket, now) else { return BulkheadEntry::Refused(Refusal::Full) };
        self.numbers += 1;
        let until = (now + self.queue_timeout).min(arrival.deadline);
        self.waiting.insert(ticket, until);
        BulkheadEntry::Queued { ticket, until, displaced }
    }

    /// A full queue admits no call, except in place of an expired call or one of lower priority.
    fn make_room(&mut self, ticket: QueueTicket, now: Mono) -> Result<Option<QueueTicket>, Refusal> {
        if self.waiting.len() < self.queue {
            return Ok(None);
        }
        let gone = self.waiting.iter().find(|(_, until)| **until <= now).map(|(gone, _)| *gone);
        let lowest = gone.or_else(|| self.waiting.keys().next_back().copied().filter(|last| last.priority > ticket.priority));
        match lowest {
            Some(lowest) => {
                self.waiting.remove(&lowest);
                Ok(Some(lowest))
            }
            None => Err(Refusal::Full),
        }
    }

    /// Estimates the wait from the average hold time; zero until the first slot was returned.
    fn expected_wait(&self, ticket: QueueTicket) -> Nanos {
        let ahead = self.waiting.range(..ticket).count() as u64 + 1;
        Nanos(self.held.times(ahead).0 / u64::from(self.cap.max(1)))
    }

    /// Returns a slot, however its call ended; `held` is how long it was taken.
    pub fn leave(&mut self, held: Nanos) {
        self.running = self.running.saturating_sub(1);
        self.held = if self.held == Nanos::ZERO { held } else { Nanos(self.held.0 / 8 * 7 + held.0 / 8) };
    }

    /// Grants a slot to the next in the queue. Ask until `None` after every `leave`, `cancel` and `resize`. Skips calls that have waited
    /// too long: their own timers end them.
    #[must_use]
    pub fn grant(&mut self, now: Mono) -> Option<QueueTicket> {
        while self.running < self.cap {
            let (ticket, until) = self.waiting.pop_first()?;
            if now < until {
                self.running += 1;
                return Some(ticket);
            }
        }
        None
    }

    /// Leaves the queue. `false` when the ticket is no longer in it: granted (then `leave`), displaced or skipped.
    pub fn cancel(&mut self, ticket: QueueTicket) -> bool {
        self.waiting.remove(&ticket).is_some()
    }

    /// A smaller cap cancels nothing; the pool admits no call until enough slots are returned.
    pub fn resize(&mut self, cap: u32) {
        self.cap = cap;
    }

    /// The share of slots and queue places that are taken.
    #[must_use]
    pub fn pressure(&self) -> Share {
        let (taken, room) = self.taken();
        Share::of(taken, room)
    }

    /// The slots and queue places that are taken, and their total.
    #[must_use]
    pub fn taken(&self) -> (u64, u64) {
        let room = u64::from(self.cap).saturating_add(self.queue as u64).max(1);
        (u64::from(self.running) + self.waiting.len() as u64, room)
    }

    #[must_use]
    pub const fn running(&self) -> u32 {
        self.running
    }

    #[must_use]
    pub const fn cap(&self) -> u32 {
        self.cap
    }

    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(concurrent: u32, queue: u32) -> Bulkhead {
        let (queue_timeout, name) = (Nanos::from_secs(1), String::new());
        Bulkhead::new(&policy::BulkheadPolicy { name, concurrent, queue, queue_timeout, priority: 0, adaptive: false })
    }

    fn enter(bulkhead: &mut Bulkhead, priority: u32) -> BulkheadEntry {
        bulkhead.enter(BulkheadRequest { priority, deadline: Mono::MAX }, Mono(0))
    }

    fn queued(entry: BulkheadEntry) -> QueueTicket {
        match entry {
            BulkheadEntry::Queued { ticket, .. } => ticket,
            BulkheadEntry::Go | BulkheadEntry::Refused(_) => panic!("{entry:?}"),
        }
    }

    #[test]
    fn slots_then_the_line_then_nobody() {
        let mut bulkhead = pool(2, 2);
        assert_eq!([enter(&mut bulkhead, 0), enter(&mut bulkhead, 0)], [BulkheadEntry::Go; 2]);
        let line = [queued(enter(&mut bulkhead, 0)), queued(enter(&mut bulkhead, 0))];
        assert_eq!(enter(&mut bulkhead, 0), BulkheadEntry::Refused(Refusal::Full));
        assert_eq!(bulkhead.pressure(), Share::WHOLE);
        for ticket in line {
            assert_eq!(bulkhead.grant(Mono(0)), None);
            bulkhead.leave(Nanos(1));
            assert_eq!(bulkhead.grant(Mono(0)), Some(ticket));
        }
        bulkhead.leave(Nanos(1));
        bulkhead.leave(Nanos(1));
        assert_eq!((bulkhead.running(), bulkhead.waiting()), (0, 0));
    }

    #[test]
    fn each_returned_slot_wakes_exactly_one() {
        let mut bulkhead = pool(1, 2);
        assert_eq!(enter(&mut bulkhead, 0), BulkheadEntry::Go);
        let (first, second) = (queued(enter(&mut bulkhead, 0)), queued(enter(&mut bulkhead, 0)));
        bulkhead.leave(Nanos(1));
        assert_eq!([bulkhead.grant(Mono(0)), bulkhead.grant(Mono(0))], [Some(first), None]);
        bulkhead.leave(Nanos(1));
        assert_eq!([bulkhead.grant(Mono(0)), bulkhead.grant(Mono(0))], [Some(second), None]);
    }

    #[test]
    fn higher_priority_goes_first_and_displaces_lower_when_the_line_is_full() {
        let mut bulkhead = pool(1, 2);
        assert_eq!(enter(&mut bulkhead, 0), BulkheadEntry::Go);
        let low = queued(enter(&mut bulkhead, 1));
        let lower = queued(enter(&mut bulkhead, 0));
        let BulkheadEntry::Queued { ticket: high, displaced, .. } = enter(&mut bulkhead, 9) else { panic!("refused") };
        assert_eq!(displaced, Some(lower));
        assert_eq!(enter(&mut bulkhead, 1), BulkheadEntry::Refused(Refusal::Full));
        bulkhead.leave(Nanos(1));
        assert_eq!(bulkhead.grant(Mono(0)), Some(high));
        bulkhead.leave(Nanos(1));
        assert_eq!(bulkhead.grant(Mono(0)), Some(low));
    }

    #[test]
    fn without_a_line_or_a_wait_a_full_pool_refuses_at_once() {
        for mut bulkhead in [pool(1, 0), Bulkhead { queue_timeout: Nanos::ZERO, ..pool(1, 5) }] {
            assert_eq!(enter(&mut bulkhead, 0), BulkheadEntry::Go);
            assert_eq!(enter(&mut bulkhead, 0), BulkheadEntry::Refused(Refusal::Full));
        }
    }

    #[test]
    fn a_smaller_cap_cancels_nothing_and_admits_nobody_until_enough_have_left() {
        let mut bulkhead = pool(10, 5);
        for _ in 0..8 {
            assert_eq!(enter(&mut bulkhead, 0), BulkheadEntry::Go);
        }
        bulkhead.resize(3);
        let ticket = queued(enter(&mut bulkhead, 0));
        for running in (3..8).rev() {
            bulkhead.leave(Nanos(1));
            assert_eq!((bulkhead.running(), bulkhead.grant(Mono(0))), (running, None));
        }
        bulkhead.leave(Nanos(1));
        assert_eq!(bulkhead.grant(Mono(0)), Some(ticket));
    }

    #[test]
    fn a_larger_cap_lets_the_line_in() {
        let mut bulkhead = pool(1, 5);
        assert_eq!(enter(&mut bulkhead, 0), BulkheadEntry::Go);
        let line = [queued(enter(&mut bulkhead, 0)), queued(enter(&mut bulkhead, 0))];
        bulkhead.resize(3);
        assert_eq!([bulkhead.grant(Mono(0)), bulkhead.grant(Mono(0))], line.map(Some));
    }

    #[test]
    fn who_cannot_be_served_in_time_is_shed_at_once() {
        let mut bulkhead = pool(1, 5);
        assert_eq!(enter(&mut bulkhead, 0), BulkheadEntry::Go);
        bulkhead.leave(Nanos(100));
        assert_eq!(enter(&mut bulkhead, 0), BulkheadEntry::Go);
        let mut arrive = |deadline| bulkhead.enter(BulkheadRequest { priority: 0, deadline: Mono(deadline) }, Mono(0));
        assert_eq!(arrive(0), BulkheadEntry::Refused(Refusal::Deadline));
        assert_eq!(arrive(100), BulkheadEntry::Refused(Refusal::Deadline));
        assert!(matches!(arrive(101), BulkheadEntry::Queued { until: Mono(101), .. }));
        assert_eq!(arrive(200), BulkheadEntry::Refused(Refusal::Deadline), "one is ahead by now");
    }

    #[test]
    fn who_gave_up_is_not_woken_and_leaves_its_place() {
        let mut bulkhead = pool(1, 3);
        assert_eq!(enter(&mut bulkhead, 0), BulkheadEntry::Go);
        let (first, second) = (queued(enter(&mut bulkhead, 0)), queued(enter(&mut bulkhead, 0)));
        assert!(bulkhead.cancel(first));
        assert!(!bulkhead.cancel(first));
        bulkhead.leave(Nanos(1));
        assert_eq!(bulkhead.grant(Mono(2_000_000_000)), None, "the second has waited too long");
        assert!(!bulkhead.cancel(second));
        assert_eq!((bulkhead.running(), bulkhead.waiting()), (0, 0));
    }
}
