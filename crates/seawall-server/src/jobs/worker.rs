//! A worker: claims jobs in batches, runs them side by side, holds on to their leases, and lets go in order when the
//! process stops.

use super::job_call::Bench;
use super::leases::{ANY, BATCH, LeaseTable, NEWS};
use super::runner::{StopReason, given_up, hand_in, take_up};
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

/// How often time itself is looked at.
const TICK: Duration = Duration::from_millis(100);
/// How often idle connections are looked after.
const SWEEP: Duration = Duration::from_secs(10);
/// What a lease has beyond the longest attempt.
const GRACE: Nanos = Nanos::from_secs(10);
/// The pause after a renewal that failed.
const RENEW_AGAIN: Nanos = Nanos::from_secs(1);
/// How long the last settlements may take when the process stops at once.
const LAST_SETTLEMENTS: Duration = Duration::from_secs(2);

/// The life of a worker thread, one of a crew.
pub(crate) fn work(shared: &Arc<ServerState>, number: usize, phases: watch::Receiver<DrainPhase>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    LocalSet::new().block_on(&runtime, async {
        let table = Rc::new(LeaseTable::new(shared.desk.crew.size()));
        let worker = Rc::new(JobWorker { number, bench: Rc::new(Bench::new(Arc::clone(shared))), table });
        // Beside whatever else it waits for: a claim may take as long as a lease.
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
        // Not at once: a tick or a sweep says that so much time was lived through.
        tick.reset();
        sweep.reset();
        // A tick moves so many at most; where it moved some, there may be more.
        let (mut lanes, mut more) = self.look(Vec::new()).await;
        self.table.tell_of_room();
        loop {
            // How many free slots are worth a claim now.
            let worth = tokio::select! {
                _ = phases.wait_for(|phase| *phase >= DrainPhase::Draining) => break,
                _ = tick.tick() => {
                    self.table.trust();
                    (lanes, more) = self.look(lanes).await;
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
                (lanes, more) = self.look(lanes).await;
            }
            // Once: where there is room for more after that, it says so itself, and whatever else has happened has its turn too.
            if !lanes.is_empty() && self.table.has_room(worth) && *phases.borrow() == DrainPhase::Serving {
                lanes = self.claim(lanes).await;
            }
            // Not where it goes on by itself: two that pass on what neither has looked at yet would keep each other awake for ever.
            if !lanes.is_empty() && !self.table.has_room(BATCH) {
                desk.crew.pass_on();
            }
        }
        self.let_go(phases).await;
    }

    /// Somebody says that there is work.
    async fn news(&self) {
        let desk = self.bench.desk();
        tokio::select! {
            () = desk.crew.rung() => {}
            () = desk.store.woken() => {}
        }
    }

    /// Time has passed: idle connections are looked after, and one more suspect may run.
    fn sweep(&self) {
        self.bench.sweep();
        self.table.sweep();
        if self.number == 0 {
            self.bench.desk().crew.trust();
        }
    }

    /// Every lane that there is, after the bell has rung: whoever rang it did not say for whom.
    fn lanes(&self, known: Vec<String>) -> Vec<String> {
        let live = self.bench.shared.live.load();
        let mut lanes: Vec<String> = live.upstreams.iter().map(|upstream| upstream.spec.name.clone()).collect();
        lanes.push(AD_HOC.to_owned());
        lanes.extend(known.into_iter().filter(|lane| live.named(lane).is_none() && lane != AD_HOC));
        lanes
    }

    /// Sees to its own leases, and to what time has brought about, which one does for all. The lanes with something to claim, and
    /// whether there may be more.
    async fn look(&self, known: Vec<String>) -> (Vec<String>, bool) {
        let crew = &self.bench.desk().crew;
        match self.notice_steps().await {
            None => (known, false),
            Some(_) if self.number > 0 => (crew.told(), false),
            Some(now) => {
                let (lanes, more) = self.tick(now).await;
                crew.tell(&lanes);
                (lanes, more)
            }
        }
    }

    /// Lets time do its work.
    async fn tick(&self, now: Wall) -> (Vec<String>, bool) {
        match self.bench.desk().store.tick(now, Some(self.bench.desk().holder)).await {
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

    /// After a step of the clock that leases live by, ours are held under the new time before anybody finds them over. The time, if
    /// everybody's are.
    async fn notice_steps(&self) -> Option<Wall> {
        let crew = &self.bench.desk().crew;
        let (clock, now) = self.bench.desk().offset();
        if crew.was_set(self.number, clock) {
            self.renew().await;
            // One does so for all, and again until the store has heard it.
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

    /// The longest that any attempt may take, and some: whoever has not renewed by then is gone.
    fn lease(&self) -> Nanos {
        let live = self.bench.shared.live.load();
        let endpoints = live.upstreams.iter().flat_map(|upstream| &upstream.endpoints);
        let longest = endpoints.map(|endpoint| endpoint.spec.policy.timeout.attempt).max().unwrap_or(Nanos::ZERO);
        longest.max(Nanos::from_secs(20)) + GRACE
    }

    /// Claims as much as there is room for. The lanes that may have more.
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
        claimed.into_iter().for_each(|claimed| take_up(&self.bench, &self.table, claimed, now + lease));
        // Some were claimed, or a lane is known to have none: the next look is another one.
        self.table.tell_of_room();
        lanes
    }

    /// Whether it was not over: one that has just ended needs no stopping.
    fn stop(&self, lease: JobLease, why: StopReason) -> bool {
        let Some(claimed) = self.table.stop(&lease) else { return false };
        match given_up(&self.bench, &self.table, &claimed, why) {
            Some(settle) => hand_in(&self.bench, &self.table, settle),
            None => self.table.end(&lease),
        }
        true
    }

    /// Renews leases when the first of them needs it, for as long as the worker lives.
    async fn keep_leases(&self) {
        loop {
            tokio::time::sleep(TICK).await;
            if self.table.takes_renewal(self.bench.shared.clock.now().mono) {
                self.renew().await;
            }
        }
    }

    /// Renews all that is held. A lease is as long as the configuration of this moment says.
    async fn renew(&self) {
        let desk = self.bench.desk();
        let (leases, lease, begun) = (self.table.leases(), self.lease(), self.bench.shared.clock.now().mono);
        let until = desk.now() + lease;
        let renewed = if leases.is_empty() { Ok(Vec::new()) } else { desk.store.renew(leases.clone(), until).await };
        if !leases.is_empty() {
            // What could not be renewed is tried again soon, for as long as it is held.
            self.table.renew_within(if renewed.is_ok() { lease } else { Nanos(3 * RENEW_AGAIN.0) }, begun);
        }
        let lost: u64 = match renewed {
            Ok(answers) => leases.iter().zip(answers).map(|(lease, answer)| self.renewed(*lease, answer, until)).sum(),
            // Whoever cannot renew stops before somebody else may begin.
            Err(_) => self.table.over_by(desk.now()).into_iter().map(|lease| u64::from(self.stop(lease, StopReason::Lost))).sum(),
        };
        desk.counts.lost_leases.fetch_add(lost, Ordering::Relaxed);
    }

    /// What a renewal says of one that is held; how many it says are lost.
    fn renewed(&self, lease: JobLease, answer: Renewed, until: Wall) -> u64 {
        match answer {
            Renewed::Held => self.table.hold(&lease, until),
            Renewed::Cancelling => _ = self.stop(lease, StopReason::Cancel),
            Renewed::Lost => return u64::from(self.stop(lease, StopReason::Lost)),
        }
        0
    }

    /// Finishes what it holds while there is time, and gives back the rest.
    async fn let_go(&self, mut phases: watch::Receiver<DrainPhase>) {
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
        // What is not settled by then is found by its lease.
        drop(tokio::time::timeout(LAST_SETTLEMENTS, settled).await);
    }
}
