//! A fixed number of workers behind one queue, in order of arrival. It never learns that a caller has given up, so it also serves abandoned
//! requests; that makes an overload outlive its cause.
//!
//! Work is planned when it arrives and planned again when the number of workers changes, so nothing needs a timer of its own: a waiting
//! request asks again at the end of its plan or at the next change.

use seawall_core::time::{Mono, Nanos};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// An unbounded queue stops here, before memory runs out.
const MAX_QUEUE: usize = 1_000_000;

#[derive(Clone, Copy, Debug)]
struct QueuedRequest {
    service: Nanos,
    start: Mono,
    finish: Mono,
}

#[derive(Debug, Default)]
pub(crate) struct ServerCapacity {
    workers: usize,
    /// When each worker is free next.
    free: BinaryHeap<Reverse<Mono>>,
    /// In order of arrival, which is the order in which they start.
    jobs: VecDeque<QueuedRequest>,
    /// Ticket of the first job.
    first: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Finished,
    AskAgain(Mono),
}

impl ServerCapacity {
    /// A ticket for the work, or `None` if no worker is free and the queue is full.
    pub(crate) fn offer(&mut self, workers: u32, queue: Option<usize>, service: Nanos, now: Mono) -> Option<u64> {
        self.plan(workers, now);
        while self.jobs.front().is_some_and(|job| job.finish <= now) {
            self.jobs.pop_front();
            self.first += 1;
        }
        let waiting = self.jobs.len() - self.started(now);
        let busy = self.free.peek().is_none_or(|free| free.0 > now);
        if busy && waiting >= queue.unwrap_or(MAX_QUEUE).min(MAX_QUEUE) {
            return None;
        }
        let job = self.assign(service, now);
        self.jobs.push_back(job);
        Some(self.first + self.jobs.len() as u64 - 1)
    }

    /// Whether the work is done; `edge` is when the number of workers changes next.
    pub(crate) fn due(&mut self, workers: u32, ticket: u64, now: Mono, edge: Mono) -> Due {
        self.plan(workers, now);
        let index = ticket.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        match index.and_then(|index| self.jobs.get(index)) {
            Some(job) if job.finish > now => Due::AskAgain(job.finish.min(edge)),
            Some(_) | None => Due::Finished,
        }
    }

    fn started(&self, now: Mono) -> usize {
        self.jobs.partition_point(|job| job.start <= now)
    }

    fn assign(&mut self, service: Nanos, now: Mono) -> QueuedRequest {
        let start = self.free.pop().map_or(now, |free| free.0.max(now));
        let finish = start + service;
        self.free.push(Reverse(finish));
        QueuedRequest { service, start, finish }
    }

    /// Plans work that has not started again after a change. Surplus workers finish their current requests.
    fn plan(&mut self, workers: u32, now: Mono) {
        let workers = workers as usize;
        if self.workers == workers {
            return;
        }
        self.workers = workers;
        let started = self.started(now);
        let mut ends: Vec<Mono> = self.jobs.iter().take(started).map(|job| job.finish.max(now)).collect();
        ends.sort_unstable_by_key(|end| Reverse(*end));
        ends.resize(workers, now);
        self.free = ends.into_iter().map(Reverse).collect();
        for index in started..self.jobs.len() {
            self.jobs[index] = self.assign(self.jobs[index].service, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICE: Nanos = Nanos::from_secs(1);

    fn at(ms: u64) -> Mono {
        Mono(Nanos::from_millis(ms).0)
    }

    #[test]
    fn work_waits_for_a_free_worker_and_is_refused_behind_a_full_queue() {
        let mut crew = ServerCapacity::default();
        let tickets: Vec<Option<u64>> = (0..4).map(|_| crew.offer(2, Some(1), SERVICE, at(0))).collect();
        assert_eq!(tickets, [Some(0), Some(1), Some(2), None]);
        assert_eq!(crew.due(2, 0, at(0), Mono::MAX), Due::AskAgain(at(1000)));
        assert_eq!(crew.due(2, 2, at(0), Mono::MAX), Due::AskAgain(at(2000)));
        assert_eq!(crew.due(2, 2, at(2000), Mono::MAX), Due::Finished);
        assert!(crew.offer(2, Some(0), SERVICE, at(2000)).is_some());
    }

    #[test]
    fn work_that_nobody_waits_for_is_done_all_the_same() {
        let mut crew = ServerCapacity::default();
        for _ in 0..10 {
            crew.offer(1, None, SERVICE, at(0));
        }
        let late = crew.offer(1, None, SERVICE, at(5500)).unwrap();
        assert_eq!(crew.due(1, late, at(5500), Mono::MAX), Due::AskAgain(at(11_000)));
    }

    #[test]
    fn a_dip_moves_what_has_not_started() {
        let mut crew = ServerCapacity::default();
        for _ in 0..6 {
            crew.offer(3, None, SERVICE, at(0));
        }
        // At 0.5 s one worker is left: three requests finish at 1 s, the others follow one after the other.
        assert_eq!(crew.due(1, 5, at(500), at(9000)), Due::AskAgain(at(4000)));
        // Three workers again at 2.5 s: the fifth request is in progress, the sixth starts at once.
        assert_eq!(crew.due(3, 5, at(2500), Mono::MAX), Due::AskAgain(at(3500)));
    }
}
