//! A worker: claims jobs in batches, runs them side by side, holds on to their leases, and lets go in order when the
//! process stops.

use super::run::{Bench, Ran, Unbegun};
use super::schedule;
use crate::serve::{Phase, Shared};
use anyhow::Context as _;
use seawall_core::time::{Mono, Nanos, Wall};
use seawall_store::job::{AD_HOC, Claim, Claimed, Ending, Lease, Renewed, SUSPECT, Settle, Settled};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::LocalSet;

/// Jobs that a worker runs side by side.
const SLOTS: usize = 256;
/// What it begins with. Each job that ends earns it one more, and each tick that it lives through twice as many: a program that
/// dies soon after its start, over and over, shall not take hundreds of jobs with it that are not to blame.
const FIRST_SLOTS: usize = 8;
/// Of those, what one lane may have while others have work: a slow upstream never takes them all.
const LANE_SLOTS: usize = SLOTS / 2;
/// Times its slots that it may hold: those that run, and those that are over but for the disk, which is slow at times.
const HELD: usize = 4;
/// So many free slots are worth a claim of their own.
const BATCH: usize = 32;
/// How often time itself is looked at.
const TICK: Duration = Duration::from_millis(100);
/// How often idle connections are looked after.
const SWEEP: Duration = Duration::from_secs(10);
/// What two clocks may differ by without one of them having been set.
const STEP: Nanos = Nanos::from_secs(2);
/// What a lease has beyond the longest attempt.
const GRACE: Nanos = Nanos::from_secs(10);
/// How long the last settlements may take when the process stops at once.
const LAST_SETTLEMENTS: Duration = Duration::from_secs(2);

/// Why a running job is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// It goes back as if it had not been claimed.
    Release,
    Cancel,
    /// It is somebody else's: nothing may be written.
    Lost,
}

struct Running {
    lane: String,
    until: Wall,
    stop: Option<oneshot::Sender<Stop>>,
    standing: Standing,
}

/// Whether a job that is held takes a place at the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Running,
    /// It waits for one of the few places that suspects have.
    Suspect,
    /// It is over but for the disk.
    Settling,
}

struct Table {
    running: RefCell<HashMap<Lease, Running>>,
    /// Those that take no place.
    aside: Cell<usize>,
    /// What it may run side by side by now.
    slots: Cell<usize>,
    freed: Notify,
}

impl Table {
    fn new() -> Self {
        Self { running: RefCell::default(), aside: Cell::new(0), slots: Cell::new(FIRST_SLOTS), freed: Notify::new() }
    }

    fn free(&self) -> usize {
        let (held, slots) = (self.running.borrow().len(), self.slots.get());
        let running = held.saturating_sub(self.aside.get());
        slots.saturating_sub(running).min((HELD * slots).saturating_sub(held))
    }

    /// Whether enough is free for a claim.
    fn has_room(&self) -> bool {
        self.free() >= BATCH.min(self.slots.get() / 2)
    }

    /// Time has passed, and nothing that is running has ended the process.
    fn trust(&self) {
        self.slots.set(SLOTS.min(self.slots.get() * 2));
    }

    fn begin(&self, lease: Lease, running: Running) {
        if running.standing != Standing::Running {
            self.aside.set(self.aside.get() + 1);
        }
        self.running.borrow_mut().insert(lease, running);
    }

    /// Its call is over; how it ended is about to be written.
    fn settle(&self, lease: &Lease) {
        if let Some(running) = self.running.borrow_mut().get_mut(lease) {
            if running.standing == Standing::Running {
                self.aside.set(self.aside.get() + 1);
            }
            running.standing = Standing::Settling;
        }
        self.tell_of_room();
    }

    fn end(&self, lease: &Lease) {
        if self.running.borrow_mut().remove(lease).is_some_and(|ended| ended.standing != Standing::Running) {
            self.aside.set(self.aside.get().saturating_sub(1));
        }
        self.slots.set(SLOTS.min(self.slots.get() + 1));
        self.tell_of_room();
    }

    fn tell_of_room(&self) {
        if self.has_room() {
            self.freed.notify_one();
        }
    }

    fn in_lane(&self, lane: &str) -> usize {
        self.running.borrow().values().filter(|running| running.standing != Standing::Settling && running.lane == lane).count()
    }

    fn stop_all(&self, why: Stop) {
        for running in self.running.borrow_mut().values_mut() {
            stop(running, why);
        }
    }
}

/// Whether it was running: one that has just ended needs no stopping.
fn stop(running: &mut Running, why: Stop) -> bool {
    running.stop.take().is_some_and(|sender| sender.send(why).is_ok())
}

/// The life of a worker thread.
pub(crate) fn work(shared: &Arc<Shared>, phases: watch::Receiver<Phase>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    LocalSet::new().block_on(&runtime, async {
        let seen = Cell::new((shared.clock.now().mono, shared.desk.now()));
        let worker = Worker { bench: Rc::new(Bench::new(Arc::clone(shared))), table: Rc::new(Table::new()), seen };
        worker.serve(phases).await;
        Ok(())
    })
}

