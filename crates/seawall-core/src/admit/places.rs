//! The places of one upstream for calls that wait: their number, their callers, and the size of the waiting bodies.

use std::collections::BTreeMap;

/// The total length of the bodies that calls may hold while they wait for one upstream.
pub const MAX_BYTES: u64 = 256 * 1024 * 1024;
/// The part of it that one caller may use.
const MAX_BYTES_OF_CALLER: u64 = MAX_BYTES / 2;

/// A call that waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiter {
    /// Identifies the caller, or its credential. Without caller identities it is the same for all calls.
    pub caller: u64,
    /// The body that is kept for the call.
    pub bytes: u64,
}

/// The places of one caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CallerShare {
    waiting: u32,
    /// Places that callers with fewer have taken over. The displaced calls leave when they next ask for their turn.
    owed: u32,
    bytes: u64,
}

/// All places. One caller may have all of them while no other needs one; then the caller with the most gives one up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    waiting: u32,
    owed: u32,
    bytes: u64,
    callers: BTreeMap<u64, CallerShare>,
}

impl Places {
    /// Takes a place for this call if one is free; `max` is the number of places.
    pub fn take(&mut self, waiter: Waiter, max: u32) -> bool {
        let share = self.callers.get(&waiter.caller).copied().unwrap_or_default();
        let has_room = |taken: u64, most: u64| waiter.bytes == 0 || taken.saturating_add(waiter.bytes) <= most;
        if !has_room(self.bytes, MAX_BYTES) || !has_room(share.bytes, MAX_BYTES_OF_CALLER) {
            return false;
        }
        if self.waiting.saturating_sub(self.owed) >= max && !self.displace(share.waiting.saturating_sub(share.owed)) {
            return false;
        }
        let share = self.callers.entry(waiter.caller).or_default();
        share.waiting += 1;
        share.bytes += waiter.bytes;
        self.waiting += 1;
        self.bytes += waiter.bytes;
        true
    }

    /// Takes a place from the caller with most places, for a caller that has `fewer`.
    fn displace(&mut self, fewer: u32) -> bool {
        let largest = self.callers.values_mut().max_by_key(|share| share.waiting.saturating_sub(share.owed));
        let Some(share) = largest.filter(|share| share.waiting.saturating_sub(share.owed) > fewer + 1) else { return false };
        share.owed += 1;
        self.owed += 1;
        true
    }

    pub fn give_back(&mut self, waiter: Waiter) {
        let Some(share) = self.callers.get_mut(&waiter.caller) else { return };
        share.waiting = share.waiting.saturating_sub(1);
        share.bytes = share.bytes.saturating_sub(waiter.bytes);
        self.waiting = self.waiting.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(waiter.bytes);
        if share.owed > 0 {
            share.owed -= 1;
            self.owed -= 1;
        }
        if share.waiting == 0 {
            self.callers.remove(&waiter.caller);
        }
    }

    /// Whether this caller has to give up a place.
    #[must_use]
    pub fn is_displaced(&self, caller: u64) -> bool {
        self.callers.get(&caller).is_some_and(|share| share.owed > 0)
    }

    #[must_use]
    pub const fn waiting(&self) -> u32 {
        self.waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn of(caller: u64) -> Waiter {
        Waiter { caller, bytes: 0 }
    }

    fn filled(max: u32) -> Places {
        let mut places = Places::default();
        (0..max).for_each(|_| assert!(places.take(of(1), max)));
        places
    }

    #[test]
    fn one_caller_may_have_all_places_and_no_more() {
        let mut places = filled(10);
        assert!(!places.take(of(1), 10));
        places.give_back(of(1));
        assert!(places.take(of(1), 10));
        assert_eq!(places.waiting(), 10);
        assert!(!Places::default().take(of(1), 0));
    }

    #[test]
    fn a_caller_that_fills_the_line_gives_up_places_to_another_until_both_have_as_many() {
        let mut places = filled(10);
        let taken = (0..10).filter(|_| places.take(of(2), 10)).count();
        assert_eq!(taken, 5);
        let mut displaced = 0;
        while places.is_displaced(1) {
            places.give_back(of(1));
            displaced += 1;
        }
        assert_eq!((displaced, places.waiting()), (5, 10));
        assert!(!places.is_displaced(2) && !places.take(of(1), 10) && places.take(of(3), 10));
    }

    #[test]
    fn a_call_that_leaves_by_itself_pays_what_its_caller_owes() {
        let mut places = filled(10);
        assert!(places.take(of(2), 10));
        places.give_back(of(1));
        assert!(!places.is_displaced(1) && !places.take(of(1), 10));
        (0..9).for_each(|_| places.give_back(of(1)));
        places.give_back(of(2));
        assert_eq!(places, Places::default());
    }

    #[test]
    fn bodies_of_calls_that_wait_are_bounded() {
        let mut places = Places::default();
        let large = |caller| Waiter { caller, bytes: 1024 * 1024 };
        assert_eq!((0..1_000).filter(|_| places.take(large(1), 1_000)).count(), 128, "half of the room is one caller's");
        assert_eq!((0..1_000).filter(|n| places.take(large(2 + n % 3), 1_000)).count(), 128);
        assert!(!places.take(large(9), 1_000) && places.take(of(9), 1_000), "a call without a body takes up no room");
        places.give_back(large(1));
        assert!(places.take(large(9), 1_000));
    }
}
