//! Bulkheads of this process: the core's places and queue, with wake-ups for waiting calls.

use crate::clock::Clock;
use crate::locked_cell::Locked;
use parking_lot::MutexGuard;
use seawall_core::admit::adaptive::Adaptive;
use seawall_core::admit::bulkhead::{Bulkhead, BulkheadEntry, BulkheadRequest, QueueTicket, Refusal};
use seawall_core::guard::BreakerSample;
use seawall_core::policy;
use seawall_core::time::{Mono, Nanos};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::oneshot;

/// A named bulkhead that all threads share.
#[derive(Debug)]
pub struct BulkheadPool {
    pub name: String,
    pub priority: u32,
    inner: Locked<BulkheadInner>,
    /// The last value of `Bulkhead::taken`: every call reads all bulkheads, and this copy needs no lock.
    taken: AtomicU64,
    room: AtomicU64,
}

#[derive(Debug)]
struct BulkheadInner {
    bulkhead: Bulkhead,
    adaptive: Option<Adaptive>,
    line: BTreeMap<QueueTicket, oneshot::Sender<QueueTurn>>,
}

/// The result of waiting in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueTurn {
    /// The call holds a place from now on.
    Granted,
    /// A call of higher priority took its place in the queue.
    Displaced,
}

/// A place in the queue, given up on drop.
#[derive(Debug)]
pub struct QueuedPermit {
    ticket: QueueTicket,
    pub turn: oneshot::Receiver<QueueTurn>,
}

/// A place, held until this is dropped: while the response of its call is being read.
#[derive(Debug)]
pub struct BulkheadPermit {
    pool: Arc<BulkheadPool>,
    since: Mono,
    clock: Clock,
}

impl BulkheadPermit {
    pub(crate) const fn new(pool: Arc<BulkheadPool>, since: Mono, clock: Clock) -> Self {
        Self { pool, since, clock }
    }
}

impl Drop for BulkheadPermit {
    fn drop(&mut self) {
        let now = self.clock.now().mono;
        self.pool.leave(now.since(self.since), now);
    }
}

#[derive(Debug)]
pub enum Entered {
    In,
    Line(QueuedPermit),
    /// `shed` is set if the queue had room but the wait would have exceeded the deadline.
    Full {
        shed: bool,
    },
}

/// The load of a bulkhead.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BulkheadLoad {
    pub running: u32,
    pub limit: u32,
    pub waiting: usize,
    /// The used share of places and queue.
    pub saturation: f64,
}

impl BulkheadPool {
    #[must_use]
    pub fn new(spec: &policy::BulkheadPolicy) -> Self {
        let adaptive = spec.adaptive.then(|| Adaptive::new(spec.concurrent.div_ceil(2), 1, spec.concurrent));
        let mut bulkhead = Bulkhead::new(spec);
        if let Some(adaptive) = &adaptive {
            bulkhead.resize(adaptive.limit());
        }
        let (taken, room) = bulkhead.taken();
        Self {
            name: spec.name.clone(),
            priority: spec.priority,
            inner: Locked::new(BulkheadInner { bulkhead, adaptive, line: BTreeMap::new() }),
            taken: AtomicU64::new(taken),
            room: AtomicU64::new(room),
        }
    }

    /// Returns the taken places and their total, without a lock, so possibly slightly outdated.
    #[must_use]
    pub fn taken(&self) -> (u64, u64) {
        (self.taken.load(Ordering::Relaxed), self.room.load(Ordering::Relaxed))
    }

    fn note(&self, inner: &MutexGuard<'_, BulkheadInner>) {
        let (taken, room) = inner.bulkhead.taken();
        self.taken.store(taken, Ordering::Relaxed);
        self.room.store(room, Ordering::Relaxed);
    }

    /// Takes a place, or a place in the queue, or neither.
    pub fn enter(&self, deadline: Mono, now: Mono) -> Entered {
        let mut inner = self.inner.lock();
        let entry = inner.bulkhead.enter(BulkheadRequest { priority: self.priority, deadline }, now);
        self.note(&inner);
        match entry {
            BulkheadEntry::Go => Entered::In,
            BulkheadEntry::Queued { ticket, displaced, .. } => {
                let (wake, turn) = oneshot::channel();
                if let Some(gone) = displaced.and_then(|gone| inner.line.remove(&gone)) {
                    // The displaced call may have left already.
                    let _: Result<(), QueueTurn> = gone.send(QueueTurn::Displaced);
                }
                inner.line.insert(ticket, wake);
                Entered::Line(QueuedPermit { ticket, turn })
            }
            BulkheadEntry::Refused(refusal) => Entered::Full { shed: refusal == Refusal::Deadline },
        }
    }

