//! Roll-ups: what happened in a quarter of an hour at one endpoint, as numbers that can be added exactly.

use seawall_core::time::Wall;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    pub attempts: u64,
    pub succeeded: u64,
    pub transient: u64,
    pub permanent: u64,
    pub ambiguous: u64,
    pub quota: u64,
    pub auth: u64,
    /// Calls that ended well.
    pub successes: u64,
    /// Calls that did not.
    pub failures: u64,
    pub retries: u64,
    pub rejected: u64,
    pub circuit_open_ms: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, more: &Self) {
        let Self {
            attempts,
            succeeded,
            transient,
            permanent,
            ambiguous,
            quota,
            auth,
            successes,
            failures,
            retries,
            rejected,
            circuit_open_ms,
        } = more;
        let pairs = [
            (&mut self.attempts, attempts),
            (&mut self.succeeded, succeeded),
            (&mut self.transient, transient),
            (&mut self.permanent, permanent),
            (&mut self.ambiguous, ambiguous),
            (&mut self.quota, quota),
            (&mut self.auth, auth),
            (&mut self.successes, successes),
            (&mut self.failures, failures),
            (&mut self.retries, retries),
            (&mut self.rejected, rejected),
            (&mut self.circuit_open_ms, circuit_open_ms),
        ];
        for (sum, more) in pairs {
            *sum = sum.saturating_add(*more);
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollup {
    pub start_at: Wall,
    pub upstream: String,
    pub endpoint: String,
    pub counts: Counts,
    pub latencies: Latencies,
}

/// How often which latency: eight buckets for each doubling, so that a quantile is at most an eighth too high.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latencies(std::collections::BTreeMap<u16, u64>);

impl Latencies {
    pub fn count(&mut self, latency_us: u64) {
        *self.0.entry(bucket(latency_us)).or_default() += 1;
    }

    pub fn add(&mut self, more: &Self) {
        for (bucket, count) in &more.0 {
            let sum = self.0.entry(*bucket).or_default();
            *sum = sum.saturating_add(*count);
        }
    }

    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// The upper end of the bucket that this share of all latencies does not exceed.
    #[must_use]
    pub fn quantile_us(&self, per_mille: u64) -> Option<u64> {
        let rank = self.total().checked_mul(per_mille)?.div_ceil(1000).max(1);
        let mut below = 0;
        self.0.iter().find_map(|(bucket, count)| {
            below += count;
            (below >= rank).then(|| upper_end(*bucket))
        })
    }

    /// Pairs of a bucket and its count, in order.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|(bucket, count)| bucket.to_le_bytes().into_iter().chain(count.to_le_bytes())).collect()
    }

    /// `None` when these bytes were not written by `to_bytes`.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (pairs, rest) = bytes.as_chunks::<10>();
        let pair = |[a, b, count @ ..]: &[u8; 10]| (u16::from_le_bytes([*a, *b]), u64::from_le_bytes(*count));
        rest.is_empty().then(|| Self(pairs.iter().map(pair).collect()))
    }
}

fn bucket(us: u64) -> u16 {
    let doubling = us.max(8).ilog2() - 3;
    let within = (us >> doubling).min(15);
    u16::try_from(u64::from(doubling) * 8 + within).unwrap_or(u16::MAX)
}

fn upper_end(bucket: u16) -> u64 {
    let bucket = u64::from(bucket);
    if bucket < 16 {
        return bucket;
    }
    let doubling = bucket / 8 - 1;
    let within = bucket - doubling * 8;
    ((within + 1) << doubling) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_ends_where_the_next_begins() {
        for us in (0..10_000).chain([1 << 20, (1 << 32) + 12_345, 3_600_000_000]) {
            let end = upper_end(bucket(us));
            assert!(end >= us && end - us <= us / 8, "{us} is in a bucket that ends at {end}");
            assert_eq!(bucket(end), bucket(us));
            assert_eq!(bucket(end + 1), bucket(us) + 1);
        }
    }

    #[test]
    fn adding_is_as_if_all_had_been_counted_together() {
        let (mut one, mut two, mut both) = (Latencies::default(), Latencies::default(), Latencies::default());
        for us in 0..1000 {
            (if us % 3 == 0 { &mut one } else { &mut two }).count(us * us);
            both.count(us * us);
        }
        one.add(&two);
        assert_eq!(one, both);
        assert_eq!(Latencies::from_bytes(&both.to_bytes()), Some(both.clone()));
        assert_eq!(Latencies::from_bytes(&[1]), None);
        let median = both.quantile_us(500).unwrap();
        assert!((499 * 499..=500 * 500 * 9 / 8).contains(&median), "{median}");
        assert_eq!(Latencies::default().quantile_us(500), None);
    }
}
