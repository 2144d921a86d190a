//! The life of a claimed job: how it is begun, how it comes to its end, and the end to the store. Ends of the same moment are handed over
//! together: one message and one wake-up for all of them, and no task of a job waits for the disk but a suspect's or a schedule's.

use super::JobContext;
use super::job_call::{Beginning, Bench, Ran, Unbegun};
use super::leases::LeaseTable;
use super::schedule;
use crate::letter;
use seawall_core::call::AskAnswer;
use seawall_core::time::{Nanos, Wall};
use seawall_engine::driver::StartLog;
use seawall_store::job::{Claimed, Job, JobEnding, JobLease, JobRequest, SettleJob, Settled};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::runtime::Handle;

/// How often somebody looks after what is in hand.
const LOOK: Duration = Duration::from_millis(10);
/// The pause before an end is handed over again; it doubles up to the second one.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];

/// Why a job is stopped before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    /// It goes back as if it had not been claimed, unless its request was begun and may not be repeated.
    Release,
    Cancel,
    /// It is somebody else's: nothing may be written.
    Lost,
}

/// Begins what was claimed, as soon as that is of use.
pub(super) fn take_up(bench: &Rc<Bench>, table: &Rc<LeaseTable>, claimed: Claimed, until: Wall) {
    if let Some(next) = table.take(Rc::new(claimed), until) {
        begin(bench, table, &next);
    }
    if table.begin_looks() {
        let (bench, table) = (Rc::clone(bench), Rc::clone(table));
        tokio::task::spawn_local(async move { look_after(&bench, &table).await });
    }
}

/// Sees what has ended, and begins more where that is of use, for as long as some are not begun.
async fn look_after(bench: &Rc<Bench>, table: &Rc<LeaseTable>) {
    let runtime = Handle::current().metrics();
    let look = || (bench.shared.clock.now().mono, runtime.worker_total_busy_duration(0));
    let (mut last, mut worked) = look();
    while table.has_unbegun() {
        tokio::time::sleep(LOOK).await;
        let (now, work) = look();
        let busy = Nanos::from_secs_f64(work.saturating_sub(worked).as_secs_f64());
        table.look(now.since(last), busy).iter().for_each(|next| begin(bench, table, next));
        (last, worked) = (now, work);
    }
    table.end_looks();
}

fn begin(bench: &Rc<Bench>, table: &Rc<LeaseTable>, claimed: &Rc<Claimed>) {
    let task = tokio::task::spawn_local({
        let (bench, table, claimed) = (Rc::clone(bench), Rc::clone(table), Rc::clone(claimed));
        async move { work_off(&bench, &table, &claimed).await }
    });
    table.begun(&claimed.lease, task.abort_handle());
}

/// From its beginning to its end, but for its stay at the disk.
async fn work_off(bench: &Rc<Bench>, table: &Rc<LeaseTable>, claimed: &Rc<Claimed>) {
    let loaded;
    let claimed = match claimed.body_left {
        None => claimed,
        Some(bytes) => match Box::pin(load(bench, table, claimed, bytes)).await {
            Some(whole) => {
                loaded = whole;
                &loaded
            }
            None => return table.end(&claimed.lease),
        },
    };
    let (lease, now) = (claimed.lease, bench.desk().now());
    // It may have been in hand for longer than it is ours, if all of us stood still; where only the clock was set, it comes back soon.
    if !table.is_ours(&lease, now) {
        return hand_in(bench, table, back(claimed, JobEnding::Release, now));
    }
    match bench.run(claimed, &RecordedStart { bench, table, lease }).await {
        Ok(Ran { settle, told: None, place: None, room }) => {
            table.keep_answer(&lease, room);
            hand_in(bench, table, settle);
        }
        // Somebody waits for these to be on disk. There are few, and what they need is in a place of its own.
        Ok(Ran { settle, told, place, room: _room }) => {
            over(bench, table, &lease);
            if Box::pin(write(bench, table, Arc::new(settle))).await
                && let Some(told) = told
            {
                Box::pin(schedule::report(&bench.shared, told)).await;
            }
            place.into_iter().for_each(|place| bench.acquit(place));
            table.end(&lease);
        }
        Err(Unbegun::Lost) => table.end(&lease),
        Err(Unbegun::Late) => hand_in(bench, table, back(claimed, JobEnding::Release, bench.desk().now())),
    }
}

