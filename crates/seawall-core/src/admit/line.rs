//! The line of calls that wait for one endpoint: for a key, for the end of a provider's pause, or for a breaker's probe. It says when each
//! call checks again, so that calls proceed in order and spread out, whatever their number.
//!
//! Calls that wait for the same thing are in one lane. Only the first of a lane checks whether the obstacle has ended; the others ask for
//! their turn, which comes once all before them have gone. Lanes do not wait for each other.

use crate::time::{Mono, Nanos};
use std::collections::{BTreeMap, VecDeque};

/// The shortest time between two checks of one call.
const MIN_LOOK: Nanos = Nanos::from_millis(10);
/// The first call of a lane checks at least this often: a pause may be lifted, a probe may succeed.
const MAX_LOOK: Nanos = Nanos::from_millis(50);
/// The others ask for their turn at least this often, because those before them may have given up.
const MAX_NAP: Nanos = Nanos::from_millis(250);
/// The distance between two checks. The shorter one bounds the cost of waiting, the longer one keeps short lines quick.
const SPACING: (Nanos, Nanos) = (Nanos::from_millis(1), Nanos::from_millis(20));
/// A call whose timer fires late does not delay those after it, up to this.
const MAX_LATE: Nanos = Nanos::from_millis(10);

/// A line drains in about this time once the obstacle ends, so that a line that grew slowly does not slow down a burst that joins it.
const MAX_ROUND: Nanos = Nanos::from_secs(2);

/// The obstacle that a call waits for. Calls whose obstacles end together share a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    Breaker,
    /// A pause that binds all callers.
    Pause,
    /// The pause of one caller's credential.
    OwnPause {
        credential: u64,
    },
    Keys,
    /// Every key was rejected. Whether a request may be the probe depends on what it asks for.
    RejectedKeys {
        request: u32,
    },
    /// Room in the limits that count this caller.
    Limit {
        caller: u64,
    },
    Budget,
}

/// The place of a call in the line. It keeps its ticket however often it checks, and whatever it waits for next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinePlace {
    ticket: u64,
    lane: Lane,
}

/// Calls that wait for one thing, by ticket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LaneQueue {
    tickets: VecDeque<u64>,
    /// When the first of them checks.
    look_at: Mono,
}

impl LaneQueue {
    fn insert(&mut self, ticket: u64) {
        if let Err(at) = self.tickets.binary_search(&ticket) {
            self.tickets.insert(at, ticket);
        }
    }

    fn remove(&mut self, ticket: u64) {
        if let Ok(at) = self.tickets.binary_search(&ticket) {
            self.tickets.remove(at);
        }
    }

    /// Returns the number of calls before this one.
    fn rank(&self, ticket: u64) -> u64 {
        let (Ok(rank) | Err(rank)) = self.tickets.binary_search(&ticket);
        u64::try_from(rank).unwrap_or(u64::MAX)
    }
}

/// One line. It drains at twice the rate at which its calls joined: a line that took two seconds to grow is gone in about one, and an
/// upstream that has just recovered does not get all of it at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitingLine {
    waiting: u32,
    /// The calls that joined since the line was last empty, and when that was.
    joined: u32,
    since: Mono,
    /// The latest check that was assigned to the first call of a lane.
    last: Mono,
    next_ticket: u64,
    queues: BTreeMap<Lane, LaneQueue>,
}

impl WaitingLine {
    /// Adds a call to the line. The call then asks when it checks.
    pub fn join(&mut self, lane: Lane, now: Mono) -> LinePlace {
        if self.waiting == 0 {
            (self.joined, self.since) = (0, now);
        }
        self.waiting += 1;
        self.joined = self.joined.saturating_add(1);
        self.next_ticket += 1;
        LinePlace { ticket: self.next_ticket, lane }
    }

    pub fn leave(&mut self, place: LinePlace) {
        self.waiting = self.waiting.saturating_sub(1);
        self.remove(place);
    }

    /// Returns the call's place in this lane, and when to ask for its turn. The obstacle ends at `ready_at`, or sooner.
    #[must_use]
    pub fn wait(&mut self, place: LinePlace, lane: Lane, ready_at: Mono, now: Mono) -> (LinePlace, Mono) {
        if lane != place.lane {
            self.remove(place);
        }
        let spacing = self.spacing(now);
        let queue = self.queues.entry(lane).or_default();
        queue.insert(place.ticket);
        let rank = queue.rank(place.ticket);
        if rank == 0 {
            queue.look_at = ready_at.min(now + MAX_LOOK).max(now + MIN_LOOK).max(self.last + spacing);
            self.last = queue.look_at;
        }
        (LinePlace { lane, ..place }, ask_at(queue.look_at, rank, spacing, now))
    }

    /// Whether it is this call's turn to check; otherwise when it asks again.
    pub fn turn(&mut self, place: LinePlace, now: Mono) -> Result<(), Mono> {
        let spacing = self.spacing(now);
        let Some(queue) = self.queues.get_mut(&place.lane) else { return Ok(()) };
        let rank = queue.rank(place.ticket);
        if rank > 0 || now < queue.look_at {
            return Err(ask_at(queue.look_at, rank, spacing, now));
        }
        // The next call may check before this one is done, because this one may have to wait for a slot of the pool.
        queue.look_at = queue.look_at.max(Mono(now.0.saturating_sub(MAX_LATE.0))) + spacing;
        self.remove(place);
        Ok(())
    }

