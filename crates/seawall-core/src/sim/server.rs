//! The upstream: a fixed number of workers behind one queue. It never learns that a caller has given up, so it also serves abandoned
//! requests; that makes an overload outlive its cause.

use std::collections::VecDeque;

use crate::rng::Rng;
use crate::time::Nanos;

const WORKERS: u32 = 20;
const DIP_WORKERS: u32 = 2;
pub(super) const SERVICE_MEAN_S: f64 = 0.1;
/// Requests per second that the server can serve.
pub(super) const CAPACITY: f64 = 200.0;

/// `T` identifies one attempt; the server only returns it.
#[derive(Debug)]
pub(super) struct SimServer<T> {
    rng: Rng,
    /// The number of workers. If it falls, surplus workers finish their current requests.
    crew: u32,
    busy: u32,
    waiting: VecDeque<T>,
    bound: Option<usize>,
}

impl<T> SimServer<T> {
    pub(super) fn new(bound: Option<usize>, rng: Rng) -> Self {
        Self { rng, crew: WORKERS, busy: 0, waiting: VecDeque::with_capacity(1024), bound }
    }

    /// `false` means an immediate 503.
    pub(super) fn offer(&mut self, ticket: T) -> bool {
        let full = self.bound.is_some_and(|bound| self.busy >= self.crew && self.waiting.len() >= bound);
        if !full {
            self.waiting.push_back(ticket);
        }
        !full
    }

    /// The next request for a free worker, and its service time.
    pub(super) fn start(&mut self) -> Option<(T, Nanos)> {
        if self.busy >= self.crew {
            return None;
        }
        let ticket = self.waiting.pop_front()?;
        self.busy += 1;
        Some((ticket, Nanos::from_secs_f64(self.rng.exponential(SERVICE_MEAN_S))))
    }

    pub(super) const fn finished(&mut self) {
        self.busy -= 1;
    }

    pub(super) const fn dip(&mut self) {
        self.crew = DIP_WORKERS;
    }

    pub(super) const fn recover(&mut self) {
        self.crew = WORKERS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_starts_in_order_and_only_while_workers_are_free() {
        let mut server = SimServer::new(None, Rng::seeded(1));
        for request in 0..25 {
            assert!(server.offer(request));
        }
        let started: Vec<i32> = std::iter::from_fn(|| server.start()).map(|(ticket, _)| ticket).collect();
        assert_eq!(started, (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn in_the_dip_nobody_starts_until_fewer_than_two_are_busy() {
        let mut server = SimServer::new(None, Rng::seeded(1));
        for request in 0..5 {
            server.offer(request);
        }
        for _ in 0..3 {
            server.start();
        }
        server.dip();
        server.finished();
        assert_eq!(server.start(), None);
        server.finished();
        assert!(server.start().is_some());
        assert_eq!(server.start(), None);
        server.recover();
        assert!(server.start().is_some());
    }

    #[test]
    fn a_bounded_queue_refuses_what_it_cannot_hold() {
        let mut server = SimServer::new(Some(1), Rng::seeded(1));
        for request in 0..20 {
            assert!(server.offer(request));
            server.start();
        }
        assert!(server.offer(20));
        assert!(!server.offer(21));
    }
}
