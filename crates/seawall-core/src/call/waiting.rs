//! A call that meets a limit, a breaker, a provider's pause or cooling keys waits in line if the wait can fit, and is refused at once if it cannot.

use super::{Action, Ask, Call, SettleAttempt, State, Then};
use crate::admit::line::{Lane, LinePlace};
use crate::lease::{KeySet, RequestMark};
use crate::policy::Share;
use crate::record::{AttemptOutcome, AttemptStatus, Class, Code, Decision, Reason};
use crate::time::{Mono, Nanos, Now};

/// The reason that a call cannot be sent now, with the obstacle's end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Obstacle {
    Breaker {
        retry_at: Mono,
    },
    Pause {
        until: Mono,
        own: bool,
    },
    Keys {
        until: Mono,
        probed: bool,
    },
    /// The provider rejected every key; only a probe can show otherwise.
    RejectedKeys {
        until: Mono,
    },
    Limit {
        until: Mono,
    },
    /// A retry that no budget funds yet.
    Budget {
        until: Mono,
    },
}

impl Obstacle {
    const fn until(self) -> Mono {
        match self {
            Self::Breaker { retry_at: until }
            | Self::Pause { until, .. }
            | Self::Keys { until, .. }
            | Self::RejectedKeys { until }
            | Self::Limit { until }
            | Self::Budget { until } => until,
        }
    }

    const fn is_probed(self) -> bool {
        matches!(self, Self::Pause { .. } | Self::Keys { probed: true, .. })
    }

    /// Returns the lane of this obstacle. The driver fills in the caller, which the machine does not know.
    const fn lane(self, request: RequestMark) -> Lane {
        match self {
            Self::Breaker { .. } => Lane::Breaker,
            Self::Pause { own: false, .. } => Lane::Pause,
            Self::Pause { own: true, .. } => Lane::OwnPause { credential: 0 },
            Self::Keys { .. } => Lane::Keys,
            Self::RejectedKeys { .. } => Lane::RejectedKeys { request: request.number() },
            Self::Limit { .. } => Lane::Limit { caller: 0 },
            Self::Budget { .. } => Lane::Budget,
        }
    }

    const fn kind(self) -> Kind {
        match self {
            Self::Breaker { .. } => Kind::Breaker,
            Self::Pause { .. } => Kind::Pause,
            Self::Keys { .. } | Self::RejectedKeys { .. } => Kind::Keys,
            Self::Limit { .. } => Kind::Limit,
            Self::Budget { .. } => Kind::Budget,
        }
    }

    const fn reason(self) -> Reason {
        match self {
            Self::Breaker { .. } => Reason::CircuitOpen,
            Self::Pause { .. } => Reason::ProviderPause,
            Self::Keys { .. } => Reason::KeysCooling,
            Self::RejectedKeys { .. } => Reason::KeysDead,
            Self::Limit { .. } => Reason::RateLimited,
            Self::Budget { .. } => Reason::BudgetExhausted,
        }
    }
}

/// The kinds of obstacle that have a patience of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Breaker,
    Pause,
    Keys,
    Limit,
    Budget,
}

/// How long a call has waited for each kind of obstacle. A wait for one of them takes nothing from the patience for another.
#[derive(Clone, Debug, Default)]
pub(super) struct WaitTimes {
    spent: [Nanos; 5],
    current: Option<(Kind, Mono)>,
}

impl WaitTimes {
    fn begin(&mut self, kind: Kind, now: Mono) {
        if self.current.is_none_or(|(current, _)| current != kind) {
            self.close(now);
            self.current = Some((kind, now));
        }
    }

    fn close(&mut self, now: Mono) {
        if let Some((kind, since)) = self.current.take() {
            self.spent[kind as usize] = self.spent(kind) + now.since(since);
        }
    }

    /// A send ends all waits. The time spent on the budget counts for the whole call: otherwise each retry could wait as long again.
    fn end(&mut self, now: Mono) {
        self.close(now);
        let budget = self.spent(Kind::Budget);
        self.spent = [Nanos::ZERO; 5];
        self.spent[Kind::Budget as usize] = budget;
    }

    const fn spent(&self, kind: Kind) -> Nanos {
        self.spent[kind as usize]
    }

