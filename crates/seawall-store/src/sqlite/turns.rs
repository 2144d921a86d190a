//! Whose turn it is: within a lane, tenants take turns, however many jobs each has. A job is given a turn when it becomes
//! ready: the one after its tenant's last, but not before the lane's present. So claiming in order of turns is fair, and
//! costs no more than claiming in order of arrival.

use crate::error::Error;
use rusqlite::Connection;
use std::collections::HashMap;

/// Tenants whose last turn is remembered; one that is forgotten begins at its lane's present, which is fair too.
const MOST_TENANTS: usize = 100_000;

#[derive(Debug, Default)]
pub(crate) struct Turns {
    lanes: HashMap<String, Lane>,
    /// How many tenants the lanes remember.
    tenants: usize,
    /// Somebody got one since this was asked last.
    given: bool,
}

#[derive(Debug, Default)]
struct Lane {
    /// The last turn that was claimed.
    present: i64,
    /// The last turn that each tenant was given.
    last: HashMap<String, i64>,
}

impl Turns {
    /// Goes on where the queued jobs are.
    pub(super) fn load(db: &Connection) -> Result<Self, Error> {
        let mut turns = Self::default();
        let mut all = db.prepare("SELECT upstream, tenant, min(turn), max(turn) FROM jobs WHERE state = 0 GROUP BY upstream, tenant")?;
        let mut rows = all.query([])?;
        while let Some(row) = rows.next()? {
            let (upstream, tenant): (String, String) = (row.get(0)?, row.get(1)?);
            let (first, last): (i64, i64) = (row.get(2)?, row.get(3)?);
            let lane = turns.lanes.entry(upstream).or_insert_with(|| Lane { present: first, ..Lane::default() });
            lane.present = lane.present.min(first);
            lane.last.insert(tenant, last);
            turns.tenants += 1;
        }
        Ok(turns)
    }

    /// The next turn of a tenant in a lane.
    pub(super) fn next(&mut self, upstream: &str, tenant: &str) -> i64 {
        self.given = true;
        if let Some(lane) = self.lanes.get_mut(upstream)
            && let Some(last) = lane.last.get_mut(tenant)
        {
            *last = lane.present.max(*last + 1);
            return *last;
        }
        if self.tenants >= MOST_TENANTS {
            self.lanes.values_mut().for_each(|lane| lane.last.clear());
            self.tenants = 0;
        }
        self.tenants += 1;
        let lane = self.lanes.entry(upstream.to_owned()).or_default();
        lane.last.insert(tenant.to_owned(), lane.present);
        lane.present
    }

    /// Whether there is something to claim that was not there when this was asked last.
    pub(super) fn take_given(&mut self) -> bool {
        std::mem::take(&mut self.given)
    }

    /// A turn was claimed.
    pub(super) fn claimed(&mut self, upstream: &str, turn: i64) {
        match self.lanes.get_mut(upstream) {
            Some(lane) => lane.present = lane.present.max(turn),
            None => {
                self.lanes.insert(upstream.to_owned(), Lane { present: turn, ..Lane::default() });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
