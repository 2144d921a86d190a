//! The life of a claimed job: start, run, settlement. Settlements that occur together are sent to the store in one batch with one wake-up.
//! Only the tasks of suspects and scheduled jobs wait for the disk.

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

/// Interval of looks at the claimed jobs.
const LOOK: Duration = Duration::from_millis(10);
/// First and longest pause before a settlement is repeated; the pause doubles in between.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];

/// The reason why a job is stopped before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    /// Gives it back as if it had not been claimed, unless its request was started and may not be repeated.
    Release,
    Cancel,
    /// Another worker holds its lease: nothing may be written.
    Lost,
}

/// Adds a claimed job and starts the next job of its lane, if one may start.
pub(super) fn accept(bench: &Rc<Bench>, table: &Rc<LeaseTable>, claimed: Claimed, until: Wall) {
    if let Some(next) = table.take(Rc::new(claimed), until) {
        begin(bench, table, &next);
    }
    if table.begin_looks() {
        let (bench, table) = (Rc::clone(bench), Rc::clone(table));
        tokio::task::spawn_local(async move { advance(&bench, &table).await });
    }
}

/// Measures ended jobs and starts more as the window allows, while claimed jobs wait.
async fn advance(bench: &Rc<Bench>, table: &Rc<LeaseTable>) {
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
        async move { run(&bench, &table, &claimed).await }
    });
    table.begun(&claimed.lease, task.abort_handle());
}

/// Runs a job from its start to its end, except for the settlement.
async fn run(bench: &Rc<Bench>, table: &Rc<LeaseTable>, claimed: &Rc<Claimed>) {
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
    // The lease may have expired while the job waited, if the whole process stood still. After a mere clock step the job is claimed again
    // soon.
    if !table.is_ours(&lease, now) {
        return queue_settlement(bench, table, back(claimed, JobEnding::Release, now));
    }
    match bench.run(claimed, &RecordedStart { bench, table, lease }).await {
        Ok(Ran { settle, told: None, place: None, room }) => {
            table.keep_answer(&lease, room);
            queue_settlement(bench, table, settle);
        }
        // Suspects and scheduled jobs wait until their result is on disk. They are few, so their futures are boxed.
        Ok(Ran { settle, told, place, room: _room }) => {
            on_finished(bench, table, &lease);
            if Box::pin(write(bench, table, Arc::new(settle))).await
                && let Some(told) = told
            {
                Box::pin(schedule::report(&bench.shared, told)).await;
            }
            place.into_iter().for_each(|place| bench.acquit(place));
            table.end(&lease);
        }
        Err(Unbegun::Lost) => table.end(&lease),
        Err(Unbegun::Late) => queue_settlement(bench, table, back(claimed, JobEnding::Release, bench.desk().now())),
    }
}

/// Reads a body that the claim left in the store, once the memory budget allows it. Returns `None` if the job is gone.
async fn load(bench: &Bench, table: &LeaseTable, claimed: &Claimed, bytes: usize) -> Option<Rc<Claimed>> {
    let desk = bench.desk();
    let room = desk.crew.room_for(bytes).await.ok()?;
    let body = loop {
        match desk.store.body(claimed.lease).await {
            Ok(body) => break body?,
            // The worker aborts this job once its lease has expired.
            Err(_) => tokio::time::sleep(PAUSES[1]).await,
        }
    };
    let Claimed { lease, job, rules, .. } = claimed;
    let job = Job { request: JobRequest { body, ..job.request.clone() }, ..job.clone() };
    let whole = Rc::new(Claimed { lease: *lease, job, body_left: None, rules: *rules });
    table.load(Rc::clone(&whole), room);
    Some(whole)
}

/// Records the start of a job that may not be repeated: in the store, and then in the worker's own table.
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
                // Another worker holds the lease, which the settlement will detect, or the store does not reply.
                Ok(false) | Err(_) => AskAnswer::NotBegun,
            }
        })
    }
}

/// Returns the settlement of a job that is stopped before its end, if we may write one.
pub(super) fn given_up(bench: &Bench, table: &LeaseTable, claimed: &Claimed, why: StopReason) -> Option<SettleJob> {
    let now = bench.desk().now();
    match why {
        StopReason::Release => Some(match table.begun_at(&claimed.lease) {
            Some(begun_at) => bench.cut_off(claimed, begun_at),
            // The job goes back with a note that it may have been sent, in case the rule changes before its next run.
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

/// Settles a job without a change of its attempts and history.
fn back(claimed: &Claimed, ending: JobEnding, now: Wall) -> SettleJob {
    let Claimed { lease, job, .. } = claimed;
    let (progress, history) = (job.progress, job.history.clone());
    let forgets = job.request.has_secrets();
    SettleJob { lease: *lease, ending, progress, history, answer: None, follow: Vec::new(), key: None, forgets, now, again: false }
}

/// Queues a settlement. The first one in the queue spawns the task that writes all of them; the task runs after the current ready tasks
/// have added theirs.
pub(super) fn queue_settlement(bench: &Rc<Bench>, table: &Rc<LeaseTable>, settle: SettleJob) {
    on_finished(bench, table, &settle.lease);
    if table.queue_end(settle) {
        let (bench, table) = (Rc::clone(bench), Rc::clone(table));
        tokio::task::spawn_local(async move { write_all(&bench, &table).await });
    }
}

/// Marks a job's call as over and starts the next job of its lane.
fn on_finished(bench: &Rc<Bench>, table: &Rc<LeaseTable>, lease: &JobLease) {
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
            // Either one settlement caused the failure or the store is unavailable: each is repeated separately.
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

/// Writes a settlement until the store says whether the lease was still ours. An expired lease by our clock does not end this: the store
/// may have been unavailable to all, so no other worker has the job. After the lease has expired, only temporary failures are repeated.
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
            // The job is recovered when its lease expires and runs again.
            Err(_) => return false,
        }
    }
}

/// Marks a settlement as a repetition: perhaps only the store's reply was lost.
fn in_doubt(mut settle: Arc<SettleJob>) -> Arc<SettleJob> {
    Arc::make_mut(&mut settle).again = true;
    settle
}

/// Returns whether the lease was ours, and notes the result.
fn note(desk: &JobContext, settle: &SettleJob, settled: Settled) -> bool {
    match settled {
        Settled::Kept | Settled::Cancelled => {
            if !settle.follow.is_empty() {
                desk.crew.wake_one();
            }
            true
        }
        Settled::Lost => {
            desk.counts.lost_leases.fetch_add(1, Ordering::Relaxed);
            false
        }
    }
}
