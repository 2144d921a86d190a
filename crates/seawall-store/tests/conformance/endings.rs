//! Ends of jobs: completion, waiting and cancellation, and their representation in lists.

use crate::stage::{NOON, Stage, after, ok, on_each_backend, settlement};
use seawall_core::time::Wall;
use seawall_store::job::{
    Attempted, Cancelled, Hasten, JobEnding, JobFilter, JobState, MAX_HISTORY, NewJob, Renewed, Response, SettleJob, Settled,
};
use seawall_store::page::PageWindow;
use std::sync::Arc;

on_each_backend!(
    a_done_job_keeps_its_answer,
    jobs_that_end_together_keep_what_is_theirs,
    ends_that_are_handed_in_together_are_answered_in_their_order,
    of_two_leases_of_one_job_the_later_one_counts,
    a_job_that_waits_goes_on_where_it_was,
    what_waits_for_a_cause_that_is_gone_is_called_in_one_by_one,
    a_released_job_is_ready_at_once_and_no_crash,
    a_follow_up_is_there_exactly_when_its_job_is_over,
    who_asks_again_hears_what_the_settlement_came_to,
    a_queued_job_is_cancelled_at_once,
    a_running_job_is_cancelled_when_its_worker_lets_go,
    a_running_job_that_finishes_first_is_done,
    lists_are_pages_newest_first,
    lists_are_filtered,
    jobs_are_counted,
    old_jobs_are_forgotten_and_young_ones_are_not,
    history_is_kept_to_its_end,
    a_job_that_is_over_forgets_what_its_caller_sent_in_confidence,
    a_job_that_waits_keeps_what_it_has_to_send,
);

const PAGE: PageWindow = PageWindow { after: None, limit: 10 };

async fn a_done_job_keeps_its_answer(stage: Stage) {
    let id = stage.enqueue(stage.job("u")).await;
    let claimed = stage.claim("u", 1).await.remove(0);
    assert_eq!(stage.settle_at(&claimed, ok(), after(1)).await, Settled::Kept);
    let job = stage.store.job(id).await.unwrap().unwrap();
    assert_eq!((job.state, job.finished_at), (JobState::Done, Some(after(1))));
    let response = job.response.unwrap();
    assert_eq!((response.status, &response.body[..]), (200, &b"yes"[..]));
}

/// Each job ends in another way than its neighbours.
async fn jobs_that_end_together_keep_what_is_theirs(stage: Stage) {
    let jobs: Vec<NewJob> = (0..60).map(|_| stage.job("u")).collect();
    stage.store.enqueue(jobs, NOON).await.unwrap();
    let mut expected = Vec::new();
    let settling: Vec<_> = stage
        .claim("u", 60)
        .await
        .into_iter()
        .zip(0_u8..)
        .map(|(mut claimed, n)| {
            claimed.job.progress.attempts = u32::from(n % 5);
            let response = (n % 3 > 0).then(|| Response {
                status: 200 + u16::from(n % 4),
                headers: (n % 2 == 0).then(|| ("n", n.to_string())).into_iter().collect(),
                body: bytes::Bytes::from(vec![n; usize::from(n % 7)]),
                truncated: n % 11 == 0,
            });
            let (until, reason) = (after(i64::from(n) + 1), if n % 2 == 0 { "circuit_open" } else { "keys_cooling" });
            let ending = response.clone().map_or(JobEnding::Wait { until, reason }, JobEnding::Done);
            let settle = SettleJob { now: after(i64::from(n % 2)), ..settlement(&claimed, ending) };
            let over = response.is_some();
            expected.push((
                claimed.job.id,
                if over { JobState::Done } else { JobState::Waiting },
                over.then_some(settle.now),
                (!over).then_some(until),
                (!over).then(|| reason.to_owned()),
                settle.progress,
                response,
            ));
            let store = stage.store.clone();
            tokio::spawn(async move { store.settle(settle).await.unwrap() })
        })
        .collect();
    for settled in settling {
        assert_eq!(settled.await.unwrap(), Settled::Kept);
    }
    for expected in expected {
        let job = stage.store.job(expected.0).await.unwrap().unwrap();
        assert_eq!((job.id, job.state, job.finished_at, job.next_attempt_at, job.error, job.progress, job.response), expected);
    }
}

