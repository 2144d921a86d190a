//! Rate limits as integer arithmetic on a sixteen-byte cell: four algorithms, one set of results. A cell belongs to one key of one limit; a
//! fresh cell is all zeroes, so an idle one can be forgotten.

mod window;

use crate::policy::{self, Algorithm, Mode};
use crate::time::{Mono, Nanos};

/// A limit's state for one key. The algorithm decides what the two numbers mean:
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

/// Whether a call may go, and if not, until when.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitAnswer {
    /// `after` is more than zero only where a leaky bucket paces.
    Go { after: Nanos },
    /// A retry at `retry_at` is admitted unless another call spends the room first.
    Refused { retry_at: Mono },
    /// No wait helps: the call costs more than the limit's capacity.
    TooCostly { capacity: u64 },
}

/// A limit with its rate converted to integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gcra {
    algorithm: Algorithm,
    mode: Mode,
    /// The time that one unit of cost takes to refill.
    interval: u64,
    /// `capacity` intervals: the largest debt of a bucket.
    depth: u64,
    capacity: u64,
    /// The length of a window.
    per: u64,
    /// `capacity × per`: the capacity of a sliding window, in calls times time.
    full: u128,
}

impl From<&policy::LimitPolicy> for Gcra {
    /// The interval is rounded down, so that a whole period holds the whole count. A rate of zero has no capacity.
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

/// A limit as plain numbers, for a backend that counts it elsewhere.
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

    /// The largest cost that one call may have.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the result of [`take`](Self::take) without spending.
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

    /// A paced queue: the call gets the next free moment if that is at most `depth` away.
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

    /// Returns what a call took at `taken_at` and did not use.
    pub fn refund(&self, cell: &mut LimitCell, taken_at: Mono, cost: u64) {
        match self.algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => cell.at = cell.at.saturating_sub(self.interval.saturating_mul(cost)),
            Algorithm::FixedWindow | Algorithm::SlidingWindow => self.refund_window(cell, taken_at, cost),
        }
    }

    /// The capacity that could be spent now, and the time until all of it is available: the `RateLimit` header's two numbers.
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

    /// Whether the cell equals a fresh one in effect.
    #[must_use]
    #[inline]
    pub fn is_idle(&self, cell: &LimitCell, now: Mono) -> bool {
        match self.algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => cell.at <= now.0 && cell.held <= now.0,
            Algorithm::FixedWindow | Algorithm::SlidingWindow => self.is_idle_window(cell, now),
        }
    }

    /// Converts a cell of the previous limit: the available capacity stays the same, so that the change itself admits no burst; only the
    /// refill rate is new.
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
