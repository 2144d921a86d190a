//! Limits shared by instances: all layers are taken in one step or not at all. While Redis does not reply, the process uses its share of
//! the limits.

use super::redis::{Arguments, RedisStore};
use super::script_arrays::{self, Meeting, nanos, number};
use super::scripts;
use crate::clock::Clock;
use crate::limits::{AdmittedLayers, EndpointLimits, LimitLayer, LimitSubject};
use crate::locked_cell::Locked;
use crate::record::EndpointNames;
use seawall_core::admit::limit::{Gcra, LimitCell};
use seawall_core::call::{AskAnswer, SettleAttempt};
use seawall_core::policy::{Fail, Mode};
use seawall_core::time::{Mono, Nanos};
use std::sync::Arc;

/// Wait after a refusal by a limit that must not be estimated, while Redis is away.
const CLOSED_FOR: Nanos = Nanos::from_secs(1);

#[derive(Debug)]
pub struct SharedLimits {
    store: Arc<RedisStore>,
    names: Arc<EndpointNames>,
    own: EndpointLimits,
    /// The key prefix of each layer's cells, and its numbers in ticks.
    layers: Vec<(String, Gcra)>,
    cost: u64,
    /// The limits' share for a number of instances.
    share: Locked<(u32, Arc<EndpointLimits>)>,
}

/// The tokens that a call took from shared limits.
#[derive(Clone, Debug)]
pub struct Receipt {
    keys: Vec<String>,
    shadowed: u64,
    cells: Vec<LimitCell>,
    met: Meeting,
}

/// The source of a call's tokens.
#[derive(Debug)]
pub enum Took {
    Shared(Receipt),
    /// The local share.
    Alone(Arc<EndpointLimits>, AdmittedLayers),
    /// None: a limit that must not be estimated refused.
    Nothing,
}

impl Took {
    /// Returns the receipt for tokens from shared limits.
    pub(crate) const fn receipt(&self) -> Option<&Receipt> {
        match self {
            Self::Shared(receipt) => Some(receipt),
            Self::Alone(..) | Self::Nothing => None,
        }
    }
}

impl SharedLimits {
    pub(super) fn new(store: &Arc<RedisStore>, names: &Arc<EndpointNames>, own: &EndpointLimits, cost: u64) -> Self {
        // All layers are taken in one script, so they share one hash slot of a cluster.
        let layer = |layer: &LimitLayer| (format!("{{seawall}}:limit:{}:", layer.place()), script_arrays::in_ticks(layer.spec()));
        Self {
            store: Arc::clone(store),
            names: Arc::clone(names),
            layers: own.layers().iter().map(layer).collect(),
            own: own.clone(),
            cost,
            share: Locked::new((1, Arc::new(own.clone()))),
        }
    }

    /// Takes a call's cost from every layer, on all instances together.
    pub async fn take_all(&self, who: &LimitSubject<'_>, clock: &Clock) -> (AskAnswer, Took) {
        let hashes = self.own.layers().iter().map(|layer| layer.stable_key(who, &self.names));
        let keys: Vec<String> = self.layers.iter().zip(hashes).map(|((prefix, _), hash)| format!("{prefix}{hash}")).collect();
        let arguments =
            self.layers.iter().fold(Arguments::default().number(0).number(self.cost), |arguments, (_, limit)| push_limit(arguments, limit));
        let names: Vec<&str> = keys.iter().map(String::as_str).collect();
        let Some(reply) = self.store.run::<Vec<i64>>(&scripts::TAKE, &names, &arguments).await else {
            return self.take_alone(who, clock.now().mono);
        };
        let met = self.store.script_clock_at(number(&reply, 4), clock);
        let answer = match (reply.first(), number(&reply, 1)) {
            (Some(0), after) => AskAnswer::Limited { after: nanos(after) },
            (Some(1), wait) => AskAnswer::OverLimit { retry_at: Some(met.mono + nanos(wait)) },
            (_, _) => AskAnswer::OverLimit { retry_at: None },
        };
        match reply.first() {
            Some(0) => self.own.count(None, number(&reply, 3)),
            _ => self.own.count(reply.get(2).and_then(|layer| usize::try_from(*layer).ok()), 0),
        }
        let cells = reply.get(5..).unwrap_or_default().chunks_exact(3).map(script_arrays::cell).collect();
        (answer, Took::Shared(Receipt { keys, shadowed: number(&reply, 3), cells, met }))
    }

    fn take_alone(&self, who: &LimitSubject<'_>, now: Mono) -> (AskAnswer, Took) {
        let closed = |layer: &LimitLayer| layer.mode() == Mode::Enforce && layer.spec().fail == Fail::Closed;
        if self.own.layers().iter().any(closed) {
            return (AskAnswer::OverLimit { retry_at: Some(now + CLOSED_FOR) }, Took::Nothing);
        }
        let share = self.share();
        let (answer, taken) = share.take_all(who, &self.names, self.cost, now);
        (answer, Took::Alone(share, taken))
    }

    fn share(&self) -> Arc<EndpointLimits> {
        let instances = self.store.instances();
        let mut share = self.share.lock();
        if share.0 != instances {
            *share = (instances, Arc::new(self.own.share(instances)));
        }
        Arc::clone(&share.1)
    }

    /// Gives back tokens for a call that was not sent.
    pub(crate) async fn refund(&self, receipt: &Receipt) {
        let arguments = Arguments::default().number(0).number(receipt.met.ticks).number(self.cost);
        self.change(&scripts::REFUND, receipt, arguments, |place, _| receipt.shadowed.checked_shr(place).unwrap_or(0) & 1 == 0).await;
    }

    /// Applies an attempt's end to the limits.
    pub(super) async fn settle(&self, settle: &SettleAttempt, receipt: Option<&Receipt>) {
        let Some(receipt) = receipt else { return };
        if settle.untake {
            self.refund(receipt).await;
        }
    }

    /// Runs a script on the selected cells of a receipt.
    async fn change(&self, script: &redis::Script, receipt: &Receipt, arguments: Arguments, about: impl Fn(u32, &LimitLayer) -> bool) {
        let layers = (0..).zip(self.own.layers()).zip(&self.layers).zip(&receipt.keys);
        let (mut keys, mut arguments) = (Vec::new(), arguments);
        for (((place, layer), (_, limit)), key) in layers {
            if about(place, layer) {
                keys.push(key.as_str());
                arguments = push_limit(arguments, limit);
            }
        }
        if !keys.is_empty() {
            // If Redis is away, this is lost; limits refill by themselves.
            let _: Option<i64> = self.store.run(script, &keys, &arguments).await;
        }
    }

    /// Returns the current `RateLimit-Policy` and `RateLimit` for a call.
    pub(crate) fn fields(&self, took: &Took, now: Mono) -> Option<(String, String)> {
        match took {
            Took::Nothing => None,
            Took::Alone(share, taken) => share.fields(taken, now),
            Took::Shared(receipt) => {
                let at = Mono(receipt.met.ticks(now.0));
                let layers = self.own.layers().iter().zip(&self.layers).zip(&receipt.cells);
                LimitLayer::fields(layers.map(|((layer, (_, limit)), cell)| {
                    let (remaining, reset) = limit.remaining(cell, at);
                    (layer, remaining, nanos(reset.0))
                }))
            }
        }
    }
}

fn push_limit(arguments: Arguments, limit: &Gcra) -> Arguments {
    script_arrays::of_limit(limit).into_iter().fold(arguments, Arguments::number)
}
