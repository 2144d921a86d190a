//! The loop that executes a call's actions: waiting, asking and sending. The call machine makes all decisions.

mod upload;

use crate::attempt::{AttemptRequest, KeyTail, RuleView, Transport};
use crate::bulkhead::{BulkheadPermit, QueueTurn};
use crate::clock::Clock;
use crate::deadlines::Deadlines;
use crate::drain::DrainDeadline;
use crate::limits::LimitSubject;
use crate::mask::Masked;
use crate::record::{AttemptRecord, BreakerRecord, CallRecord, ErrorSample, Record, RequestLine};
use crate::recorder::Recorder;
use crate::runtime::LiveEndpoint;
use crate::state::Visit;
use crate::trace::AttemptSpan;
use seawall_core::call::{Action, Ask, AskAnswer, Call, CallEnd, CallRequest, Outcome, Reservation, SettleAttempt};
use seawall_core::classify::{Classification, Hint, ObservedResult};
use seawall_core::decide::CallProgress;
use seawall_core::guard::PhaseChange;
use seawall_core::id::CallId;
use seawall_core::record::{AttemptOutcome, AttemptStatus, Class, Code, ErrorKind, Reason, Scope, Timeout};
use seawall_core::rng::Rng;
use seawall_core::time::{Mono, Nanos, Now, Wall};
use seawall_http::fault::Fault;
use seawall_http::request_body::Blame;
use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use upload::Uploaded;

/// The environment of a call.
#[derive(Debug)]
pub struct CallContext<'a> {
    pub clock: &'a Clock,
    pub deadlines: &'a Deadlines,
    pub rng: &'a RefCell<Rng>,
    pub recorder: &'a Recorder,
    pub endpoint: &'a Arc<LiveEndpoint>,
    pub id: CallId,
    pub caller: &'a Arc<str>,
    pub key_tail: &'a dyn KeyTail,
    /// The request line for records.
    pub request: Option<Arc<RequestLine>>,
    /// The caller, for limits.
    pub who: LimitSubject<'a>,
    /// Collects attempts for the call's history, beside the log.
    pub trail: Option<&'a RefCell<Vec<(Wall, AttemptOutcome)>>>,
    /// Stores the call's idempotency key, if it has one.
    pub keeper: Option<&'a dyn Keeper>,
    /// Notes the start of a job's send that may not be repeated.
    pub start_log: Option<&'a dyn StartLog>,
    /// The end of the process, for calls whose callers wait for a response.
    pub closing: Option<&'a DrainDeadline>,
}

/// Stores idempotency keys and their responses. One per call with a key.
pub trait Keeper: std::fmt::Debug {
    /// Reserves the call's key.
    fn reserve(&self) -> Pin<Box<dyn Future<Output = AskAnswer> + '_>>;

    /// Sets how the reservation ends. The end is written later together with the response, before the response is passed on.
    fn settle(&self, reservation: Reservation);
}

/// Notes durably that a request is about to be sent that may not be sent twice.
pub trait StartLog: std::fmt::Debug {
    /// Returns when the note is on disk or has failed.
    fn begin(&self) -> Pin<Box<dyn Future<Output = AskAnswer> + '_>>;
}

/// The end of a call, and the last failure without a response.
#[derive(Debug)]
pub struct Finished {
    pub finish: CallEnd,
    pub fault: Option<Fault>,
    /// Set if the caller's own body ended the call.
    pub blame: Option<Blame>,
    pub at: Now,
    /// `RateLimit-Policy` and `RateLimit`, if the endpoint is limited.
    pub rate_limit: Option<Box<(String, String)>>,
    /// The bulkhead place, held until the response has been passed on.
    pub place: Option<BulkheadPermit>,
}

/// A job that continues later. Meanwhile it holds nothing but its idempotency key.
#[derive(Clone, Copy, Debug)]
pub struct Deferred {
    pub until: Mono,
    pub reason: Reason,
    pub progress: CallProgress,
    /// Sends in this run that replaced a dead connection; attempts do not count them, while `Ended` includes them.
    pub resends: u32,
    pub at: Now,
}

/// The result of driving a job.
#[derive(Debug)]
pub enum Driven {
    Ended(Finished),
    Aside(Deferred),
}

