//! What a worker holds: jobs that run, and jobs that are over but for the disk. It knows how many more there is room for, and nothing
//! of what they do.

use seawall_core::time::Wall;
use seawall_store::job::{Claimed, Lease, SUSPECT, Settle};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// Jobs that a worker runs side by side.
const SLOTS: usize = 256;
/// Of these, what one lane may have while others have work: a slow upstream never takes them all.
const LANE_SLOTS: usize = SLOTS / 2;
/// What all workers of a process begin with together. Each job that ends earns its worker one more, and each tick that is lived
/// through twice as many: a program that dies soon after its start, over and over, shall not take hundreds of jobs with it that are
/// not to blame.
const FIRST_SLOTS: usize = 8;
/// Times its slots that it may hold: those that run, and those that are over but for the disk, which is slow at times.
const HELD: usize = 4;
/// So many slots that have become free are worth a claim of their own: what a claim costs is little more for many than for one.
pub(super) const BATCH: usize = 96;
/// So many are, where there is news of work; fewer wait for the next tick, when any are.
pub(super) const NEWS: usize = 32;
pub(super) const ANY: usize = 1;

struct Running {
    claimed: Rc<Claimed>,
    until: Wall,
    task: AbortHandle,
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

pub(super) struct Table {
    running: RefCell<HashMap<Lease, Running>>,
    /// Those that take no place.
    aside: Cell<usize>,
    /// What it may run side by side by now.
    slots: Cell<usize>,
    /// How often it was dealt.
    dealt: Cell<usize>,
    pub freed: Notify,
    /// Ends that are about to be handed to the store, together.
    ends: RefCell<Vec<Arc<Settle>>>,
}

impl Table {
    /// For one of so many workers.
    pub(super) fn new(workers: usize) -> Self {
        let (running, ends) = (RefCell::default(), RefCell::default());
        let first = (FIRST_SLOTS / workers).max(1);
        Self { running, aside: Cell::new(0), slots: Cell::new(first), dealt: Cell::new(0), freed: Notify::new(), ends }
    }

    pub(super) fn free(&self) -> usize {
        let (held, slots) = (self.running.borrow().len(), self.slots.get());
        let running = held.saturating_sub(self.aside.get());
        slots.saturating_sub(running).min((HELD * slots).saturating_sub(held))
    }

    /// Deals what is free out to the lanes, beginning with another one each time: where there is less than one for each, all have
    /// their turn.
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
        self.running.borrow().is_empty()
    }

    /// Whether so many slots are free, or half of those that there are by now.
    pub(super) fn has_room(&self, slots: usize) -> bool {
        self.free() >= slots.min(self.slots.get().div_ceil(2))
    }

    /// Time has passed, and nothing that is running has ended the process.
    pub(super) fn trust(&self) {
        self.slots.set(SLOTS.min(self.slots.get() * 2));
    }

    pub(super) fn begin(&self, claimed: Rc<Claimed>, until: Wall, task: AbortHandle) {
        let standing = if claimed.job.crashes >= SUSPECT { Standing::Suspect } else { Standing::Running };
        if standing != Standing::Running {
            self.aside.set(self.aside.get() + 1);
        }
        self.running.borrow_mut().insert(claimed.lease, Running { claimed, until, task, standing });
    }

    /// Its call is over; how it ended is about to be written.
    pub(super) fn settle(&self, lease: &Lease) {
        if let Some(running) = self.running.borrow_mut().get_mut(lease) {
            if running.standing == Standing::Running {
                self.aside.set(self.aside.get() + 1);
            }
            running.standing = Standing::Settling;
        }
        self.tell_of_room();
    }

    pub(super) fn end(&self, lease: &Lease) {
        if self.running.borrow_mut().remove(lease).is_some_and(|ended| ended.standing != Standing::Running) {
            self.aside.set(self.aside.get().saturating_sub(1));
        }
        self.slots.set(SLOTS.min(self.slots.get() + 1));
        self.tell_of_room();
    }

    /// Room for many is worth a look at what there is to do.
    pub(super) fn tell_of_room(&self) {
        if self.has_room(BATCH) {
            self.freed.notify_one();
        }
    }

    pub(super) fn in_lane(&self, lane: &str) -> usize {
        let running = self.running.borrow();
        running.values().filter(|running| running.standing != Standing::Settling && running.claimed.job.upstream == lane).count()
    }

    pub(super) fn leases(&self) -> Vec<Lease> {
        self.running.borrow().keys().copied().collect()
    }

    /// Those whose time is over.
    pub(super) fn over_by(&self, now: Wall) -> Vec<Lease> {
        self.running.borrow().iter().filter(|(_, running)| running.until <= now).map(|(lease, _)| *lease).collect()
    }

    pub(super) fn hold(&self, lease: &Lease, until: Wall) {
        if let Some(running) = self.running.borrow_mut().get_mut(lease) {
            running.until = until;
        }
    }

    pub(super) fn is_ours(&self, lease: &Lease, now: Wall) -> bool {
        self.running.borrow().get(lease).is_some_and(|running| now < running.until)
    }

