//! The traffic of each endpoint: as much as its limits suggest, and never enough to make an upstream busy before the surge begins.

use super::{CALM_S, SurgeCase, is_spoken_of};
use crate::policy::Mode;
use crate::rng::Rng;
use crate::sim::server::CAPACITY;
use crate::sim::shared::SharedCells;
use crate::time::{Mono, Nanos};

/// Calls per second to an endpoint without limits.
const USUAL: f64 = 20.0;
/// The share of a limit, and of an upstream, that steady traffic uses.
const HALF: f64 = 0.5;

#[derive(Clone, Debug)]
pub(super) struct SurgeLoad {
    /// Calls per second, by site; zero for endpoints that the file does not mention.
    pub(super) steady: Vec<f64>,
    pub(super) surged: usize,
    factor: f64,
    surge_s: u32,
}

impl SurgeLoad {
    pub(super) fn of(case: &SurgeCase<'_>, shared: &SharedCells) -> Self {
        let mut taking_part = is_spoken_of(case.policy);
        let named = case.endpoint.as_ref().and_then(|name| shared.sites.iter().position(|site| site.name == *name));
        let surged = named.unwrap_or_else(|| taking_part.iter().position(|&part| part).unwrap_or(0));
        if let Some(part) = taking_part.get_mut(surged) {
            *part = true;
        }
        let steady = match case.rate {
            Some(rate) => taking_part.iter().map(|&part| if part { rate } else { 0.0 }).collect(),
            None => scaled(shared, suggested(shared, &taking_part)),
        };
        Self { steady, surged, factor: case.factor, surge_s: case.surge_s }
    }

    pub(super) const fn end_s(&self) -> u32 {
        2 * CALM_S + self.surge_s
    }

    /// When the next call to this endpoint arrives; `None` is after the end. A gap that crosses a change of rate is drawn anew from there,
    /// which keeps the arrivals a Poisson process.
    pub(super) fn next(&self, site: usize, now: Mono, rng: &mut Rng) -> Option<Mono> {
        let second = |s: u32| Mono(0) + Nanos::from_secs(u64::from(s));
        let changes = [second(CALM_S), second(CALM_S + self.surge_s), second(self.end_s())];
        let mut from = now;
        for (part, end) in changes.into_iter().enumerate().filter(|&(_, end)| end > now) {
            let factor = if part == 1 && site == self.surged { self.factor } else { 1.0 };
            let at = from + Nanos::from_secs_f64(rng.exponential(1.0 / (self.steady[site] * factor)));
            if at < end {
                return Some(at);
            }
            from = end;
        }
        None
    }
}

/// Half of the endpoint's share of its tightest limit.
fn suggested(shared: &SharedCells, taking_part: &[bool]) -> Vec<f64> {
    let sharing = |limit: usize| {
        let all = shared.sites.iter().zip(taking_part).filter(|(site, part)| **part && site.limits.contains(&limit));
        all.count().max(1) as f64
    };
    let load = |site: &crate::sim::shared::EndpointSite| {
        let enforced = site.limits.iter().filter(|&&limit| shared.limits[limit].policy.mode == Mode::Enforce);
        let shares = enforced.map(|&limit| {
            let rate = shared.limits[limit].policy.rate.per_second_f64();
            HALF * rate / site.cost.max(1) as f64 / sharing(limit)
        });
        shares.reduce(f64::min).unwrap_or(USUAL)
    };
    shared.sites.iter().zip(taking_part).map(|(site, &part)| if part { load(site) } else { 0.0 }).collect()
}

/// Scales the endpoints of an upstream down together until it is at most half busy.
fn scaled(shared: &SharedCells, mut loads: Vec<f64>) -> Vec<f64> {
    let upstreams = shared.sites.iter().map(|site| site.upstream).max().map_or(0, |last| last + 1);
    let mut sums = vec![0.0; upstreams];
    for (site, load) in shared.sites.iter().zip(&loads) {
        sums[site.upstream] += load;
    }
    for (site, load) in shared.sites.iter().zip(&mut loads) {
        *load *= (HALF * CAPACITY / sums[site.upstream]).min(1.0);
    }
    loads
}
