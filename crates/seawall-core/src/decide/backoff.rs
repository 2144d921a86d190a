//! Computes the wait before the next retry. Pure arithmetic on `policy::Backoff`: knows nothing of hints, deadlines or budgets. Every kind
//! that has jitter keeps its spread at the cap, where libraries tend to emit one value.

use crate::policy::{Backoff, BackoffKind};
use crate::rng::Rng;
use crate::time::Nanos;

const MILLION: u64 = 1_000_000;
/// About two and a half hours, more than any configured wait: times two million it still fits 64 bits.
const SMALL: u64 = 1 << 43;

impl Backoff {
    /// `min(cap, base × factorⁿ)`, with `n = 0` for the first retry.
    #[must_use]
    #[inline]
    pub fn ceiling(&self, n: u32) -> Nanos {
        if self.factor == 2.0 {
            // By far the most common factor.
            return Nanos(self.base.0.saturating_mul(1u64.checked_shl(n).unwrap_or(u64::MAX))).min(self.cap);
        }
        if n == 0 || self.factor == 1.0 {
            return self.base.min(self.cap);
        }
        self.base.scale(power(self.factor, n)).min(self.cap)
    }

    /// The least and the most that [`draw`](Self::draw) can give.
    #[must_use]
    #[inline]
    pub fn range(&self, n: u32, prev: Nanos) -> (Nanos, Nanos) {
        match self.kind {
            BackoffKind::Exponential => {
                let wait = self.ceiling(n);
                (wait, wait)
            }
            BackoffKind::FullJitter => (Nanos::ZERO, self.ceiling(n)),
            BackoffKind::EqualJitter => {
                let most = self.ceiling(n);
                (Nanos(most.0 / 2), most)
            }
            BackoffKind::Decorrelated => {
                let most = prev.max(self.base).times(3).min(self.cap);
                (self.base.min(most), most)
            }
            BackoffKind::PercentJitter => self.around(n),
        }
    }

    /// Draws the wait before retry `n`; `prev` is the previous wait of this call, zero at first.
    #[inline]
    pub fn draw(&self, n: u32, prev: Nanos, rng: &mut Rng) -> Nanos {
        let (least, most) = match self.kind {
            BackoffKind::Exponential => return self.ceiling(n),
            BackoffKind::PercentJitter => {
                let centre = self.ceiling(n).0;
                if let Some(spread) = self.spread(centre) {
                    return Nanos(centre - spread + rng.up_to(2 * spread));
                }
                self.around_cap(centre)
            }
            BackoffKind::FullJitter | BackoffKind::EqualJitter | BackoffKind::Decorrelated => self.range(n, prev),
        };
        Nanos(least.0 + rng.up_to(most.0 - least.0))
    }

    /// The centre stays below the cap by the jitter's share, so that the spread is complete there too.
    #[inline]
    fn around(&self, n: u32) -> (Nanos, Nanos) {
        let centre = self.ceiling(n).0;
        self.spread(centre).map_or_else(|| self.around_cap(centre), |spread| (Nanos(centre - spread), Nanos(centre + spread)))
    }

    /// The distance to either side of the centre, if the whole spread is below the cap.
    #[inline]
    fn spread(&self, centre: u64) -> Option<u64> {
        let share = u64::from(self.jitter.0);
        if centre >= SMALL || share > MILLION {
            return None;
        }
        let spread = centre * share / MILLION;
        (centre + spread <= self.cap.0).then_some(spread)
    }

    /// The general case: the spread would exceed the cap, or the numbers are too large for the short way.
    #[cold]
    fn around_cap(&self, centre: u64) -> (Nanos, Nanos) {
        let share = u64::from(self.jitter.0).min(MILLION);
        let spread = part(centre, share);
        if let Some(most) = centre.checked_add(spread).filter(|most| *most <= self.cap.0) {
            return (Nanos(centre - spread), Nanos(most));
        }
        let whole = MILLION + share;
        let centre = ratio(self.cap.0, MILLION, whole);
        let spread = part(centre, share);
        (Nanos(centre - spread), Nanos(centre + spread))
    }
}

/// A length's share in millionths, without leaving 64 bits.
const fn part(of: u64, share: u64) -> u64 {
    ratio(of, share, MILLION)
}

/// `of × top / bottom` without overflow; `top` and `bottom` are at most two million.
const fn ratio(of: u64, top: u64, bottom: u64) -> u64 {
    if of < SMALL { of * top / bottom } else { of / bottom * top + of % bottom * top / bottom }
}

