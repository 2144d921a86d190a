//! Rate limits as integer arithmetic on a sixteen-byte cell: four algorithms, one set of answers. A cell belongs to
//! one key of one limit; a fresh cell is all zeroes, so an idle one can be forgotten.

mod window;

use crate::policy::{self, Algorithm, Mode};
use crate::time::{Mono, Nanos};

/// What a limit remembers of one key. The meaning of the two numbers is the algorithm's:
///
/// | algorithm | `at` | `held` |
/// |---|---|---|
/// | token bucket | when the bucket is full again | nothing before this time |
/// | leaky bucket | when the line has drained | nothing before this time |
/// | windows | where the current window starts; in the future, nothing before | calls in this window, and above bit 32 in the one before |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitCell {
    pub at: u64,
    pub held: u64,
}

/// Whether a call may go, and if not, what to do about it.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitAnswer {
    /// `after` is more than zero only where a leaky bucket paces.
    Go { after: Nanos },
    /// Who comes back at `retry_at`, and finds no other there first, is admitted.
    Refused { retry_at: Mono },
    /// No wait helps: the call costs more than the limit ever holds.
    TooCostly { capacity: u64 },
}

/// A limit with its rate worked out in integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gcra {
    algorithm: Algorithm,
    mode: Mode,
    /// Time that one unit of cost takes to come back.
    interval: u64,
    /// `capacity` intervals: how far a bucket may run ahead.
    depth: u64,
    capacity: u64,
    /// The length of a window.
    per: u64,
    /// `capacity × per`: what a sliding window holds, in calls times time.
    full: u128,
}

impl From<&policy::LimitPolicy> for Gcra {
    /// The interval is rounded down, so that a whole period holds the whole count. A rate of nothing has no capacity.
    fn from(limit: &policy::LimitPolicy) -> Self {
        let rate = limit.rate;
        let capacity = match (rate.count, limit.algorithm) {
            (0, _) => 0,
            (_, Algorithm::TokenBucket | Algorithm::LeakyBucket) => limit.burst.max(1),
            (count, Algorithm::FixedWindow | Algorithm::SlidingWindow) => count.min(u64::from(u32::MAX)),
        };
        let interval = rate.per.0.checked_div(rate.count).unwrap_or(u64::MAX).max(1);
        Self {
            algorithm: limit.algorithm,
            mode: limit.mode,
            interval,
            depth: interval.saturating_mul(capacity),
            capacity,
            per: rate.per.0.max(1),
            full: u128::from(capacity) * u128::from(rate.per.0.max(1)),
        }
    }
}

/// A limit as plain numbers, for whoever counts it elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    pub algorithm: Algorithm,
    pub mode: Mode,
    pub interval: u64,
    pub depth: u64,
    pub capacity: u64,
    pub per: u64,
}

impl Gcra {
    #[must_use]
    pub const fn numbers(&self) -> Numbers {
        Numbers {
            algorithm: self.algorithm,
            mode: self.mode,
            interval: self.interval,
            depth: self.depth,
            capacity: self.capacity,
            per: self.per,
        }
    }

    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// What a call of this cost may ask for at once, at most.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// What [`take`](Self::take) would answer.
    #[inline]
    pub fn check(&self, cell: &LimitCell, now: Mono, cost: u64) -> LimitAnswer {
        let mut tried = *cell;
        self.take(&mut tried, now, cost)
    }

    /// Spends `cost`, or nothing at all.
    #[inline]
    pub fn take(&self, cell: &mut LimitCell, now: Mono, cost: u64) -> LimitAnswer {
        if cost > self.capacity {
            return LimitAnswer::TooCostly { capacity: self.capacity };
        }
        match self.algorithm {
            Algorithm::TokenBucket => self.take_token(cell, now, cost),
            Algorithm::LeakyBucket => self.take_turn(cell, now, cost),
            Algorithm::FixedWindow => self.take_fixed(cell, now, cost),
            Algorithm::SlidingWindow => self.take_sliding(cell, now, cost),
        }
    }

