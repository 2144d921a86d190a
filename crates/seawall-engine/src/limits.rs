//! Rate limits of this process: the core's cells by key behind short locks. A call takes all layers or none.

use crate::credential_pauses::CredentialMark;
use crate::locked_cell::Locked;
use crate::record::EndpointNames;
use http::HeaderMap;
use parking_lot::MutexGuard;
use seawall_core::admit::layered::{self, Answers};
use seawall_core::admit::limit::{Gcra, LimitCell};
use seawall_core::admit::table::CellTable;
use seawall_core::call::AskAnswer;
use seawall_core::policy::{self, LimitKey, Mode};
use seawall_core::time::{Mono, Nanos};
use sha2::{Digest as _, Sha256};
use siphasher::sip128::SipHasher13;
use smallvec::SmallVec;
use std::hash::{BuildHasher as _, DefaultHasher, Hash as _, Hasher as _, RandomState};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

/// Maximum keys of one limit; further keys share a cell.
const MAX_KEYS: u32 = 1_000_000;

/// The caller, as far as limits distinguish callers.
#[derive(Clone, Copy, Debug)]
pub struct LimitSubject<'a> {
    pub ip: IpAddr,
    pub caller: &'a str,
    pub user: &'a str,
    pub tenant: &'a str,
    pub headers: &'a HeaderMap,
    /// The id of the leased key, once it is known.
    pub credential: &'a str,
    /// The caller's own credential.
    pub mark: CredentialMark,
}

impl<'a> LimitSubject<'a> {
    /// Returns the subject of a call from within this process: a job, or a row of a batch.
    #[must_use]
    pub fn internal(caller: &'a str, tenant: &'a str, headers: &'a HeaderMap) -> Self {
        Self { ip: IpAddr::V4(Ipv4Addr::LOCALHOST), caller, user: "", tenant, headers, credential: "", mark: CredentialMark::default() }
    }

    /// Returns a number that is equal for all calls of one caller with one credential.
    pub(crate) fn number_of_caller(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.caller, self.user, self.tenant, self.mark).hash(&mut hasher);
        hasher.finish()
    }

    /// Returns a number that is equal for all calls that limits count together; includes headers if `with_headers` is set.
    pub(crate) fn number(&self, with_headers: bool) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.ip, self.caller, self.user, self.tenant, self.mark).hash(&mut hasher);
        if with_headers {
            self.headers.iter().for_each(|header| header.hash(&mut hasher));
        }
        hasher.finish()
    }
}

/// The cells of one limit, by key.
///
/// Layers of several endpoints may share them, each endpoint in its own order. A thread that locks several tables locks
/// them by ascending `rank`, which prevents deadlocks.
#[derive(Debug)]
struct KeyedCells {
    rank: u64,
    table: Locked<CellTable>,
}

impl KeyedCells {
    fn new() -> Self {
        static NEXT_RANK: AtomicU64 = AtomicU64::new(0);
        Self { rank: NEXT_RANK.fetch_add(1, Ordering::Relaxed), table: Locked::new(CellTable::new(MAX_KEYS)) }
    }

    fn lock(&self) -> MutexGuard<'_, CellTable> {
        self.table.lock()
    }
}

/// One limit with the cells of its keys.
#[derive(Clone, Debug)]
pub struct LimitLayer {
    spec: policy::LimitPolicy,
    limit: Gcra,
    cells: Arc<KeyedCells>,
    /// Identifies the limit within a configuration, equally on every instance.
    place: Arc<str>,
    refused: Arc<AtomicU64>,
    shadowed: Arc<AtomicU64>,
}

impl LimitLayer {
    #[must_use]
    pub fn new(spec: &policy::LimitPolicy) -> Self {
        Self {
            limit: Gcra::from(spec),
            spec: spec.clone(),
            cells: Arc::new(KeyedCells::new()),
            place: Arc::from(""),
            refused: Arc::default(),
            shadowed: Arc::default(),
        }
    }

