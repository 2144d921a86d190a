//! The report of an attempt's result to shared state: the breaker's sample, the key's report and the provider's pause.

use super::{Call, KeyReport, SettleAttempt};
use crate::classify::Classification;
use crate::guard::BreakerSample;
use crate::guard::pause::MAX_PAUSE;
use crate::record::{AttemptStatus, Class, ErrorKind, Scope};
use crate::time::{Mono, Nanos, Now};

impl Call {
    /// Builds the report of a result.
    pub(super) fn report(
        &self,
        status: AttemptStatus,
        verdict: &Classification,
        hint: Option<Nanos>,
        latency: Nanos,
        now: Now,
    ) -> SettleAttempt {
        let mut settle = SettleAttempt { earn: verdict.class == Class::Success, ..SettleAttempt::default() };
        // "Later" is not "broken": a deliberate 429 is no sample. A timely 404 or quota response is a healthy one.
        if status == AttemptStatus::Http(429) || verdict.blameless {
            settle.cancel = self.held.permit;
        } else {
            let failed = match verdict.class {
                Class::Transient | Class::Ambiguous => true,
                Class::Permanent => matches!(status, AttemptStatus::Error(ErrorKind::Malformed | ErrorKind::Tls)),
                Class::Success | Class::Quota | Class::Auth => false,
            };
            // A job that was deferred in between has failed at another time, which is new evidence.
            settle.sample = self.held.permit.map(|permit| (permit, BreakerSample { failed, repeated: self.last.is_some(), latency }));
        }
        settle.key = self.held.key.map(|lease| (lease, self.key_report(verdict, hint, matches!(status, AttemptStatus::Http(_)), now)));
        settle.pause = self.pause(verdict, hint, now);
        settle.answered = matches!(status, AttemptStatus::Http(_)) && settle.pause.is_none();
        settle
    }

    fn key_report(&self, verdict: &Classification, hint: Option<Nanos>, is_answer: bool, now: Now) -> KeyReport {
        let group = verdict.scope != Scope::Key;
        match (verdict.class, verdict.scope) {
            (Class::Success, _) => KeyReport::Succeeded { instead_of: self.progress.refused_key },
            (Class::Auth, _) if self.plan.refreshes => KeyReport::Neutral,
            (Class::Auth, _) if self.plan.keys > 1 => KeyReport::Failed,
            (Class::Auth, _) => KeyReport::Refused { request: self.mark },
            (Class::Quota, _) => KeyReport::Cool { group, until: self.plan.cool_until(verdict, hint, now) },
            (Class::Transient, Scope::Key | Scope::Group) => match hint {
                Some(hint) => KeyReport::Throttle { group, until: now.mono + hint },
                None => KeyReport::Failed,
            },
            (Class::Transient | Class::Permanent | Class::Ambiguous, _) if is_answer && self.held.key.is_some_and(|lease| lease.probe) => {
                KeyReport::Answered
            }
            (Class::Transient | Class::Permanent | Class::Ambiguous, _) => KeyReport::Neutral,
        }
    }

    /// A wait that the provider asked for applies to the refused credential: without a key pool, the caller's own.
    fn pause(&self, verdict: &Classification, hint: Option<Nanos>, now: Now) -> Option<(Scope, Mono)> {
        let scope = match verdict.scope {
            Scope::Endpoint | Scope::Upstream => verdict.scope,
            Scope::Key | Scope::Group if self.plan.keys == 0 && verdict.class == Class::Transient => Scope::Key,
            Scope::Call | Scope::Key | Scope::Group => return None,
        };
        hint.map(|hint| (scope, now.mono + hint.min(MAX_PAUSE)))
    }
}