    fn remove(&mut self, place: LinePlace) {
        let Some(queue) = self.queues.get_mut(&place.lane) else { return };
        queue.remove(place.ticket);
        if queue.tickets.is_empty() {
            self.queues.remove(&place.lane);
        }
    }

    fn spacing(&self, now: Mono) -> Nanos {
        let per_call = now.since(self.since).0 / u64::from(self.joined.max(1)) / 2;
        let longest = MAX_ROUND.0 / u64::from(self.waiting.max(1));
        Nanos(per_call.min(longest).clamp(SPACING.0.0, SPACING.1.0))
    }

    #[must_use]
    pub const fn waiting(&self) -> u32 {
        self.waiting
    }
}

/// Returns when a call with `rank` calls before it asks for its turn.
fn ask_at(look_at: Mono, rank: u64, spacing: Nanos, now: Mono) -> Mono {
    let turn = look_at.max(now) + Nanos(spacing.0.saturating_mul(rank));
    if rank == 0 { look_at } else { turn.min(now + MAX_NAP) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Mono {
        Mono(ms * 1_000_000)
    }

    /// A call of a test: its place, and when it asks next.
    type Waiter = (Mono, LinePlace);

    fn join(line: &mut WaitingLine, ready_at: Mono, now: Mono) -> Waiter {
        let place = line.join(Lane::Keys, now);
        let (place, at) = line.wait(place, Lane::Keys, ready_at, now);
        (at, place)
    }

    /// Runs a line to its end after its obstacle ended. Returns the time at which each call went, by ticket.
    fn run(line: &mut WaitingLine, mut waiters: Vec<Waiter>, free_at: Mono) -> Vec<(u64, Mono)> {
        let mut gone = Vec::new();
        while let Some(next) = (0..waiters.len()).min_by_key(|at| waiters[*at].0) {
            let (now, place) = waiters.swap_remove(next);
            match line.turn(place, now) {
                Err(at) => {
                    assert!(at > now, "a call that has to wait asks later");
                    waiters.push((at, place));
                }
                Ok(()) if now >= free_at => {
                    line.leave(place);
                    gone.push((place.ticket, now));
                }
                Ok(()) => {
                    let (place, at) = line.wait(place, Lane::Keys, free_at, now);
                    waiters.push((at, place));
                }
            }
        }
        gone
    }

    #[test]
    fn calls_go_on_in_the_order_in_which_they_came_however_often_they_look() {
        for free_at in [0, 120, 600, 2_345] {
            let mut line = WaitingLine::default();
            let waiters = (0..40).map(|call| join(&mut line, at(60_000), at(call * 10))).collect();
            let gone = run(&mut line, waiters, at(free_at));
            assert_eq!(gone.iter().map(|(ticket, _)| *ticket).collect::<Vec<_>>(), (1..=40).collect::<Vec<_>>(), "{free_at}");
            assert!(gone.windows(2).all(|pair| pair[1].1.since(pair[0].1) >= SPACING.0), "{gone:?}");
        }
    }

    #[test]
    fn a_line_is_gone_in_about_half_the_time_in_which_it_grew() {
        let mut line = WaitingLine::default();
        // Forty calls a second for two seconds, and a wait that ends then.
        let waiters = (0..80).map(|call| join(&mut line, at(10_000), at(call * 25))).collect();
        let gone = run(&mut line, waiters, at(2_000));
        let last = gone.last().unwrap().1;
        assert!((at(2_500)..at(3_500)).contains(&last), "{last:?}");
    }

    #[test]
    fn a_call_whose_predecessors_gave_up_soon_has_its_turn() {
        let mut line = WaitingLine::default();
        let mut waiters: Vec<Waiter> = (0..1_000).map(|_| join(&mut line, at(60_000), at(0))).collect();
        let last = waiters.pop().unwrap();
        waiters.into_iter().for_each(|(_, place)| line.leave(place));
        let gone = run(&mut line, vec![last], at(0));
        assert!(gone[0].1 <= at(300), "{gone:?}");
    }

    #[test]
    fn calls_that_wait_for_other_things_do_not_wait_for_each_other() {
        let mut line = WaitingLine::default();
        let (_, slow) = join(&mut line, at(60_000), at(0));
        let place = line.join(Lane::OwnPause { credential: 7 }, at(0));
        let (other, looks) = line.wait(place, Lane::OwnPause { credential: 7 }, at(20), at(0));
        assert!(looks <= at(70));
        assert_eq!(line.turn(other, looks), Ok(()));
        // Now it waits for the same key, behind the call that came before it.
        let (other, _) = line.wait(other, Lane::Keys, at(60_000), at(70));
        assert!(line.turn(other, at(200)).is_err());
        line.leave(slow);
        assert_eq!(line.turn(other, at(450)), Ok(()));
    }

    #[test]
    fn a_single_call_looks_when_what_it_waits_for_is_ready() {
        let mut line = WaitingLine::default();
        let (looks, place) = join(&mut line, at(40), at(0));
        assert_eq!((looks, line.turn(place, at(40))), (at(40), Ok(())));
        assert_eq!(line.wait(place, Lane::Keys, at(9_000), at(40)).1, at(90));
        assert_eq!(line.turn(place, at(90)), Ok(()));
        assert_eq!(line.wait(place, Lane::Keys, at(90), at(90)).1, at(110));
    }
}
