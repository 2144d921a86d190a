//! A schedule of probes during a wait: a provider's pause or a key's cooldown is tried once before its end.

use crate::time::{Mono, Nanos};

/// The longest pause of an endpoint, whatever its provider asks for.
pub const MAX_PAUSE: Nanos = Nanos::from_secs(3_600);

/// After a response to a probe, no other pause begins for this time, unless the pause that the probe ended would have been over sooner.
pub const MAX_DISPROVED: Nanos = Nanos::from_secs(60);

/// The time until the first probe. A refusal that concerned one path holds up the others for no longer than this.
pub const FIRST_GAP: Nanos = Nanos::from_millis(50);

/// The next probe of a wait, and its distance from the one before. Each gap is twice as long as the last, so that a wait of any length is
/// probed a few times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Probing {
    at: Mono,
    gap: Nanos,
}

impl Probing {
    /// No probe before the end.
    pub const NEVER: Self = Self { at: Mono::MAX, gap: Nanos::ZERO };

    /// The schedule of a wait that begins now and lasts for `length`.
    #[must_use]
    pub fn of(length: Nanos, now: Mono) -> Self {
        let gap = FIRST_GAP.min(length);
        Self { at: now + gap, gap }
    }

    /// A schedule that is kept elsewhere: the next probe comes in `gap`.
    #[must_use]
    pub fn after(gap: Nanos, now: Mono) -> Self {
        Self { at: now + gap, gap }
    }

    #[must_use]
    pub const fn is_due(self, now: Mono) -> bool {
        now.0 >= self.at.0
    }

    /// A probe is sent now.
    pub fn sent(&mut self, now: Mono) {
        self.gap = self.gap.times(2);
        self.at = now + self.gap;
    }

    /// The probe that was due was not sent: the next call may be one.
    pub fn returned(&mut self, now: Mono) {
        if *self != Self::NEVER {
            self.at = self.at.min(now);
            self.gap = Nanos((self.gap.0 / 2).max(FIRST_GAP.0));
        }
    }

    /// When the next probe is due and the gap before it; `None` where there is none.
    #[must_use]
    pub fn numbers(self) -> Option<(u64, u64)> {
        (self != Self::NEVER).then_some((self.at.0, self.gap.0))
    }

    #[must_use]
    pub fn from_numbers(numbers: Option<(u64, u64)>) -> Self {
        numbers.map_or(Self::NEVER, |(at, gap)| Self { at: Mono(at), gap: Nanos(gap) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probes(seconds: u64) -> Vec<u64> {
        let mut probing = Probing::of(Nanos::from_secs(seconds), Mono(0));
        let ms = (0..seconds * 1_000).filter(|ms| {
            let now = Mono(0) + Nanos::from_millis(*ms);
            let due = probing.is_due(now);
            if due {
                probing.sent(now);
            }
            due
        });
        ms.collect()
    }

    #[test]
    fn a_wait_is_probed_a_few_times_however_long_it_is() {
        assert_eq!(probes(1), [50, 150, 350, 750]);
        assert_eq!(probes(30), [50, 150, 350, 750, 1_550, 3_150, 6_350, 12_750, 25_550]);
        assert_eq!(probes(3_600).len(), 16);
    }

    #[test]
    fn a_probe_that_was_not_sent_is_due_again() {
        let mut probing = Probing::of(Nanos::from_secs(8), Mono(0));
        let now = Mono(500_000_000);
        probing.sent(now);
        assert!(!probing.is_due(now));
        probing.returned(now);
        assert!(probing.is_due(now));
        let mut never = Probing::NEVER;
        never.returned(now);
        assert!(!never.is_due(now));
    }
}
