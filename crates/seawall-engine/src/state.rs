//! State of this process: breakers, budgets and keys behind short locks. Answers calls with the core's own functions. No lock is held
//! across an await.

use crate::bulkhead::{BulkheadPermit, BulkheadPool, Entered, QueuedPermit};
use crate::clock::Clock;
use crate::credential_pauses::CredentialMark;
use crate::limits::{AdmittedLayers, EndpointLimits, LimitSubject};
use crate::locked_cell::Locked;
use crate::pause_cell::PauseCell;
use crate::record::EndpointNames;
use crate::shared::{Link, OwnCells, Receipts, RedisStore, Took};
pub use crate::upstream_state::UpstreamState;
use seawall_core::admit::line::{self, Lane, WaitingLine};
use seawall_core::admit::places::Waiter;
use seawall_core::call::{Ask, AskAnswer, KeyReport, SettleAttempt};
use seawall_core::config::EndpointPolicy;
use seawall_core::decide::RetryFunding;
use seawall_core::guard::{Admission, BreakerCell, BreakerSample, Forced, Permit, PhaseChange, State};
use seawall_core::lease::{self, KeyPool, KeySet, PassedOver, RequestMark, Until};
use seawall_core::policy;
use seawall_core::record::Scope;
use seawall_core::time::{Mono, Nanos, Now};
use std::sync::Arc;

/// State that all calls to an endpoint share. The breaker may be shared by a whole upstream.
#[derive(Debug)]
pub struct EndpointState {
    pub upstream: Arc<UpstreamState>,
    breaker: Arc<Locked<BreakerCell>>,
    pause: Arc<PauseCell>,
    guard: policy::BreakerPolicy,
    retry: policy::Retry,
    names: Arc<EndpointNames>,
    cost: u64,
    /// The line of calls that wait to be sent to this endpoint: for a key, a pause or a breaker.
    line: Arc<Locked<WaitingLine>>,
    /// Maximum waiting calls of the whole upstream.
    max_waiting: u32,
    pub limits: EndpointLimits,
    /// Limits per credential, checked once a key is leased.
    key_limits: EndpointLimits,
    /// Whether any limit depends on a caller's headers.
    pub looks_at_headers: bool,
    pub pool: Option<Arc<BulkheadPool>>,
    /// The connection to state shared with other instances, if any.
    link: Option<Arc<Link>>,
}

/// Limits and bulkhead places of one call, beside what the call machine holds.
#[derive(Debug, Default)]
pub(crate) struct Visit {
    pub taken: Option<AdmittedLayers>,
    /// The same for shared limits.
    pub took: Option<Took>,
    /// Tokens of the credential's own limits, until the credential is used.
    pub key_taken: Option<AdmittedLayers>,
    pub key_took: Option<Took>,
    pub waiting: Option<QueuedPermit>,
    /// The call's place in the line, while it waits for a key, a pause or a breaker.
    pub waiter: Option<Waiter>,
    /// Length of the body that is kept for the call.
    pub body_bytes: u64,
    /// Set when the call is over: the time since which it held a place. The place itself is returned when its response has been read.
    pub left: Option<Mono>,
}

impl Visit {
    /// Returns the receipts of shared limits.
    fn receipts(&self) -> Receipts {
        let receipt = |took: &Option<Took>| took.as_ref().and_then(Took::receipt).cloned();
        Receipts { call: receipt(&self.took), key: receipt(&self.key_took) }
    }

    /// Gives up the place in the bulkhead's queue, or the place itself if it was granted in the same moment.
    pub(crate) fn leave_line(&mut self, state: &EndpointState, now: Mono) {
        if let (Some(waiting), Some(pool)) = (self.waiting.take(), &state.pool) {
            pool.give_up(waiting, now);
        }
    }

    /// Returns the bulkhead place of a call that is over.
    pub(crate) fn place(&mut self, state: &EndpointState, clock: &Clock) -> Option<BulkheadPermit> {
        let (since, pool) = (self.left.take()?, state.pool.as_ref()?);
        Some(BulkheadPermit::new(Arc::clone(pool), since, clock.clone()))
    }
}

