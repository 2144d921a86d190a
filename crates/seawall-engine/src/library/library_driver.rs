//! The library's driver of the call machine: answers its questions from the policy's state and returns steps that take time. It makes no
//! decisions. Dropped before the end, it releases everything.

use super::attempt::Attempt;
use super::classification::{Meaning, MeaningFields, MeaningKind};
use super::policy::{Policy, Shared};
use super::report::RecordSubject;
use super::request::Terms;
use crate::bulkhead::QueueTurn;
use crate::clock::{Clock, nanos};
use crate::credential_pauses::CredentialMark;
use crate::limits::LimitSubject;
use crate::state::Visit;
use seawall_core::call::{Action, Ask, AskAnswer, Call, CallEnd, CallRequest, Outcome};
use seawall_core::classify::{HeaderLookup, ObservedResult};
use seawall_core::guard::PhaseChange;
use seawall_core::lease::RequestMark;
use seawall_core::policy::IdempotencyMode;
use seawall_core::record::{Class, Code, ErrorKind, Reason};
use seawall_core::time::{Mono, Nanos, Now};
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The next step of a call.
#[must_use]
pub(super) enum DriverStep {
    Send(Attempt),
    Wait(Mono),
    /// Wait for a bulkhead place until this time.
    Queue(Mono),
    /// Ask state that is shared with other processes, which takes time.
    Ask(Asking),
    Finish(CallEnd),
}

/// A request to shared state, with the call's limits and bulkhead place.
pub(super) type Asking = Pin<Box<dyn Future<Output = (AskAnswer, Option<PhaseChange>, Visit)> + Send>>;

pub(super) struct Driver {
    policy: Policy,
    call: Call,
    visit: Visit,
    subject: RecordSubject,
    key: Option<Arc<str>>,
    method: &'static str,
    started: Mono,
    now: Now,
    /// The class of the last failed attempt.
    pub(super) class: Option<Class>,
    done: bool,
}

impl Driver {
    /// Starts a call that began at `now`; `answered` is the breaker's answer, if it has been asked already.
    pub(super) fn begin(policy: Policy, terms: Terms, now: Now, answered: Option<AskAnswer>) -> (Self, DriverStep) {
        let mut subject = RecordSubject { caller: terms.caller, id: None };
        let asks_for_keys = matches!(policy.0.idempotency, IdempotencyMode::Generate | IdempotencyMode::Required);
        let key = match terms.key {
            None if policy.0.idempotency == IdempotencyMode::Generate => {
                Some(Arc::from(policy.0.reporter.id(&mut subject, now.wall).to_string()))
            }
            key => key,
        };
        let method = match &terms.method {
            Some(method) => known(method),
            None if asks_for_keys => "POST",
            None => "GET",
        };
        let request = CallRequest {
            method,
            mark: RequestMark::NONE,
            keyed: key.is_some(),
            at_cost: false,
            replayable: true,
            deadline: terms.deadline.map(nanos),
            patient: terms.patient,
        };
        let (mut call, mut action) = Call::begin(Arc::clone(&policy.0.plan), &request, now);
        if let Some(answer) = answered {
            action = call.answered(answer, now);
        }
        let mut driver =
            Self { policy, call, visit: Visit::default(), subject, key, method, started: now.mono, now, class: None, done: false };
        let step = driver.follow(action);
        (driver, step)
    }

    /// Passes an attempt's result to the machine.
    pub(super) fn responded(&mut self, meaning: Meaning<'_>) -> DriverStep {
        self.now = self.policy.0.clock.now();
        let rng = &self.policy.0.rng;
        let action = match meaning.0 {
            MeaningKind::Success => self.call.succeeded(SUCCESS_STATUS, self.now),
            MeaningKind::Said { result, verdict } => self.call.judged(result, &verdict, self.now, &mut rng.lock()),
            MeaningKind::Seen { result, headers } => {
                let fields = headers.map(MeaningFields);
                let headers: &dyn HeaderLookup = fields.as_ref().map_or(&(), |fields| fields);
                let seen = ObservedResult { method: self.method, result, headers, body: &[], latency: Nanos::ZERO };
                self.call.responded(&seen, self.now, &mut rng.lock())
            }
        };
        self.follow(action)
    }

    /// Passes the timeout of an attempt to the machine.
    pub(super) fn timed_out(&mut self) -> DriverStep {
        self.responded(Meaning::from(ErrorKind::Timeout))
    }

    /// Passes the reply of shared state to the machine.
    pub(super) fn answered(&mut self, (answer, change, visit): (AskAnswer, Option<PhaseChange>, Visit)) -> DriverStep {
        self.visit = visit;
        self.now = self.policy.0.clock.now();
        if let Some(change) = change {
            self.policy.0.reporter.breaker(change, self.now.wall);
        }
        let action = self.call.answered(answer, self.now);
        self.follow(action)
    }

    pub(super) fn waited(&mut self) -> DriverStep {
        self.now = self.policy.0.clock.now();
        let action = self.call.waited(self.now);
        self.follow(action)
    }

