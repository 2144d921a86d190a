//! An empty store of a backend, and common helpers of cases.

use crate::cluster::Cluster;
use seawall_core::decide::CallProgress;
use seawall_core::id::CallId;
use seawall_core::rng::Rng;
use seawall_core::time::{Nanos, Wall};
use seawall_store::Store;
use seawall_store::job::{ClaimRequest, Claimed, JobEnding, JobOrigin, JobRequest, NewJob, Response, SettleJob, Settled};
use seawall_store::location::Location;
use seawall_store::replay::{self, Created, NewReplay, Stepped};
use std::cell::RefCell;

/// The noon from which cases count.
pub(crate) const NOON: Wall = Wall(1_800_000_000_000);
pub(crate) const LEASE: Nanos = Nanos::from_secs(30);

pub(crate) const fn after(seconds: i64) -> Wall {
    Wall(NOON.0 + seconds * 1000)
}

/// A store, and everything that must live as long as it does.
pub(crate) struct Stage {
    pub(crate) store: Store,
    location: Location,
    rng: RefCell<Rng>,
    _folder: Option<tempfile::TempDir>,
}

impl Stage {
    pub(crate) async fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self::at(Location::Sqlite(folder.path().join("seawall.db")), Some(folder)).await
    }

    pub(crate) async fn postgres() -> Self {
        Self::at(Location::Postgres(Cluster::shared().database().await), None).await
    }

    pub(crate) async fn at(location: Location, folder: Option<tempfile::TempDir>) -> Self {
        let store = Store::open(&location).await.unwrap();
        Self { store, location, rng: RefCell::new(Rng::seeded(7)), _folder: folder }
    }

    /// Opens the store as another program, or as the same one after a restart.
    pub(crate) async fn open_again(&self) -> Store {
        Store::open(&self.location).await.unwrap()
    }

    pub(crate) fn location(&self) -> &Location {
        &self.location
    }

    pub(crate) fn id(&self, at: Wall) -> CallId {
        CallId::new(at, &mut self.rng.borrow_mut())
    }

    pub(crate) fn job(&self, upstream: &str) -> NewJob {
        NewJob {
            id: self.id(NOON),
            upstream: upstream.to_owned(),
            tenant: "t".to_owned(),
            caller: "c".to_owned(),
            priority: 0,
            request: JobRequest { method: "GET".to_owned(), path: "/x?y=1".to_owned(), ..JobRequest::default() },
            idempotency_key: None,
            dedup: None,
            fingerprint: [1; 32],
            correlation_id: None,
            callback: None,
            run_at: NOON,
            expires_at: None,
            origin: JobOrigin::Caller,
            progress: CallProgress::default(),
            history: Vec::new(),
        }
    }

    /// Stores one job at noon.
    pub(crate) async fn enqueue(&self, job: NewJob) -> CallId {
        let id = job.id;
        self.store.enqueue(vec![job], NOON).await.unwrap();
        id
    }

    pub(crate) async fn claim_at(&self, upstream: &str, most: usize, now: Wall) -> Vec<Claimed> {
        let token = self.rng.borrow_mut().draw();
        self.store.claim(ClaimRequest { lanes: vec![(upstream.to_owned(), most)], token, lease: LEASE, now, rules: 0 }).await.unwrap()
    }

    pub(crate) async fn claim(&self, upstream: &str, most: usize) -> Vec<Claimed> {
        self.claim_at(upstream, most, NOON).await
    }

    /// Starts a replay of one letter, as programs do.
    pub(crate) async fn replay_at(&self, letter: CallId, job: NewJob, now: Wall) -> Stepped {
        let new = NewReplay {
            id: self.id(now),
            name: "replay".to_owned(),
            who: "somebody".to_owned(),
            filter: "{}".to_owned(),
            upstreams: vec![job.upstream.clone()],
            rate: "1/s".to_owned(),
            canary: 0,
            created_at: now,
        };
        let id = new.id;
        assert_eq!(self.store.create_replay(new).await.unwrap(), Created::Started);
        let stepped = self.store.step_replay(id, letter, Some(job), now).await.unwrap();
        assert!(self.store.set_replay(id, replay::ReplayState::Done, now).await.unwrap());
        stepped
    }

    pub(crate) async fn settle_at(&self, claimed: &Claimed, ending: JobEnding, now: Wall) -> Settled {
        self.store.settle(SettleJob { now, ..settlement(claimed, ending) }).await.unwrap()
    }

    pub(crate) async fn settle(&self, claimed: &Claimed, ending: JobEnding) -> Settled {
        self.settle_at(claimed, ending, NOON).await
    }
}

/// Builds a plain settlement at noon.
pub(crate) fn settlement(claimed: &Claimed, ending: JobEnding) -> SettleJob {
    let Claimed { lease, job, .. } = claimed;
    let (progress, history) = (job.progress, job.history.clone());
    SettleJob {
        lease: *lease,
        ending,
        progress,
        history,
        answer: None,
        follow: Vec::new(),
        key: None,
        forgets: false,
        now: NOON,
        again: false,
    }
}

pub(crate) fn ok() -> JobEnding {
    JobEnding::Done(Response { status: 200, body: "yes".into(), ..Response::default() })
}

/// Runs a case on each backend.
macro_rules! on_each_backend {
    ($($case:ident),* $(,)?) => {
        mod sqlite {
            $(
                #[tokio::test]
                async fn $case() {
                    super::$case($crate::stage::Stage::sqlite().await).await;
                }
            )*
        }
        mod postgres {
            $(
                #[tokio::test]
                async fn $case() {
                    super::$case($crate::stage::Stage::postgres().await).await;
                }
            )*
        }
    };
}
pub(crate) use on_each_backend;
