//! An idle store is polled repeatedly and may reply from a cached result. New work must be found by the next poll, whichever process has
//! added it.

use crate::dead::letter;
use crate::stage::{LEASE, NOON, Stage, after, on_each_backend, settlement};
use seawall_core::time::Wall;
use seawall_store::Store;
use seawall_store::job::{ClaimRequest, Claimed, Hasten, JobEnding, JobOrigin, NewJob, SettleJob};
use seawall_store::replay::Stepped;

on_each_backend!(
    what_is_enqueued_in_a_lull_is_found,
    what_becomes_due_in_a_lull_is_found,
    what_is_called_in_in_a_lull_is_found,
    what_is_given_back_in_a_lull_is_found,
    what_is_replayed_in_a_lull_is_found,
    a_lease_that_ends_in_a_lull_is_found,
    a_lull_in_one_lane_is_none_in_another,
    what_another_program_does_in_a_lull_is_found,
    what_is_next_in_a_lull_is_up_to_date,
);

/// Polls as a worker does: a tick, and a claim from all lanes.
async fn found(store: &Store, now: Wall) -> Vec<Claimed> {
    store.tick(now, None).await.unwrap();
    let lanes = vec![("u".to_owned(), 9), ("v".to_owned(), 9)];
    store.claim(ClaimRequest { lanes, token: 1, lease: LEASE, now, rules: 0 }).await.unwrap()
}

/// Polls several times, so that results are cached.
async fn lull(stage: &Stage, now: Wall) {
    for _ in 0..3 {
        assert!(found(&stage.store, now).await.is_empty());
    }
}

/// Creates a job that waits for an hour for this reason.
async fn waiting(stage: &Stage, reason: &'static str) {
    stage.enqueue(stage.job("u")).await;
    let claimed = stage.claim("u", 1).await.remove(0);
    stage.settle(&claimed, JobEnding::Wait { until: after(3600), reason }).await;
}

async fn what_is_enqueued_in_a_lull_is_found(stage: Stage) {
    for _ in 0..3 {
        lull(&stage, NOON).await;
        let id = stage.enqueue(stage.job("u")).await;
        let claimed = found(&stage.store, NOON).await.remove(0);
        assert_eq!(claimed.job.id, id);
        stage.settle(&claimed, JobEnding::Cancelled).await;
    }
}

async fn what_becomes_due_in_a_lull_is_found(stage: Stage) {
    stage.enqueue(NewJob { run_at: after(10), ..stage.job("u") }).await;
    lull(&stage, NOON).await;
    lull(&stage, Wall(after(10).0 - 1)).await;
    assert_eq!(found(&stage.store, after(10)).await.len(), 1);
}

async fn what_is_called_in_in_a_lull_is_found(stage: Stage) {
    waiting(&stage, "circuit_open").await;
    lull(&stage, NOON).await;
    assert_eq!(stage.store.hasten(Hasten::new("u".to_owned(), "circuit_open", NOON)).await.unwrap().jobs, 1);
    assert_eq!(found(&stage.store, NOON).await.len(), 1);
}

async fn what_is_given_back_in_a_lull_is_found(stage: Stage) {
    stage.enqueue(stage.job("u")).await;
    for ending in [JobEnding::Release, JobEnding::Wait { until: NOON, reason: "transient" }] {
        let claimed = found(&stage.store, NOON).await.remove(0);
        lull(&stage, NOON).await;
        stage.settle(&claimed, ending).await;
    }
    let claimed = found(&stage.store, NOON).await.remove(0);
    lull(&stage, NOON).await;
    let follow = vec![stage.job("v")];
    stage.store.settle(SettleJob { follow, ..settlement(&claimed, crate::stage::ok()) }).await.unwrap();
    assert_eq!(found(&stage.store, NOON).await[0].job.upstream, "v", "and what comes of one that is over");
}

async fn what_is_replayed_in_a_lull_is_found(stage: Stage) {
    let new = letter(&stage, NOON);
    stage.store.keep_letter(new.clone()).await.unwrap();
    lull(&stage, NOON).await;
    let job = NewJob { origin: JobOrigin::Replay { letter: new.id.to_string() }, ..stage.job("u") };
    assert!(matches!(stage.replay_at(new.id, job, NOON).await, Stepped::Started(_)));
    assert_eq!(found(&stage.store, NOON).await.len(), 1);
}

async fn a_lease_that_ends_in_a_lull_is_found(stage: Stage) {
    stage.enqueue(stage.job("u")).await;
    let held = found(&stage.store, NOON).await.remove(0);
    lull(&stage, after(10)).await;
    stage.store.renew(vec![held.lease], after(50)).await.unwrap();
    lull(&stage, after(49)).await;
    assert_eq!(found(&stage.store, after(50)).await[0].job.crashes, 1);
}

async fn a_lull_in_one_lane_is_none_in_another(stage: Stage) {
    stage.enqueue(stage.job("w")).await;
    lull(&stage, NOON).await;
    assert_eq!(stage.store.tick(NOON, None).await.unwrap().lanes, ["w"]);
    assert_eq!(stage.claim("w", 9).await.len(), 1);
    lull(&stage, NOON).await;
    assert_eq!(stage.store.tick(NOON, None).await.unwrap().lanes, [""; 0]);
}

async fn what_another_program_does_in_a_lull_is_found(stage: Stage) {
    let other = stage.open_again().await;
    for _ in 0..3 {
        lull(&stage, NOON).await;
        other.enqueue(vec![stage.job("u")], NOON).await.unwrap();
        let claimed = found(&stage.store, NOON).await.remove(0);
        lull(&stage, NOON).await;
        other.settle(settlement(&claimed, JobEnding::Release)).await.unwrap();
        let claimed = found(&stage.store, NOON).await.remove(0);
        stage.settle(&claimed, JobEnding::Cancelled).await;
    }
}

async fn what_is_next_in_a_lull_is_up_to_date(stage: Stage) {
    let next = async || stage.store.tick(NOON, None).await.unwrap().next;
    assert_eq!((next().await, next().await), (None, None));
    let id = stage.enqueue(NewJob { run_at: after(20), ..stage.job("u") }).await;
    assert_eq!((next().await, next().await), (Some(after(20)), Some(after(20))));
    stage.enqueue(NewJob { run_at: after(30), ..stage.job("u") }).await;
    assert_eq!(next().await, Some(after(20)));
    stage.store.cancel(id, NOON).await.unwrap();
    assert_eq!(next().await, Some(after(30)));
}
