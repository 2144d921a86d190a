//! Lengths of time, counted by size: thirty-two steps for each doubling, so that a quantile is at most three per cent too
//! high. Two histograms merge into exactly the one that would have seen both.

use crate::time::Nanos;

/// Bits of a value that tell steps apart.
const BITS: u32 = 5;
const STEPS: u64 = 1 << BITS;

/// Counts by step, sorted; steps that nobody saw take no room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    steps: Vec<(u16, u64)>,
    count: u64,
}

impl Histogram {
    pub fn add(&mut self, length: Nanos) {
        self.add_many(step(length.0 / 1000), 1);
    }

    pub fn merge(&mut self, other: &Self) {
        for (step, count) in &other.steps {
            self.add_many(*step, *count);
        }
    }

    fn add_many(&mut self, step: u16, count: u64) {
        self.count = self.count.saturating_add(count);
        match self.steps.binary_search_by_key(&step, |(step, _)| *step) {
            Ok(at) => self.steps[at].1 = self.steps[at].1.saturating_add(count),
            Err(at) => self.steps.insert(at, (step, count)),
        }
    }

    /// Gives back the room that it grew by, where no more is expected.
    pub fn settle(&mut self) {
        self.steps.shrink_to_fit();
    }

    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Step and count of everything seen, for whoever keeps it.
    #[must_use]
    pub fn steps(&self) -> &[(u16, u64)] {
        &self.steps
    }

    /// What was kept, back again.
    #[must_use]
    pub fn from_steps(steps: impl IntoIterator<Item = (u16, u64)>) -> Self {
        let mut histogram = Self::default();
        steps.into_iter().for_each(|(step, count)| histogram.add_many(step, count));
        histogram
    }

    /// The length that so many of a thousand do not exceed; none where nothing was seen.
    #[must_use]
    pub fn quantile(&self, per_mille: u64) -> Option<Nanos> {
        let rank = u128::from(self.count) * u128::from(per_mille.min(1000));
        let rank = rank.div_ceil(1000).max(1);
        let mut below = 0u128;
        let found = self.steps.iter().find(|(_, count)| {
            below += u128::from(*count);
            below >= rank
        });
        found.map(|(step, _)| Nanos(highest(*step).saturating_mul(1000)))
    }
}

/// Small values have a step of their own; above, each doubling has as many steps as the one before.
fn step(micros: u64) -> u16 {
    let shift = (64 - micros.leading_zeros()).saturating_sub(BITS + 1);
    let step = u64::from(shift) * STEPS + (micros >> shift);
    u16::try_from(step).unwrap_or(u16::MAX)
}

/// The largest value of a step.
fn highest(step: u16) -> u64 {
    let step = u64::from(step);
    let shift = (step / STEPS).saturating_sub(1);
    let within = step - shift * STEPS;
    ((u128::from(within + 1) << shift) - 1).try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn one_that_has_settled_takes_no_more_room_than_it_needs_and_goes_on() {
        let mut histogram = Histogram::default();
        (1..=33).for_each(|step| histogram.add(Nanos::from_millis(1 << (step % 11) | step)));
        let before = histogram.clone();
        histogram.settle();
        assert!(histogram.steps.capacity() < histogram.steps.len() + 4, "{}", histogram.steps.capacity());
        assert_eq!(histogram, before);
        histogram.add(Nanos::from_secs(9));
        assert_eq!(histogram.count(), before.count() + 1);
    }

    #[test]
    fn every_value_lies_in_its_step_and_steps_are_narrow() {
        for micros in (0..200_000).chain((0..63).map(|bit| 1 << bit)).chain([u64::MAX]) {
            let top = highest(step(micros));
            assert!(top >= micros && u128::from(top - micros) * 32 <= u128::from(micros), "{micros} in a step up to {top}");
        }
        assert!((1..200_000).all(|micros| step(micros) == step(micros - 1) || step(micros) == step(micros - 1) + 1), "none is left out");
    }

    #[test]
    fn merging_gives_what_one_would_have_seen() {
        let mut rng = Rng::seeded(7);
        let (mut all, mut parts) = (Histogram::default(), [Histogram::default(), Histogram::default(), Histogram::default()]);
        for i in 0..10_000 {
            let length = Nanos(rng.up_to(1 << (10 + i % 25)));
            all.add(length);
            parts[i % 3].add(length);
        }
        let mut merged = Histogram::default();
        parts.iter().rev().for_each(|part| merged.merge(part));
        assert_eq!(merged, all);
        assert_eq!(merged.count(), 10_000);
        assert_eq!(Histogram::from_steps(all.steps().iter().copied()), all, "and can be kept");
    }

    #[test]
    fn quantiles_are_the_ranked_value_rounded_up_to_its_step() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(500), None);
        let mut values: Vec<u64> = (1..=1000u64).map(|n| n * n).collect();
        values.iter().for_each(|micros| histogram.add(Nanos(micros * 1000)));
        values.sort_unstable();
        for (per_mille, rank) in [(0, 1), (1, 1), (500, 500), (950, 950), (999, 999), (1000, 1000), (5000, 1000)] {
            let exact = values[rank - 1];
            assert_eq!(histogram.quantile(per_mille), Some(Nanos(highest(step(exact)) * 1000)), "{per_mille}");
        }
    }
}
