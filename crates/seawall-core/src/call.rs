//! The call machine: one call from its first question to its outcome. Events go in, one [`Action`] comes out.
//!
//! ```text
//!  begin ─▶ limits ─▶ pool ─▶ reserve ─▶┌ permit ─▶ key ─▶ send ─▶ classify ─▶ decide ─▶ settle ┐─▶ finish
//!            admit stage                │ guard     lease   attempt                               │
//!                                       └──────────◀── wait (backoff, hint) / rotate / refresh ◀──┘
//! ```
//!
//! The gateway, the job worker, the batch door, the simulator and the library all drive this machine; there is no second copy of any rule.
//! A driver does what the action says and reports what happened; it never decides. The machine skips stages that an endpoint does not use.
//! Before the first send of a job that may not be repeated, the driver records that the send begins.

mod action;
mod ask;
mod cells;
mod first;
mod held;
mod plan;
mod report;
#[cfg(test)]
mod stories;
mod waiting;

pub use action::{Action, CallEnd, CallRequest, Outcome};
pub use ask::{Ask, AskAnswer, KeyReport, Reservation, SettleAttempt};
pub use cells::{BUDGET_CAPACITY, CellAnswer, EndpointCells};
pub use first::First;
pub use plan::CallPlan;

use crate::admit::idempotency;
use crate::classify::{Classification, ObservedResult};
use crate::decide::{CallProgress, Deadline, DecisionInput, NextStep, RetryFunding, next};
use crate::lease::RequestMark;
use crate::record::{AttemptOutcome, AttemptStatus, Class, Code, Decision, ErrorKind, Reason};
use crate::rng::Rng;
use crate::time::{Mono, Nanos, Now};
use held::HeldResources;
use std::sync::Arc;
use waiting::{Obstacle, WaitTimes};

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Limits,
    Paced,
    Pool,
    Queued,
    Reserve,
    Permit,
    Key,
    /// The call asked for a place in the waiting line.
    Line(Obstacle),
    /// In the waiting line, until the call asks for its turn.
    InLine,
    /// The call has asked for its turn.
    Turn,
    Begin,
    Sending {
        since: Mono,
    },
    Settling(Then),
    BackingOff,
    Deferred,
    Refreshing,
    Done,
}

/// The step that follows once shared state has taken the result.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    Retry {
        wait: Nanos,
        reason: Reason,
    },
    Send,
    /// The permit was returned; next the call asks for a place in the waiting line.
    Line(Obstacle),
    /// The call has left the waiting line; next the attempt is sent.
    Dispatch,
    Refresh,
    Defer {
        until: Mono,
        reason: Reason,
    },
    Finish(CallEnd),
}

#[derive(Debug)]
pub struct Call {
    plan: Arc<CallPlan>,
    repeatable: bool,
    replayable: bool,
    keyed: bool,
    patient: bool,
    mark: RequestMark,
    started: Mono,
    deadline: Deadline,
    progress: CallProgress,
    state: State,
    held: HeldResources,
    /// When the call began to wait for a key, a pause or a breaker; a send ends that wait.
    blocked_since: Option<Mono>,
    /// The sum of all such waits.
    waited: Nanos,
    /// The same by kind of obstacle; only calls that waited have it.
    wait_times: Option<Box<WaitTimes>>,
    /// The obstacle that the call waits for in line.
    obstacle: Option<Obstacle>,
    /// The last failed attempt: its class and the upstream's response, if there was one.
    last: Option<(Class, AttemptStatus)>,
    /// The last failure was a provider's "later". If the budget does not fund the retry, the call waits for funding: a provider's limit
    /// refuses many concurrent calls at once, and each of them would succeed a little later.
    throttled: bool,
    /// The wait before a retry has begun or ended, and nothing has funded the retry yet.
    unfunded: bool,
    /// The last failure was not the upstream's and nothing was sent to it. The retry adds no load, so it takes nothing from the budget.
    unsent: bool,
    /// The last response belongs to the idempotency key: a repeated call would get it again.
    final_answer: bool,
    /// The driver has recorded durably that this call sends.
    begun: bool,
    /// A send of this call got no response, so it may or may not have been executed.
    doubt: bool,
    record: Option<AttemptOutcome>,
}