async fn ends_that_are_handed_in_together_are_answered_in_their_order(stage: Stage) {
    stage.store.enqueue((0..5).map(|_| stage.job("u")).collect(), NOON).await.unwrap();
    let claimed = stage.claim("u", 5).await;
    assert_eq!(stage.settle(&claimed[1], ok()).await, Settled::Kept);
    assert_eq!(stage.store.cancel(claimed[2].job.id, NOON).await.unwrap(), Cancelled::Asked);
    let waits = || JobEnding::Wait { until: after(60), reason: "circuit_open" };
    let follow = stage.job("callbacks");
    let settles = [
        settlement(&claimed[0], ok()),
        settlement(&claimed[1], ok()),
        settlement(&claimed[2], waits()),
        SettleJob { follow: vec![follow.clone()], ..settlement(&claimed[3], ok()) },
        settlement(&claimed[4], waits()),
    ];
    let answers = stage.store.settle_all(settles.into_iter().map(Arc::new).collect()).await;
    let answers: Vec<Settled> = answers.into_iter().map(Result::unwrap).collect();
    assert_eq!(answers, [Settled::Kept, Settled::Lost, Settled::Cancelled, Settled::Kept, Settled::Kept]);
    let mut states = Vec::new();
    for claimed in &claimed {
        states.push(stage.store.job(claimed.job.id).await.unwrap().unwrap().state);
    }
    assert_eq!(states, [JobState::Done, JobState::Done, JobState::Cancelled, JobState::Done, JobState::Waiting]);
    assert_eq!(stage.claim("callbacks", 9).await.len(), 1);
    assert!(stage.store.settle_all(Vec::new()).await.is_empty());
}

async fn of_two_leases_of_one_job_the_later_one_counts(stage: Stage) {
    // Completed jobs are written without reading the job first, failed ones are not.
    for ending in [ok(), JobEnding::Failed { code: "no".to_owned() }] {
        for is_late_first in [true, false] {
            let id = stage.enqueue(stage.job("u")).await;
            let early = stage.claim("u", 1).await.remove(0);
            assert_eq!(stage.store.tick(after(3600), None).await.unwrap().recovered, 1);
            let late = stage.claim("u", 1).await.remove(0);
            let mut both = [(&early, Settled::Lost), (&late, Settled::Kept)];
            if is_late_first {
                both.reverse();
            }
            let settles = both.iter().map(|(claimed, _)| Arc::new(settlement(claimed, ending.clone()))).collect();
            let answers: Vec<Settled> = stage.store.settle_all(settles).await.into_iter().map(Result::unwrap).collect();
            assert_eq!(answers, both.iter().map(|(_, expected)| *expected).collect::<Vec<_>>());
            assert!(stage.store.job(id).await.unwrap().unwrap().state.is_over());
        }
    }
    assert_eq!(stage.store.job_counts().await.unwrap().by_state, [0, 0, 0, 2, 2, 0]);
}

async fn a_job_that_waits_goes_on_where_it_was(stage: Stage) {
    let id = stage.enqueue(stage.job("u")).await;
    let mut claimed = stage.claim("u", 1).await.remove(0);
    claimed.job.progress.attempts = 3;
    stage.settle(&claimed, JobEnding::Wait { until: after(5), reason: "circuit_open" }).await;
    let job = stage.store.job(id).await.unwrap().unwrap();
    assert_eq!((job.state, job.next_attempt_at, job.error.as_deref()), (JobState::Waiting, Some(after(5)), Some("circuit_open")));
    stage.store.tick(after(5), None).await.unwrap();
    let again = stage.claim_at("u", 1, after(5)).await.remove(0);
    assert_eq!((again.job.progress.attempts, again.job.crashes), (3, 0));
}

