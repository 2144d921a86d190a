//! Fair order of claims: within a lane tenants take turns, however many jobs each has. A job gets its turn number when it becomes ready:
//! one after its tenant's last, but not below the lane's present. So a claim in order of turns is fair and costs no more than one in order
//! of arrival.

use crate::error::Error;
use rusqlite::Connection;
use std::collections::HashMap;

/// Maximum tenants with a stored turn. A dropped tenant begins at its lane's present, which is fair too.
const MAX_TENANTS: usize = 100_000;

pub(super) const QUEUED: &str = "SELECT queue.upstream, jobs.tenant, queue.turn FROM queue CROSS JOIN jobs ON jobs.row = queue.row";

#[derive(Debug, Default)]
pub(crate) struct Turns {
    lanes: HashMap<String, CommandLane>,
    /// Number of tenants in all lanes.
    tenants: usize,
    /// A turn was given since the last `take_given`.
    given: bool,
}

#[derive(Debug, Default)]
struct CommandLane {
    /// The last claimed turn.
    present: i64,
    /// The last turn given to each tenant.
    last: HashMap<String, i64>,
}

impl Turns {
    /// Restores the turns from the queued jobs. Aggregated here, since SQLite would sort for a GROUP BY, which takes four times as long.
    pub(super) fn load(db: &Connection) -> Result<Self, Error> {
        let mut turns = Self::default();
        let mut all = db.prepare(QUEUED)?;
        let mut rows = all.query([])?;
        while let Some(row) = rows.next()? {
            let text = |column: usize| row.get_ref(column)?.as_str().map_err(|error| Error::Damaged(error.to_string()));
            turns.queued(text(0)?, text(1)?, row.get(2)?);
        }
        Ok(turns)
    }

    /// Notes a queued job and its turn.
    fn queued(&mut self, upstream: &str, tenant: &str, turn: i64) {
        let Some(lane) = self.lanes.get_mut(upstream) else {
            self.lanes.insert(upstream.to_owned(), CommandLane { present: turn, last: HashMap::from([(tenant.to_owned(), turn)]) });
            self.tenants += 1;
            return;
        };
        lane.present = lane.present.min(turn);
        match lane.last.get_mut(tenant) {
            Some(last) => *last = turn.max(*last),
            None => {
                lane.last.insert(tenant.to_owned(), turn);
                self.tenants += 1;
            }
        }
    }

    /// Gives a tenant its next turn in a lane.
    pub(super) fn next(&mut self, upstream: &str, tenant: &str) -> i64 {
        self.given = true;
        if let Some(lane) = self.lanes.get_mut(upstream)
            && let Some(last) = lane.last.get_mut(tenant)
        {
            *last = lane.present.max(*last + 1);
            return *last;
        }
        if self.tenants >= MAX_TENANTS {
            self.lanes.values_mut().for_each(|lane| lane.last.clear());
            self.tenants = 0;
        }
        self.tenants += 1;
        let lane = self.lanes.entry(upstream.to_owned()).or_default();
        lane.last.insert(tenant.to_owned(), lane.present);
        lane.present
    }

    /// Returns whether there are new jobs to claim since the last call.
    pub(super) fn take_given(&mut self) -> bool {
        std::mem::take(&mut self.given)
    }

    /// Notes that a turn was claimed.
    pub(super) fn claimed(&mut self, upstream: &str, turn: i64) {
        match self.lanes.get_mut(upstream) {
            Some(lane) => lane.present = lane.present.max(turn),
            None => {
                self.lanes.insert(upstream.to_owned(), CommandLane { present: turn, ..CommandLane::default() });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_restart_everybody_goes_on_where_they_were() {
        let mut turns = Turns::default();
        for (upstream, tenant, turn) in [("u", "a", 7), ("u", "b", 5), ("u", "a", 6), ("v", "a", 2), ("u", "b", 9)] {
            turns.queued(upstream, tenant, turn);
        }
        assert_eq!(turns.next("u", "c"), 5, "where the first in line is");
        assert_eq!((turns.next("u", "a"), turns.next("u", "b"), turns.next("v", "a")), (8, 10, 3));
        assert_eq!(turns.tenants, 4);
    }

    #[test]
    fn a_latecomer_waits_for_one_turn_and_not_for_the_crowd() {
        let mut turns = Turns::default();
        let crowd: Vec<i64> = (0..100).map(|_| turns.next("u", "many")).collect();
        assert_eq!(crowd, (0..100).collect::<Vec<i64>>());
        turns.claimed("u", 9);
        assert_eq!(turns.next("u", "few"), 9, "level with what is claimed next");
        assert_eq!(turns.next("u", "few"), 10);
        assert_eq!(turns.next("u", "many"), 100);
        assert_eq!(turns.next("v", "many"), 0, "lanes do not know of each other");
    }
}
