//! The results of the calls, counted at the second in which each arrived, so that every second adds up: offered = admitted + refused. Only
//! calls in flight are counted at their own time.

use super::load::SurgeLoad;
use super::{CALM_S, SurgeCase};
use crate::call::{CallEnd, Outcome};
use crate::record::Reason;
use crate::sim::shared::SharedCells;
use crate::sim::traffic::Over;
use crate::time::Mono;
use crate::words::words;

words! {
    pub enum Phase { Before = "before", During = "during", After = "after" }
}

words! {
    /// The layer that refuses a call before it is sent.
    pub enum Layer { Limit = "limit", Pool = "pool", Breaker = "breaker", Keys = "keys", Deadline = "deadline" }
}

pub(super) const LAYERS: usize = Layer::ALL.len();

impl Layer {
    /// `None` for a call that was sent at least once.
    fn of(finish: &CallEnd) -> Option<Self> {
        if finish.attempts > 0 {
            return None;
        }
        Some(match finish.reason {
            Reason::RateLimited | Reason::ExceedsCapacity => Self::Limit,
            Reason::PoolFull | Reason::QueueTimeout | Reason::Shed => Self::Pool,
            Reason::CircuitOpen | Reason::ProviderPause => Self::Breaker,
            Reason::DeadlineExceeded => Self::Deadline,
            // In this model no other layer refuses before the first send.
            _ => Self::Keys,
        })
    }
}

/// One endpoint in one phase. Counts are means over the runs.
#[derive(Clone, Debug, PartialEq)]
pub struct SurgeRow {
    pub endpoint: String,
    pub surged: bool,
    pub phase: Phase,
    pub offered: f64,
    pub admitted: f64,
    pub succeeded: f64,
    /// In the order of [`Layer::ALL`].
    pub refused: [f64; LAYERS],
    /// Admitted calls that ended because the budget funded no retry.
    pub out_of_budget: f64,
    pub in_flight_max: f64,
    /// From arrival to the end, over calls that were admitted.
    pub p99_ms: Option<f64>,
}

impl SurgeRow {
    /// `None` without calls.
    #[must_use]
    pub fn success(&self) -> Option<f64> {
        (self.offered > 0.0).then(|| self.succeeded / self.offered)
    }
}

