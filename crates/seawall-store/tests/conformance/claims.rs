//! Claims: which worker gets which job, in which order, and for how long.

use crate::stage::{LEASE, NOON, Stage, after, ok, on_each_backend};
use seawall_core::time::{Nanos, Wall};
use seawall_store::job::{
    Cancelled, ClaimRequest, Enqueued, Holder, JobEnding, JobOrigin, JobState, MIXED, NewJob, Renewed, SHORT_BODY, Settled,
};

on_each_backend!(
    a_job_is_claimed_by_exactly_one_of_many,
    what_was_enqueued_comes_back_whole,
    jobs_that_come_together_keep_what_is_theirs,
    a_long_body_comes_back_whole,
    a_short_body_comes_with_its_claim,
    a_job_for_later_is_not_claimed_before_its_time,
    the_next_due_time_is_known,
    a_clock_that_is_set_back_leaves_retries_what_remained_of_their_wait,
    higher_priority_goes_first_and_then_the_older,
    one_tenant_with_many_jobs_does_not_starve_one_with_few,
    retries_of_many_do_not_starve_newcomers,
    a_lane_is_claimed_by_itself,
    a_lane_that_nobody_serves_is_reported,
    a_lease_that_runs_out_gives_the_job_back_and_counts_a_crash,
    a_lease_that_its_own_process_finds_over_counts_no_crash,
    a_suspect_is_blamed_only_for_what_it_was_begun_before,
    a_renewed_lease_does_not_run_out,
    a_begun_send_is_known_after_its_lease_is_lost,
    a_begun_send_that_is_settled_leaves_nothing,
    the_rules_of_lost_workers_are_known_afterwards,
    a_late_worker_cannot_overwrite_its_successor,
    the_same_key_is_the_same_job,
    the_same_key_for_another_request_is_a_mistake,
    a_key_is_free_again_after_a_cancellation,
);

async fn a_job_is_claimed_by_exactly_one_of_many(stage: Stage) {
    let id = stage.enqueue(stage.job("u")).await;
    let claims = [stage.claim("u", 9), stage.claim("u", 9), stage.claim("u", 9), stage.claim("u", 9)];
    let mut got = Vec::new();
    for claim in claims {
        got.extend(claim.await);
    }
    assert_eq!(got.iter().map(|claimed| claimed.job.id).collect::<Vec<_>>(), [id]);
    assert_eq!(got[0].job.state, JobState::Running);
}

async fn what_was_enqueued_comes_back_whole(stage: Stage) {
    let mut job = stage.job("u");
    job.request.headers = vec![("a".to_owned(), "b".to_owned()), ("a".to_owned(), "ü".to_owned())];
    job.request.body = bytes::Bytes::from_static(b"\0\xff");
    job.idempotency_key = Some("key".to_owned());
    job.correlation_id = Some("corr".to_owned());
    job.callback = Some("https://example.org/x".to_owned());
    job.expires_at = Some(after(60));
    job.progress.attempts = 2;
    let expected = job.clone();
    stage.enqueue(job).await;
    let claimed = stage.claim("u", 1).await.remove(0).job;
    let read = stage.store.job(expected.id).await.unwrap().unwrap();
    for found in [&claimed, &read] {
        assert_eq!(found.request, expected.request);
        assert_eq!(found.progress, expected.progress);
        assert_eq!((&found.tenant, &found.caller, found.expires_at), (&expected.tenant, &expected.caller, expected.expires_at));
        assert_eq!(
            (&found.idempotency_key, &found.correlation_id, &found.callback),
            (&expected.idempotency_key, &expected.correlation_id, &expected.callback)
        );
        assert_eq!(found.created_at, NOON);
    }
}

