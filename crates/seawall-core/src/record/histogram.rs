//! Durations, counted by size: thirty-two steps for each doubling, so that a quantile is at most three per cent too high. Two histograms
//! merge into the histogram of both sets of samples.

use crate::time::Nanos;

/// Bits of a value that select a step within its doubling.
const BITS: u32 = 5;
const STEPS: u64 = 1 << BITS;

/// Counts by step, sorted; empty steps take no memory.
#[derive(Clone, Debug, Default)]
pub struct StepHistogram {
    counts: HistogramCounts,
    count: u64,
}

#[derive(Clone, Debug)]
enum HistogramCounts {
    Open(Vec<(u16, u64)>),
    /// Distances between steps, and counts, as variable-length integers: a sixth of the memory, for histograms that are kept.
    Settled(Box<[u8]>),
}

impl Default for HistogramCounts {
    fn default() -> Self {
        Self::Open(Vec::new())
    }
}

impl PartialEq for StepHistogram {
    fn eq(&self, other: &Self) -> bool {
        self.steps().eq(other.steps())
    }
}

impl Eq for StepHistogram {}

impl StepHistogram {
    pub fn add(&mut self, length: Nanos) {
        self.add_many(step(length.0 / 1000), 1);
    }

    pub fn merge(&mut self, other: &Self) {
        other.steps().for_each(|(step, count)| self.add_many(step, count));
    }

    fn add_many(&mut self, step: u16, count: u64) {
        if self.is_settled() {
            self.counts = HistogramCounts::Open(self.steps().collect());
        }
        let HistogramCounts::Open(steps) = &mut self.counts else { return };
        self.count = self.count.saturating_add(count);
        match steps.binary_search_by_key(&step, |(step, _)| *step) {
            Ok(at) => steps[at].1 = steps[at].1.saturating_add(count),
            Err(at) => steps.insert(at, (step, count)),
        }
    }

    /// Compacts a histogram that expects no more samples. A later sample expands it again.
    pub fn settle(&mut self) {
        if let HistogramCounts::Open(steps) = &self.counts {
            let (mut bytes, mut last) = (Vec::with_capacity(4 * steps.len()), 0);
            for (step, count) in steps {
                put(&mut bytes, u64::from(step - last));
                put(&mut bytes, *count);
                last = *step;
            }
            self.counts = HistogramCounts::Settled(bytes.into());
        }
    }

    #[must_use]
    pub const fn is_settled(&self) -> bool {
        matches!(self.counts, HistogramCounts::Settled(_))
    }

    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Step and count of all samples, in order.
    pub fn steps(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        let (open, mut settled): (&[(u16, u64)], &[u8]) = match &self.counts {
            HistogramCounts::Open(steps) => (steps, &[]),
            HistogramCounts::Settled(bytes) => (&[], bytes),
        };
        let mut last = 0u16;
        let unpacked = std::iter::from_fn(move || {
            last = last.checked_add(take(&mut settled)?.try_into().ok()?)?;
            Some((last, take(&mut settled)?))
        });
        open.iter().copied().chain(unpacked)
    }

    /// Restores a stored histogram.
    #[must_use]
    pub fn from_steps(steps: impl IntoIterator<Item = (u16, u64)>) -> Self {
        let mut histogram = Self::default();
        steps.into_iter().for_each(|(step, count)| histogram.add_many(step, count));
        histogram
    }

    /// The duration that `per_mille` of a thousand samples do not exceed; `None` without samples.
    #[must_use]
    pub fn quantile(&self, per_mille: u64) -> Option<Nanos> {
        let rank = u128::from(self.count) * u128::from(per_mille.min(1000));
        let rank = rank.div_ceil(1000).max(1);
        let mut below = 0u128;
        let found = self.steps().find(|(_, count)| {
            below += u128::from(*count);
            below >= rank
        });
        found.map(|(step, _)| Nanos(highest(step).saturating_mul(1000)))
    }
}

/// Seven bits a byte, the lowest first; the highest bit says that more bytes follow.
fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push((value & 0x7f) as u8);
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let (mut value, mut shift) = (0, 0);
    loop {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
        shift += 7;
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
    fn one_that_has_settled_takes_little_room_and_is_the_same() {
        let mut rng = Rng::seeded(3);
        let (mut histogram, mut before) = (StepHistogram::default(), StepHistogram::default());
        for round in 0..3 {
            for i in 0..30_000 {
                let length = Nanos(rng.up_to(1 << (17 + i % 8)));
                histogram.add(length);
                before.add(length);
            }
            histogram.settle();
            assert_eq!((&histogram, histogram.count()), (&before, before.count()), "round {round}");
            assert_eq!([0, 500, 990, 1000].map(|rank| histogram.quantile(rank)), [0, 500, 990, 1000].map(|rank| before.quantile(rank)));
            let HistogramCounts::Settled(bytes) = &histogram.counts else { panic!("it is open") };
            let steps = histogram.steps().count();
            assert!(steps > 100 && bytes.len() < 4 * steps, "{} bytes for {steps} steps", bytes.len());
        }
        let mut merged = StepHistogram::default();
        merged.merge(&histogram);
        merged.merge(&before);
        assert_eq!(merged.count(), 2 * before.count());
    }

    #[test]
    fn the_largest_counts_and_steps_settle_too() {
        let seen = [(0, 1), (1, 127), (2, 128), (1000, u64::MAX / 2), (u16::MAX, 1 << 62)];
        let mut histogram = StepHistogram::from_steps(seen);
        histogram.settle();
        assert!(histogram.steps().eq(seen));
        let mut empty = StepHistogram::default();
        empty.settle();
        assert_eq!((empty.steps().count(), empty.quantile(500)), (0, None));
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
        let (mut all, mut parts) =
            (StepHistogram::default(), [StepHistogram::default(), StepHistogram::default(), StepHistogram::default()]);
        for i in 0..10_000 {
            let length = Nanos(rng.up_to(1 << (10 + i % 25)));
            all.add(length);
            parts[i % 3].add(length);
        }
        let mut merged = StepHistogram::default();
        parts.iter().rev().for_each(|part| merged.merge(part));
        assert_eq!(merged, all);
        assert_eq!(merged.count(), 10_000);
        assert_eq!(StepHistogram::from_steps(all.steps()), all, "and can be kept");
    }

    #[test]
    fn quantiles_are_the_ranked_value_rounded_up_to_its_step() {
        let mut histogram = StepHistogram::default();
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
