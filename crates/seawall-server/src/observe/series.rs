//! Time series of calls, for charts and for the last minute. Points hold counts and a histogram, so two points add up to exactly the point
//! of the longer interval.

use super::{OutcomeCategory, as_f64};
use crate::json_shapes::{Time, ms};
use seawall_core::record::Code;
use seawall_core::record::histogram::StepHistogram;
use seawall_core::time::{Mono, Nanos, Wall};
use seawall_engine::record::AttemptRecord;
use serde::Serialize;
use std::collections::VecDeque;
use utoipa::ToSchema;

/// Refusals that are counted per code, because an operator can act on each.
pub(crate) const REFUSALS: [Code; 6] =
    [Code::RateLimited, Code::Overloaded, Code::KeysExhausted, Code::KeysRejected, Code::CircuitOpen, Code::Paused];

#[derive(Clone, Debug, Default)]
pub(crate) struct SeriesPoint {
    /// Seconds since 1970, a multiple of the step.
    pub t: i64,
    pub calls: u64,
    pub success: u64,
    pub failed: u64,
    pub rejected: u64,
    /// Rejections by code, in the order of `REFUSALS`.
    pub refusals: [u64; REFUSALS.len()],
    pub retries: u64,
    /// Attempts by class, in the order of `Class::ALL`.
    pub classes: [u64; 6],
    pub latency: StepHistogram,
}

impl SeriesPoint {
    pub(crate) fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.success += other.success;
        self.failed += other.failed;
        self.rejected += other.rejected;
        self.refusals.iter_mut().zip(other.refusals).for_each(|(sum, more)| *sum += more);
        self.retries += other.retries;
        self.classes.iter_mut().zip(other.classes).for_each(|(sum, more)| *sum += more);
        self.latency.merge(&other.latency);
    }

    pub(super) fn attempt(&mut self, record: &AttemptRecord) {
        self.retries += u64::from(record.attempt.is_repeated());
        if let Some(count) = self.classes.get_mut(record.attempt.class as usize) {
            *count += 1;
        }
    }

    /// Counts a call that was refused with this code.
    pub(super) fn refused(&mut self, code: &str) {
        let place = REFUSALS.iter().position(|known| known.as_str() == code);
        if let Some(count) = place.and_then(|place| self.refusals.get_mut(place)) {
            *count += 1;
        }
    }

    pub(super) fn call(&mut self, elapsed: Nanos, ending: OutcomeCategory) {
        match ending {
            OutcomeCategory::Later => return,
            OutcomeCategory::Success => self.success += 1,
            OutcomeCategory::Rejected => self.rejected += 1,
            OutcomeCategory::Failed => self.failed += 1,
            OutcomeCategory::Left => {}
        }
        self.calls += 1;
        // Refusals take no time, and callers that disconnected did not wait for the response, so neither enters the latency.
        if matches!(ending, OutcomeCategory::Success | OutcomeCategory::Failed) {
            self.latency.add(elapsed);
        }
    }

    /// Returns 1 if there were no calls: nothing has failed.
    pub(crate) fn success_share(&self) -> f64 {
        let ended = self.success + self.failed + self.rejected;
        if ended == 0 { 1.0 } else { as_f64(self.success) / as_f64(ended) }
    }

    /// Returns calls per second over the last minute, or over the time since the start if shorter.
    pub(crate) fn rate(&self, now: Mono) -> f64 {
        as_f64(self.calls) / now.since(Mono::default()).as_secs_f64().clamp(1.0, 60.0)
    }

    pub(crate) fn retries_per_success(&self) -> f64 {
        if self.success == 0 { as_f64(self.retries) } else { as_f64(self.retries) / as_f64(self.success) }
    }

    pub(crate) fn quantile(&self, per_mille: u64) -> Option<f64> {
        self.latency.quantile(per_mille).map(ms)
    }

    /// Returns rates over the last minute, or over the time since the start if shorter.
    pub(crate) fn pace(&self, now: Mono) -> CallRates {
        CallRates {
            success_share: self.success_share(),
            retries_per_success: self.retries_per_success(),
            rate: self.rate(now),
            p50_ms: self.quantile(500),
            p95_ms: self.quantile(950),
            p99_ms: self.quantile(990),
        }
    }

    pub(crate) fn shown(&self) -> ShownPoint {
        ShownPoint {
            t: Time(Wall(self.t * 1000)),
            calls: self.calls,
            success: self.success,
            failed: self.failed,
            retries: self.retries,
            rejected: self.rejected,
            p50_ms: self.quantile(500),
            p95_ms: self.quantile(950),
            p99_ms: self.quantile(990),
        }
    }
}

/// How calls go.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Pace)]
pub(crate) struct CallRates {
    success_share: f64,
    retries_per_success: f64,
    /// Calls a second.
    rate: f64,
    p50_ms: Option<f64>,
    p95_ms: Option<f64>,
    p99_ms: Option<f64>,
}

/// Calls that ended in one step of a chart.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Point)]
pub(crate) struct ShownPoint {
    t: Time,
    calls: u64,
    success: u64,
    failed: u64,
    retries: u64,
    rejected: u64,
    p50_ms: Option<f64>,
    p95_ms: Option<f64>,
    p99_ms: Option<f64>,
}