async fn what_waits_for_a_cause_that_is_gone_is_called_in_one_by_one(stage: Stage) {
    let wait = |upstream: &'static str, until, reason| {
        let stage = &stage;
        async move {
            let id = stage.enqueue(stage.job(upstream)).await;
            let claimed = stage.claim(upstream, 1).await.remove(0);
            stage.settle(&claimed, JobEnding::Wait { until, reason }).await;
            id
        }
    };
    let mut called = Vec::new();
    for _ in 0..450 {
        called.push(wait("u", after(3600), "keys_cooling").await);
    }
    let (soon, later) = (wait("u", after(1), "keys_cooling").await, after(3600));
    let others = [wait("u", later, "circuit_open").await, wait("v", later, "keys_cooling").await];
    let (mut next, mut batches) = (Some(Hasten::new("u".to_owned(), "keys_cooling", NOON)), Vec::new());
    while let Some(wish) = next.take() {
        let hastened = stage.store.hasten(wish).await.unwrap();
        batches.push(hastened.jobs);
        next = hastened.next;
    }
    assert_eq!(batches, [200, 200, 50]);
    let due = |id| {
        let stage = &stage;
        async move { stage.store.job(id).await.unwrap().unwrap().next_attempt_at.unwrap() }
    };
    let mut times = Vec::new();
    for id in called {
        times.push(due(id).await);
    }
    times.sort();
    let expected: Vec<Wall> = (0..450).map(|place| Wall(NOON.0 + place * 10)).collect();
    assert_eq!(times, expected, "a hundred in a second");
    assert_eq!(due(soon).await, after(1), "what comes soon is left alone");
    for other in others {
        assert_eq!(due(other).await, later);
    }
    assert_eq!(stage.store.tick(NOON, None).await.unwrap().due, 1, "the first goes at once");
}

async fn a_released_job_is_ready_at_once_and_no_crash(stage: Stage) {
    stage.enqueue(stage.job("u")).await;
    let claimed = stage.claim("u", 1).await.remove(0);
    stage.settle(&claimed, JobEnding::Release).await;
    let again = stage.claim("u", 1).await.remove(0);
    assert_eq!((again.job.progress.attempts, again.job.crashes), (0, 0));
}

async fn a_follow_up_is_there_exactly_when_its_job_is_over(stage: Stage) {
    stage.enqueue(stage.job("u")).await;
    let claimed = stage.claim("u", 1).await.remove(0);
    let follow = stage.job("callbacks");
    let settle = SettleJob { follow: vec![follow.clone()], ..settlement(&claimed, ok()) };
    assert_eq!(stage.store.settle(settle.clone()).await.unwrap(), Settled::Kept);
    assert_eq!(stage.store.settle(settle).await.unwrap(), Settled::Lost);
    let found = stage.claim("callbacks", 9).await;
    assert_eq!(found.iter().map(|claimed| claimed.job.id).collect::<Vec<_>>(), [follow.id]);
}

async fn who_asks_again_hears_what_the_settlement_came_to(stage: Stage) {
    let endings = [ok(), JobEnding::Wait { until: after(60), reason: "circuit_open" }, JobEnding::Release, JobEnding::Cancelled];
    for ending in endings {
        let expected = if matches!(ending, JobEnding::Cancelled) { Settled::Cancelled } else { Settled::Kept };
        stage.enqueue(stage.job("u")).await;
        let claimed = stage.claim("u", 1).await.remove(0);
        let follow = if expected == Settled::Kept { vec![stage.job("callbacks")] } else { Vec::new() };
        let settle = SettleJob { follow, ..settlement(&claimed, ending.clone()) };
        assert_eq!(stage.store.settle(settle.clone()).await.unwrap(), expected);
        let again = SettleJob { again: true, ..settle.clone() };
        assert_eq!(stage.store.settle(again.clone()).await.unwrap(), expected, "{ending:?}");
        assert_eq!(stage.claim("callbacks", 9).await.len(), settle.follow.len(), "it counts once");
        let other = SettleJob { ending: JobEnding::Failed { code: "503".to_owned() }, ..again };
        assert_eq!(stage.store.settle(other).await.unwrap(), Settled::Lost, "{ending:?} is not how it failed");
        stage.claim("u", 9).await;
        assert_eq!(stage.store.settle(settle).await.unwrap(), Settled::Lost);
    }
}

