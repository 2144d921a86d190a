//! The recent calls with all decisions about them. Attempts are collected until their call ends.

use super::{OutcomeCategory, bounded, ending};
use crate::json_shapes::{DecisionWord, ReasonWord, Time, ms};
use seawall_core::id::CallId;
use seawall_core::record::AttemptOutcome;
use seawall_core::time::Wall;
use seawall_engine::record::{AttemptRecord, CallRecord};
use serde::Serialize;
use smallvec::{SmallVec, smallvec};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use utoipa::ToSchema;

/// Maximum calls that are kept.
const MAX_CALLS: usize = 10_000;
/// Maximum calls that have not ended; jobs may wait for days.
const MAX_OPEN: usize = 20_000;
/// Maximum attempts kept per call, the first ones.
const MAX_ATTEMPTS: usize = 64;

#[derive(Debug)]
struct AttemptStep {
    at: Wall,
    attempt: AttemptOutcome,
    key_tail: Option<Arc<str>>,
}

/// Most calls have one attempt, which is stored inline: an allocation for each costs more than all other work here.
type Steps = SmallVec<[AttemptStep; 1]>;

#[derive(Debug)]
struct RecentCall {
    number: u64,
    record: CallRecord,
    steps: Steps,
}

/// Ids are random numbers of our own, so they are used as hashes unchanged.
#[derive(Debug, Default)]
struct Random(u64);

impl Hasher for Random {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u128(&mut self, id: u128) {
        self.0 = u64::try_from(id & u128::from(u64::MAX)).unwrap_or(0);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Debug)]
pub(crate) struct Calls {
    ring: VecDeque<RecentCall>,
    open: HashMap<CallId, Steps, BuildHasherDefault<Random>>,
    order: VecDeque<CallId>,
    /// The last attempt, if it was its call's first. Usually the end of that call comes next, so the attempt does not enter the map.
    first: Option<(CallId, AttemptStep)>,
    next: u64,
}

impl Default for Calls {
    fn default() -> Self {
        // Untouched capacity costs no memory, while growth would move thousands of calls.
        Self { ring: VecDeque::with_capacity(MAX_CALLS), open: HashMap::default(), order: VecDeque::new(), first: None, next: 0 }
    }
}

/// A category of calls that an operator filters by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// The caller got a failure.
    Failed,
    /// Refused by Seawall before anything was sent.
    Refused,
    /// A success that took more than one attempt.
    Healed,
}

impl CallKind {
    pub(crate) fn from_word(word: &str) -> Option<Self> {
        match word {
            "failed" => Some(Self::Failed),
            "refused" => Some(Self::Refused),
            "healed" => Some(Self::Healed),
            _ => None,
        }
    }

    fn takes(self, record: &CallRecord) -> bool {
        let ending = ending(record);
        match self {
            Self::Failed => ending == OutcomeCategory::Failed,
            Self::Refused => ending == OutcomeCategory::Rejected,
            Self::Healed => ending == OutcomeCategory::Success && record.attempts > 1,
        }
    }
}

/// The filter of a list of calls.
#[derive(Debug, Default)]
pub(crate) struct CallFilter<'a> {
    pub upstream: Option<&'a str>,
    pub outcome: Option<&'a str>,
    pub caller: Option<&'a str>,
    pub kind: Option<CallKind>,
    /// Only calls below this number.
    pub before: Option<u64>,
}

impl Calls {
    pub(super) fn attempt(&mut self, record: &AttemptRecord) {
        let step = AttemptStep { at: record.at, attempt: record.attempt, key_tail: record.key_tail.clone() };
        if let Some((call, before)) = self.first.take() {
            self.open(call, before);
        }
        if record.attempt.number == 1 {
            self.first = Some((record.call, step));
        } else {
            self.open(record.call, step);
        }
    }

    /// Keeps an attempt until its call ends.
    fn open(&mut self, call: CallId, step: AttemptStep) {
        match self.open.entry(call) {
            Entry::Occupied(mut known) if known.get().len() < MAX_ATTEMPTS => known.get_mut().push(step),
            Entry::Occupied(_) => {}
            Entry::Vacant(place) => {
                place.insert(smallvec![step]);
                self.order.push_back(call);
                self.forget();
            }
        }
    }

