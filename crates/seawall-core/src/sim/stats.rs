//! Running means, of single values and of whole time series.

/// The mean of the values added so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mean {
    sum: f64,
    count: u32,
}

impl Mean {
    pub fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// `None` without values: the mean of nothing is not zero.
    #[must_use]
    pub fn value(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }

    /// For quantities that every run has.
    pub(super) fn or_zero(&self) -> f64 {
        self.value().unwrap_or(0.0)
    }
}

/// Adds one run's counts to the sums of all runs; the sums grow to the longest run.
pub(super) fn accumulate(sums: &mut Vec<f64>, counts: &[u32]) {
    if sums.len() < counts.len() {
        sums.resize(counts.len(), 0.0);
    }
    for (sum, &count) in sums.iter_mut().zip(counts) {
        *sum += f64::from(count);
    }
}

/// Turns sums over `runs` into means.
pub(super) fn divide(sums: &mut [f64], runs: u32) {
    for sum in sums {
        *sum /= f64::from(runs.max(1));
    }
}

/// Counts one event in the bucket that holds it.
pub(super) fn count_at(buckets: &mut Vec<u32>, index: u64) {
    let Ok(index) = usize::try_from(index) else { return };
    if buckets.len() <= index {
        buckets.resize(index + 1, 0);
    }
    buckets[index] += 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_nothing_is_not_zero() {
        let mut mean = Mean::default();
        assert_eq!(mean.value(), None);
        mean.add(1.0);
        mean.add(2.0);
        assert_eq!((mean.value(), mean.count()), (Some(1.5), 2));
    }

    #[test]
    fn series_of_different_lengths_are_averaged_over_all_runs() {
        let mut sums = Vec::new();
        accumulate(&mut sums, &[4]);
        accumulate(&mut sums, &[2, 6]);
        divide(&mut sums, 2);
        assert_eq!(sums, [3.0, 3.0]);
    }
}
