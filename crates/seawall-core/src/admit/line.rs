//! The line of calls that wait for one endpoint: for a key, for the end of a provider's pause, or for a breaker's probe. It says when
//! each call looks again, so that calls go on in order and spread out, however many of them wait.

use crate::time::{Mono, Nanos};

/// No call looks again sooner than this after its last look.
const MIN_LOOK: Nanos = Nanos::from_millis(10);
/// A call looks again at least this often while its turn has come: a pause may be lifted, a probe may succeed.
const MAX_LOOK: Nanos = Nanos::from_millis(50);
/// The distance between two looks. The shorter one bounds what waiting costs, the longer one keeps short lines quick.
const SPACING: (Nanos, Nanos) = (Nanos::from_millis(1), Nanos::from_millis(20));

/// Every call of a line looks once in this time, so that what joined slowly does not slow down what joins in a burst.
const MAX_ROUND: Nanos = Nanos::from_secs(2);

/// One line. Looks are handed out one after the other at twice the rate at which calls joined: a line that took two seconds to grow
/// is gone in about one, and an upstream that has just come back does not meet all of it at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitingLine {
    waiting: u32,
    /// Calls that joined since the line was empty, and since when it is not.
    joined: u32,
    since: Mono,
    /// The last look that was handed out.
    last: Mono,
}

impl WaitingLine {
    /// Takes a call into the line; `false` where it is full.
    pub fn join(&mut self, max: u32, now: Mono) -> bool {
        if self.waiting >= max {
            return false;
        }
        if self.waiting == 0 {
            (self.joined, self.since) = (0, now);
        }
        self.waiting += 1;
        self.joined = self.joined.saturating_add(1);
        true
    }

    pub fn leave(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// Returns the time of a call's next look. What it waits for is ready at `ready_at`, or sooner.
    #[must_use]
    pub fn next_look(&mut self, ready_at: Mono, now: Mono) -> Mono {
        let at = ready_at.min(now + MAX_LOOK).max(now + MIN_LOOK).max(self.last + self.spacing(now));
        self.last = at;
        at
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

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Mono {
        Mono(ms * 1_000_000)
    }

    #[test]
    fn a_full_line_takes_nobody_until_one_leaves() {
        let mut line = WaitingLine::default();
        assert!(line.join(2, at(0)) && line.join(2, at(0)));
        assert!(!line.join(2, at(0)));
        line.leave();
        assert!(line.join(2, at(0)));
        assert_eq!(line.waiting(), 2);
    }

    #[test]
    fn calls_look_again_in_the_order_in_which_they_came() {
        let mut line = WaitingLine::default();
        let looks: Vec<Mono> = (0..50)
            .map(|call| {
                assert!(line.join(100, at(call * 10)));
                line.next_look(at(600), at(call * 10))
            })
            .collect();
        assert!(looks.is_sorted() && looks.windows(2).all(|pair| pair[0] < pair[1]), "{looks:?}");
    }

    #[test]
    fn a_line_is_gone_in_about_half_the_time_in_which_it_grew() {
        let mut line = WaitingLine::default();
        // Forty calls a second for two seconds, and a wait that ends then.
        let looks: Vec<Mono> = (0..80)
            .map(|call| {
                assert!(line.join(100, at(call * 25)));
                line.next_look(at(10_000), at(call * 25))
            })
            .collect();
        // Each looks again and again until what it waits for is there.
        let mut pending = looks;
        let mut gone = Vec::new();
        while let Some(first) = pending.iter().copied().min() {
            pending.retain(|look| *look != first);
            if first >= at(2_000) {
                line.leave();
                gone.push(first);
            } else {
                pending.push(line.next_look(at(10_000), first));
            }
        }
        let last = gone.iter().copied().max().unwrap_or_default();
        assert_eq!(gone.len(), 80);
        assert!((at(2_500)..at(3_500)).contains(&last), "{last:?}");
    }

    #[test]
    fn a_single_call_looks_when_what_it_waits_for_is_ready() {
        let mut line = WaitingLine::default();
        assert!(line.join(1, at(0)));
        assert_eq!(line.next_look(at(40), at(0)), at(40));
        assert_eq!(line.next_look(at(9_000), at(40)), at(90));
        assert_eq!(line.next_look(at(90), at(90)), at(110));
    }
}
