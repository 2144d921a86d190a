//! A worker: claims jobs in batches, runs them concurrently, renews their leases, and gives them back in order when the process stops.

use super::job_call::Bench;
use super::leases::{ANY, BATCH, LeaseTable, NEWS};
use super::runner::{StopReason, accept, given_up, queue_settlement};
use crate::DrainPhase;
use crate::ServerState;
use anyhow::Context as _;
use seawall_core::time::{Nanos, Wall};
use seawall_store::job::{AD_HOC, ClaimRequest, JobLease, Renewed};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::LocalSet;

/// Interval of the checks for due jobs.
const TICK: Duration = Duration::from_millis(100);
/// Interval of the sweep for idle connections.
const SWEEP: Duration = Duration::from_secs(10);
/// Length of a lease beyond the longest attempt.
const GRACE: Nanos = Nanos::from_secs(10);
/// Pause after a failed renewal.
const RENEW_AGAIN: Nanos = Nanos::from_secs(1);
/// Time limit of the last settlements when the process stops at once.
const LAST_SETTLEMENTS: Duration = Duration::from_secs(2);

/// The main function of a worker thread.
pub(crate) fn work(shared: &Arc<ServerState>, number: usize, phases: watch::Receiver<DrainPhase>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    LocalSet::new().block_on(&runtime, async {
        let table = Rc::new(LeaseTable::new(shared.desk.crew.size()));
        let worker = Rc::new(JobWorker { number, bench: Rc::new(Bench::new(Arc::clone(shared))), table });
        // In a task of its own, since a claim may take as long as a lease.
        let renewals = tokio::task::spawn_local({
            let worker = Rc::clone(&worker);
            async move { worker.keep_leases().await }
        });
        worker.serve(phases).await;
        renewals.abort();
        Ok(())
    })
}

struct JobWorker {
    number: usize,
    bench: Rc<Bench>,
    table: Rc<LeaseTable>,
}

impl JobWorker {
    async fn serve(&self, mut phases: watch::Receiver<DrainPhase>) {
        let desk = self.bench.desk();
        desk.follow().await;
        desk.keep_secret().await;
        if self.number == 0 {
            desk.notice_step_before_start().await;
        }
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut sweep = tokio::time::interval(SWEEP);
        // Skips the immediate first tick and sweep: each means to `trust` that an interval has passed without a crash.
        tick.reset();
        sweep.reset();
        // A tick moves a limited number of jobs. If it moved some, there may be more.
        let (mut lanes, mut more) = self.tend(Vec::new()).await;
        self.table.announce_room();
        loop {
            // Number of free slots that justify a claim now.
            let worth = tokio::select! {
                _ = phases.wait_for(|phase| *phase >= DrainPhase::Draining) => break,
                _ = tick.tick() => {
                    self.table.trust();
                    (lanes, more) = self.tend(lanes).await;
                    ANY
                }
                () = self.news() => {
                    lanes = self.lanes(lanes);
                    NEWS
                }
                () = desk.crew.passed_on(), if lanes.is_empty() => {
                    lanes = self.lanes(lanes);
                    NEWS
                }
                () = self.table.freed.notified() => BATCH,
                _ = sweep.tick() => {
                    self.sweep();
                    BATCH
                }
            };
            if more && lanes.is_empty() {
                (lanes, more) = self.tend(lanes).await;
            }
            // Claims once. Later free slots notify this loop, so that other events get their turn in between.
            if !lanes.is_empty() && self.table.has_room(worth) && *phases.borrow() == DrainPhase::Serving {
                lanes = self.claim(lanes).await;
            }
            // Not if this worker continues by itself: two workers that pass on unexamined lanes would keep each other awake forever.
            if !lanes.is_empty() && !self.table.has_room(BATCH) {
                desk.crew.pass_on();
            }
        }
        self.drain(phases).await;
    }

    /// Waits for a signal that there is work.
    async fn news(&self) {
        let desk = self.bench.desk();
        tokio::select! {
            () = desk.crew.rung() => {}
            () = desk.store.woken() => {}
        }
    }

    /// Closes idle connections, and allows one more suspect.
    fn sweep(&self) {
        self.bench.sweep();
        self.table.sweep();
        if self.number == 0 {
            self.bench.desk().crew.trust();
        }
    }

    /// Returns all lanes, since a wake-up does not name its lane.
    fn lanes(&self, known: Vec<String>) -> Vec<String> {
        let live = self.bench.shared.live.load();
        let mut lanes: Vec<String> = live.upstreams.iter().map(|upstream| upstream.spec.name.clone()).collect();
        lanes.push(AD_HOC.to_owned());
        lanes.extend(known.into_iter().filter(|lane| live.named(lane).is_none() && lane != AD_HOC));
        lanes
    }

    /// Checks the clock, and worker 0 runs the tick for all workers. Returns the lanes with due jobs, and whether there may be more.
    async fn tend(&self, known: Vec<String>) -> (Vec<String>, bool) {
        let crew = &self.bench.desk().crew;
        match self.notice_steps().await {
            None => (known, false),
            Some(_) if self.number > 0 => (crew.take_ready_lanes(), false),
            Some(now) => {
                let (lanes, more) = self.tick(now).await;
                crew.add_ready_lanes(&lanes);
                (lanes, more)
            }
        }
    }

    /// Makes due jobs and expired leases available.
    async fn tick(&self, now: Wall) -> (Vec<String>, bool) {
        match self.bench.desk().store.tick(now, Some(self.bench.desk().holder)).await {
            Ok(tick) => {
                let recovered = u64::try_from(tick.recovered).unwrap_or(u64::MAX);
                self.bench.desk().counts.recovered.fetch_add(recovered, Ordering::Relaxed);
                (tick.lanes, tick.due + tick.recovered > 0)
            }
            // The store counts its own failures, and the next tick follows soon. Another server with another clock may reply then.
            Err(_) => {
                self.bench.desk().follow().await;
                (Vec::new(), false)
            }
        }
    }

