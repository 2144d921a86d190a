//! Opening, sharing, waking, and handing over a store from one program to another.

use crate::cluster::Cluster;
use crate::stage::{LEASE, NOON, Stage, after, ok, on_each_backend};
use seawall_core::id::CallId;
use seawall_core::rng::Rng;
use seawall_store::job::{ClaimRequest, Enqueued, JobEnding, JobState, NewJob, Settled};
use seawall_store::location::Location;
use seawall_store::{Error, Store};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

on_each_backend!(
    what_was_acknowledged_is_there_after_a_restart,
    two_programs_share_the_work_and_never_a_job,
    who_waits_for_work_is_woken_by_an_enqueue,
    what_is_due_at_once_wakes_too,
    fairness_survives_a_restart,
    many_at_once_are_all_kept_in_their_own_order,
);

async fn what_was_acknowledged_is_there_after_a_restart(stage: Stage) {
    let (first, second) = (stage.enqueue(stage.job("u")).await, stage.enqueue(stage.job("u")).await);
    let claimed = stage.claim("u", 1).await.remove(0);
    let again = stage.open_again().await;
    assert_eq!(again.job(first).await.unwrap().unwrap().state, JobState::Running);
    assert_eq!(again.job(second).await.unwrap().unwrap().state, JobState::Queued);
    assert_eq!(stage.settle(&claimed, ok()).await, Settled::Kept, "a lease outlives the program that saw it made");
    assert_eq!(again.job(first).await.unwrap().unwrap().state, JobState::Done);
}

async fn two_programs_share_the_work_and_never_a_job(stage: Stage) {
    let other = stage.open_again().await;
    stage.store.enqueue((0..200).map(|_| stage.job("u")).collect(), NOON).await.unwrap();
    let claim = async |store: &Store, token| {
        store.claim(ClaimRequest { lanes: vec![("u".to_owned(), 15)], token, lease: LEASE, now: NOON, rules: 0 }).await.unwrap()
    };
    let mut seen = HashSet::new();
    for round in 0..20 {
        let (mine, theirs) = tokio::join!(claim(&stage.store, 2 * round), claim(&other, 2 * round + 1));
        for claimed in mine.iter().chain(&theirs) {
            assert!(seen.insert(claimed.job.id), "claimed twice");
        }
    }
    assert_eq!(seen.len(), 200);
}

/// Much longer than necessary: a bound, not a measurement.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits like a worker until there is a job to claim.
fn wait_for_one(stage: &Stage) -> tokio::task::JoinHandle<()> {
    let other = stage.store.clone();
    tokio::spawn(async move {
        loop {
            other.woken().await;
            if other.job_counts().await.unwrap().by_state[0] == 1 {
                return;
            }
        }
    })
}

async fn who_waits_for_work_is_woken_by_an_enqueue(stage: Stage) {
    let woken = wait_for_one(&stage);
    tokio::task::yield_now().await;
    stage.enqueue(stage.job("u")).await;
    tokio::time::timeout(PATIENCE, woken).await.expect("woken").unwrap();
}

async fn what_is_due_at_once_wakes_too(stage: Stage) {
    stage.enqueue(stage.job("u")).await;
    let claimed = stage.claim("u", 1).await.remove(0);
    let woken = wait_for_one(&stage);
    stage.settle(&claimed, JobEnding::Release).await;
    tokio::time::timeout(PATIENCE, woken).await.expect("woken").unwrap();
}

async fn fairness_survives_a_restart(stage: Stage) {
    let of = |tenant: &str, count| (0..count).map(|_| NewJob { tenant: tenant.to_owned(), ..stage.job("u") }).collect();
    stage.store.enqueue(of("many", 300), NOON).await.unwrap();
    assert_eq!(stage.claim("u", 100).await.len(), 100);
    let again = stage.open_again().await;
    again.enqueue(of("few", 10), NOON).await.unwrap();
    let next = again.claim(ClaimRequest { lanes: vec![("u".to_owned(), 22)], token: 1, lease: LEASE, now: NOON, rules: 0 }).await.unwrap();
    assert_eq!(next.iter().filter(|claimed| claimed.job.tenant == "few").count(), 10);
}