/// A wait shorter than this is done in place: settling and claiming the job again would take longer.
const IN_PLACE: Nanos = Nanos::from_millis(20);
/// Jobs that have run longer than this never wait in place: another worker may hold the lease by now, which the settlement will detect.
const LONG: Nanos = Nanos::from_secs(10);

/// Releases everything when the caller leaves, that is, when the future is dropped.
struct Guarded<'a> {
    call: Call,
    scene: &'a CallContext<'a>,
    started: Mono,
    visit: Visit,
    done: bool,
    /// Sends that no attempt counts.
    resends: u32,
    /// The span of the last attempt.
    span: Option<AttemptSpan>,
}

/// Observations of the driver about an attempt, beside its result.
#[derive(Default)]
struct Observed {
    sample: Option<Box<ErrorSample>>,
    error: Option<Box<str>>,
    timeout: Option<Timeout>,
    resends: u32,
    span: Option<AttemptSpan>,
}

impl Guarded<'_> {
    fn waits_in_place(&self, until: Mono, now: Mono) -> bool {
        until.since(now) <= IN_PLACE && now.since(self.started) <= LONG
    }

    /// Ends the call without counting a result.
    fn cancel(&mut self, code: Code, now: Now) -> CallEnd {
        self.done = true;
        if let Some(attempt) = self.call.abandoned(now) {
            self.scene.record(attempt, Observed { resends: self.resends, span: self.span, ..Observed::default() }, now);
        }
        let settle = self.call.cancelled();
        self.scene.ended_key(&settle);
        self.scene.endpoint.state.abandon(&settle, &mut self.visit, now);
        self.visit.leave_line(&self.scene.endpoint.state, now.mono);
        let (attempts, elapsed) = (self.call.progress().attempts, now.mono.since(self.started));
        CallEnd { outcome: Outcome::Refused(code), reason: Reason::Cancelled, attempts, elapsed, waited: Nanos::ZERO, retry_after: None }
    }
}

