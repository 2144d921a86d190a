//! State shared by all parts of the job runner: the store, the clock that jobs go by, and the workers.

use super::queue_alarm::QueueSeverity;
use super::workers::{STEP, Workers};
use crate::idempotency::Ledger;
use crate::job_counts::StoreCounts;
use crate::store_clock::StoreClock;
use arc_swap::ArcSwap;
use base64::Engine as _;
use seawall_core::id::CallId;
use seawall_core::record::Reason;
use seawall_core::rng::Rng;
use seawall_core::time::{Nanos, Wall};
use seawall_engine::clock::Clock;
use seawall_engine::ids::Ids;
use seawall_engine::shared;
use seawall_store::job::{Enqueued, Hasten, Holder, NewJob};
use seawall_store::{Error, Store};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Debug)]
pub(crate) struct JobContext {
    pub store: Store,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) crew: Workers,
    clock: Arc<StoreClock>,
    /// Identifies this process in its claims.
    pub(crate) holder: Holder,
    claims: AtomicU32,
    rng: Mutex<Rng>,
    ids: Mutex<Ids>,
    /// Signs callbacks if the configuration has no signing key.
    secret: ArcSwap<String>,
    /// Queues that this process knows to be too deep.
    pub alarms: Mutex<BTreeSet<QueueSeverity>>,
    pub counts: StoreCounts,
}

impl JobContext {
    pub(crate) fn new(
        store: Store,
        shared: Option<Arc<shared::RedisStore>>,
        clock: Clock,
        threads: usize,
        entropy: impl Fn() -> u64,
    ) -> Self {
        let lived = Arc::new(StoreClock::new(clock.clone()));
        let key: Vec<u8> = (0..4).flat_map(|_| entropy().to_be_bytes()).collect();
        let secret = format!("whsec_{}", base64::engine::general_purpose::STANDARD.encode(key));
        Self {
            ledger: Arc::new(Ledger::new(store.clone(), shared, clock, Arc::clone(&lived))),
            store,
            crew: Workers::new(threads),
            clock: lived,
            holder: Holder::new(u32::try_from(entropy() >> 32).unwrap_or_default()),
            claims: AtomicU32::new(0),
            rng: Mutex::new(Rng::seeded(entropy())),
            ids: Mutex::default(),
            secret: ArcSwap::from_pointee(secret),
            alarms: Mutex::default(),
            counts: StoreCounts::default(),
        }
    }

    /// Returns whether the store replied to the latest request.
    pub(crate) fn is_healthy(&self) -> bool {
        !self.counts.silent.load(Ordering::Relaxed) && self.store.is_responsive()
    }

    pub(crate) fn secret(&self) -> Arc<String> {
        self.secret.load_full()
    }

    /// Stores the key that signs callbacks, or adopts the stored one. The key survives restarts, and instances that start at the same time
    /// agree on one key within one round.
    pub(crate) async fn keep_secret(&self) {
        const NAME: &str = "webhook-secret";
        match self.store.snapshot(NAME.to_owned()).await {
            Ok(Some((_, kept))) => {
                if let Ok(kept) = std::str::from_utf8(&kept)
                    && *kept != **self.secret.load()
                {
                    self.secret.store(Arc::new(kept.to_owned()));
                }
            }
            // A failed write is repeated in the next round.
            Ok(None) => drop(self.store.put_snapshot(NAME.to_owned(), self.secret().as_bytes().to_vec().into(), self.now()).await),
            Err(_) => {}
        }
    }

    /// Returns the time by the clock that jobs go by.
    pub(crate) fn now(&self) -> Wall {
        self.clock.now()
    }

    /// Returns the offset of the jobs' clock from the monotonic clock, in milliseconds, and the jobs' time.
    pub(crate) fn offset(&self) -> (i64, Wall) {
        self.clock.offset()
    }

    /// Measures the offset between the database's clock and ours.
    pub(crate) async fn follow(&self) {
        self.clock.follow(&self.store).await;
    }

    /// After the clock was set back, shifts the times of waiting jobs so that each keeps its remaining wait. A database server has its own
    /// clock, so nothing is shifted there. Returns whether the store applied the change.
    pub(crate) async fn keep_waits(&self, now: Wall, by: Nanos) -> bool {
        !self.store.is_private() || self.store.set_back(now, by).await.is_ok()
    }

    /// Detects that the clock was set back while the process was down: the newest job is then dated in the future.
    pub(crate) async fn notice_step_before_start(&self) {
        let now = self.now();
        if self.store.is_private()
            && let Ok(Some(newest)) = self.store.newest_job().await
            && newest.since(now) > STEP
        {
            // If the store does not reply, waiting jobs keep their times.
            let _heard = self.keep_waits(now, newest.since(now)).await;
        }
    }

    /// Draws a random value.
    pub(crate) fn by_chance<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.rng.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the token for the next claim of any worker.
    pub(crate) fn next_token(&self) -> u64 {
        self.holder.token(self.claims.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns a new unguessable id.
    pub(crate) fn new_id(&self) -> CallId {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).next(self.now())
    }

    /// Writes jobs to the store and wakes a worker. When this returns, the jobs are on disk.
    pub(crate) async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, Error> {
        let kept = self.store.enqueue(jobs, self.now()).await?;
        self.crew.wake_one();
        Ok(kept)
    }

    /// Wakes jobs that wait for a condition that an operator has just cleared. Runs in the background because there may be a million of
    /// them; a job that is missed wakes at its own time.
    pub(crate) fn hasten(self: &Arc<Self>, upstream: &str, reason: Reason) {
        let (desk, mut next) = (Arc::clone(self), Some(Hasten::new(upstream.to_owned(), reason.as_str(), self.now())));
        tokio::spawn(async move {
            while let Some(wish) = next.take() {
                next = desk.store.hasten(wish).await.ok().and_then(|hastened| hastened.next);
            }
        });
    }
}
