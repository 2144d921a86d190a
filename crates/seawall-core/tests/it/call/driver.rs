//! Drives many concurrent calls through one set of cells in virtual time, as a backend would, and asserts the properties of single steps at
//! every step.

use super::given::{Fate, Job};
use seawall_core::admit::bulkhead::QueueTicket;
use seawall_core::call::{Action, Ask, Call, CallEnd, CallPlan, CallRequest, EndpointCells};
use seawall_core::classify::{Classification, Hint, ObservedResult};
use seawall_core::config::{Config, EndpointPolicy};
use seawall_core::lease::RequestMark;
use seawall_core::policy::Unsafe;
use seawall_core::record::{Class, Decision, ErrorKind, Reason, Scope};
use seawall_core::rng::Rng;
use seawall_core::time::{Mono, Nanos, Now, Wall};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

/// 2026-07-01T00:00:00Z.
const EPOCH: Wall = Wall(1_782_864_000_000);

/// Far more than any of these calls needs.
const MAX_STEPS: u32 = 5_000;

pub(super) struct Ended {
    pub sends: u32,
    pub elapsed: Nanos,
    /// `None` where the caller left.
    pub finish: Option<CallEnd>,
}

/// The event that a call waits for.
enum Pending {
    Start,
    Timer,
    Result(Fate),
    Refresh,
    Leaving,
    Aside,
}

struct Running {
    call: Option<Call>,
    pending: Pending,
    ticket: Option<QueueTicket>,
    pauses: u32,
    sends: u32,
    /// The last result, its time, and whether the machine paid for a retry.
    last: Option<(Result<u16, ErrorKind>, Classification, Now)>,
    paid: bool,
}

pub(super) struct World {
    pub cells: EndpointCells,
    pub policy: EndpointPolicy,
    pub now: Now,
    pub trace: String,
    pub ended: Vec<Option<Ended>>,
    pub successes: u64,
    /// Retries that were paid for and sent.
    pub retries: u64,
    plan: Arc<CallPlan>,
    rng: Rng,
    fates: Vec<Fate>,
    sent: usize,
    running: Vec<Running>,
    /// When each call continues; ties in the order of the calls.
    agenda: BTreeSet<(Mono, usize)>,
    steps: u32,
}

impl World {
    pub(super) fn new(config: &Config, fates: &[Fate], seed: u64) -> Self {
        let upstream = &config.upstreams[0];
        let endpoint = &upstream.endpoints[0];
        Self {
            cells: EndpointCells::new(config, upstream, &endpoint.policy),
            plan: Arc::new(CallPlan::new(config, upstream, endpoint)),
            policy: endpoint.policy.clone(),
            now: Now { mono: Mono(0), wall: EPOCH },
            trace: String::new(),
            ended: Vec::new(),
            successes: 0,
            retries: 0,
            rng: Rng::seeded(seed),
            fates: fates.to_vec(),
            sent: 0,
            running: Vec::new(),
            agenda: BTreeSet::new(),
            steps: 0,
        }
    }

    pub(super) fn play(&mut self, jobs: &[Job]) {
        for (i, job) in jobs.iter().enumerate() {
            let fresh = Running { call: None, pending: Pending::Start, ticket: None, pauses: 0, sends: 0, last: None, paid: false };
            self.running.push(fresh);
            self.ended.push(None);
            self.agenda.insert((Mono(0) + Nanos::from_millis(job.start_ms), i));
        }
        while let Some((at, i)) = self.agenda.pop_first() {
            self.now = self.now.after(at.since(self.now.mono));
            let action = self.wake(i, &jobs[i]);
            if let Some(action) = action {
                self.drive(i, &jobs[i], action);
            }
            self.grant(jobs);
        }
    }