    /// Stops a job where it is, and gives it to whoever says what becomes of it. None where it has just come to its end.
    pub(super) fn stop(&self, lease: &Lease) -> Option<Rc<Claimed>> {
        let running = self.running.borrow();
        let stopped = running.get(lease).filter(|running| running.standing != Standing::Settling)?;
        stopped.task.abort();
        Some(Rc::clone(&stopped.claimed))
    }

    /// Whether it is the first of those that wait to be handed over.
    pub(super) fn put_end(&self, settle: Settle) -> bool {
        let mut ends = self.ends.borrow_mut();
        ends.push(Arc::new(settle));
        ends.len() == 1
    }

    pub(super) fn take_ends(&self) -> Vec<Arc<Settle>> {
        self.ends.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_core::decide::Progress;
    use seawall_core::id::CallId;
    use seawall_core::time::Nanos;
    use seawall_store::Store;
    use seawall_store::job::{Claim, NewJob, Origin, Request};
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
            request: Request { method: "GET".to_owned(), path: "/".to_owned(), ..Request::default() },
            idempotency_key: None,
            dedup: None,
            fingerprint: [0; 32],
            correlation_id: None,
            callback: None,
            run_at: NOON,
            expires_at: None,
            origin: Origin::Caller,
            progress: Progress::default(),
            history: Vec::new(),
        }
    }

    /// A table with so many jobs that a store gave away, the last of them a suspect.
    async fn table(most: u8) -> (Table, Vec<Lease>) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&Location::Sqlite(folder.path().join("seawall.db"))).await.unwrap();
        store.enqueue((0..most).map(job).collect(), NOON).await.unwrap();
        let lanes = vec![("u".to_owned(), usize::from(most))];
        let mut claimed = store.claim(Claim { lanes, token: 1, lease: Nanos::from_secs(30), now: NOON }).await.unwrap();
        claimed.last_mut().unwrap().job.crashes = SUSPECT;
        let (table, leases) = (Table::new(1), claimed.iter().map(|claimed| claimed.lease).collect());
        let mut tasks = JoinSet::new();
        for claimed in claimed {
            table.begin(Rc::new(claimed), NOON, tasks.spawn(std::future::pending::<()>()));
        }
        (table, leases)
    }

    #[tokio::test]
    async fn only_what_runs_takes_a_slot_and_each_end_earns_one() {
        let (table, leases) = table(3).await;
        assert_eq!((table.free(), table.in_lane("u"), table.in_lane("v")), (FIRST_SLOTS - 2, 3, 0), "a suspect waits aside");
        table.settle(&leases[0]);
        assert_eq!((table.free(), table.in_lane("u")), (FIRST_SLOTS - 1, 2), "one that is over takes no place at the upstream");
        leases.iter().for_each(|lease| table.end(lease));
        assert_eq!((table.free(), table.is_empty()), (FIRST_SLOTS + 3, true));
    }

    #[tokio::test]
    async fn what_is_free_is_worth_a_claim_sooner_or_later() {
        let (table, leases) = table(8).await;
        assert!(!table.has_room(BATCH) && table.has_room(ANY), "all but the suspect's");
        leases[..3].iter().for_each(|lease| table.settle(lease));
        assert!(table.has_room(BATCH), "half of what there is for now");
        (0..9).for_each(|_| table.trust());
        assert_eq!(table.free(), SLOTS - 4);
        assert!(table.has_room(BATCH));
    }

    #[tokio::test]
    async fn lanes_are_dealt_no_more_than_is_free_and_all_have_their_turn() {
        let lanes: Vec<String> = ["u", "v", "w"].map(str::to_owned).to_vec();
        let dealt = |table: &Table, lanes: &[String]| -> Vec<String> {
            table.deal(lanes).into_iter().map(|(lane, most)| format!("{lane} {most}")).collect()
        };
        let (table, leases) = table(8).await;
        assert_eq!(dealt(&table, &lanes), ["u 1"]);
        assert_eq!(dealt(&table, &lanes), ["v 1"]);
        assert_eq!(dealt(&table, &lanes), ["w 1"]);
        leases[..6].iter().for_each(|lease| table.settle(lease));
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
        table.settle(&leases[0]);
        assert!(table.stop(&leases[0]).is_none(), "it is over but for the disk");
        for lease in &leases[1..] {
            assert_eq!(table.stop(lease).map(|claimed| claimed.lease), Some(*lease));
            table.settle(lease);
            assert!(table.stop(lease).is_none());
        }
        leases.iter().for_each(|lease| table.end(lease));
        assert!(table.stop(&leases[1]).is_none());
        assert_eq!((table.free(), table.is_empty()), (FIRST_SLOTS + 3, true), "no place is counted twice");
    }

    #[tokio::test]
    async fn a_job_is_ours_until_its_time_is_over() {
        let (table, leases) = table(2).await;
        let later = Wall(NOON.0 + 1);
        table.hold(&leases[0], later);
        assert_eq!((table.is_ours(&leases[0], NOON), table.is_ours(&leases[1], NOON)), (true, false));
        assert_eq!(table.over_by(NOON), [leases[1]]);
        assert_eq!(table.over_by(later).len(), 2);
    }
}