/// Each job differs from its neighbours in another field.
async fn jobs_that_come_together_keep_what_is_theirs(stage: Stage) {
    let some = |is: bool, text: &str| is.then(|| text.to_owned());
    let jobs: Vec<NewJob> = (0_u8..200)
        .map(|n| {
            let is = |every: u8| n % every == 0;
            let mut job = stage.job(if is(8) { "v" } else { "u" });
            job.tenant = format!("t{}", n % 2);
            job.request.method = if is(10) { "POST" } else { "GET" }.to_owned();
            job.origin = if is(13) { JobOrigin::Notification } else { JobOrigin::Caller };
            job.caller = format!("c{}", n / 3);
            job.priority = i64::from(n % 4);
            job.idempotency_key = some(is(2), "key");
            job.correlation_id = some(is(3), "corr");
            job.callback = some(is(5), "https://example.org/x");
            job.expires_at = is(7).then(|| after(i64::from(n)));
            job.run_at = after(i64::from(n % 2));
            job.dedup = is(4).then_some([n; 32]);
            job.progress.attempts = u32::from(n % 3);
            job.request.path = "/p".repeat(if is(9) { 200 } else { 1 + usize::from(n % 2) });
            job.request.headers = if is(6) { vec![("a".to_owned(), "b".to_owned())] } else { Vec::new() };
            job.request.body = if is(11) { bytes::Bytes::from(vec![n; 5000]) } else { bytes::Bytes::from(vec![n; usize::from(n % 3)]) };
            job
        })
        .collect();
    stage.store.enqueue(jobs.clone(), NOON).await.unwrap();
    for job in jobs {
        let kept = stage.store.job(job.id).await.unwrap().unwrap();
        let mut expected = job.begun(NOON);
        expected.state = kept.state;
        assert_eq!(kept, expected);
        assert_eq!(kept.state, if kept.run_at > NOON { JobState::Waiting } else { JobState::Queued });
    }
}

async fn a_long_body_comes_back_whole(stage: Stage) {
    let mut job = stage.job("u");
    job.request.body = bytes::Bytes::from(vec![7; 300_000]);
    let id = stage.enqueue(job).await;
    let claimed = stage.claim("u", 1).await.remove(0);
    assert_eq!((claimed.body_left, claimed.job.request.body.len()), (Some(300_000), 0), "hundreds may be claimed before one is begun");
    assert_eq!(stage.store.body(claimed.lease).await.unwrap().unwrap(), vec![7; 300_000]);
    assert_eq!(stage.store.job(id).await.unwrap().unwrap().request.body.len(), 300_000);
}

async fn a_short_body_comes_with_its_claim(stage: Stage) {
    for length in [0, 1, 5_000, SHORT_BODY, SHORT_BODY + 1] {
        let mut job = stage.job("u");
        job.request.body = bytes::Bytes::from(vec![7; length]);
        stage.enqueue(job).await;
        let claimed = stage.claim("u", 1).await.remove(0);
        let expected = if length > SHORT_BODY { (0, Some(length)) } else { (length, None) };
        assert_eq!((claimed.job.request.body.len(), claimed.body_left), expected);
    }
}

async fn a_job_for_later_is_not_claimed_before_its_time(stage: Stage) {
    let mut job = stage.job("u");
    job.run_at = after(10);
    let id = stage.enqueue(job).await;
    assert_eq!(stage.store.job(id).await.unwrap().unwrap().state, JobState::Waiting);
    stage.store.tick(Wall(after(10).0 - 1), None).await.unwrap();
    assert!(stage.claim_at("u", 1, after(9)).await.is_empty());
    assert_eq!(stage.store.tick(after(10), None).await.unwrap().due, 1);
    assert_eq!(stage.claim_at("u", 1, after(10)).await.len(), 1);
}

async fn the_next_due_time_is_known(stage: Stage) {
    for seconds in [30, 10, 20] {
        let mut job = stage.job("u");
        job.run_at = after(seconds);
        stage.enqueue(job).await;
    }
    assert_eq!(stage.store.tick(NOON, None).await.unwrap().next, Some(after(10)));
    assert_eq!(stage.store.tick(after(10), None).await.unwrap().next, Some(after(20)));
}

async fn a_clock_that_is_set_back_leaves_retries_what_remained_of_their_wait(stage: Stage) {
    const DAY: i64 = 86_400;
    let (retry, named) = (stage.enqueue(stage.job("u")).await, NewJob { run_at: after(DAY + 60), ..stage.job("u") });
    let named = stage.enqueue(named).await;
    assert_eq!(stage.store.newest_job().await.unwrap(), Some(NOON));
    let claimed = stage.claim("u", 1).await.remove(0);
    stage.settle(&claimed, JobEnding::Wait { until: after(60), reason: "transient_failure" }).await;
    // A day earlier.
    let now = after(-DAY);
    assert_eq!(stage.store.set_back(now, Nanos::from_secs(DAY.unsigned_abs())).await.unwrap(), 1);
    let due = async |id| stage.store.job(id).await.unwrap().unwrap().next_attempt_at;
    assert_eq!((due(retry).await, due(named).await), (Some(after(60 - DAY)), Some(after(DAY + 60))), "what somebody named stays");
    assert_eq!(stage.store.set_back(now, Nanos::from_secs(DAY.unsigned_abs())).await.unwrap(), 0, "what was moved is near");
}