/// Returns how long a key's limits are exhausted; `None` for a call that only has to be paced.
fn room_after(answer: AskAnswer, now: Mono) -> Option<Nanos> {
    match answer {
        AskAnswer::Limited { after: Nanos::ZERO } => None,
        AskAnswer::Limited { after } => Some(after),
        AskAnswer::OverLimit { retry_at } => Some(retry_at.map_or(Nanos::MAX, |at| at.since(now))),
        answer => unreachable!("limits answer for limits, not {answer:?}"),
    }
}

/// A breaker's cell, handed over when an upstream's state is rebuilt.
#[derive(Clone, Debug)]
pub struct SharedBreaker(Arc<Locked<BreakerCell>>);

impl Default for SharedBreaker {
    fn default() -> Self {
        Self(Arc::new(Locked::new(BreakerCell::new())))
    }
}

impl EndpointState {
    #[must_use]
    pub fn new(
        upstream: Arc<UpstreamState>,
        breaker: SharedBreaker,
        policy: &EndpointPolicy,
        names: Arc<EndpointNames>,
        limits: EndpointLimits,
        pool: Option<Arc<BulkheadPool>>,
    ) -> Self {
        let looks_at_headers = limits.look_at_headers();
        let (limits, key_limits) = limits.by_credential();
        Self {
            upstream,
            breaker: breaker.0,
            pause: Arc::default(),
            guard: policy.breaker,
            retry: policy.retry,
            cost: policy.cost,
            line: Arc::new(Locked::new(WaitingLine::default())),
            max_waiting: policy.waiting,
            names,
            limits,
            key_limits,
            looks_at_headers,
            pool,
            link: None,
        }
    }

    /// Shares the state with other instances.
    #[must_use]
    pub fn shared(mut self, store: &Arc<RedisStore>, policy: &EndpointPolicy) -> Self {
        let (own, upstream) = (self.own_cells(), Arc::clone(&self.upstream));
        self.link = Some(Arc::new(Link::new(store, &self.names, policy, own, upstream, (&self.limits, &self.key_limits))));
        self
    }

    fn own_cells(&self) -> OwnCells {
        let pauses = [Arc::clone(&self.pause), Arc::clone(&self.upstream.pause)];
        OwnCells { breaker: Arc::clone(&self.breaker), pauses }
    }

    /// Returns the connection to shared state, if any.
    #[inline]
    pub const fn link(&self) -> Option<&Arc<Link>> {
        self.link.as_ref()
    }

    /// Takes over pause and line from the endpoint of the same name in the previous configuration.
    #[must_use]
    pub fn after(mut self, before: Option<&Self>) -> Self {
        if let Some(before) = before {
            self.pause = Arc::clone(&before.pause);
            self.line = Arc::clone(&before.line);
        }
        self
    }

    /// Returns beginning and end of the pause that the provider asked of this endpoint, while it lasts.
    #[must_use]
    pub fn paused(&self, now: Mono) -> Option<(Mono, Mono)> {
        self.pause.span(now)
    }

    pub(crate) fn pause(&self, until: Mono, now: Mono) {
        self.pause.extend(until, now);
    }

    /// Ends the pause of this endpoint, or that of its upstream, by hand and on every instance.
    pub async fn lift_pause(&self, of_upstream: bool, clock: &Clock) {
        if of_upstream {
            self.upstream.pause.lift();
            self.upstream.credential_pauses.lift();
        } else {
            self.pause.lift();
        }
        if let Some(link) = &self.link {
            link.pause.lift(of_upstream, clock).await;
        }
    }

    /// Runs `act` on the breaker, which endpoints may share.
    pub(crate) fn with_breaker<R>(&self, act: impl FnOnce(&mut BreakerCell) -> R) -> R {
        act(&mut self.breaker.lock())
    }

    /// Returns the breaker's cell, for the next configuration.
    #[must_use]
    pub fn shared_breaker(&self) -> SharedBreaker {
        SharedBreaker(Arc::clone(&self.breaker))
    }

    #[must_use]
    pub fn breaker_state(&self, now: Mono) -> (State, Option<Mono>, Nanos) {
        let breaker = self.breaker.lock();
        (breaker.state(&self.guard, now), breaker.retry_at(&self.guard, now), breaker.open_time(now))
    }

