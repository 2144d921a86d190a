//! The leases of one worker: jobs that are claimed, that run, and whose result is being written. The table knows how many more jobs fit; it
//! does not know what they do.

use super::concurrency::Concurrency;
use seawall_core::time::{Mono, Nanos, Wall};
use seawall_store::job::{Claimed, JobLease, SUSPECT, SettleJob};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::task::AbortHandle;

/// Maximum jobs that a worker has claimed or runs at once.
const SLOTS: usize = 256;
/// Share of one lane while other lanes have work, so that a slow upstream never takes all slots.
const LANE_SLOTS: usize = SLOTS / 2;
/// Slots of all workers of a process together at start. Each job that ends adds one slot to its worker, and each tick doubles them. If the
/// program crashes again and again soon after its start, few innocent jobs are counted as suspects.
const FIRST_SLOTS: usize = 8;
/// Limit of held jobs as a multiple of the slots. It includes finished jobs whose result is not on disk yet; disks are slow at times.
const HELD: usize = 4;
/// Free slots that justify a claim of their own. A large claim costs little more than a small one.
pub(super) const BATCH: usize = 96;
/// Free slots that justify a claim after a wake-up. With fewer, the worker waits for the next tick, which claims for `ANY`.
pub(super) const NEWS: usize = 32;
pub(super) const ANY: usize = 1;

struct LeasedJobs {
    claimed: Rc<Claimed>,
    until: Wall,
    /// Start of its request, if that may not be repeated.
    begun_at: Option<Wall>,
    /// A rule lets its request be repeated, so the start is not written to the store.
    repeats_by_rule: bool,
    standing: LeaseState,
    /// Memory permit of its body.
    room: Option<OwnedSemaphorePermit>,
    /// Memory permit of its response.
    answer: Option<OwnedSemaphorePermit>,
}

/// The state of a leased job. It decides whether the job takes a slot.
#[derive(Debug)]
enum LeaseState {
    /// Claimed, not started.
    InHand,
    Running(AbortHandle),
    /// Waits for one of the few places for suspects, or runs in it. Takes no slot.
    Suspect(AbortHandle),
    /// Finished; its result is being written. Takes no slot.
    Settling,
}

impl LeaseState {
    const fn takes_slot(&self) -> bool {
        matches!(self, Self::InHand | Self::Running(_))
    }
}

pub(super) struct LeaseTable {
    held: RefCell<HashMap<JobLease, LeasedJobs>>,
    /// Number of jobs that take no slot.
    aside: Cell<usize>,
    /// Claimed jobs, and the decision when each starts.
    pace: RefCell<Concurrency<Rc<Claimed>>>,
    /// Whether a task calls `look` for the claimed jobs.
    looked_after: Cell<bool>,
    /// Current limit of claimed and running jobs.
    slots: Cell<usize>,
    /// Number of calls of `deal`.
    dealt: Cell<usize>,
    pub freed: Notify,
    /// Time at which the first lease must be renewed; `None` without leases.
    renew_at: Cell<Option<Mono>>,
    /// Results that wait to be written in one batch.
    ends: RefCell<Vec<Arc<SettleJob>>>,
}

impl LeaseTable {
    /// Creates the table of one of `workers` workers.
    pub(super) fn new(workers: usize) -> Self {
        Self {
            held: RefCell::default(),
            aside: Cell::new(0),
            pace: RefCell::new(Concurrency::new(SLOTS)),
            looked_after: Cell::new(false),
            slots: Cell::new((FIRST_SLOTS / workers).max(1)),
            dealt: Cell::new(0),
            freed: Notify::new(),
            renew_at: Cell::new(None),
            ends: RefCell::default(),
        }
    }

    pub(super) fn free(&self) -> usize {
        let (held, slots) = (self.held.borrow().len(), self.slots.get());
        slots.saturating_sub(self.taken()).min((HELD * slots).saturating_sub(held))
    }

    /// Returns the number of slots in use.
    fn taken(&self) -> usize {
        self.held.borrow().len().saturating_sub(self.aside.get())
    }

