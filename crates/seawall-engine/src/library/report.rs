//! Reports one record three ways: to a hook, to `tracing` and to metrics. A call that succeeds at once without a listener costs a few
//! counters and no record.

use crate::locked_cell::Locked;
use crate::metrics::{Metrics, SuccessTally};
use crate::record::{AttemptRecord, BreakerRecord, CallRecord, EndpointNames, Record};
use seawall_core::call::{CallEnd, Outcome};
use seawall_core::guard::{PhaseChange, State};
use seawall_core::id::CallId;
use seawall_core::record::{AttemptOutcome, Class, Decision, Reason};
use seawall_core::rng::Rng;
use seawall_core::time::{Nanos, Wall};
use std::fmt;
use std::sync::{Arc, LazyLock};

/// The caller's name if none is given.
static ANONYMOUS: LazyLock<Arc<str>> = LazyLock::new(|| Arc::from("anonymous"));

#[derive(Clone)]
pub(super) struct Hook(pub(super) Arc<dyn Fn(&Record) + Send + Sync>);

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}

/// The subject of a call's records.
#[derive(Debug)]
pub(super) struct RecordSubject {
    pub(super) caller: Option<Arc<str>>,
    /// Generated when a record first needs it.
    pub(super) id: Option<CallId>,
}

#[derive(Clone, Debug)]
pub(super) struct Reporter {
    pub(super) names: Arc<EndpointNames>,
    pub(super) hook: Option<Hook>,
    /// Ids have a random generator of their own, so that they do not change a call's waits.
    ids: Arc<Locked<Rng>>,
    metrics: Arc<Metrics>,
    tally: Arc<SuccessTally>,
}

impl Reporter {
    pub(super) fn new(names: Arc<EndpointNames>) -> Self {
        Self {
            names,
            hook: None,
            ids: Arc::new(Locked::new(Rng::seeded(crate::entropy()))),
            metrics: Arc::default(),
            tally: Arc::default(),
        }
    }

    /// Returns a reporter with another name and counters of its own.
    pub(super) fn renamed(&self, names: EndpointNames) -> Self {
        Self { hook: self.hook.clone(), ..Self::new(Arc::new(names)) }
    }

    pub(super) fn id(&self, subject: &mut RecordSubject, at: Wall) -> CallId {
        *subject.id.get_or_insert_with(|| CallId::new(at, &mut self.ids.lock()))
    }

    /// Counts a call that succeeded at once without a hook.
    #[inline]
    pub(super) fn succeeded(&self, latency: Nanos) {
        self.tally.succeeded(latency);
        if tracing::level_filters::LevelFilter::current() >= tracing::level_filters::LevelFilter::TRACE {
            self.trace_success();
        }
    }

    /// A cold function: listeners are rare, and the call should not contain the event's code.
    #[cold]
    fn trace_success(&self) {
        tracing::trace!(target: "seawall", upstream = %self.names.upstream, endpoint = %self.names.endpoint, "call succeeded");
    }

    pub(super) fn attempt(&self, subject: &mut RecordSubject, attempt: AttemptOutcome, at: Wall) {
        if matches!(attempt.decision, Decision::Retry | Decision::RotateKey) {
            tracing::info!(
                target: "seawall",
                upstream = %self.names.upstream,
                endpoint = %self.names.endpoint,
                call = %self.id(subject, at),
                attempt = attempt.number,
                status = %attempt.status,
                class = %attempt.class,
                decision = %attempt.decision,
                wait_ms = attempt.wait.as_millis(),
                reason = %attempt.reason,
                "attempt failed"
            );
        }
        let record = AttemptRecord {
            at,
            call: self.id(subject, at),
            names: Arc::clone(&self.names),
            caller: subject.caller.clone().unwrap_or_else(|| Arc::clone(&ANONYMOUS)),
            attempt,
            key_tail: None,
            request: None,
            resends: 0,
            span: None,
            sample: None,
            timeout: None,
            error: None,
        };
        self.tell(&Record::Attempt(record));
    }

    pub(super) fn call(&self, subject: &mut RecordSubject, finish: &CallEnd, at: Wall) {
        let (outcome, refused_by) = match finish.outcome {
            Outcome::Success | Outcome::Replayed => (Class::Success.as_str(), None),
            Outcome::Failed(class) => (class.as_str(), None),
            Outcome::Refused(code) => (code.as_str(), Some(code.stage())),
        };
        let call = self.id(subject, at);
        if outcome == Class::Success.as_str() {
            tracing::debug!(target: "seawall", upstream = %self.names.upstream, endpoint = %self.names.endpoint, call = %call, attempts = finish.attempts, elapsed_ms = finish.elapsed.as_millis(), "call succeeded");
        } else if finish.reason == Reason::Cancelled {
            tracing::debug!(target: "seawall", upstream = %self.names.upstream, endpoint = %self.names.endpoint, call = %call, attempts = finish.attempts, elapsed_ms = finish.elapsed.as_millis(), "call was dropped");
        } else {
            tracing::warn!(target: "seawall", upstream = %self.names.upstream, endpoint = %self.names.endpoint, call = %call, attempts = finish.attempts, elapsed_ms = finish.elapsed.as_millis(), outcome, reason = %finish.reason, "call failed");
        }
        let record = CallRecord {
            at,
            call,
            names: Arc::clone(&self.names),
            caller: subject.caller.clone().unwrap_or_else(|| Arc::clone(&ANONYMOUS)),
            request: None,
            attempts: finish.attempts,
            response_status: None,
            outcome,
            reason: finish.reason,
            elapsed: finish.elapsed,
            refused_by,
        };
        self.tell(&Record::Call(record));
    }

    #[cold]
    pub(super) fn breaker(&self, change: PhaseChange, at: Wall) {
        let (from, to, cause) = (change.from, change.to, change.cause);
        if to == State::Open {
            tracing::warn!(target: "seawall", upstream = %self.names.upstream, endpoint = %self.names.endpoint, %from, %to, %cause, "breaker changed");
        } else {
            tracing::info!(target: "seawall", upstream = %self.names.upstream, endpoint = %self.names.endpoint, %from, %to, %cause, "breaker changed");
        }
        self.tell(&Record::Breaker(BreakerRecord { at, names: Arc::clone(&self.names), change }));
    }

    fn tell(&self, record: &Record) {
        self.metrics.count(std::slice::from_ref(record));
        if let Some(Hook(hook)) = &self.hook {
            hook(record);
        }
    }

    pub(super) fn render(&self, out: &mut String) {
        self.metrics.absorb(&self.names, &ANONYMOUS, &self.tally);
        self.metrics.render(out);
    }
}