/// One endpoint, second by second.
#[derive(Clone, Debug, PartialEq)]
pub struct Track {
    pub endpoint: String,
    pub surged: bool,
    /// Calls per second while it is calm.
    pub load: f64,
    pub points: Vec<SurgePoint>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SurgePoint {
    pub offered: f64,
    pub admitted: f64,
    pub refused: [f64; LAYERS],
    pub in_flight: f64,
    pub p99_ms: Option<f64>,
    pub success: Option<f64>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Second {
    pub(super) offered: u32,
    pub(super) admitted: u32,
    pub(super) succeeded: u32,
    pub(super) refused: [u32; LAYERS],
    pub(super) out_of_budget: u32,
    /// The sum over the runs of the maximum in flight.
    in_flight: u32,
    pub(super) elapsed_ms: Vec<f32>,
}

/// An endpoint's calls in flight, and the seconds filled in so far.
#[derive(Clone, Debug, Default)]
struct Gauge {
    now: u32,
    most: u32,
    second: usize,
}

#[derive(Clone, Debug)]
pub(super) struct SurgeSite {
    pub(super) name: String,
    pub(super) load: f64,
    pub(super) seconds: Vec<Second>,
    /// Refusals during the surge, by limit.
    pub(super) by_limit: Vec<u32>,
    pub(super) pool: Option<usize>,
    gauge: Gauge,
}

#[derive(Clone, Debug)]
pub(super) struct SurgeTally {
    pub(super) sites: Vec<SurgeSite>,
    pub(super) surged: usize,
    pub(super) limits: Vec<String>,
    pub(super) pools: Vec<String>,
    runs: u32,
    surge_s: u32,
}

impl SurgeTally {
    pub(super) fn new(case: &SurgeCase<'_>, load: &SurgeLoad, shared: &SharedCells) -> Self {
        let seconds = vec![Second::default(); load.end_s() as usize];
        let site = |(site, &load): (&crate::sim::shared::EndpointSite, &f64)| SurgeSite {
            name: site.name.clone(),
            load,
            seconds: seconds.clone(),
            by_limit: vec![0; shared.limits.len()],
            pool: site.pool,
            gauge: Gauge::default(),
        };
        Self {
            sites: shared.sites.iter().zip(&load.steady).map(site).collect(),
            surged: load.surged,
            limits: shared.limits.iter().map(|layer| layer.policy.name.clone()).collect(),
            pools: shared.pools.iter().map(|pool| pool.name.clone()).collect(),
            runs: case.runs.max(1),
            surge_s: case.surge_s,
        }
    }

    pub(super) fn offered(&mut self, site: usize, arrived: Mono) {
        self.second(site, arrived).offered += 1;
    }

    pub(super) fn admitted(&mut self, site: usize, arrived: Mono, now: Mono) {
        self.second(site, arrived).admitted += 1;
        self.sites[site].fly(1, now);
    }

    pub(super) fn ended(&mut self, site: usize, arrived: Mono, over: &Over, now: Mono) {
        let layer = Layer::of(&over.finish);
        if layer.is_none() {
            self.sites[site].fly(-1, now);
        }
        if let (Some(limit), true) = (over.limit, self.range(Phase::During).contains(&whole(arrived))) {
            self.sites[site].by_limit[limit] += 1;
        }
        let second = self.second(site, arrived);
        match layer {
            Some(layer) => second.refused[layer as usize] += 1,
            None => {
                second.succeeded += u32::from(over.finish.outcome == Outcome::Success);
                second.out_of_budget += u32::from(over.finish.reason == Reason::BudgetExhausted);
                #[expect(clippy::cast_possible_truncation, reason = "a millionth is near enough for a percentile")]
                second.elapsed_ms.push(over.finish.elapsed.as_millis_f64() as f32);
            }
        }
    }

    /// Calls that are still in flight belong to the run that has ended.
    pub(super) fn run_ended(&mut self) {
        for site in &mut self.sites {
            site.fill(site.seconds.len());
            site.gauge = Gauge::default();
        }
    }

    fn second(&mut self, site: usize, arrived: Mono) -> &mut Second {
        let seconds = &mut self.sites[site].seconds;
        // Arrivals end with the last second.
        let last = seconds.len() - 1;
        &mut seconds[whole(arrived).min(last)]
    }

    pub(super) fn range(&self, phase: Phase) -> std::ops::Range<usize> {
        let (calm, surge) = (CALM_S as usize, self.surge_s as usize);
        match phase {
            Phase::Before => 0..calm,
            Phase::During => calm..calm + surge,
            Phase::After => calm + surge..2 * calm + surge,
        }
    }

    /// Endpoints that have traffic.
    pub(super) fn taking_part(&self) -> impl Iterator<Item = (usize, &SurgeSite)> {
        self.sites.iter().enumerate().filter(|(_, site)| site.load > 0.0)
    }

    pub(super) fn rows(&self) -> Vec<SurgeRow> {
        self.taking_part().flat_map(|(index, site)| Phase::ALL.iter().map(move |&phase| self.row(index, site, phase))).collect()
    }

    fn row(&self, index: usize, site: &SurgeSite, phase: Phase) -> SurgeRow {
        let seconds = &site.seconds[self.range(phase)];
        let mean = |of: fn(&Second) -> u32| seconds.iter().map(|second| f64::from(of(second))).sum::<f64>() / f64::from(self.runs);
        let refused = |layer: usize| seconds.iter().map(|second| f64::from(second.refused[layer])).sum::<f64>() / f64::from(self.runs);
        SurgeRow {
            endpoint: site.name.clone(),
            surged: index == self.surged,
            phase,
            offered: mean(|second| second.offered),
            admitted: mean(|second| second.admitted),
            succeeded: mean(|second| second.succeeded),
            refused: std::array::from_fn(refused),
            out_of_budget: mean(|second| second.out_of_budget),
            in_flight_max: f64::from(seconds.iter().map(|second| second.in_flight).max().unwrap_or(0)) / f64::from(self.runs),
            p99_ms: p99(seconds.iter().flat_map(|second| second.elapsed_ms.iter().copied())),
        }
    }

    pub(super) fn tracks(&self) -> Vec<Track> {
        let runs = f64::from(self.runs);
        let point = |second: &Second| SurgePoint {
            offered: f64::from(second.offered) / runs,
            admitted: f64::from(second.admitted) / runs,
            refused: second.refused.map(|count| f64::from(count) / runs),
            in_flight: f64::from(second.in_flight) / runs,
            p99_ms: p99(second.elapsed_ms.iter().copied()),
            success: (second.offered > 0).then(|| f64::from(second.succeeded) / f64::from(second.offered)),
        };
        let track = |(index, site): (usize, &SurgeSite)| Track {
            endpoint: site.name.clone(),
            surged: index == self.surged,
            load: site.load,
            points: site.seconds.iter().map(point).collect(),
        };
        self.taking_part().map(track).collect()
    }
}

impl SurgeSite {
    fn fly(&mut self, change: i32, now: Mono) {
        self.fill(whole(now));
        self.gauge.now = self.gauge.now.saturating_add_signed(change);
        self.gauge.most = self.gauge.most.max(self.gauge.now);
    }

    /// Fills in the seconds that have passed; a second without a change repeats the last value.
    fn fill(&mut self, second: usize) {
        while self.gauge.second < second.min(self.seconds.len()) {
            self.seconds[self.gauge.second].in_flight += self.gauge.most;
            self.gauge.most = self.gauge.now;
            self.gauge.second += 1;
        }
    }
}

fn whole(at: Mono) -> usize {
    usize::try_from(at.0 / 1_000_000_000).unwrap_or(usize::MAX)
}

/// By nearest rank; `None` without values.
pub(super) fn p99(values: impl Iterator<Item = f32>) -> Option<f64> {
    let mut values: Vec<f32> = values.collect();
    let rank = (values.len() * 99).div_ceil(100).checked_sub(1)?;
    let (_, value, _) = values.select_nth_unstable_by(rank, f32::total_cmp);
    Some(f64::from(*value))
}