    /// Distributes the free slots over the lanes. Each call begins with another lane, so that all have their turn if there are fewer slots
    /// than lanes.
    pub(super) fn deal(&self, lanes: &[String]) -> Vec<(String, usize)> {
        let share = if lanes.len() > 1 { LANE_SLOTS } else { SLOTS };
        let first = self.dealt.replace(self.dealt.get().wrapping_add(1)).checked_rem(lanes.len()).unwrap_or(0);
        let (mut free, mut left) = (self.free(), lanes.len());
        let mut dealt = Vec::with_capacity(left);
        for lane in lanes[first..].iter().chain(&lanes[..first]) {
            if free == 0 {
                break;
            }
            let most = share.saturating_sub(self.in_lane(lane)).min(free.div_ceil(left));
            if most > 0 {
                dealt.push((lane.clone(), most));
            }
            (free, left) = (free - most, left - 1);
        }
        dealt
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.borrow().is_empty()
    }

    /// Returns whether `slots` slots, or half of the current limit, are free.
    pub(super) fn has_room(&self, slots: usize) -> bool {
        self.free() >= slots.min(self.slots.get().div_ceil(2))
    }

    /// Doubles the slots, since time has passed and no running job has crashed the process.
    pub(super) fn trust(&self) {
        self.slots.set(SLOTS.min(self.slots.get() * 2));
    }

    /// Adds a claimed job. Returns the job of its lane to start now, if any. A suspect starts at once: it waits for a place of its own.
    #[must_use]
    pub(super) fn take(&self, claimed: Rc<Claimed>, until: Wall) -> Option<Rc<Claimed>> {
        let (job, mut pace) = (&claimed.job, self.pace.borrow_mut());
        let next = if is_suspect(&claimed) {
            Some(Rc::clone(&claimed))
        } else {
            pace.take(&job.upstream, job.priority, Rc::clone(&claimed));
            pace.next(&job.upstream)
        };
        let (begun_at, repeats_by_rule, standing) = (None, false, LeaseState::InHand);
        let held = LeasedJobs { claimed, until, begun_at, repeats_by_rule, standing, room: None, answer: None };
        self.held.borrow_mut().insert(held.claimed.lease, held);
        next
    }

    pub(super) fn begun(&self, lease: &JobLease, task: AbortHandle) {
        if let Some(held) = self.held.borrow_mut().get_mut(lease) {
            held.standing = if is_suspect(&held.claimed) {
                self.aside.set(self.aside.get() + 1);
                LeaseState::Suspect(task)
            } else {
                LeaseState::Running(task)
            };
        }
    }

    /// Returns true if the caller must begin to call `look`: there are claimed jobs, and no task looks after them yet.
    pub(super) fn begin_looks(&self) -> bool {
        let begins = !self.looked_after.get() && self.has_unbegun();
        if begins {
            self.pace.borrow_mut().begin_looks();
            self.looked_after.set(true);
        }
        begins
    }

    pub(super) fn end_looks(&self) {
        self.looked_after.set(false);
    }

    pub(super) fn has_unbegun(&self) -> bool {
        !self.pace.borrow().is_idle()
    }

    /// Adapts to the time since the last look, of which the worker was busy for `busy`. Returns the jobs to start in addition.
    pub(super) fn look(&self, time: Nanos, busy: Nanos) -> Vec<Rc<Claimed>> {
        self.pace.borrow_mut().look(time, busy)
    }

    /// Forgets the measurements of lanes.
    pub(super) fn sweep(&self) {
        self.pace.borrow_mut().sweep();
    }

    /// Marks a job whose call is over and whose result is about to be written. Returns the next job of its lane, if one may start.
    #[must_use]
    pub(super) fn settle(&self, lease: &JobLease) -> Option<Rc<Claimed>> {
        let next = self.held.borrow_mut().get_mut(lease).and_then(|held| {
            let was = std::mem::replace(&mut held.standing, LeaseState::Settling);
            if was.takes_slot() {
                self.aside.set(self.aside.get() + 1);
            }
            self.leave(&held.claimed, &was);
            self.pace.borrow_mut().next(&held.claimed.job.upstream)
        });
        self.announce_room();
        next
    }

    pub(super) fn end(&self, lease: &JobLease) {
        if let Some(ended) = self.held.borrow_mut().remove(lease) {
            if !ended.standing.takes_slot() {
                self.aside.set(self.aside.get().saturating_sub(1));
            }
            self.leave(&ended.claimed, &ended.standing);
        }
        self.slots.set(SLOTS.min(self.slots.get() + 1));
        self.announce_room();
    }

    /// Removes the job from the count of its lane.
    fn leave(&self, claimed: &Claimed, standing: &LeaseState) {
        let (mut pace, lane) = (self.pace.borrow_mut(), &claimed.job.upstream);
        match standing {
            LeaseState::InHand => pace.remove(lane, |one| one.lease == claimed.lease),
            LeaseState::Running(_) => pace.on_finished(lane),
            LeaseState::Suspect(_) | LeaseState::Settling => {}
        }
    }

