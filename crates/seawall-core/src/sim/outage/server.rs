//! The upstream: a fixed crew of workers behind one queue. It is never told that a caller has given up, so
//! abandoned work is done all the same; that is what makes an overload outlive its cause.

use std::collections::VecDeque;

use super::{DIP_WORKERS, SERVICE_MEAN_S, WORKERS};
use crate::rng::Rng;
use crate::time::Nanos;

/// One attempt of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) request: u32,
    pub(super) attempt: u32,
}

#[derive(Debug)]
pub(super) struct Server {
    rng: Rng,
    /// How many may work at once; workers that are over it when it falls finish what they have.
    crew: u32,
    busy: u32,
    waiting: VecDeque<Ticket>,
    bound: Option<usize>,
}

impl Server {
    pub(super) fn new(bound: Option<usize>, rng: Rng) -> Self {
        Self { rng, crew: WORKERS, busy: 0, waiting: VecDeque::with_capacity(1024), bound }
    }

    /// `false` is an immediate 503.
    pub(super) fn offer(&mut self, ticket: Ticket) -> bool {
        let full = self.bound.is_some_and(|bound| self.busy >= self.crew && self.waiting.len() >= bound);
        if !full {
            self.waiting.push_back(ticket);
        }
        !full
    }

    /// The next piece of work that a free worker takes up, and how long it will take.
    pub(super) fn start(&mut self) -> Option<(Ticket, Nanos)> {
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

    fn ticket(request: u32) -> Ticket {
        Ticket { request, attempt: 1 }
    }

    #[test]
    fn work_starts_in_order_and_only_while_workers_are_free() {
        let mut server = Server::new(None, Rng::seeded(1));
        for request in 0..25 {
            assert!(server.offer(ticket(request)));
        }
        let started: Vec<u32> = std::iter::from_fn(|| server.start()).map(|(ticket, _)| ticket.request).collect();
        assert_eq!(started, (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn in_the_dip_nobody_starts_until_fewer_than_two_are_busy() {
        let mut server = Server::new(None, Rng::seeded(1));
        for request in 0..5 {
            server.offer(ticket(request));
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
        let mut server = Server::new(Some(1), Rng::seeded(1));
        for request in 0..20 {
            assert!(server.offer(ticket(request)));
            server.start();
        }
        assert!(server.offer(ticket(20)));
        assert!(!server.offer(ticket(21)));
    }
}
