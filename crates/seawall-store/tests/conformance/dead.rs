//! Dead letters: stored, grouped, searched, replayed once, expired.

use crate::stage::{NOON, Stage, after, ok, on_each_backend, settlement};
use seawall_core::policy::{Door, Severity};
use seawall_core::record::Class;
use seawall_core::time::Wall;
use seawall_store::dead::{Expiry, Letter, LetterQuery, LetterStatus, NewLetter};
use seawall_store::job::{Attempted, Cancelled, JobEnding, JobOrigin, JobRequest, JobState, NewJob, Response, SettleJob};
use seawall_store::page::PageWindow;
use seawall_store::replay::Stepped;

on_each_backend!(
    a_dead_job_leaves_a_letter_with_everything_in_it,
    the_same_failures_are_one_issue,
    letters_are_found_by_what_they_are,
    pages_of_letters_cover_all_of_them_once,
    a_letter_is_replayed_once_at_a_time,
    a_replay_that_works_closes_the_letter,
    a_replay_that_fails_leaves_one_letter_that_says_so,
    a_replay_that_is_called_off_leaves_the_letter_open,
    a_discarded_letter_is_gone,
    letters_run_out_of_time,
);

const PAGE: PageWindow = PageWindow { after: None, limit: 100 };

pub(crate) fn letter(stage: &Stage, at: Wall) -> NewLetter {
    let entry = Attempted { attempt: 1, status: "404".to_owned(), latency_ms: 2.0, outcome: "permanent".to_owned(), at: at.to_string() };
    NewLetter {
        id: stage.id(at),
        door: Door::Jobs,
        upstream: "u".to_owned(),
        endpoint: "search".to_owned(),
        tenant: "t".to_owned(),
        caller: "c".to_owned(),
        url: "https://example.org/x".to_owned(),
        request: JobRequest { method: "POST".to_owned(), path: "/x".to_owned(), headers: Vec::new(), body: "body".into() },
        body_cut: false,
        class: Class::Permanent,
        reason: "permanent_failure".to_owned(),
        code: "404".to_owned(),
        detail: "no such thing".to_owned(),
        last_attempt_at: Some(at),
        attempts: 1,
        correlation_id: Some("corr".to_owned()),
        idempotency_key: None,
        enqueued_at: NOON,
        dead_at: at,
        expires_at: Wall(at.0 + 3_600_000),
        severity: Severity::Review,
        replayable: true,
        instructions: "look first".to_owned(),
        history: vec![entry],
    }
}

async fn open(stage: &Stage) -> u64 {
    stage.store.depths().await.unwrap().iter().map(|depth| depth.open).sum()
}

async fn all(stage: &Stage, filter: LetterQuery) -> Vec<Letter> {
    stage.store.letters(filter, PAGE).await.unwrap().entries
}

async fn a_dead_job_leaves_a_letter_with_everything_in_it(stage: Stage) {
    let id = stage.enqueue(stage.job("u")).await;
    let claimed = stage.claim("u", 1).await.remove(0);
    let new = NewLetter { id, ..letter(&stage, after(1)) };
    let said = Response { status: 404, headers: [("a", "b")].into_iter().collect(), body: "no".into(), truncated: false };
    let ending = JobEnding::Dead(Box::new(new.clone()));
    let settle = SettleJob { answer: Some(said.clone()), now: after(1), ..settlement(&claimed, ending) };
    stage.store.settle(settle).await.unwrap();
    let job = stage.store.job(id).await.unwrap().unwrap();
    assert_eq!((job.state, job.error.as_deref(), job.response), (JobState::Dead, Some("404"), Some(said)));
    let kept = stage.store.letter(id).await.unwrap().unwrap();
    assert_eq!(kept, Letter { letter: new, status: LetterStatus::Kept, replays: 0, replayed_by: None });
    stage.settle_at(&claimed, JobEnding::Dead(Box::new(letter(&stage, after(2)))), after(2)).await;
    assert_eq!(open(&stage).await, 1, "a lost lease leaves no letter");
}