async fn a_queued_job_is_cancelled_at_once(stage: Stage) {
    let id = stage.enqueue(stage.job("u")).await;
    assert_eq!(stage.store.cancel(id, NOON).await.unwrap(), Cancelled::Now);
    assert!(stage.claim("u", 1).await.is_empty());
    assert_eq!(stage.store.cancel(id, NOON).await.unwrap(), Cancelled::Over(JobState::Cancelled));
    assert_eq!(stage.store.cancel(stage.id(NOON), NOON).await.unwrap(), Cancelled::Unknown);
}

async fn a_running_job_is_cancelled_when_its_worker_lets_go(stage: Stage) {
    let id = stage.enqueue(stage.job("u")).await;
    let claimed = stage.claim("u", 1).await.remove(0);
    assert_eq!(stage.store.cancel(id, NOON).await.unwrap(), Cancelled::Asked);
    assert_eq!(stage.store.renew(vec![claimed.lease], after(60)).await.unwrap(), [Renewed::Cancelling]);
    let retry = JobEnding::Wait { until: after(5), reason: "transient_failure" };
    assert_eq!(stage.settle(&claimed, retry).await, Settled::Cancelled);
    assert_eq!(stage.store.job(id).await.unwrap().unwrap().state, JobState::Cancelled);
}

async fn a_running_job_that_finishes_first_is_done(stage: Stage) {
    let id = stage.enqueue(stage.job("u")).await;
    let claimed = stage.claim("u", 1).await.remove(0);
    assert_eq!(stage.store.cancel(id, NOON).await.unwrap(), Cancelled::Asked);
    assert_eq!(stage.settle(&claimed, ok()).await, Settled::Kept);
    assert_eq!(stage.store.job(id).await.unwrap().unwrap().state, JobState::Done);
}

async fn lists_are_pages_newest_first(stage: Stage) {
    let mut ids = Vec::new();
    for seconds in 0..25 {
        ids.push(stage.enqueue(NewJob { id: stage.id(after(seconds)), ..stage.job("u") }).await);
    }
    ids.reverse();
    let (mut read, mut window) = (Vec::new(), PAGE);
    loop {
        let page = stage.store.jobs(JobFilter::default(), window).await.unwrap();
        read.extend(page.entries.iter().map(|job| job.id));
        let Some(next) = page.next else { break };
        window.after = Some(next);
    }
    assert_eq!(read, ids);
}

async fn lists_are_filtered(stage: Stage) {
    let mine = stage.enqueue(NewJob { correlation_id: Some("x".to_owned()), ..stage.job("a") }).await;
    let other = stage.enqueue(stage.job("b")).await;
    stage.claim("b", 1).await;
    let list = async |filter| -> Vec<_> { stage.store.jobs(filter, PAGE).await.unwrap().entries.iter().map(|job| job.id).collect() };
    assert_eq!(list(JobFilter { upstream: Some("a".to_owned()), ..JobFilter::default() }).await, [mine]);
    assert_eq!(list(JobFilter { state: Some(JobState::Running), ..JobFilter::default() }).await, [other]);
    assert_eq!(list(JobFilter { correlation_id: Some("x".to_owned()), ..JobFilter::default() }).await, [mine]);
    assert!(list(JobFilter { correlation_id: Some("y".to_owned()), ..JobFilter::default() }).await.is_empty());
}

