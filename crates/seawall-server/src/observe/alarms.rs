//! Derives events from call records and state: breakers, keys, retry spikes, dead letters. Each condition raises one event when it begins
//! and one when it ends.

use super::bounded;
use super::events::{Bus, OperatorEvent, Severity};
use super::rollups::Rollups;
use super::series::TimeSeries;
use crate::job_counts::StoreCounts;
use crate::json_shapes::{BreakerState, Time};
use seawall_core::classify::redacted;
use seawall_core::guard::{Cause, State};
use seawall_core::policy::BreakerPer;
use seawall_core::record::spike::{Spike, SpikeChange, SpikeInterval};
use seawall_core::record::{AttemptStatus, Class, Code, ErrorKind, Reason};
use seawall_core::time::{Nanos, Now, Wall};
use seawall_engine::record::{AttemptRecord, BreakerRecord, CallRecord, EndpointNames, Record, TokenRecord};
use seawall_engine::runtime::{Live, LiveUpstream};
use serde::Serialize;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use utoipa::ToSchema;

/// Each process measures its own baseline, so the condition ends with the process.
pub(crate) const SPIKE: &str = "retry-spike";
/// Changes of one breaker that are kept.
const CHANGES: usize = 20;
/// An equal event is not repeated within this time.
const QUIET_MS: i64 = 60_000;
/// Interval of reminders while a breaker keeps failing its probes; notification receivers remind people of a lasting outage.
const LASTING_MS: i64 = 5 * 60_000;
/// Maximum events remembered for deduplication.
const MAX_TOLD: usize = 4096;

#[derive(Debug)]
struct Watched {
    state: State,
    /// The state at the last poll, if no call record has reported it yet.
    unheard: Option<State>,
    open: Nanos,
    changes: VecDeque<BreakerChange>,
    /// The time at which it left the closed state, if that was observed. The list of changes may not reach back that far: each failed probe
    /// adds one.
    since: Option<Wall>,
    /// The cause of an opening that was not reported, since it followed too soon after the last one.
    untold: Option<Moved>,
}

impl Default for Watched {
    fn default() -> Self {
        Self { state: State::Closed, unheard: None, open: Nanos::ZERO, changes: VecDeque::new(), since: None, untold: None }
    }
}

/// A change of a breaker.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct BreakerChange {
    at: Time,
    from: BreakerState,
    to: BreakerState,
    /// One word, such as `failure-rate`, `probes-succeeded`, `forced`, or `shared` where another instance saw to it,
    /// or another endpoint with the same breaker.
    cause: &'static str,
}

/// The cause of a breaker's change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moved {
    By(Cause),
    /// Another instance, which shares its breakers with us.
    Elsewhere,
    /// Another endpoint of its upstream, which has one breaker for all.
    Beside,
}