async fn the_same_failures_are_one_issue(stage: Stage) {
    for seconds in [1, 2, 3] {
        stage.store.keep_letter(letter(&stage, after(seconds))).await.unwrap();
    }
    let twice = NewLetter { code: "timeout".to_owned(), ..letter(&stage, after(4)) };
    stage.store.keep_letter(twice.clone()).await.unwrap();
    stage.store.keep_letter(twice).await.unwrap();
    let issues = stage.store.issues().await.unwrap();
    let shape: Vec<_> = issues.iter().map(|issue| (issue.code.as_str(), issue.open, issue.total, issue.first_at, issue.last_at)).collect();
    assert_eq!(shape, [("timeout", 1, 1, after(4), after(4)), ("404", 3, 3, after(1), after(3))]);
    assert_eq!(open(&stage).await, 4);
}

async fn letters_are_found_by_what_they_are(stage: Stage) {
    let plain = letter(&stage, after(1));
    let pager = NewLetter { severity: Severity::Pager, class: Class::Auth, code: "401".to_owned(), ..letter(&stage, after(2)) };
    let other = NewLetter { upstream: "v".to_owned(), detail: "the needle".to_owned(), ..letter(&stage, after(3)) };
    let ids = [plain.id, pager.id, other.id];
    for new in [plain, pager, other] {
        stage.store.keep_letter(new).await.unwrap();
    }
    let find = async |filter: LetterQuery| -> Vec<_> { all(&stage, filter).await.iter().map(|found| found.letter.id).collect() };
    assert_eq!(find(LetterQuery::default()).await, [ids[2], ids[1], ids[0]]);
    assert_eq!(find(LetterQuery { upstream: Some("v".to_owned()), ..LetterQuery::default() }).await, [ids[2]]);
    assert_eq!(find(LetterQuery { class: Some(Class::Auth), ..LetterQuery::default() }).await, [ids[1]]);
    assert_eq!(find(LetterQuery { code: Some("404".to_owned()), ..LetterQuery::default() }).await, [ids[2], ids[0]]);
    assert_eq!(find(LetterQuery { severity: Some(Severity::Pager), ..LetterQuery::default() }).await, [ids[1]]);
    assert_eq!(find(LetterQuery { since: Some(after(2)), ..LetterQuery::default() }).await, [ids[2], ids[1]]);
    assert_eq!(find(LetterQuery { until: Some(after(2)), ..LetterQuery::default() }).await, [ids[0]]);
    assert_eq!(find(LetterQuery { text: Some("needle".to_owned()), ..LetterQuery::default() }).await, [ids[2]]);
    assert_eq!(find(LetterQuery { ids: vec![ids[0]], ..LetterQuery::default() }).await, [ids[0]]);
    assert!(find(LetterQuery { upstream: Some("nobody".to_owned()), ..LetterQuery::default() }).await.is_empty());
}

async fn pages_of_letters_cover_all_of_them_once(stage: Stage) {
    let mut ids = Vec::new();
    for seconds in 0..23 {
        let code = if seconds % 2 == 0 { "404" } else { "410" };
        let new = NewLetter { code: code.to_owned(), ..letter(&stage, after(seconds)) };
        ids.push(new.id);
        stage.store.keep_letter(new).await.unwrap();
    }
    ids.reverse();
    for filter in [LetterQuery::default(), LetterQuery { upstream: Some("u".to_owned()), ..LetterQuery::default() }] {
        let (mut read, mut window) = (Vec::new(), PageWindow { after: None, limit: 5 });
        loop {
            let page = stage.store.letters(filter.clone(), window).await.unwrap();
            assert!(page.entries.len() <= 5);
            read.extend(page.entries.iter().map(|found| found.letter.id));
            let Some(next) = page.next else { break };
            window.after = Some(next);
        }
        assert_eq!(read, ids);
    }
}

fn replay_of(stage: &Stage, new: &NewLetter) -> NewJob {
    NewJob { origin: JobOrigin::Replay { letter: new.id.to_string() }, ..stage.job("u") }
}

async fn a_letter_is_replayed_once_at_a_time(stage: Stage) {
    let new = letter(&stage, after(1));
    stage.store.keep_letter(new.clone()).await.unwrap();
    let (one, two) = (replay_of(&stage, &new), replay_of(&stage, &new));
    let first = one.id;
    assert_eq!(stage.replay_at(new.id, one, after(2)).await, Stepped::Started(first));
    assert_eq!(stage.replay_at(new.id, two, after(2)).await, Stepped::HeldBack);
    assert_eq!(stage.claim_at("u", 9, after(2)).await.len(), 1);
    assert_eq!(open(&stage).await, 0);
    assert!(!stage.store.discard_letter(new.id).await.unwrap(), "not while it is being replayed");
    assert_eq!(stage.replay_at(stage.id(NOON), stage.job("u"), after(2)).await, Stepped::HeldBack);
}

