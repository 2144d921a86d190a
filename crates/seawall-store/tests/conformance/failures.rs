//! The embedded store on faulty disks and damaged files.

use crate::disks::{ReadOnly, SmallDisk};
use crate::stage::{LEASE, NOON, Stage, ok, settlement};
use seawall_store::job::{ClaimRequest, JobState, NewJob, SettleJob, Settled};
use seawall_store::location::Location;
use seawall_store::{Error, Store};
use std::fs;
use std::path::Path;
use std::sync::Arc;

#[tokio::test]
async fn a_full_disk_refuses_what_is_new_finishes_what_runs_and_recovers_by_itself() {
    let disk = SmallDisk::mount();
    let stage = Stage::at(Location::Sqlite(disk.path("seawall.db")), None).await;
    let running = stage.enqueue(stage.job("u")).await;
    let claimed = stage.claim("u", 1).await.remove(0);
    let large = || {
        let mut job = stage.job("u");
        job.request.body = vec![7; 60_000].into();
        job
    };
    let mut kept = vec![running];
    let refused = loop {
        let job = large();
        let id = job.id;
        match stage.store.enqueue(vec![job], NOON).await {
            Ok(_) => kept.push(id),
            Err(error) => break error,
        }
        assert!(kept.len() < 1000, "a disk of eight megabytes gets full");
    };
    assert_eq!(refused, Error::Full);
    assert!(refused.passes());
    assert!(kept.len() > 10, "there was room for some");
    assert_eq!(stage.settle(&claimed, ok()).await, Settled::Kept, "what runs can be finished");
    assert_eq!(stage.store.enqueue(vec![large()], NOON).await, Err(Error::Full), "what did not fit does not fit now");
    for id in &kept {
        assert!(stage.store.job(*id).await.unwrap().is_some(), "what was acknowledged is there");
    }
    disk.grow();
    let late = large();
    let id = late.id;
    stage.store.enqueue(vec![late], NOON).await.expect("works again once there is room");
    assert_eq!(stage.store.job(id).await.unwrap().unwrap().state, JobState::Queued);
    assert_eq!(stage.store.job(running).await.unwrap().unwrap().state, JobState::Done);
}

/// Creates a closed database with some jobs.
async fn written(path: &Path, jobs: usize) {
    let stage = Stage::at(Location::Sqlite(path.to_owned()), None).await;
    let body = vec![9; 2000];
    let job =
        || NewJob { request: seawall_store::job::JobRequest { body: body.clone().into(), ..stage.job("u").request }, ..stage.job("u") };
    stage.store.enqueue((0..jobs).map(|_| job()).collect(), NOON).await.unwrap();
    drop(stage);
    let db = rusqlite::Connection::open(path).unwrap();
    // Checkpoints the log, so that the file is complete.
    let busy: i64 = db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0)).unwrap();
    assert_eq!(busy, 0);
}

#[tokio::test]
async fn a_database_that_cannot_be_written_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("seawall.db");
    written(&path, 3).await;
    let read_only = ReadOnly::mount(folder);
    let error = Store::open(&Location::Sqlite(path)).await.unwrap_err();
    assert!(matches!(error, Error::ReadOnly(_)), "{error:?}");
    drop(read_only);
}

#[tokio::test]
async fn a_truncated_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("seawall.db");
    written(&path, 200).await;
    let length = fs::metadata(&path).unwrap().len();
    fs::File::options().write(true).open(&path).unwrap().set_len(length / 2).unwrap();
    let error = Store::open(&Location::Sqlite(path)).await.unwrap_err();
    assert!(matches!(error, Error::Damaged(_)), "{error:?}");
    assert!(!error.passes(), "waiting does not mend it");
}

#[tokio::test]
async fn a_file_of_something_else_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("seawall.db");
    fs::write(&path, vec![b'x'; 20_000]).unwrap();
    let error = Store::open(&Location::Sqlite(path)).await.unwrap_err();
    assert!(matches!(error, Error::Damaged(_)), "{error:?}");
}

