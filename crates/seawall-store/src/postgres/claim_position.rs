//! The position of the last claim of each lane. Claimed rows stay in the index until no transaction can see them any more. A long report of
//! another client keeps them there for hours, and a claim from the front would walk past all of them.

use crate::model::job::{Claimed, NewJob};
use seawall_core::time::{Nanos, Wall};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// After this time a claim starts from the front again: another process may have added more urgent jobs.
const TRUSTED: Nanos = Nanos::from_millis(50);

#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    pub(super) priority: i64,
    pub(super) turn: i64,
    /// Time of the last claim from the front.
    seen: Wall,
}

/// At most one entry per lane; lanes come from the configuration.
#[derive(Debug, Default)]
pub(super) struct Positions(Mutex<HashMap<String, Position>>);

impl Positions {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Position>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the positions of all these lanes, or `None` if one of them has to start from the front.
    pub(super) fn of(&self, lanes: &[(String, usize)], now: Wall) -> Option<Vec<Position>> {
        let known = self.lock();
        let is_fresh = |at: &&Position| at.seen <= now && now.since(at.seen) < TRUSTED;
        lanes.iter().map(|(lane, _)| known.get(lane).filter(is_fresh).copied()).collect()
    }

    /// Stores the positions of claimed jobs. A lane that gave less than requested has no more there, so it loses its position.
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

    /// Forgets positions that these jobs precede.
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
