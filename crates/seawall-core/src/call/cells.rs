//! Shared state held in one place, answering a call's questions with the stages' own pure functions. The simulator, the
//! dry run and the tests use it as it is; backends that are shared between threads or machines answer cell by cell
//! with the same functions.

use super::{Answer, Ask, KeyReport, Settle};
use crate::admit::bulkhead::{Arrival, Bulkhead, Entry, Ticket};
use crate::admit::layered;
use crate::admit::limit::{Cell, Limit};
use crate::admit::line::{Lane, Place, WaitingLine};
use crate::admit::places::{Places, Waiter};
use crate::config::{Config, Policy, Upstream};
use crate::decide::{Budget, Funding};
use crate::guard::{Breaker, Change, Pause};
use crate::lease::{self, KeyPool, Lease};
use crate::policy;
use crate::record::Scope;
use crate::time::{Mono, Nanos, Now};

/// Retries that successes may save up. More would let a long calm pay for a storm.
pub const BUDGET_CAPACITY: u32 = 100;

/// What one endpoint's calls share.
#[derive(Clone, Debug)]
pub struct Cells {
    pub breaker: Breaker,
    pub budget: Budget,
    pub keys: Option<KeyPool>,
    pub limits: Vec<(Limit, Cell)>,
    pub pool: Option<Bulkhead>,
    /// The pauses of the endpoint and of its upstream.
    pub pauses: (Pause, Pause),
    pub line: WaitingLine,
    places: Places,
    waiting: u32,
    retry: policy::Retry,
    guard: policy::Breaker,
    cost: u64,
    priority: u32,
}

/// An answer, and what changed on the way to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reply {
    pub answer: Answer,
    pub change: Option<Change>,
    /// A place in the pool's line, for a call that must wait there.
    pub ticket: Option<Ticket>,
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Self { answer, change: None, ticket: None }
    }
}

impl Cells {
    #[must_use]
    pub fn new(config: &Config, upstream: &Upstream, policy: &Policy) -> Self {
        let pool = config.pool_of(policy);
        Self {
            keys: upstream.auth.as_ref().filter(|auth| !auth.keys.is_empty()).map(|auth| KeyPool::new(auth.pick, &auth.group_numbers())),
            limits: config.limits_of(policy).map(|limit| (Limit::from(limit), Cell::default())).collect(),
            pool: pool.map(Bulkhead::new),
            priority: pool.map_or(0, |pool| pool.priority),
            ..Self::alone(policy)
        }
    }

    /// The policy by itself: no limits, no pool, no keys.
    #[must_use]
    pub fn alone(policy: &Policy) -> Self {
        Self {
            breaker: Breaker::new(),
            budget: Budget::empty(BUDGET_CAPACITY),
            keys: None,
            limits: Vec::new(),
            pool: None,
            pauses: <(Pause, Pause)>::default(),
            line: WaitingLine::default(),
            places: Places::default(),
            waiting: policy.waiting,
            retry: policy.retry,
            guard: policy.breaker,
            cost: policy.cost,
            priority: 0,
        }
    }

    pub fn answer(&mut self, ask: Ask, now: Now) -> Reply {
        match ask {
            Ask::Limits => self.take(now.mono).into(),
            Ask::Pool { give_up } => self.enter(give_up, now.mono),
            // Idempotency keys need a store; a single place without one has never seen any key before.
            Ask::Reserve => Answer::Reserved.into(),
            // Nothing here outlives the process.
            Ask::Begin => Answer::Begun.into(),
            Ask::Permit { lease } => self.admit(lease, now.mono).into(),
            Ask::Key { tried, request } => self.lease(now, tried, request).into(),
            Ask::Line { place, lane, ready_at } => self.wait_in_line(place, lane, ready_at, now.mono).into(),
            Ask::Turn { place } => self.line.answer_turn(place, now.mono).into(),
            Ask::Settle(settle) => self.settle(&settle, now),
        }
    }

    fn take(&mut self, now: Mono) -> Answer {
        let mut layers: Vec<(&Limit, &mut Cell)> = self.limits.iter_mut().map(|(limit, cell)| (&*limit, cell)).collect();
        layered::take(&mut layers, now, self.cost).into()
    }

    fn enter(&mut self, give_up: Mono, now: Mono) -> Reply {
        let Some(pool) = &mut self.pool else { return Answer::PoolEntered.into() };
        match pool.enter(Arrival { priority: self.priority, deadline: give_up }, now) {
            Entry::Go => Answer::PoolEntered.into(),
            Entry::Queued { ticket, .. } => Reply { answer: Answer::PoolQueued, change: None, ticket: Some(ticket) },
            Entry::Refused(_) => Answer::PoolFull { shed: false }.into(),
        }
    }