    fn spent_at(&self, kind: Kind, now: Mono) -> Nanos {
        let running = self.current.filter(|(current, _)| *current == kind).map_or(Nanos::ZERO, |(_, since)| now.since(since));
        self.spent(kind) + running
    }
}

/// A job that is put off by a breaker, a pause or rejected keys looks again after this time, at least and at most: each look costs the store a write.
const JOB_LOOK: (Nanos, Nanos) = (Nanos::from_secs(2), Nanos::from_secs(30));

/// A call that waits for the budget asks again after this time.
const FUNDING_LOOK: Nanos = Nanos::from_millis(50);

/// The longest wait for a probe to end a pause that is itself too long to wait for.
const FOR_PROBES: Nanos = Nanos::from_secs(4);

/// The longest time that a wait leaves for the attempt after it. It leaves a tenth of an attempt's time, or of the call's.
const MAX_RESERVE: Nanos = Nanos::from_secs(1);

impl Call {
    /// Nothing can be sent now. A job is put off instead of waiting in line.
    pub(super) fn blocked(&mut self, obstacle: Obstacle, now: Now) -> Action {
        if let Obstacle::Keys { .. } | Obstacle::RejectedKeys { .. } = obstacle {
            // Keys that failed in this call may recover during the wait.
            self.progress.tried = KeySet::default();
        }
        if self.patient || self.waits_until(obstacle, now).is_none() {
            return self.refuse_wait(obstacle, now);
        }
        // Returns the permit, which may be the breaker's only probe, and the slot, which other calls can use.
        let settle = SettleAttempt { cancel: self.held.permit.take(), leave_pool: self.held.slot.take(), ..SettleAttempt::default() };
        if settle.is_nothing() {
            return self.ask_for_line(obstacle);
        }
        self.state = State::Settling(Then::Line(obstacle));
        Action::Ask(Ask::Settle(settle))
    }

    /// Returns the time until which the call waits for this; `None` if waiting is of no use. Any probe may end a pause, so a call waits for
    /// some probes even if the end itself does not fit.
    fn waits_until(&self, obstacle: Obstacle, now: Now) -> Option<Mono> {
        let gives_up = self.gives_up_at(obstacle, now);
        let until = match obstacle.until() <= gives_up {
            true => gives_up,
            false if obstacle.is_probed() => gives_up.min(now.mono + Nanos(FOR_PROBES.0.saturating_sub(self.spent_on(obstacle, now).0))),
            false => return None,
        };
        (now.mono < until).then_some(until)
    }

    /// The latest time until which the call waits for this.
    fn gives_up_at(&self, obstacle: Obstacle, now: Now) -> Mono {
        let patience = match obstacle {
            Obstacle::Budget { .. } if self.throttled => self.plan.pause_wait,
            Obstacle::Breaker { .. } | Obstacle::Budget { .. } => self.plan.breaker_wait,
            Obstacle::Pause { .. } => self.plan.pause_wait,
            Obstacle::Keys { .. } | Obstacle::RejectedKeys { .. } => self.plan.key_wait,
            Obstacle::Limit { .. } => self.plan.limit_wait,
        };
        // A send without enough time left would only add a failure.
        let whole = self.plan.timeout.attempt.min(self.deadline.at.since(self.started));
        let reserve = Nanos(whole.0 / 10).min(MAX_RESERVE).max(self.deadline.margin);
        let last_send = Mono(self.deadline.at.0.saturating_sub(reserve.0));
        (now.mono + Nanos(patience.0.saturating_sub(self.spent_on(obstacle, now).0))).min(last_send)
    }

    /// The time that this call has waited for obstacles of this kind.
    fn spent_on(&self, obstacle: Obstacle, now: Now) -> Nanos {
        self.wait_times.as_ref().map_or(Nanos::ZERO, |times| times.spent_at(obstacle.kind(), now.mono))
    }

    pub(super) fn ask_for_line(&mut self, obstacle: Obstacle) -> Action {
        self.state = State::Line(obstacle);
        Action::Ask(Ask::Line { place: self.held.line, lane: obstacle.lane(self.mark), ready_at: obstacle.until() })
    }

