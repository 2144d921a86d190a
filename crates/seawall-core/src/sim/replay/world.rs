//! One run of the recorded calls against the new policy.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::behaviour::Behaviour;
use super::log::Recorded;
use super::{ReplayCase, ReplayRow};
use crate::call::Outcome;
use crate::classify::{Classification, Hint, ObservedResult};
use crate::record::{Class, ErrorKind, Reason, Scope};
use crate::rng::Rng;
use crate::sim::queue::Queue;
use crate::sim::shared::CallerView;
use crate::sim::traffic::{CallMoment, Traffic, WaitReason};
use crate::time::{Mono, Nanos, Now, Wall};

#[derive(Clone, Copy, Debug)]
enum ReplayEvent {
    /// Index into the chosen calls.
    Arrival(usize),
    Result {
        token: CallMoment,
        seen: Recorded,
    },
    Woken(CallMoment),
}

/// The context of a call in flight.
#[derive(Clone, Copy, Debug)]
struct ReplayTag {
    /// Index into the log.
    call: usize,
    site: usize,
    sent_for: Nanos,
}

/// The new policy's use of the recording.
#[derive(Clone, Debug, Default)]
pub(super) struct ReplayedCall {
    pub(super) results: u64,
    /// The part of these that was not recorded.
    pub(super) drawn: u64,
    /// Calls that sent nothing, by the reason of the refusal.
    pub(super) refused: BTreeMap<Reason, u32>,
}

#[derive(Debug)]
struct ReplayWorld<'a> {
    case: &'a ReplayCase<'a>,
    behaviour: &'a Behaviour,
    chosen: &'a [(usize, usize)],
    epoch: Wall,
    draws: Rng,
    queue: Queue<ReplayEvent>,
    traffic: Traffic,
    /// By the call's number.
    tags: Vec<ReplayTag>,
    rows: &'a mut [ReplayRow],
    asked: &'a mut ReplayedCall,
}

pub(super) fn run(
    case: &ReplayCase<'_>,
    behaviour: &Behaviour,
    chosen: &[(usize, usize)],
    mut rng: Rng,
    (rows, asked): (&mut [ReplayRow], &mut ReplayedCall),
) {
    let Some(&(first, _)) = chosen.first() else { return };
    let mut world = ReplayWorld {
        case,
        behaviour,
        chosen,
        epoch: Wall(case.log.calls[first].began_ms()),
        draws: rng.fork(),
        queue: Queue::with_capacity(4096),
        traffic: Traffic::new(case.policy, CallerView::Many, rng.fork()),
        tags: Vec::new(),
        rows,
        asked,
    };
    world.arrive(0);
    while let Some((now, event)) = world.queue.pop() {
        let now = Now { mono: now, wall: world.epoch + now.since(Mono(0)) };
        world.step(now, event);
    }
}

impl ReplayWorld<'_> {
    fn step(&mut self, now: Now, event: ReplayEvent) {
        match event {
            ReplayEvent::Arrival(place) => {
                self.arrive(place + 1);
                self.begin(place, now);
            }
            ReplayEvent::Result { token, seen } => self.respond(token, &seen, now),
            ReplayEvent::Woken(token) => {
                if let Some(pause) = self.traffic.waited(token, now) {
                    self.follow(pause, now);
                }
            }
        }
        while let Some(pause) = self.traffic.called(now) {
            self.follow(pause, now);
        }
    }

    fn arrive(&mut self, place: usize) {
        if let Some(&(call, _)) = self.chosen.get(place) {
            let after = Wall(self.case.log.calls[call].began_ms()).since(self.epoch);
            self.queue.push(Mono(0) + after, ReplayEvent::Arrival(place));
        }
    }

    fn begin(&mut self, place: usize, now: Now) {
        let (call, site) = self.chosen[place];
        let (id, pause) = self.traffic.begin(site, self.case.log.calls[call].was_repeated(), now);
        let tag = ReplayTag { call, site, sent_for: Nanos::ZERO };
        match self.tags.get_mut(id as usize) {
            Some(old) => *old = tag,
            None => self.tags.push(tag),
        }
        self.follow(pause, now);
    }

    fn follow(&mut self, pause: WaitReason, now: Now) {
        match pause {
            WaitReason::Result { token, number, timeout } => self.send(token, number, timeout, now),
            WaitReason::Until { token, at } => self.queue.push(at, ReplayEvent::Woken(token)),
            WaitReason::Over(over) => {
                let tag = self.tags[over.id as usize];
                let waited = over.finish.elapsed - tag.sent_for;
                if over.finish.attempts == 0 {
                    *self.asked.refused.entry(over.finish.reason).or_default() += 1;
                }
                let success = over.finish.outcome == Outcome::Success;
                self.rows[tag.site].after.call(success, over.finish.attempts, waited.as_secs_f64());
            }
        }
    }

    fn send(&mut self, token: CallMoment, number: u32, timeout: Nanos, now: Now) {
        let call = &self.case.log.calls[self.tags[token.id as usize].call];
        let recorded = call.results.get(number as usize - 1).copied();
        self.asked.results += 1;
        self.asked.drawn += u64::from(recorded.is_none());
        let seen = recorded.or_else(|| self.behaviour.draw(call, now.wall, &mut self.draws));
        let seen = within(seen.expect("calls to upstreams of which nothing is known are left out"), timeout);
        let tag = &mut self.tags[token.id as usize];
        tag.sent_for = tag.sent_for + seen.latency;
        self.queue.push(now.mono + seen.latency, ReplayEvent::Result { token, seen });
    }

    /// Applies the new policy's rules. If those would need the body, which no log has, the recorded class still holds.
    fn respond(&mut self, token: CallMoment, recorded: &Recorded, now: Now) {
        let site = &self.traffic.shared.sites[self.tags[token.id as usize].site];
        let (method, plan) = (Arc::clone(&site.method), Arc::clone(&site.plan));
        let after = recorded.hint.map(|hint| format!("{:.3}", hint.as_secs_f64()));
        let headers: Vec<(&str, &str)> = after.iter().map(|after| ("retry-after", after.as_str())).collect();
        let seen = ObservedResult { method: &method, result: recorded.result, headers: &headers, body: b"", latency: recorded.latency };
        let verdict = plan.rules.classify(&seen, now.wall);
        let verdict = match recorded.class {
            Some(class) if class != verdict.class && plan.rules.needs_body(&method, recorded.result) => remembered(class, verdict),
            _ => verdict,
        };
        if let Some(pause) = self.traffic.judged(token, recorded.result, &verdict, now) {
            self.follow(pause, now);
        }
    }
}

/// A response that had timed out in the recording stays a timeout under a longer limit; a recorded response may exceed a shorter one.
fn within(seen: Recorded, timeout: Nanos) -> Recorded {
    if seen.result == Err(ErrorKind::Timeout) || seen.latency > timeout {
        return Recorded { result: Err(ErrorKind::Timeout), class: None, hint: None, latency: timeout, ..seen };
    }
    seen
}

fn remembered(class: Class, verdict: Classification) -> Classification {
    let scope = match class {
        Class::Quota => Scope::Group,
        Class::Auth => Scope::Key,
        Class::Success | Class::Transient | Class::Permanent | Class::Ambiguous => Scope::Call,
    };
    Classification { class, scope, wait: Hint::Backoff, rule: None, named: true, unprocessed: false, blameless: false, ..verdict }
}