    /// Wakes the claiming task if a batch of slots is free.
    pub(super) fn announce_room(&self) {
        if self.has_room(BATCH) {
            self.freed.notify_one();
        }
    }

    pub(super) fn in_lane(&self, lane: &str) -> usize {
        let held = self.held.borrow();
        held.values().filter(|held| !matches!(held.standing, LeaseState::Settling) && held.claimed.job.upstream == lane).count()
    }

    pub(super) fn leases(&self) -> Vec<JobLease> {
        self.held.borrow().keys().copied().collect()
    }

    /// Returns the leases that have expired.
    pub(super) fn expired_at(&self, now: Wall) -> Vec<JobLease> {
        self.held.borrow().iter().filter(|(_, held)| held.until <= now).map(|(lease, _)| *lease).collect()
    }

    pub(super) fn hold(&self, lease: &JobLease, until: Wall) {
        if let Some(held) = self.held.borrow_mut().get_mut(lease) {
            held.until = until;
        }
    }

    /// Schedules the renewal of leases of this length that begin now: after a third of it. Other leases may have another length, so the
    /// earliest time wins.
    pub(super) fn renew_within(&self, lease: Nanos, now: Mono) {
        let at = now + Nanos(lease.0 / 3);
        self.renew_at.set(Some(self.renew_at.get().map_or(at, |sooner| sooner.min(at))));
    }

    /// Returns whether leases must be renewed now. The caller then renews all of them and reports their new length to `renew_within`.
    pub(super) fn takes_renewal(&self, now: Mono) -> bool {
        let is_due = self.renew_at.get().is_some_and(|at| at <= now);
        if is_due {
            self.renew_at.set(None);
        }
        is_due
    }

    pub(super) fn is_ours(&self, lease: &JobLease, now: Wall) -> bool {
        self.held.borrow().get(lease).is_some_and(|held| now < held.until)
    }

    /// Stores a job whose body is in memory now, with the body's memory permit until the job is over.
    pub(super) fn load(&self, claimed: Rc<Claimed>, room: OwnedSemaphorePermit) {
        if let Some(held) = self.held.borrow_mut().get_mut(&claimed.lease) {
            (held.claimed, held.room) = (claimed, Some(room));
        }
    }

    /// Keeps the memory permit of the job's response until the job is over.
    pub(super) fn keep_answer(&self, lease: &JobLease, room: Option<OwnedSemaphorePermit>) {
        if let (Some(room), Some(held)) = (room, self.held.borrow_mut().get_mut(lease)) {
            held.answer = Some(room);
        }
    }

    /// Notes that a request that may not be repeated is about to be sent.
    pub(super) fn mark_begun(&self, lease: &JobLease, at: Wall) {
        if let Some(held) = self.held.borrow_mut().get_mut(lease) {
            held.begun_at = Some(at);
        }
    }

    /// Notes that a request that a rule lets be repeated is about to be sent.
    pub(super) fn mark_repeats_by_rule(&self, lease: &JobLease) {
        if let Some(held) = self.held.borrow_mut().get_mut(lease) {
            held.repeats_by_rule = true;
        }
    }

    /// Returns whether a request may have been sent that only a rule lets be repeated.
    pub(super) fn repeats_by_rule(&self, lease: &JobLease) -> bool {
        self.held.borrow().get(lease).is_some_and(|held| held.repeats_by_rule)
    }

    /// Returns the start of a request that may not be repeated, if it was sent.
    pub(super) fn begun_at(&self, lease: &JobLease) -> Option<Wall> {
        self.held.borrow().get(lease).and_then(|held| held.begun_at)
    }

    /// Aborts a job and returns it, so that the caller decides its result. Returns `None` if it has just finished.
    pub(super) fn stop(&self, lease: &JobLease) -> Option<Rc<Claimed>> {
        let held = self.held.borrow();
        let stopped = held.get(lease)?;
        match &stopped.standing {
            LeaseState::InHand => {}
            LeaseState::Running(task) | LeaseState::Suspect(task) => task.abort(),
            LeaseState::Settling => return None,
        }
        Some(Rc::clone(&stopped.claimed))
    }

    /// Queues a result for the store. Returns whether it is the first in the queue, so that the caller starts the batch.
    pub(super) fn queue_end(&self, settle: SettleJob) -> bool {
        let mut ends = self.ends.borrow_mut();
        ends.push(Arc::new(settle));
        ends.len() == 1
    }