impl Call {
    pub fn begin(plan: Arc<CallPlan>, request: &CallRequest<'_>, now: Now) -> (Self, Action) {
        Self::resume(plan, request, CallProgress::default(), now)
    }

    /// Continues a deferred job where it stopped; `progress` is what it had used up.
    pub fn resume(plan: Arc<CallPlan>, request: &CallRequest<'_>, progress: CallProgress, now: Now) -> (Self, Action) {
        let total = if request.patient { Nanos::MAX } else { plan.timeout.total };
        let mut call = Self {
            repeatable: request.is_repeatable(&plan),
            replayable: request.replayable,
            keyed: request.keyed,
            patient: request.patient,
            mark: request.mark,
            started: now.mono,
            deadline: Deadline::starting(now.mono, total, request.deadline, plan.margin),
            progress,
            state: State::Limits,
            held: HeldResources::default(),
            blocked_since: None,
            wait_times: None,
            waited: Nanos::ZERO,
            obstacle: None,
            last: None,
            throttled: false,
            unfunded: false,
            unsent: false,
            final_answer: false,
            begun: false,
            // The deferral did not keep how earlier sends ended, so any earlier send leaves doubt.
            doubt: progress.attempts > 0,
            record: None,
            plan,
        };
        let action = call.limits(now);
        (call, action)
    }

    #[must_use]
    pub const fn progress(&self) -> &CallProgress {
        &self.progress
    }

    /// Takes the record of the decided attempt once the decision is final: the retry budget may still turn a retry into a return.
    pub fn take_record(&mut self) -> Option<AttemptOutcome> {
        if matches!(self.state, State::Settling(_)) { None } else { self.record.take() }
    }

    #[must_use]
    pub fn remaining(&self, now: Mono) -> Nanos {
        self.deadline.remaining(now)
    }

    // ── admit ────────────────────────────────────────────────────────────────────────────────────────────────

    fn limits(&mut self, now: Now) -> Action {
        if !self.plan.limited {
            return self.pool(now);
        }
        self.state = State::Limits;
        Action::Ask(Ask::Limits)
    }

    fn pool(&mut self, now: Now) -> Action {
        let Some(queue_timeout) = self.plan.queue_timeout else { return self.reserve(now) };
        if !self.patient && self.deadline.attempt_timeout(self.plan.timeout.attempt, now.mono).is_none() {
            return self.refuse(Code::DeadlineExceeded, Reason::DeadlineExceeded, None, now);
        }
        self.state = State::Pool;
        let give_up = (now.mono + queue_timeout).min(self.deadline.at);
        Action::Ask(Ask::Pool { give_up })
    }

    fn reserve(&mut self, now: Now) -> Action {
        if !self.plan.idempotent || !self.keyed || self.held.reservation {
            return self.permit(now);
        }
        self.state = State::Reserve;
        Action::Ask(Ask::Reserve)
    }

    // ── guard, lease ─────────────────────────────────────────────────────────────────────────────────────────

    fn permit(&mut self, now: Now) -> Action {
        if !self.plan.guarded {
            return self.key(now);
        }
        self.state = State::Permit;
        Action::Ask(Ask::Permit { lease: self.plan.probe_lease })
    }

    fn key(&mut self, now: Now) -> Action {
        if self.plan.keys == 0 {
            return self.send(now);
        }
        self.state = State::Key;
        Action::Ask(Ask::Key { tried: self.progress.tried, request: self.mark })
    }

    fn send(&mut self, now: Now) -> Action {
        if let Some(place) = self.held.line.take() {
            return self.leave_line(place, now);
        }
        let Some(timeout) = self.deadline.attempt_timeout(self.plan.timeout.attempt, now.mono) else {
            return self.refuse(Code::DeadlineExceeded, Reason::DeadlineExceeded, None, now);
        };
        if self.patient && !self.repeatable && !self.begun {
            self.state = State::Begin;
            return Action::Ask(Ask::Begin);
        }
        self.progress.attempts += 1;
        self.held.funding = None;
        self.state = State::Sending { since: now.mono };
        Action::Send { number: self.progress.attempts, timeout, key: self.held.key.map(|lease| lease.key) }
    }

