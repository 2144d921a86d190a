//! Groups events into messages for one receiver. The first event is sent at once and later ones are collected. A condition that
//! goes on is rarely repeated, and its end is sent only if its beginning was. One that returns soon after its end is sent only if it lasts.

use crate::time::{Mono, Nanos};
use std::collections::{BTreeMap, VecDeque};

/// After a message, the next one collects events for this long. Urgent events do not wait.
pub const TOGETHER: Nanos = Nanos::from_secs(5);
/// A condition that begins again this soon after its end is sent only if it lasts this long.
pub const QUIET: Nanos = Nanos::from_secs(60);
/// A condition that goes on happening is sent again at this interval.
pub const AGAIN: Nanos = Nanos::from_secs(15 * 60);
/// The most conditions remembered, and the most events waiting.
const MAX_EVENTS: usize = 1000;
/// The most events in one message.
const MAX_TOLD: usize = 20;

/// An event in a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice<E> {
    pub event: E,
    /// Occurrences since the last message about it.
    pub times: u32,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotificationMessage<E> {
    pub notices: Vec<Notice<E>>,
    /// Events dropped because the queue was full.
    pub missed: u32,
}

#[derive(Clone, Copy, Debug)]
struct StandingAlarm {
    /// The latest event that began the condition; its end names this one.
    id: u64,
    told_at: Mono,
    times: u32,
}

#[derive(Debug)]
struct PendingMessage<E> {
    /// The condition that this event begins, and the latest event that began it.
    begins: Option<(String, u64)>,
    from: Mono,
    urgent: bool,
    notice: Notice<E>,
}

/// One receiver's knowledge: the conditions it was notified of and the events that wait.
#[derive(Debug)]
pub struct Notices<E> {
    standing: BTreeMap<String, StandingAlarm>,
    ended: BTreeMap<String, Mono>,
    waiting: VecDeque<PendingMessage<E>>,
    last: Option<Mono>,
    missed: u32,
}

impl<E> Default for Notices<E> {
    fn default() -> Self {
        Self { standing: BTreeMap::new(), ended: BTreeMap::new(), waiting: VecDeque::new(), last: None, missed: 0 }
    }
}

impl<E> Notices<E> {
    /// Conditions that the receiver was notified of and that have not ended, each with the latest event that began it.
    pub fn told(&self) -> impl Iterator<Item = (&str, u64)> {
        self.standing.iter().map(|(about, standing)| (about.as_str(), standing.id))
    }

    /// Restores the conditions that the receiver was notified of before a restart.
    pub fn recall(&mut self, told: impl IntoIterator<Item = (String, u64)>, now: Mono) {
        let room = MAX_EVENTS.saturating_sub(self.standing.len());
        self.standing.extend(told.into_iter().take(room).map(|(about, id)| (about, StandingAlarm { id, told_at: now, times: 0 })));
    }

    /// Something begins, or happens again: `about` says what it is and to whom.
    pub fn begins(&mut self, about: &str, id: u64, event: E, urgent: bool, now: Mono) {
        if let Some(standing) = self.standing.get_mut(about) {
            standing.id = id;
            standing.times = standing.times.saturating_add(1);
            if now.since(standing.told_at) < AGAIN {
                return;
            }
            let times = std::mem::take(&mut standing.times);
            standing.told_at = now;
            self.wait(PendingMessage { begins: None, from: now, urgent, notice: Notice { event, times } });
            return;
        }
        let same = self.waiting.iter_mut().find(|waiting| waiting.begins.as_ref().is_some_and(|(known, _)| known == about));
        if let Some(PendingMessage { begins: Some((_, last)), notice, .. }) = same {
            *last = id;
            notice.times = notice.times.saturating_add(1);
            return;
        }
        let from = self.ended.get(about).map_or(now, |ended| (*ended + QUIET).max(now));
        self.wait(PendingMessage { begins: Some((about.to_owned(), id)), from, urgent, notice: Notice { event, times: 1 } });
    }

    /// Ends the condition that event `id` began. Returns whether the beginning was sent or was waiting to be.
    pub fn resolve(&mut self, id: u64, event: E, now: Mono) -> bool {
        let told = self.standing.iter().find(|(_, standing)| standing.id == id).map(|(about, _)| about.clone());
        if let Some(about) = told {
            self.standing.remove(&about);
            self.ended.retain(|_, ended| now.since(*ended) < QUIET);
            if self.ended.len() < MAX_EVENTS {
                self.ended.insert(about, now);
            }
            self.wait(PendingMessage { begins: None, from: now, urgent: false, notice: Notice { event, times: 1 } });
            return true;
        }
        // The condition ended before its beginning was sent, so the beginning is dropped.
        let before = self.waiting.len();
        self.waiting.retain(|waiting| waiting.begins.as_ref().is_none_or(|(_, began)| *began != id));
        self.waiting.len() < before
    }

    /// Adds an event that has neither beginning nor end.
    pub fn publish(&mut self, event: E, now: Mono) {
        self.wait(PendingMessage { begins: None, from: now, urgent: false, notice: Notice { event, times: 1 } });
    }

    fn wait(&mut self, waiting: PendingMessage<E>) {
        if self.waiting.len() < MAX_EVENTS {
            self.waiting.push_back(waiting);
        } else {
            self.missed = self.missed.saturating_add(1);
        }
    }

