//! Shared state in one place, which replies to a call's questions with the stages' own pure functions. The simulator, the dry run and the
//! tests use it as it is; backends that are shared between threads or machines reply cell by cell with the same functions.

use super::{Ask, AskAnswer, KeyReport, SettleAttempt};
use crate::admit::bulkhead::{Bulkhead, BulkheadEntry, BulkheadRequest, QueueTicket};
use crate::admit::layered;
use crate::admit::limit::{Gcra, LimitCell};
use crate::admit::line::{Lane, LinePlace, WaitingLine};
use crate::admit::places::{Places, Waiter};
use crate::config::{Config, EndpointPolicy, UpstreamConfig};
use crate::decide::{Budget, RetryFunding};
use crate::guard::{BreakerCell, PauseState, PhaseChange};
use crate::lease::{self, KeyLease, KeyPool};
use crate::policy;
use crate::record::Scope;
use crate::time::{Mono, Nanos, Now};

/// Retries that successes may save up. A higher cap would let a long calm fund a retry storm.
pub const BUDGET_CAPACITY: u32 = 100;

/// State that all calls of one endpoint share.
#[derive(Clone, Debug)]
pub struct EndpointCells {
    pub breaker: BreakerCell,
    pub budget: Budget,
    pub keys: Option<KeyPool>,
    pub limits: Vec<(Gcra, LimitCell)>,
    pub pool: Option<Bulkhead>,
    /// The pauses of the endpoint and of its upstream.
    pub pauses: (PauseState, PauseState),
    pub line: WaitingLine,
    places: Places,
    waiting: u32,
    retry: policy::Retry,
    guard: policy::BreakerPolicy,
    cost: u64,
    priority: u32,
}

/// A reply, and the change of the breaker's phase that it caused.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CellAnswer {
    pub answer: AskAnswer,
    pub change: Option<PhaseChange>,
    /// The ticket of a call that must wait in the pool's queue.
    pub ticket: Option<QueueTicket>,
}

impl From<AskAnswer> for CellAnswer {
    fn from(answer: AskAnswer) -> Self {
        Self { answer, change: None, ticket: None }
    }
}

impl EndpointCells {
    #[must_use]
    pub fn new(config: &Config, upstream: &UpstreamConfig, policy: &EndpointPolicy) -> Self {
        let pool = config.pool_of(policy);
        Self {
            keys: upstream.auth.as_ref().filter(|auth| !auth.keys.is_empty()).map(|auth| KeyPool::new(auth.pick, &auth.group_numbers())),
            limits: config.limits_of(policy).map(|limit| (Gcra::from(limit), LimitCell::default())).collect(),
            pool: pool.map(Bulkhead::new),
            priority: pool.map_or(0, |pool| pool.priority),
            ..Self::alone(policy)
        }
    }

    /// The policy by itself: no limits, no pool, no keys.
    #[must_use]
    pub fn alone(policy: &EndpointPolicy) -> Self {
        Self {
            breaker: BreakerCell::new(),
            budget: Budget::empty(BUDGET_CAPACITY),
            keys: None,
            limits: Vec::new(),
            pool: None,
            pauses: <(PauseState, PauseState)>::default(),
            line: WaitingLine::default(),
            places: Places::default(),
            waiting: policy.waiting,
            retry: policy.retry,
            guard: policy.breaker,
            cost: policy.cost,
            priority: 0,
        }
    }

    pub fn answer(&mut self, ask: Ask, now: Now) -> CellAnswer {
        match ask {
            Ask::Limits => self.take(now.mono).into(),
            Ask::Pool { give_up } => self.enter(give_up, now.mono),
            // Idempotency keys need a store; without one, every key is new.
            Ask::Reserve => AskAnswer::Reserved.into(),
            // Nothing here outlives the process.
            Ask::Begin => AskAnswer::Begun.into(),
            Ask::Permit { lease } => self.admit(lease, now.mono).into(),
            Ask::Key { tried, request } => self.lease(now, tried, request).into(),
            Ask::Line { place, lane, ready_at } => self.wait_in_line(place, lane, ready_at, now.mono).into(),
            Ask::Turn { place } => self.line.answer_turn(place, now.mono).into(),
            Ask::Settle(settle) => self.settle(&settle, now),
        }
    }

    fn take(&mut self, now: Mono) -> AskAnswer {
        let mut layers: Vec<(&Gcra, &mut LimitCell)> = self.limits.iter_mut().map(|(limit, cell)| (&*limit, cell)).collect();
        layered::take_all(&mut layers, now, self.cost).into()
    }

    fn enter(&mut self, give_up: Mono, now: Mono) -> CellAnswer {
        let Some(pool) = &mut self.pool else { return AskAnswer::PoolEntered.into() };
        match pool.enter(BulkheadRequest { priority: self.priority, deadline: give_up }, now) {
            BulkheadEntry::Go => AskAnswer::PoolEntered.into(),
            BulkheadEntry::Queued { ticket, .. } => CellAnswer { answer: AskAnswer::PoolQueued, change: None, ticket: Some(ticket) },
            BulkheadEntry::Refused(_) => AskAnswer::PoolFull { shed: false }.into(),
        }
    }

    fn admit(&mut self, lease: Nanos, now: Mono) -> AskAnswer {
        if let Err(until) = self.pauses.1.admit(now).and_then(|()| self.pauses.0.admit(now)) {
            return AskAnswer::Paused { until, own: false };
        }
        self.breaker.admit(&self.guard, lease, now).into()
    }