async fn higher_priority_goes_first_and_then_the_older(stage: Stage) {
    let mut expected = Vec::new();
    for priority in [0, 5, 0, 5] {
        let job = NewJob { priority, ..stage.job("u") };
        expected.push((-priority, stage.enqueue(job).await));
    }
    expected.sort_by_key(|(priority, _)| *priority);
    let got: Vec<_> = stage.claim("u", 9).await.into_iter().map(|claimed| claimed.job.id).collect();
    assert_eq!(got, expected.into_iter().map(|(_, id)| id).collect::<Vec<_>>());
}

async fn of_tenant(stage: &Stage, tenant: &str, count: usize, run_at: Wall) {
    let jobs = (0..count).map(|_| NewJob { tenant: tenant.to_owned(), run_at, ..stage.job("u") }).collect();
    stage.store.enqueue(jobs, NOON).await.unwrap();
}

async fn one_tenant_with_many_jobs_does_not_starve_one_with_few(stage: Stage) {
    of_tenant(&stage, "many", 1000, NOON).await;
    assert_eq!(stage.claim("u", 100).await.len(), 100);
    of_tenant(&stage, "few", 10, NOON).await;
    let next = stage.claim("u", 22).await;
    let few = next.iter().filter(|claimed| claimed.job.tenant == "few").count();
    assert!(few >= 10, "{few} of 10 came within 22");
}

async fn retries_of_many_do_not_starve_newcomers(stage: Stage) {
    of_tenant(&stage, "many", 500, after(5)).await;
    stage.store.tick(after(5), None).await.unwrap();
    of_tenant(&stage, "few", 10, NOON).await;
    let next = stage.claim_at("u", 22, after(5)).await;
    assert!(next.iter().filter(|claimed| claimed.job.tenant == "few").count() >= 10);
}

async fn a_lane_is_claimed_by_itself(stage: Stage) {
    stage.enqueue(stage.job("slow")).await;
    stage.enqueue(stage.job("quick")).await;
    let got = stage.claim("quick", 9).await;
    assert_eq!(got.iter().map(|claimed| claimed.job.upstream.as_str()).collect::<Vec<_>>(), ["quick"]);
}

async fn a_lane_that_nobody_serves_is_reported(stage: Stage) {
    for upstream in ["b", "a", "b"] {
        stage.enqueue(stage.job(upstream)).await;
    }
    assert_eq!(stage.store.tick(NOON, None).await.unwrap().lanes, ["a", "b"]);
}

async fn a_suspect_is_blamed_only_for_what_it_was_begun_before(stage: Stage) {
    stage.enqueue(stage.job("u")).await;
    let again = |seconds| {
        let stage = &stage;
        async move {
            stage.store.tick(after(seconds), None).await.unwrap();
            stage.claim_at("u", 1, after(seconds)).await.remove(0)
        }
    };
    let first = again(0).await;
    assert!(!stage.store.blame(first.lease).await.unwrap(), "nobody suspects it yet");
    for (seconds, crashes) in [(100, 1), (200, 2), (300, 2), (400, 2)] {
        assert_eq!(again(seconds).await.job.crashes, crashes, "{seconds}");
    }
    let begun = again(500).await;
    assert!(!stage.store.blame(first.lease).await.unwrap(), "not ours any more");
    for _ in 0..2 {
        assert!(stage.store.blame(begun.lease).await.unwrap(), "whoever did not hear it asks again");
    }
    assert_eq!(stage.store.job(begun.job.id).await.unwrap().unwrap().crashes, 3, "and it counts once");
    stage.settle_at(&begun, JobEnding::Release, after(500)).await;
    assert!(!stage.store.blame(begun.lease).await.unwrap(), "it is over");
    let begun = again(501).await;
    assert_eq!(begun.job.crashes, 2, "its worker lived on");
    assert!(stage.store.blame(begun.lease).await.unwrap());
    stage.settle_at(&begun, JobEnding::Wait { until: after(502), reason: "circuit_open" }, after(501)).await;
    let begun = again(502).await;
    assert_eq!(begun.job.crashes, 2);
    assert!(stage.store.blame(begun.lease).await.unwrap());
    assert_eq!(again(600).await.job.crashes, 3);
}

