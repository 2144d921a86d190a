//! How a claimed job comes to its end, and the end to the store. Ends of the same moment are handed over together: one message
//! and one wake-up for all of them, and no task of a job waits for the disk but a suspect's or a schedule's.

use super::Desk;
use super::held::Table;
use super::run::{Bench, Ran, Unbegun};
use super::schedule;
use seawall_core::time::Wall;
use seawall_store::job::{Claimed, Ending, Settle, Settled};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The pause before an end is handed over again; it doubles up to the second one.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];

/// Why a running job is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// It goes back as if it had not been claimed.
    Release,
    Cancel,
    /// It is somebody else's: nothing may be written.
    Lost,
}

/// The life of a claimed job, but for its stay at the disk.
pub(super) async fn work_off(bench: &Rc<Bench>, table: &Rc<Table>, claimed: &Claimed) {
    let lease = claimed.lease;
    match bench.run(claimed).await {
        Ok(Ran { settle, told: None, place: None }) => hand_in(bench, table, settle),
        // Somebody waits for these to be on disk. There are few, and what they need is in a place of its own.
        Ok(Ran { settle, told, place }) => {
            table.settle(&lease);
            if Box::pin(write(bench, table, Arc::new(settle))).await
                && let Some(told) = told
            {
                Box::pin(schedule::report(&bench.shared, told)).await;
            }
            place.into_iter().for_each(|place| bench.acquit(place));
            table.end(&lease);
        }
        Err(Unbegun::Lost) => table.end(&lease),
        Err(Unbegun::Late) => hand_in(bench, table, back(claimed, Ending::Release, bench.desk().now())),
    }
}

/// What becomes of a job that was stopped before its end, where we may say so.
pub(super) fn given_up(claimed: &Claimed, why: Stop, now: Wall) -> Option<Settle> {
    match why {
        Stop::Release => Some(back(claimed, Ending::Release, now)),
        Stop::Cancel => Some(back(claimed, Ending::Cancelled, now)),
        Stop::Lost => None,
    }
}

/// What it had used up before is what it has used up.
fn back(claimed: &Claimed, ending: Ending, now: Wall) -> Settle {
    let Claimed { lease, job } = claimed;
    let (progress, history) = (job.progress, job.history.clone());
    Settle { lease: *lease, ending, progress, history, answer: None, follow: Vec::new(), key: None, now, again: false }
}

/// Hands a job's end over with those of all whose turn it is in this moment: the task that takes them comes behind these in line.
pub(super) fn hand_in(bench: &Rc<Bench>, table: &Rc<Table>, settle: Settle) {
    table.settle(&settle.lease);
    if table.put_end(settle) {
        let (bench, table) = (Rc::clone(bench), Rc::clone(table));
        tokio::task::spawn_local(async move { write_all(&bench, &table).await });
    }
}

async fn write_all(bench: &Rc<Bench>, table: &Rc<Table>) {
    let ends = table.take_ends();
    let settled = bench.desk().store.settle_all(ends.clone()).await;
    for (settle, settled) in ends.into_iter().zip(settled) {
        match settled {
            Ok(settled) => {
                note(bench.desk(), &settle, settled);
                table.end(&settle.lease);
            }
            // One of them may be the cause, or the store is away: each goes on by itself.
            Err(_) => {
                let (bench, table) = (Rc::clone(bench), Rc::clone(table));
                tokio::task::spawn_local(async move {
                    let lease = settle.lease;
                    write(&bench, &table, in_doubt(settle)).await;
                    table.end(&lease);
                });
            }
        }
    }
}

/// Writes how a job ended, for as long as the job is ours to write about. Whether it was.
async fn write(bench: &Bench, table: &Table, mut settle: Arc<Settle>) -> bool {
    let [mut pause, longest] = PAUSES;
    loop {
        match bench.desk().store.settle(Arc::clone(&settle)).await {
            Ok(settled) => return note(bench.desk(), &settle, settled),
            Err(error) if error.passes() && table.is_ours(&settle.lease, bench.desk().now()) => {
                settle = in_doubt(settle);
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(longest);
            }
            // It will be found by its lease and run again.
            Err(_) => return false,
        }
    }
}

/// The answer may be all that got lost.
fn in_doubt(mut settle: Arc<Settle>) -> Arc<Settle> {
    Arc::make_mut(&mut settle).again = true;
    settle
}

/// Whether the job was ours to write about.
fn note(desk: &Desk, settle: &Settle, settled: Settled) -> bool {
    match settled {
        Settled::Kept | Settled::Cancelled => {
            if !settle.follow.is_empty() {
                desk.crew.ring();
            }
            true
        }
        Settled::Lost => {
            desk.counts.lost_leases.fetch_add(1, Ordering::Relaxed);
            false
        }
    }
}