    /// The line has a place for this call and says when to ask for the turn.
    pub(super) fn in_line(&mut self, obstacle: Obstacle, place: LinePlace, at: Mono, now: Now) -> Action {
        self.held.line = Some(place);
        self.obstacle = Some(obstacle);
        self.blocked_since.get_or_insert(now.mono);
        self.wait_times.get_or_insert_default().begin(obstacle.kind(), now.mono);
        self.state = State::InLine;
        let until = self.waits_until(obstacle, now).map_or(at, |until| at.min(until));
        Action::Wait { until, reason: obstacle.reason() }
    }

    /// A call that gives up now tries once more, even if others come first.
    pub(super) fn ask_for_turn(&mut self, now: Now) -> Action {
        match (self.held.line, self.obstacle) {
            (Some(place), Some(obstacle)) if self.waits_until(obstacle, now).is_some() => {
                self.state = State::Turn;
                Action::Ask(Ask::Turn { place })
            }
            _ => self.look_again(now),
        }
    }

    /// Another caller took the place.
    pub(super) fn displaced(&mut self, now: Now) -> Action {
        match self.obstacle {
            Some(obstacle) => self.refuse_wait(obstacle, now),
            None => self.look_again(now),
        }
    }

    /// Others come first.
    pub(super) fn not_yet(&mut self, at: Mono, now: Now) -> Action {
        match (self.held.line, self.obstacle) {
            (Some(place), Some(obstacle)) => self.in_line(obstacle, place, at, now),
            _ => self.look_again(now),
        }
    }

    pub(super) fn look_again(&mut self, now: Now) -> Action {
        match self.obstacle {
            Some(Obstacle::Limit { .. }) => self.limits(now),
            Some(Obstacle::Budget { .. }) => self.ask_for_funding(),
            _ if self.held.slot.is_none() => self.pool(now),
            _ => self.permit(now),
        }
    }

    /// The pool has no slot for a call that returned its own to wait, so the call keeps waiting.
    pub(super) fn pool_is_full(&mut self, obstacle: Obstacle, now: Now) -> Option<Action> {
        let until = now.mono;
        let obstacle = match obstacle {
            Obstacle::Breaker { .. } => Obstacle::Breaker { retry_at: until },
            Obstacle::Pause { own, .. } => Obstacle::Pause { until, own },
            Obstacle::Keys { probed, .. } => Obstacle::Keys { until, probed },
            Obstacle::RejectedKeys { .. } => Obstacle::RejectedKeys { until },
            // The call asks the pool for the first time.
            Obstacle::Limit { .. } => return None,
            Obstacle::Budget { .. } => Obstacle::Budget { until },
        };
        self.waits_until(obstacle, now).map(|_| self.ask_for_line(obstacle))
    }

    /// The obstacle has ended: the call returns its place in the line before it sends.
    pub(super) fn leave_line(&mut self, place: LinePlace, now: Now) -> Action {
        self.obstacle = None;
        self.stop_waiting(now);
        self.state = State::Settling(Then::Dispatch);
        Action::Ask(Ask::Settle(SettleAttempt { leave_line: Some(place), ..SettleAttempt::default() }))
    }

    /// Adds the wait that just ended to the total.
    pub(super) fn stop_waiting(&mut self, now: Now) {
        if let Some(since) = self.blocked_since.take() {
            self.waited = self.waited + now.mono.since(since);
        }
        if let Some(times) = &mut self.wait_times {
            times.end(now.mono);
        }
    }

    /// Refuses a call whose wait does not fit, or for which the line has no place.
    pub(super) fn refuse_wait(&mut self, obstacle: Obstacle, now: Now) -> Action {
        match obstacle {
            Obstacle::Breaker { retry_at } if self.patient => self.circuit_open(retry_at.max(now.mono + JOB_LOOK.0), now),
            Obstacle::Breaker { retry_at } => self.circuit_open(retry_at, now),
            // Jobs try again now and then: if there are only jobs, one of them has to be the probe.
            Obstacle::Pause { until, .. } if self.patient => {
                self.refuse(Code::Paused, Reason::ProviderPause, Some(until.min(now.mono + JOB_LOOK.1)), now)
            }
            Obstacle::Pause { until, .. } => self.refuse(Code::Paused, Reason::ProviderPause, Some(until), now),
            Obstacle::Keys { until, .. } => {
                self.last = None;
                self.refuse(Code::KeysExhausted, Reason::KeysCooling, Some(until), now)
            }
            // Another job may run the probe, and an operator may replace the key at any time.
            Obstacle::RejectedKeys { until } if self.patient => {
                let look = until.max(now.mono + JOB_LOOK.0).min(now.mono + JOB_LOOK.1);
                self.refuse(Code::KeysRejected, Reason::KeysDead, Some(look), now)
            }
            Obstacle::RejectedKeys { until } => self.refuse(Code::KeysRejected, Reason::KeysDead, Some(until), now),
            Obstacle::Limit { until } => self.refuse(Code::RateLimited, Reason::RateLimited, Some(until), now),
            Obstacle::Budget { .. } => self.out_of_budget(now),
        }
    }

