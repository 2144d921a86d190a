//! An endpoint's recorded results by time. Results beyond a call's own recording are drawn from these.

use super::log::{Recorded, RecordedCall, RecordedLog};
use crate::rng::Rng;
use crate::time::Wall;

const BUCKET_MS: i64 = 10_000;

/// Results in the order of their buckets, for binary search.
#[derive(Debug, Default)]
struct Sorted(Vec<(i64, Recorded)>);

#[derive(Debug)]
pub(super) struct Behaviour {
    /// Indexed by the log's endpoints.
    endpoints: Vec<Sorted>,
    upstreams: Vec<Sorted>,
    upstream_of: Vec<usize>,
}

impl Behaviour {
    pub(super) fn of(log: &RecordedLog) -> Self {
        let mut names: Vec<&str> = Vec::new();
        let mut place = |upstream| {
            names.iter().position(|name| *name == upstream).unwrap_or_else(|| {
                names.push(upstream);
                names.len() - 1
            })
        };
        let upstream_of: Vec<usize> = log.endpoints.iter().map(|(upstream, _)| place(upstream.as_str())).collect();
        let mut endpoints: Vec<Sorted> = log.endpoints.iter().map(|_| Sorted::default()).collect();
        let mut upstreams: Vec<Sorted> = names.iter().map(|_| Sorted::default()).collect();
        for call in &log.calls {
            for recorded in &call.results {
                let entry = (bucket(recorded.sent), *recorded);
                endpoints[call.endpoint].0.push(entry);
                upstreams[upstream_of[call.endpoint]].0.push(entry);
            }
        }
        for sorted in endpoints.iter_mut().chain(&mut upstreams) {
            sorted.0.sort_by_key(|(bucket, _)| *bucket);
        }
        Self { endpoints, upstreams, upstream_of }
    }

    pub(super) fn knows(&self, call: &RecordedCall) -> bool {
        !self.upstreams[self.upstream_of[call.endpoint]].0.is_empty()
    }

    /// Draws one of the results of the same ten seconds, or of the nearest ten seconds that have any; of the upstream if the endpoint
    /// itself has none.
    pub(super) fn draw(&self, call: &RecordedCall, now: Wall, rng: &mut Rng) -> Option<Recorded> {
        let own = &self.endpoints[call.endpoint];
        let sorted = if own.0.is_empty() { &self.upstreams[self.upstream_of[call.endpoint]] } else { own };
        sorted.draw(bucket(now), rng)
    }
}

impl Sorted {
    fn draw(&self, wanted: i64, rng: &mut Rng) -> Option<Recorded> {
        let after = self.0.partition_point(|(bucket, _)| *bucket < wanted);
        let (later, earlier) = (self.0.get(after), after.checked_sub(1).and_then(|before| self.0.get(before)));
        let nearest = match (earlier, later) {
            (Some((earlier, _)), Some((later, _))) if later - wanted > wanted - earlier => *earlier,
            (_, Some((later, _))) => *later,
            (Some((earlier, _)), None) => *earlier,
            (None, None) => return None,
        };
        let from = self.0.partition_point(|(bucket, _)| *bucket < nearest);
        let to = self.0.partition_point(|(bucket, _)| *bucket <= nearest);
        let chosen = rng.between(from as u64, to as u64 - 1);
        self.0.get(usize::try_from(chosen).unwrap_or(from)).map(|(_, recorded)| *recorded)
    }
}

fn bucket(at: Wall) -> i64 {
    at.0.div_euclid(BUCKET_MS)
}