struct Worker {
    bench: Rc<Bench>,
    table: Rc<Table>,
    /// The last look at both clocks: the one that nobody can set, and the jobs'.
    seen: Cell<(Mono, Wall)>,
}

impl Worker {
    async fn serve(&self, mut phases: watch::Receiver<Phase>) {
        self.bench.desk().follow().await;
        self.bench.desk().keep_secret().await;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut renewal = tokio::time::interval(Duration::from_nanos(self.lease().0 / 3));
        let mut sweep = tokio::time::interval(SWEEP);
        // Not at once: there is nothing to renew yet, and a sweep says that so much time was lived through.
        renewal.reset();
        sweep.reset();
        let mut lanes: Vec<String> = Vec::new();
        // A tick moves so many at most; where it moved some, there may be more.
        let mut more = false;
        loop {
            tokio::select! {
                _ = phases.wait_for(|phase| *phase >= Phase::Draining) => break,
                _ = tick.tick() => {
                    self.table.trust();
                    (lanes, more) = self.tick().await;
                }
                () = self.bench.desk().bell.notified() => lanes = self.lanes(lanes),
                () = self.bench.desk().store.woken() => lanes = self.lanes(lanes),
                () = self.table.freed.notified() => {}
                _ = renewal.tick() => self.renew().await,
                _ = sweep.tick() => {
                    self.bench.sweep();
                    self.bench.trust();
                }
            }
            if more && lanes.is_empty() {
                (lanes, more) = self.tick().await;
            }
            while !lanes.is_empty() && self.table.has_room() && *phases.borrow() == Phase::Serving {
                if !self.claim(&lanes).await {
                    lanes.clear();
                }
            }
        }
        self.let_go(phases).await;
    }

    /// Every lane that there is, after the bell has rung: whoever rang it did not say for whom.
    fn lanes(&self, known: Vec<String>) -> Vec<String> {
        let live = self.bench.shared.live.load();
        let mut lanes: Vec<String> = live.upstreams.iter().map(|upstream| upstream.spec.name.clone()).collect();
        lanes.push(AD_HOC.to_owned());
        lanes.extend(known.into_iter().filter(|lane| live.named(lane).is_none() && lane != AD_HOC));
        lanes
    }

    /// Lets time do its work, and says where there is something to claim.
    async fn tick(&self) -> (Vec<String>, bool) {
        self.notice_steps().await;
        match self.bench.desk().store.tick(self.bench.desk().now()).await {
            Ok(tick) => {
                let recovered = u64::try_from(tick.recovered).unwrap_or(u64::MAX);
                self.bench.desk().counts.recovered.fetch_add(recovered, Ordering::Relaxed);
                (tick.lanes, tick.due + tick.recovered > 0)
            }
            // The store says so wherever it is asked; a tick is asked again soon. Whoever answers then may be another server,
            // with another clock.
            Err(_) => {
                self.bench.desk().follow().await;
                (Vec::new(), false)
            }
        }
    }

    /// After a step of the clock that leases live by, ours are held under the new time before anybody finds them over.
    async fn notice_steps(&self) {
        let (mono, wall) = (self.bench.shared.clock.now().mono, self.bench.desk().now());
        let (before, then) = self.seen.replace((mono, wall));
        let (lived, passed) = (mono.since(before), Nanos::from_millis(wall.0.abs_diff(then.0)));
        if passed > lived + STEP {
            self.renew().await;
        }
    }

    /// The longest that any attempt may take, and some: whoever has not renewed by then is gone.
    fn lease(&self) -> Nanos {
        let live = self.bench.shared.live.load();
        let endpoints = live.upstreams.iter().flat_map(|upstream| &upstream.endpoints);
        let longest = endpoints.map(|endpoint| endpoint.spec.policy.timeout.attempt).max().unwrap_or(Nanos::ZERO);
        longest.max(Nanos::from_secs(20)) + GRACE
    }

    /// Claims as much as there is room for. Whether there may be more.
    async fn claim(&self, lanes: &[String]) -> bool {
        let free = self.table.free();
        let share = if lanes.len() > 1 { LANE_SLOTS } else { SLOTS };
        let wishes: Vec<(String, usize)> = lanes
            .iter()
            .map(|lane| (lane.clone(), share.saturating_sub(self.table.in_lane(lane)).min(free.div_ceil(lanes.len()))))
            .filter(|(_, most)| *most > 0)
            .collect();
        if wishes.is_empty() {
            return false;
        }
        let desk = self.bench.desk();
        let (now, lease) = (desk.now(), self.lease());
        let asked: usize = wishes.iter().map(|(_, most)| most).sum();
        match desk.store.claim(Claim { lanes: wishes, token: desk.draw(), lease, now }).await {
            Ok(claimed) => {
                let got = claimed.len();
                claimed.into_iter().for_each(|claimed| self.start(claimed, now + lease));
                got == asked
            }
            Err(_) => false,
        }
    }