    /// No budget funds this retry. The call takes the wait before it all the same, and then waits for its turn: the budget bounds how many
    /// retries there are in a second, not how long callers may wait for one. Calls that do not wait for breakers fail at once.
    pub(super) fn wait_for_budget(&mut self, wait: Nanos, now: Now) -> Action {
        let retry = &self.plan.retry;
        let is_never_funded = retry.budget == Share::ZERO && retry.budget_floor.count == 0;
        if is_never_funded || (!self.throttled && self.plan.breaker_wait == Nanos::ZERO) {
            return self.out_of_budget(now);
        }
        if self.unfunded {
            return self.blocked(Obstacle::Budget { until: now.mono + FUNDING_LOOK }, now);
        }
        self.unfunded = true;
        self.state = State::BackingOff;
        Action::Wait { until: now.mono + wait, reason: Reason::BudgetExhausted }
    }

    pub(super) fn ask_for_funding(&mut self) -> Action {
        self.state = State::Settling(Then::Retry { wait: Nanos::ZERO, reason: Reason::BudgetExhausted });
        Action::Ask(Ask::Settle(SettleAttempt { withdraw: true, ..SettleAttempt::default() }))
    }

    /// Returns the upstream's own answer.
    fn out_of_budget(&mut self, now: Now) -> Action {
        if let Some(record) = &mut self.record {
            record.decision = Decision::Return;
            record.wait = Nanos::ZERO;
            record.reason = Reason::BudgetExhausted;
        }
        self.refuse(Code::UpstreamUnreachable, Reason::BudgetExhausted, None, now)
    }

    pub(super) fn circuit_open(&mut self, retry_at: Mono, now: Now) -> Action {
        self.record = Some(AttemptOutcome {
            number: self.progress.attempts + 1,
            status: AttemptStatus::CircuitOpen,
            key: None,
            latency: Nanos::ZERO,
            elapsed: now.mono.since(self.started),
            class: Class::Transient,
            named: true,
            decision: if self.patient { Decision::Defer } else { Decision::Reject },
            wait: retry_at.since(now.mono),
            reason: Reason::CircuitOpen,
        });
        self.refuse(Code::CircuitOpen, Reason::CircuitOpen, Some(retry_at), now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(s: u64) -> Mono {
        Mono(s * 1_000_000_000)
    }

    #[test]
    fn a_wait_for_keys_takes_nothing_from_the_patience_for_a_breaker() {
        let mut times = WaitTimes::default();
        times.begin(Kind::Keys, at(0));
        times.begin(Kind::Keys, at(5));
        times.begin(Kind::Breaker, at(17));
        assert_eq!(
            (times.spent_at(Kind::Keys, at(20)), times.spent_at(Kind::Breaker, at(20))),
            (Nanos::from_secs(17), Nanos::from_secs(3))
        );
        times.begin(Kind::Keys, at(20));
        assert_eq!(times.spent_at(Kind::Keys, at(21)), Nanos::from_secs(18));
    }

    #[test]
    fn all_retries_of_a_call_share_its_patience_for_the_budget() {
        let mut times = WaitTimes::default();
        times.begin(Kind::Budget, at(0));
        times.begin(Kind::Breaker, at(10));
        times.end(at(12));
        assert_eq!((times.spent_at(Kind::Budget, at(60)), times.spent_at(Kind::Breaker, at(60))), (Nanos::from_secs(10), Nanos::ZERO));
    }
}
