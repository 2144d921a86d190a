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
pub(super) const SLOTS: usize = 256;
/// What it begins with. Each job that ends earns it one more, and each tick that it lives through twice as many: a program that
/// dies soon after its start, over and over, shall not take hundreds of jobs with it that are not to blame.
const FIRST_SLOTS: usize = 8;
/// Times its slots that it may hold: those that run, and those that are over but for the disk, which is slow at times.
const HELD: usize = 4;
/// So many free slots are worth a claim of their own.
const BATCH: usize = 32;

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
    pub freed: Notify,
    /// Ends that are about to be handed to the store, together.
    ends: RefCell<Vec<Arc<Settle>>>,
}

impl Table {
    pub(super) fn new() -> Self {
        let (running, ends) = (RefCell::default(), RefCell::default());
        Self { running, aside: Cell::new(0), slots: Cell::new(FIRST_SLOTS), freed: Notify::new(), ends }
    }

    pub(super) fn free(&self) -> usize {
        let (held, slots) = (self.running.borrow().len(), self.slots.get());
        let running = held.saturating_sub(self.aside.get());
        slots.saturating_sub(running).min((HELD * slots).saturating_sub(held))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.running.borrow().is_empty()
    }

    /// Whether enough is free for a claim.
    pub(super) fn has_room(&self) -> bool {
        self.free() >= BATCH.min(self.slots.get() / 2)
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

    fn tell_of_room(&self) {
        if self.has_room() {
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