    /// Forces or releases the breaker by hand, on every instance.
    pub async fn force_breaker(&self, forced: Forced, clock: &Clock) -> Option<PhaseChange> {
        match &self.link {
            Some(link) => link.breaker.force(forced, clock).await,
            None => self.breaker.lock().force(forced, clock.now().mono),
        }
    }

    /// Rests a key until then or restores it, by hand and on every instance.
    pub async fn force_key(&self, key: u16, until: Option<Until>, clock: &Clock) {
        match (&self.link, until) {
            (Some(link), Some(until)) => link.keys.cool(key, until, clock).await,
            (Some(link), None) => link.keys.restore(key, clock).await,
            (None, Some(until)) => self.upstream.cool_key(key, until),
            (None, None) => self.upstream.restore_key(key),
        }
    }

    /// Asks other instances for the state of keys, if it is shared.
    pub(crate) async fn refresh_keys(&self, clock: &Clock) {
        if let Some(link) = &self.link {
            link.keys.refresh(clock).await;
        }
    }

    #[must_use]
    pub fn forced_breaker(&self) -> Forced {
        self.breaker.lock().forced()
    }

    /// Answers a call's question. Also returns the breaker's change, if a result caused one.
    pub(crate) fn answer(&self, ask: &Ask, who: &LimitSubject<'_>, visit: &mut Visit, now: Now) -> (AskAnswer, Option<PhaseChange>) {
        let answer = match *ask {
            Ask::Permit { lease } => self.admit(lease, Some(who), now.mono),
            Ask::Key { tried, request } => self.lease((tried, request), who, visit, now),
            Ask::Settle(ref settle) => {
                let (funding, change) = self.settle(settle, Some(who), visit, now);
                return (AskAnswer::Settled { funding }, change);
            }
            Ask::Limits => {
                let (answer, taken) = self.limits.take_all(who, &self.names, self.cost, now.mono);
                visit.taken = Some(taken);
                answer
            }
            Ask::Pool { give_up } => self.enter(give_up, visit, now.mono),
            Ask::Line { place, lane, ready_at } => self.wait_in_line((place, lane), ready_at, who, visit, now.mono),
            Ask::Turn { place } => self.turn(place, visit, now.mono),
            // Without a key store, each key counts as new.
            Ask::Reserve => AskAnswer::Reserved,
            // Without a durable log, there is nothing to write.
            Ask::Begin => AskAnswer::Begun,
        };
        (answer, None)
    }

    /// Counts a failure for the breaker: a response broke off after its call had ended well. Ignored unless the breaker is closed.
    #[must_use]
    pub fn broke_off(&self, now: Now) -> Option<PhaseChange> {
        let sample = BreakerSample::failure(Nanos::ZERO);
        let mut breaker = self.breaker.lock();
        if let Some(link) = &self.link {
            let permit = Permit { generation: breaker.closed_generation()?, probe: None };
            link.report_late(&SettleAttempt { sample: Some((permit, sample)), ..SettleAttempt::default() }, Receipts::default());
            return None;
        }
        let Admission::Go(permit) = breaker.admit(&self.guard, Nanos::ZERO, now.mono) else { return None };
        breaker.record(&self.guard, permit, sample, now.mono)
    }

    #[inline]
    pub(crate) fn admit(&self, lease: Nanos, who: Option<&LimitSubject<'_>>, now: Mono) -> AskAnswer {
        match self.heed_pauses(who, now) {
            Err((until, own)) => AskAnswer::Paused { until, own },
            Ok(()) => self.breaker.lock().admit(&self.guard, lease, now).into(),
        }
    }

    /// Returns the lane for this caller: a wait that binds one caller does not delay others.
    fn lane_of(&self, lane: Lane, who: &LimitSubject<'_>) -> Lane {
        match lane {
            Lane::OwnPause { .. } => Lane::OwnPause { credential: who.mark.number() },
            Lane::Limit { .. } => Lane::Limit { caller: who.number(self.looks_at_headers) },
            Lane::Breaker | Lane::Pause | Lane::Keys | Lane::RejectedKeys { .. } | Lane::Budget => lane,
        }
    }