impl Guarded<'_> {
    /// Answers a question from local state; `None` if the answer needs a store or shared state.
    fn ask(&mut self, ask: &Ask, now: Now) -> Option<(AskAnswer, Option<PhaseChange>)> {
        if let Ask::Settle(settle) = ask {
            self.scene.ended_key(settle);
        }
        let CallContext { endpoint, who, keeper, start_log, .. } = self.scene;
        let kept = (matches!(ask, Ask::Reserve) && keeper.is_some()) || (matches!(ask, Ask::Begin) && start_log.is_some());
        (!kept && endpoint.state.link().is_none()).then(|| endpoint.state.answer(ask, who, &mut self.visit, now))
    }

    /// Answers a question from the key store or from shared state, which takes time.
    async fn ask_elsewhere(&mut self, ask: Ask, now: &mut Now) -> (AskAnswer, Option<PhaseChange>) {
        let CallContext { clock, endpoint, who, keeper, start_log, .. } = self.scene;
        let answered = match (keeper, start_log, endpoint.state.link()) {
            (Some(keeper), ..) if matches!(ask, Ask::Reserve) => (keeper.reserve().await, None),
            (_, Some(log), _) if matches!(ask, Ask::Begin) => (log.begin().await, None),
            (.., Some(link)) => endpoint.state.answer_shared(link, ask, who, &mut self.visit, clock).await,
            (.., None) => endpoint.state.answer(&ask, who, &mut self.visit, *now),
        };
        *now = clock.now();
        answered
    }

    /// Records an attempt, with a sample of the response if no rule names its class.
    fn record<T: Transport>(&self, attempt: AttemptOutcome, transport: &T, timeout: Option<Timeout>, now: Now) {
        let is_looked_at = !attempt.named || attempt.class == Class::Auth;
        let sample = is_looked_at.then(|| Box::new(ErrorSample::of(transport.answer(), &transport.mask())));
        let error = matches!(attempt.status, AttemptStatus::Error(_)).then(|| transport.detail().map(|detail| Box::from(detail.as_str())));
        let observed = Observed { sample, error: error.flatten(), timeout, resends: transport.resends(), span: self.span };
        self.scene.record(attempt, observed, now);
    }

    /// Gets a new token within the call's time.
    async fn refresh<T: Transport>(&mut self, transport: &mut T, now: &mut Now) -> Action {
        let limit = Duration::from_nanos(self.call.remaining(now.mono).0);
        let refreshed = tokio::time::timeout(limit, transport.refresh()).await.unwrap_or(false);
        *now = self.scene.clock.now();
        self.call.refreshed(refreshed, *now)
    }

    /// Waits until then, for a bulkhead place or for the machine's condition.
    async fn wait(&mut self, until: Mono, reason: Reason) -> Action {
        if reason == Reason::Queued {
            return self.queue(until).await;
        }
        drop(self.place());
        let is_closing = wait(self.scene.clock, self.scene.closing, until).await;
        let now = self.scene.clock.now();
        if is_closing { self.call.turned_out(now) } else { self.call.waited(now) }
    }

    /// Waits in the bulkhead's queue until the time to give up.
    async fn queue(&mut self, until: Mono) -> Action {
        let CallContext { clock, closing, .. } = self.scene;
        let mut is_closing = false;
        let turn = match &mut self.visit.waiting {
            Some(waiting) => tokio::select! {
                turn = &mut waiting.turn => turn.ok(),
                closing = wait(clock, *closing, until) => {
                    is_closing = closing;
                    None
                }
            },
            None => None,
        };
        let now = clock.now();
        if turn == Some(QueueTurn::Granted) {
            self.visit.waiting = None;
            return self.call.granted(now);
        }
        self.visit.leave_line(&self.scene.endpoint.state, now.mono);
        if is_closing { self.call.turned_out(now) } else { self.call.waited(now) }
    }

    /// Returns the bulkhead place of a call that is over.
    fn place(&mut self) -> Option<BulkheadPermit> {
        self.visit.place(&self.scene.endpoint.state, self.scene.clock)
    }

    /// Defers a job; a waiting job holds nothing.
    fn defer(&mut self, until: Mono, reason: Reason, at: Now) -> Deferred {
        self.done = true;
        drop(self.place());
        Deferred { until, reason, progress: *self.call.progress(), resends: self.resends, at }
    }

    /// Ends a call whose caller broke off its body or sent an invalid one.
    fn blamed(&mut self, blame: Blame, now: Now) -> Driven {
        let code = if blame == Blame::TooLarge { Code::TooLarge } else { Code::Cancelled };
        let finish = self.cancel(code, now);
        Driven::Ended(self.ended(finish, None, Some(blame), now))
    }

    fn ended(&mut self, mut finish: CallEnd, fault: Option<Fault>, blame: Option<Blame>, now: Now) -> Finished {
        finish.attempts += self.resends;
        let rate_limit = self.scene.endpoint.state.fields(&self.visit, now.mono).map(Box::new);
        Finished { finish, fault, blame, at: now, rate_limit, place: self.place() }
    }
}

impl Drop for Guarded<'_> {
    fn drop(&mut self) {
        if !self.done {
            let now = self.scene.clock.now();
            let finish = self.cancel(Code::Cancelled, now);
            self.scene.record_abandoned(&finish, now);
            drop(self.visit.place(&self.scene.endpoint.state, self.scene.clock));
        }
    }
}

/// Runs a call to its end.
pub async fn drive<T: Transport>(scene: &CallContext<'_>, request: &CallRequest<'_>, transport: &mut T) -> Finished {
    match run(scene, request, CallProgress::default(), transport).await {
        Driven::Ended(ended) => ended,
        Driven::Aside(_) => unreachable!("only the patient are put aside"),
    }
}

/// Runs a job from its progress until it ends or has to wait.
pub async fn drive_job<T: Transport>(
    scene: &CallContext<'_>,
    request: &CallRequest<'_>,
    progress: CallProgress,
    transport: &mut T,
) -> Driven {
    run(scene, request, progress, transport).await
}

