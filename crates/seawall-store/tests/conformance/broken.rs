//! Replies of PostgreSQL that are lost, late or meant for another request must not harm a job.

use crate::cluster::Cluster;
use crate::dead::letter;
use crate::stage::{NOON, Stage, after, ok, on_each_backend, settlement};
use crate::wire::{Marks, Wire};
use seawall_core::id::CallId;
use seawall_core::rng::Rng;
use seawall_core::time::{Nanos, Wall};
use seawall_store::job::{ClaimRequest, Enqueued, JobEnding, JobState, NewJob, SettleJob, Settled};
use seawall_store::location::Location;
use seawall_store::{Error, Store};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

on_each_backend!(an_id_that_is_taken_by_another_job_is_refused, a_letter_that_many_keep_at_once_is_one,);

async fn an_id_that_is_taken_by_another_job_is_refused(stage: Stage) {
    let first = stage.job("u");
    let second = NewJob { fingerprint: [2; 32], ..first.clone() };
    stage.enqueue(first.clone()).await;
    let error = stage.store.enqueue(vec![second.clone()], NOON).await.unwrap_err();
    assert!(!error.passes(), "{error}");
    let twice = stage.job("u");
    let other = NewJob { fingerprint: [2; 32], ..twice.clone() };
    assert!(stage.store.enqueue(vec![twice, other], NOON).await.is_err(), "also within one batch");
    assert_eq!(stage.store.job(first.id).await.unwrap().unwrap().state, JobState::Queued);
}

async fn a_letter_that_many_keep_at_once_is_one(stage: Stage) {
    for round in 1..=20 {
        let new = letter(&stage, after(round));
        let keeping: Vec<_> = (0..4)
            .map(|_| {
                let (store, new) = (stage.store.clone(), new.clone());
                tokio::spawn(async move { store.keep_letter(new).await })
            })
            .collect();
        for kept in keeping {
            kept.await.unwrap().unwrap();
        }
    }
    let issue = stage.store.issues().await.unwrap().remove(0);
    assert_eq!((issue.open, issue.total), (20, 20));
}

/// Creates a database with a trigger on its jobs: an action of another user at the worst moment.
async fn with_trigger(when: &str, body: &str) -> Stage {
    let url = Cluster::shared().database().await;
    let stage = Stage::at(Location::Postgres(url.clone()), None).await;
    let name = url.rsplit('/').next().unwrap();
    let statement = format!(
        "SET search_path = seawall; CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NEW; END $$; \
         CREATE TRIGGER meddle {when} EXECUTE FUNCTION meddle()"
    );
    Cluster::shared().execute(name, &statement).await;
    stage
}

#[tokio::test]
async fn a_key_whose_holder_is_cancelled_before_it_is_looked_at_is_free() {
    // Fires at the end of the statement that finds the key taken, before the statement that reads its holder.
    let free = "DELETE FROM queue WHERE row IN (SELECT row FROM jobs WHERE tenant = 'holder'); \
                INSERT INTO ended (row, token, finished_at, state, id) SELECT row, 0, 0, 5, id FROM jobs WHERE tenant = 'holder' AND dedup IS NOT NULL; \
                UPDATE jobs SET dedup = NULL WHERE tenant = 'holder';";
    let stage = with_trigger("AFTER INSERT ON jobs FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0)", free).await;
    let job = |tenant: &str| NewJob { tenant: tenant.to_owned(), dedup: Some([9; 32]), ..stage.job("u") };
    let database = stage.store.clone();
    let (holder, late) = (job("holder"), job("late"));
    // In a batch, the holder is cancelled only by the next statement.
    database.enqueue(vec![NewJob { tenant: "t".to_owned(), ..holder.clone() }], NOON).await.unwrap();
    rename(&stage, "holder").await;
    assert_eq!(database.enqueue(vec![late.clone()], NOON).await.unwrap(), [Enqueued::New(late.id)]);
    assert_eq!(database.job(holder.id).await.unwrap().unwrap().state, JobState::Cancelled, "the trigger fired");
    let kept = database.job(late.id).await.unwrap().expect("what is acknowledged is there");
    assert_eq!(kept.state, JobState::Queued);
}

/// Assigns all jobs to a tenant, bypassing the store.
async fn rename(stage: &Stage, tenant: &str) {
    let Location::Postgres(url) = stage.location() else { panic!("only a server has a back") };
    let name = url.rsplit('/').next().unwrap();
    Cluster::shared().execute(name, &format!("UPDATE seawall.jobs SET tenant = '{tenant}'")).await;
}