    /// Counts all callers as one.
    fn wait_in_line(&mut self, place: Option<LinePlace>, lane: Lane, ready_at: Mono, now: Mono) -> AskAnswer {
        if place.is_none() && !self.places.take(Waiter::default(), self.waiting) {
            return AskAnswer::LineFull;
        }
        self.line.answer(place, lane, ready_at, now)
    }

    fn lease(&mut self, now: Now, tried: lease::KeySet, request: lease::RequestMark) -> AskAnswer {
        self.keys.as_mut().map(|keys| keys.lease(now, tried, request)).into()
    }

    pub fn settle(&mut self, settle: &SettleAttempt, now: Now) -> CellAnswer {
        let change = settle.report_to_breaker(&mut self.breaker, &self.guard, now.mono);
        let funding = settle.report_to_budget(&mut self.budget, &self.retry, now.mono);
        if let Some(keys) = &mut self.keys {
            settle.report_to_keys(keys, now.mono);
        }
        settle.report_to_pauses(&mut self.pauses.0, &mut self.pauses.1, now.mono);
        if settle.untake {
            let mut layers: Vec<(&Gcra, &mut LimitCell)> = self.limits.iter_mut().map(|(limit, cell)| (&*limit, cell)).collect();
            layered::refund(&mut layers, now.mono, self.cost, 0);
        }
        if let (Some(pool), Some(since)) = (&mut self.pool, settle.leave_pool) {
            pool.leave(now.mono.since(since));
        }
        if let Some(place) = settle.leave_line {
            self.line.leave(place);
            self.places.give_back(Waiter::default());
        }
        CellAnswer { answer: AskAnswer::Settled { funding }, change, ticket: None }
    }
}

impl WaitingLine {
    /// Returns when the call asks for its turn; a call without a ticket joins the line.
    #[must_use]
    pub fn answer(&mut self, place: Option<LinePlace>, lane: Lane, ready_at: Mono, now: Mono) -> AskAnswer {
        let place = place.unwrap_or_else(|| self.join(lane, now));
        let (place, at) = self.wait(place, lane, ready_at, now);
        AskAnswer::InLine { place, at }
    }

    #[must_use]
    pub fn answer_turn(&mut self, place: LinePlace, now: Mono) -> AskAnswer {
        self.turn(place, now).map_or_else(|at| AskAnswer::InLine { place, at }, |()| AskAnswer::Turn)
    }
}

/// Reports an attempt to each kind of cell.
impl SettleAttempt {
    #[inline(always)] // Where a report is made and heard in one place, as in a library call, it needs no memory.
    pub fn report_to_breaker(&self, breaker: &mut BreakerCell, policy: &policy::BreakerPolicy, now: Mono) -> Option<PhaseChange> {
        if let Some(permit) = self.cancel {
            breaker.cancel(permit);
        }
        self.sample.and_then(|(permit, sample)| breaker.record(policy, permit, sample, now))
    }

    /// Returns the token for a retry if one was requested and is available.
    #[must_use]
    #[inline(always)]
    pub fn report_to_budget(&self, budget: &mut Budget, retry: &policy::Retry, now: Mono) -> Option<RetryFunding> {
        if self.earn {
            budget.earn(retry.budget);
        }
        if let Some(funding) = self.refund {
            budget.refund(funding);
        }
        if self.withdraw { budget.withdraw(retry.budget_floor, now) } else { None }
    }

    pub fn report_to_keys(&self, keys: &mut KeyPool, now: Mono) {
        let Some((lease, report)) = self.key else { return };
        match report {
            KeyReport::Succeeded { instead_of } => {
                keys.succeeded(lease, now);
                if let Some(key) = instead_of {
                    keys.reject(KeyLease { key, probe: false }, now);
                }
            }
            KeyReport::Failed => keys.failed(lease),
            KeyReport::Refused { request } => keys.refuse(lease, request, now),
            KeyReport::Neutral => {}
            KeyReport::Answered => keys.answered(lease, now),
            KeyReport::Unused => keys.cancel(lease, now),
            KeyReport::Throttle { group, until } => {
                keys.failed(lease);
                keys.throttle(lease.key, group, until, now);
            }
            KeyReport::Cool { group, until } => {
                keys.failed(lease);
                if group { keys.cool_group(lease.key, until) } else { keys.cool_key(lease.key, until) }
            }
        }
    }

    /// When the attempt was sent, if the upstream responded without asking for a wait.
    #[must_use]
    pub fn answer_sent_at(&self, now: Mono) -> Option<Mono> {
        let (_, sample) = self.sample.filter(|_| self.answered)?;
        Some(Mono(now.0.saturating_sub(sample.latency.0)))
    }

    /// Reports an attempt to the pauses of an endpoint and of its upstream.
    pub fn report_to_pauses(&self, endpoint: &mut PauseState, upstream: &mut PauseState, now: Mono) {
        match self.pause {
            Some((Scope::Upstream, until)) => upstream.extend(until, now),
            Some((_, until)) => endpoint.extend(until, now),
            None => {}
        }
        if let Some(sent_at) = self.answer_sent_at(now) {
            endpoint.answered(sent_at, now);
            upstream.answered(sent_at, now);
        }
    }
}