/// By squaring, with multiplications only: `powi` may differ between platforms, and a seed must replay everywhere.
fn power(factor: f64, mut n: u32) -> f64 {
    let mut result = 1.0;
    let mut square = factor;
    loop {
        if n & 1 == 1 {
            result *= square;
        }
        n >>= 1;
        if n == 0 {
            return result;
        }
        square *= square;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Share;

    fn backoff(kind: BackoffKind, base_ms: u64, factor: f64, cap: Nanos) -> Backoff {
        Backoff { kind, base: Nanos::from_millis(base_ms), factor, cap, jitter: Share::percent(25) }
    }

    fn ceilings_ms(policy: Backoff, count: u32) -> Vec<u64> {
        (0..count).map(|n| policy.ceiling(n).as_millis()).collect()
    }

    #[test]
    fn exponential_grows_by_its_factor() {
        let kind = BackoffKind::Exponential;
        assert_eq!(ceilings_ms(backoff(kind, 1000, 2.0, Nanos::MAX), 3), [1000, 2000, 4000]);
        assert_eq!(ceilings_ms(backoff(kind, 100, 3.0, Nanos::MAX), 3), [100, 300, 900]);
        assert_eq!(ceilings_ms(backoff(kind, 500, 1.5, Nanos::MAX), 3), [500, 750, 1125]);
        assert_eq!(ceilings_ms(backoff(kind, 2000, 2.0, Nanos::from_secs(30)), 5), [2000, 4000, 8000, 16000, 30000]);
    }

    #[test]
    fn factor_one_is_a_constant_wait() {
        assert_eq!(ceilings_ms(backoff(BackoffKind::Exponential, 1000, 1.0, Nanos::MAX), 3), [1000, 1000, 1000]);
    }

    #[test]
    fn base_zero_never_waits() {
        let mut rng = Rng::seeded(1);
        for &kind in BackoffKind::ALL {
            let policy = backoff(kind, 0, 2.0, Nanos::from_secs(30));
            for n in [0, 1, 7, u32::MAX] {
                assert_eq!(policy.draw(n, Nanos::ZERO, &mut rng), Nanos::ZERO, "{kind} {n}");
            }
        }
    }

    #[test]
    fn a_base_above_the_cap_waits_for_the_cap() {
        let mut rng = Rng::seeded(1);
        for kind in [BackoffKind::Exponential, BackoffKind::Decorrelated] {
            assert_eq!(backoff(kind, 10_000, 2.0, Nanos::from_secs(4)).draw(0, Nanos::ZERO, &mut rng), Nanos::from_secs(4));
        }
    }

    #[test]
    fn growth_saturates_instead_of_overflowing() {
        let policy = backoff(BackoffKind::Exponential, 1000, 1e10, Nanos::MAX);
        let waits: Vec<Nanos> = (0..4).map(|n| policy.ceiling(n)).collect();
        assert_eq!(waits, [Nanos::from_secs(1), Nanos::from_secs(10_000_000_000), Nanos::MAX, Nanos::MAX]);
        assert_eq!(waits.into_iter().fold(Nanos::ZERO, |sum, wait| sum + wait), Nanos::MAX);
        assert_eq!(policy.ceiling(u32::MAX), Nanos::MAX);
    }

    #[test]
    fn waits_stay_within_the_cap_however_many_retries_there_were() {
        let mut rng = Rng::seeded(3);
        let policy = backoff(BackoffKind::FullJitter, 2000, 2.0, Nanos::from_secs(30));
        for n in [1, 2, 3, 4, 10, 100, 1000, 1024, 1025] {
            let wait = policy.draw(n, Nanos::ZERO, &mut rng);
            assert!(wait > Nanos::ZERO && wait <= Nanos::from_secs(30), "{n}: {wait}");
        }
    }

    #[test]
    fn percent_jitter_spreads_around_the_ceiling() {
        let policy = backoff(BackoffKind::PercentJitter, 1000, 1.0, Nanos::MAX);
        assert_eq!(policy.range(0, Nanos::ZERO), (Nanos::from_millis(750), Nanos::from_millis(1250)));
    }

    #[test]
    fn percent_jitter_keeps_its_spread_below_the_cap() {
        let policy = backoff(BackoffKind::PercentJitter, 30_000, 2.0, Nanos::from_secs(1800));
        let (least, most) = policy.range(40, Nanos::ZERO);
        assert_eq!((least, most), (Nanos::from_secs(1080), Nanos::from_secs(1800)));
    }

    #[test]
    fn equal_jitter_waits_at_least_half() {
        let policy = backoff(BackoffKind::EqualJitter, 1000, 2.0, Nanos::from_secs(30));
        assert_eq!(policy.range(2, Nanos::ZERO), (Nanos::from_secs(2), Nanos::from_secs(4)));
    }

    #[test]
    fn decorrelated_starts_from_base_and_triples_the_previous_wait() {
        let policy = backoff(BackoffKind::Decorrelated, 500, 2.0, Nanos::from_secs(60));
        assert_eq!(policy.range(0, Nanos::ZERO), (Nanos::from_millis(500), Nanos::from_millis(1500)));
        assert_eq!(policy.range(1, Nanos::from_secs(2)), (Nanos::from_millis(500), Nanos::from_secs(6)));
        assert_eq!(policy.range(9, Nanos::from_secs(60)), (Nanos::from_millis(500), Nanos::from_secs(60)));
        assert_eq!(policy.range(9, Nanos::MAX), (Nanos::from_millis(500), Nanos::from_secs(60)));
    }

    #[test]
    fn the_same_seed_draws_the_same_waits() {
        let policy = backoff(BackoffKind::Decorrelated, 500, 2.0, Nanos::from_secs(60));
        let draws = |seed| {
            let mut rng = Rng::seeded(seed);
            (0..20).map(|n| policy.draw(n, Nanos::from_secs(1), &mut rng)).collect::<Vec<_>>()
        };
        assert_eq!(draws(1), draws(1));
        assert_ne!(draws(1), draws(2));
    }

    #[test]
    fn every_jitter_keeps_its_spread_at_the_cap() {
        for &kind in BackoffKind::ALL.iter().filter(|kind| **kind != BackoffKind::Exponential) {
            let policy = backoff(kind, 500, 2.0, Nanos::from_secs(60));
            let mut rng = Rng::seeded(9);
            let mut waits: Vec<u64> = (0..1000).map(|_| policy.draw(50, policy.cap, &mut rng).0).collect();
            waits.sort_unstable();
            waits.dedup();
            assert!(waits.len() >= 900, "{kind}: {} distinct", waits.len());
            assert!((waits[waits.len() - 1] - waits[0]) * 4 >= waits[waits.len() - 1], "{kind} is too narrow");
        }
    }
}