async fn a_lease_that_runs_out_gives_the_job_back_and_counts_a_crash(stage: Stage) {
    stage.enqueue(stage.job("u")).await;
    stage.claim("u", 1).await;
    assert_eq!(stage.store.tick(after(29), None).await.unwrap().recovered, 0);
    assert!(stage.claim_at("u", 1, after(29)).await.is_empty());
    assert_eq!(stage.store.tick(after(30), None).await.unwrap().recovered, 1);
    assert_eq!(stage.store.tick(after(30), None).await.unwrap().recovered, 0, "two who look do not both find it");
    let again = stage.claim_at("u", 1, after(30)).await;
    assert_eq!(again[0].job.crashes, 1);
    assert_eq!(again[0].job.progress.attempts, 0, "a crash is no attempt");
}

async fn a_lease_that_its_own_process_finds_over_counts_no_crash(stage: Stage) {
    stage.enqueue(stage.job("u")).await;
    // With the highest bit set: databases store tokens as signed numbers.
    let (us, others) = (Holder::new(0xf000_0001), Holder::new(0xf000_0002));
    let claim = async |now| {
        let wish = ClaimRequest { lanes: vec![("u".to_owned(), 1)], token: us.token(u32::MAX), lease: LEASE, now, rules: 0 };
        stage.store.claim(wish).await.unwrap().remove(0)
    };
    claim(NOON).await;
    assert_eq!(stage.store.tick(after(30), Some(us)).await.unwrap().recovered, 1);
    assert_eq!(claim(after(30)).await.job.crashes, 0, "nobody has vanished");
    for (seconds, crashes) in [(100, 1), (200, 2)] {
        assert_eq!(stage.store.tick(after(seconds), Some(others)).await.unwrap().recovered, 1);
        assert_eq!(claim(after(seconds)).await.job.crashes, crashes);
    }
    stage.store.tick(after(300), Some(us)).await.unwrap();
    let suspect = claim(after(300)).await;
    assert!(stage.store.blame(suspect.lease).await.unwrap());
    assert_eq!(stage.store.tick(after(400), Some(us)).await.unwrap().recovered, 1);
    assert_eq!(claim(after(400)).await.job.crashes, 2, "a suspect is not blamed for a worker that lives");
}

async fn a_begun_send_is_known_after_its_lease_is_lost(stage: Stage) {
    let (id, other) = (stage.enqueue(stage.job("u")).await, stage.enqueue(stage.job("u")).await);
    let claimed = stage.claim("u", 2).await;
    let begun = claimed.iter().find(|claimed| claimed.job.id == id).unwrap();
    assert_eq!(begun.job.begun_at, None);
    for seconds in [1, 2] {
        assert!(stage.store.begin_send(begun.lease, after(seconds)).await.unwrap(), "whoever did not hear it asks again");
    }
    stage.store.tick(after(30), None).await.unwrap();
    assert!(!stage.store.begin_send(begun.lease, after(31)).await.unwrap(), "it is not ours any more");
    let again = stage.claim_at("u", 2, after(31)).await;
    let at = |wanted| again.iter().find(|claimed| claimed.job.id == wanted).unwrap().job.begun_at;
    assert_eq!((at(id), at(other)), (Some(after(2)), None));
    for one in &again {
        stage.settle_at(one, JobEnding::Release, after(32)).await;
    }
    let last = stage.claim_at("u", 2, after(33)).await;
    assert_eq!(last.iter().filter(|claimed| claimed.job.begun_at == Some(after(2))).count(), 1, "nobody has found out meanwhile");
}

async fn the_rules_of_lost_workers_are_known_afterwards(stage: Stage) {
    stage.enqueue(stage.job("u")).await;
    let lost = async |seconds: i64, rules: i64| {
        let wish =
            ClaimRequest { lanes: vec![("u".to_owned(), 1)], token: seconds.unsigned_abs(), lease: LEASE, now: after(seconds), rules };
        let claimed = stage.store.claim(wish).await.unwrap().remove(0);
        assert_eq!(claimed.rules, rules);
        stage.store.tick(after(seconds + 30), None).await.unwrap();
        claimed.job.lost_under
    };
    assert_eq!((lost(0, 7).await, lost(30, 7).await, lost(60, 8).await, lost(90, 7).await), (None, Some(7), Some(7), Some(MIXED)));
    assert_eq!(lost(120, 7).await, Some(MIXED));
}

