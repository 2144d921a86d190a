//! One run: calls arrive at every endpoint and go through the machine to their upstream's server.

use std::sync::Arc;

use super::SurgeCase;
use super::load::SurgeLoad;
use super::tally::SurgeTally;
use crate::classify::ObservedResult;
use crate::record::ErrorKind;
use crate::rng::Rng;
use crate::sim::queue::Queue;
use crate::sim::server::SimServer;
use crate::sim::shared::CallerView;
use crate::sim::traffic::{CallMoment, Traffic, WaitReason};
use crate::time::{Mono, Nanos, Now, Wall};

/// 2026-07-01T00:00:00Z: an ordinary day for quota resets.
const EPOCH: Wall = Wall(1_782_864_000_000);

#[derive(Clone, Copy, Debug)]
enum SurgeEvent {
    Arrival {
        site: usize,
    },
    Served {
        upstream: usize,
        token: CallMoment,
    },
    /// Fires after a response too; it is stale then.
    TimedOut(CallMoment),
    Woken(CallMoment),
}

/// The tally's data about a call in flight.
#[derive(Clone, Copy, Debug)]
struct SurgeTag {
    site: usize,
    arrived: Mono,
    /// The time of its last send.
    sent: Mono,
}

#[derive(Debug)]
struct SurgeWorld<'a> {
    load: &'a SurgeLoad,
    arrivals: Vec<Rng>,
    queue: Queue<SurgeEvent>,
    traffic: Traffic,
    servers: Vec<SimServer<CallMoment>>,
    /// By the call's number.
    tags: Vec<SurgeTag>,
    tally: &'a mut SurgeTally,
}

pub(super) fn run(case: &SurgeCase<'_>, load: &SurgeLoad, mut rng: Rng, tally: &mut SurgeTally) {
    let mut world = SurgeWorld {
        load,
        arrivals: load.steady.iter().map(|_| rng.fork()).collect(),
        queue: Queue::with_capacity(4096),
        servers: case.policy.upstreams.iter().map(|_| SimServer::new(None, rng.fork())).collect(),
        traffic: Traffic::new(case.policy, CallerView::OnePerEndpoint, rng.fork()),
        tags: Vec::new(),
        tally,
    };
    for site in 0..load.steady.len() {
        world.arrive_after(site, Mono(0));
    }
    let end = Mono(0) + Nanos::from_secs(u64::from(load.end_s()));
    while let Some((now, event)) = world.queue.pop() {
        // All calls have ended, so the requests left at the servers no longer matter.
        if now >= end && world.traffic.open() == 0 {
            break;
        }
        world.step(at(now), event);
    }
    world.tally.run_ended();
}

fn at(mono: Mono) -> Now {
    Now { mono, wall: EPOCH + mono.since(Mono(0)) }
}

impl SurgeWorld<'_> {
    fn step(&mut self, now: Now, event: SurgeEvent) {
        match event {
            SurgeEvent::Arrival { site } => self.arrival(site, now),
            SurgeEvent::Served { upstream, token } => {
                self.servers[upstream].finished();
                self.put_to_work(upstream, now.mono);
                self.respond(token, Ok(200), now);
            }
            SurgeEvent::TimedOut(token) => self.respond(token, Err(ErrorKind::Timeout), now),
            SurgeEvent::Woken(token) => {
                if let Some(pause) = self.traffic.waited(token, now) {
                    self.follow(pause, now);
                }
            }
        }
        while let Some(pause) = self.traffic.called(now) {
            self.follow(pause, now);
        }
    }

    fn arrive_after(&mut self, site: usize, now: Mono) {
        if self.load.steady[site] <= 0.0 {
            return;
        }
        if let Some(at) = self.load.next(site, now, &mut self.arrivals[site]) {
            self.queue.push(at, SurgeEvent::Arrival { site });
        }
    }

    fn arrival(&mut self, site: usize, now: Now) {
        self.arrive_after(site, now.mono);
        self.tally.offered(site, now.mono);
        let (id, pause) = self.traffic.begin(site, false, now);
        let tag = SurgeTag { site, arrived: now.mono, sent: now.mono };
        match self.tags.get_mut(id as usize) {
            Some(old) => *old = tag,
            None => self.tags.push(tag),
        }
        self.follow(pause, now);
    }

    fn respond(&mut self, token: CallMoment, result: Result<u16, ErrorKind>, now: Now) {
        let SurgeTag { site, sent, .. } = self.tags[token.id as usize];
        let method = Arc::clone(&self.traffic.shared.sites[site].method);
        let seen = ObservedResult { method: &method, result, headers: &(), body: b"", latency: now.mono.since(sent) };
        if let Some(pause) = self.traffic.responded(token, &seen, now) {
            self.follow(pause, now);
        }
    }

    fn follow(&mut self, pause: WaitReason, now: Now) {
        match pause {
            WaitReason::Result { token, number, timeout } => {
                let tag = &mut self.tags[token.id as usize];
                tag.sent = now.mono;
                let SurgeTag { site, arrived, .. } = *tag;
                if number == 1 {
                    self.tally.admitted(site, arrived, now.mono);
                }
                let upstream = self.traffic.shared.sites[site].upstream;
                self.queue.push(now.mono + timeout, SurgeEvent::TimedOut(token));
                self.servers[upstream].offer(token);
                self.put_to_work(upstream, now.mono);
            }
            WaitReason::Until { token, at } => self.queue.push(at, SurgeEvent::Woken(token)),
            WaitReason::Over(over) => {
                let SurgeTag { site, arrived, .. } = self.tags[over.id as usize];
                self.tally.ended(site, arrived, &over, now.mono);
            }
        }
    }

    fn put_to_work(&mut self, upstream: usize, now: Mono) {
        while let Some((token, service)) = self.servers[upstream].start() {
            self.queue.push(now + service, SurgeEvent::Served { upstream, token });
        }
    }
}