#[tokio::test]
async fn one_enqueue_that_is_too_much_does_not_fail_its_neighbours() {
    let refuse = "IF NEW.upstream = 'huge' THEN RAISE 'out of memory' USING ERRCODE = '53200'; END IF;";
    let stage = with_trigger("BEFORE INSERT ON jobs FOR EACH ROW", refuse).await;
    let enqueue = |upstream: &str| {
        let (store, job) = (stage.store.clone(), stage.job(upstream));
        tokio::spawn(async move { store.enqueue(vec![job], NOON).await })
    };
    let (small, huge) = ((0..10).map(|_| enqueue("u")).collect::<Vec<_>>(), enqueue("huge"));
    let more: Vec<_> = (0..10).map(|_| enqueue("u")).collect();
    assert!(huge.await.unwrap().unwrap_err().passes());
    for kept in small.into_iter().chain(more) {
        assert!(matches!(kept.await.unwrap().unwrap()[..], [Enqueued::New(_)]));
    }
    assert_eq!(stage.store.job_counts().await.unwrap().by_state[0], 20);
}

/// Opens a store on a database of its own, with a wire in between.
async fn wired() -> (Wire, Stage) {
    let wire = Wire::to(Cluster::shared());
    let url = wire.url(&Cluster::shared().database().await);
    (wire, Stage::at(Location::Postgres(url), None).await)
}

#[tokio::test]
async fn a_settlement_whose_answer_is_lost_counts_once_and_is_known_to_be_kept() {
    let (wire, stage) = wired().await;
    let wait = || JobEnding::Wait { until: after(60), reason: "circuit_open" };
    let commit: Marks = &[b"COMMIT\0"];
    // The last two are written by a single statement without a transaction.
    let endings: Vec<(Marks, JobEnding, JobState)> = vec![
        (commit, ok(), JobState::Done),
        (commit, wait(), JobState::Waiting),
        (commit, JobEnding::Dead(Box::new(letter(&stage, after(1)))), JobState::Dead),
        (&[b"yes"], ok(), JobState::Done),
        (&[b"circuit_open"], wait(), JobState::Waiting),
    ];
    for (round, (mark, ending, state)) in endings.into_iter().enumerate() {
        let id = stage.enqueue(stage.job("u")).await;
        let claimed = stage.claim("u", 1).await.remove(0);
        let follow: Vec<NewJob> = (mark == commit).then(|| stage.job("callbacks")).into_iter().collect();
        let settle = SettleJob { follow, ..settlement(&claimed, ending) };
        wire.cut(mark);
        assert_eq!(stage.store.settle(settle.clone()).await.unwrap(), Settled::Kept);
        assert_eq!(wire.cuts(), round + 1, "the answer was lost");
        assert_eq!(stage.store.settle(settle).await.unwrap(), Settled::Lost, "a second one is a second one");
        assert_eq!(stage.store.job(id).await.unwrap().unwrap().state, state);
        assert_eq!(stage.claim("callbacks", 9).await.len(), usize::from(mark == commit));
    }
    assert_eq!(stage.store.issues().await.unwrap()[0].total, 1);
}

#[tokio::test]
async fn a_settlement_whose_answer_is_lost_with_the_server_is_known_to_be_kept_when_it_is_back() {
    let (wire, stage) = wired().await;
    let marks: [(Marks, JobState); 2] = [(&[b"COMMIT\0"], JobState::Dead), (&[b"yes"], JobState::Done)];
    for (mark, state) in marks {
        let id = stage.enqueue(stage.job("u")).await;
        let claimed = stage.claim("u", 1).await.remove(0);
        let ending = if state == JobState::Done { ok() } else { JobEnding::Dead(Box::new(letter(&stage, after(1)))) };
        let settle = settlement(&claimed, ending);
        wire.cut_for_good(mark);
        assert!(stage.store.settle(settle.clone()).await.unwrap_err().passes());
        wire.mend();
        let again = SettleJob { again: true, ..settle.clone() };
        let settled = in_the_end(async || stage.store.settle(again.clone()).await).await;
        assert_eq!(settled, Settled::Kept);
        assert_eq!(stage.store.settle(settle).await.unwrap(), Settled::Lost, "a second one is a second one");
        assert_eq!(stage.store.job(id).await.unwrap().unwrap().state, state);
    }
    assert_eq!((wire.cuts(), stage.store.issues().await.unwrap()[0].total), (2, 1));
}

/// The server is silent until `back` is called: the store detects the silence, and recovers after it.
async fn silence(stage: &Stage, back: impl AsyncFnOnce()) {
    let (before, late) = (stage.job("u"), stage.job("u"));
    let answers = async || {
        let late = tokio::time::timeout(Duration::from_secs(15), stage.store.enqueue(vec![late.clone()], NOON)).await;
        late.expect("nobody waits for ever").unwrap_err()
    };
    assert!(stage.store.is_responsive());
    let refused = answers().await;
    assert!(refused.passes() && !stage.store.is_responsive(), "{refused}");
    assert_eq!(answers().await.to_string(), "the database does not answer: nothing is heard of it");
    back().await;
    while !stage.store.is_responsive() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stage.enqueue(before.clone()).await;
    assert_eq!(stage.store.job(before.id).await.unwrap().unwrap().state, JobState::Queued);
}

