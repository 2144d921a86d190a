//! The loop that turns a call's actions into waiting and sending. It decides nothing: the call machine does.

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

/// What a call runs with.
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
    /// What the call asks for, for records.
    pub request: Option<Arc<RequestLine>>,
    /// Who asks, for limits.
    pub who: LimitSubject<'a>,
    /// Where attempts are noted for whoever keeps the call's history, beside the log.
    pub trail: Option<&'a RefCell<Vec<(Wall, AttemptOutcome)>>>,
    /// Who keeps the call's idempotency key, where it has one.
    pub keeper: Option<&'a dyn Keeper>,
    /// Where a job's send is noted that may not be repeated.
    pub start_log: Option<&'a dyn StartLog>,
    /// The end of the program, for calls whose callers wait for an answer until then.
    pub closing: Option<&'a DrainDeadline>,
}

/// Keeps idempotency keys and their answers, wherever that may be. One for each call that carries a key.
pub trait Keeper: std::fmt::Debug {
    /// Asks to execute under the call's key.
    fn reserve(&self) -> Pin<Box<dyn Future<Output = AskAnswer> + '_>>;

    /// How the reservation ends. It is written down by whoever has the answer to write with it, before that is passed on.
    fn settle(&self, reservation: Reservation);
}

/// Notes, where it outlives the process, that a request is about to be sent that may not be sent twice.
pub trait StartLog: std::fmt::Debug {
    /// Returns once that is on disk, or cannot be.
    fn begin(&self) -> Pin<Box<dyn Future<Output = AskAnswer> + '_>>;
}

/// How a call ended, and the last failure that had no answer.
#[derive(Debug)]
pub struct Finished {
    pub finish: CallEnd,
    pub fault: Option<Fault>,
    /// Set where the caller's own body ended the call.
    pub blame: Option<Blame>,
    pub at: Now,
    /// `RateLimit-Policy` and `RateLimit`, where the endpoint is limited.
    pub rate_limit: Option<Box<(String, String)>>,
    /// The place in the pool, for whoever passes the answer on.
    pub place: Option<BulkheadPermit>,
}

/// A job that is to go on later. Nothing is held meanwhile but its idempotency key.
#[derive(Clone, Copy, Debug)]
pub struct Deferred {
    pub until: Mono,
    pub reason: Reason,
    pub progress: CallProgress,
    /// Sends since the job was taken up that no attempt counts, as `Ended` has them in its attempts.
    pub resends: u32,
    pub at: Now,
}

/// How far a job came.
#[derive(Debug)]
pub enum Driven {
    Ended(Finished),
    Aside(Deferred),
}

/// A wait that is shorter than writing a job back and claiming it again is waited where it is.
const IN_PLACE: Nanos = Nanos::from_millis(20);
/// But not by one that has taken so long: it may be somebody else's by now, which is found out where it is written back.
const LONG: Nanos = Nanos::from_secs(10);

/// Gives everything back if the caller leaves: dropping the future is how callers leave.
struct Guarded<'a> {
    call: Call,
    scene: &'a CallContext<'a>,
    started: Mono,
    visit: Visit,
    done: bool,
    /// Sends that no attempt counts.
    resends: u32,
    /// Of the attempt that was sent last.
    span: Option<AttemptSpan>,
}

/// What the driver saw of an attempt beside its result.
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

    /// Ends the call with nothing counted against anybody.
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
    /// Asks state of this process; nothing where the answer is elsewhere.
    fn ask(&mut self, ask: &Ask, now: Now) -> Option<(AskAnswer, Option<PhaseChange>)> {
        if let Ask::Settle(settle) = ask {
            self.scene.ended_key(settle);
        }
        let CallContext { endpoint, who, keeper, start_log, .. } = self.scene;
        let kept = (matches!(ask, Ask::Reserve) && keeper.is_some()) || (matches!(ask, Ask::Begin) && start_log.is_some());
        (!kept && endpoint.state.link().is_none()).then(|| endpoint.state.answer(ask, who, &mut self.visit, now))
    }

    /// Asks whoever keeps keys, or state that other instances share, which takes time.
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

    /// Records an attempt, with a sample of the response where no rule names its class.
    fn record<T: Transport>(&self, attempt: AttemptOutcome, transport: &T, timeout: Option<Timeout>, now: Now) {
        let is_looked_at = !attempt.named || attempt.class == Class::Auth;
        let sample = is_looked_at.then(|| Box::new(ErrorSample::of(transport.answer(), &transport.mask())));
        let error = matches!(attempt.status, AttemptStatus::Error(_)).then(|| transport.detail().map(|detail| Box::from(detail.as_str())));
        let observed = Observed { sample, error: error.flatten(), timeout, resends: transport.resends(), span: self.span };
        self.scene.record(attempt, observed, now);
    }

    /// Gets a new token, as long as the call has time for that.
    async fn refresh<T: Transport>(&mut self, transport: &mut T, now: &mut Now) -> Action {
        let limit = Duration::from_nanos(self.call.remaining(now.mono).0);
        let refreshed = tokio::time::timeout(limit, transport.refresh()).await.unwrap_or(false);
        *now = self.scene.clock.now();
        self.call.refreshed(refreshed, *now)
    }

    /// Waits until then, for a place in the pool or for what the machine waits for.
    async fn wait(&mut self, until: Mono, reason: Reason) -> Action {
        if reason == Reason::Queued {
            return self.queue(until).await;
        }
        drop(self.place());
        let is_closing = wait(self.scene.clock, self.scene.closing, until).await;
        let now = self.scene.clock.now();
        if is_closing { self.call.turned_out(now) } else { self.call.waited(now) }
    }

    /// Waits in line for a place, until the time to give up.
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

    /// The place of a call that is over.
    fn place(&mut self) -> Option<BulkheadPermit> {
        self.visit.place(&self.scene.endpoint.state, self.scene.clock)
    }

    /// Nothing is held by a job that waits.
    fn aside(&mut self, until: Mono, reason: Reason, at: Now) -> Deferred {
        self.done = true;
        drop(self.place());
        Deferred { until, reason, progress: *self.call.progress(), resends: self.resends, at }
    }

    /// Ends a call whose caller broke off its body, or sent one that is wrong.
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
            self.scene.left(&finish, now);
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