    /// Takes the reply to the last question.
    pub fn answered(&mut self, answer: AskAnswer, now: Now) -> Action {
        match (self.state, answer) {
            (State::Limits, AskAnswer::Limited { after }) => {
                self.held.limits = true;
                if after == Nanos::ZERO { self.pool(now) } else { self.pace(after, now) }
            }
            (State::Limits, AskAnswer::OverLimit { retry_at: Some(at) }) => self.blocked(Obstacle::Limit { until: at }, now),
            (State::Limits, AskAnswer::OverLimit { retry_at: None }) => self.refuse(Code::RateLimited, Reason::ExceedsCapacity, None, now),
            (State::Pool, AskAnswer::PoolEntered) => self.entered(now),
            (State::Pool, AskAnswer::PoolQueued) => self.queue(now),
            (State::Pool, AskAnswer::PoolFull { shed }) => {
                if let Some(action) = self.obstacle.and_then(|obstacle| self.pool_is_full(obstacle, now)) {
                    return action;
                }
                let reason = if shed { Reason::Shed } else { Reason::PoolFull };
                self.refuse(Code::Overloaded, reason, Some(now.mono + RETRY_OVERLOAD), now)
            }
            (State::Reserve, AskAnswer::Reserved) => {
                self.held.reservation = true;
                self.permit(now)
            }
            (State::Reserve, AskAnswer::Replayed) => self.end(Outcome::Replayed, Reason::IdempotencyReplayed, None, now),
            (State::Reserve, AskAnswer::KeyRefused(code)) => {
                let passes = matches!(code, Code::IdempotencyKeyInFlight | Code::StoreUnavailable);
                self.refuse(code, Reason::IdempotencyRefused, passes.then(|| now.mono + RETRY_KEY), now)
            }
            (State::Permit, AskAnswer::Permitted(permit)) => {
                self.held.permit = Some(permit);
                self.key(now)
            }
            (State::Permit, AskAnswer::Open { retry_at: Some(at) }) => self.blocked(Obstacle::Breaker { retry_at: at }, now),
            // An operator holds it open, with no known end.
            (State::Permit, AskAnswer::Open { retry_at: None }) => self.circuit_open(now.mono + self.plan.held_open, now),
            (State::Permit, AskAnswer::Paused { until, own }) => self.blocked(Obstacle::Pause { until, own }, now),
            (State::Key, AskAnswer::Key(lease)) => {
                self.held.key = Some(lease);
                self.send(now)
            }
            (State::Key, AskAnswer::Cooling { wait, probed }) => self.blocked(Obstacle::Keys { until: now.mono + wait, probed }, now),
            (State::Line(obstacle), AskAnswer::InLine { place, at }) => self.in_line(obstacle, place, at, now),
            (State::Turn, AskAnswer::InLine { at, .. }) => self.not_yet(at, now),
            (State::Turn, AskAnswer::LineFull) => self.displaced(now),
            (State::Turn, AskAnswer::Turn) => self.look_again(now),
            (State::Line(obstacle), AskAnswer::LineFull) => self.refuse_wait(obstacle, now),
            (State::Key, AskAnswer::Dead { wait: Some(wait) }) => self.blocked(Obstacle::RejectedKeys { until: now.mono + wait }, now),
            (State::Key, AskAnswer::Dead { wait: None }) => self.refuse(Code::KeysRejected, Reason::KeysDead, None, now),
            (State::Begin, AskAnswer::Begun) => {
                self.begun = true;
                self.send(now)
            }
            (State::Begin, AskAnswer::NotBegun) => self.refuse(Code::StoreUnavailable, Reason::TurnedAway, Some(now.mono + RETRY_KEY), now),
            (State::Settling(then), AskAnswer::Settled { funding }) => self.settled(then, funding, now),
            (state, answer) => unreachable!("the driver answers the question that was asked: {state:?} got {answer:?}"),
        }
    }

    fn pace(&mut self, after: Nanos, now: Now) -> Action {
        if !self.deadline.fits(after, now.mono) {
            return self.refuse(Code::DeadlineExceeded, Reason::DeadlineExceeded, None, now);
        }
        self.state = State::Paced;
        Action::Wait { until: now.mono + after, reason: Reason::Paced }
    }

