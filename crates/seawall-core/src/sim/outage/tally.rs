//! The measures of a run: counts per second, and from them recovery, amplification and success in the incident.

use super::{DIP_END_S, END_S, INCIDENT_S};
use crate::sim::stats::count_at;
use crate::time::Mono;

/// A second is good if each window of this length from it on has nearly the offered load as goodput …
const WINDOW_S: usize = 5;
/// … for windows that start within this time …
const STEADY_S: usize = 10;
/// … and "nearly" means this share.
const NEARLY: f64 = 0.9;

#[derive(Debug, Default)]
pub(super) struct OutageTally {
    pub(super) goodput: Vec<u32>,
    pub(super) attempts: Vec<u32>,
    pub(super) requests: Vec<u32>,
    /// Successes by the second in which their request arrived; `goodput` counts them by the second of their completion.
    succeeded: Vec<u32>,
    pub(super) failed: u32,
}

impl OutageTally {
    pub(super) fn request(&mut self, now: Mono) {
        count_at(&mut self.requests, second(now));
    }

    pub(super) fn attempt(&mut self, now: Mono) {
        count_at(&mut self.attempts, second(now));
    }

    pub(super) fn success(&mut self, arrived: Mono, now: Mono) {
        count_at(&mut self.succeeded, second(arrived));
        count_at(&mut self.goodput, second(now));
    }

    pub(super) const fn failure(&mut self) {
        self.failed += 1;
    }

    /// Seconds from the dip's end until the offered load is served again, and stays so.
    pub(super) fn recovery_s(&self, offered: f64) -> Option<u32> {
        let goodput = |second: usize| self.goodput.get(second).copied().unwrap_or(0);
        let is_good = |start: usize| f64::from((start..start + WINDOW_S).map(goodput).sum::<u32>()) >= NEARLY * offered * WINDOW_S as f64;
        let last = (END_S as usize + 1).saturating_sub(STEADY_S + WINDOW_S);
        let recovered = (DIP_END_S as usize..=last).find(|&from| (from..from + STEADY_S).all(is_good))?;
        u32::try_from(recovered - DIP_END_S as usize).ok()
    }

    pub(super) fn amplification(&self) -> f64 {
        ratio(incident(&self.attempts), incident(&self.requests))
    }

    pub(super) fn success_share(&self) -> f64 {
        ratio(incident(&self.succeeded), incident(&self.requests))
    }
}

const fn second(now: Mono) -> u64 {
    now.0 / 1_000_000_000
}

fn incident(per_second: &[u32]) -> u32 {
    let (from, to) = INCIDENT_S;
    per_second.iter().take(to as usize).skip(from as usize).sum()
}

fn ratio(part: u32, whole: u32) -> f64 {
    if whole == 0 { 0.0 } else { f64::from(part) / f64::from(whole) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(goodput: impl Fn(u32) -> u32) -> OutageTally {
        OutageTally { goodput: (0..END_S).map(goodput).collect(), ..OutageTally::default() }
    }

    #[test]
    fn steady_goodput_recovers_at_the_end_of_the_dip() {
        assert_eq!(tally(|_| 100).recovery_s(100.0), Some(0));
        assert_eq!(tally(|_| 90).recovery_s(100.0), Some(0));
        assert_eq!(tally(|_| 89).recovery_s(100.0), None);
    }

    #[test]
    fn recovery_is_where_goodput_stays_and_not_where_it_first_appears() {
        assert_eq!(tally(|second| if second < 80 { 0 } else { 100 }).recovery_s(100.0), Some(10));
        assert_eq!(tally(|second| if (75..80).contains(&second) || second >= 100 { 100 } else { 0 }).recovery_s(100.0), Some(30));
    }

    #[test]
    fn a_recovery_that_cannot_be_watched_to_its_end_does_not_count() {
        assert_eq!(tally(|second| if second < END_S - 14 { 0 } else { 100 }).recovery_s(100.0), Some(END_S - 14 - DIP_END_S));
        assert_eq!(tally(|second| if second < END_S - 13 { 0 } else { 100 }).recovery_s(100.0), None);
    }
}
