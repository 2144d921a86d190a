//! A breaker as plain numbers, for state that is kept elsewhere: shared across instances, or in a snapshot on disk.

use super::breaker::BreakerCell;
use super::phase::{BreakerPhase, Probes};
use super::window::{BucketCounts, SLOTS, SlidingWindow};
use crate::policy::Share;
use crate::time::{Mono, Nanos};
use serde::{Deserialize, Serialize};

/// Instants are those of the breaker's own clock; [`BreakerData::on`] converts them to another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BreakerData {
    pub phase: PhaseData,
    pub generation: u32,
    pub consecutive: u32,
    /// A shadow breaker has reported that it would be open.
    pub crossed: bool,
    pub opened_for: u64,
    pub window: WindowData,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PhaseData {
    #[default]
    Closed,
    Ramping {
        since: u64,
        credit: u32,
    },
    Open {
        since: u64,
        until: u64,
        length: u64,
    },
    HalfOpen {
        /// When each leased probe expires; `None` for a free slot.
        probes: Vec<Option<u64>>,
        successes: u32,
        length: u64,
    },
    ForcedOpen {
        since: u64,
    },
    ForcedClosed,
}

/// Calls, failed ones and slow ones.
pub type WindowCounts = [u32; 3];

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowData {
    pub sum: WindowCounts,
    pub filling: WindowCounts,
    pub slots: [WindowCounts; SLOTS],
    pub slot_end: u64,
    pub slot: u64,
    pub current: u8,
}

impl BreakerData {
    /// The same breaker on another clock: `instant` converts moments, `length` converts spans.
    #[must_use]
    pub fn on(self, instant: impl Fn(u64) -> u64, length: impl Fn(u64) -> u64) -> Self {
        let phase = match self.phase {
            PhaseData::Closed => PhaseData::Closed,
            PhaseData::Ramping { since, credit } => PhaseData::Ramping { since: instant(since), credit },
            PhaseData::Open { since, until, length: span } => {
                PhaseData::Open { since: instant(since), until: instant(until), length: length(span) }
            }
            PhaseData::HalfOpen { probes, successes, length: span } => {
                let probes = probes.into_iter().map(|probe| probe.map(&instant)).collect();
                PhaseData::HalfOpen { probes, successes, length: length(span) }
            }
            PhaseData::ForcedOpen { since } => PhaseData::ForcedOpen { since: instant(since) },
            PhaseData::ForcedClosed => PhaseData::ForcedClosed,
        };
        let window = WindowData { slot_end: instant(self.window.slot_end), slot: length(self.window.slot), ..self.window };
        Self { phase, opened_for: length(self.opened_for), window, ..self }
    }
}

impl BreakerCell {
    #[must_use]
    pub fn export(&self) -> BreakerData {
        let phase = match &self.phase {
            BreakerPhase::Closed => PhaseData::Closed,
            BreakerPhase::Ramping { since, credit } => PhaseData::Ramping { since: since.0, credit: *credit },
            BreakerPhase::Open { since, until, length } => PhaseData::Open { since: since.0, until: until.0, length: length.0 },
            BreakerPhase::HalfOpen { probes, successes, length } => {
                PhaseData::HalfOpen { probes: probes.export(), successes: *successes, length: length.0 }
            }
            BreakerPhase::ForcedOpen { since } => PhaseData::ForcedOpen { since: since.0 },
            BreakerPhase::ForcedClosed => PhaseData::ForcedClosed,
        };
        BreakerData {
            phase,
            generation: self.generation,
            consecutive: self.consecutive,
            crossed: self.crossed,
            opened_for: self.opened_for.0,
            window: self.window.export(),
        }
    }

    #[must_use]
    pub fn import(data: &BreakerData) -> Self {
        let phase = match &data.phase {
            PhaseData::Closed => BreakerPhase::Closed,
            PhaseData::Ramping { since, credit } => BreakerPhase::Ramping { since: Mono(*since), credit: (*credit).min(Share::WHOLE.0) },
            PhaseData::Open { since, until, length } => {
                BreakerPhase::Open { since: Mono(*since), until: Mono(*until), length: Nanos(*length) }
            }
            PhaseData::HalfOpen { probes, successes, length } => {
                BreakerPhase::HalfOpen { probes: Probes::import(probes), successes: *successes, length: Nanos(*length) }
            }
            PhaseData::ForcedOpen { since } => BreakerPhase::ForcedOpen { since: Mono(*since) },
            PhaseData::ForcedClosed => BreakerPhase::ForcedClosed,
        };
        Self {
            phase,
            generation: data.generation,
            consecutive: data.consecutive,
            crossed: data.crossed,
            window: SlidingWindow::import(&data.window),
            opened_for: Nanos(data.opened_for),
        }
    }
}

impl From<BucketCounts> for WindowCounts {
    fn from(counts: BucketCounts) -> Self {
        [counts.calls, counts.failed, counts.slow]
    }
}

impl From<WindowCounts> for BucketCounts {
    fn from([calls, failed, slow]: WindowCounts) -> Self {
        Self { calls, failed, slow }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::{Admission, BreakerSample, State};
    use crate::policy;

    /// Opens after three failures in a row.
    fn policy() -> policy::BreakerPolicy {
        let config =
            crate::config::load("t", b"[upstreams.a]\nurl = \"https://a.test\"\nbreaker = { consecutive = 3, probes = 2 }").unwrap();
        config.upstreams[0].endpoints[0].policy.breaker
    }

    fn tripped(policy: &policy::BreakerPolicy) -> BreakerCell {
        let mut breaker = BreakerCell::new();
        for n in 0..3 {
            let Admission::Go(permit) = breaker.admit(policy, Nanos(1), Mono(n)) else { panic!("it is closed") };
            breaker.record(policy, permit, BreakerSample::failure(Nanos(1)), Mono(n));
        }
        breaker
    }

    #[test]
    fn a_breaker_survives_the_way_out_and_back() {
        let policy = policy();
        let mut breaker = tripped(&policy);
        let text = serde_json::to_string(&breaker.export()).unwrap();
        let mut back = BreakerCell::import(&serde_json::from_str(&text).unwrap());
        assert_eq!(back.export(), breaker.export());
        let now = Mono(2) + policy.open;
        assert_eq!(back.admit(&policy, Nanos(5), now), breaker.admit(&policy, Nanos(5), now));
        assert_eq!(back.export(), breaker.export(), "half-open, with one probe out");
        assert_eq!(back.state(&policy, now), State::HalfOpen);
    }

    #[test]
    fn a_breaker_moves_to_another_clock() {
        let policy = policy();
        let later = tripped(&policy).export().on(|at| at + 1_000, |span| span);
        assert_eq!(BreakerCell::import(&later).retry_at(&policy, Mono(1_002)), Some(Mono(1_002) + policy.open));
    }
}