    /// Polls for the call's turn in the bulkhead's queue.
    pub(super) fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<DriverStep> {
        let turn = match &mut self.visit.waiting {
            Some(waiting) => std::task::ready!(Pin::new(&mut waiting.turn).poll(cx)).ok(),
            None => None,
        };
        if turn != Some(QueueTurn::Granted) {
            return Poll::Ready(self.gave_up_line());
        }
        self.visit.waiting = None;
        self.now = self.policy.0.clock.now();
        let action = self.call.granted(self.now);
        Poll::Ready(self.follow(action))
    }

    /// Gives up waiting in the queue.
    pub(super) fn gave_up_line(&mut self) -> DriverStep {
        self.visit.leave_line(&self.policy.0.endpoint.state, self.policy.0.clock.now().mono);
        self.waited()
    }

    fn follow(&mut self, mut action: Action) -> DriverStep {
        let shared = &*self.policy.0;
        loop {
            if let Some(attempt) = self.call.take_record() {
                if attempt.class != Class::Success {
                    self.class = Some(attempt.class);
                }
                shared.reporter.attempt(&mut self.subject, attempt, self.now.wall);
            }
            action = match action {
                Action::Ask(ask) if shared.endpoint.state.link().is_some() => {
                    let (policy, caller, visit) = (self.policy.clone(), self.subject.caller.clone(), std::mem::take(&mut self.visit));
                    return DriverStep::Ask(Box::pin(ask_elsewhere(policy, ask, caller, visit)));
                }
                Action::Ask(ask) => {
                    let who = limit_subject(shared, self.subject.caller.as_deref());
                    let (answer, change) = shared.endpoint.state.answer(&ask, &who, &mut self.visit, self.now);
                    if let Some(change) = change {
                        shared.reporter.breaker(change, self.now.wall);
                    }
                    self.call.answered(answer, self.now)
                }
                Action::Send { number, timeout, key } => {
                    return DriverStep::Send(Attempt {
                        number,
                        timeout,
                        remaining: self.call.remaining(self.now.mono),
                        idempotency_key: self.key.clone(),
                        credential: key.and_then(|key| shared.credentials.get(usize::from(key)).cloned()),
                    });
                }
                Action::Wait { until, reason: Reason::Queued } => return DriverStep::Queue(until),
                Action::Wait { until, .. } => {
                    // If the machine has left the bulkhead, other calls may use the place meanwhile.
                    drop(self.visit.place(&shared.endpoint.state, &shared.clock));
                    return DriverStep::Wait(until);
                }
                // The library's plan has no token refresh.
                Action::Refresh => self.call.refreshed(false, self.now),
                Action::Finish(finish) => {
                    self.end(&finish);
                    return DriverStep::Finish(finish);
                }
            };
        }
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.policy.0.clock
    }

    pub(super) const fn now(&self) -> Mono {
        self.now.mono
    }

    fn end(&mut self, finish: &CallEnd) {
        self.done = true;
        let shared = &*self.policy.0;
        drop(self.visit.place(&shared.endpoint.state, &shared.clock));
        shared.reporter.call(&mut self.subject, finish, self.now.wall);
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        self.now = self.policy.0.clock.now();
        let settle = self.call.cancelled();
        self.policy.0.endpoint.state.abandon(&settle, &mut self.visit, self.now);
        self.visit.leave_line(&self.policy.0.endpoint.state, self.now.mono);
        let (attempts, elapsed) = (self.call.progress().attempts, self.now.mono.since(self.started));
        let outcome = Outcome::Refused(Code::Cancelled);
        self.end(&CallEnd { outcome, reason: Reason::Cancelled, attempts, elapsed, waited: Nanos::ZERO, retry_after: None });
    }
}

/// Asks state that is shared with other processes.
async fn ask_elsewhere(policy: Policy, ask: Ask, caller: Option<Arc<str>>, mut visit: Visit) -> (AskAnswer, Option<PhaseChange>, Visit) {
    let shared = &*policy.0;
    let who = limit_subject(shared, caller.as_deref());
    let (answer, change) = match shared.endpoint.state.link() {
        Some(link) => shared.endpoint.state.answer_shared(link, ask, &who, &mut visit, &shared.clock).await,
        None => shared.endpoint.state.answer(&ask, &who, &mut visit, shared.clock.now()),
    };
    (answer, change, visit)
}

fn limit_subject<'a>(shared: &'a Shared, caller: Option<&'a str>) -> LimitSubject<'a> {
    LimitSubject {
        ip: NOBODY,
        caller: caller.unwrap_or(""),
        user: "",
        tenant: "",
        headers: &shared.headers,
        credential: "",
        mark: CredentialMark::default(),
    }
}

/// Limits by address cannot distinguish calls of one process.
const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// A value counts as a plain success.
const SUCCESS_STATUS: u16 = 200;

/// Returns a method known to the machine; unknown methods count as POST, which is not safe to repeat.
fn known(method: &http::Method) -> &'static str {
    const KNOWN: [&str; 9] = ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "POST", "PATCH", "CONNECT"];
    KNOWN.into_iter().find(|known| *known == method.as_str()).unwrap_or("POST")
}