#[tokio::test]
async fn a_server_whose_words_get_lost_is_not_waited_for() {
    let (wire, stage) = wired().await;
    stage.enqueue(stage.job("u")).await;
    wire.mute();
    silence(&stage, async || wire.mend()).await;
}

#[tokio::test]
async fn a_server_that_is_held_up_is_not_waited_for() {
    let cluster: &'static Cluster = Box::leak(Box::new(Cluster::start("-c fsync=off")));
    let stage = Stage::at(Location::Postgres(cluster.database().await), None).await;
    stage.enqueue(stage.job("u")).await;
    cluster.freeze().await;
    silence(&stage, async || cluster.thaw().await).await;
}

#[tokio::test]
async fn a_statement_that_takes_long_is_waited_for() {
    let stage = with_trigger("BEFORE INSERT ON jobs FOR EACH ROW", "PERFORM pg_sleep(5);").await;
    let id = stage.enqueue(stage.job("u")).await;
    assert!(stage.store.is_responsive() && stage.store.job(id).await.unwrap().is_some());
}

/// Claims and settles until stopped; counts how often each job was settled for good.
async fn work(store: Store, seed: u64, over: Arc<AtomicBool>, settled: Arc<AtomicUsize>) -> HashMap<CallId, usize> {
    let (mut ended, mut rng) = (HashMap::new(), Rng::seeded(seed));
    while !over.load(Ordering::Relaxed) {
        let wish = ClaimRequest { lanes: vec![("u".to_owned(), 20)], token: rng.draw(), lease: Nanos::from_secs(600), now: NOON, rules: 0 };
        // A claim whose reply was lost twice is left to expire.
        let Ok(claimed) = store.claim(wish).await else { continue };
        for one in claimed {
            if store.settle(settlement(&one, ok())).await.expect("a restart is waited for") == Settled::Kept {
                *ended.entry(one.job.id).or_insert(0) += 1;
                settled.fetch_add(1, Ordering::Relaxed);
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    ended
}

/// Returns the first reply: a connection that died unused is detected on its next use.
async fn in_the_end<T>(ask: impl AsyncFn() -> Result<T, Error>) -> T {
    for _ in 0..20 {
        match ask().await {
            Err(error) if error.passes() => {}
            done => return done.unwrap(),
        }
    }
    panic!("the server does not come back");
}

#[tokio::test]
async fn restarts_of_the_server_lose_no_job_and_end_none_twice() {
    // A server of its own until this process ends: other tests must not notice.
    let cluster: &'static Cluster = Box::leak(Box::new(Cluster::start("-c fsync=off")));
    let stage = Stage::at(Location::Postgres(cluster.database().await), None).await;
    let (over, settled) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let work = |seed| tokio::spawn(work(stage.store.clone(), seed, Arc::clone(&over), Arc::clone(&settled)));
    let workers: Vec<_> = (1..=3).map(work).collect();
    let (store, pattern, enough) = (stage.store.clone(), stage.job("u"), Arc::clone(&over));
    let producer = tokio::spawn(async move {
        let (mut ids, mut rng) = (Vec::new(), Rng::seeded(99));
        while !enough.load(Ordering::Relaxed) {
            let jobs: Vec<NewJob> = (0..5).map(|_| NewJob { id: CallId::new(NOON, &mut rng), ..pattern.clone() }).collect();
            ids.extend(jobs.iter().map(|job| job.id));
            let kept = store.enqueue(jobs, NOON).await.expect("a restart is waited for");
            assert!(kept.iter().all(|kept| matches!(kept, Enqueued::New(_))));
        }
        ids
    });
    for round in 1..=5 {
        while settled.load(Ordering::Relaxed) < 20 * round {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        cluster.restart().await;
    }
    over.store(true, Ordering::Relaxed);
    let ids = producer.await.unwrap();
    let mut ended: HashMap<CallId, usize> = HashMap::new();
    for worker in workers {
        for (id, times) in worker.await.unwrap() {
            *ended.entry(id).or_insert(0) += times;
        }
    }
    assert!(ended.values().all(|times| *times == 1), "nothing ends twice");
    // Jobs of lost claims become available when their leases expire.
    let late = Wall(NOON.0 + 700_000);
    while in_the_end(async || stage.store.tick(late, None).await).await.recovered > 0 {}
    for id in ids {
        let job = in_the_end(async || stage.store.job(id).await).await.expect("what was acknowledged is there");
        let expected = if ended.contains_key(&id) { JobState::Done } else { JobState::Queued };
        assert_eq!(job.state, expected, "a job is done exactly when its worker was told so");
    }
}
