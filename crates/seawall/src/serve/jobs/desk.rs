//! What every part of the job machinery shares: the store, whose clock counts, and a bell that rings when there is work.

use seawall_core::id::CallId;
use seawall_core::rng::Rng;
use seawall_core::time::Wall;
use seawall_engine::clock::Clock;
use seawall_store::job::{Enqueued, NewJob};
use seawall_store::{Error, Store};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use tokio::sync::Notify;

#[derive(Debug)]
pub(crate) struct Desk {
    pub store: Store,
    pub bell: Notify,
    clock: Clock,
    rng: Mutex<Rng>,
    pub counts: Counts,
}

/// What there is to say about the store in numbers, refreshed by upkeep.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub by_state: [AtomicU64; 6],
    pub lag_ms: AtomicI64,
    pub letters: Mutex<Vec<seawall_store::dead::Depth>>,
    pub expired: AtomicU64,
    pub poisoned: AtomicU64,
    pub lost_leases: AtomicU64,
    /// The store did not answer when it was last asked.
    pub silent: AtomicBool,
    /// Letters have been counted at least once.
    pub counted: AtomicBool,
}

impl Desk {
    pub(crate) fn new(store: Store, clock: Clock, seed: u64) -> Self {
        let rng = Mutex::new(Rng::seeded(seed));
        Self { store, bell: Notify::new(), clock, rng, counts: Counts::default() }
    }

    /// Whether the store answered when it was last asked.
    pub(crate) fn is_healthy(&self) -> bool {
        !self.counts.silent.load(Ordering::Relaxed)
    }

    /// The time that jobs live by.
    pub(crate) fn now(&self) -> Wall {
        self.clock.now().wall
    }

    pub(crate) fn draw(&self) -> u64 {
        self.rng.lock().unwrap_or_else(PoisonError::into_inner).draw()
    }

    pub(crate) fn new_id(&self) -> CallId {
        CallId::new(self.now(), &mut self.rng.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Keeps jobs and wakes the workers. When this returns, they are on disk.
    pub(crate) async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, Error> {
        let kept = self.store.enqueue(jobs, self.now()).await?;
        self.bell.notify_one();
        Ok(kept)
    }
}