    fn admit(&mut self, lease: Nanos, now: Mono) -> Answer {
        if let Err(until) = self.pauses.1.admit(now).and_then(|()| self.pauses.0.admit(now)) {
            return Answer::Paused { until, own: false };
        }
        self.breaker.admit(&self.guard, lease, now).into()
    }

    /// Nobody tells callers apart here.
    fn wait_in_line(&mut self, place: Option<Place>, lane: Lane, ready_at: Mono, now: Mono) -> Answer {
        if place.is_none() && !self.places.take(Waiter::default(), self.waiting) {
            return Answer::LineFull;
        }
        self.line.answer(place, lane, ready_at, now)
    }

    fn lease(&mut self, now: Now, tried: lease::KeySet, request: lease::RequestMark) -> Answer {
        self.keys.as_mut().map(|keys| keys.lease(now, tried, request)).into()
    }

    pub fn settle(&mut self, settle: &Settle, now: Now) -> Reply {
        let change = settle.tell_breaker(&mut self.breaker, &self.guard, now.mono);
        let funding = settle.tell_budget(&mut self.budget, &self.retry, now.mono);
        if let Some(keys) = &mut self.keys {
            settle.tell_keys(keys, now.mono);
        }
        settle.tell_pauses(&mut self.pauses.0, &mut self.pauses.1, now.mono);
        if settle.untake {
            let mut layers: Vec<(&Limit, &mut Cell)> = self.limits.iter_mut().map(|(limit, cell)| (&*limit, cell)).collect();
            layered::refund(&mut layers, now.mono, self.cost, 0);
        }
        if let (Some(pool), Some(since)) = (&mut self.pool, settle.leave_pool) {
            pool.leave(now.mono.since(since));
        }
        if let Some(place) = settle.leave_line {
            self.line.leave(place);
            self.places.give_back(Waiter::default());
        }
        Reply { answer: Answer::Settled { funding }, change, ticket: None }
    }
}

impl WaitingLine {
    /// When a call asks for its turn, which joins the line unless it has a ticket.
    #[must_use]
    pub fn answer(&mut self, place: Option<Place>, lane: Lane, ready_at: Mono, now: Mono) -> Answer {
        let place = place.unwrap_or_else(|| self.join(lane, now));
        let (place, at) = self.wait(place, lane, ready_at, now);
        Answer::InLine { place, at }
    }

    #[must_use]
    pub fn answer_turn(&mut self, place: Place, now: Mono) -> Answer {
        self.turn(place, now).map_or_else(|at| Answer::InLine { place, at }, |()| Answer::Turn)
    }
}

/// How each kind of cell hears about an attempt.
impl Settle {
    #[inline(always)] // Where a report is made and heard in one place, as in a library call, it needs no memory.
    pub fn tell_breaker(&self, breaker: &mut Breaker, policy: &policy::Breaker, now: Mono) -> Option<Change> {
        if let Some(permit) = self.cancel {
            breaker.cancel(permit);
        }
        self.sample.and_then(|(permit, sample)| breaker.record(policy, permit, sample, now))
    }

    /// The token for a retry, where one was asked for and there is one.
    #[must_use]
    #[inline(always)]
    pub fn tell_budget(&self, budget: &mut Budget, retry: &policy::Retry, now: Mono) -> Option<Funding> {
        if self.earn {
            budget.earn(retry.budget);
        }
        if let Some(funding) = self.refund {
            budget.refund(funding);
        }
        if self.withdraw { budget.withdraw(retry.budget_floor, now) } else { None }
    }

    pub fn tell_keys(&self, keys: &mut KeyPool, now: Mono) {
        let Some((lease, report)) = self.key else { return };
        match report {
            KeyReport::Succeeded { instead_of } => {
                keys.succeeded(lease, now);
                if let Some(key) = instead_of {
                    keys.reject(Lease { key, probe: false }, now);
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

    /// When the attempt was sent that the upstream answered without asking anybody to wait, if this one is.
    #[must_use]
    pub fn answer_sent_at(&self, now: Mono) -> Option<Mono> {
        let (_, sample) = self.sample.filter(|_| self.answered)?;
        Some(Mono(now.0.saturating_sub(sample.latency.0)))
    }

    /// Tells the pauses of an endpoint and of its upstream about an attempt.
    pub fn tell_pauses(&self, endpoint: &mut Pause, upstream: &mut Pause, now: Mono) {
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
