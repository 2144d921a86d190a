//! An early warning: the retries per success, compared with a recent baseline. Retries hide a failing upstream from its callers for a
//! while; this number does not, so it rises before the success rate falls.

/// The counts of one span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpikeInterval {
    pub retries: u64,
    pub successes: u64,
}

impl SpikeInterval {
    fn ratio(self) -> f64 {
        // Without a success no retry helped: the cost of the next success is at least all of them.
        as_f64(self.retries) / as_f64(self.successes.max(1))
    }
}

/// A change that is worth a notification.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SpikeChange {
    Raised { ratio: f64, baseline: f64 },
    Cleared { ratio: f64, baseline: f64 },
}

/// Spans are equally long; the driver chooses the length, usually ten seconds.
///
/// ```text
///   Learning ── enough spans ──► Calm ── twice above the line ──► Raised ── four times near the baseline ──► Calm
/// ```
#[derive(Clone, Debug, Default)]
pub struct Spike {
    baseline: f64,
    spans: u32,
    /// Consecutive spans that support a change.
    streak: u32,
    raised: bool,
}

/// Spans with less traffic are ignored.
const LEAST: u64 = 20;
/// Spans that make a baseline.
const LEARNING: u32 = 6;
/// A rise counts from this multiple of the baseline on, and from this absolute difference.
const MULTIPLE: f64 = 2.0;
const RISE: f64 = 0.1;
/// The spike is over when the ratio has come back to this share of the way.
const NEAR: f64 = 0.5;
const TO_RAISE: u32 = 2;
const TO_CLEAR: u32 = 4;
/// The share of a new span in the baseline: the last quarter of an hour counts for about two thirds.
const WEIGHT: f64 = 1.0 / 90.0;
/// While raised the baseline moves this much slower: it does not learn an outage as normal, but does learn a new normal after hours.
const SLOWER: f64 = 0.05;

impl Spike {
    pub fn observe(&mut self, span: SpikeInterval) -> Option<SpikeChange> {
        if span.retries + span.successes < LEAST {
            return None;
        }
        let ratio = span.ratio();
        self.spans = self.spans.saturating_add(1);
        if self.spans <= LEARNING {
            self.baseline += (ratio - self.baseline) / f64::from(self.spans);
            return None;
        }
        let line = (self.baseline * MULTIPLE).max(self.baseline + RISE);
        let (speaks, needed) =
            if self.raised { (ratio <= self.baseline + (line - self.baseline) * NEAR, TO_CLEAR) } else { (ratio >= line, TO_RAISE) };
        self.streak = if speaks { self.streak + 1 } else { 0 };
        let baseline = self.baseline;
        if self.streak >= needed {
            self.streak = 0;
            self.raised = !self.raised;
            return Some(if self.raised { SpikeChange::Raised { ratio, baseline } } else { SpikeChange::Cleared { ratio, baseline } });
        }
        // The baseline does not learn from a span that may be the beginning of a spike.
        if self.raised || !speaks {
            let weight = if self.raised { WEIGHT * SLOWER } else { WEIGHT };
            self.baseline += (ratio - self.baseline) * weight;
        }
        None
    }

    #[must_use]
    pub const fn is_raised(&self) -> bool {
        self.raised
    }
}

#[expect(clippy::cast_precision_loss, reason = "a ratio of counts")]
const fn as_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// An upstream that fails each send with probability `p`; `calls` calls with four attempts each.
    fn span(p: f64, calls: u64, rng: &mut Rng) -> (SpikeInterval, u64) {
        let mut span = SpikeInterval::default();
        for _ in 0..calls {
            let sends = (1..=4).find(|_| rng.unit() >= p);
            span.retries += sends.unwrap_or(4) - 1;
            span.successes += u64::from(sends.is_some());
        }
        (span, calls - span.successes)
    }

    #[test]
    fn it_fires_well_before_success_falls() {
        for seed in 0..50 {
            let (mut spike, mut rng) = (Spike::default(), Rng::seeded(seed));
            let (mut raised_at, mut fell_at, mut failures) = (None, None, Vec::new());
            // Ten calm minutes, then failures of single sends grow from one per cent to sixty in twenty minutes.
            for tenth in 0..180u32 {
                let p = if tenth < 60 { 0.01 } else { 0.01 + 0.59 * f64::from(tenth - 60) / 120.0 };
                let (seen, failed) = span(p, 500, &mut rng);
                let turn = spike.observe(seen);
                assert!(turn.is_none() || tenth >= 60, "nothing is said while nothing happens (seed {seed})");
                if turn.is_some() && raised_at.is_none() {
                    raised_at = Some(tenth);
                }
                failures.push(failed);
                let minute: u64 = failures.iter().rev().take(6).sum();
                if fell_at.is_none() && minute * 100 >= 6 * 500 {
                    fell_at = Some(tenth);
                }
            }
            let (raised, fell): (u32, u32) = (raised_at.unwrap(), fell_at.unwrap());
            let failed_before: u64 = failures.iter().take(raised.try_into().unwrap()).sum();
            assert!(
                raised + 18 <= fell,
                "raised at {raised}, one call in a hundred failed in the minute before {fell}: three minutes ahead (seed {seed})"
            );
            assert!(failed_before * 1000 <= u64::from(raised) * 500, "callers had not noticed: {failed_before} failed (seed {seed})");
        }
    }

    #[test]
    fn it_says_so_once_and_takes_it_back_once() {
        let mut spike = Spike::default();
        let mut turns = Vec::new();
        let at = |retries| SpikeInterval { retries, successes: 100 };
        let story = std::iter::repeat_n(5, 20).chain(std::iter::repeat_n(40, 30)).chain([8, 30, 8, 30]).chain(std::iter::repeat_n(6, 10));
        for retries in story {
            turns.extend(spike.observe(at(retries)));
        }
        assert!(matches!(turns[..], [SpikeChange::Raised { .. }, SpikeChange::Cleared { .. }]), "{turns:?}");
        assert!(!spike.is_raised());
    }

    #[test]
    fn one_bad_span_is_no_spike_and_little_traffic_is_none_either() {
        let mut spike = Spike::default();
        for n in 0..100 {
            let span =
                if n % 10 == 9 { SpikeInterval { retries: 300, successes: 100 } } else { SpikeInterval { retries: 1, successes: 100 } };
            assert_eq!(spike.observe(span), None);
            assert_eq!(spike.observe(SpikeInterval { retries: 15, successes: 1 }), None);
        }
    }

    #[test]
    fn an_outage_without_any_success_is_one_too() {
        let mut spike = Spike::default();
        let mut turns = (0..20).filter_map(|n| {
            spike.observe(if n < 10 { SpikeInterval { retries: 0, successes: 100 } } else { SpikeInterval { retries: 90, successes: 0 } })
        });
        assert!(matches!(turns.next(), Some(SpikeChange::Raised { ratio: 90.0, .. })));
    }
}
