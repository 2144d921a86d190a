//! Roll-ups: counts of one endpoint over 15 minutes, by one process. A row has one writer, which writes it whole, so a repeated write
//! changes nothing. Readers add up the rows of all writers.

use seawall_core::id::CallId;
use seawall_core::record::histogram::StepHistogram;
use seawall_core::record::rollup::Rollup;
use seawall_core::time::Wall;

/// Maximum rows per query: a week of a hundred endpoints.
pub const MAX_ROLLUPS: usize = 70_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RollupRow {
    pub start_at: Wall,
    pub upstream: String,
    pub endpoint: String,
    /// The process that wrote it.
    pub writer: CallId,
    pub rollup: Rollup,
}

/// Encodes pairs of a step and its count, in order.
pub(crate) fn to_bytes(latency: &StepHistogram) -> Vec<u8> {
    latency.steps().flat_map(|(step, count)| step.to_le_bytes().into_iter().chain(count.to_le_bytes())).collect()
}

/// Returns `None` if these bytes were not written by `to_bytes`.
pub(crate) fn from_bytes(bytes: &[u8]) -> Option<StepHistogram> {
    let (pairs, rest) = bytes.as_chunks::<10>();
    let pair = |[a, b, count @ ..]: &[u8; 10]| (u16::from_le_bytes([*a, *b]), u64::from_le_bytes(*count));
    rest.is_empty().then(|| StepHistogram::from_steps(pairs.iter().map(pair)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_core::time::Nanos;

    #[test]
    fn latencies_come_back_as_they_were() {
        let mut latency = StepHistogram::default();
        (0..1000).for_each(|n| latency.add(Nanos(n * n * 1000)));
        assert_eq!(from_bytes(&to_bytes(&latency)), Some(latency));
        assert_eq!(from_bytes(&[]), Some(StepHistogram::default()));
        assert_eq!(from_bytes(&[1]), None);
    }
}