    /// Takes a place in this endpoint's line, if the upstream has one left, and returns the time of the call's turn.
    fn wait_in_line(
        &self,
        (place, lane): (Option<line::LinePlace>, Lane),
        ready_at: Mono,
        who: &LimitSubject<'_>,
        visit: &mut Visit,
        now: Mono,
    ) -> AskAnswer {
        if place.is_none() {
            let waiter = Waiter { caller: who.number_of_caller(), bytes: visit.body_bytes };
            if !self.upstream.places.lock().take(waiter, self.max_waiting) {
                return AskAnswer::LineFull;
            }
            visit.waiter = Some(waiter);
        }
        self.line.lock().answer(place, self.lane_of(lane, who), ready_at, now)
    }

    /// Returns whether it is the call's turn. A waiting call may be displaced by a caller with fewer places.
    fn turn(&self, place: line::LinePlace, visit: &Visit, now: Mono) -> AskAnswer {
        let answer = self.line.lock().answer_turn(place, now);
        let is_displaced = || visit.waiter.is_some_and(|waiter| self.upstream.places.lock().is_displaced(waiter.caller));
        if answer != AskAnswer::Turn && is_displaced() { AskAnswer::LineFull } else { answer }
    }

    /// Checks the provider's pauses. An error contains the end of the pause, and whether it binds only the caller's credential.
    #[inline]
    fn heed_pauses(&self, who: Option<&LimitSubject<'_>>, now: Mono) -> Result<(), (Mono, bool)> {
        let of_all = |until| (until, false);
        self.upstream.pause.admit(now).map_err(of_all)?;
        self.pause.admit(now).map_err(of_all)?;
        let mark = who.map_or(CredentialMark::NONE, |who| who.mark);
        self.upstream.credential_pauses.admit(mark, now).map_err(|until| (until, true))
    }

    /// Like [`answer`](Self::answer) with shared state: asks Redis first, and the local copy if Redis does not reply.
    pub(crate) async fn answer_shared(
        &self,
        link: &Link,
        ask: Ask,
        who: &LimitSubject<'_>,
        visit: &mut Visit,
        clock: &Clock,
    ) -> (AskAnswer, Option<PhaseChange>) {
        let now = clock.now();
        let answer = match ask {
            Ask::Limits => {
                let (answer, took) = link.limits.take_all(who, clock).await;
                visit.took = Some(took);
                answer
            }
            Ask::Permit { lease } => match self.heed_pauses(Some(who), now.mono) {
                Err((until, own)) => AskAnswer::Paused { until, own },
                Ok(()) => link.breaker.permit(lease, clock).await,
            },
            Ask::Key { tried, request } => self.lease_shared(link, (tried, request), who, visit, clock).await,
            Ask::Settle(settle) => {
                let receipts = visit.receipts();
                let settle = self.scoped(settle, Some(who));
                let funding = self.settle_own(&settle, Some(who), visit, now);
                let change = link.report(&settle, &receipts, clock).await;
                return (AskAnswer::Settled { funding }, change);
            }
            Ask::Pool { .. } | Ask::Line { .. } | Ask::Turn { .. } | Ask::Reserve | Ask::Begin => {
                return self.answer(&ask, who, visit, now);
            }
        };
        (answer, None)
    }

    /// Leases a key whose own limits have capacity.
    fn lease(&self, (tried, request): (KeySet, RequestMark), who: &LimitSubject<'_>, visit: &mut Visit, now: Now) -> AskAnswer {
        if self.key_limits.is_empty() {
            return self.upstream.lease(tried, request, now);
        }
        let mut passed = PassedOver::none(tried);
        let search = |keys: &mut KeyPool| loop {
            let answer = keys.lease(now, passed.tried, request);
            let lease::LeaseAnswer::Leased(lease) = answer else { break passed.conclude(answer) };
            let (answered, taken) = self.key_limits.take_all(&self.with_credential(who, lease.key), &self.names, self.cost, now.mono);
            let Some(wait) = room_after(answered, now.mono) else {
                visit.key_taken = Some(taken);
                break answer;
            };
            if matches!(answered, AskAnswer::Limited { .. }) {
                self.key_limits.refund(&taken, self.cost, now.mono);
            }
            keys.cancel(lease, now.mono);
            passed.pass(lease.key, wait);
        };
        self.upstream.with_keys(search).into()
    }