/// Reads a body that its claim left behind, once there is room for it. None where the job is gone.
async fn load(bench: &Bench, table: &LeaseTable, claimed: &Claimed, bytes: usize) -> Option<Rc<Claimed>> {
    let desk = bench.desk();
    let room = desk.crew.room_for(bytes).await.ok()?;
    let body = loop {
        match desk.store.body(claimed.lease).await {
            Ok(body) => break body?,
            // Its worker is stopped when the lease is over.
            Err(_) => tokio::time::sleep(PAUSES[1]).await,
        }
    };
    let Claimed { lease, job, rules, .. } = claimed;
    let job = Job { request: JobRequest { body, ..job.request.clone() }, ..job.clone() };
    let whole = Rc::new(Claimed { lease: *lease, job, body_left: None, rules: *rules });
    table.load(Rc::clone(&whole), room);
    Some(whole)
}

/// The beginning of a job that may not be repeated: in the store, and then in the worker's own table.
struct RecordedStart<'a> {
    bench: &'a Bench,
    table: &'a LeaseTable,
    lease: JobLease,
}

impl std::fmt::Debug for RecordedStart<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Start").field("lease", &self.lease).finish_non_exhaustive()
    }
}

impl Beginning for RecordedStart<'_> {
    fn repeats_by_rule(&self) {
        self.table.mark_repeats_by_rule(&self.lease);
    }
}

impl StartLog for RecordedStart<'_> {
    fn begin(&self) -> Pin<Box<dyn Future<Output = AskAnswer> + '_>> {
        Box::pin(async {
            let now = self.bench.desk().now();
            match self.bench.desk().store.begin_send(self.lease, now).await {
                Ok(true) => {
                    self.table.mark_begun(&self.lease, now);
                    AskAnswer::Begun
                }
                // It is somebody else's by now, which is found out where it is written back; or the store does not answer.
                Ok(false) | Err(_) => AskAnswer::NotBegun,
            }
        })
    }
}

/// What becomes of a job that was stopped before its end, where we may say so.
pub(super) fn given_up(bench: &Bench, table: &LeaseTable, claimed: &Claimed, why: StopReason) -> Option<SettleJob> {
    let now = bench.desk().now();
    match why {
        StopReason::Release => Some(match table.begun_at(&claimed.lease) {
            Some(begun_at) => bench.cut_off(claimed, begun_at),
            // It goes back, and is known to have been sent perhaps, should the rule be another by then.
            None if table.repeats_by_rule(&claimed.lease) => {
                let history = letter::with_unknown(&claimed.job.history, claimed.job.progress.attempts.saturating_add(1), now);
                SettleJob { history, ..back(claimed, JobEnding::Release, now) }
            }
            None => back(claimed, JobEnding::Release, now),
        }),
        StopReason::Cancel => Some(back(claimed, JobEnding::Cancelled, now)),
        StopReason::Lost => None,
    }
}

/// What it had used up before is what it has used up.
fn back(claimed: &Claimed, ending: JobEnding, now: Wall) -> SettleJob {
    let Claimed { lease, job, .. } = claimed;
    let (progress, history) = (job.progress, job.history.clone());
    let forgets = job.request.has_secrets();
    SettleJob { lease: *lease, ending, progress, history, answer: None, follow: Vec::new(), key: None, forgets, now, again: false }
}

/// Hands a job's end over with those of all whose turn it is in this moment: the task that takes them comes behind these in line.
pub(super) fn hand_in(bench: &Rc<Bench>, table: &Rc<LeaseTable>, settle: SettleJob) {
    over(bench, table, &settle.lease);
    if table.put_end(settle) {
        let (bench, table) = (Rc::clone(bench), Rc::clone(table));
        tokio::task::spawn_local(async move { write_all(&bench, &table).await });
    }
}

/// A job's call is over, and the next of its lane may begin.
fn over(bench: &Rc<Bench>, table: &Rc<LeaseTable>, lease: &JobLease) {
    if let Some(next) = table.settle(lease) {
        begin(bench, table, &next);
    }
}

async fn write_all(bench: &Rc<Bench>, table: &Rc<LeaseTable>) {
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

/// Writes how a job ended, until the store says whether that was ours to write. Our own clock does not end this: a lease that has run
/// out may still be nobody else's, because the store could not be written to by anybody, and then the job need not run again. A failure
/// that does not pass by itself is left alone once the lease is over.
async fn write(bench: &Bench, table: &LeaseTable, mut settle: Arc<SettleJob>) -> bool {
    let [mut pause, longest] = PAUSES;
    loop {
        match bench.desk().store.settle(Arc::clone(&settle)).await {
            Ok(settled) => return note(bench.desk(), &settle, settled),
            Err(error) if error.passes() || table.is_ours(&settle.lease, bench.desk().now()) => {
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
fn in_doubt(mut settle: Arc<SettleJob>) -> Arc<SettleJob> {
    Arc::make_mut(&mut settle).again = true;
    settle
}

/// Whether the job was ours to write about.
fn note(desk: &JobContext, settle: &SettleJob, settled: Settled) -> bool {
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
