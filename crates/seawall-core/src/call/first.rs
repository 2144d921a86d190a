//! A fast path for the first attempt of a call that only the breaker can block, without the call machine: most calls need no more. The
//! machine itself says whether a plan allows this. If the attempt does not succeed, the driver replays the start on the machine, with the
//! start time and the breaker's reply; the machine is a pure function of both.

use super::{Action, Ask, AskAnswer, Call, CallPlan, CallRequest, SettleAttempt};
use crate::guard::{Admission, BreakerCell, BreakerSample, Permit};
use crate::lease::RequestMark;
use crate::policy;
use crate::time::{Mono, Nanos, Now};
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First {
    /// The time that a probe may be in flight; `None` if the plan does not ask the breaker.
    pub lease: Option<Nanos>,
    pub timeout: Nanos,
    pub remaining: Nanos,
}

impl First {
    /// `None` if a call without an idempotency key has other questions before its first attempt.
    #[must_use]
    pub fn of(plan: &Arc<CallPlan>, guard: &policy::BreakerPolicy) -> Option<Self> {
        let request = CallRequest {
            method: "GET",
            mark: RequestMark::NONE,
            keyed: false,
            at_cost: false,
            replayable: true,
            deadline: None,
            patient: false,
        };
        let now = Now::default();
        let (mut call, mut action) = Call::begin(Arc::clone(plan), &request, now);
        let mut lease = None;
        if let Action::Ask(Ask::Permit { lease: asked }) = action {
            lease = Some(asked);
            let Admission::Go(permit) = BreakerCell::new().admit(guard, asked, now.mono) else { return None };
            action = call.answered(AskAnswer::Permitted(permit), now);
        }
        let Action::Send { timeout, key: None, .. } = action else { return None };
        Some(Self { lease, timeout, remaining: call.remaining(now.mono) })
    }

    /// Returns the report to shared state after a plain success.
    #[must_use]
    #[inline]
    pub fn succeeded(permit: Option<Permit>, started: Mono, now: Mono) -> SettleAttempt {
        let sample = BreakerSample::success(now.since(started));
        SettleAttempt { sample: permit.map(|permit| (permit, sample)), earn: true, answered: true, ..SettleAttempt::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::EndpointCells;
    use crate::config;
    use crate::time::Wall;

    fn parts(text: &str) -> (EndpointCells, Arc<CallPlan>, Option<First>) {
        let text = format!("[pools.p]\nconcurrent = 1\n[upstreams.a]\nurl = \"http://a.test\"\n{text}");
        let config = config::load("t", text.as_bytes()).unwrap();
        let upstream = &config.upstreams[0];
        let endpoint = &upstream.endpoints[0];
        let plan = Arc::new(CallPlan::new(&config, upstream, endpoint));
        let first = First::of(&plan, &endpoint.policy.breaker);
        (EndpointCells::new(&config, upstream, &endpoint.policy), plan, first)
    }

    #[test]
    fn a_success_tells_shared_state_what_the_machine_would() {
        let request = CallRequest {
            method: "POST",
            mark: RequestMark::NONE,
            keyed: false,
            at_cost: false,
            replayable: true,
            deadline: None,
            patient: false,
        };
        for text in ["", "idempotency.mode = \"off\"", "profile = \"payment\"", "breaker.mode = \"off\""] {
            let (mut cells, plan, first) = parts(text);
            let first = first.unwrap();
            let begun = Now { mono: Mono(5), wall: Wall(0) };
            let (mut call, mut action) = Call::begin(plan, &request, begun);
            let mut permit = None;
            if let Action::Ask(ask) = action {
                assert_eq!(Some(ask), first.lease.map(|lease| Ask::Permit { lease }));
                let answer = cells.answer(ask, begun).answer;
                let AskAnswer::Permitted(given) = answer else { panic!("{answer:?}") };
                permit = Some(given);
                action = call.answered(answer, begun);
            }
            assert_eq!(action, Action::Send { number: 1, timeout: first.timeout, key: None });
            assert_eq!(call.remaining(begun.mono), first.remaining);
            let ended = begun.after(Nanos::from_millis(3));
            let action = call.succeeded(200, ended);
            assert_eq!(action, Action::Ask(Ask::Settle(First::succeeded(permit, begun.mono, ended.mono))), "{text}");
        }
    }

    #[test]
    fn a_call_with_more_to_ask_has_no_short_way() {
        let more = [
            "pool = \"p\"",
            "limits = [{ name = \"l\", rate = \"1/s\" }]",
            "[upstreams.a.auth]\nkeys = [{ id = \"k\", secret = \"env:K\" }]",
        ];
        for text in more {
            assert_eq!(parts(text).2, None, "{text}");
        }
    }
}