async fn many_at_once_are_all_kept_in_their_own_order(stage: Stage) {
    let mut asked = Vec::new();
    for number in 0..40_u8 {
        let key = NewJob { dedup: Some([number % 20; 32]), ..stage.job("u") };
        let (store, jobs) = (stage.store.clone(), vec![stage.job("u"), key]);
        let id = jobs[0].id;
        asked.push((id, tokio::spawn(async move { store.enqueue(jobs, NOON).await.unwrap() })));
    }
    let (mut new, mut known) = (0, 0);
    for (id, answer) in asked {
        let answer = answer.await.unwrap();
        assert_eq!(answer[0], Enqueued::New(id), "each gets the answers to its own jobs");
        match answer[1] {
            Enqueued::New(_) => new += 1,
            Enqueued::Known(..) => known += 1,
            Enqueued::Mismatch(_) => panic!("the same request"),
        }
    }
    assert_eq!((new, known), (20, 20));
    assert_eq!(stage.store.job_counts().await.unwrap().by_state[0], 60);
}

#[tokio::test]
async fn a_newer_schema_is_refused_on_postgres() {
    let url = Cluster::shared().database().await;
    let location = Location::Postgres(url.clone());
    drop(Store::open(&location).await.unwrap());
    let name = url.rsplit('/').next().unwrap().to_owned();
    Cluster::shared().execute(&name, "INSERT INTO seawall.schema VALUES (9999)").await;
    let refused = Store::open(&location).await.unwrap_err();
    assert!(matches!(refused, Error::NewerSchema { found: 9999, .. }), "{refused}");
}

#[tokio::test]
async fn several_programs_that_start_at_once_make_one_schema_on_postgres() {
    let location = Location::Postgres(Cluster::shared().database().await);
    let openings: Vec<_> =
        (0..4).map(|_| location.clone()).map(|location| tokio::spawn(async move { Store::open(&location).await })).collect();
    for opening in openings {
        opening.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn the_database_tells_the_time_where_it_is_shared() {
    let first = Stage::postgres().await.store.time().await.unwrap().unwrap();
    assert!(first > after(-100_000_000), "{first:?} is a time of this decade");
    assert_eq!(Stage::sqlite().await.store.time().await.unwrap(), None);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable_and_no_secret_is_told() {
    let location = Location::Postgres("postgres://u:hunter2@%2Fnowhere/x".to_owned());
    let error = Store::open(&location).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    assert!(!format!("{error:?} {error}").contains("hunter2"));
    let nonsense = Store::open(&Location::Postgres("postgres://u:hunter2@h:port/x".to_owned())).await.unwrap_err();
    assert!(matches!(&nonsense, Error::Failed(text) if !text.contains("hunter2")), "{nonsense:?}");
}

#[tokio::test]
async fn work_goes_on_after_the_server_restarted() {
    // A server of its own until this process ends: other tests must not notice.
    let cluster: &'static Cluster = Box::leak(Box::new(Cluster::start("-c fsync=off")));
    let stage = Stage::at(Location::Postgres(cluster.database().await), None).await;
    let (store, done) = (stage.store.clone(), Arc::new(AtomicBool::new(false)));
    let (pattern, over) = (stage.job("u"), Arc::clone(&done));
    let producer = tokio::spawn(async move {
        let (mut ids, mut rng) = (HashSet::new(), Rng::seeded(1));
        while !over.load(Ordering::Relaxed) {
            let id = CallId::new(NOON, &mut rng);
            assert_eq!(store.enqueue(vec![NewJob { id, ..pattern.clone() }], NOON).await.unwrap(), [Enqueued::New(id)]);
            ids.insert(id);
        }
        ids
    });
    for _ in 0..3 {
        cluster.restart().await;
    }
    done.store(true, Ordering::Relaxed);
    let ids = producer.await.unwrap();
    let mut found = HashSet::new();
    loop {
        let claimed = stage.claim("u", 500).await;
        if claimed.is_empty() {
            break;
        }
        found.extend(claimed.iter().map(|claimed| claimed.job.id));
    }
    assert_eq!(found, ids, "what was acknowledged is there, and nothing else");
    cluster.stop().await;
    for _ in 0..2 {
        let away = stage.store.enqueue(vec![stage.job("u")], NOON).await.unwrap_err();
        assert!(matches!(away, Error::Unavailable(_)), "{away:?}");
    }
    cluster.restart().await;
    stage.enqueue(stage.job("u")).await;
}
