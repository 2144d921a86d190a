//! One run: requests arrive, pass the gateway to the server, get a response or time out, and may be retried.

use super::gateway::{OutageGateway, Pass, Payment};
use super::tally::OutageTally;
use super::{ATTEMPT_TIMEOUT, DIP_END_S, DIP_START_S, END_S, OutagePolicy};
use crate::rng::Rng;
use crate::sim::queue::Queue;
use crate::sim::server::SimServer;
use crate::time::{Mono, Nanos};

/// One attempt of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AttemptTicket {
    request: u32,
    attempt: u32,
}

#[derive(Clone, Copy, Debug)]
enum OutageEvent {
    Arrival,
    Served(AttemptTicket),
    /// Fires after a response too; a ticket that is no longer in flight is stale.
    TimedOut(AttemptTicket),
    Retry {
        request: u32,
        payment: Payment,
    },
    DipStarts,
    DipEnds,
}

#[derive(Debug)]
struct OutageRequest {
    arrived: Mono,
    /// Sends so far.
    attempts: u32,
    wait: Nanos,
    /// Held while an attempt is in flight.
    pass: Option<Pass>,
}

#[derive(Debug)]
struct OutageWorld<'a> {
    arm: &'a OutagePolicy,
    offered: f64,
    arrivals: Rng,
    waits: Rng,
    queue: Queue<OutageEvent>,
    requests: Vec<OutageRequest>,
    gateway: OutageGateway<'a>,
    server: SimServer<AttemptTicket>,
    tally: OutageTally,
}

pub(super) fn run(arm: &OutagePolicy, offered: f64, mut rng: Rng) -> OutageTally {
    let mut world = OutageWorld {
        arm,
        offered,
        arrivals: rng.fork(),
        waits: rng.fork(),
        queue: Queue::with_capacity(4096),
        requests: Vec::with_capacity(1 << 16),
        gateway: OutageGateway::new(arm),
        server: SimServer::new(arm.bounded, rng.fork()),
        tally: OutageTally::default(),
    };
    world.queue.push(second(DIP_START_S), OutageEvent::DipStarts);
    world.queue.push(second(DIP_END_S), OutageEvent::DipEnds);
    world.arrive_after(Mono(0));
    while let Some((now, event)) = world.queue.pop() {
        if now >= second(END_S) {
            break;
        }
        world.step(now, event);
    }
    world.tally
}

fn second(s: u32) -> Mono {
    Mono(0) + Nanos::from_secs(u64::from(s))
}

impl OutageWorld<'_> {
    fn step(&mut self, now: Mono, event: OutageEvent) {
        match event {
            OutageEvent::Arrival => self.arrival(now),
            OutageEvent::Served(ticket) => {
                self.server.finished();
                self.put_to_work(now);
                if let Some(pass) = self.take_pass(ticket) {
                    self.gateway.succeeded(pass, now);
                    self.tally.success(self.requests[ticket.request as usize].arrived, now);
                }
            }
            OutageEvent::TimedOut(ticket) => {
                if let Some(pass) = self.take_pass(ticket) {
                    self.failed(ticket.request, pass, now);
                }
            }
            OutageEvent::Retry { request, payment } => self.retry(request, payment, now),
            OutageEvent::DipStarts => self.server.dip(),
            OutageEvent::DipEnds => {
                self.server.recover();
                self.put_to_work(now);
            }
        }
    }

    fn arrive_after(&mut self, now: Mono) {
        let gap = Nanos::from_secs_f64(self.arrivals.exponential(1.0 / self.offered));
        self.queue.push(now + gap, OutageEvent::Arrival);
    }

    fn arrival(&mut self, now: Mono) {
        self.arrive_after(now);
        self.tally.request(now);
        self.gateway.arrived(now);
        // A run has about 70 000 requests, so the index fits its type.
        let request = u32::try_from(self.requests.len()).unwrap_or(u32::MAX);
        self.requests.push(OutageRequest { arrived: now, attempts: 0, wait: Nanos::ZERO, pass: None });
        match self.gateway.admit(now) {
            Some(pass) => self.send(request, pass, now),
            None => self.tally.failure(),
        }
    }

    fn retry(&mut self, request: u32, payment: Payment, now: Mono) {
        match self.gateway.admit(now) {
            Some(pass) => self.send(request, pass, now),
            None => {
                self.gateway.refund(payment);
                self.tally.failure();
            }
        }
    }

    fn send(&mut self, request: u32, pass: Pass, now: Mono) {
        self.tally.attempt(now);
        let state = &mut self.requests[request as usize];
        state.attempts += 1;
        let ticket = AttemptTicket { request, attempt: state.attempts };
        if self.server.offer(ticket) {
            state.pass = Some(pass);
            self.queue.push(now + ATTEMPT_TIMEOUT, OutageEvent::TimedOut(ticket));
            self.put_to_work(now);
        } else {
            self.failed(request, pass, now);
        }
    }

    fn failed(&mut self, request: u32, pass: Pass, now: Mono) {
        let is_retry = self.requests[request as usize].attempts > 1;
        self.gateway.failed(pass, is_retry, now);
        let state = &mut self.requests[request as usize];
        let payment = if state.attempts < self.arm.retry.attempts { self.gateway.pay(now) } else { None };
        let Some(payment) = payment else { return self.tally.failure() };
        state.wait = self.arm.retry.backoff.draw(state.attempts - 1, state.wait, &mut self.waits);
        self.queue.push(now + state.wait, OutageEvent::Retry { request, payment });
    }

    /// The pass of an attempt that is still in flight; a request that timed out ignores the response.
    fn take_pass(&mut self, ticket: AttemptTicket) -> Option<Pass> {
        let state = &mut self.requests[ticket.request as usize];
        if state.attempts == ticket.attempt { state.pass.take() } else { None }
    }

    fn put_to_work(&mut self, now: Mono) {
        while let Some((ticket, service)) = self.server.start() {
            self.queue.push(now + service, OutageEvent::Served(ticket));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_ends_at_most_once_and_all_but_the_last_few_do() {
        for arm in OutagePolicy::built_in() {
            let tally = run(&arm, 100.0, Rng::seeded(5));
            let arrived: u32 = tally.requests.iter().sum();
            let succeeded: u32 = tally.goodput.iter().sum();
            let open = i64::from(arrived) - i64::from(succeeded) - i64::from(tally.failed);
            assert!((0..600).contains(&open), "{}: {arrived} arrived, {succeeded} succeeded, {} failed", arm.name, tally.failed);
        }
    }

    #[test]
    fn attempts_are_bounded_by_the_policy() {
        for arm in OutagePolicy::built_in() {
            let tally = run(&arm, 100.0, Rng::seeded(5));
            let (arrived, attempts): (u32, u32) = (tally.requests.iter().sum(), tally.attempts.iter().sum());
            assert!(attempts <= arrived * arm.retry.attempts, "{}: {attempts} attempts for {arrived}", arm.name);
        }
    }
}