    /// After a step of the clock, renews our leases under the new time before another worker finds them expired. Returns the time, if the
    /// leases of all workers are based on it.
    async fn notice_steps(&self) -> Option<Wall> {
        let crew = &self.bench.desk().crew;
        let (clock, now) = self.bench.desk().offset();
        if crew.was_set(self.number, clock) {
            self.renew().await;
            // Worker 0 shifts the waiting jobs for all, and repeats that until the store confirms.
            let by = crew.set_back_by(self.number, clock).filter(|_| self.number == 0);
            if let Some(by) = by
                && !self.bench.desk().keep_waits(now, by).await
            {
                return None;
            }
        }
        crew.holds_by(self.number, clock);
        crew.all_hold_by(clock).then_some(now)
    }

    /// Returns the length of a lease: the longest attempt and a grace period. A worker that has not renewed by then is dead.
    fn lease(&self) -> Nanos {
        let live = self.bench.shared.live.load();
        let endpoints = live.upstreams.iter().flat_map(|upstream| &upstream.endpoints);
        let longest = endpoints.map(|endpoint| endpoint.spec.policy.timeout.attempt).max().unwrap_or(Nanos::ZERO);
        longest.max(Nanos::from_secs(20)) + GRACE
    }

    /// Claims as many jobs as fit. Returns the lanes that may have more.
    async fn claim(&self, mut lanes: Vec<String>) -> Vec<String> {
        let wishes = self.table.deal(&lanes);
        if wishes.is_empty() {
            return lanes;
        }
        let desk = self.bench.desk();
        let (now, lease, begun) = (desk.now(), self.lease(), self.bench.shared.clock.now().mono);
        let rules = self.bench.shared.live.load().rules;
        let Ok(claimed) = desk.store.claim(ClaimRequest { lanes: wishes.clone(), token: desk.next_token(), lease, now, rules }).await
        else {
            return Vec::new();
        };
        if claimed.len() < wishes.iter().map(|(_, most)| most).sum() {
            let mut missing: HashMap<&str, usize> = wishes.iter().map(|(lane, most)| (lane.as_str(), *most)).collect();
            for claimed in &claimed {
                missing.entry(&claimed.job.upstream).and_modify(|most| *most = most.saturating_sub(1));
            }
            lanes.retain(|lane| missing.get(lane.as_str()).is_none_or(|missing| *missing == 0));
        }
        if !claimed.is_empty() {
            self.table.renew_within(lease, begun);
        }
        claimed.into_iter().for_each(|claimed| accept(&self.bench, &self.table, claimed, now + lease));
        // Some jobs were claimed, or a lane is known to be empty, so the next round differs from this one.
        self.table.announce_room();
        lanes
    }

    /// Stops a job. Returns false if it had just ended.
    fn stop(&self, lease: JobLease, why: StopReason) -> bool {
        let Some(claimed) = self.table.stop(&lease) else { return false };
        match given_up(&self.bench, &self.table, &claimed, why) {
            Some(settle) => queue_settlement(&self.bench, &self.table, settle),
            None => self.table.end(&lease),
        }
        true
    }

    /// Renews leases when the first of them is due, until the worker ends.
    async fn keep_leases(&self) {
        loop {
            tokio::time::sleep(TICK).await;
            if self.table.takes_renewal(self.bench.shared.clock.now().mono) {
                self.renew().await;
            }
        }
    }

    /// Renews all leases. Their length follows the current configuration.
    async fn renew(&self) {
        let desk = self.bench.desk();
        let (leases, lease, begun) = (self.table.leases(), self.lease(), self.bench.shared.clock.now().mono);
        let until = desk.now() + lease;
        let renewed = if leases.is_empty() { Ok(Vec::new()) } else { desk.store.renew(leases.clone(), until).await };
        if !leases.is_empty() {
            // A failed renewal is repeated soon, for as long as the lease lasts.
            self.table.renew_within(if renewed.is_ok() { lease } else { Nanos(3 * RENEW_AGAIN.0) }, begun);
        }
        let lost: u64 = match renewed {
            Ok(answers) => leases.iter().zip(answers).map(|(lease, answer)| self.renewed(*lease, answer, until)).sum(),
            // Stops jobs whose lease has expired by our clock, before another worker may start them.
            Err(_) => self.table.expired_at(desk.now()).into_iter().map(|lease| u64::from(self.stop(lease, StopReason::Lost))).sum(),
        };
        desk.counts.lost_leases.fetch_add(lost, Ordering::Relaxed);
    }

    /// Applies the reply to one renewal. Returns the number of lost leases.
    fn renewed(&self, lease: JobLease, answer: Renewed, until: Wall) -> u64 {
        match answer {
            Renewed::Held => self.table.hold(&lease, until),
            Renewed::Cancelling => _ = self.stop(lease, StopReason::Cancel),
            Renewed::Lost => return u64::from(self.stop(lease, StopReason::Lost)),
        }
        0
    }

    /// Finishes running jobs while there is time, and gives back the rest.
    async fn drain(&self, mut phases: watch::Receiver<DrainPhase>) {
        self.bench.desk().crew.close();
        while !self.table.is_empty() {
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(10)) => {}
                _ = phases.wait_for(|phase| *phase >= DrainPhase::Stopping) => break,
            }
        }
        for lease in self.table.leases() {
            self.stop(lease, StopReason::Release);
        }
        let settled = async {
            while !self.table.is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        // Jobs that are not settled by then are recovered when their lease expires.
        drop(tokio::time::timeout(LAST_SETTLEMENTS, settled).await);
    }
}
