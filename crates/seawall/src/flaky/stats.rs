//! Counts requests and their fates, so that tests can prove what a gateway did. Every table is bounded.

use super::entry::Fault;
use seawall_engine::secret::Secret;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

/// The most keys, sequences or addresses remembered; the oldest is forgotten first.
const MAX_REMEMBERED: usize = 10_000;

/// Values by name, at most `MAX_REMEMBERED`.
#[derive(Debug)]
pub(crate) struct Bounded<V> {
    values: HashMap<String, V>,
    order: VecDeque<String>,
}

impl<V> Default for Bounded<V> {
    fn default() -> Self {
        Self { values: HashMap::new(), order: VecDeque::new() }
    }
}

impl<V: Default> Bounded<V> {
    pub(crate) fn entry(&mut self, name: &str) -> &mut V {
        if !self.values.contains_key(name) {
            if self.order.len() >= MAX_REMEMBERED
                && let Some(oldest) = self.order.pop_front()
            {
                self.values.remove(&oldest);
            }
            self.order.push_back(name.to_owned());
        }
        self.values.entry(name.to_owned()).or_default()
    }

    pub(crate) fn peek(&self, name: &str) -> Option<&V> {
        self.values.get(name)
    }

    /// In order of arrival.
    fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        self.order.iter().filter_map(|name| Some((name.as_str(), self.values.get(name)?)))
    }
}

/// The use of one key.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeyUse {
    pub total: u64,
    /// Requests over the quota, the first one included.
    pub refused: u64,
    /// Requests over the quota after the caller got a refusal: a cooling key must not be used.
    pub after_exhausted: u64,
    /// The current period, and the requests in it.
    pub period: u64,
    pub used: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub requests: u64,
    statuses: BTreeMap<u16, u64>,
    faults: BTreeMap<&'static str, u64>,
    errors: BTreeMap<String, u64>,
    /// Indexed by the script's routes.
    pub routes: Vec<u64>,
    pub keys: Bounded<KeyUse>,
    pub idempotency: Bounded<u64>,
    pub token_requests: u64,
    pub unauthorized: u64,
}

impl Stats {
    pub(crate) fn of(routes: usize) -> Self {
        Self { routes: vec![0; routes], ..Self::default() }
    }

    pub(crate) fn status(&mut self, status: u16) {
        *self.statuses.entry(status).or_default() += 1;
    }

    pub(crate) fn fault(&mut self, fault: Fault) {
        *self.faults.entry(fault.word()).or_default() += 1;
    }

    /// Names come from the shipped list, but codes in them are free, so bound their number.
    pub(crate) fn error(&mut self, name: &str) {
        if let Some(count) = self.errors.get_mut(name) {
            *count += 1;
        } else if self.errors.len() < MAX_REMEMBERED {
            self.errors.insert(name.to_owned(), 1);
        }
    }

    pub(crate) fn json(&self, names: &[&str], wire: &SocketCounts) -> Value {
        let statuses: Map<String, Value> = self.statuses.iter().map(|(status, n)| (status.to_string(), json!(n))).collect();
        let routes: Map<String, Value> = names.iter().zip(&self.routes).map(|(name, n)| ((*name).to_owned(), json!(n))).collect();
        let keys: Vec<Value> = self.keys.iter().map(|(key, used)| {
            // Shows only the tail, because these may be real keys.
            json!({ "key": Secret::new(key).tail(), "total": used.total, "refused": used.refused, "after_exhausted": used.after_exhausted })
        }).collect();
        let idempotency: Map<String, Value> = self.idempotency.iter().map(|(key, n)| (key.to_owned(), json!(n))).collect();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        json!({
            "requests": self.requests,
            "statuses": statuses,
            "faults": self.faults,
            "errors": self.errors,
            "routes": routes,
            "keys": keys,
            "idempotency_keys": idempotency,
            "token_requests": self.token_requests,
            "unauthorized": self.unauthorized,
            "connections": load(&wire.connections),
            "open_connections": load(&wire.open),
            "in_flight": load(&wire.in_flight),
            "max_in_flight": load(&wire.max_in_flight),
        })
    }
}

/// Counters of the sockets, outside the lock.
#[derive(Debug, Default)]
pub(crate) struct SocketCounts {
    connections: AtomicU64,
    open: AtomicU64,
    in_flight: AtomicU64,
    max_in_flight: AtomicU64,
}

/// Decrements its counter when dropped.
#[derive(Debug)]
pub(crate) struct HeldCount<'a>(&'a AtomicU64);

impl Drop for HeldCount<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl SocketCounts {
    /// `None` if there are too many already.
    pub(crate) fn open(&self, most: u64) -> Option<HeldCount<'_>> {
        self.connections.fetch_add(1, Ordering::Relaxed);
        let before = self.open.fetch_add(1, Ordering::Relaxed);
        let held = HeldCount(&self.open);
        (before < most).then_some(held)
    }

    pub(crate) fn begin(&self) -> HeldCount<'_> {
        let now = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.max_in_flight.fetch_max(now, Ordering::Relaxed);
        HeldCount(&self.in_flight)
    }

    /// Resets the counters; open connections stay counted.
    pub(crate) fn reset(&self) {
        self.connections.store(self.open.load(Ordering::Relaxed), Ordering::Relaxed);
        self.max_in_flight.store(self.in_flight.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_the_oldest_goes_first() {
        let mut bounded = Bounded::<u64>::default();
        for n in 0..MAX_REMEMBERED + 5 {
            *bounded.entry(&n.to_string()) += 1;
        }
        assert_eq!(bounded.values.len(), MAX_REMEMBERED);
        assert!(bounded.peek("4").is_none() && bounded.peek("5").is_some());
    }
}
