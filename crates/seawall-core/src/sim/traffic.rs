//! Many concurrent calls on the real machine: replies from shared state at once, and returns the steps that take time. The driver owns the
//! clock, the network and the arrivals.

use crate::lease::RequestMark;
use std::sync::Arc;

use super::shared::{Called, CallerView, Holding, SharedCells};
use crate::call::{Action, Call, CallEnd, CallRequest};
use crate::classify::{Classification, ObservedResult};
use crate::config::Config;
use crate::record::{AttemptOutcome, ErrorKind};
use crate::rng::Rng;
use crate::time::{Mono, Nanos, Now};

/// One moment of one call. An event for an earlier moment is stale: an overtaken timer, or a response to an attempt that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallMoment {
    pub(super) id: u32,
    moment: u64,
}

/// The event that a call waits for.
#[must_use]
#[derive(Clone, Copy, Debug)]
pub(super) enum WaitReason {
    /// A result; pass it to [`Traffic::responded`].
    Result { token: CallMoment, number: u32, timeout: Nanos },
    /// A point in time; then call [`Traffic::waited`].
    Until { token: CallMoment, at: Mono },
    /// Nothing: the call has ended.
    Over(Over),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Over {
    pub(super) id: u32,
    pub(super) finish: CallEnd,
    /// The limit that refused it.
    pub(super) limit: Option<usize>,
}

#[derive(Debug)]
struct Flight {
    call: Call,
    site: usize,
    holding: Holding,
    moment: u64,
}

#[derive(Debug)]
pub(super) struct Traffic {
    pub(super) shared: SharedCells,
    flights: Vec<Option<Flight>>,
    free: Vec<u32>,
    moments: u64,
    rng: Rng,
    /// Decisions about attempts since the last event.
    pub(super) records: Vec<AttemptOutcome>,
}

impl Traffic {
    pub(super) fn new(config: &Config, callers: CallerView, rng: Rng) -> Self {
        Self::over(SharedCells::new(config, callers), rng)
    }

    pub(super) fn over(shared: SharedCells, rng: Rng) -> Self {
        Self { shared, flights: Vec::new(), free: Vec::new(), moments: 0, rng, records: Vec::new() }
    }

    /// The number of calls that have not ended.
    pub(super) fn open(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    /// Begins a call. Its number is used again once it has ended.
    pub(super) fn begin(&mut self, site: usize, keyed: bool, now: Now) -> (u32, WaitReason) {
        let own = &self.shared.sites[site];
        let request = CallRequest {
            method: &own.method,
            mark: RequestMark::NONE,
            keyed,
            at_cost: own.at_cost,
            replayable: true,
            deadline: None,
            patient: false,
        };
        let (call, action) = Call::begin(Arc::clone(&own.plan), &request, now);
        let flight = Some(Flight { call, site, holding: Holding::default(), moment: 0 });
        let id = match self.free.pop() {
            Some(id) => {
                self.flights[id as usize] = flight;
                id
            }
            None => {
                self.flights.push(flight);
                u32::try_from(self.flights.len() - 1).unwrap_or(u32::MAX)
            }
        };
        (id, self.follow(id, action, now))
    }

    pub(super) fn waited(&mut self, token: CallMoment, now: Now) -> Option<WaitReason> {
        let flight = waiting(&mut self.flights, token)?;
        self.shared.leave_line(flight.site, &mut flight.holding, now.mono);
        let action = flight.call.waited(now);
        Some(self.follow(token.id, action, now))
    }

    /// Passes in an attempt's result; `None` if the call no longer waits for it.
    pub(super) fn responded(&mut self, token: CallMoment, seen: &ObservedResult<'_>, now: Now) -> Option<WaitReason> {
        let action = waiting(&mut self.flights, token)?.call.responded(seen, now, &mut self.rng);
        Some(self.follow(token.id, action, now))
    }

    /// As [`Traffic::responded`], for a result that is classified already.
    pub(super) fn judged(
        &mut self,
        token: CallMoment,
        result: Result<u16, ErrorKind>,
        verdict: &Classification,
        now: Now,
    ) -> Option<WaitReason> {
        let action = waiting(&mut self.flights, token)?.call.judged(result, verdict, now, &mut self.rng);
        Some(self.follow(token.id, action, now))
    }

    /// The next call that a pool has granted or displaced. Ask until `None` after every event.
    pub(super) fn called(&mut self, now: Now) -> Option<WaitReason> {
        let (id, called) = self.shared.called.pop_front()?;
        let flight = self.flights[id as usize].as_mut()?;
        let action = match called {
            Called::Granted => {
                flight.holding.granted(now.mono);
                flight.call.granted(now)
            }
            Called::Displaced => {
                flight.holding.displaced();
                flight.call.waited(now)
            }
        };
        Some(self.follow(id, action, now))
    }

    /// Replies to questions until the call has to wait.
    fn follow(&mut self, id: u32, mut action: Action, now: Now) -> WaitReason {
        let flight = self.flights[id as usize].as_mut().expect("only calls that are not over go on");
        self.moments += 1;
        flight.moment = self.moments;
        let token = CallMoment { id, moment: self.moments };
        self.records.clear();
        loop {
            self.records.extend(flight.call.take_record());
            action = match action {
                Action::Ask(ask) => {
                    let answer = self.shared.answer(id, flight.site, ask, &mut flight.holding, now);
                    flight.call.answered(answer, now)
                }
                Action::Send { number, timeout, .. } => return WaitReason::Result { token, number, timeout },
                Action::Wait { until, .. } => return WaitReason::Until { token, at: until },
                // The token server is not part of these models.
                Action::Refresh => flight.call.refreshed(true, now),
                Action::Finish(finish) => {
                    let limit = flight.holding.refused_by;
                    self.flights[id as usize] = None;
                    self.free.push(id);
                    return WaitReason::Over(Over { id, finish, limit });
                }
            };
        }
    }
}

/// The call, if it is still at this moment.
fn waiting(flights: &mut [Option<Flight>], token: CallMoment) -> Option<&mut Flight> {
    flights.get_mut(token.id as usize)?.as_mut().filter(|flight| flight.moment == token.moment)
}