    fn wake(&mut self, i: usize, job: &Job) -> Option<Action> {
        let (now, plan) = (self.now, Arc::clone(&self.plan));
        // A job that continues has only the rest of its deadline.
        let deadline = job.deadline_ms.map(|ms| Nanos::from_millis(ms) - now.mono.since(Mono(0) + Nanos::from_millis(job.start_ms)));
        let request = CallRequest {
            method: job.method,
            mark: RequestMark::NONE,
            keyed: job.keyed,
            at_cost: false,
            replayable: job.replayable,
            deadline,
            patient: job.patient,
        };
        match std::mem::replace(&mut self.running[i].pending, Pending::Timer) {
            Pending::Start => {
                let (call, action) = Call::begin(plan, &request, now);
                self.running[i].call = Some(call);
                Some(action)
            }
            Pending::Aside => {
                let progress = *self.call(i).progress();
                let (call, action) = Call::resume(plan, &request, progress, now);
                self.running[i].call = Some(call);
                Some(action)
            }
            Pending::Timer => {
                self.out_of_line(i);
                Some(self.call(i).waited(now))
            }
            Pending::Refresh => Some(self.call(i).refreshed(true, now)),
            Pending::Result(fate) => Some(self.respond(i, job, &fate)),
            Pending::Leaving => {
                self.leave(i);
                self.end(i, job, None);
                None
            }
        }
    }

    fn call(&mut self, i: usize) -> &mut Call {
        self.running[i].call.as_mut().expect("the call has begun")
    }

    /// Returns the call's ticket, if it has one.
    fn out_of_line(&mut self, i: usize) {
        if let (Some(pool), Some(ticket)) = (&mut self.cells.pool, self.running[i].ticket.take()) {
            pool.cancel(ticket);
        }
    }

    fn leave(&mut self, i: usize) {
        let settle = self.call(i).cancelled();
        self.out_of_line(i);
        let now = self.now;
        let _: seawall_core::call::CellAnswer = self.cells.settle(&settle, now);
    }

    fn respond(&mut self, i: usize, job: &Job, fate: &Fate) -> Action {
        let (now, mut rng) = (self.now, self.rng.clone());
        let seen = ObservedResult { method: job.method, result: fate.result, headers: &fate.headers, body: b"", latency: Nanos::ZERO };
        let verdict = self.plan.rules.classify(&seen, now.wall);
        self.successes += u64::from(verdict.class == Class::Success);
        self.running[i].last = Some((fate.result, verdict, now));
        let action = self.call(i).responded(&seen, now, &mut rng);
        self.rng = rng;
        action
    }

    fn drive(&mut self, i: usize, job: &Job, mut action: Action) {
        loop {
            self.steps += 1;
            assert!(self.steps < MAX_STEPS, "the calls go round in circles:\n{}", tail(&self.trace));
            if let Some(record) = self.call(i).take_record() {
                self.running[i].paid = record.decision == Decision::Retry && !job.patient;
                let (status, decision, reason) = (record.status, record.decision, record.reason);
                writeln!(self.trace, "{} {i} #{} {status} {decision} {} ({reason})", self.now.mono.0, record.number, record.wait).unwrap();
            }
            let now = self.now;
            action = match action {
                Action::Ask(ask) => {
                    let reply = self.cells.answer(ask, now);
                    if let Ask::Pool { .. } = ask {
                        self.running[i].ticket = reply.ticket;
                    }
                    self.call(i).answered(reply.answer, now)
                }
                Action::Send { timeout, number, key } => return self.send(i, job, timeout, number, key),
                Action::Wait { until, reason } => return self.wait(i, job, until, reason),
                Action::Refresh => {
                    let length = Nanos::from_millis(10).min(self.call(i).remaining(now.mono));
                    return self.pause(i, job, now.mono + length, Pending::Refresh);
                }
                Action::Finish(finish) => return self.end(i, job, Some(finish)),
            };
        }
    }

    fn send(&mut self, i: usize, job: &Job, timeout: Nanos, number: u32, key: Option<u16>) {
        self.may_send(i, job, key);
        let run = &mut self.running[i];
        run.sends += 1;
        assert_eq!(run.sends, number, "sends are numbered");
        self.retries += u64::from(std::mem::take(&mut run.paid));
        let mut fate = self.fates[self.sent % self.fates.len()].clone();
        self.sent += 1;
        let latency = Nanos::from_millis(fate.latency_ms);
        if latency > timeout {
            fate = Fate { result: Err(ErrorKind::Timeout), headers: Vec::new(), ..fate };
        }
        if fate.result.is_err() {
            fate.headers.clear();
        }
        self.pause(i, job, self.now.mono + latency.min(timeout), Pending::Result(fate));
    }