async fn jobs_are_counted(stage: Stage) {
    for _ in 0..3 {
        stage.enqueue(stage.job("u")).await;
    }
    let claimed = stage.claim("u", 2).await;
    stage.settle(&claimed[0], ok()).await;
    let counts = stage.store.job_counts().await.unwrap();
    assert_eq!(counts.by_state, [1, 1, 0, 1, 0, 0]);
    assert_eq!(counts.oldest_queued, Some(NOON));
}

async fn old_jobs_are_forgotten_and_young_ones_are_not(stage: Stage) {
    let old = stage.enqueue(stage.job("u")).await;
    stage.settle_at(&stage.claim("u", 1).await[0], ok(), after(1)).await;
    let late = stage.enqueue(stage.job("u")).await;
    stage.settle_at(&stage.claim("u", 1).await[0], ok(), after(100)).await;
    let open = stage.enqueue(stage.job("u")).await;
    assert_eq!(stage.store.sweep_jobs(after(50), 100).await.unwrap(), 1);
    assert!(stage.store.job(old).await.unwrap().is_none());
    assert!(stage.store.job(late).await.unwrap().is_some());
    assert!(stage.store.job(open).await.unwrap().is_some());
}

async fn history_is_kept_to_its_end(stage: Stage) {
    let id = stage.enqueue(stage.job("u")).await;
    let mut claimed = stage.claim("u", 1).await.remove(0);
    let entry =
        |attempt| Attempted { attempt, status: "503".to_owned(), latency_ms: 1.5, outcome: "transient".to_owned(), at: "t".to_owned() };
    claimed.job.history = (1..=60).map(entry).collect();
    stage.settle(&claimed, ok()).await;
    let history = stage.store.job(id).await.unwrap().unwrap().history;
    assert_eq!((history.len(), history.last()), (MAX_HISTORY, Some(&entry(60))));
}

fn confidential(stage: &Stage) -> NewJob {
    let mut job = stage.job("u");
    job.request.path = "/x?page=2&api_key=planted".to_owned();
    job.request.headers = [("authorization", "Bearer planted"), ("accept", "a")].map(|(n, v)| (n.to_owned(), v.to_owned())).to_vec();
    job.callback = Some("https://h/hook?token=planted".to_owned());
    job
}

async fn a_job_that_is_over_forgets_what_its_caller_sent_in_confidence(stage: Stage) {
    let endings = [ok(), JobEnding::Failed { code: "503".to_owned() }, JobEnding::Cancelled];
    for ending in endings {
        let id = stage.enqueue(confidential(&stage)).await;
        let claimed = stage.claim("u", 1).await.remove(0);
        assert!(claimed.job.request.has_secrets());
        stage.store.settle(SettleJob { forgets: true, ..settlement(&claimed, ending) }).await.unwrap();
        forgotten(&stage, id).await;
    }
    let id = stage.enqueue(confidential(&stage)).await;
    assert_eq!(stage.store.cancel(id, after(1)).await.unwrap(), Cancelled::Now);
    forgotten(&stage, id).await;
}

async fn forgotten(stage: &Stage, id: seawall_core::id::CallId) {
    let job = stage.store.job(id).await.unwrap().unwrap();
    assert!(job.state.is_over());
    assert_eq!(job.request.path, "/x?page=2&api_key=[redacted]");
    let headers: Vec<_> = job.request.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(headers, [("authorization", "[redacted]"), ("accept", "a")]);
    assert_eq!(job.callback.as_deref(), Some("https://h/hook?token=[redacted]"));
}

async fn a_job_that_waits_keeps_what_it_has_to_send(stage: Stage) {
    let new = confidential(&stage);
    let id = stage.enqueue(new.clone()).await;
    let claimed = stage.claim("u", 1).await.remove(0);
    let ending = JobEnding::Wait { until: after(60), reason: "backoff" };
    stage.store.settle(SettleJob { forgets: true, ..settlement(&claimed, ending) }).await.unwrap();
    let job = stage.store.job(id).await.unwrap().unwrap();
    assert_eq!((job.request.headers, job.request.path, job.callback), (new.request.headers, new.request.path, new.callback));
}
