//! The server backend: set-based statements over a pool of connections. Concurrent writes are batched.

mod batch;
mod begin_batch;
mod claim;
mod claim_position;
mod errors;
mod fair_order;
mod heartbeat;
mod idempotency_keys;
mod job_changes;
mod jobs;
mod notification;
mod pool;
mod run_lock;
mod schema;
mod settle;
mod tick;
mod transaction;

use crate::error::Error;
use crate::model::job::{ClaimRequest, Claimed, ClockTick, Enqueued, Holder, JobLease, NewJob, Renewed, Settled};
use crate::statements::settled::WrittenSettlement;
use batch::Batcher;
use begin_batch::Begin;
use pool::PostgresPool;
pub(crate) use run_lock::PostgresRunLock;
use seawall_core::time::Wall;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::task::JoinSet;
pub(crate) use transaction::{TransactionRead, Tx};

/// A handle; clones share one backend.
#[derive(Clone, Debug)]
pub(crate) struct Postgres(Arc<PostgresInner>);

#[derive(Debug)]
struct PostgresInner {
    pool: PostgresPool,
    enqueue: Batcher<jobs::Enqueue>,
    settle: Batcher<WrittenSettlement>,
    begin: Batcher<Begin>,
    woken: Arc<Notify>,
    /// Tasks that end with the last handle.
    _tasks: JoinSet<()>,
}

impl Postgres {
    pub(crate) async fn open(url: &str) -> Result<Self, Error> {
        let pool = PostgresPool::new(url)?;
        schema::migrate(&pool).await?;
        let (mut tasks, woken) = (JoinSet::new(), Arc::new(Notify::new()));
        let enqueue = Batcher::start(&pool, &mut tasks);
        let settle = Batcher::start(&pool, &mut tasks);
        let begin = Batcher::start(&pool, &mut tasks);
        tasks.spawn(notification::listen(pool.clone(), Arc::clone(&woken)));
        tasks.spawn(notification::ring(pool.clone()));
        Ok(Self(Arc::new(PostgresInner { pool, enqueue, settle, begin, woken, _tasks: tasks })))
    }

    pub(crate) fn is_responsive(&self) -> bool {
        !self.0.pool.pulse().is_silent()
    }

    pub(crate) async fn begin(&self) -> Result<Tx, Error> {
        Tx::begin(&self.0.pool).await
    }

    pub(crate) async fn read_transaction(&self) -> Result<TransactionRead, Error> {
        TransactionRead::new(&self.0.pool).await
    }

    pub(crate) async fn enqueue(&self, jobs: Vec<NewJob>, now: Wall) -> Result<Vec<Enqueued>, Error> {
        self.0.enqueue.run(jobs::Enqueue { jobs, now }).await
    }

    pub(crate) async fn settle_all(&self, settles: Vec<WrittenSettlement>) -> Vec<Result<Settled, Error>> {
        self.0.settle.run_all(settles).await
    }

    pub(crate) async fn begin_send(&self, lease: JobLease, now: Wall) -> Result<bool, Error> {
        self.0.begin.run(Begin { lease, now }).await
    }

    pub(crate) async fn claim(&self, claim: ClaimRequest) -> Result<Vec<Claimed>, Error> {
        claim::claim(&self.0.pool, &claim).await
    }

    pub(crate) async fn renew(&self, leases: Vec<JobLease>, until: Wall) -> Result<Vec<Renewed>, Error> {
        settle::renew(&self.0.pool, &leases, until).await
    }

    pub(crate) async fn tick(&self, now: Wall, holder: Option<Holder>) -> Result<ClockTick, Error> {
        tick::tick(&self.0.pool, now, holder).await
    }

    pub(crate) async fn sweep_jobs(&self, finished_before: Wall, most: usize) -> Result<usize, Error> {
        tick::sweep(&self.0.pool, finished_before, most).await
    }

    pub(crate) async fn time(&self) -> Result<Option<Wall>, Error> {
        tick::time(&self.0.pool).await.map(Some)
    }

    pub(crate) async fn woken(&self) {
        self.0.woken.notified().await;
    }
}