    fn queue(&mut self, now: Now) -> Action {
        self.state = State::Queued;
        let queue_timeout = self.plan.queue_timeout.unwrap_or(Nanos::ZERO);
        Action::Wait { until: (now.mono + queue_timeout).min(self.deadline.at), reason: Reason::Queued }
    }

    fn entered(&mut self, now: Now) -> Action {
        self.held.slot = Some(now.mono);
        self.reserve(now)
    }

    /// The pool has a slot for this call.
    pub fn granted(&mut self, now: Now) -> Action {
        debug_assert_eq!(self.state, State::Queued, "only a call in line is granted a slot");
        self.entered(now)
    }

    // ── attempt, classify, decide ────────────────────────────────────────────────────────────────────────────

    /// The upstream has the whole request only from `at` on. The time that a caller took to upload is not the upstream's latency.
    pub fn uploaded(&mut self, at: Mono) {
        if let State::Sending { since } = &mut self.state {
            *since = (*since).max(at);
        }
    }

    /// Classifies the attempt's result, decides what follows and reports it to shared state.
    pub fn responded(&mut self, seen: &ObservedResult<'_>, now: Now, rng: &mut Rng) -> Action {
        let verdict = self.plan.rules.classify(seen, now.wall);
        self.judged(seen.result, &verdict, now, rng)
    }

    /// As [`Call::responded`], for a driver that has classified the result by other means.
    pub fn judged(&mut self, result: Result<u16, ErrorKind>, verdict: &Classification, now: Now, rng: &mut Rng) -> Action {
        let hint = self.plan.wait_length(verdict, now.wall);
        let facts = DecisionInput {
            retry: &self.plan.retry,
            progress: &self.progress,
            repeatable: self.repeatable || result.is_err_and(ErrorKind::is_unsent),
            replayable: self.replayable,
            patient: self.patient,
            deadline: self.deadline,
            keys: self.plan.keys,
            refreshes: self.plan.refreshes,
        };
        let next = next(&facts, verdict, hint, now, rng);
        self.decided(result, verdict, hint, next, now)
    }

    /// As [`Call::judged`] for a plain success, which needs neither randomness nor rules.
    #[inline]
    pub fn succeeded(&mut self, status: u16, now: Now) -> Action {
        self.decided(Ok(status), &Classification::SUCCESS, None, NextStep::Return(Reason::Succeeded), now)
    }

    #[inline]
    fn decided(
        &mut self,
        result: Result<u16, ErrorKind>,
        verdict: &Classification,
        hint: Option<Nanos>,
        next: NextStep,
        now: Now,
    ) -> Action {
        let State::Sending { since } = self.state else { unreachable!("a result comes while an attempt is out, not in {:?}", self.state) };
        let latency = now.mono.since(since);
        let status = result.map_or_else(AttemptStatus::Error, AttemptStatus::Http);
        let unsent = result.is_err_and(ErrorKind::is_unsent);
        let mut settle = self.report(status, verdict, hint, latency, now);
        let (then, decision, wait, reason) = self.follow(next, verdict, status, hint, now);
        let named = verdict.named;
        self.record = Some(AttemptOutcome { named, decision, wait, reason, ..self.told(status, verdict.class, since, now) });
        self.held.permit = None;
        self.held.key = None;
        if verdict.class != Class::Success {
            self.last = Some((verdict.class, status));
        }
        self.throttled = verdict.class == Class::Transient && (status == AttemptStatus::Http(429) || (hint.is_some() && !unsent));
        self.doubt |= result.is_err() && !unsent && !verdict.unprocessed;
        self.final_answer = result.is_ok_and(|status| idempotency::is_final(status, verdict, self.plan.honoured));
        // The worker spaces a job's retries; the budget limits callers who come back by themselves.
        self.unsent = unsent && verdict.blameless;
        settle.withdraw = matches!(then, Then::Retry { .. }) && !self.patient && !self.unsent;
        if self.patient && matches!(then, Then::Retry { .. }) {
            // A job may wait for days, so it returns its slot to calls that can run meanwhile.
            settle.leave_pool = self.held.slot.take();
        }
        if let Then::Finish(_) = then {
            std::mem::take(&mut self.held).give_back(&mut settle, self.progress.attempts == 0, self.reservation());
        }
        self.state = State::Settling(then);
        Action::Ask(Ask::Settle(settle))
    }