    /// Sets the place that identifies the limit.
    #[must_use]
    pub fn at(mut self, place: &str) -> Self {
        self.place = Arc::from(place);
        self
    }

    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Keeps the cells under a changed rate; the change itself grants no burst.
    #[must_use]
    pub fn changed(&self, spec: &policy::LimitPolicy, now: Mono) -> Self {
        let limit = Gcra::from(spec);
        if limit != self.limit {
            self.cells.lock().rebase(&self.limit, &limit, now);
        }
        Self { limit, spec: spec.clone(), ..self.clone() }
    }

    /// Returns the hashed key of a subject, equal on every instance; it reveals no name.
    pub(crate) fn stable_key(&self, who: &LimitSubject<'_>, names: &EndpointNames) -> String {
        let mut hash = Sha256::new();
        each_part(&self.spec, who, names, |bytes| {
            hash.update(bytes.len().to_be_bytes());
            hash.update(bytes);
        });
        hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }

    /// Builds `RateLimit-Policy` and `RateLimit` (IETF draft) from layers with their remaining tokens and the time until they are full.
    pub(crate) fn fields<'a>(states: impl Iterator<Item = (&'a Self, u64, Nanos)>) -> Option<(String, String)> {
        let (mut policies, mut limits) = (Vec::new(), Vec::new());
        for (layer, remaining, reset) in states.filter(|(layer, ..)| layer.mode() == Mode::Enforce) {
            let name = layer.name();
            policies.push(format!("\"{name}\";q={};w={}", layer.spec.rate.count, layer.spec.rate.per.as_secs_ceil().max(1)));
            limits.push(format!("\"{name}\";r={remaining};t={}", reset.as_secs_ceil()));
        }
        (!policies.is_empty()).then(|| (policies.join(", "), limits.join(", ")))
    }

    #[must_use]
    pub const fn spec(&self) -> &policy::LimitPolicy {
        &self.spec
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Returns whether both share cells.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.cells, &other.cells)
    }

    /// Returns the current number of keys.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.cells.lock().len()
    }

    /// Returns the numbers of refused calls and of calls that shadow mode would have refused.
    #[must_use]
    pub fn refusals(&self) -> (u64, u64) {
        (self.refused.load(Ordering::Relaxed), self.shadowed.load(Ordering::Relaxed))
    }

    /// Returns the used share of the burst for this caller.
    #[must_use]
    pub fn used_share(&self, who: &LimitSubject<'_>, names: &EndpointNames, now: Mono) -> Option<f64> {
        let cell = *self.cells.lock().find(key(&self.spec, who, names))?;
        let (remaining, _) = self.limit.remaining(&cell, now);
        let most = self.spec.burst.max(1);
        #[expect(clippy::cast_precision_loss, reason = "a share for people")]
        let share = most.saturating_sub(remaining) as f64 / most as f64;
        Some(share)
    }

    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.limit.mode()
    }
}

/// The layers of one endpoint, in the order of the configuration. No two of them share cells.
#[derive(Clone, Debug, Default)]
pub struct EndpointLimits {
    layers: Vec<LimitLayer>,
    /// Indices of `layers` by ascending rank of their cells: the order in which tables are locked.
    lock_order: Vec<usize>,
}

/// The tokens that a call took, so that they can be given back and shown.
#[derive(Clone, Debug, Default)]
pub struct AdmittedLayers {
    keys: Few<u128>,
    at: Mono,
    shadowed: u32,
}

/// Avoids an allocation for the usual number of layers.
type Few<T> = SmallVec<[T; 4]>;

/// Hashes keys with a random seed drawn at the start, so that collisions cannot be constructed.
static HASHER: LazyLock<SipHasher13> = LazyLock::new(|| {
    let drawn = || RandomState::new().build_hasher().finish();
    SipHasher13::new_with_keys(drawn(), drawn())
});

impl EndpointLimits {
    #[must_use]
    pub fn new(layers: Vec<LimitLayer>) -> Self {
        let mut distinct: Vec<LimitLayer> = Vec::with_capacity(layers.len());
        for layer in layers.into_iter().filter(|layer| layer.mode() != Mode::Off) {
            // A limit that is listed twice counts once: one thread cannot lock its table twice.
            if !distinct.iter().any(|other| other.is_same(&layer)) {
                distinct.push(layer);
            }
        }
        let mut lock_order: Vec<usize> = (0..distinct.len()).collect();
        lock_order.sort_unstable_by_key(|at| distinct[*at].cells.rank);
        Self { layers: distinct, lock_order }
    }

