//! The result of the last empty tick. It stays valid until the next job is due, the next lease expires, or any process commits. SQLite's
//! `data_version` reveals every commit, so no change can be missed. A poll that finds nothing new costs one read of that number instead of
//! a round trip to the writer thread.

use super::{Connection, Error, connect_to_read};
use crate::model::job::{ClaimRequest, ClockTick};
use seawall_core::time::Wall;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A read-only connection: the version that it sees changes with every commit of another connection.
#[derive(Debug)]
pub(super) struct Lull(Mutex<Watch>);

#[derive(Debug)]
struct Watch {
    db: Connection,
    found: Option<LullResult>,
}

#[derive(Debug)]
struct LullResult {
    version: Version,
    /// Nothing was moved, so a repeated tick has the same result.
    tick: ClockTick,
    /// Expiry of the first lease.
    lease_over: Option<Wall>,
}

/// Differs from an earlier version if any commit happened in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version(i64);

impl Lull {
    pub(super) fn watch(path: &Path) -> Result<Self, Error> {
        Ok(Self(Mutex::new(Watch { db: connect_to_read(path)?, found: None })))
    }

    /// Returns the cached result of a tick, or the version under which to store a new one, read before the tick.
    pub(super) fn tick(&self, now: Wall) -> Result<ClockTick, Option<Version>> {
        let watch = self.lock();
        let version = watch.version();
        match &watch.found {
            Some(found) if Some(found.version) == version && found.brings_nothing(now) => Ok(found.tick.clone()),
            _ => Err(version),
        }
    }

    pub(super) fn keep(&self, version: Option<Version>, tick: &ClockTick, lease_over: Option<Wall>) {
        let still = version.filter(|_| tick.recovered + tick.due == 0);
        self.lock().found = still.map(|version| LullResult { version, tick: tick.clone(), lease_over });
    }

    /// Returns whether a claim would find nothing.
    pub(super) fn has_nothing_for(&self, claim: &ClaimRequest) -> bool {
        let watch = self.lock();
        let Some(found) = &watch.found else { return false };
        let wanted = claim.lanes.iter().any(|(lane, _)| found.tick.lanes.contains(lane));
        !wanted && watch.version() == Some(found.version)
    }

    fn lock(&self) -> MutexGuard<'_, Watch> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    /// An unreadable version equals no other.
    fn version(&self) -> Option<Version> {
        let mut statement = self.db.prepare_cached("PRAGMA data_version").ok()?;
        statement.query_row([], |row| row.get(0)).map(Version).ok()
    }
}

impl LullResult {
    fn brings_nothing(&self, now: Wall) -> bool {
        [self.tick.next, self.lease_over].into_iter().flatten().all(|at| now < at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::Sqlite;
    use crate::sqlite::stalled_write::stalled;
    use crate::sqlite::writer::Weight;
    use seawall_core::time::Nanos;
    use std::time::Duration;

    #[tokio::test]
    async fn a_poll_that_finds_nothing_again_does_not_wait_for_whoever_writes() {
        let folder = tempfile::tempdir().unwrap();
        let store = Sqlite::open(&folder.path().join("seawall.db")).unwrap();
        let poll = async || {
            let claim = ClaimRequest { lanes: vec![("u".to_owned(), 9)], token: 1, lease: Nanos::from_secs(1), now: Wall(5), rules: 0 };
            (store.tick(Wall(5), None).await.unwrap(), store.claim(claim).await.unwrap().len())
        };
        assert_eq!(poll().await, (ClockTick::default(), 0));
        let (writing, go) = stalled(&store, Weight::Adds).await;
        // The time limit is generous for slow machines; without the cache this poll would wait forever.
        let again = tokio::time::timeout(Duration::from_secs(60), poll()).await;
        assert_eq!(again.unwrap(), (ClockTick::default(), 0));
        go.send(()).unwrap();
        writing.await.unwrap();
    }
}
