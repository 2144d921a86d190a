//! Persists the alarms that receivers know, so that a restarted process still reports their end. Only for a private store: instances that
//! share a store cannot tell whose alarm is whose.

use super::Receiver;
use crate::ServerState;
use crate::observe::{OperatorEvent, SPIKE, Severity, StandingEvent};
use seawall_core::policy;
use seawall_core::time::Mono;
use seawall_store::Error;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;

const NAME: &str = "alarms";

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct KnownAlarms {
    /// Alarms known to any receiver, by condition.
    standing: BTreeMap<String, StandingEvent>,
    /// Alarms known to each receiver. Receivers are identified by their configured URL and format.
    told: Vec<(String, String, BTreeSet<String>)>,
}

impl KnownAlarms {
    fn of(receivers: &[Receiver], shared: &ServerState) -> Self {
        let told: Vec<(String, String, BTreeSet<String>)> = receivers
            .iter()
            .map(|Receiver { spec, notices }| {
                (spec.url.clone(), spec.format.as_str().to_owned(), notices.told().map(|(about, _)| about.to_owned()).collect())
            })
            .collect();
        let standing = shared.eyes.bus.standing(|condition| told.iter().any(|(.., conditions)| conditions.contains(condition)));
        Self { standing, told }
    }

    /// Returns whether no alarm began or ended. A new event of a known alarm is not worth a write.
    fn is_as(&self, other: &Self) -> bool {
        self.told == other.told && self.standing.keys().eq(other.standing.keys())
    }

    pub(super) async fn read(shared: &ServerState) -> Result<Self, Error> {
        if !shared.desk.store.is_private() {
            return Ok(Self::default());
        }
        let kept = shared.desk.store.snapshot(NAME.to_owned()).await?;
        // Data that another version wrote and that cannot be parsed is ignored.
        let mut known: Self = kept.and_then(|(_, text)| serde_json::from_slice(&text).ok()).unwrap_or_default();
        known.standing.retain(|_, standing| standing.name != SPIKE);
        Ok(known)
    }

    /// Writes changes. A failed write is repeated at the next interval.
    pub(super) async fn follow(&mut self, receivers: &[Receiver], shared: &ServerState) {
        let now = Self::of(receivers, shared);
        if self.is_as(&now) || !shared.desk.store.is_private() {
            return;
        }
        let text = serde_json::to_vec(&now).unwrap_or_default();
        if shared.desk.store.put_snapshot(NAME.to_owned(), text.into(), shared.desk.now()).await.is_ok() {
            *self = now;
        }
    }

    /// Restores the alarms that receivers know.
    pub(super) fn restore(&self, receivers: &mut [Receiver], now: Mono) {
        for receiver in receivers {
            let told = self
                .told
                .iter()
                .filter(|(url, format, _)| (url.as_str(), format.as_str()) == (receiver.spec.url.as_str(), receiver.spec.format.as_str()));
            let conditions = told.flat_map(|(.., conditions)| conditions);
            let known = conditions.filter_map(|condition| Some((condition.clone(), self.standing.get(condition)?.id)));
            receiver.notices.recall(known, now);
        }
    }
}

/// Restores alarms before requests are served, and reports the ones that the start itself ends.
pub(crate) async fn recall(shared: &ServerState) -> Result<(), Error> {
    let known = KnownAlarms::read(shared).await?;
    let (live, bus, now) = (shared.live.load(), &shared.eyes.bus, shared.clock.now().wall);
    bus.recall(&known.standing);
    shared.eyes.seen().alarms.recall(&live, bus);
    let queues = known.standing.values().filter(|standing| standing.name == "dead-letter-alarm");
    let queues = queues.filter_map(|alarm| Some((alarm.upstream.clone()?, policy::Severity::from_word(&alarm.about)?)));
    shared.desk.alarms.lock().unwrap_or_else(PoisonError::into_inner).extend(queues);
    let refused = OperatorEvent::new("config-rejected", Severity::Fatal, "");
    if let Some(began) = bus.ended(&refused) {
        let event = OperatorEvent::new("config-reloaded", Severity::Info, "the process was started with a good configuration");
        bus.publish(&event.resolving(Some(began)), now);
    }
    Ok(())
}