#[tokio::test]
async fn a_flipped_page_is_refused_or_harmless_and_never_read_as_work() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("seawall.db");
    written(&path, 200).await;
    let whole = fs::read(&path).unwrap();
    let mut refused = 0;
    for page in 0..whole.len() / 4096 {
        let mut bytes = whole.clone();
        // A page begins with its type and its number of cells.
        let start = if page == 0 { 100 } else { page * 4096 };
        bytes[start..start + 8].iter_mut().for_each(|byte| *byte ^= 0xff);
        let damaged = folder.path().join(format!("{page}.db"));
        fs::write(&damaged, &bytes).unwrap();
        match Store::open(&Location::Sqlite(damaged)).await {
            Err(Error::Damaged(_)) => refused += 1,
            Err(error) => panic!("page {page}: {error:?}"),
            // A page without structure, such as an overflow page of a long value.
            Ok(store) => {
                let lanes = vec![("u".to_owned(), 500)];
                drop(store.claim(ClaimRequest { lanes, token: 1, lease: LEASE, now: NOON, rules: 0 }).await);
            }
        }
    }
    assert!(refused * 10 > whole.len() / 4096 * 9, "{refused} of {} were noticed", whole.len() / 4096);
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("seawall.db");
    written(&path, 3).await;
    rusqlite::Connection::open(&path).unwrap().pragma_update(None, "user_version", 9999).unwrap();
    let error = Store::open(&Location::Sqlite(path.clone())).await.unwrap_err();
    assert!(matches!(error, Error::NewerSchema { found: 9999, .. }), "{error:?}");
    let version: u32 = rusqlite::Connection::open(&path).unwrap().pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    assert_eq!(version, 9999);
}

#[tokio::test]
async fn a_write_that_fails_does_not_fail_its_neighbours() {
    let stage = Stage::sqlite().await;
    let twice = stage.job("u");
    stage.enqueue(twice.clone()).await;
    let asked: Vec<_> = (0..20)
        .map(|n| if n % 4 == 0 { twice.clone() } else { stage.job("u") })
        .map(|job| {
            let store = stage.store.clone();
            tokio::spawn(async move { store.enqueue(vec![job], NOON).await.is_ok() })
        })
        .collect();
    let mut kept = 0;
    for answer in asked {
        kept += u64::from(answer.await.unwrap());
    }
    assert_eq!(kept, 15, "an id that is there is a mistake of one");
    assert_eq!(stage.store.job_counts().await.unwrap().by_state[0], 16);
}

#[tokio::test]
async fn a_settlement_that_cannot_be_written_leaves_the_job_running() {
    let stage = Stage::sqlite().await;
    let id = stage.enqueue(stage.job("u")).await;
    let claimed = stage.claim("u", 1).await.remove(0);
    // Its id is taken, so the whole settlement is rolled back.
    let settle = SettleJob { follow: vec![NewJob { id, ..stage.job("u") }], ..settlement(&claimed, ok()) };
    assert!(stage.store.settle(settle).await.is_err());
    assert_eq!(stage.store.job(id).await.unwrap().unwrap().state, JobState::Running);
    assert_eq!(stage.settle(&claimed, ok()).await, Settled::Kept);
}

#[tokio::test]
async fn an_end_that_cannot_be_written_is_no_end_of_the_others_that_were_handed_in_with_it() {
    let stage = Stage::sqlite().await;
    stage.store.enqueue((0..4).map(|_| stage.job("u")).collect(), NOON).await.unwrap();
    let claimed = stage.claim("u", 4).await;
    let mut settles: Vec<SettleJob> = claimed.iter().map(|claimed| settlement(claimed, ok())).collect();
    // Its id is taken.
    settles[2].follow = vec![NewJob { id: claimed[0].job.id, ..stage.job("u") }];
    let answers = stage.store.settle_all(settles.iter().cloned().map(Arc::new).collect()).await;
    assert!(answers[2].is_err());
    for ((claimed, answer), settle) in claimed.iter().zip(answers).zip(settles) {
        let state = stage.store.job(claimed.job.id).await.unwrap().unwrap().state;
        assert_eq!(state, if answer.is_ok() { JobState::Done } else { JobState::Running }, "an answer is the truth");
        let again = SettleJob { again: true, follow: Vec::new(), ..settle };
        assert_eq!(stage.store.settle(again).await.unwrap(), Settled::Kept, "and it can be asked for once more");
    }
}