    /// Enforces the limits on open calls.
    fn forget(&mut self) {
        while self.open.len() > MAX_OPEN {
            // The queue may contain ids of calls that have ended; removing them again has no effect.
            let Some(oldest) = self.order.pop_front() else { return };
            self.open.remove(&oldest);
        }
        if self.order.len() > 2 * MAX_OPEN {
            let open = &self.open;
            self.order.retain(|call| open.contains_key(call));
        }
    }

    pub(super) fn call(&mut self, record: &CallRecord) {
        let mut steps = self.open.remove(&record.call).unwrap_or_default();
        let first = self.first.take_if(|(call, _)| *call == record.call);
        steps.extend(first.filter(|_| steps.len() < MAX_ATTEMPTS).map(|(_, step)| step));
        bounded(&mut self.ring, MAX_CALLS, RecentCall { number: self.next, record: record.clone(), steps });
        self.next += 1;
    }

    /// Returns a page, newest first, and the cursor of the next page.
    pub(crate) fn page(&self, wanted: &CallFilter<'_>, limit: usize) -> (Vec<CallView>, Option<u64>) {
        let is_wanted = |seen: &&RecentCall| {
            let record = &seen.record;
            wanted.before.is_none_or(|before| seen.number < before)
                && wanted.upstream.is_none_or(|name| record.names.upstream == name)
                && wanted.outcome.is_none_or(|outcome| record.outcome == outcome)
                && wanted.caller.is_none_or(|caller| &*record.caller == caller)
                && wanted.kind.is_none_or(|kind| kind.takes(record))
        };
        let mut found: Vec<&RecentCall> = self.ring.iter().rev().filter(is_wanted).take(limit + 1).collect();
        let more = found.len() > limit;
        found.truncate(limit);
        let next = if more { found.last().map(|seen| seen.number) } else { None };
        (found.into_iter().map(summary).collect(), next)
    }

    pub(crate) fn one(&self, id: CallId) -> Option<CallTimeline> {
        let seen = self.ring.iter().rev().find(|seen| seen.record.call == id)?;
        Some(CallTimeline { call: summary(seen), timeline: seen.steps.iter().map(step).collect() })
    }
}

/// A call that is over.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Call)]
pub(crate) struct CallView {
    id: String,
    at: Time,
    upstream: String,
    endpoint: String,
    caller: String,
    /// `success`, or the class or code of what went wrong.
    outcome: &'static str,
    reason: ReasonWord,
    attempts: u32,
    elapsed_ms: f64,
    /// Absent for a request that was refused before it had an endpoint.
    method: Option<String>,
    /// The endpoint's pattern.
    route: Option<String>,
    /// Without the values of the query.
    path: Option<String>,
    /// What the caller got, where it got a response.
    response_status: Option<u16>,
}

/// A call with everything that was decided about it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CallTimeline {
    #[serde(flatten)]
    #[schema(inline)]
    call: CallView,
    timeline: Vec<CallStep>,
}

/// One attempt, and what was made of it.
#[derive(Debug, Serialize, ToSchema)]
struct CallStep {
    attempt: u32,
    at: Time,
    /// A status of HTTP, or how no answer came to be.
    status: String,
    class: &'static str,
    decision: DecisionWord,
    reason: ReasonWord,
    wait_ms: f64,
    latency_ms: f64,
    elapsed_ms: f64,
    /// The key's id and the end of it.
    key_id: Option<String>,
}

fn summary(seen: &RecentCall) -> CallView {
    let record = &seen.record;
    CallView {
        id: record.call.to_string(),
        at: Time(record.at),
        upstream: record.names.upstream.clone(),
        endpoint: record.names.endpoint.clone(),
        caller: record.caller.to_string(),
        outcome: record.outcome,
        reason: ReasonWord(record.reason),
        attempts: record.attempts,
        elapsed_ms: ms(record.elapsed),
        method: record.request.as_ref().map(|request| request.method.to_string()),
        route: record.request.as_ref().map(|request| request.route.to_string()),
        path: record.request.as_ref().map(|request| request.path.clone()),
        response_status: record.response_status,
    }
}