impl Moved {
    const fn word(self) -> &'static str {
        match self {
            Self::By(cause) => cause.as_str(),
            Self::Elsewhere | Self::Beside => "shared",
        }
    }

    /// Explains to people why a breaker is in this state.
    const fn sentence(self, to: State) -> &'static str {
        match (self, to) {
            (Self::By(Cause::FailureRate), _) => "too many of its recent calls failed; further ones are refused until a probe succeeds",
            (Self::By(Cause::SlowRate), _) => "too many of its recent calls were slow; further ones are refused until a probe succeeds",
            (Self::By(Cause::Consecutive), _) => "too many calls failed in a row; further ones are refused until a probe succeeds",
            (Self::By(Cause::ProbeFailed), _) => "a probe failed, so it is left alone for a while longer",
            (Self::By(Cause::OpenElapsed), _) => "it was left alone for long enough; a few probes are let through",
            (Self::By(Cause::ProbesSucceeded), _) => "its probes succeeded; calls are let through again",
            (Self::By(Cause::Forced), State::Open) => "an operator opened it; calls are refused until an operator lets go of it",
            (Self::By(Cause::Forced), State::HalfOpen) => "an operator let go of it; a few probes are let through",
            (Self::By(Cause::Forced), State::Closed) => "an operator closed it or let go of it; calls are let through",
            (Self::Elsewhere, State::Open) => "another instance saw it fail; calls are refused here as well",
            (Self::Elsewhere, State::HalfOpen | State::Closed) => "another instance saw it recover; calls are let through here as well",
            (Self::Beside, State::Open) => "another endpoint of its upstream failed, and the breaker is one for all of them",
            (Self::Beside, State::HalfOpen | State::Closed) => {
                "another endpoint of its upstream recovered, and the breaker is one for all of them"
            }
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum AlarmKey {
    #[default]
    Ready,
    Cooling,
    Rejected,
}

#[derive(Debug, Default)]
pub(crate) struct Alarms {
    breakers: HashMap<Arc<EndpointNames>, Watched>,
    /// With the time at which the state was observed, if it was.
    keys: HashMap<(String, String), (AlarmKey, Option<Wall>)>,
    spikes: HashMap<String, Spike>,
    /// The latest message of each upstream about our credentials.
    words: HashMap<String, String>,
    /// Upstreams that rejected all credentials in the latest call.
    denied: HashSet<String>,
    /// Upstreams whose keys were all cooling.
    exhausted: HashSet<String>,
    /// Counts at the last poll; dead letters from before this process raise no event.
    letters: Option<HashMap<String, u64>>,
    told: HashMap<(&'static str, String), Wall>,
}

fn opened(names: &EndpointNames) -> OperatorEvent {
    let (upstream, endpoint) = (names.upstream.as_str(), names.endpoint.as_str());
    let title = format!("{upstream}/{endpoint} is failing: its breaker opened");
    OperatorEvent::new("breaker-opened", Severity::Warning, title).of(upstream, Some(endpoint))
}

/// Attaches an event to one key of an upstream.
fn of_key(event: OperatorEvent, upstream: &str, key: &str) -> OperatorEvent {
    event.of(upstream, None).about(format!("key {key}"))
}

fn cooling(upstream: &str, key: &str) -> OperatorEvent {
    of_key(OperatorEvent::new("key-cooling", Severity::Info, format!("key {key} of {upstream} is cooling")), upstream, key)
}

fn rejected(upstream: &str, key: &str) -> OperatorEvent {
    of_key(OperatorEvent::new("auth-failed", Severity::Fatal, format!("{upstream} rejects key {key}")), upstream, key)
}

fn accepted(upstream: &str) -> OperatorEvent {
    OperatorEvent::new("auth-failed", Severity::Info, format!("{upstream} accepts our credentials again")).of(upstream, None)
}

fn viable(upstream: &str) -> OperatorEvent {
    OperatorEvent::new("keys-exhausted", Severity::Info, format!("a key of {upstream} is viable again")).of(upstream, None)
}

impl Alarms {
    /// Continues from an earlier process: open conditions count as reported, and the next poll reports those which have ended.
    pub(crate) fn recall(&mut self, live: &Live, bus: &Bus) {
        for upstream in &live.upstreams {
            let name = &upstream.spec.name;
            for endpoint in upstream.endpoints.iter().filter(|endpoint| bus.stands(&opened(&endpoint.names))) {
                self.breakers.entry(Arc::clone(&endpoint.names)).or_default().state = State::Open;
            }
            for key in upstream.spec.auth.iter().flat_map(|auth| &auth.keys) {
                let stands = [(AlarmKey::Rejected, rejected(name, &key.id)), (AlarmKey::Cooling, cooling(name, &key.id))];
                if let Some((state, _)) = stands.into_iter().find(|(_, event)| bus.stands(event)) {
                    self.keys.insert((name.clone(), key.id.clone()), (state, None));
                }
            }
            if bus.stands(&accepted(name)) {
                self.denied.insert(name.clone());
            }
            if bus.stands(&viable(name)) {
                self.exhausted.insert(name.clone());
            }
        }
    }

    pub(crate) fn record(&mut self, record: &Record, live: &Live, bus: &Bus) {
        match record {
            Record::Breaker(record) => self.breaker(record, bus),
            Record::Call(record) => self.call(record, live, bus),
            Record::Attempt(record) => self.attempt(record, bus),
            Record::Token(TokenRecord { at, names, error, .. }) => {
                if self.is_news("auth-failed", names.upstream.clone(), *at) {
                    let event = OperatorEvent::new("auth-failed", Severity::Fatal, format!("{} gets no token", names.upstream));
                    bus.raise(&event.detail(redacted(error.as_str())).of(&names.upstream, None), *at);
                    self.denied.insert(names.upstream.clone());
                }
            }
            Record::Note(_) | Record::Idle(_) => {}
        }
    }

    fn breaker(&mut self, record: &BreakerRecord, bus: &Bus) {
        let BreakerRecord { at, names, change } = record;
        let watched = self.breakers.entry(Arc::clone(names)).or_default();
        let moved = Moved::By(change.cause);
        watched.changed(*at, change.from, change.to, moved);
        self.tell(names, change.to, moved, *at, bus);
    }

    /// Reports a change of a breaker. An outage is reported when it begins and when it ends, with a reminder at intervals while probes
    /// fail. A breaker that opens and closes often is reported once a minute.
    fn tell(&mut self, names: &Arc<EndpointNames>, to: State, moved: Moved, at: Wall, bus: &Bus) {
        let place = || format!("{}/{}", names.upstream, names.endpoint);
        let stands = bus.stands(&opened(names));
        let is_told = moved == Moved::By(Cause::Forced)
            || match to {
                State::Open => self.is_news_after(if stands { LASTING_MS } else { QUIET_MS }, "breaker-opened", place(), at),
                State::HalfOpen => stands && self.is_news("breaker-half-open", place(), at),
                State::Closed => stands,
            };
        if is_told {
            Watched::tell(names, to, moved, at, bus);
        }
        let watched = self.breakers.entry(Arc::clone(names)).or_default();
        watched.untold = match to {
            State::Open if !is_told && !stands => Some(moved),
            State::HalfOpen => watched.untold,
            State::Open | State::Closed => None,
        };
    }

    /// Reports ends of calls that reveal a state of the upstream.
    fn call(&mut self, record: &CallRecord, live: &Live, bus: &Bus) {
        let upstream = &record.names.upstream;
        if record.outcome == "success" && !self.denied.is_empty() && self.denied.remove(upstream) {
            self.told.remove(&("auth-failed", upstream.clone()));
            bus.clear(accepted(upstream), record.at);
        }
        if record.outcome == Code::KeysExhausted.as_str() && self.is_news("keys-exhausted", upstream.clone(), record.at) {
            let event = OperatorEvent::new("keys-exhausted", Severity::Warning, format!("every key of {upstream} is cooling"));
            bus.raise(&event.detail("calls are refused until the first one is viable").of(upstream, None), record.at);
            self.exhausted.insert(upstream.clone());
        }
        // If a caller brings its own credential, a rejection concerns only the caller and the upstream.
        let ours = || live.named(upstream).is_some_and(|upstream| upstream.spec.auth.is_some());
        let denied = (record.outcome == Code::KeysRejected.as_str() || record.reason == Reason::AuthFailed) && ours();
        if denied && self.is_news("auth-failed", upstream.clone(), record.at) {
            let event = OperatorEvent::new("auth-failed", Severity::Fatal, format!("{upstream} accepts no credential of ours"));
            let words = self.describe(upstream, "it refused what it was sent and did not say why");
            bus.raise(&event.because(record.reason.as_str(), words).of(upstream, None), record.at);
            self.denied.insert(upstream.clone());
        }
    }

    /// Returns the provider's message about our credentials, or else the given text.
    fn describe(&self, upstream: &str, otherwise: &str) -> String {
        self.words.get(upstream).filter(|words| !words.is_empty()).map_or_else(|| otherwise.to_owned(), |words| format!("it says: {words}"))
    }

    fn attempt(&mut self, record: &AttemptRecord, bus: &Bus) {
        let EndpointNames { upstream, endpoint, .. } = &*record.names;
        if record.attempt.class == Class::Auth
            && let Some(sample) = &record.sample
        {
            self.words.insert(upstream.clone(), super::excerpt(sample));
        }
        if record.attempt.status == AttemptStatus::Error(ErrorKind::Schema)
            && self.is_news("schema-mismatch", format!("{upstream}/{endpoint}"), record.at)
        {
            let event = OperatorEvent::new("schema-mismatch", Severity::Warning, format!("{upstream}/{endpoint} answers in another shape"));
            bus.publish(&event.detail("an answer does not match its schema").of(upstream, Some(endpoint)), record.at);
        }
    }

    fn is_news(&mut self, name: &'static str, about: String, at: Wall) -> bool {
        self.is_news_after(QUIET_MS, name, about, at)
    }

    /// Returns whether no equal event was reported within `quiet_ms`, and if so notes the report.
    fn is_news_after(&mut self, quiet_ms: i64, name: &'static str, about: String, at: Wall) -> bool {
        if self.told.len() >= MAX_TOLD {
            self.told.retain(|_, told| at.0 - told.0 < LASTING_MS);
        }
        let key = (name, about);
        let news = self.told.get(&key).is_none_or(|told| at.0 - told.0 >= quiet_ms);
        if news && self.told.len() < MAX_TOLD {
            self.told.insert(key, at);
        }
        news
    }

    /// Finds changes that happen by the passage of time alone, since no call record reports them.
    pub(crate) fn poll(&mut self, live: &Live, rollups: &mut Rollups, bus: &Bus, now: Now) {
        self.breakers.retain(|names, _| live.named(&names.upstream).is_some());
        self.keys.retain(|(upstream, _), _| live.named(upstream).is_some());
        self.words.retain(|upstream, _| live.named(upstream).is_some());
        self.denied.retain(|upstream| live.named(upstream).is_some());
        self.exhausted.retain(|upstream| live.named(upstream).is_some());
        self.open_time(live, rollups, now);
        for upstream in &live.upstreams {
            for endpoint in &upstream.endpoints {
                let (state, ..) = endpoint.state.breaker_state(now.mono);
                let names = &endpoint.names;
                let watched = self.breakers.entry(Arc::clone(names)).or_default();
                let of_all = endpoint.spec.policy.breaker.per == BreakerPer::Upstream;
                if let Some(moved) = watched.looked_at(state, endpoint.state.link().is_some(), of_all) {
                    watched.changed(now.wall, watched.state, state, moved);
                    if !of_all || bus.stands(&opened(names)) {
                        self.tell(names, state, moved, now.wall, bus);
                    }
                } else if let Some(moved) = watched.untold {
                    self.tell(names, State::Open, moved, now.wall, bus);
                }
            }
            self.poll_keys(upstream, bus, now);
        }
    }

    /// Adds the time for which breakers were open since the last call.
    pub(crate) fn open_time(&mut self, live: &Live, rollups: &mut Rollups, now: Now) {
        for endpoint in live.upstreams.iter().flat_map(|upstream| &upstream.endpoints) {
            let (.., open) = endpoint.state.breaker_state(now.mono);
            let watched = self.breakers.entry(Arc::clone(&endpoint.names)).or_default();
            if open > watched.open {
                rollups.open(now.wall, &endpoint.names, open - watched.open);
                watched.open = open;
            }
        }
    }

    fn poll_keys(&mut self, upstream: &LiveUpstream, bus: &Bus, now: Now) {
        let name = &upstream.spec.name;
        let mut is_viable = false;
        for (key, index) in upstream.spec.auth.iter().flat_map(|auth| &auth.keys).zip(0u16..) {
            let Some(status) = upstream.state.key_status(index, now) else { continue };
            let state = match (status.dead, status.cooling) {
                (true, _) => AlarmKey::Rejected,
                (false, Some(_)) => AlarmKey::Cooling,
                (false, None) => AlarmKey::Ready,
            };
            is_viable |= state == AlarmKey::Ready;
            let words = self.describe(name, "");
            let known = self.keys.entry((name.clone(), key.id.clone())).or_default();
            if known.0 == state {
                continue;
            }
            *known = (state, Some(now.wall));
            match state {
                AlarmKey::Ready => {
                    // If both conditions are open, the event resolves the rejection.
                    let (cooled, refused) = (bus.ended(&cooling(name, &key.id)), bus.ended(&rejected(name, &key.id)));
                    let event = OperatorEvent::new("key-restored", Severity::Info, format!("key {} of {name} is back", key.id));
                    bus.publish(&of_key(event, name, &key.id).resolving(refused.or(cooled)), now.wall);
                }
                AlarmKey::Cooling => {
                    let until = status.cooling.map(|left| (now.wall + left).to_string()).unwrap_or_default();
                    bus.raise(&cooling(name, &key.id).detail(format!("until {until}")), now.wall);
                }
                AlarmKey::Rejected => {
                    let words = format!("{words}; it is probed now and then, and comes back by itself when it is accepted");
                    bus.raise(&rejected(name, &key.id).detail(words.trim_start_matches("; ")), now.wall);
                }
            }
        }
        if is_viable && self.exhausted.remove(name) {
            self.told.remove(&("keys-exhausted", name.clone()));
            bus.clear(viable(name), now.wall);
        }
    }

    /// Checks the share of retries of each upstream over the last ten complete seconds.
    pub(crate) fn retries(&mut self, live: &Live, endpoints: &HashMap<Arc<EndpointNames>, TimeSeries>, bus: &Bus, now: Wall) {
        self.spikes.retain(|upstream, _| live.named(upstream).is_some());
        for upstream in &live.upstreams {
            let name = &upstream.spec.name;
            let t = now.0.div_euclid(1000).div_euclid(super::ENDPOINT_STEP) * super::ENDPOINT_STEP - super::ENDPOINT_STEP;
            let points = upstream.endpoints.iter().filter_map(|endpoint| endpoints.get(&endpoint.names)).map(|series| series.second(t));
            let span = points.fold(SpikeInterval::default(), |span, point| SpikeInterval {
                retries: span.retries + point.retries,
                successes: span.successes + point.success,
            });
            let detail = |ratio, baseline| format!("{ratio:.2} retries for each success; lately it was {baseline:.2}");
            let event = |severity, title| OperatorEvent::new(SPIKE, severity, title).of(name, None);
            match self.spikes.entry(name.clone()).or_default().observe(span) {
                None => {}
                Some(SpikeChange::Raised { ratio, baseline }) => {
                    bus.raise(&event(Severity::Warning, format!("retries of {name} are rising")).detail(detail(ratio, baseline)), now);
                }
                Some(SpikeChange::Cleared { ratio, baseline }) => {
                    let event = event(Severity::Info, format!("retries of {name} are back to normal")).detail(detail(ratio, baseline));
                    bus.clear(event, now);
                }
            }
        }
    }

    /// Reports new dead letters.
    pub(crate) fn depths(&mut self, counts: &StoreCounts, bus: &Bus, now: Wall) {
        if !counts.counted.load(Ordering::Acquire) {
            return;
        }
        let depths = counts.letters.lock().unwrap_or_else(PoisonError::into_inner);
        let mut open: HashMap<String, u64> = HashMap::new();
        for depth in depths.iter() {
            *open.entry(depth.queue.clone()).or_default() += depth.open;
        }
        drop(depths);
        for (queue, count) in &open {
            let before = self.letters.as_ref().map_or(*count, |letters| letters.get(queue).copied().unwrap_or(0));
            if *count > before {
                let title = match count - before {
                    1 => format!("a new dead letter of {queue}"),
                    new => format!("{new} new dead letters of {queue}"),
                };
                bus.publish(
                    &OperatorEvent::new("dead-letter", Severity::Info, title).detail(format!("{count} to look at")).of(queue, None),
                    now,
                );
            }
        }
        self.letters = Some(open);
    }

    /// Returns since when a breaker is not closed, if its opening was observed.
    pub(crate) fn not_closed_since(&self, names: &Arc<EndpointNames>) -> Option<Time> {
        self.breakers.get(names)?.since.map(Time)
    }

    /// Returns since when a key is not ready, if that was observed.
    pub(crate) fn resting_since(&self, upstream: &str, key: &str) -> Option<Time> {
        let (state, since) = self.keys.get(&(upstream.to_owned(), key.to_owned()))?;
        since.filter(|_| *state != AlarmKey::Ready).map(Time)
    }

    /// Returns a breaker's latest changes, oldest first.
    pub(crate) fn changes(&self, names: &Arc<EndpointNames>) -> Vec<BreakerChange> {
        self.breakers.get(names).map(|watched| watched.changes.iter().cloned().collect()).unwrap_or_default()
    }
}

impl Watched {
    /// Compares a polled state with the known one. Returns the cause of a change that no call record of this endpoint reports.
    fn looked_at(&mut self, state: State, is_shared: bool, of_all: bool) -> Option<Moved> {
        if state == self.state {
            self.unheard = None;
            return None;
        }
        if state == State::HalfOpen {
            return Some(Moved::By(Cause::OpenElapsed));
        }
        // The first poll only notes the state: a call record that reports the change arrives before the second poll.
        let is_news = self.unheard.replace(state) != Some(state);
        match (is_shared, of_all) {
            _ if is_news => None,
            (true, _) => Some(Moved::Elsewhere),
            (false, true) => Some(Moved::Beside),
            (false, false) => None,
        }
    }

    fn changed(&mut self, at: Wall, from: State, to: State, moved: Moved) {
        (self.state, self.unheard) = (to, None);
        self.since = match (from, to) {
            (_, State::Closed) => None,
            (State::Closed, _) => Some(at),
            (State::Open | State::HalfOpen, _) => self.since,
        };
        let change = BreakerChange { at: Time(at), from: BreakerState(from), to: BreakerState(to), cause: moved.word() };
        bounded(&mut self.changes, CHANGES, change);
    }

    fn tell(names: &EndpointNames, to: State, moved: Moved, at: Wall, bus: &Bus) {
        let (upstream, endpoint) = (names.upstream.as_str(), names.endpoint.as_str());
        let tell = |event: OperatorEvent| event.because(moved.word(), moved.sentence(to)).of(upstream, Some(endpoint));
        // An operator's change reveals nothing about the upstream.
        let by_hand = moved == Moved::By(Cause::Forced);
        match to {
            State::Open => {
                let mut event = opened(names);
                if by_hand {
                    event.title = format!("{upstream}/{endpoint} is held back: its breaker was opened");
                }
                bus.raise(&tell(event), at)
            }
            State::HalfOpen => bus.publish(
                &tell(OperatorEvent::new("breaker-half-open", Severity::Info, format!("{upstream}/{endpoint} is being tried again"))),
                at,
            ),
            State::Closed => {
                let what = if by_hand { "takes calls again: its breaker was closed" } else { "has recovered" };
                let event = OperatorEvent::new("breaker-closed", Severity::Info, format!("{upstream}/{endpoint} {what}"));
                bus.publish(&tell(event.resolving(bus.ended(&opened(names)))), at)
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_core::guard::PhaseChange;
    use seawall_core::time::Mono;

    #[test]
    fn people_are_told_why_a_breaker_moved_in_words_and_programs_in_one_word() {
        let (bus, names) = (Bus::default(), EndpointNames::new("api", "search"));
        let causes = Cause::ALL.iter().map(|cause| Moved::By(*cause)).chain([Moved::Elsewhere, Moved::Beside]);
        for (moved, to) in causes.flat_map(|moved| State::ALL.iter().map(move |to| (moved, *to))) {
            Watched::tell(&names, to, moved, Wall(0), &bus);
            let told = bus.unread().pop_back().unwrap().event;
            assert_eq!(told.cause, Some(moved.word()));
            assert!(told.detail.split(' ').count() > 4, "{moved:?}: {}", told.detail);
            assert!(!told.detail.contains(moved.word()) || moved.word() == "forced", "{moved:?}: {}", told.detail);
        }
    }

    /// Simulates a breaker that is open for two seconds and then fails a probe every half second.
    fn outage(alarms: &mut Alarms, names: &Arc<EndpointNames>, bus: &Bus) {
        let mut change = |at, from, to, cause| {
            let change = PhaseChange { from, to, cause, at: Mono(0) };
            alarms.breaker(&BreakerRecord { at: Wall(at), names: Arc::clone(names), change }, bus);
        };
        change(1_000, State::Closed, State::Open, Cause::Consecutive);
        for probe in 0..80 {
            change(3_000 + probe * 500, State::Open, State::HalfOpen, Cause::OpenElapsed);
            change(3_100 + probe * 500, State::HalfOpen, State::Open, Cause::ProbeFailed);
        }
    }

    #[test]
    fn a_breaker_whose_probes_fail_is_told_once() {
        let (bus, names, mut alarms) = (Bus::default(), Arc::new(EndpointNames::new("api", "search")), Alarms::default());
        bus.raise(&rejected("api", "a"), Wall(0));
        outage(&mut alarms, &names, &bus);
        let told: Vec<&str> = bus.unread().iter().map(|published| published.event.name).collect();
        assert_eq!(told, ["auth-failed", "breaker-opened", "breaker-half-open"]);
        assert!(bus.stands(&opened(&names)));
    }

    #[test]
    fn a_breaker_that_comes_and_goes_is_told_once_a_minute() {
        let (bus, names, mut alarms) = (Bus::default(), Arc::new(EndpointNames::new("api", "search")), Alarms::default());
        for second in 0..120 {
            for (ms, to, cause) in [(0, State::Open, Cause::Consecutive), (500, State::Closed, Cause::ProbesSucceeded)] {
                alarms.tell(&names, to, Moved::By(cause), Wall(second * 1000 + ms), &bus);
            }
        }
        let told: Vec<&str> = bus.unread().iter().map(|published| published.event.name).collect();
        assert_eq!(told, ["breaker-opened", "breaker-closed", "breaker-opened", "breaker-closed"]);
        alarms.tell(&names, State::Open, Moved::By(Cause::Consecutive), Wall(120_000), &bus);
        assert_eq!(bus.unread().len(), 1);
    }

    #[test]
    fn since_when_a_breaker_is_not_closed_survives_its_probes() {
        let (bus, names, mut alarms) = (Bus::default(), Arc::new(EndpointNames::new("api", "search")), Alarms::default());
        assert!(alarms.not_closed_since(&names).is_none());
        outage(&mut alarms, &names, &bus);
        assert_eq!(alarms.not_closed_since(&names).map(|Time(at)| at), Some(Wall(1_000)));
        let change = PhaseChange { from: State::HalfOpen, to: State::Closed, cause: Cause::ProbesSucceeded, at: Mono(0) };
        alarms.breaker(&BreakerRecord { at: Wall(50_000), names: Arc::clone(&names), change }, &bus);
        assert!(alarms.not_closed_since(&names).is_none());
    }

    #[test]
    fn nobody_else_is_said_to_have_moved_a_breaker_that_moved_by_itself() {
        let look = |is_shared, of_all| {
            let mut watched = Watched::default();
            [State::Open; 3].map(|state| watched.looked_at(state, is_shared, of_all))
        };
        assert_eq!(look(false, false), [None; 3], "its record tells of it");
        assert_eq!(look(true, false)[..2], [None, Some(Moved::Elsewhere)]);
        assert_eq!(look(false, true)[..2], [None, Some(Moved::Beside)]);
        let mut watched = Watched::default();
        assert_eq!(watched.looked_at(State::Open, true, false), None);
        watched.changed(Wall(0), State::Closed, State::Open, Moved::By(Cause::Consecutive));
        assert_eq!(watched.looked_at(State::Open, true, false), None, "the record came between two looks");
        assert_eq!(watched.looked_at(State::HalfOpen, true, false), Some(Moved::By(Cause::OpenElapsed)));
    }

    #[test]
    fn an_operators_hand_is_not_told_as_the_upstreams_failure() {
        let (bus, names) = (Bus::default(), EndpointNames::new("api", "search"));
        let title = |to, moved| {
            Watched::tell(&names, to, moved, Wall(0), &bus);
            bus.unread().pop_back().unwrap().event.title
        };
        assert_eq!(title(State::Open, Moved::By(Cause::Forced)), "api/search is held back: its breaker was opened");
        assert_eq!(title(State::Closed, Moved::By(Cause::Forced)), "api/search takes calls again: its breaker was closed");
        assert_eq!(title(State::Open, Moved::Elsewhere), "api/search is failing: its breaker opened");
        assert_eq!(title(State::Closed, Moved::By(Cause::ProbesSucceeded)), "api/search has recovered");
    }
}