    /// Returns the message that is due, if any, and counts it as sent.
    pub fn due(&mut self, now: Mono) -> Option<NotificationMessage<E>> {
        let rests = self.last.is_some_and(|last| now.since(last) < TOGETHER);
        let is_due = |waiting: &PendingMessage<E>| waiting.from <= now;
        if !self.waiting.iter().any(|waiting| is_due(waiting) && (waiting.urgent || !rests)) {
            return None;
        }
        let (due, later): (Vec<PendingMessage<E>>, Vec<PendingMessage<E>>) =
            std::mem::take(&mut self.waiting).into_iter().partition(is_due);
        self.waiting = later.into();
        let mut notices = Vec::new();
        for PendingMessage { begins, notice, .. } in due {
            if let Some((about, id)) = begins
                && self.standing.len() < MAX_EVENTS
            {
                self.standing.insert(about, StandingAlarm { id, told_at: now, times: 0 });
            }
            if notices.len() < MAX_TOLD {
                notices.push(notice);
            } else {
                self.missed = self.missed.saturating_add(1);
            }
        }
        self.last = Some(now);
        Some(NotificationMessage { notices, missed: std::mem::take(&mut self.missed) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono(0) + Nanos::from_secs(seconds)
    }

    fn told(notices: &mut Notices<&'static str>, seconds: u64) -> Vec<(&'static str, u32)> {
        let due = notices.due(at(seconds));
        due.map(|message| message.notices.into_iter().map(|notice| (notice.event, notice.times)).collect()).unwrap_or_default()
    }

    #[test]
    fn the_first_is_told_at_once_and_those_after_it_together() {
        let mut notices = Notices::default();
        notices.begins("a", 1, "a opened", false, at(0));
        assert_eq!(told(&mut notices, 0), [("a opened", 1)]);
        notices.begins("b", 2, "b opened", false, at(1));
        notices.begins("c", 3, "c opened", false, at(2));
        assert_eq!(told(&mut notices, 4), []);
        assert_eq!(told(&mut notices, 5), [("b opened", 1), ("c opened", 1)]);
        assert_eq!(told(&mut notices, 60), []);
    }

    #[test]
    fn what_is_urgent_waits_for_nothing_and_takes_the_others_along() {
        let mut notices = Notices::default();
        notices.begins("a", 1, "a", false, at(0));
        told(&mut notices, 0);
        notices.begins("b", 2, "b", false, at(1));
        notices.begins("c", 3, "c", true, at(1));
        assert_eq!(told(&mut notices, 1), [("b", 1), ("c", 1)]);
    }

    #[test]
    fn what_is_known_is_not_told_again_for_a_while_and_then_with_its_number() {
        let mut notices = Notices::default();
        notices.begins("a", 1, "a", false, at(0));
        told(&mut notices, 0);
        for minute in 1..15 {
            notices.begins("a", 1 + minute, "a", false, at(minute * 60));
            assert_eq!(told(&mut notices, minute * 60), [], "{minute}");
        }
        notices.begins("a", 20, "a again", false, at(900));
        assert_eq!(told(&mut notices, 900), [("a again", 15)]);
    }

    #[test]
    fn an_end_is_told_to_whoever_heard_of_the_beginning() {
        let mut notices = Notices::default();
        assert!(!notices.resolve(7, "who?", at(0)));
        notices.begins("a", 1, "a", false, at(0));
        told(&mut notices, 0);
        notices.begins("a", 2, "a", false, at(10));
        assert!(!notices.resolve(1, "an older one", at(20)), "the last beginning is what ends");
        assert!(notices.resolve(2, "a is over", at(20)));
        assert_eq!(told(&mut notices, 20), [("a is over", 1)]);
    }

    #[test]
    fn what_was_told_in_an_earlier_life_is_known_and_its_end_is_told() {
        let mut before = Notices::default();
        before.begins("a", 1, "a", false, at(0));
        told(&mut before, 0);
        before.begins("b", 2, "b", false, at(1));
        let known: Vec<(String, u64)> = before.told().map(|(about, id)| (about.to_owned(), id)).collect();
        assert_eq!(known, [("a".to_owned(), 1)], "what still waits was not told");
        let mut after = Notices::default();
        after.recall(known, at(0));
        after.begins("a", 9, "a", false, at(1));
        assert_eq!(told(&mut after, 1), [], "it is known");
        assert!(after.resolve(9, "a is over", at(2)));
        assert_eq!(told(&mut after, 2), [("a is over", 1)]);
    }

    #[test]
    fn what_comes_and_goes_is_told_when_it_stays() {
        let mut notices = Notices::default();
        notices.begins("a", 1, "a", false, at(0));
        told(&mut notices, 0);
        notices.resolve(1, "a is over", at(10));
        assert_eq!(told(&mut notices, 10), [("a is over", 1)]);
        for flap in 0..10 {
            notices.begins("a", 10 + flap, "a", true, at(11 + flap * 2));
            assert_eq!(told(&mut notices, 11 + flap * 2), []);
            assert!(notices.resolve(10 + flap, "a is over", at(12 + flap * 2)), "known, and over before it was told");
        }
        assert_eq!(told(&mut notices, 40), []);
        notices.begins("a", 30, "a", false, at(50));
        assert_eq!(told(&mut notices, 69), []);
        assert_eq!(told(&mut notices, 70), [("a", 1)], "it stayed");
    }

    #[test]
    fn a_flood_is_counted() {
        let mut notices = Notices::default();
        for id in 0..3000 {
            notices.begins(&id.to_string(), id, "x", false, at(0));
        }
        let message = notices.due(at(0)).unwrap();
        assert_eq!((message.notices.len(), message.missed), (20, 2980));
    }
}
