//! Upgrades of databases of earlier versions keep every job in its state.

use crate::cluster::Cluster;
use crate::stage::{NOON, Stage, after, ok};
use seawall_core::id::CallId;
use seawall_core::rng::Rng;
use seawall_core::time::Wall;
use seawall_store::job::{Cancelled, Enqueued, JobFilter, JobState, NewJob, Renewed, Settled};
use seawall_store::location::Location;
use seawall_store::page::PageWindow;
use std::collections::HashSet;

/// The migrations up to the version that stored a job's state in its row.
const SQLITE: [&str; 6] = [
    include_str!("../../src/sqlite/migrations/0001.sql"),
    include_str!("../../src/sqlite/migrations/0002.sql"),
    include_str!("../../src/sqlite/migrations/0003.sql"),
    include_str!("../../src/sqlite/migrations/0004.sql"),
    include_str!("../../src/sqlite/migrations/0005.sql"),
    include_str!("../../src/sqlite/migrations/0006.sql"),
];
const POSTGRES: [&str; 5] = [
    include_str!("../../src/postgres/migrations/0001.sql"),
    include_str!("../../src/postgres/migrations/0002.sql"),
    include_str!("../../src/postgres/migrations/0003.sql"),
    include_str!("../../src/postgres/migrations/0004.sql"),
    include_str!("../../src/postgres/migrations/0005.sql"),
];
const STATES: [JobState; 6] = [JobState::Queued, JobState::Running, JobState::Waiting, JobState::Done, JobState::Dead, JobState::Cancelled];

fn ids() -> Vec<CallId> {
    let mut rng = Rng::seeded(4711);
    (0..6).map(|number| CallId::new(after(number), &mut rng)).collect()
}

/// One job in each state, as written by the earlier version. The done job has a key and a response, and the running job is to be cancelled.
fn rows(bytes: impl Fn(&[u8]) -> String) -> String {
    let row = |(state, id): (usize, CallId)| {
        let (over, done) = (state >= 3, state == 3);
        let number = NOON.0 + i64::try_from(state).unwrap() * 1000;
        let finished = if over { number.to_string() } else { "NULL".to_owned() };
        let (dedup, answer) = if done { (bytes(&[9; 32]), bytes(b"yes")) } else { ("NULL".to_owned(), "NULL".to_owned()) };
        let (status, headers) = if done { ("200", "'[[\"x\",\"y\"]]'") } else { ("NULL", "NULL") };
        let (id, fingerprint) = (bytes(&id.to_bytes()), bytes(&[1; 32]));
        format!(
            "({id}, {state}, 'u', 't', 'c', 0, {state}, {number}, 3, 77, {NOON}, 1, {NOON}, {NOON}, {finished}, '2 0 0 0 0 0 0', \
             'timeout', {dedup}, {fingerprint}, 'GET', '/p', '[]', '[]', {status}, 0, {headers}, {body}, {answer}, {cancel})",
            NOON = NOON.0,
            body = bytes(b"asked"),
            cancel = i32::from(state == 1),
        )
    };
    let rows: Vec<String> = ids().into_iter().enumerate().map(row).collect();
    format!(
        "INSERT INTO jobs (id, state, upstream, tenant, caller, priority, turn, due, claim, token, lease_until, crashes, run_at, created_at, \
         finished_at, progress, error, dedup, fingerprint, method, path, history, headers, response_status, response_cut, response_headers, \
         body, response_body, cancel) VALUES {}",
        rows.join(", ")
    )
}

#[tokio::test]
async fn a_database_of_an_earlier_version_keeps_every_job_where_it_was_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("seawall.db");
    let db = rusqlite::Connection::open(&path).unwrap();
    db.execute_batch(&SQLITE.join(";")).unwrap();
    db.execute_batch(&rows(|bytes| format!("x'{}'", hex(bytes)))).unwrap();
    db.pragma_update(None, "user_version", u32::try_from(SQLITE.len()).unwrap()).unwrap();
    drop(db);
    everything_is_there(Stage::at(Location::Sqlite(path), Some(folder)).await).await;
}

#[tokio::test]
async fn a_database_of_an_earlier_version_keeps_every_job_where_it_was_on_postgres() {
    let url = Cluster::shared().database().await;
    let name = url.rsplit('/').next().unwrap();
    let steps = format!(
        "CREATE SCHEMA seawall; SET search_path = seawall; CREATE TABLE schema (version INTEGER NOT NULL); INSERT INTO schema VALUES ({}); {}; {}",
        POSTGRES.len(),
        POSTGRES.join(";"),
        rows(|bytes| format!("'\\x{}'::bytea", hex(bytes)))
    );
    Cluster::shared().execute(name, &steps).await;
    everything_is_there(Stage::at(Location::Postgres(url), None).await).await;
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn everything_is_there(stage: Stage) {
    let (store, ids) = (&stage.store, ids());
    assert_eq!(store.job_counts().await.unwrap().by_state, [1; 6]);
    for (id, state) in ids.iter().zip(STATES) {
        let job = store.job(*id).await.unwrap().unwrap();
        assert_eq!((job.state, job.crashes, job.progress.attempts, &job.request.body[..]), (state, 1, 2, &b"asked"[..]));
        assert_eq!(job.finished_at.is_some(), state.is_over());
        assert_eq!(job.response.map(|response| response.body), (state == JobState::Done).then_some("yes".into()));
        let listed =
            store.jobs(JobFilter { state: Some(state), ..JobFilter::default() }, PageWindow { after: None, limit: 9 }).await.unwrap();
        assert_eq!(listed.entries.iter().map(|job| job.id).collect::<Vec<_>>(), [*id], "{state:?}");
    }
    // The key of the done job still belongs to it.
    let again = NewJob { dedup: Some([9; 32]), fingerprint: [1; 32], ..stage.job("u") };
    assert_eq!(store.enqueue(vec![again], NOON).await.unwrap(), [Enqueued::Known(ids[3], JobState::Done)]);
    // Jobs with expired leases and due jobs can be claimed, along with queued and new ones.
    let new = stage.enqueue(stage.job("u")).await;
    let tick = store.tick(after(10), None).await.unwrap();
    assert_eq!((tick.recovered, tick.due), (1, 1));
    let claimed = stage.claim_at("u", 9, after(10)).await;
    let seen: HashSet<CallId> = claimed.iter().map(|one| one.job.id).collect();
    assert_eq!(seen, HashSet::from([ids[0], ids[1], ids[2], new]));
    for one in &claimed {
        let expected = if one.job.id == ids[1] { Renewed::Cancelling } else { Renewed::Held };
        assert_eq!(store.renew(vec![one.lease], after(60)).await.unwrap(), [expected]);
        assert_eq!(stage.settle_at(one, ok(), after(11)).await, Settled::Kept);
    }
    assert_eq!(store.cancel(ids[0], after(12)).await.unwrap(), Cancelled::Over(JobState::Done));
    assert_eq!(store.sweep_jobs(Wall(after(3600).0), 100).await.unwrap(), 7);
    assert_eq!(store.job_counts().await.unwrap().by_state, [0; 6]);
}
