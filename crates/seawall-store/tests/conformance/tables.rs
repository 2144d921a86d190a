//! Schedules, idempotency keys, replays of many letters, roll-ups, snapshots, alarms, audit, unnamed errors.

use crate::dead::letter;
use crate::stage::{NOON, Stage, after, ok, on_each_backend, settlement};
use seawall_core::admit::idempotency::{KeyClaim, KeyEnding, RequestFingerprint, ReserveAnswer};
use seawall_core::id::CallId;
use seawall_core::policy::Severity;
use seawall_core::record::rollup::Rollup;
use seawall_core::time::Nanos;
use seawall_store::alarm::Alarm;
use seawall_store::idempotency::{FinishKey, ReserveKey};
use seawall_store::job::{JobEnding, JobFilter, JobOrigin, NewJob, Response, SettleJob, Settled};
use seawall_store::notes::{AuditEntry, UnnamedGroup};
use seawall_store::page::PageWindow;
use seawall_store::replay::{Created, NewReplay, ReplayState, Stepped};
use seawall_store::rollup::RollupRow;
use seawall_store::schedule::{Firing, NewSubject, SubjectSource, TickReport};

on_each_backend!(
    a_tick_fires_once_however_many_look,
    a_subject_that_fails_is_tried_again_and_one_that_is_stopped_is_not,
    subjects_are_listed_and_removed,
    a_key_is_reserved_by_one_and_answered_to_the_next,
    one_of_many_at_once_gets_the_key,
    a_job_recognises_its_own_reservation,
    a_key_is_over_exactly_when_its_job_is,
    keys_run_out,
    one_replay_for_each_upstream,
    a_replay_steps_through_its_letters_once_and_counts_their_ends,
    a_paused_replay_does_not_step,
    rollups_are_written_whole_and_each_by_one_writer,
    snapshots_are_replaced,
    one_of_many_raises_an_alarm_and_one_clears_it,
    an_alarm_is_held_by_its_holder_until_another_takes_it_over,
    the_audit_list_is_newest_first,
    unnamed_errors_are_counted_and_named,
);

fn subject(name: &str, seconds: i64) -> NewSubject {
    NewSubject { schedule: "history".to_owned(), subject: name.to_owned(), source: SubjectSource::Config, next_at: after(seconds) }
}

fn firing(stage: &Stage, name: &str, tick: i64) -> Firing {
    let (schedule, subject) = ("history".to_owned(), name.to_owned());
    Firing { schedule, subject, tick: after(tick), next_at: after(tick + 60), job: stage.job("u"), now: after(tick) }
}

async fn a_tick_fires_once_however_many_look(stage: Stage) {
    assert_eq!(stage.store.put_subjects(vec![subject("alice", 10), subject("bob", 20)]).await.unwrap(), 2);
    assert_eq!(stage.store.put_subjects(vec![subject("alice", 0)]).await.unwrap(), 0, "it goes on as it was");
    assert!(stage.store.due_subjects(after(9), 10).await.unwrap().is_empty());
    let due = stage.store.due_subjects(after(15), 10).await.unwrap();
    assert_eq!(due.iter().map(|due| (due.subject.as_str(), due.due_at())).collect::<Vec<_>>(), [("alice", after(10))]);
    let other = stage.open_again().await;
    let (one, two) = (firing(&stage, "alice", 10), firing(&stage, "alice", 10));
    let (mine, theirs) = tokio::join!(stage.store.fire(one), other.fire(two));
    assert!(mine.unwrap() ^ theirs.unwrap(), "exactly one of them");
    assert_eq!(stage.store.job_counts().await.unwrap().by_state[0], 1);
    assert!(stage.store.due_subjects(after(69), 10).await.unwrap().iter().all(|due| due.subject == "bob"));
}

