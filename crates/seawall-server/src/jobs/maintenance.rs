//! Periodic maintenance: counts, deletion of old jobs, letters and keys, and the offset to the database's clock.

use super::reevaluation::Diary;
use super::{JobContext, queue_alarm, replay_run, schedule};
use crate::ServerState;
use crate::host::Host;
use seawall_core::time::{Mono, Nanos, Wall};
use seawall_engine::record::{NoteRecord, Record};
use seawall_store::Error;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Interval of the rounds.
const EVERY: Duration = Duration::from_secs(2);
/// Retention time of finished jobs.
const KEPT: Nanos = Nanos::from_secs(7 * 86_400);
/// Rows per deletion request. The store itself deletes jobs in smaller steps with pauses.
const BATCH: usize = 200;
/// Maximum letters or keys per deleting transaction, so that other writes wait little, and the pause that gives them way.
const FEW: usize = 50;
const PAUSE: Duration = Duration::from_millis(5);
/// Counting takes at most one part in `COUNTING` of the time: a store with millions of rows is counted less often.
const COUNTING: u64 = 50;
/// Longest interval between two counts.
const SELDOM: Nanos = Nanos::from_secs(60);

/// Runs all maintenance of the store while the process serves.
pub(crate) async fn run(shared: &ServerState) {
    tokio::select! {
        () = rounds(shared) => {}
        // Separate loops: after a long time without deletion, one of them may take hours.
        () = now_and_then(async || expire(shared).await) => {}
        () = now_and_then(async || forget_keys(shared).await) => {}
        () = now_and_then(async || forget_jobs(shared).await) => {}
        () = replay_run::run(shared) => {}
        () = schedule::run(shared) => {}
    }
}

/// Runs `what` at each interval. Failures show in the store's health and are repeated at the next interval.
async fn now_and_then(mut what: impl AsyncFnMut()) {
    let mut every = tokio::time::interval(EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        what().await;
    }
}

async fn rounds(shared: &ServerState) {
    let (mut diary, mut count_at) = (Diary::default(), Mono::default());
    now_and_then(async || {
        round(shared, &mut count_at).await;
        diary.round(shared).await;
    })
    .await;
}

async fn forget_keys(shared: &ServerState) {
    let (store, now) = (&shared.desk.store, shared.desk.now());
    while store.sweep_keys(now, FEW).await.is_ok_and(|gone| gone == FEW) {
        tokio::time::sleep(PAUSE).await;
    }
}

async fn forget_jobs(shared: &ServerState) {
    let before = Wall(shared.desk.now().0.saturating_sub(i64::try_from(KEPT.as_millis()).unwrap_or(i64::MAX)));
    while shared.desk.store.sweep_jobs(before, BATCH).await.is_ok_and(|gone| gone == BATCH) {}
}

async fn expire(shared: &ServerState) {
    let (desk, now) = (&shared.desk, shared.desk.now());
    while let Ok(expired) = desk.store.expire_letters(now, FEW).await {
        for gone in &expired.unheeded {
            desk.counts.expired.fetch_add(1, Ordering::Relaxed);
            let fields = vec![
                ("id", gone.id.to_string()),
                ("upstream", gone.upstream.clone()),
                ("endpoint", gone.endpoint.clone()),
                ("class", gone.class.as_str().to_owned()),
                ("code", gone.code.clone()),
                ("severity", gone.severity.as_str().to_owned()),
                ("dead_lettered_at", gone.dead_at.to_string()),
            ];
            note(shared, "dead_letter_expired", fields);
        }
        if expired.gone < FEW {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn round(shared: &ServerState, count_at: &mut Mono) {
    let desk = &shared.desk;
    desk.follow().await;
    desk.keep_secret().await;
    let begun = shared.clock.now().mono;
    if begun >= *count_at {
        count(desk).await;
        let ended = shared.clock.now().mono;
        *count_at = ended + Nanos(ended.since(begun).0.saturating_mul(COUNTING)).min(SELDOM);
    }
    measure(shared).await;
    // The depths are valid only after the first count.
    if desk.counts.counted.load(Ordering::Acquire) {
        let depths = desk.counts.letters.lock().unwrap_or_else(PoisonError::into_inner).clone();
        queue_alarm::check(shared, &depths).await;
    }
    desk.ledger.release_loose_ends().await;
}

/// Writes a log line that belongs to no single call.
pub(super) fn note(shared: &ServerState, event: &'static str, fields: Vec<(&'static str, String)>) {
    shared.recorder.push(Record::Note(NoteRecord { at: shared.desk.now(), event, fields }));
}

/// Reports once that the store is unavailable, and once that it is back.
fn print_store_health(terminal: &dyn Host, was_silent: bool, error: Option<&Error>) {
    match (was_silent, error) {
        (false, Some(why)) => terminal.note(&format!("warning: {why}; jobs and dead letters wait for the store")),
        (true, None) => terminal.note("the store answers again"),
        (true, Some(_)) | (false, None) => {}
    }
}

async fn count(desk: &JobContext) {
    let Ok(counts) = desk.store.job_counts().await else { return };
    for (place, count) in desk.counts.by_state.iter().zip(counts.by_state) {
        place.store(count, Ordering::Relaxed);
    }
    let lag = counts.oldest_queued.map_or(Nanos::ZERO, |since| desk.now().since(since));
    desk.counts.lag_ms.store(i64::try_from(lag.as_millis()).unwrap_or(i64::MAX), Ordering::Relaxed);
}

async fn measure(shared: &ServerState) {
    let desk = &shared.desk;
    let measured = desk.store.depths().await;
    print_store_health(&*shared.host, desk.counts.silent.swap(measured.is_err(), Ordering::Relaxed), measured.as_ref().err());
    if let Ok(depths) = measured {
        *desk.counts.letters.lock().unwrap_or_else(PoisonError::into_inner) = depths;
        // Released after the depths are stored: a reader that sees the flag also sees them.
        desk.counts.counted.store(true, Ordering::Release);
    }
}
