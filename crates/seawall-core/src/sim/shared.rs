//! The state that the calls of a whole configuration share, as in the product: a budget and keys for each upstream, a breaker for each
//! endpoint or upstream, pools by name, limits by their keys. It replies to a call's questions with the stages' own functions, as
//! `EndpointCells` does for one endpoint, and knows which calls are queued.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::admit::adaptive::Adaptive;
use crate::admit::bulkhead::{Bulkhead, BulkheadEntry, BulkheadRequest, QueueTicket};
use crate::admit::layered::{self, Answers};
use crate::admit::limit::{Gcra, LimitCell};
use crate::admit::line::WaitingLine;
use crate::admit::places::{Places, Waiter};
use crate::call::{Ask, AskAnswer, BUDGET_CAPACITY, CallPlan, SettleAttempt};
use crate::config::{Config, EndpointConfig, UpstreamConfig};
use crate::decide::Budget;
use crate::guard::{BreakerCell, PauseState};
use crate::lease::{KeyPool, KeySet, RequestMark};
use crate::policy::{self, BreakerPer, LimitKey};
use crate::time::{Mono, Nanos, Now};

/// The initial limit of an adaptive pool.
const ADAPTIVE_START: u32 = 20;

/// The number of callers that a limit by caller distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallerView {
    /// All calls to an endpoint come from one caller, so such a limit applies to each endpoint separately.
    OnePerEndpoint,
    /// Enough callers that none comes near its limit.
    Many,
}

/// One endpoint: its policy, and the indices of its shared state.
#[derive(Debug)]
pub(super) struct EndpointSite {
    pub(super) name: String,
    pub(super) upstream: usize,
    pub(super) method: Arc<str>,
    pub(super) plan: Arc<CallPlan>,
    /// Its requests may be repeated at cost.
    pub(super) at_cost: bool,
    /// Indices of limits, in the order in which they are checked.
    pub(super) limits: Vec<usize>,
    pub(super) pool: Option<usize>,
    pub(super) cost: u64,
    waiting: u32,
    breaker: usize,
    retry: policy::Retry,
    guard: policy::BreakerPolicy,
    pause: PauseState,
}

/// State that the endpoints of one upstream share.
#[derive(Debug)]
struct Dependency {
    budget: Budget,
    keys: Option<KeyPool>,
    pause: PauseState,
    line: WaitingLine,
    places: Places,
}

/// One cell of a limit, and its identity.
#[derive(Debug)]
pub(super) struct LayerCell {
    pub(super) policy: policy::LimitPolicy,
    identity: Identity,
    limit: Gcra,
    cell: LimitCell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    /// The upstream whose limit it is; `None` spans upstreams.
    owner: Option<usize>,
    upstream: Option<usize>,
    endpoint: Option<usize>,
}

#[derive(Debug)]
pub(super) struct PoolCells {
    pub(super) name: String,
    priority: u32,
    bulkhead: Bulkhead,
    adaptive: Option<Adaptive>,
    line: BTreeMap<QueueTicket, u32>,
}

/// A call's place in its pool, and its cost in the limits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Holding {
    place: StatePlace,
    taken_at: Mono,
    shadowed: u32,
    /// The limit that refused.
    pub(super) refused_by: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default)]
enum StatePlace {
    #[default]
    Outside,
    Line(QueueTicket),
    Slot {
        since: Mono,
    },
}

#[derive(Debug)]
pub(super) struct SharedCells {
    pub(super) sites: Vec<EndpointSite>,
    pub(super) limits: Vec<LayerCell>,
    pub(super) pools: Vec<PoolCells>,
    upstreams: Vec<Dependency>,
    breakers: Vec<BreakerCell>,
    /// Calls that a pool has granted or displaced, in that order.
    pub(super) called: VecDeque<(u32, Called)>,
}

/// A queued call's news from its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Called {
    Granted,
    /// The call lost its place to a call of higher priority.
    Displaced,
}

impl SharedCells {
    pub(super) fn new(config: &Config, callers: CallerView) -> Self {
        let mut shared = Self::empty(config, config.upstreams.len());
        for (index, upstream) in config.upstreams.iter().enumerate() {
            shared.upstreams.push(Dependency::of(upstream));
            for endpoint in &upstream.endpoints {
                let site = shared.site(config, (index, upstream), endpoint, callers);
                shared.sites.push(site);
            }
        }
        shared
    }