async fn a_subject_that_fails_is_tried_again_and_one_that_is_stopped_is_not(stage: Stage) {
    stage.store.put_subjects(vec![subject("alice", 0)]).await.unwrap();
    let report = async |report| stage.store.report_subject("history".to_owned(), "alice".to_owned(), report).await.unwrap();
    assert!(stage.store.fire(firing(&stage, "alice", 0)).await.unwrap());
    assert!(report(TickReport::Failed { error: "503".to_owned(), retry_at: Some(after(5)) }).await);
    let due = stage.store.due_subjects(after(5), 10).await.unwrap();
    assert_eq!((due[0].due_at(), due[0].consecutive_failures, due[0].last_error.as_deref()), (after(5), 1, Some("503")));
    assert!(stage.store.fire(firing(&stage, "alice", 5)).await.unwrap());
    assert!(report(TickReport::Ok { at: after(6) }).await);
    let all = stage.store.subjects(None, None, 10).await.unwrap();
    assert_eq!((all[0].consecutive_failures, all[0].last_ok_at, all[0].next_at), (0, Some(after(6)), after(65)));
    assert!(report(TickReport::Stopped { reason: "auth_failed".to_owned() }).await);
    assert!(stage.store.due_subjects(after(1000), 10).await.unwrap().is_empty());
    assert!(!stage.store.fire(firing(&stage, "alice", 65)).await.unwrap(), "not while it is stopped");
    assert!(stage.store.resume_subject("history".to_owned(), "alice".to_owned(), after(70)).await.unwrap());
    assert_eq!(stage.store.due_subjects(after(70), 10).await.unwrap().len(), 1);
}

async fn subjects_are_listed_and_removed(stage: Stage) {
    stage.store.put_subjects(["c", "a", "b"].map(|name| subject(name, 0)).to_vec()).await.unwrap();
    stage.store.put_subjects(vec![NewSubject { schedule: "other".to_owned(), ..subject("z", 0) }]).await.unwrap();
    let names = async |schedule: Option<&str>, after: Option<(&str, &str)>| -> Vec<String> {
        let after = after.map(|(schedule, subject)| (schedule.to_owned(), subject.to_owned()));
        let found = stage.store.subjects(schedule.map(str::to_owned), after, 2).await.unwrap();
        found.into_iter().map(|found| found.subject).collect()
    };
    assert_eq!(names(Some("history"), None).await, ["a", "b"]);
    assert_eq!(names(None, Some(("history", "b"))).await, ["c", "z"]);
    assert!(stage.store.remove_subject("history".to_owned(), "b".to_owned()).await.unwrap());
    assert!(!stage.store.remove_subject("history".to_owned(), "b".to_owned()).await.unwrap());
    assert_eq!(names(Some("history"), None).await, ["a", "c"]);
}

const PAGE: PageWindow = PageWindow { after: None, limit: 10 };
const HOUR: Nanos = Nanos::from_secs(3600);

fn wish(owner: Option<CallId>, seconds: i64) -> ReserveKey {
    let claim = KeyClaim { fingerprint: RequestFingerprint([1; 32]), lease: Nanos::from_secs(60), ttl: HOUR, upstream_honours_keys: false };
    ReserveKey { scope: [7; 32], claim, owner, now: after(seconds) }
}

fn done(reservation: u32, seconds: i64) -> FinishKey {
    let response = Response { status: 201, headers: [("a", "b")].into_iter().collect(), body: "made".into(), truncated: false };
    FinishKey { scope: [7; 32], reservation, ending: KeyEnding::Done, response: Some(response), ttl: HOUR, now: after(seconds) }
}

async fn a_key_is_reserved_by_one_and_answered_to_the_next(stage: Stage) {
    let ask = async |seconds| stage.store.reserve_key(wish(None, seconds)).await.unwrap();
    assert_eq!(ask(0).await.answer, ReserveAnswer::Proceed { reservation: 0 });
    assert_eq!(ask(1).await.answer, ReserveAnswer::InFlight { retry_at: after(60) });
    assert!(stage.store.finish_key(done(0, 2)).await.unwrap());
    let replayed = ask(3).await;
    assert_eq!((replayed.answer, replayed.stored), (ReserveAnswer::Replay, done(0, 2).response));
    assert!(!stage.store.finish_key(done(1, 4)).await.unwrap(), "not its reservation");
    let mut other = wish(None, 5);
    other.claim.fingerprint = RequestFingerprint([2; 32]);
    assert_eq!(stage.store.reserve_key(other).await.unwrap().answer, ReserveAnswer::Mismatch);
}