async fn a_begun_send_that_is_settled_leaves_nothing(stage: Stage) {
    stage.enqueue(stage.job("u")).await;
    let first = stage.claim("u", 1).await.remove(0);
    assert!(stage.store.begin_send(first.lease, NOON).await.unwrap());
    stage.settle(&first, JobEnding::Wait { until: after(1), reason: "transient_failure" }).await;
    stage.store.tick(after(1), None).await.unwrap();
    assert_eq!(stage.claim_at("u", 1, after(1)).await[0].job.begun_at, None);
}

async fn a_renewed_lease_does_not_run_out(stage: Stage) {
    stage.enqueue(stage.job("u")).await;
    let claimed = stage.claim("u", 1).await.remove(0);
    assert_eq!(stage.store.renew(vec![claimed.lease], after(20) + LEASE).await.unwrap(), [Renewed::Held]);
    assert_eq!(stage.store.tick(after(49), None).await.unwrap().recovered, 0);
    assert_eq!(stage.store.tick(after(50), None).await.unwrap().recovered, 1);
    assert_eq!(stage.store.renew(vec![claimed.lease], after(99)).await.unwrap(), [Renewed::Lost]);
}

async fn a_late_worker_cannot_overwrite_its_successor(stage: Stage) {
    let id = stage.enqueue(stage.job("u")).await;
    let first = stage.claim("u", 1).await.remove(0);
    stage.store.tick(after(30), None).await.unwrap();
    let second = stage.claim_at("u", 1, after(30)).await.remove(0);
    let late = JobEnding::Wait { until: after(90), reason: "transient_failure" };
    assert_eq!(stage.settle_at(&first, late, after(31)).await, Settled::Lost);
    assert_eq!(stage.store.job(id).await.unwrap().unwrap().state, JobState::Running);
    assert_eq!(stage.settle_at(&second, ok(), after(32)).await, Settled::Kept);
    assert_eq!(stage.settle_at(&first, JobEnding::Cancelled, after(33)).await, Settled::Lost);
    assert_eq!(stage.settle_at(&second, ok(), after(34)).await, Settled::Lost, "nothing ends twice");
    assert_eq!(stage.store.job(id).await.unwrap().unwrap().state, JobState::Done);
}

async fn the_same_key_is_the_same_job(stage: Stage) {
    let first = NewJob { dedup: Some([9; 32]), ..stage.job("u") };
    let second = NewJob { id: stage.id(NOON), ..first.clone() };
    let id = stage.enqueue(first).await;
    assert_eq!(stage.store.enqueue(vec![second.clone()], NOON).await.unwrap(), [Enqueued::Known(id, JobState::Queued)]);
    let claimed = stage.claim("u", 9).await;
    assert_eq!(claimed.len(), 1);
    stage.settle(&claimed[0], ok()).await;
    assert_eq!(stage.store.enqueue(vec![second], NOON).await.unwrap(), [Enqueued::Known(id, JobState::Done)]);
}

async fn the_same_key_for_another_request_is_a_mistake(stage: Stage) {
    let first = NewJob { dedup: Some([9; 32]), ..stage.job("u") };
    let other = NewJob { id: stage.id(NOON), fingerprint: [2; 32], ..first.clone() };
    let id = stage.enqueue(first).await;
    let twice = NewJob { dedup: Some([8; 32]), ..stage.job("u") };
    let again = NewJob { id: stage.id(NOON), ..twice.clone() };
    let expected = [Enqueued::Mismatch(id), Enqueued::New(twice.id), Enqueued::Known(twice.id, JobState::Queued)];
    assert_eq!(stage.store.enqueue(vec![other, twice, again], NOON).await.unwrap(), expected, "also within one batch");
}

async fn a_key_is_free_again_after_a_cancellation(stage: Stage) {
    let first = NewJob { dedup: Some([9; 32]), ..stage.job("u") };
    let second = NewJob { id: stage.id(NOON), ..first.clone() };
    let id = stage.enqueue(first).await;
    assert_eq!(stage.store.cancel(id, NOON).await.unwrap(), Cancelled::Now);
    assert_eq!(stage.store.enqueue(vec![second.clone()], NOON).await.unwrap(), [Enqueued::New(second.id)]);
}