    /// GCRA: the bucket is full again at `at`, and may be at most `depth` away from it.
    #[inline]
    fn take_token(&self, cell: &mut LimitCell, now: Mono, cost: u64) -> LimitAnswer {
        let full_at = cell.at.max(now.0).saturating_add(self.interval.saturating_mul(cost));
        let ready = full_at.saturating_sub(self.depth).max(cell.held);
        if now.0 < ready {
            return LimitAnswer::Refused { retry_at: Mono(ready) };
        }
        cell.at = full_at;
        LimitAnswer::Go { after: Nanos::ZERO }
    }

    /// A paced line: the call gets the next free moment if that is at most `depth` away.
    #[inline]
    fn take_turn(&self, cell: &mut LimitCell, now: Mono, cost: u64) -> LimitAnswer {
        let turn = cell.at.max(cell.held).max(now.0);
        let after = turn - now.0;
        if after > self.depth {
            return LimitAnswer::Refused { retry_at: Mono(turn - self.depth) };
        }
        cell.at = turn.saturating_add(self.interval.saturating_mul(cost));
        LimitAnswer::Go { after: Nanos(after) }
    }

    /// Gives back what a call took at `taken_at` and did not use.
    pub fn refund(&self, cell: &mut LimitCell, taken_at: Mono, cost: u64) {
        match self.algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => cell.at = cell.at.saturating_sub(self.interval.saturating_mul(cost)),
            Algorithm::FixedWindow | Algorithm::SlidingWindow => self.refund_window(cell, taken_at, cost),
        }
    }

    /// What could be spent now, and how long until all of it is there again: the `RateLimit` header's two numbers.
    #[must_use]
    pub fn remaining(&self, cell: &LimitCell, now: Mono) -> (u64, Nanos) {
        match self.algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                let reset = cell.at.max(cell.held).saturating_sub(now.0);
                let blocked = self.algorithm == Algorithm::TokenBucket && cell.held > now.0;
                let ahead = if blocked { self.depth } else { reset.min(self.depth) };
                (((self.depth - ahead) / self.interval).min(self.capacity), Nanos(reset))
            }
            Algorithm::FixedWindow | Algorithm::SlidingWindow => self.remaining_window(cell, now),
        }
    }

    /// Whether the cell says no more than a fresh one.
    #[must_use]
    #[inline]
    pub fn is_idle(&self, cell: &LimitCell, now: Mono) -> bool {
        match self.algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => cell.at <= now.0 && cell.held <= now.0,
            Algorithm::FixedWindow | Algorithm::SlidingWindow => self.is_idle_window(cell, now),
        }
    }

    /// Carries a cell over from the limit as it was: what could be spent stays what it was, so that the change itself
    /// lets nothing burst through; only the refill is new.
    #[must_use]
    pub fn rebase(&self, was: &Self, cell: &LimitCell, now: Mono) -> LimitCell {
        if was.is_idle(cell, now) {
            return LimitCell::default();
        }
        if self.algorithm == was.algorithm && self.interval == was.interval && self.capacity == was.capacity {
            return *cell;
        }
        let blocked_until = was.blocked_until(cell);
        let used = self.capacity - was.remaining(cell, now).0.min(self.capacity);
        match self.algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                let at = now.0.saturating_add(self.interval.saturating_mul(used));
                LimitCell { at: at.max(blocked_until), held: blocked_until }
            }
            Algorithm::FixedWindow | Algorithm::SlidingWindow => {
                let same_window = matches!(was.algorithm, Algorithm::FixedWindow | Algorithm::SlidingWindow) && self.per == was.per;
                let start = if same_window { cell.at.min(now.0) } else { now.0 };
                if blocked_until > now.0 { LimitCell { at: blocked_until, held: 0 } } else { LimitCell { at: start, held: used } }
            }
        }
    }

    fn blocked_until(&self, cell: &LimitCell) -> u64 {
        match self.algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => cell.held,
            Algorithm::FixedWindow | Algorithm::SlidingWindow => cell.at,
        }
    }
}

#[cfg(test)]
mod tests;
