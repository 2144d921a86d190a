//! Where the last claim of each lane ended. What was claimed stays in the index until no transaction can see it any more, and
//! one long report of somebody else's keeps it there for hours: a claim that began at the front would walk past all of it.

use crate::model::job::{Claimed, NewJob};
use seawall_core::time::{Nanos, Wall};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// After so long the front is looked at again: another process may have brought something more urgent.
const TRUSTED: Nanos = Nanos::from_millis(50);

#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    pub(super) priority: i64,
    pub(super) turn: i64,
    /// When the front was looked at last.
    seen: Wall,
}

/// One for each lane at most, and lanes are configured.
#[derive(Debug, Default)]
pub(super) struct Positions(Mutex<HashMap<String, Position>>);

impl Positions {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Position>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where to go on in each of these lanes; nowhere if one of them has to begin at the front.
    pub(super) fn of(&self, lanes: &[(String, usize)], now: Wall) -> Option<Vec<Position>> {
        let known = self.lock();
        let is_fresh = |at: &&Position| at.seen <= now && now.since(at.seen) < TRUSTED;
        lanes.iter().map(|(lane, _)| known.get(lane).filter(is_fresh).copied()).collect()
    }

    /// These were claimed with their turns. A lane that gave less than it was asked for has no more, or only at the front.
    pub(super) fn keep(&self, lanes: &[(String, usize)], claimed: &[(i64, Claimed)], now: Wall, went_on: Option<&[Position]>) {
        let mut known = self.lock();
        for (index, (lane, most)) in lanes.iter().enumerate() {
            let given = || claimed.iter().filter(|(_, one)| one.job.upstream == *lane);
            match given().last().filter(|_| given().count() == *most) {
                Some((turn, last)) => {
                    let seen = went_on.and_then(|before| before.get(index)).map_or(now, |before| before.seen);
                    known.insert(lane.clone(), Position { priority: last.job.priority, turn: *turn, seen });
                }
                None => drop(known.remove(lane)),
            }
        }
    }

    /// Forgets the positions that these are ahead of.
    pub(super) fn outrun<'j>(&self, jobs: impl Iterator<Item = &'j NewJob>) {
        let mut known = self.lock();
        for job in jobs {
            if known.get(&job.upstream).is_some_and(|at| job.priority > at.priority) {
                known.remove(&job.upstream);
            }
        }
    }

    pub(super) fn clear(&self) {
        self.lock().clear();
    }
}