    fn start(&self, claimed: Claimed, until: Wall) {
        let (sender, stopped) = oneshot::channel();
        let lane = claimed.job.upstream.clone();
        let standing = if claimed.job.crashes >= SUSPECT { Standing::Suspect } else { Standing::Running };
        self.table.begin(claimed.lease, Running { lane, until, stop: Some(sender), standing });
        let (bench, table) = (Rc::clone(&self.bench), Rc::clone(&self.table));
        tokio::task::spawn_local(async move {
            let lease = claimed.lease;
            let why = tokio::select! {
                ran = bench.run(&claimed) => ran.map_err(|unbegun| match unbegun {
                    Unbegun::Lost => Stop::Lost,
                    Unbegun::Late => Stop::Release,
                }),
                why = stopped => Err(why.unwrap_or(Stop::Release)),
            };
            let (settle, told, place) = match why {
                Ok(Ran { settle, told, place }) => (Some(settle), told, place),
                Err(why) => (given_up(&claimed, why, bench.desk().now()), None, None),
            };
            table.settle(&lease);
            if let Some(settle) = settle
                && write(&bench, &table, settle).await
                && let Some(told) = told
            {
                Box::pin(schedule::report(&bench.shared, told)).await;
            }
            place.into_iter().for_each(|place| bench.acquit(place));
            table.end(&lease);
        });
    }

    async fn renew(&self) {
        let desk = self.bench.desk();
        let leases: Vec<Lease> = self.table.running.borrow().keys().copied().collect();
        let until = desk.now() + self.lease();
        let renewed = if leases.is_empty() { Ok(Vec::new()) } else { desk.store.renew(leases.clone(), until).await };
        let (mut running, mut lost) = (self.table.running.borrow_mut(), 0);
        match renewed {
            Ok(answers) => {
                for (lease, answer) in leases.iter().zip(answers) {
                    let Some(entry) = running.get_mut(lease) else { continue };
                    match answer {
                        Renewed::Held => entry.until = until,
                        Renewed::Cancelling => _ = stop(entry, Stop::Cancel),
                        Renewed::Lost => lost += u64::from(stop(entry, Stop::Lost)),
                    }
                }
            }
            // Whoever cannot renew stops before somebody else may begin.
            Err(_) => {
                let over = running.values_mut().filter(|entry| entry.until <= desk.now());
                lost = over.map(|entry| u64::from(stop(entry, Stop::Lost))).sum();
            }
        }
        desk.counts.lost_leases.fetch_add(lost, Ordering::Relaxed);
    }

    /// Finishes what is running while there is time, and gives back the rest.
    async fn let_go(&self, mut phases: watch::Receiver<Phase>) {
        self.bench.close();
        let mut renewal = tokio::time::interval(Duration::from_nanos(self.lease().0 / 3));
        while !self.table.running.borrow().is_empty() {
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(10)) => {}
                _ = renewal.tick() => self.renew().await,
                _ = phases.wait_for(|phase| *phase >= Phase::Stopping) => break,
            }
        }
        self.table.stop_all(Stop::Release);
        let settled = async {
            while !self.table.running.borrow().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        // What is not settled by then is found by its lease.
        drop(tokio::time::timeout(LAST_SETTLEMENTS, settled).await);
    }
}

/// A job that was stopped before its end: what it had used up before is what it has used up.
fn given_up(claimed: &Claimed, why: Stop, now: Wall) -> Option<Settle> {
    let ending = match why {
        Stop::Release => Ending::Release,
        Stop::Cancel => Ending::Cancelled,
        Stop::Lost => return None,
    };
    let Claimed { lease, job } = claimed;
    Some(Settle {
        lease: *lease,
        ending,
        progress: job.progress,
        history: job.history.clone(),
        answer: None,
        follow: Vec::new(),
        key: None,
        now,
        again: false,
    })
}

/// Writes how a job ended, for as long as the job is ours to write about. Whether it was.
async fn write(bench: &Bench, table: &Table, settle: Settle) -> bool {
    let (desk, mut settle) = (bench.desk(), Arc::new(settle));
    let mut pause = Duration::from_millis(50);
    loop {
        match desk.store.settle(Arc::clone(&settle)).await {
            Ok(Settled::Kept | Settled::Cancelled) => {
                if !settle.follow.is_empty() {
                    desk.bell.notify_one();
                }
                return true;
            }
            Ok(Settled::Lost) => {
                desk.counts.lost_leases.fetch_add(1, Ordering::Relaxed);
                return false;
            }
            Err(error) if error.passes() && is_ours(table, &settle, desk.now()) => {
                // The answer may be all that got lost.
                Arc::make_mut(&mut settle).again = true;
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(2));
            }
            // It will be found by its lease and run again.
            Err(_) => return false,
        }
    }
}

fn is_ours(table: &Table, settle: &Settle, now: Wall) -> bool {
    table.running.borrow().get(&settle.lease).is_some_and(|running| now < running.until)
}