    /// The state of a single endpoint after a long calm at this load: its budget is full and its breaker has seen successes.
    pub(super) fn calm(config: &Config, upstream: &UpstreamConfig, endpoint: &EndpointConfig, per_second: f64, now: Mono) -> Self {
        let mut shared = Self::empty(config, 1);
        shared.upstreams.push(Dependency::of(upstream));
        let site = shared.site(config, (0, upstream), endpoint, CallerView::Many);
        shared.breakers[site.breaker].prime(&site.guard, per_second, now);
        if site.retry.budget > policy::Share::ZERO {
            shared.upstreams[0].budget = Budget::filled(BUDGET_CAPACITY);
        }
        shared.sites.push(site);
        shared
    }

    fn empty(config: &Config, upstreams: usize) -> Self {
        let pool = |pool: &policy::BulkheadPolicy| PoolCells {
            name: pool.name.clone(),
            priority: pool.priority,
            bulkhead: Bulkhead::new(pool),
            adaptive: pool.adaptive.then(|| Adaptive::new(ADAPTIVE_START, 1, pool.concurrent)),
            line: BTreeMap::new(),
        };
        let mut shared = Self {
            sites: Vec::new(),
            limits: Vec::new(),
            pools: config.pools.iter().map(pool).collect(),
            upstreams: Vec::with_capacity(upstreams),
            // The first ones belong to upstreams, for endpoints that share a breaker.
            breakers: (0..upstreams).map(|_| BreakerCell::new()).collect(),
            called: VecDeque::new(),
        };
        for pool in &mut shared.pools {
            pool.resize();
        }
        shared
    }

    fn site(
        &mut self,
        config: &Config,
        (index, upstream): (usize, &UpstreamConfig),
        endpoint: &EndpointConfig,
        callers: CallerView,
    ) -> EndpointSite {
        let policy = &endpoint.policy;
        let breaker = match policy.breaker.per {
            BreakerPer::Upstream => index,
            BreakerPer::Endpoint => {
                self.breakers.push(BreakerCell::new());
                self.breakers.len() - 1
            }
        };
        let site = self.sites.len();
        let spanning = config.limits.iter().map(|limit| (None, limit));
        let layers = spanning.chain(policy.limits.iter().map(|limit| (Some(index), limit)));
        let limits = layers.filter_map(|(owner, limit)| self.layer(limit, owner, (index, site), callers)).collect();
        EndpointSite {
            name: format!("{}/{}", upstream.name, endpoint.name),
            upstream: index,
            method: endpoint.matches.method().unwrap_or("GET").into(),
            at_cost: endpoint.matches.to_string().split_once(' ').is_some_and(|(_, path)| policy.at_cost.allows(path, || None)),
            plan: Arc::new(CallPlan::new(config, upstream, endpoint)),
            limits,
            pool: policy.pool.as_deref().and_then(|name| config.pools.iter().position(|pool| pool.name == name)),
            cost: policy.cost,
            waiting: policy.waiting,
            breaker,
            retry: policy.retry,
            guard: policy.breaker,
            pause: PauseState::default(),
        }
    }

    /// The limit's cell for this endpoint, created unless another endpoint has it already.
    fn layer(
        &mut self,
        limit: &policy::LimitPolicy,
        owner: Option<usize>,
        (upstream, site): (usize, usize),
        callers: CallerView,
    ) -> Option<usize> {
        let mut identity = Identity { owner, upstream: None, endpoint: None };
        for key in &limit.key {
            match key {
                LimitKey::Global => {}
                // A call is limited before it has a key, so all keys of the upstream count as one.
                LimitKey::Upstream | LimitKey::Key => identity.upstream = Some(upstream),
                LimitKey::Endpoint => identity.endpoint = Some(site),
                LimitKey::Ip | LimitKey::Caller | LimitKey::User | LimitKey::Tenant | LimitKey::Header(_) => match callers {
                    CallerView::OnePerEndpoint => identity.endpoint = Some(site),
                    CallerView::Many => return None,
                },
            }
        }
        let known = self.limits.iter().position(|layer| layer.identity == identity && layer.policy == *limit);
        Some(known.unwrap_or_else(|| {
            self.limits.push(LayerCell { policy: limit.clone(), identity, limit: Gcra::from(limit), cell: LimitCell::default() });
            self.limits.len() - 1
        }))
    }

