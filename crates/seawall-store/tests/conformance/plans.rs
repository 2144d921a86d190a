//! Query plans of the server: they must not depend on the size of a table at planning time, nor on dead rows.

use crate::cluster::Cluster;
use crate::dead::letter;
use crate::stage::{NOON, Stage, after, ok, settlement};
use seawall_core::time::Nanos;
use seawall_store::job::{ClaimRequest, JobEnding, JobState, NewJob, Renewed, Settled};
use seawall_store::location::Location;
use seawall_store::{dead, job, page::PageWindow};
use std::collections::HashSet;
use std::time::Duration;

async fn live(stage: &Stage, jobs: usize) {
    let many = (0..jobs).map(|_| stage.job("u")).collect();
    stage.store.enqueue(many, NOON).await.unwrap();
    while let claimed @ [_, ..] = &stage.claim("u", 64).await[..] {
        for one in claimed {
            stage.settle(one, ok()).await;
        }
    }
    stage.store.tick(after(1), None).await.unwrap();
}

#[tokio::test]
async fn no_plan_that_was_made_for_few_jobs_reads_all_of_many() {
    let database = Cluster::shared().database().await;
    let stage = Stage::at(Location::Postgres(database.clone()), None).await;
    live(&stage, 2).await;
    live(&stage, 300).await;
    for state in [JobState::Queued, JobState::Done] {
        let filter = job::JobFilter { state: Some(state), ..job::JobFilter::default() };
        stage.store.jobs(filter, PageWindow { after: None, limit: 5 }).await.unwrap();
    }
    stage.store.job_counts().await.unwrap();
    // Statistics of a connection are complete after its end.
    drop(stage);
    let (client, connection) = tokio_postgres::connect(&database, tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    others_are_gone(&client).await;
    // Creating an index reads a table as well, and so do counts and lists of queued or claimed jobs.
    let read = "SELECT relname::text, seq_scan, idx_scan, (SELECT count(*) FROM pg_indexes WHERE tablename = relname) \
                + CASE WHEN relname IN ('queue', 'claims') THEN 3 ELSE 0 END \
                FROM pg_stat_user_tables WHERE schemaname = 'seawall' AND relname IN ('jobs', 'queue', 'claims', 'ended')";
    for read in client.query(read, &[]).await.unwrap() {
        let (table, whole, by_index, indexes): (String, i64, i64, i64) = (read.get(0), read.get(1), read.get(2), read.get(3));
        assert!(whole <= indexes && by_index > 2, "{table} was read whole {whole} times, by an index {by_index} times");
    }
    connection.abort();
}

async fn others_are_gone(client: &tokio_postgres::Client) {
    let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    while client.query_one(others, &[]).await.unwrap().get::<_, i64>(0) > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn who_forgets_what_is_over_walks_past_nothing_that_is_not() {
    let database = Cluster::shared().database().await;
    let stage = Stage::at(Location::Postgres(database.clone()), None).await;
    live(&stage, 300).await;
    let waiting = (0..600).map(|_| NewJob { run_at: after(3600), ..stage.job("u") }).collect();
    stage.store.enqueue(waiting, NOON).await.unwrap();
    let (client, connection) = tokio_postgres::connect(&database, tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    client.batch_execute("ANALYZE seawall.jobs, seawall.ended").await.unwrap();
    assert_eq!(stage.open_again().await.sweep_jobs(after(1), 120).await.unwrap(), 120);
    client.batch_execute("ANALYZE seawall.jobs, seawall.ended").await.unwrap();
    assert_eq!(stage.open_again().await.sweep_jobs(after(1), 1000).await.unwrap(), 180);
    drop(stage);
    // Statistics of a connection are complete after its end.
    others_are_gone(&client).await;
    let read = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = $1";
    let read = async |index: &str| client.query_one(read, &[&index]).await.unwrap().get::<_, i64>(0);
    assert_eq!(read("jobs_id").await, 0, "ids alone do not tell what is over");
    assert!((300..600).contains(&read("ended_listed").await), "each is read once, and few twice");
    connection.abort();
}

#[tokio::test]
async fn claims_are_looked_up_one_by_one_however_few_there_were_when_they_were_counted() {
    let database = Cluster::shared().database().await;
    let stage = Stage::at(Location::Postgres(database.clone()), None).await;
    live(&stage, 100).await;
    let (client, connection) = tokio_postgres::connect(&database, tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    client.batch_execute("ANALYZE seawall.claims").await.unwrap();
    stage.store.enqueue((0..300).map(|_| stage.job("u")).collect(), NOON).await.unwrap();
    // New connections have no plans yet.
    let store = stage.open_again().await;
    let lanes = vec![("u".to_owned(), 300)];
    let claimed = store.claim(ClaimRequest { lanes, token: 7, lease: Nanos::from_secs(60), now: NOON, rules: 0 }).await.unwrap();
    for (number, one) in claimed.iter().enumerate().take(150) {
        let ending = if number % 2 == 0 { ok() } else { JobEnding::Failed { code: "no".to_owned() } };
        assert_eq!(store.settle(settlement(one, ending)).await.unwrap(), Settled::Kept);
        assert_eq!(store.renew(vec![claimed[299].lease], after(60)).await.unwrap(), [Renewed::Held]);
    }
    drop((stage, store));
    others_are_gone(&client).await;
    let read = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'claims_pkey'";
    let read: i64 = client.query_one(read, &[]).await.unwrap().get(0);
    assert!(read < 10 * 250, "each change of one reads {} claims", read / 250);
    connection.abort();
}

#[tokio::test]
async fn a_page_of_letters_walks_past_none_that_most_are_like() {
    let database = Cluster::shared().database().await;
    let stage = Stage::at(Location::Postgres(database.clone()), None).await;
    for number in 0..300 {
        stage.store.keep_letter(letter(&stage, after(number))).await.unwrap();
    }
    let (client, connection) = tokio_postgres::connect(&database, tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    client.batch_execute("ANALYZE seawall.letters").await.unwrap();
    let store = stage.open_again().await;
    let page = store.letters(dead::LetterQuery::default(), PageWindow { after: None, limit: 5 }).await.unwrap();
    assert_eq!(page.entries.len(), 5);
    drop((stage, store));
    others_are_gone(&client).await;
    let read = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'letters_id'";
    let read: i64 = client.query_one(read, &[]).await.unwrap().get(0);
    assert!(read < 20, "a page of five reads {read} letters by id");
    connection.abort();
}

#[tokio::test]
async fn what_another_process_brings_is_not_overlooked() {
    let stage = Stage::postgres().await;
    for _ in 0..6 {
        stage.enqueue(stage.job("u")).await;
    }
    assert_eq!(stage.claim("u", 2).await.len(), 2);
    let urgent = NewJob { priority: 9, ..stage.job("u") };
    let id = urgent.id;
    stage.open_again().await.enqueue(vec![urgent], NOON).await.unwrap();
    // Later than the cached claim position expires.
    assert_eq!(stage.claim_at("u", 2, after(1)).await[0].job.id, id);
}

#[tokio::test]
async fn claims_that_go_on_where_the_last_one_ended_leave_nobody_out() {
    let stage = Stage::postgres().await;
    for round in 0..8 {
        for tenant in ["a", "b", "c"] {
            stage.enqueue(NewJob { tenant: tenant.to_owned(), priority: round % 2, ..stage.job("u") }).await;
        }
    }
    let mut seen = HashSet::new();
    for _ in 0..5 {
        for one in stage.claim("u", 5).await {
            assert!(seen.insert(one.job.id), "claimed twice");
        }
    }
    assert_eq!(seen.len(), 24);
}