    /// Does the same with keys and limits shared between instances.
    async fn lease_shared(
        &self,
        link: &Link,
        (tried, request): (KeySet, RequestMark),
        who: &LimitSubject<'_>,
        visit: &mut Visit,
        clock: &Clock,
    ) -> AskAnswer {
        let mut passed = PassedOver::none(tried);
        loop {
            let lease = match link.keys.lease(passed.tried, request, clock).await {
                AskAnswer::Key(lease) if !self.key_limits.is_empty() => lease,
                AskAnswer::Cooling { wait, probed: false } => return Some(passed.conclude(lease::LeaseAnswer::Cooling { wait })).into(),
                AskAnswer::Cooling { wait, probed: true } => return Some(passed.conclude(lease::LeaseAnswer::Throttled { wait })).into(),
                AskAnswer::Dead { wait } => return Some(passed.conclude(lease::LeaseAnswer::Dead { wait })).into(),
                answer => return answer,
            };
            let (answered, took) = link.key_limits.take_all(&self.with_credential(who, lease.key), clock).await;
            let Some(wait) = room_after(answered, clock.now().mono) else {
                visit.key_took = Some(took);
                return AskAnswer::Key(lease);
            };
            match (answered, &took) {
                (AskAnswer::Limited { .. }, Took::Shared(receipt)) => link.key_limits.refund(receipt).await,
                (AskAnswer::Limited { .. }, Took::Alone(share, taken)) => share.refund(taken, self.cost, clock.now().mono),
                _ => {}
            }
            link.keys.report(&SettleAttempt { key: Some((lease, KeyReport::Unused)), ..SettleAttempt::default() }, clock).await;
            passed.pass(lease.key, wait);
        }
    }

    fn with_credential<'a>(&'a self, who: &LimitSubject<'a>, key: u16) -> LimitSubject<'a> {
        LimitSubject { credential: self.upstream.ids.get(usize::from(key)).map_or("", String::as_str), ..*who }
    }

    /// Returns `RateLimit-Policy` and `RateLimit` for a call that has passed the limits.
    pub(crate) fn fields(&self, visit: &Visit, now: Mono) -> Option<(String, String)> {
        if let (Some(link), Some(took)) = (&self.link, &visit.took) {
            return link.limits.fields(took, now);
        }
        self.limits.fields(visit.taken.as_ref()?, now)
    }

    fn enter(&self, give_up: Mono, visit: &mut Visit, now: Mono) -> AskAnswer {
        match self.pool.as_ref().map(|pool| pool.enter(give_up, now)) {
            None | Some(Entered::In) => AskAnswer::PoolEntered,
            Some(Entered::Line(waiting)) => {
                visit.waiting = Some(waiting);
                AskAnswer::PoolQueued
            }
            Some(Entered::Full { shed }) => AskAnswer::PoolFull { shed },
        }
    }

    /// Cleans up after a call that is cut off.
    pub(crate) fn abandon(&self, settle: &SettleAttempt, visit: &mut Visit, now: Now) {
        match &self.link {
            None => drop(self.settle(settle, None, visit, now)),
            Some(link) => {
                let receipts = visit.receipts();
                // No retry token was requested, so none is given back.
                let _: Option<RetryFunding> = self.settle_own(settle, None, visit, now);
                link.report_late(settle, receipts);
            }
        }
    }

    fn settle(
        &self,
        settle: &SettleAttempt,
        who: Option<&LimitSubject<'_>>,
        visit: &mut Visit,
        now: Now,
    ) -> (Option<RetryFunding>, Option<PhaseChange>) {
        let settle = &self.scoped(*settle, who);
        let change = if settle.sample.is_some() || settle.cancel.is_some() {
            settle.report_to_breaker(&mut self.breaker.lock(), &self.guard, now.mono)
        } else {
            None
        };
        if let (Some(keys), true) = (&self.upstream.keys, settle.key.is_some()) {
            settle.report_to_keys(&mut keys.lock(), now.mono);
        }
        (self.settle_own(settle, who, visit, now), change)
    }

