//! The phase of a breaker, with the data of that phase.

use super::breaker::State;
use crate::time::{Mono, Nanos};

#[derive(Clone, Debug)]
pub(super) enum BreakerPhase {
    Closed,
    /// Closed again, but the admitted share still grows. `credit` is in the unit of a share.
    Ramping {
        since: Mono,
        credit: u32,
    },
    Open {
        since: Mono,
        until: Mono,
        length: Nanos,
    },
    HalfOpen {
        probes: Probes,
        successes: u32,
        length: Nanos,
    },
    ForcedOpen {
        since: Mono,
    },
    ForcedClosed,
}

impl BreakerPhase {
    /// The state without regard to probe leases, which need the policy.
    pub(super) fn state(&self, now: Mono) -> State {
        match self {
            Self::Closed | Self::Ramping { .. } | Self::ForcedClosed => State::Closed,
            Self::Open { until, .. } => open_until(*until, now),
            Self::HalfOpen { .. } => State::HalfOpen,
            Self::ForcedOpen { .. } => State::Open,
        }
    }
}

pub(super) fn open_until(until: Mono, now: Mono) -> State {
    if now >= until { State::HalfOpen } else { State::Open }
}

/// The slots of half-open: when each leased probe expires, or `None` for a free slot.
#[derive(Clone, Debug)]
pub(super) struct Probes(Vec<Option<Mono>>);

impl Probes {
    pub(super) fn new(slots: u32) -> Self {
        Self(vec![None; usize::try_from(slots.clamp(1, Self::MAX_PROBES)).unwrap_or(1)])
    }

    /// An upper bound: more concurrent probes would no longer be probing.
    const MAX_PROBES: u32 = 1_000;

    /// Takes a slot that is free, or whose lease has expired.
    pub(super) fn lease(&mut self, expires: Mono, now: Mono) -> Option<u32> {
        let free = self.0.iter().position(|slot| slot.is_none_or(|lease| now >= lease))?;
        self.0[free] = Some(expires);
        u32::try_from(free).ok()
    }

    pub(super) fn release(&mut self, slot: u32) {
        if let Some(leased) = usize::try_from(slot).ok().and_then(|slot| self.0.get_mut(slot)) {
            *leased = None;
        }
    }

    pub(super) fn export(&self) -> Vec<Option<u64>> {
        self.0.iter().map(|slot| slot.map(|expires| expires.0)).collect()
    }

    pub(super) fn import(slots: &[Option<u64>]) -> Self {
        let most = usize::try_from(Self::MAX_PROBES).unwrap_or(usize::MAX);
        let mut slots: Vec<Option<Mono>> = slots.iter().take(most).map(|slot| slot.map(Mono)).collect();
        slots.resize(slots.len().max(1), None);
        Self(slots)
    }

    pub(super) fn first_expiry(&self) -> Option<Mono> {
        self.0.iter().flatten().min().copied()
    }
}