    /// Answers call `id` of endpoint `site`.
    pub(super) fn answer(&mut self, id: u32, site: usize, ask: Ask, holding: &mut Holding, now: Now) -> AskAnswer {
        match ask {
            Ask::Limits => self.take(site, holding, now.mono),
            Ask::Pool { give_up } => self.enter(id, site, give_up, holding, now.mono),
            // Every simulated call is the first with its idempotency key.
            Ask::Reserve => AskAnswer::Reserved,
            Ask::Begin => AskAnswer::Begun,
            Ask::Permit { lease } => self.admit(site, lease, now.mono),
            Ask::Key { tried, request } => self.lease(site, tried, request, now),
            Ask::Line { place, lane, ready_at } => {
                let EndpointSite { upstream, waiting, .. } = self.sites[site];
                let Dependency { line, places, .. } = &mut self.upstreams[upstream];
                if place.is_none() && !places.take(Waiter::default(), waiting) {
                    return AskAnswer::LineFull;
                }
                line.answer(place, lane, ready_at, now.mono)
            }
            Ask::Turn { place } => self.upstreams[self.sites[site].upstream].line.answer_turn(place, now.mono),
            Ask::Settle(settle) => self.settle(site, &settle, holding, now),
        }
    }

    fn take(&mut self, site: usize, holding: &mut Holding, now: Mono) -> AskAnswer {
        let site = &self.sites[site];
        let answers = with_layers(&mut self.limits, &site.limits, |layers| layered::take_all(layers, now, site.cost));
        match answers {
            Answers::Go { shadowed, .. } => (holding.taken_at, holding.shadowed) = (now, shadowed),
            Answers::Refused { layer, .. } | Answers::TooCostly { layer, .. } => holding.refused_by = site.limits.get(layer).copied(),
        }
        answers.into()
    }

    fn enter(&mut self, id: u32, site: usize, give_up: Mono, holding: &mut Holding, now: Mono) -> AskAnswer {
        let Some(pool) = self.sites[site].pool.map(|pool| &mut self.pools[pool]) else { return AskAnswer::PoolEntered };
        match pool.bulkhead.enter(BulkheadRequest { priority: pool.priority, deadline: give_up }, now) {
            BulkheadEntry::Go => {
                holding.place = StatePlace::Slot { since: now };
                AskAnswer::PoolEntered
            }
            BulkheadEntry::Queued { ticket, displaced, .. } => {
                holding.place = StatePlace::Line(ticket);
                pool.line.insert(ticket, id);
                let gone = displaced.and_then(|ticket| pool.line.remove(&ticket));
                self.called.extend(gone.map(|id| (id, Called::Displaced)));
                AskAnswer::PoolQueued
            }
            BulkheadEntry::Refused(_) => AskAnswer::PoolFull { shed: false },
        }
    }

    /// Removes a call that waited too long from the queue, before its machine learns that the wait is over.
    pub(super) fn leave_line(&mut self, site: usize, holding: &mut Holding, now: Mono) {
        if let (Some(pool), StatePlace::Line(_)) = (self.sites[site].pool.map(|pool| &mut self.pools[pool]), &holding.place) {
            pool.give_back(holding, now);
        }
    }

    fn admit(&mut self, site: usize, lease: Nanos, now: Mono) -> AskAnswer {
        let site = &mut self.sites[site];
        if let Err(until) = self.upstreams[site.upstream].pause.admit(now).and_then(|()| site.pause.admit(now)) {
            return AskAnswer::Paused { until, own: false };
        }
        self.breakers[site.breaker].admit(&site.guard, lease, now).into()
    }

    fn lease(&mut self, site: usize, tried: KeySet, request: RequestMark, now: Now) -> AskAnswer {
        self.upstreams[self.sites[site].upstream].keys.as_mut().map(|keys| keys.lease(now, tried, request)).into()
    }