    /// Asserts that no unrepeatable call is sent twice, none is sent before the server allows it, and a cooling key gets only probes.
    fn may_send(&mut self, i: usize, job: &Job, key: Option<u16>) {
        if let (Some(keys), Some(key)) = (&self.cells.keys, key) {
            let cools = keys.status(key, self.now).is_some_and(|status| status.cooling.is_some());
            let data = keys.export();
            let group = keys.groups().nth(usize::from(key)).unwrap();
            // After a probe was just sent, the next one is a gap away.
            let probe = [data.keys[usize::from(key)].cooldown, data.groups[group]].into_iter().filter_map(|cooldown| cooldown.probe);
            let is_probe = probe.into_iter().any(|(at, gap)| at == self.now.mono.0 + gap);
            assert!(!cools || is_probe, "a leased key is never cooling");
        }
        let Some((result, verdict, at)) = &self.running[i].last else { return };
        assert!(job.replayable, "a body that is gone cannot be sent again");
        let harmless = matches!(job.method, "GET" | "PUT")
            || match self.policy.retry.unsafe_methods {
                Unsafe::Never => false,
                Unsafe::WithKey => job.keyed,
                Unsafe::Always => true,
            };
        let refused = result.is_err_and(ErrorKind::is_unsent) || verdict.unprocessed || matches!(verdict.class, Class::Quota | Class::Auth);
        assert!(harmless || refused, "{} {result:?} was sent twice\n{}", job.method, self.trace);
        let another_key = self.plan.keys > 1 && matches!(verdict.scope, Scope::Key | Scope::Group);
        let rotates = self.plan.keys > 0 && verdict.class == Class::Quota;
        let hint = match verdict.wait {
            Hint::After(length) => length,
            Hint::Until(wall) => wall.since(at.wall),
            Hint::None | Hint::Backoff | Hint::UntilReset => Nanos::ZERO,
        };
        let early = self.now.mono < at.mono + hint;
        assert!(another_key || rotates || !early, "sent before the server wanted it: {hint}\n{}", self.trace);
    }

    fn wait(&mut self, i: usize, job: &Job, until: Mono, reason: Reason) {
        let now = self.now.mono;
        writeln!(self.trace, "{} {i} waits {} ({reason})", now.0, until.since(now)).unwrap();
        assert!(until >= now, "nobody waits for the past");
        let left = self.call(i).remaining(now);
        assert!(until <= now + left, "a wait beyond the deadline\n{}", self.trace);
        if job.patient && job.restarts && !matches!(reason, Reason::Paced | Reason::Queued) {
            self.leave(i);
            return self.pause(i, job, until, Pending::Aside);
        }
        self.pause(i, job, until, Pending::Timer);
    }

    /// Continues at that time, unless the caller leaves half way.
    fn pause(&mut self, i: usize, job: &Job, until: Mono, pending: Pending) {
        let run = &mut self.running[i];
        let leaves = job.leaves == Some(run.pauses) && !matches!(pending, Pending::Aside);
        run.pauses += 1;
        run.pending = if leaves { Pending::Leaving } else { pending };
        let length = until.since(self.now.mono);
        let at = if leaves { self.now.mono + Nanos(length.0 / 2) } else { until };
        self.agenda.insert((at, i));
    }

    fn grant(&mut self, jobs: &[Job]) {
        let now = self.now;
        while let Some(ticket) = self.cells.pool.as_mut().and_then(|pool| pool.grant(now.mono)) {
            let i = self.running.iter().position(|run| run.ticket == Some(ticket)).expect("a granted ticket is somebody's");
            self.running[i].ticket = None;
            self.agenda.retain(|(_, waiting)| *waiting != i);
            let action = self.call(i).granted(now);
            self.drive(i, &jobs[i], action);
        }
    }

    fn end(&mut self, i: usize, job: &Job, finish: Option<CallEnd>) {
        writeln!(self.trace, "{} {i} ends {finish:?}", self.now.mono.0).unwrap();
        let elapsed = self.now.mono.since(Mono(0) + Nanos::from_millis(job.start_ms));
        self.ended[i] = Some(Ended { sends: self.running[i].sends, elapsed, finish });
    }
}

/// The end of a trace, long enough to show a loop.
fn tail(trace: &str) -> String {
    let lines: Vec<&str> = trace.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