fn step(step: &AttemptStep) -> CallStep {
    let attempt = &step.attempt;
    CallStep {
        attempt: attempt.number,
        at: Time(step.at),
        status: attempt.status.to_string(),
        class: attempt.outcome(),
        decision: DecisionWord(attempt.decision),
        reason: ReasonWord(attempt.reason),
        wait_ms: ms(attempt.wait),
        latency_ms: ms(attempt.latency),
        elapsed_ms: ms(attempt.elapsed),
        key_id: step.key_tail.as_deref().map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_core::record::{AttemptStatus, Class, Decision, Reason};
    use seawall_core::rng::Rng;
    use seawall_core::time::Nanos;
    use seawall_engine::record::EndpointNames;

    fn records(number: u32, rng: &mut Rng) -> (AttemptRecord, CallRecord) {
        let call = CallId::new(Wall(i64::from(number)), rng);
        let (names, caller) = (Arc::new(EndpointNames::new(&format!("u{}", number % 2), "e")), Arc::from("anonymous"));
        let attempt = AttemptOutcome {
            number: 1,
            status: AttemptStatus::Http(200),
            key: None,
            latency: Nanos(1),
            elapsed: Nanos(1),
            class: Class::Success,
            named: true,
            decision: Decision::Return,
            wait: Nanos::ZERO,
            reason: Reason::Succeeded,
        };
        let one = AttemptRecord {
            at: Wall(1),
            call,
            names: Arc::clone(&names),
            caller: Arc::clone(&caller),
            attempt,
            key_tail: None,
            request: None,
            resends: 0,
            span: None,
            sample: None,
            timeout: None,
            error: None,
        };
        let reason = Reason::Succeeded;
        let end = CallRecord {
            at: Wall(1),
            call,
            names,
            caller,
            request: None,
            attempts: 1,
            response_status: None,
            outcome: "success",
            reason,
            elapsed: Nanos(1),
            refused_by: None,
        };
        (one, end)
    }

    #[test]
    fn only_the_last_ones_are_kept_and_pages_lead_through_all_of_them() {
        let (mut calls, mut rng) = (Calls::default(), Rng::seeded(1));
        for number in 0..12_000 {
            let (attempt, call) = records(number, &mut rng);
            calls.attempt(&attempt);
            calls.call(&call);
        }
        assert_eq!((calls.ring.len(), calls.open.len()), (MAX_CALLS, 0));
        let (mut before, mut count) = (None, 0);
        loop {
            let (page, next) = calls.page(&CallFilter { upstream: Some("u1"), before, ..CallFilter::default() }, 400);
            count += page.len();
            before = next;
            if next.is_none() {
                break;
            }
        }
        assert_eq!(count, MAX_CALLS / 2);
        let newest = calls.ring.back().unwrap().record.call;
        assert_eq!(calls.one(newest).unwrap().timeline[0].status, "200");
    }

    #[test]
    fn every_attempt_of_a_call_is_in_its_timeline_whoever_came_between() {
        let (mut calls, mut rng) = (Calls::default(), Rng::seeded(3));
        let ((mut one, end), (other, other_end)) = (records(0, &mut rng), records(1, &mut rng));
        let numbers =
            |calls: &Calls, of: &CallRecord| calls.one(of.call).unwrap().timeline.iter().map(|step| step.attempt).collect::<Vec<_>>();
        calls.attempt(&one);
        calls.attempt(&one);
        calls.attempt(&other);
        one.attempt.number = 2;
        calls.attempt(&one);
        calls.call(&other_end);
        calls.call(&end);
        assert_eq!((numbers(&calls, &end), numbers(&calls, &other_end)), (vec![1, 1, 2], vec![1]), "a refusal does not count as one");
        one.attempt.number = 1;
        calls.attempt(&one);
        calls.call(&other_end);
        calls.call(&end);
        assert_eq!((numbers(&calls, &end), numbers(&calls, &other_end)), (vec![1], vec![]));
        assert!(calls.open.is_empty() && calls.first.is_none());
    }

    #[test]
    fn calls_that_never_end_are_forgotten_in_time() {
        let (mut calls, mut rng) = (Calls::default(), Rng::seeded(2));
        for number in 0..50_000 {
            let (attempt, call) = records(number, &mut rng);
            for _ in 0..3 {
                calls.attempt(&attempt);
            }
            if number % 2 == 0 {
                calls.call(&call);
            }
        }
        assert!(calls.open.len() <= MAX_OPEN && calls.order.len() <= 2 * MAX_OPEN + 1, "{} {}", calls.open.len(), calls.order.len());
    }
}