async fn run<T: Transport>(scene: &CallContext<'_>, request: &CallRequest<'_>, progress: CallProgress, transport: &mut T) -> Driven {
    let mut now = scene.clock.now();
    let (call, mut action) = Call::resume(Arc::clone(&scene.endpoint.plan), request, progress, now);
    let visit = Visit { body_bytes: transport.body_bytes(), ..Visit::default() };
    let mut guarded = Guarded { call, scene, started: now.mono, visit, done: false, resends: 0, span: None };
    let (mut fault, mut bound) = (None, None);
    loop {
        if let Some(attempt) = guarded.call.take_record() {
            guarded.record(attempt, transport, bound.take(), now);
        }
        action = match action {
            Action::Ask(ask) => {
                let (answer, change) = match guarded.ask(&ask, now) {
                    Some(answered) => answered,
                    None => Box::pin(guarded.ask_elsewhere(ask, &mut now)).await,
                };
                if let Some(change) = change {
                    scene.changed(change, now);
                }
                guarded.call.answered(answer, now)
            }
            Action::Send { number, timeout, key } => {
                let outward = AttemptRequest { number, key, timeout, remaining: guarded.call.remaining(now.mono), now };
                guarded.span = transport.span(number);
                let (result, since) = send(scene, transport, outward).await;
                now = scene.clock.now();
                guarded.resends += transport.resends();
                guarded.call.uploaded(since);
                fault = result.err();
                bound = fault.and_then(|fault| scene.bound(fault, outward));
                if let Some(fault) = fault.filter(|_| transport.detail().is_none()) {
                    transport.explain(scene.describe_fault(fault, outward));
                }
                if let Some(blame) = fault.and_then(|fault| transport.blame(fault)) {
                    return guarded.blamed(blame, now);
                }
                if let Some((fault, verdict)) = fault.and_then(|fault| Some((fault, beyond_rules(fault)?))) {
                    action = guarded.call.judged(Err(fault.kind), verdict, now, &mut scene.rng.borrow_mut());
                    continue;
                }
                let latency = now.mono.since(since);
                let seen = seen(request.method, result.map(|()| transport.answer()), latency);
                guarded.call.responded(&seen, now, &mut scene.rng.borrow_mut())
            }
            Action::Wait { until, reason }
                if request.patient && !matches!(reason, Reason::Paced | Reason::Queued) && !guarded.waits_in_place(until, now.mono) =>
            {
                return Driven::Aside(guarded.defer(until, reason, now));
            }
            Action::Wait { until, reason } => {
                // Boxed, since most calls never wait and should not carry the size of a timer.
                let action = Box::pin(guarded.wait(until, reason)).await;
                now = scene.clock.now();
                // A pending `Settle` ends the call by itself.
                if transport.is_abandoned() && !matches!(action, Action::Ask(Ask::Settle(_))) {
                    return guarded.blamed(Blame::Broke, now);
                }
                action
            }
            Action::Refresh => Box::pin(guarded.refresh(transport, &mut now)).await,
            Action::Finish(finish) => {
                guarded.done = true;
                return Driven::Ended(guarded.ended(finish, fault, None, now));
            }
        };
    }
}

/// Waits until then or until the process ends. Returns whether the process ends.
async fn wait(clock: &Clock, closing: Option<&DrainDeadline>, until: Mono) -> bool {
    let Some(closing) = closing else {
        clock.sleep_until(until).await;
        return false;
    };
    tokio::select! {
        biased;
        () = clock.sleep_until(until) => false,
        () = closing.wait_for_end(clock) => true,
    }
}

/// Presents an attempt's result to the rules.
fn seen<'a>(method: &'a str, result: Result<Option<RuleView<'a>>, Fault>, latency: Nanos) -> ObservedResult<'a> {
    match result {
        Ok(Some((status, headers, body))) => ObservedResult { method, result: Ok(status), headers, body, latency },
        Ok(None) => ObservedResult { method, result: Err(ErrorKind::Reset), headers: &(), body: &[], latency },
        Err(fault) => ObservedResult { method, result: Err(fault.kind), headers: &(), body: &[], latency },
    }
}

/// Classifies faults that do not involve the upstream, so that rules about the upstream do not apply.
fn beyond_rules(fault: Fault) -> Option<&'static Classification> {
    match fault {
        Fault::TOKEN => Some(&UNAUTHORIZED),
        Fault::UNRELATED | Fault::UNRELATED_TIMEOUT => Some(&UNRELATED),
        Fault::OUT_OF_REACH => Some(&PROHIBITED),
        Fault::CERTIFICATE => Some(&UNTRUSTED),
        _ => None,
    }
}

/// A token provider's refusal concerns our credentials, though the upstream did not send it.
const UNAUTHORIZED: Classification = Classification {
    class: Class::Auth,
    scope: Scope::Call,
    wait: Hint::None,
    skew: Nanos::ZERO,
    rule: None,
    named: true,
    unprocessed: true,
    blameless: true,
};