    pub(super) fn take_ends(&self) -> Vec<Arc<SettleJob>> {
        self.ends.take()
    }
}

fn is_suspect(claimed: &Claimed) -> bool {
    claimed.job.crashes >= SUSPECT
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::concurrency::FEW;
    use seawall_core::decide::CallProgress;
    use seawall_core::id::CallId;
    use seawall_store::Store;
    use seawall_store::job::{ClaimRequest, JobOrigin, JobRequest, NewJob};
    use seawall_store::location::Location;
    use tokio::task::JoinSet;

    const NOON: Wall = Wall(1_800_000_000_000);

    fn job(number: u8) -> NewJob {
        NewJob {
            id: CallId::from_bytes([number; 16]),
            upstream: "u".to_owned(),
            tenant: String::new(),
            caller: String::new(),
            priority: 0,
            request: JobRequest { method: "GET".to_owned(), path: "/".to_owned(), ..JobRequest::default() },
            idempotency_key: None,
            dedup: None,
            fingerprint: [0; 32],
            correlation_id: None,
            callback: None,
            run_at: NOON,
            expires_at: None,
            origin: JobOrigin::Caller,
            progress: CallProgress::default(),
            history: Vec::new(),
        }
    }

    /// A table with `most` jobs claimed from a store; the last one is a suspect.
    async fn table(most: u8) -> (LeaseTable, Vec<JobLease>) {
        let mut claimed = claimed(most).await;
        claimed.last_mut().unwrap().job.crashes = SUSPECT;
        held(claimed)
    }

    /// A table with `most` claimed jobs that have not started, and `FEW` running ones.
    async fn with_in_hand(most: usize) -> (LeaseTable, Vec<JobLease>) {
        held(claimed(u8::try_from(FEW + most).unwrap()).await)
    }

    async fn claimed(most: u8) -> Vec<Claimed> {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&Location::Sqlite(folder.path().join("seawall.db"))).await.unwrap();
        store.enqueue((0..most).map(job).collect(), NOON).await.unwrap();
        let lanes = vec![("u".to_owned(), usize::from(most))];
        store.claim(ClaimRequest { lanes, token: 1, lease: Nanos::from_secs(30), now: NOON, rules: 0 }).await.unwrap()
    }

    fn held(claimed: Vec<Claimed>) -> (LeaseTable, Vec<JobLease>) {
        let (table, leases): (_, Vec<JobLease>) = (LeaseTable::new(1), claimed.iter().map(|claimed| claimed.lease).collect());
        let mut tasks = JoinSet::new();
        for next in claimed.into_iter().filter_map(|claimed| table.take(Rc::new(claimed), NOON)) {
            table.begun(&next.lease, tasks.spawn(std::future::pending::<()>()));
        }
        (table, leases)
    }

    /// Settles a job behind which no other job of its lane waits.
    fn over(table: &LeaseTable, lease: &JobLease) {
        assert!(table.settle(lease).is_none());
    }

    #[tokio::test]
    async fn only_what_runs_takes_a_slot_and_each_end_earns_one() {
        let (table, leases) = table(3).await;
        assert_eq!((table.free(), table.in_lane("u"), table.in_lane("v")), (FIRST_SLOTS - 2, 3, 0), "a suspect waits aside");
        over(&table, &leases[0]);
        assert_eq!((table.free(), table.in_lane("u")), (FIRST_SLOTS - 1, 2), "one that is over takes no place at the upstream");
        leases.iter().for_each(|lease| table.end(lease));
        assert_eq!((table.free(), table.is_empty()), (FIRST_SLOTS + 3, true));
    }

    #[tokio::test]
    async fn what_is_free_is_worth_a_claim_sooner_or_later() {
        let (table, leases) = table(8).await;
        assert!(!table.has_room(BATCH) && table.has_room(ANY), "all but the suspect's");
        leases[..3].iter().for_each(|lease| over(&table, lease));
        assert!(table.has_room(BATCH), "half of what there is for now");
        (0..9).for_each(|_| table.trust());
        assert_eq!(table.free(), SLOTS - 4);
        assert!(table.has_room(BATCH));
    }

    #[tokio::test]
    async fn lanes_are_dealt_no_more_than_is_free_and_all_have_their_turn() {
        let lanes: Vec<String> = ["u", "v", "w"].map(str::to_owned).to_vec();
        let dealt = |table: &LeaseTable, lanes: &[String]| -> Vec<String> {
            table.deal(lanes).into_iter().map(|(lane, most)| format!("{lane} {most}")).collect()
        };
        let (table, leases) = table(8).await;
        assert_eq!(dealt(&table, &lanes), ["u 1"]);
        assert_eq!(dealt(&table, &lanes), ["v 1"]);
        assert_eq!(dealt(&table, &lanes), ["w 1"]);
        leases[..6].iter().for_each(|lease| over(&table, lease));
        assert_eq!(dealt(&table, &lanes), ["u 3", "v 2", "w 2"]);
        assert_eq!(dealt(&table, &lanes[..1]), ["u 7"]);
        assert!(table.deal(&[]).is_empty());
        (0..9).for_each(|_| table.trust());
        assert_eq!(dealt(&table, &lanes[1..]), ["v 128", "w 127"], "half for each");
        assert_eq!(dealt(&table, &lanes[..1]), ["u 254"], "one that runs, and one that waits its turn as a suspect");
    }

    #[tokio::test]
    async fn a_job_is_stopped_once_and_not_after_its_end() {
        let (table, leases) = table(3).await;
        over(&table, &leases[0]);
        assert!(table.stop(&leases[0]).is_none(), "it is over but for the disk");
        for lease in &leases[1..] {
            assert_eq!(table.stop(lease).map(|claimed| claimed.lease), Some(*lease));
            over(&table, lease);
            assert!(table.stop(lease).is_none());
        }
        leases.iter().for_each(|lease| table.end(lease));
        assert!(table.stop(&leases[1]).is_none());
        assert_eq!((table.free(), table.is_empty()), (FIRST_SLOTS + 3, true), "no place is counted twice");
    }

    #[tokio::test]
    async fn what_is_in_hand_takes_a_slot_and_is_begun_when_another_ends() {
        let (table, leases) = with_in_hand(3).await;
        assert_eq!((table.taken(), table.has_unbegun()), (FEW + 3, true));
        let next = table.settle(&leases[0]).expect("its lane has more");
        assert_eq!((next.lease, table.taken()), (leases[FEW], FEW + 2));
        table.begun(&next.lease, tokio::spawn(std::future::pending::<()>()).abort_handle());
        table.end(&leases[1]);
        assert_eq!(table.look(Nanos(1), Nanos::ZERO).len(), 1, "in the place of one that was lost");
        assert_eq!(table.taken(), FEW + 1);
        assert!(table.begin_looks() && !table.begin_looks(), "one looks, and not two");
    }

    #[tokio::test]
    async fn what_is_in_hand_is_given_back_without_being_begun() {
        let (table, leases) = with_in_hand(2).await;
        let (first, second) = (&leases[FEW], &leases[FEW + 1]);
        assert_eq!(table.stop(first).map(|claimed| claimed.lease), Some(*first));
        over(&table, first);
        assert!(table.stop(first).is_none() && table.has_unbegun());
        table.end(second);
        assert!(!table.has_unbegun(), "lost, it is nobody's to begin");
        table.end(first);
        over(&table, &leases[0]);
        assert_eq!((table.taken(), table.in_lane("u")), (FEW - 1, FEW - 1));
    }

    #[test]
    fn every_lease_is_renewed_before_half_of_it_is_over_whatever_a_reload_does_to_the_next_ones() {
        let (at, lease) = (|seconds| Mono::default() + Nanos::from_secs(seconds), Nanos::from_secs);
        let table = LeaseTable::new(1);
        assert!(!table.takes_renewal(at(1_000)), "nothing is held");
        table.renew_within(lease(610), at(0));
        table.renew_within(lease(30), at(1));
        assert!(!table.takes_renewal(at(10)) && table.takes_renewal(at(11)), "the shorter one counts");
        assert!(!table.takes_renewal(at(1_000)), "it is asked for once");
        table.renew_within(lease(30), at(11));
        table.renew_within(lease(610), at(12));
        assert!(!table.takes_renewal(at(20)) && table.takes_renewal(at(21)), "a longer one puts nothing off");
    }

    #[tokio::test]
    async fn a_job_is_ours_until_its_time_is_over() {
        let (table, leases) = table(2).await;
        let later = Wall(NOON.0 + 1);
        table.hold(&leases[0], later);
        assert_eq!((table.is_ours(&leases[0], NOON), table.is_ours(&leases[1], NOON)), (true, false));
        assert_eq!(table.expired_at(NOON), [leases[1]]);
        assert_eq!(table.expired_at(later).len(), 2);
    }
}