    fn follow(
        &mut self,
        next: NextStep,
        verdict: &Classification,
        status: AttemptStatus,
        hint: Option<Nanos>,
        now: Now,
    ) -> (Then, Decision, Nanos, Reason) {
        match next {
            NextStep::Return(reason) => {
                let retry_after = hint.filter(|_| verdict.class != Class::Success);
                let finish = self.finish(Outcome::of(verdict.class, status, reason), reason, retry_after, now);
                (Then::Finish(finish), Decision::Return, Nanos::ZERO, reason)
            }
            NextStep::Retry { wait, reason } => {
                self.progress.ambiguous += u32::from(verdict.class == Class::Ambiguous);
                self.progress.waits += 1;
                self.progress.previous_wait = wait;
                (Then::Retry { wait, reason }, Decision::Retry, wait, reason)
            }
            NextStep::Rotate(reason) => {
                if let Some(lease) = self.held.key {
                    self.progress.tried.insert(lease.key);
                }
                if reason == Reason::KeyRejected {
                    self.progress.refused_key = self.held.key.map(|lease| lease.key);
                }
                (Then::Send, Decision::RotateKey, Nanos::ZERO, reason)
            }
            NextStep::Refresh => {
                self.progress.refreshed = true;
                (Then::Refresh, Decision::RefreshToken, Nanos::ZERO, Reason::TokenExpired)
            }
        }
    }

    fn settled(&mut self, then: Then, funding: Option<RetryFunding>, now: Now) -> Action {
        match then {
            Then::Retry { wait, .. } if funding.is_none() && !self.patient && !self.unsent => self.wait_for_budget(wait, now),
            Then::Retry { wait, reason } => {
                self.held.funding = funding;
                self.unfunded = false;
                self.state = State::BackingOff;
                Action::Wait { until: now.mono + wait, reason }
            }
            Then::Send => self.permit(now),
            Then::Line(obstacle) => self.ask_for_line(obstacle),
            Then::Dispatch => self.send(now),
            Then::Refresh => {
                self.state = State::Refreshing;
                Action::Refresh
            }
            Then::Defer { until, reason } => {
                self.state = State::Deferred;
                Action::Wait { until, reason }
            }
            Then::Finish(finish) => {
                self.state = State::Done;
                Action::Finish(finish)
            }
        }
    }

    /// A wait has ended.
    pub fn waited(&mut self, now: Now) -> Action {
        match self.state {
            State::Paced => self.pool(now),
            State::Queued => self.refuse(Code::Overloaded, Reason::QueueTimeout, Some(now.mono + RETRY_OVERLOAD), now),
            State::BackingOff if self.unfunded => self.ask_for_funding(),
            State::BackingOff if self.held.slot.is_none() => self.pool(now),
            State::BackingOff => self.permit(now),
            State::InLine => self.ask_for_turn(now),
            State::Deferred => self.limits(now),
            state => unreachable!("nothing was waited for in {state:?}"),
        }
    }

    /// The program stops before the wait ends. The call ends now, while the caller is still connected.
    pub fn turned_out(&mut self, now: Now) -> Action {
        debug_assert!(matches!(self.state, State::Paced | State::Queued | State::BackingOff | State::InLine), "only a call that waits");
        self.refuse(Code::Overloaded, Reason::Draining, Some(now.mono + RETRY_OVERLOAD), now)
    }

    /// The token was refreshed, or could not be.
    pub fn refreshed(&mut self, refreshed: bool, now: Now) -> Action {
        debug_assert_eq!(self.state, State::Refreshing, "a refresh was asked for");
        if refreshed { self.permit(now) } else { self.end(Outcome::Failed(Class::Auth), Reason::AuthFailed, None, now) }
    }

    /// Returns the outcome of the attempt in flight if its caller leaves now; it is logged and counted nowhere else. The connection ends
    /// with it, so the status is `reset`; the outcome says that this was not the upstream's doing.
    #[must_use]
    pub fn abandoned(&self, now: Now) -> Option<AttemptOutcome> {
        let State::Sending { since } = self.state else { return None };
        Some(self.told(AttemptStatus::Error(ErrorKind::Reset), Class::Ambiguous, since, now))
    }

