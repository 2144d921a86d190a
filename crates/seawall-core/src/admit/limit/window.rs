//! The two windowed algorithms. A window starts with the key's own first call, not at multiples of its length: keys
//! then do not all reset in the same instant, and a provider's own reset can move the start.

use super::{Gcra, LimitAnswer, LimitCell};
use crate::policy::Algorithm;
use crate::time::{Mono, Nanos};

const GO: LimitAnswer = LimitAnswer::Go { after: Nanos::ZERO };

/// Calls of the current window, and of the one before it.
fn counts(cell: &LimitCell) -> (u64, u64) {
    (cell.held & 0xffff_ffff, cell.held >> 32)
}

fn pack(current: u64, before: u64) -> u64 {
    current | before << 32
}

impl Gcra {
    pub(super) fn take_fixed(&self, cell: &mut LimitCell, now: Mono, cost: u64) -> LimitAnswer {
        if now.0 < cell.at {
            return LimitAnswer::Refused { retry_at: Mono(cell.at) };
        }
        if cell.held == 0 || now.0 - cell.at >= self.per {
            *cell = LimitCell { at: now.0, held: cost };
            return GO;
        }
        if cell.held + cost > self.capacity {
            return LimitAnswer::Refused { retry_at: Mono(cell.at.saturating_add(self.per)) };
        }
        cell.held += cost;
        GO
    }

    /// The previous window counts by the part of it that the last `per` still covers.
    pub(super) fn take_sliding(&self, cell: &mut LimitCell, now: Mono, cost: u64) -> LimitAnswer {
        if now.0 < cell.at {
            return LimitAnswer::Refused { retry_at: Mono(cell.at) };
        }
        let rolled = self.rolled(cell, now);
        let (current, before) = counts(&rolled);
        let left = self.per - (now.0 - rolled.at);
        let used = u128::from(before) * u128::from(left) + u128::from(current + cost) * u128::from(self.per);
        if used > self.full {
            return LimitAnswer::Refused { retry_at: self.sliding_ready(&rolled, cost) };
        }
        *cell = LimitCell { at: rolled.at, held: pack(current + cost, before) };
        GO
    }

    /// The first moment at which the weight of the older window has shrunk enough.
    fn sliding_ready(&self, rolled: &LimitCell, cost: u64) -> Mono {
        let (current, before) = counts(rolled);
        let (start, older, room) = if current + cost <= self.capacity {
            (rolled.at, before, self.capacity - current - cost)
        } else {
            (rolled.at.saturating_add(self.per), current, self.capacity - cost)
        };
        let covered = u128::from(room) * u128::from(self.per) / u128::from(older.max(1));
        let covered = u64::try_from(covered).unwrap_or(u64::MAX).min(self.per);
        Mono(start.saturating_add(self.per - covered))
    }

    /// The cell as of `now`, which is not before its window.
    fn rolled(&self, cell: &LimitCell, now: Mono) -> LimitCell {
        let passed = now.0 - cell.at;
        if passed < self.per && cell.held != 0 {
            return *cell;
        }
        let (current, _) = counts(cell);
        if passed < self.per.saturating_mul(2) && current != 0 {
            return LimitCell { at: cell.at + self.per, held: pack(0, current) };
        }
        LimitCell { at: now.0, held: 0 }
    }

    /// Only a window that still counts gets a refund.
    pub(super) fn refund_window(&self, cell: &mut LimitCell, taken_at: Mono, cost: u64) {
        let (current, before) = counts(cell);
        if taken_at.0 >= cell.at {
            cell.held = pack(current.saturating_sub(cost), before);
        } else if self.algorithm == Algorithm::SlidingWindow && taken_at.0.saturating_add(self.per) >= cell.at {
            cell.held = pack(current, before.saturating_sub(cost));
        }
    }

    pub(super) fn remaining_window(&self, cell: &LimitCell, now: Mono) -> (u64, Nanos) {
        if now.0 < cell.at {
            return (0, Nanos(cell.at - now.0));
        }
        if self.algorithm == Algorithm::FixedWindow {
            let end = cell.at.saturating_add(self.per);
            let over = cell.held == 0 || now.0 >= end;
            return if over { (self.capacity, Nanos::ZERO) } else { (self.capacity.saturating_sub(cell.held), Nanos(end - now.0)) };
        }
        let rolled = self.rolled(cell, now);
        let (current, before) = counts(&rolled);
        let left = self.per - (now.0 - rolled.at);
        let weighted = (u128::from(before) * u128::from(left)).div_ceil(u128::from(self.per));
        let used = current.saturating_add(u64::try_from(weighted).unwrap_or(u64::MAX));
        let reset = match (current, before) {
            (0, 0) => 0,
            (0, _) => left,
            (_, _) => left.saturating_add(self.per),
        };
        (self.capacity.saturating_sub(used), Nanos(reset))
    }

    pub(super) fn is_idle_window(&self, cell: &LimitCell, now: Mono) -> bool {
        let Some(passed) = now.0.checked_sub(cell.at) else { return false };
        let (current, _) = counts(cell);
        let windows = if self.algorithm == Algorithm::SlidingWindow && current > 0 { 2 } else { 1 };
        cell.held == 0 || passed >= self.per.saturating_mul(windows)
    }
}