/// A token provider may recover soon, and local resources may become free. The upstream was not involved.
const UNRELATED: Classification = Classification { class: Class::Transient, wait: Hint::Backoff, ..UNAUTHORIZED };

/// Only a change of configuration makes the address reachable; waiting does not help.
const PROHIBITED: Classification = Classification { class: Class::Permanent, ..UNAUTHORIZED };

/// An invalid certificate stays invalid. Nothing was sent.
const UNTRUSTED: Classification = Classification { class: Class::Permanent, blameless: false, ..UNAUTHORIZED };

/// Returns the result of one send, and the time since which the upstream could respond.
async fn send<T: Transport>(scene: &CallContext<'_>, transport: &mut T, outward: AttemptRequest) -> (Result<(), Fault>, Mono) {
    let started = outward.now.mono;
    if let Some(feed) = transport.upload() {
        let timeout = scene.endpoint.spec.policy.timeout;
        let Uploaded { result, whole_since } = Box::pin(upload::send(scene.clock, timeout, transport, outward, feed)).await;
        return (result, whole_since);
    }
    let within = scene.deadlines.within(scene.clock, started + outward.timeout, transport.send(outward));
    (within.await.unwrap_or_else(|| Err(transport.overdue())), started)
}

impl CallContext<'_> {
    fn ended_key(&self, settle: &SettleAttempt) {
        if let (Some(keeper), Some(reservation)) = (self.keeper, settle.reservation) {
            keeper.settle(reservation);
        }
    }

    /// Returns the timeout that an attempt exceeded, if it failed by one.
    fn bound(&self, fault: Fault, attempt: AttemptRequest) -> Option<Timeout> {
        match fault.kind {
            _ if fault == Fault::CONNECT_TIMEOUT => Some(Timeout::Connect),
            _ if fault == Fault::STALLED => Some(Timeout::Idle),
            ErrorKind::Timeout if attempt.timeout < self.endpoint.spec.policy.timeout.attempt => Some(Timeout::Total),
            ErrorKind::Timeout => Some(Timeout::Attempt),
            ErrorKind::Dns | ErrorKind::Connect | ErrorKind::Reset | ErrorKind::Tls | ErrorKind::Malformed | ErrorKind::Schema => None,
        }
    }

    /// Describes the failure of an attempt without a response.
    fn describe_fault(&self, fault: Fault, attempt: AttemptRequest) -> Masked {
        Masked::own_words(match self.bound(fault, attempt) {
            Some(Timeout::Attempt) => format!("no response within {} (`timeout.attempt`)", attempt.timeout),
            Some(Timeout::Total) => format!("no response within the {} that were left of the call's deadline", attempt.timeout),
            Some(Timeout::Connect | Timeout::Idle) | None => fault.describe().to_owned(),
        })
    }

    fn record(&self, attempt: AttemptOutcome, observed: Observed, now: Now) {
        let Observed { sample, error, timeout, resends, span } = observed;
        if let Some(trail) = self.trail {
            trail.borrow_mut().push((now.wall, attempt));
        }
        self.recorder.push(Record::Attempt(AttemptRecord {
            at: now.wall,
            call: self.id,
            names: Arc::clone(&self.endpoint.names),
            caller: Arc::clone(self.caller),
            attempt,
            request: self.request.clone(),
            resends,
            span: span.map(Box::new),
            key_tail: attempt.key.and_then(|key| self.key_tail.tail(key)),
            sample,
            timeout,
            error,
        }));
    }

    /// Writes the closing record of a call whose caller has gone.
    fn record_abandoned(&self, finish: &CallEnd, now: Now) {
        self.recorder.push(Record::Call(CallRecord {
            at: now.wall,
            call: self.id,
            names: Arc::clone(&self.endpoint.names),
            caller: Arc::clone(self.caller),
            request: self.request.clone(),
            attempts: finish.attempts,
            response_status: None,
            outcome: Code::Cancelled.as_str(),
            reason: finish.reason,
            elapsed: finish.elapsed,
            refused_by: None,
        }));
    }

    fn changed(&self, change: PhaseChange, now: Now) {
        self.recorder.push(Record::Breaker(BreakerRecord { at: now.wall, names: Arc::clone(&self.endpoint.names), change }));
    }
}