    /// Returns a place; the next call in the queue gets it.
    pub fn leave(&self, held: Nanos, now: Mono) {
        let mut inner = self.inner.lock();
        inner.bulkhead.leave(held);
        inner.grant(now);
        self.note(&inner);
    }

    /// Leaves the queue. A place that was granted in the same moment is passed on.
    pub fn give_up(&self, waiting: QueuedPermit, now: Mono) {
        let QueuedPermit { ticket, mut turn } = waiting;
        let mut inner = self.inner.lock();
        inner.line.remove(&ticket);
        let in_line = inner.bulkhead.cancel(ticket);
        if !in_line && turn.try_recv() == Ok(QueueTurn::Granted) {
            inner.bulkhead.leave(Nanos::ZERO);
        }
        inner.grant(now);
        self.note(&inner);
    }

    /// Adapts the size of an adaptive bulkhead to the results of its calls.
    pub fn hear(&self, sample: BreakerSample, now: Mono) {
        let mut inner = self.inner.lock();
        let running = inner.bulkhead.running();
        let Some(adaptive) = &mut inner.adaptive else { return };
        if sample.failed {
            adaptive.dropped();
        } else {
            adaptive.succeeded(running);
        }
        let limit = adaptive.limit();
        inner.bulkhead.resize(limit);
        inner.grant(now);
        self.note(&inner);
    }

    #[must_use]
    pub fn load(&self) -> BulkheadLoad {
        let inner = self.inner.lock();
        BulkheadLoad {
            running: inner.bulkhead.running(),
            limit: inner.bulkhead.cap(),
            waiting: inner.bulkhead.waiting(),
            saturation: inner.bulkhead.pressure().as_f64(),
        }
    }
}

impl BulkheadInner {
    /// Wakes calls that have a place now. The place of a call that has left is passed on.
    fn grant(&mut self, now: Mono) {
        while let Some(ticket) = self.bulkhead.grant(now) {
            let told = self.line.remove(&ticket).is_some_and(|wake| wake.send(QueueTurn::Granted).is_ok());
            if !told {
                self.bulkhead.leave(Nanos::ZERO);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(concurrent: u32, queue: u32) -> BulkheadPool {
        BulkheadPool::new(&policy::BulkheadPolicy {
            name: "p".into(),
            concurrent,
            queue,
            queue_timeout: Nanos::from_secs(1),
            priority: 1,
            adaptive: false,
        })
    }

    fn line(entered: Entered) -> QueuedPermit {
        let Entered::Line(waiting) = entered else { panic!("{entered:?}") };
        waiting
    }

    #[test]
    fn places_are_handed_down_the_line() {
        let pool = pool(1, 2);
        assert!(matches!(pool.enter(Mono::MAX, Mono(0)), Entered::In));
        let (mut first, second) = (line(pool.enter(Mono::MAX, Mono(0))), line(pool.enter(Mono::MAX, Mono(0))));
        assert!(matches!(pool.enter(Mono::MAX, Mono(0)), Entered::Full { .. }));
        pool.leave(Nanos(1), Mono(1));
        assert_eq!(first.turn.try_recv(), Ok(QueueTurn::Granted));
        pool.give_up(second, Mono(2));
        assert_eq!((pool.load().running, pool.load().waiting), (1, 0));
    }

    #[test]
    fn a_place_granted_to_someone_who_just_left_is_not_lost() {
        let pool = pool(1, 1);
        assert!(matches!(pool.enter(Mono::MAX, Mono(0)), Entered::In));
        let waiting = line(pool.enter(Mono::MAX, Mono(0)));
        pool.leave(Nanos(1), Mono(1));
        pool.give_up(waiting, Mono(1));
        assert_eq!(pool.load().running, 0);
        let gone = {
            assert!(matches!(pool.enter(Mono::MAX, Mono(2)), Entered::In));
            line(pool.enter(Mono::MAX, Mono(2)))
        };
        drop(gone);
        pool.leave(Nanos(1), Mono(3));
        assert_eq!(pool.load().running, 0, "the place did not go to somebody who is gone");
    }
}