    /// Describes the attempt in flight as the last one of the call.
    #[inline]
    fn told(&self, status: AttemptStatus, class: Class, since: Mono, now: Now) -> AttemptOutcome {
        AttemptOutcome {
            number: self.progress.attempts,
            status,
            key: self.held.key.map(|lease| lease.key),
            latency: now.mono.since(since),
            elapsed: now.mono.since(self.started),
            class,
            named: true,
            decision: Decision::Return,
            wait: Nanos::ZERO,
            reason: Reason::Cancelled,
        }
    }

    /// The caller left. The call returns its resources and no result counts against the upstream or a key. A pending report is delivered
    /// first, because it returns what the attempt before held.
    #[must_use]
    pub fn cancelled(&mut self) -> SettleAttempt {
        self.doubt |= matches!(self.state, State::Sending { .. });
        let mut settle = SettleAttempt::default();
        // The caller never got this response, so it must not be replayed.
        self.doubt |= std::mem::take(&mut self.final_answer);
        std::mem::take(&mut self.held).give_back(&mut settle, self.progress.attempts == 0, self.reservation());
        self.state = State::Done;
        settle
    }

    // ── record ───────────────────────────────────────────────────────────────────────────────────────────────

    /// Refuses the call. If the upstream has responded before, the caller gets that response instead; a job is deferred without using an
    /// attempt, unless its own deadline comes first.
    fn refuse(&mut self, code: Code, reason: Reason, retry_at: Option<Mono>, now: Now) -> Action {
        if let (true, Some(until)) = (self.patient, retry_at) {
            if until < self.deadline.at {
                return self.settle_then(Then::Defer { until, reason }, now);
            }
            return self.refuse(Code::DeadlineExceeded, Reason::DeadlineExceeded, None, now);
        }
        let outcome = match self.last {
            // There is no response to relay, and "come back then" says more than "it broke".
            Some((_, AttemptStatus::Error(_))) if matches!(reason, Reason::CircuitOpen | Reason::ProviderPause) => Outcome::Refused(code),
            Some((class, status)) => Outcome::of(class, status, reason),
            None => Outcome::Refused(code),
        };
        self.end(outcome, reason, retry_at.map(|at| at.since(now.mono)), now)
    }

    fn end(&mut self, outcome: Outcome, reason: Reason, retry_after: Option<Nanos>, now: Now) -> Action {
        self.stop_waiting(now);
        let finish = self.finish(outcome, reason, retry_after, now);
        self.settle_then(Then::Finish(finish), now)
    }

    fn settle_then(&mut self, then: Then, now: Now) -> Action {
        let mut settle = SettleAttempt::default();
        let goes_on = matches!(then, Then::Defer { .. }) && self.held.reservation;
        std::mem::take(&mut self.held).give_back(&mut settle, self.progress.attempts == 0, self.reservation());
        if goes_on {
            settle.reservation = None;
            self.held.reservation = true;
        }
        if settle.is_nothing() {
            return self.settled(then, None, now);
        }
        self.state = State::Settling(then);
        Action::Ask(Ask::Settle(settle))
    }

    /// Returns the final state of the idempotency key.
    const fn reservation(&self) -> Reservation {
        match (self.final_answer, self.doubt) {
            (true, _) => Reservation::Done,
            (false, true) => Reservation::Unknown,
            (false, false) => Reservation::Released,
        }
    }

    fn finish(&self, outcome: Outcome, reason: Reason, retry_after: Option<Nanos>, now: Now) -> CallEnd {
        let (attempts, elapsed) = (self.progress.attempts, now.mono.since(self.started));
        CallEnd { outcome, reason, attempts, elapsed, waited: self.waited, retry_after }
    }
}

/// The shortest `Retry-After` for the caller of an overloaded pool.
const RETRY_OVERLOAD: Nanos = Nanos::from_secs(1);

/// Another call under the same key, or an outage of the store, usually ends within this time.
const RETRY_KEY: Nanos = Nanos::from_secs(1);