    /// Separates limits per credential, which cannot be counted before the credential is known.
    #[must_use]
    pub fn by_credential(self) -> (Self, Self) {
        let (with, without) = self.layers.into_iter().partition(|layer| layer.spec.key.contains(&LimitKey::Key));
        (Self::new(without), Self::new(with))
    }

    #[must_use]
    pub fn layers(&self) -> &[LimitLayer] {
        &self.layers
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Returns whether any of them depends on a caller's headers.
    #[must_use]
    pub fn look_at_headers(&self) -> bool {
        self.layers.iter().flat_map(|layer| &layer.spec.key).any(|key| matches!(key, LimitKey::Header(_)))
    }

    /// Takes the cost from every layer, or from none.
    pub fn take_all(&self, who: &LimitSubject<'_>, names: &EndpointNames, cost: u64, now: Mono) -> (AskAnswer, AdmittedLayers) {
        let mut taken =
            AdmittedLayers { keys: self.layers.iter().map(|layer| key(&layer.spec, who, names)).collect(), at: now, shadowed: 0 };
        let answers = self.with_cells(&taken.keys, now, |layers| layered::take_all(layers, now, cost));
        match answers {
            Answers::Go { shadowed, .. } => {
                taken.shadowed = shadowed;
                self.count(None, u64::from(shadowed));
            }
            Answers::Refused { layer, .. } | Answers::TooCostly { layer, .. } => self.count(Some(layer), 0),
        }
        (answers.into(), taken)
    }

    /// Counts the layers that refused, or would have refused in shadow mode.
    pub(crate) fn count(&self, refused: Option<usize>, shadowed: u64) {
        if let Some(layer) = refused.and_then(|at| self.layers.get(at)) {
            layer.refused.fetch_add(1, Ordering::Relaxed);
        }
        if shadowed != 0 {
            for (_, layer) in (0u32..).zip(&self.layers).filter(|(at, _)| shadowed.checked_shr(*at).unwrap_or(0) & 1 == 1) {
                layer.shadowed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Gives tokens back for a call that we refused afterwards.
    pub fn refund(&self, taken: &AdmittedLayers, cost: u64, now: Mono) {
        self.with_cells(&taken.keys, now, |layers| layered::refund(layers, taken.at, cost, taken.shadowed));
    }

    /// Returns the current `RateLimit-Policy` and `RateLimit` of this caller.
    #[must_use]
    pub fn fields(&self, taken: &AdmittedLayers, now: Mono) -> Option<(String, String)> {
        LimitLayer::fields(self.layers.iter().zip(&taken.keys).map(|(layer, key)| {
            let cell = layer.cells.lock().find(*key).copied().unwrap_or_default();
            let (remaining, reset) = layer.limit.remaining(&cell, now);
            (layer, remaining, reset)
        }))
    }

    /// Returns the share of one of `instances` instances, counted in the same cells.
    #[must_use]
    pub fn share(&self, instances: u32) -> Self {
        let layer = |layer: &LimitLayer| LimitLayer { limit: Gcra::from(&layer.spec.share(instances)), ..layer.clone() };
        Self { layers: self.layers.iter().map(layer).collect(), lock_order: self.lock_order.clone() }
    }

    /// Runs `act` on the cells of all layers at once.
    fn with_cells<R>(&self, keys: &[u128], now: Mono, act: impl FnOnce(&mut [(&Gcra, &mut LimitCell)]) -> R) -> R {
        let mut tables: Few<Option<MutexGuard<'_, CellTable>>> = self.layers.iter().map(|_| None).collect();
        for at in &self.lock_order {
            tables[*at] = Some(self.layers[*at].cells.lock());
        }
        let mut layers: Few<(&Gcra, &mut LimitCell)> = Few::with_capacity(keys.len());
        for ((layer, table), key) in self.layers.iter().zip(tables.iter_mut().flatten()).zip(keys) {
            layers.push((&layer.limit, table.cell(&layer.limit, *key, now)));
        }
        act(&mut layers)
    }
}

/// Returns the key of a subject in a limit.
fn key(spec: &policy::LimitPolicy, who: &LimitSubject<'_>, names: &EndpointNames) -> u128 {
    // Every part with its length, so that different lists of parts never collide.
    let mut parts: SmallVec<[u8; 128]> = SmallVec::new();
    each_part(spec, who, names, |bytes| {
        parts.extend_from_slice(&bytes.len().to_le_bytes());
        parts.extend_from_slice(bytes);
    });
    HASHER.hash(&parts).as_u128()
}

/// Writes the parts of a subject that a limit distinguishes.
fn each_part(spec: &policy::LimitPolicy, who: &LimitSubject<'_>, names: &EndpointNames, mut write: impl FnMut(&[u8])) {
    for part in &spec.key {
        match part {
            LimitKey::Global => write(b""),
            LimitKey::Key => {
                write(names.upstream.as_bytes());
                write(who.credential.as_bytes());
            }
            LimitKey::Ip => match who.ip {
                IpAddr::V4(ip) => write(&ip.octets()),
                // A subscriber has at least a /64, so counting single addresses would limit nothing.
                IpAddr::V6(ip) => write(&ip.octets()[..8]),
            },
            LimitKey::Caller => write(who.caller.as_bytes()),
            LimitKey::User => write(who.user.as_bytes()),
            LimitKey::Tenant => write(who.tenant.as_bytes()),
            LimitKey::Upstream => write(names.upstream.as_bytes()),
            LimitKey::Endpoint => {
                write(names.upstream.as_bytes());
                write(names.endpoint.as_bytes());
            }
            LimitKey::Header(name) => write(who.headers.get(name.as_str()).map_or(b"", |value| value.as_bytes())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_core::policy::{Algorithm, Fail, Rate};

    fn spec(name: &str, key: LimitKey, per_second: u64) -> policy::LimitPolicy {
        policy::LimitPolicy {
            name: name.into(),
            key: vec![key],
            rate: Rate::per_second(per_second),
            burst: per_second,
            algorithm: Algorithm::TokenBucket,
            mode: Mode::Enforce,
            fail: Fail::Open,
            max_wait: Nanos::ZERO,
        }
    }

    fn names() -> EndpointNames {
        EndpointNames::new("u", "e")
    }

    fn who<'a>(caller: &'a str, headers: &'a HeaderMap) -> LimitSubject<'a> {
        LimitSubject {
            ip: IpAddr::from([127, 0, 0, 1]),
            caller,
            user: "",
            tenant: "",
            headers,
            credential: "",
            mark: CredentialMark::default(),
        }
    }

    #[test]
    fn callers_are_counted_apart_and_nothing_is_spent_when_one_layer_refuses() {
        let limits = EndpointLimits::new(vec![
            LimitLayer::new(&spec("all", LimitKey::Global, 3)),
            LimitLayer::new(&spec("each", LimitKey::Caller, 1)),
        ]);
        let headers = HeaderMap::new();
        let take = |caller: &str| limits.take_all(&who(caller, &headers), &names(), 1, Mono(0)).0;
        let go = AskAnswer::Limited { after: Nanos::ZERO };
        assert_eq!(take("a"), go);
        assert!(matches!(take("a"), AskAnswer::OverLimit { retry_at: Some(_) }), "a has had its share");
        assert_eq!(take("b"), go);
        assert_eq!(take("c"), go, "the refused call of a took nothing from all");
        assert!(matches!(take("d"), AskAnswer::OverLimit { retry_at: Some(_) }), "all three are spent");
    }

    #[test]
    fn credentials_are_counted_apart_from_each_other_and_from_callers() {
        let layers = vec![LimitLayer::new(&spec("all", LimitKey::Global, 9)), LimitLayer::new(&spec("each", LimitKey::Key, 1))];
        let (others, limits) = EndpointLimits::new(layers).by_credential();
        assert_eq!((others.layers().len(), limits.layers().len()), (1, 1));
        let headers = HeaderMap::new();
        let take = |credential| limits.take_all(&LimitSubject { credential, ..who("a", &headers) }, &names(), 1, Mono(0)).0;
        assert_eq!((take("x"), take("y")), (AskAnswer::Limited { after: Nanos::ZERO }, AskAnswer::Limited { after: Nanos::ZERO }));
        assert!(matches!(take("x"), AskAnswer::OverLimit { retry_at: Some(_) }));
    }

    #[test]
    fn what_is_refunded_can_be_taken_again() {
        let limits = EndpointLimits::new(vec![LimitLayer::new(&spec("all", LimitKey::Global, 1))]);
        let headers = HeaderMap::new();
        let (_, taken) = limits.take_all(&who("a", &headers), &names(), 1, Mono(0));
        limits.refund(&taken, 1, Mono(0));
        assert_eq!(limits.take_all(&who("a", &headers), &names(), 1, Mono(0)).0, AskAnswer::Limited { after: Nanos::ZERO });
    }

    #[test]
    fn the_fields_say_what_is_left() {
        let limits = EndpointLimits::new(vec![LimitLayer::new(&spec("qps", LimitKey::Global, 50))]);
        let headers = HeaderMap::new();
        let (_, taken) = limits.take_all(&who("a", &headers), &names(), 20, Mono(0));
        let (policy, limit) = limits.fields(&taken, Mono(0)).unwrap();
        assert_eq!(policy, "\"qps\";q=50;w=1");
        assert!(limit.starts_with("\"qps\";r=30;t="), "{limit}");
    }

    /// Two endpoints that share two limits, each in its own order.
    fn mirrored() -> [EndpointLimits; 2] {
        let (x, y) = (LimitLayer::new(&spec("x", LimitKey::Global, 1_000)), LimitLayer::new(&spec("y", LimitKey::Global, 1_000)));
        [EndpointLimits::new(vec![x.clone(), y.clone()]), EndpointLimits::new(vec![y, x])]
    }

    #[test]
    fn threads_that_take_shared_limits_in_opposite_order_do_not_wait_for_each_other() {
        const THREADS: usize = 4;
        let both = Arc::new(mirrored());
        let (ended, ends) = std::sync::mpsc::channel();
        for at in 0..THREADS {
            let (both, ended) = (Arc::clone(&both), ended.clone());
            std::thread::spawn(move || {
                let headers = HeaderMap::new();
                for round in 0..50_000 {
                    let limits = &both[at % 2];
                    let (_, taken) = limits.take_all(&who("a", &headers), &names(), 1, Mono(round));
                    limits.refund(&taken, 1, Mono(round));
                }
                ended.send(at).unwrap();
            });
        }
        for left in (0..THREADS).rev() {
            let end = ends.recv_timeout(std::time::Duration::from_secs(30));
            assert!(end.is_ok(), "{} threads wait for each other", left + 1);
        }
    }

    #[test]
    fn shared_limits_keep_the_order_of_each_endpoint() {
        let headers = HeaderMap::new();
        let policies = mirrored().map(|limits| {
            let (_, taken) = limits.take_all(&who("a", &headers), &names(), 1, Mono(0));
            limits.fields(&taken, Mono(0)).unwrap().0
        });
        assert_eq!(policies, ["\"x\";q=1000;w=1, \"y\";q=1000;w=1", "\"y\";q=1000;w=1, \"x\";q=1000;w=1"]);
    }

    #[test]
    fn a_limit_that_is_listed_twice_counts_once() {
        let layer = LimitLayer::new(&spec("x", LimitKey::Global, 2));
        let limits = EndpointLimits::new(vec![layer.clone(), layer]);
        let headers = HeaderMap::new();
        let go = AskAnswer::Limited { after: Nanos::ZERO };
        assert_eq!([0, 1].map(|_| limits.take_all(&who("a", &headers), &names(), 1, Mono(0)).0), [go, go]);
    }
}