    /// Widens a pause of a caller's credential to the endpoint if the caller is unknown.
    fn scoped(&self, settle: SettleAttempt, who: Option<&LimitSubject<'_>>) -> SettleAttempt {
        match settle.pause {
            Some((Scope::Key, until)) if who.is_none() => SettleAttempt { pause: Some((Scope::Endpoint, until)), ..settle },
            _ => settle,
        }
    }

    /// Applies the part of a report that stays in this process.
    fn settle_own(&self, settle: &SettleAttempt, who: Option<&LimitSubject<'_>>, visit: &mut Visit, now: Now) -> Option<RetryFunding> {
        self.settle_admission(settle, visit, now.mono);
        if let Some(place) = settle.leave_line {
            self.line.lock().leave(place);
            if let Some(waiter) = visit.waiter.take() {
                self.upstream.places.lock().give_back(waiter);
            }
        }
        if let (Some((Scope::Key, until)), Some(who)) = (settle.pause, who) {
            self.upstream.credential_pauses.extend(who.mark, until, now.mono);
        } else if let Some((scope, until)) = settle.pause {
            let pause = if scope == Scope::Upstream { &self.upstream.pause } else { &self.pause };
            // A shared pause is kept by Redis, and ours only follows it.
            if self.link.is_some() { pause.follow_redis(until, now.mono) } else { pause.extend(until, now.mono) }
        }
        if self.link.is_none() {
            self.end_pauses(settle, now.mono);
        }
        if let (Some(sent_at), Some(who)) = (settle.answer_sent_at(now.mono), who) {
            self.upstream.credential_pauses.answered(who.mark, sent_at, now.mono);
        }
        if settle.earn || settle.withdraw || settle.refund.is_some() {
            settle.report_to_budget(&mut self.upstream.budget.lock(), &self.retry, now.mono)
        } else {
            None
        }
    }

    /// Like [`EndpointState::settle`] for a call without bulkhead, limits and key.
    #[inline(always)] // For the same reason as `tell_breaker`.
    pub(crate) fn settle_plain(&self, settle: &SettleAttempt, now: Mono) -> Option<PhaseChange> {
        let change = settle.report_to_breaker(&mut self.breaker.lock(), &self.guard, now);
        self.end_pauses(settle, now);
        if let Some(sent_at) = settle.answer_sent_at(now) {
            self.upstream.credential_pauses.answered(CredentialMark::NONE, sent_at, now);
        }
        let _: Option<RetryFunding> = settle.report_to_budget(&mut self.upstream.budget.lock(), &self.retry, now);
        change
    }

    /// Ends the pause in which a successful probe was sent.
    #[inline]
    fn end_pauses(&self, settle: &SettleAttempt, now: Mono) {
        if let Some(sent_at) = settle.answer_sent_at(now) {
            self.pause.answered(sent_at, now);
            self.upstream.pause.answered(sent_at, now);
        }
    }

    /// Reports an attempt's end to limits and bulkheads.
    fn settle_admission(&self, settle: &SettleAttempt, visit: &mut Visit, now: Mono) {
        if let Some(pool) = &self.pool {
            if let Some((_, sample)) = settle.sample {
                pool.hear(sample, now);
            }
            visit.left = visit.left.or(settle.leave_pool);
        }
        if let Some((_, report)) = settle.key {
            let unused = report == KeyReport::Unused;
            match (visit.key_taken.take(), visit.key_took.take()) {
                (Some(taken), _) if unused => self.key_limits.refund(&taken, self.cost, now),
                (None, Some(Took::Alone(share, taken))) if unused => share.refund(&taken, self.cost, now),
                _ => {}
            }
        }
        let (limits, taken) = match (&visit.taken, &visit.took) {
            (Some(taken), _) => (&self.limits, taken),
            (None, Some(Took::Alone(share, taken))) => (&**share, taken),
            (None, _) => return,
        };
        if settle.untake {
            limits.refund(taken, self.cost, now);
        }
    }
}