async fn a_replay_that_works_closes_the_letter(stage: Stage) {
    let new = letter(&stage, after(1));
    stage.store.keep_letter(new.clone()).await.unwrap();
    stage.replay_at(new.id, replay_of(&stage, &new), after(2)).await;
    let claimed = stage.claim_at("u", 1, after(2)).await.remove(0);
    stage.settle_at(&claimed, ok(), after(3)).await;
    let found = stage.store.letter(new.id).await.unwrap().unwrap();
    assert_eq!((found.status, found.replays, found.replayed_by), (LetterStatus::Replayed, 1, Some(claimed.job.id)));
    assert_eq!(open(&stage).await, 0);
    assert_eq!(stage.replay_at(new.id, replay_of(&stage, &new), after(4)).await, Stepped::HeldBack);
}

async fn a_replay_that_fails_leaves_one_letter_that_says_so(stage: Stage) {
    let new = letter(&stage, after(1));
    stage.store.keep_letter(new.clone()).await.unwrap();
    stage.replay_at(new.id, replay_of(&stage, &new), after(2)).await;
    let claimed = stage.claim_at("u", 1, after(2)).await.remove(0);
    let worse = NewLetter { code: "410".to_owned(), detail: "gone for good".to_owned(), attempts: 2, ..letter(&stage, after(3)) };
    stage.settle_at(&claimed, JobEnding::Dead(Box::new(worse)), after(3)).await;
    let letters = all(&stage, LetterQuery::default()).await;
    assert_eq!(letters.len(), 1);
    assert_eq!((letters[0].letter.id, letters[0].status, letters[0].replays), (new.id, LetterStatus::Kept, 1));
    assert_eq!((letters[0].letter.code.as_str(), letters[0].letter.attempts), ("410", 3));
    let issues: Vec<_> = stage.store.issues().await.unwrap().iter().map(|issue| (issue.code.clone(), issue.open)).collect();
    assert_eq!(issues, [("410".to_owned(), 1), ("404".to_owned(), 0)]);
}

async fn a_replay_that_is_called_off_leaves_the_letter_open(stage: Stage) {
    let new = letter(&stage, after(1));
    stage.store.keep_letter(new.clone()).await.unwrap();
    let job = replay_of(&stage, &new);
    let by = job.id;
    stage.replay_at(new.id, job, after(2)).await;
    assert_eq!(stage.store.cancel(by, after(3)).await.unwrap(), Cancelled::Now);
    assert_eq!(stage.store.letter(new.id).await.unwrap().unwrap().status, LetterStatus::Kept);
    assert_eq!(open(&stage).await, 1);
}

async fn a_discarded_letter_is_gone(stage: Stage) {
    let new = letter(&stage, after(1));
    stage.store.keep_letter(new.clone()).await.unwrap();
    assert!(stage.store.discard_letter(new.id).await.unwrap());
    assert!(!stage.store.discard_letter(new.id).await.unwrap());
    assert!(stage.store.letter(new.id).await.unwrap().is_none());
    assert_eq!(open(&stage).await, 0);
}

async fn letters_run_out_of_time(stage: Stage) {
    let (first, second) = (letter(&stage, after(1)), letter(&stage, after(2)));
    for new in [&first, &second] {
        stage.store.keep_letter(new.clone()).await.unwrap();
    }
    assert_eq!(stage.store.expire_letters(Wall(first.expires_at.0 - 1), 10).await.unwrap(), Expiry::default());
    let expired = stage.store.expire_letters(first.expires_at, 10).await.unwrap().unheeded;
    assert_eq!(expired.iter().map(|gone| (gone.id, gone.code.as_str())).collect::<Vec<_>>(), [(first.id, "404")]);
    assert_eq!(open(&stage).await, 1);
    assert!(stage.store.letter(first.id).await.unwrap().is_none());
    assert!(stage.store.letter(second.id).await.unwrap().is_some());
}