async fn one_of_many_at_once_gets_the_key(stage: Stage) {
    let ask = |_| {
        let store = stage.store.clone();
        tokio::spawn(async move { store.reserve_key(wish(None, 0)).await.unwrap().answer })
    };
    let mut proceed = 0;
    for asked in (0..8).map(ask).collect::<Vec<_>>() {
        match asked.await.unwrap() {
            ReserveAnswer::Proceed { .. } => proceed += 1,
            answer => assert_eq!(answer, ReserveAnswer::InFlight { retry_at: after(60) }),
        }
    }
    assert_eq!(proceed, 1);
}

async fn a_job_recognises_its_own_reservation(stage: Stage) {
    let (mine, other) = (Some(stage.id(NOON)), Some(stage.id(NOON)));
    let ask = async |owner, seconds| stage.store.reserve_key(wish(owner, seconds)).await.unwrap().answer;
    assert_eq!(ask(mine, 0).await, ReserveAnswer::Proceed { reservation: 0 });
    assert_eq!(ask(other, 1).await, ReserveAnswer::InFlight { retry_at: after(60) });
    assert_eq!(ask(mine, 90).await, ReserveAnswer::Proceed { reservation: 0 }, "after a crash, too");
    assert_eq!(ask(None, 91).await, ReserveAnswer::InFlight { retry_at: after(150) });
}

async fn a_key_is_over_exactly_when_its_job_is(stage: Stage) {
    let ask = async |scope: u8| {
        let wish = ReserveKey { scope: [scope; 32], ..wish(None, 5) };
        stage.store.reserve_key(wish).await.unwrap()
    };
    let mut settles = Vec::new();
    for scope in 1..=4 {
        let id = stage.enqueue(stage.job("u")).await;
        let own = ReserveKey { scope: [scope; 32], ..wish(Some(id), 0) };
        assert_eq!(stage.store.reserve_key(own).await.unwrap().answer, ReserveAnswer::Proceed { reservation: 0 });
        let claimed = stage.claim("u", 1).await.remove(0);
        let key = Some(FinishKey { scope: [scope; 32], ..done(0, 2) });
        settles.push(SettleJob { key, now: after(2), ..settlement(&claimed, ok()) });
    }
    // Of four settlements in one batch, one succeeds, one releases its key, one is a repetition, and one cannot be written.
    settles[1].key = Some(FinishKey { scope: [2; 32], ending: KeyEnding::Released, response: None, ..done(0, 2) });
    stage.store.settle(SettleJob { key: None, ..settles[2].clone() }).await.unwrap();
    settles[3].follow = vec![NewJob { id: stage.store.jobs(JobFilter::default(), PAGE).await.unwrap().entries[0].id, ..stage.job("u") }];
    let settle = |settle: SettleJob| {
        let store = stage.store.clone();
        tokio::spawn(async move { store.settle(settle).await.ok() })
    };
    let mut answers = Vec::new();
    for settling in settles.into_iter().map(settle).collect::<Vec<_>>() {
        answers.push(settling.await.unwrap());
    }
    assert_eq!(answers, [Some(Settled::Kept), Some(Settled::Kept), Some(Settled::Lost), None]);
    let kept = ask(1).await;
    assert_eq!((kept.answer, kept.stored), (ReserveAnswer::Replay, done(0, 2).response));
    assert_eq!(ask(2).await.answer, ReserveAnswer::Proceed { reservation: 0 });
    for untouched in [3, 4] {
        assert_eq!(ask(untouched).await.answer, ReserveAnswer::InFlight { retry_at: after(60) });
    }
}

async fn keys_run_out(stage: Stage) {
    stage.store.reserve_key(wish(None, 0)).await.unwrap();
    assert!(stage.store.finish_key(done(0, 0)).await.unwrap());
    assert_eq!(stage.store.sweep_keys(after(3599), 10).await.unwrap(), 0);
    assert_eq!(stage.store.sweep_keys(after(3600), 10).await.unwrap(), 1);
    let released = FinishKey { ending: KeyEnding::Released, response: None, ..done(0, 3602) };
    assert_eq!(stage.store.reserve_key(wish(None, 3601)).await.unwrap().answer, ReserveAnswer::Proceed { reservation: 0 });
    assert!(stage.store.finish_key(released).await.unwrap());
    assert_eq!(stage.store.reserve_key(wish(None, 3603)).await.unwrap().answer, ReserveAnswer::Proceed { reservation: 0 });
}