#[derive(Debug)]
pub(crate) struct TimeSeries {
    step: i64,
    most: usize,
    points: VecDeque<SeriesPoint>,
}

impl TimeSeries {
    pub(super) const fn new(step: i64, most: usize) -> Self {
        Self { step, most, points: VecDeque::new() }
    }

    /// Returns the point of a time. Records arrive almost in order, so the search begins at the end.
    pub(super) fn at(&mut self, at: Wall) -> &mut SeriesPoint {
        let t = at.0.div_euclid(1000).div_euclid(self.step) * self.step;
        let place = self.points.iter().rposition(|point| point.t <= t);
        let place = match place {
            Some(place) if self.points[place].t == t => place,
            before => {
                let place = before.map_or(0, |place| place + 1);
                self.points.insert(place, SeriesPoint { t, ..SeriesPoint::default() });
                // Keeps one hour of points. The last but one is complete except for late records, so its histogram is compacted.
                if let Some(over) = place.checked_sub(2).and_then(|over| self.points.get_mut(over)) {
                    over.latency.settle();
                }
                place
            }
        };
        let surplus = self.points.len().saturating_sub(self.most).min(place);
        if surplus > 0 {
            self.points.drain(..surplus);
        }
        &mut self.points[place - surplus]
    }

    /// Sums the `seconds` before `now`, including the current step.
    pub(crate) fn last(&self, seconds: i64, now: Wall) -> SeriesPoint {
        let from = now.0.div_euclid(1000) - seconds;
        let mut sum = SeriesPoint { t: from, ..SeriesPoint::default() };
        self.points.iter().rev().take_while(|point| point.t > from).for_each(|point| sum.add(point));
        sum
    }

    pub(super) fn is_older_than(&self, seconds: i64, now: Wall) -> bool {
        self.points.back().is_none_or(|point| point.t + seconds < now.0.div_euclid(1000))
    }

    /// Returns the point of one second, empty if nothing happened.
    pub(super) fn second(&self, t: i64) -> SeriesPoint {
        let found = self.points.iter().rev().take_while(|point| point.t >= t).find(|point| point.t == t);
        found.cloned().unwrap_or_else(|| SeriesPoint { t, ..SeriesPoint::default() })
    }

    /// Returns one point per `step` seconds since `from`, including empty ones.
    pub(crate) fn chart(&self, from: i64, to: i64, step: i64) -> Vec<SeriesPoint> {
        let step = step.max(self.step);
        let from = from.div_euclid(step) * step;
        let count = usize::try_from((to - from).div_euclid(step) + 1).unwrap_or(0);
        let mut chart: Vec<SeriesPoint> = (0..).map(|i| SeriesPoint { t: from + i * step, ..SeriesPoint::default() }).take(count).collect();
        for point in &self.points {
            let place = usize::try_from((point.t - from).div_euclid(step)).ok();
            if let Some(sum) = place.and_then(|place| chart.get_mut(place)) {
                sum.add(point);
            }
        }
        chart
    }

    pub(crate) const fn step(&self) -> i64 {
        self.step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_young_process_has_the_rate_of_its_own_life() {
        let minute = SeriesPoint { calls: 120, ..SeriesPoint::default() };
        let rate = |seconds| minute.rate(Mono::default() + Nanos::from_secs(seconds));
        assert_eq!([0, 1, 30, 60, 3600].map(rate), [120.0, 120.0, 4.0, 2.0, 2.0]);
    }

    #[test]
    fn a_second_that_is_over_is_packed_and_takes_in_what_comes_late() {
        let mut series = TimeSeries::new(1, 10);
        let mut all = StepHistogram::default();
        for second in 0..5i64 {
            for millis in 1..50 {
                series.at(Wall(second * 1000)).latency.add(Nanos::from_millis(millis));
                all.add(Nanos::from_millis(millis));
            }
        }
        assert_eq!(series.points.iter().map(|point| point.latency.is_settled()).collect::<Vec<_>>(), [true, true, true, false, false]);
        series.at(Wall(1000)).latency.add(Nanos::from_millis(7));
        all.add(Nanos::from_millis(7));
        assert_eq!(series.last(5, Wall(4999)).latency, all);
    }

    #[test]
    fn points_add_up_and_the_oldest_go() {
        let mut series = TimeSeries::new(1, 10);
        for second in 0..20i64 {
            let point = series.at(Wall(second * 1000 + 5));
            point.calls += 1;
            point.latency.add(Nanos::from_millis(10));
            // A late record of the second before.
            series.at(Wall((second - 1) * 1000 + 999)).calls += 1;
        }
        assert_eq!(series.points.len(), 10);
        let last = series.last(5, Wall(19_500));
        assert_eq!((last.calls, last.latency.count()), (9, 5), "the last second has no straggler yet");
        assert_eq!(series.chart(10, 19, 5).iter().map(|point| point.calls).collect::<Vec<_>>(), [10, 9]);
        assert_eq!(series.second(12).calls, 2);
        assert_eq!(series.second(99).calls, 0);
        series.at(Wall(-5000)).calls += 1;
        assert!(series.points.len() <= 11, "a clock that stepped back does not make it grow");
    }
}
