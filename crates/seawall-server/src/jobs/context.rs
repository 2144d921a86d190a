//! What every part of the job machinery shares: the store, whose clock counts, and the crew that does the work.

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
    /// Names this run of the program in its claims.
    pub(crate) holder: Holder,
    claims: AtomicU32,
    rng: Mutex<Rng>,
    ids: Mutex<Ids>,
    /// Signs callbacks where the configuration has no key for that.
    secret: ArcSwap<String>,
    /// Queues that are too deep, as far as it is known here.
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

    /// Whether the store answered when it was last asked.
    pub(crate) fn is_healthy(&self) -> bool {
        !self.counts.silent.load(Ordering::Relaxed) && self.store.is_heard()
    }

    pub(crate) fn secret(&self) -> Arc<String> {
        self.secret.load_full()
    }

    /// Keeps the key that signs callbacks, or takes over the one that is kept: it outlives the process, and instances that
    /// begin together agree on one within a round.
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
            // What cannot be kept now is tried again in the next round.
            Ok(None) => drop(self.store.put_snapshot(NAME.to_owned(), self.secret().as_bytes().to_vec().into(), self.now()).await),
            Err(_) => {}
        }
    }

    /// The time that jobs live by.
    pub(crate) fn now(&self) -> Wall {
        self.clock.now()
    }

    /// How far the jobs' time is from the one that nobody can set, in milliseconds, and that time.
    pub(crate) fn offset(&self) -> (i64, Wall) {
        self.clock.offset()
    }

    /// Measures how far the database's clock is from ours.
    pub(crate) async fn follow(&self) {
        self.clock.follow(&self.store).await;
    }

    /// The clock was set back: what waits in a store of our own keeps what remained of its wait. A server's store has a clock of its own. Whether
    /// the store has heard it.
    pub(crate) async fn keep_waits(&self, now: Wall, by: Nanos) -> bool {
        !self.store.is_private() || self.store.set_back(now, by).await.is_ok()
    }

    /// A job that was made later than now shows that the clock was set back while nobody was here.
    pub(crate) async fn notice_step_before_start(&self) {
        let now = self.now();
        if self.store.is_private()
            && let Ok(Some(newest)) = self.store.newest_job().await
            && newest.since(now) > STEP
        {
            // A store that does not answer now leaves what waits as it is.
            let _heard = self.keep_waits(now, newest.since(now)).await;
        }
    }

    /// Something that is left to chance.
    pub(crate) fn by_chance<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.rng.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A token for the next claim of any worker.
    pub(crate) fn next_token(&self) -> u64 {
        self.holder.token(self.claims.fetch_add(1, Ordering::Relaxed))
    }

    /// An id that nobody can guess.
    pub(crate) fn new_id(&self) -> CallId {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).next(self.now())
    }

    /// Keeps jobs and wakes the workers. When this returns, they are on disk.
    pub(crate) async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, Error> {
        let kept = self.store.enqueue(jobs, self.now()).await?;
        self.crew.ring();
        Ok(kept)
    }

    /// Wakes jobs that wait for what an operator has just put right. Nobody waits for that: there may be a million of them,
    /// and those that are missed have their own time.
    pub(crate) fn hasten(self: &Arc<Self>, upstream: &str, reason: Reason) {
        let (desk, mut next) = (Arc::clone(self), Some(Hasten::new(upstream.to_owned(), reason.as_str(), self.now())));
        tokio::spawn(async move {
            while let Some(wish) = next.take() {
                next = desk.store.hasten(wish).await.ok().and_then(|hastened| hastened.next);
            }
        });
    }
}