fn replay(stage: &Stage, upstreams: &[&str]) -> NewReplay {
    NewReplay {
        id: stage.id(NOON),
        name: "after the outage".to_owned(),
        who: "ops".to_owned(),
        filter: "{}".to_owned(),
        upstreams: upstreams.iter().map(|&upstream| upstream.to_owned()).collect(),
        rate: "10/s".to_owned(),
        canary: 3,
        created_at: NOON,
    }
}

async fn one_replay_for_each_upstream(stage: Stage) {
    let first = replay(&stage, &["b", "a"]);
    assert_eq!(stage.store.create_replay(first.clone()).await.unwrap(), Created::Started);
    assert_eq!(stage.store.create_replay(replay(&stage, &["Z", "b"])).await.unwrap(), Created::Underway(first.id));
    let apart = replay(&stage, &["Z"]);
    assert_eq!(stage.store.create_replay(apart.clone()).await.unwrap(), Created::Started, "what was refused holds nothing");
    assert!(stage.store.set_replay(first.id, ReplayState::Cancelled, after(1)).await.unwrap());
    assert!(!stage.store.set_replay(first.id, ReplayState::Running, after(2)).await.unwrap(), "what is over stays over");
    assert_eq!(stage.store.create_replay(replay(&stage, &["b"])).await.unwrap(), Created::Started);
    let page = stage.store.replays(PageWindow { after: None, limit: 10 }).await.unwrap();
    assert_eq!(page.entries.len(), 3);
    let found = stage.store.replay(first.id).await.unwrap().unwrap();
    assert_eq!((found.new, found.state, found.updated_at), (first, ReplayState::Cancelled, after(1)));
}

async fn a_replay_steps_through_its_letters_once_and_counts_their_ends(stage: Stage) {
    let letters = [3, 2, 1].map(|seconds| letter(&stage, after(seconds)));
    for new in &letters {
        stage.store.keep_letter(new.clone()).await.unwrap();
    }
    let task = replay(&stage, &["u"]);
    stage.store.create_replay(task.clone()).await.unwrap();
    let job = |letter: CallId| NewJob { origin: JobOrigin::Replay { letter: letter.to_string() }, ..stage.job("u") };
    for new in &letters[..2] {
        let job = job(new.id);
        let by = job.id;
        assert_eq!(stage.store.step_replay(task.id, new.id, Some(job), NOON).await.unwrap(), Stepped::Started(by));
    }
    let again = stage.store.step_replay(task.id, letters[0].id, Some(job(letters[0].id)), NOON).await.unwrap();
    assert_eq!(again, Stepped::Passed, "not twice, whoever asks");
    assert_eq!(stage.store.step_replay(task.id, letters[2].id, None, NOON).await.unwrap(), Stepped::HeldBack);
    let claimed = stage.claim("u", 9).await;
    assert_eq!(claimed.len(), 2);
    stage.settle(&claimed[0], ok()).await;
    stage.settle(&claimed[1], JobEnding::Dead(Box::new(letter(&stage, after(9))))).await;
    let found = stage.open_again().await.replay(task.id).await.unwrap().unwrap();
    let counts = found.counts;
    assert_eq!((counts.started, counts.worked, counts.failed, counts.held_back), (2, 1, 1, 1));
    assert_eq!(found.position, Some(letters[2].id));
}