    fn settle(&mut self, site: usize, settle: &SettleAttempt, holding: &mut Holding, now: Now) -> AskAnswer {
        let site = &mut self.sites[site];
        let upstream = &mut self.upstreams[site.upstream];
        settle.report_to_breaker(&mut self.breakers[site.breaker], &site.guard, now.mono);
        let funding = settle.report_to_budget(&mut upstream.budget, &site.retry, now.mono);
        if let Some(keys) = &mut upstream.keys {
            settle.report_to_keys(keys, now.mono);
        }
        settle.report_to_pauses(&mut site.pause, &mut upstream.pause, now.mono);
        if let Some(place) = settle.leave_line {
            upstream.line.leave(place);
            upstream.places.give_back(Waiter::default());
        }
        if settle.untake {
            let (taken_at, shadowed) = (holding.taken_at, holding.shadowed);
            with_layers(&mut self.limits, &site.limits, |layers| layered::refund(layers, taken_at, site.cost, shadowed));
        }
        if let Some(pool) = site.pool.map(|pool| &mut self.pools[pool]) {
            pool.hear(settle);
            if settle.leave_pool.is_some() {
                pool.give_back(holding, now.mono);
            }
            self.called.extend(pool.grants(now.mono).map(|id| (id, Called::Granted)));
        }
        AskAnswer::Settled { funding }
    }
}

/// Passes the cells of some limits together to one of the layers' functions.
fn with_layers<R>(limits: &mut [LayerCell], chosen: &[usize], act: impl FnOnce(&mut [(&Gcra, &mut LimitCell)]) -> R) -> R {
    let mut cells: Vec<(Gcra, LimitCell)> = chosen.iter().map(|&index| (limits[index].limit, limits[index].cell)).collect();
    let mut layers: Vec<(&Gcra, &mut LimitCell)> = cells.iter_mut().map(|(limit, cell)| (&*limit, cell)).collect();
    let result = act(&mut layers);
    for (&index, (_, cell)) in chosen.iter().zip(cells) {
        limits[index].cell = cell;
    }
    result
}

impl Dependency {
    fn of(upstream: &UpstreamConfig) -> Self {
        let auth = upstream.auth.as_ref().filter(|auth| !auth.keys.is_empty());
        Self {
            budget: Budget::empty(BUDGET_CAPACITY),
            keys: auth.map(|auth| KeyPool::new(auth.pick, &auth.group_numbers())),
            pause: PauseState::default(),
            line: WaitingLine::default(),
            places: Places::default(),
        }
    }
}

impl PoolCells {
    /// An adaptive pool adjusts to the results of its own calls.
    fn hear(&mut self, settle: &SettleAttempt) {
        let Some(adaptive) = &mut self.adaptive else { return };
        match settle.sample {
            Some((_, sample)) if sample.failed => adaptive.dropped(),
            Some(_) => adaptive.succeeded(self.bulkhead.running()),
            None => {}
        }
        self.resize();
    }

    fn resize(&mut self) {
        if let Some(adaptive) = self.adaptive {
            self.bulkhead.resize(adaptive.limit());
        }
    }

    fn give_back(&mut self, holding: &mut Holding, now: Mono) {
        match std::mem::take(&mut holding.place) {
            StatePlace::Outside => {}
            StatePlace::Slot { since } => self.bulkhead.leave(now.since(since)),
            StatePlace::Line(ticket) => {
                self.line.remove(&ticket);
                self.bulkhead.cancel(ticket);
            }
        }
    }

    fn grants(&mut self, now: Mono) -> impl Iterator<Item = u32> {
        std::iter::from_fn(move || {
            // Every ticket has a call, because a call that leaves the queue removes its ticket.
            let ticket = self.bulkhead.grant(now)?;
            self.line.remove(&ticket)
        })
    }
}

impl Holding {
    /// The pool has granted the call a slot.
    pub(super) fn granted(&mut self, now: Mono) {
        self.place = StatePlace::Slot { since: now };
    }

    /// The pool has displaced the call from its queue.
    pub(super) fn displaced(&mut self) {
        self.place = StatePlace::Outside;
    }
}