/// Runs a job from where it was until it ends, or until it has to wait.
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
                    transport.explain(scene.words(fault, outward));
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
                return Driven::Aside(guarded.aside(until, reason, now));
            }
            Action::Wait { until, reason } => {
                // Most calls never wait, so they should not carry a timer's weight either.
                let action = Box::pin(guarded.wait(until, reason)).await;
                now = scene.clock.now();
                // A refusal that is being reported ends the call by itself.
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

/// Waits until then, or until the program ends; whether it was the latter.
async fn wait(clock: &Clock, closing: Option<&DrainDeadline>, until: Mono) -> bool {
    let Some(closing) = closing else {
        clock.sleep_until(until).await;
        return false;
    };
    tokio::select! {
        biased;
        () = clock.sleep_until(until) => false,
        () = closing.reached(clock) => true,
    }
}

/// An attempt's result as the rules see it.
fn seen<'a>(method: &'a str, result: Result<Option<RuleView<'a>>, Fault>, latency: Nanos) -> ObservedResult<'a> {
    match result {
        Ok(Some((status, headers, body))) => ObservedResult { method, result: Ok(status), headers, body, latency },
        Ok(None) => ObservedResult { method, result: Err(ErrorKind::Reset), headers: &(), body: &[], latency },
        Err(fault) => ObservedResult { method, result: Err(fault.kind), headers: &(), body: &[], latency },
    }
}

/// What a fault means that no upstream had a part in, so that no rule about the upstream can know it.
fn beyond_rules(fault: Fault) -> Option<&'static Classification> {
    match fault {
        Fault::TOKEN => Some(&UNAUTHORIZED),
        Fault::UNRELATED | Fault::UNRELATED_TIMEOUT => Some(&UNRELATED),
        Fault::OUT_OF_REACH => Some(&PROHIBITED),
        Fault::CERTIFICATE => Some(&UNTRUSTED),
        _ => None,
    }
}

/// A provider of tokens that says no is an answer to who we are, though no upstream gave it.
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

/// A provider of tokens may be back in a moment, and other calls give their files and ports back. The upstream was not asked.
const UNRELATED: Classification = Classification { class: Class::Transient, wait: Hint::Backoff, ..UNAUTHORIZED };

/// Only an operator makes an address reachable, and no wait does.
const PROHIBITED: Classification = Classification { class: Class::Permanent, ..UNAUTHORIZED };

/// A certificate that does not hold now does not hold in a second. Nothing was sent.
const UNTRUSTED: Classification = Classification { class: Class::Permanent, blameless: false, ..UNAUTHORIZED };

/// The result of one send, and since when the upstream could answer.
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

    /// The bound that an attempt went over, if that is how it failed.
    fn bound(&self, fault: Fault, attempt: AttemptRequest) -> Option<Timeout> {
        match fault.kind {
            _ if fault == Fault::CONNECT_TIMEOUT => Some(Timeout::Connect),
            _ if fault == Fault::STALLED => Some(Timeout::Idle),
            ErrorKind::Timeout if attempt.timeout < self.endpoint.spec.policy.timeout.attempt => Some(Timeout::Total),
            ErrorKind::Timeout => Some(Timeout::Attempt),
            ErrorKind::Dns | ErrorKind::Connect | ErrorKind::Reset | ErrorKind::Tls | ErrorKind::Malformed | ErrorKind::Schema => None,
        }
    }

    /// What happened to an attempt without a response.
    fn words(&self, fault: Fault, attempt: AttemptRequest) -> Masked {
        Masked::ours(match self.bound(fault, attempt) {
            Some(Timeout::Attempt) => format!("no response within {} (`timeout.attempt`)", attempt.timeout),
            Some(Timeout::Total) => format!("no response within the {} that were left of the call's deadline", attempt.timeout),
            Some(Timeout::Connect | Timeout::Idle) | None => fault.words().to_owned(),
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

    /// The closing line of a call whose caller is gone; there is nobody left to answer.
    fn left(&self, finish: &CallEnd, now: Now) {
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