async fn a_paused_replay_does_not_step(stage: Stage) {
    let new = letter(&stage, after(1));
    stage.store.keep_letter(new.clone()).await.unwrap();
    let task = replay(&stage, &["u"]);
    stage.store.create_replay(task.clone()).await.unwrap();
    let paused = ReplayState::Paused("breaker_open".to_owned());
    assert!(stage.store.set_replay(task.id, paused.clone(), after(1)).await.unwrap());
    assert_eq!(stage.store.replay(task.id).await.unwrap().unwrap().state, paused);
    assert_eq!(stage.store.step_replay(task.id, new.id, Some(stage.job("u")), after(2)).await.unwrap(), Stepped::NotRunning);
    assert!(stage.store.set_replay(task.id, ReplayState::Running, after(3)).await.unwrap());
    assert!(matches!(stage.store.step_replay(task.id, new.id, Some(stage.job("u")), after(4)).await.unwrap(), Stepped::Started(_)));
}

async fn rollups_are_written_whole_and_each_by_one_writer(stage: Stage) {
    let (one, other) = (stage.job("u").id, stage.job("u").id);
    let row = |seconds, upstream: &str, writer, retries, latency_us: u64| {
        let mut rollup = Rollup { retries, ..Rollup::default() };
        rollup.attempts.insert("transient".into(), retries);
        rollup.latency.add(Nanos(latency_us * 1000));
        RollupRow { start_at: after(seconds), upstream: upstream.to_owned(), endpoint: "e".to_owned(), writer, rollup }
    };
    let first = vec![row(0, "u", one, 3, 1000), row(900, "u", one, 1, 1), row(0, "v", one, 9, 1)];
    stage.store.put_rollups(first.clone()).await.unwrap();
    // A repetition after a lost reply counts nothing twice.
    stage.store.put_rollups(first).await.unwrap();
    let more = |n: u64| {
        let (store, more) = (stage.store.clone(), vec![row(0, "u", if n.is_multiple_of(2) { one } else { other }, 4, 9000)]);
        tokio::spawn(async move { store.put_rollups(more).await.unwrap() })
    };
    for put in (0..6).map(more).collect::<Vec<_>>() {
        put.await.unwrap();
    }
    let mut expected = [row(0, "u", one, 4, 9000), row(0, "u", other, 4, 9000)];
    expected.sort_by_key(|row| row.writer);
    assert_eq!(stage.store.rollups(NOON, after(900), Some("u".to_owned())).await.unwrap(), expected);
    assert_eq!(stage.store.rollups(NOON, after(901), None).await.unwrap().len(), 4);
    assert_eq!(stage.store.sweep_rollups(after(900)).await.unwrap(), 3);
}

async fn snapshots_are_replaced(stage: Stage) {
    assert_eq!(stage.store.snapshot("breakers".to_owned()).await.unwrap(), None);
    for (content, seconds) in [("one", 1), ("two", 2)] {
        stage.store.put_snapshot("breakers".to_owned(), content.into(), after(seconds)).await.unwrap();
    }
    assert_eq!(stage.store.snapshot("breakers".to_owned()).await.unwrap(), Some((after(2), "two".into())));
}

fn alarm(stage: &Stage, seconds: i64) -> Alarm {
    let (queue, severity, at) = ("u".to_owned(), Severity::Pager, after(seconds));
    Alarm { queue, severity, holder: stage.id(NOON), raised_at: at, seen_at: at }
}

async fn one_of_many_raises_an_alarm_and_one_clears_it(stage: Stage) {
    let other = stage.open_again().await;
    let wishes: Vec<Alarm> = (0..8).map(|_| alarm(&stage, 0)).collect();
    let raise = |(n, wish): (usize, &Alarm)| {
        let (store, wish) = (if n % 2 == 0 { stage.store.clone() } else { other.clone() }, wish.clone());
        tokio::spawn(async move { store.raise_alarm(wish).await.unwrap() })
    };
    let mut won = Vec::new();
    for raising in wishes.iter().enumerate().map(raise).collect::<Vec<_>>() {
        won.push(raising.await.unwrap());
    }
    assert_eq!(won.iter().filter(|won| **won).count(), 1, "{won:?}");
    let raised = wishes[won.iter().position(|won| *won).unwrap()].clone();
    assert_eq!(other.alarms().await.unwrap(), std::slice::from_ref(&raised));
    let review = Alarm { severity: Severity::Review, ..raised.clone() };
    assert!(other.raise_alarm(review.clone()).await.unwrap(), "each severity has its own");
    assert_eq!(stage.open_again().await.alarms().await.unwrap(), [raised.clone(), review.clone()]);
    let (mine, theirs) = tokio::join!(stage.store.clear_alarm(raised.clone()), other.clear_alarm(raised.clone()));
    assert!(mine.unwrap() ^ theirs.unwrap(), "exactly one of them");
    assert_eq!(stage.store.alarms().await.unwrap(), [review]);
    assert!(other.raise_alarm(raised).await.unwrap(), "it can be raised again");
}

