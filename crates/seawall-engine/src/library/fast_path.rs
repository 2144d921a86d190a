//! The first attempt of a plain call, without the call machine. Any result but a plain success creates the machine, in its state with that
//! attempt in flight.

use super::classification::{Meaning, MeaningFields, MeaningKind};
use super::library_driver::{Driver, DriverStep};
use super::policy::{Policy, Shared};
use super::request::Terms;
use seawall_core::call::{AskAnswer, First};
use seawall_core::classify::{Classification, HeaderLookup, ObservedResult};
use seawall_core::guard::Permit;
use seawall_core::time::{Mono, Nanos, Wall};

/// An attempt in flight, and its permit.
#[derive(Clone, Copy)]
pub(super) struct Light {
    permit: Option<Permit>,
    started: Mono,
}

impl Light {
    /// Asks the breaker, if the policy has one; a refusal is passed to the machine.
    #[inline(always)] // Otherwise the answer, which is large and rarely set, goes through memory.
    pub(super) fn begin(shared: &Shared, first: &First) -> Result<Self, (AskAnswer, Mono)> {
        let started = shared.clock.mono();
        let Some(lease) = first.lease else { return Ok(Self { permit: None, started }) };
        match shared.endpoint.state.admit(lease, None, started) {
            AskAnswer::Permitted(permit) => Ok(Self { permit: Some(permit), started }),
            refused => Err((refused, started)),
        }
    }

    /// Reports a plain success to shared state, which ends the call.
    #[inline(always)] // Otherwise a tenth of its instructions would be call overhead.
    pub(super) fn succeeded(self, shared: &Shared) {
        let now = shared.clock.mono();
        let settle = First::succeeded(self.permit, self.started, now);
        if let Some(change) = shared.endpoint.state.settle_plain(&settle, now) {
            shared.reporter.breaker(change, shared.clock.at(now).wall);
        }
        shared.reporter.succeeded(now.since(self.started));
    }

    /// Returns the deadline of the attempt.
    pub(super) fn until(self, shared: &Shared) -> Mono {
        shared.first.map_or(self.started, |first| self.started + first.timeout)
    }

    #[cold]
    pub(super) fn into_machine(self, policy: &Policy, terms: Terms) -> Driver {
        machine(policy, terms, self.started, self.permit.map(AskAnswer::Permitted)).0
    }
}

/// Creates the machine of a call that began then; `answered` is the breaker's answer, if it was asked.
#[cold]
pub(super) fn machine(policy: &Policy, terms: Terms, started: Mono, answered: Option<AskAnswer>) -> (Driver, DriverStep) {
    Driver::begin(policy.clone(), terms, policy.0.clock.at(started), answered)
}

/// Returns whether this is a success without any special meaning.
#[inline]
pub(super) fn is_plain(shared: &Shared, meaning: &Meaning<'_>) -> bool {
    match meaning.0 {
        MeaningKind::Success => true,
        MeaningKind::Seen { result: Ok(200), headers } => {
            let fields = headers.map(MeaningFields);
            let headers: &dyn HeaderLookup = fields.as_ref().map_or(&(), |fields| fields);
            let seen = ObservedResult { method: "GET", result: Ok(200), headers, body: &[], latency: Nanos::ZERO };
            // The time matters only for waits, and a plain success has none.
            shared.plan.rules.classify(&seen, Wall(0)) == Classification::SUCCESS
        }
        MeaningKind::Seen { .. } | MeaningKind::Said { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_core::policy::IdempotencyMode;

    #[test]
    fn every_profile_without_keys_to_make_and_limits_to_ask_takes_the_short_way() {
        for profile in seawall_core::config::profiles() {
            let policy = Policy::profile(profile).unwrap();
            let endpoint = &policy.0.endpoint;
            let more =
                policy.0.idempotency == IdempotencyMode::Generate || endpoint.state.pool.is_some() || !endpoint.state.limits.is_empty();
            assert_eq!(policy.0.first.is_none(), more, "{profile}");
        }
        assert!(Policy::default().0.first.is_some());
    }
}