async fn an_alarm_is_held_by_its_holder_until_another_takes_it_over(stage: Stage) {
    let raised = alarm(&stage, 0);
    assert!(stage.store.raise_alarm(raised.clone()).await.unwrap());
    let held = Alarm { seen_at: after(10), ..raised.clone() };
    assert!(stage.store.hold_alarm(raised.clone(), held.clone()).await.unwrap());
    let (one, two) = (alarm(&stage, 40), alarm(&stage, 40));
    assert!(!stage.store.hold_alarm(raised.clone(), one.clone()).await.unwrap(), "its holder was heard of since");
    assert!(!stage.store.clear_alarm(raised).await.unwrap());
    let other = stage.open_again().await;
    let (mine, theirs) = tokio::join!(stage.store.hold_alarm(held.clone(), one.clone()), other.hold_alarm(held.clone(), two.clone()));
    let (mine, theirs) = (mine.unwrap(), theirs.unwrap());
    assert!(mine ^ theirs, "exactly one of them");
    let holder = if mine { one } else { two };
    assert_eq!(stage.store.alarms().await.unwrap(), std::slice::from_ref(&holder));
    assert!(!stage.store.clear_alarm(held).await.unwrap(), "who comes back late holds nothing");
    assert!(stage.store.clear_alarm(holder).await.unwrap());
}

async fn the_audit_list_is_newest_first(stage: Stage) {
    for seconds in 0..5 {
        let (who, action, detail) = ("ops".to_owned(), format!("act-{seconds}"), "{}".to_owned());
        stage.store.record_deed(AuditEntry { at: after(seconds), who, action, detail }).await.unwrap();
    }
    let first = stage.store.audit(None, 2).await.unwrap();
    let rest = stage.store.audit(first.last().map(|last| last.number), 10).await.unwrap();
    let actions: Vec<&str> = first.iter().chain(&rest).map(|entry| entry.deed.action.as_str()).collect();
    assert_eq!(actions, ["act-4", "act-3", "act-2", "act-1", "act-0"]);
}

async fn unnamed_errors_are_counted_and_named(stage: Stage) {
    let error = |fingerprint: &str, seen, seconds| UnnamedGroup {
        fingerprint: fingerprint.to_owned(),
        upstream: "u".to_owned(),
        endpoint: "e".to_owned(),
        status: "418".to_owned(),
        member: (fingerprint == "b").then(|| ("/error/code".to_owned(), "teapot".to_owned())),
        seen,
        first_at: after(seconds),
        last_at: after(seconds),
        sample: format!("sample {seconds}"),
        named_as: None,
    };
    stage.store.note_unnamed(vec![error("b", 2, 1), error("a", 1, 2)]).await.unwrap();
    stage.store.note_unnamed(vec![error("b", 3, 5)]).await.unwrap();
    let found = stage.store.unnamed(10).await.unwrap();
    assert_eq!(found[0], UnnamedGroup { first_at: after(1), seen: 5, ..error("b", 5, 5) });
    assert_eq!(found[1].fingerprint, "a");
    assert!(stage.store.name_error("a".to_owned(), Some("permanent".to_owned())).await.unwrap());
    assert!(!stage.store.name_error("c".to_owned(), None).await.unwrap());
    let named = UnnamedGroup { named_as: Some("permanent".to_owned()), ..error("a", 1, 2) };
    assert_eq!(stage.store.unnamed(1).await.unwrap(), [named, found[0].clone()], "those with a name come besides, however old");
    stage.store.note_unnamed(vec![error("a", 1, 9)]).await.unwrap();
    assert_eq!(stage.store.unnamed(1).await.unwrap()[0].named_as.as_deref(), Some("permanent"), "a name stays");
}
