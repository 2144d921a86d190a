//! The live state of a configuration: secrets, plans and attached state. It is immutable; a reload builds a new one and takes over the
//! state of everything that kept its name.

use crate::bulkhead::BulkheadPool;
use crate::cache;
use crate::caller::Callers;
use crate::clock::Clock;
use crate::credential::Credentials;
use crate::limits::{EndpointLimits, LimitLayer};
use crate::record::EndpointNames;
use crate::schema::Schema;
use crate::secret::{MissingSecret, Secret, Vault};
use crate::shared::RedisStore;
use crate::state::{EndpointState, UpstreamState};
use http::{HeaderName, HeaderValue};
use seawall_core::admit::shed;
use seawall_core::call::CallPlan;
use seawall_core::config::model::{Notify, Schedule};
use seawall_core::config::place::SecretRef;
use seawall_core::config::{Config, EndpointConfig, ServerConfig, Tls, UpstreamConfig};
use seawall_core::lease::Until;
use seawall_core::policy::{self, BreakerPer, Mode, Share};
use seawall_core::time::{Mono, Now};
use seawall_http::tls::Front;
use siphasher::sip::SipHasher13;
use std::collections::BTreeMap;
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Ids of upstreams in the connection pool, never reused in a process.
static IDS: AtomicU32 = AtomicU32::new(0);

#[derive(Debug)]
pub struct Live {
    pub config: Config,
    pub upstreams: Vec<Arc<LiveUpstream>>,
    by_name: BTreeMap<String, usize>,
    by_host: BTreeMap<String, usize>,
    by_port: BTreeMap<String, usize>,
    default: Option<usize>,
    pub callers: Callers,
    /// TLS of the gateway's listener, if configured.
    pub front: Option<Front>,
    /// The token of the admin port, if required.
    pub admin_token: Option<Secret>,
    /// The key that signs callbacks, if configured.
    pub webhook_secret: Option<Secret>,
    /// The keys that sign messages to each of `config.notify`, if configured.
    notify_secrets: Vec<Option<Secret>>,
    /// Headers with secrets of each of `config.schedules`.
    schedule_headers: Vec<Vec<SecretHeader>>,
    /// The bulkheads, by name.
    pub pools: BTreeMap<String, Arc<BulkheadPool>>,
    /// Priorities of all bulkheads.
    priorities: Vec<u32>,
    /// The connection to state shared with other instances, if any. Chosen when the process starts.
    pub shared: Option<Arc<RedisStore>>,
    /// Limits that span upstreams.
    global: Vec<LimitLayer>,
    /// A number for the rules by which jobs' requests may be repeated; it changes when any of them changes.
    pub rules: i64,
}

/// A header of a schedule's requests whose value ends with a secret.
#[derive(Debug)]
pub struct SecretHeader {
    pub name: String,
    /// The text before the secret.
    pub before: String,
    pub secret: Secret,
}

#[derive(Debug)]
pub struct LiveUpstream {
    /// Identifies its connections in the pool; a new URL gets a new id.
    pub id: u32,
    pub spec: Arc<UpstreamConfig>,
    /// In the order of `spec.endpoints`.
    pub endpoints: Vec<Arc<LiveEndpoint>>,
    pub state: Arc<UpstreamState>,
    pub host: HeaderValue,
    pub credentials: Option<Credentials>,
    pub in_flight: Arc<AtomicU32>,
    /// Calls that another Seawall marked as its own retries.
    pub repeats: Arc<AtomicU64>,
    /// Counts of the cache for this upstream.
    pub cached: Arc<cache::CacheCounts>,
    /// Limits of this upstream; endpoints that inherit one share its cells.
    layers: Vec<LimitLayer>,
}

#[derive(Debug)]
pub struct LiveEndpoint {
    pub spec: Arc<EndpointConfig>,
    pub names: Arc<EndpointNames>,
    /// The pattern, as records show it.
    pub route: Arc<str>,
    pub plan: Arc<CallPlan>,
    pub state: EndpointState,
    /// The schema of successful responses.
    pub schema: Option<Schema>,
    /// The header that tells the upstream how much time is left.
    pub deadline_header: Option<HeaderName>,
}

/// The reason why a configuration cannot be activated.
#[derive(Debug, thiserror::Error)]
pub enum UnusableConfig {
    #[error(transparent)]
    Secret(#[from] MissingSecret),
    #[error("`server.shared`: {0}")]
    Shared(String),
    #[error("`server.tls`: {0}")]
    Tls(String),
    #[error("`{path}`: the schema `{file}` cannot be used: {why}")]
    Schema { path: String, file: String, why: String },
}

/// Resolves a configuration's references.
#[derive(Clone, Copy)]
pub struct Around<'a> {
    pub vault: Vault<'a>,
    /// Reads a file that the configuration names.
    pub files: &'a dyn Fn(&str) -> Result<Vec<u8>, String>,
}

impl std::fmt::Debug for Around<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Around")
    }
}

impl Live {
    /// Returns the key that signs messages to a receiver, by its configured URL or reference.
    #[must_use]
    pub fn notify_secret(&self, url: &str) -> Option<&Secret> {
        self.config.notify.iter().zip(&self.notify_secrets).find(|(spec, _)| spec.url == url)?.1.as_ref()
    }

    /// Returns the headers with secrets of a schedule, or `None` if there is no such schedule.
    #[must_use]
    pub fn schedule_headers(&self, name: &str) -> Option<&[SecretHeader]> {
        self.config.schedules.iter().zip(&self.schedule_headers).find(|(spec, _)| spec.name == name).map(|(_, headers)| headers.as_slice())
    }

    /// # Errors
    /// When a secret that an upstream needs is missing, or a schema cannot be used.
    pub fn new(config: Config, around: Around<'_>, before: Option<(&Self, Now)>) -> Result<Self, UnusableConfig> {
        let callers = Callers::new(&config, around.vault)?;
        let admin_token = server_secret("admin_token", config.server.admin_token.as_ref(), around.vault)?;
        let webhook_secret = server_secret("webhook_secret", config.server.webhook_secret.as_ref(), around.vault)?;
        let front = config.server.tls.as_ref().map(|tls| front(tls, around)).transpose()?;
        let notify_secrets = config.notify.iter().enumerate().map(|(i, spec)| receiver(i, spec, around.vault)).collect::<Result<_, _>>()?;
        let schedule_headers =
            config.schedules.iter().enumerate().map(|(i, spec)| scheduled(i, spec, around.vault)).collect::<Result<_, _>>()?;
        let pools: BTreeMap<String, Arc<BulkheadPool>> =
            config.pools.iter().map(|spec| (spec.name.clone(), pool(spec, before.map(|(live, _)| live)))).collect();
        let shared = match before {
            Some((live, _)) => live.shared.clone(),
            None => shared(&config.server, around.vault)?,
        };
        let global_before = before.map(|(live, now)| (live.global.as_slice(), now.mono));
        let global: Vec<LimitLayer> = config.limits.iter().map(|spec| layer(spec, &spec.name, global_before)).collect();
        let mut upstreams = Vec::with_capacity(config.upstreams.len());
        for spec in &config.upstreams {
            let previous = before.and_then(|(live, now)| Some((live.named(&spec.name)?, now)));
            let parts = Parts { config: &config, around, pools: &pools, global: &global, shared: shared.as_ref() };
            upstreams.push(Arc::new(LiveUpstream::new(&parts, spec, previous)?));
        }
        let index = |name: &str| config.upstreams.iter().position(|upstream| upstream.name == name);
        let hosts = config.upstreams.iter().enumerate();
        Ok(Self {
            by_name: config.upstreams.iter().enumerate().map(|(i, upstream)| (upstream.name.clone(), i)).collect(),
            by_host: hosts.flat_map(|(i, upstream)| upstream.hosts.iter().map(move |host| (host.to_ascii_lowercase(), i))).collect(),
            by_port: config.upstreams.iter().enumerate().filter_map(|(i, upstream)| Some((upstream.listen.clone()?, i))).collect(),
            default: config.server.default_upstream.as_deref().and_then(index),
            upstreams,
            callers,
            front,
            admin_token,
            webhook_secret,
            notify_secrets,
            schedule_headers,
            priorities: pools.values().map(|pool| pool.priority).collect(),
            pools,
            shared,
            global,
            rules: rules(&config),
            config,
        })
    }

    /// Iterates over all limits with their upstreams; the name is empty for limits that span upstreams.
    pub fn layers(&self) -> impl Iterator<Item = (&str, &LimitLayer)> {
        let own = self.upstreams.iter().flat_map(|upstream| upstream.layers.iter().map(|layer| (upstream.spec.name.as_str(), layer)));
        self.global.iter().map(|layer| ("", layer)).chain(own).filter(|(_, layer)| layer.mode() != Mode::Off)
    }

    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Arc<LiveUpstream>> {
        self.by_name.get(name).map(|i| &self.upstreams[*i])
    }

    /// Returns the upstream whose own port listens on this address.
    #[must_use]
    pub fn at_port(&self, address: &str) -> Option<&Arc<LiveUpstream>> {
        self.by_port.get(address).map(|i| &self.upstreams[*i])
    }

    /// Returns the maximum body length of a request to this endpoint.
    #[must_use]
    pub fn max_body(&self, endpoint: &LiveEndpoint) -> u64 {
        endpoint.spec.policy.max_body.unwrap_or(self.config.server.max_body)
    }

    /// Returns whether a call to this endpoint is shed before any work is done: the bulkheads of this process together are nearly full, and
    /// other calls have higher priority. An endpoint without a bulkhead has no priority and is never shed.
    #[must_use]
    pub fn sheds(&self, endpoint: &LiveEndpoint) -> bool {
        let Some(pool) = &endpoint.state.pool else { return false };
        let add = |sum: (u64, u64), (taken, room): (u64, u64)| (sum.0 + taken, sum.1 + room);
        let (taken, room) = self.pools.values().map(|pool| pool.taken()).fold((0, 0), add);
        shed::sheds(Share::of(taken, room), pool.priority, &self.priorities)
    }

    /// Returns the upstream of a request, and how many bytes of its path name it. `host` is called only if some upstream is selected by
    /// host.
    #[must_use]
    pub fn route<'h>(&self, host: impl FnOnce() -> &'h str, path: &str) -> Option<(&Arc<LiveUpstream>, usize)> {
        if !self.by_host.is_empty() {
            let host = host().to_ascii_lowercase();
            let bare = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit())).map(|(name, _)| name);
            // A host with a port precedes the same host without one.
            if let Some(i) = self.by_host.get(&host).or_else(|| self.by_host.get(bare?)) {
                return Some((&self.upstreams[*i], 0));
            }
        }
        let rest = path.strip_prefix('/').unwrap_or(path);
        let name = &rest[..rest.bytes().position(|byte| byte == b'/').unwrap_or(rest.len())];
        if let Some(i) = self.by_name.get(name) {
            return Some((&self.upstreams[*i], path.len() - rest.len() + name.len()));
        }
        self.default.map(|i| (&self.upstreams[i], 0))
    }
}

/// Hashes all settings that decide whether a job's request may be repeated. The number is stored with claims, so it is the same in every
/// process.
fn rules(config: &Config) -> i64 {
    let mut hasher = SipHasher13::new();
    for (upstream, endpoint) in config.endpoints() {
        let policy = &endpoint.policy;
        let rule = (policy.retry.unsafe_methods.as_str(), policy.idempotency.mode.as_str(), format!("{:?}", policy.at_cost));
        (&upstream.name, endpoint.matches.to_string(), rule).hash(&mut hasher);
    }
    // Never 0, which rows from before this column have, and never `MIXED`.
    i64::from_ne_bytes(hasher.finish().to_ne_bytes()) & i64::MAX | 1
}

/// Returns the key that signs messages to a receiver. Checks that a referenced address can be resolved.
fn receiver(place: usize, spec: &Notify, vault: Vault<'_>) -> Result<Option<Secret>, MissingSecret> {
    let fetch = |key: &str, reference: &SecretRef| {
        vault(reference).map_err(|why| MissingSecret { path: format!("notify[{place}].{key}"), reference: reference.to_string(), why })
    };
    if let Some(reference) = SecretRef::parse(&spec.url) {
        fetch("url", &reference)?;
    }
    spec.secret.as_ref().map(|reference| fetch("secret", reference)).transpose()
}

/// Returns the secrets in a schedule's headers. Checks that a referenced receiver can be resolved.
fn scheduled(place: usize, spec: &Schedule, vault: Vault<'_>) -> Result<Vec<SecretHeader>, MissingSecret> {
    let fetch = |key: String, reference: &SecretRef| {
        vault(reference).map_err(|why| MissingSecret { path: format!("schedules[{place}].{key}"), reference: reference.to_string(), why })
    };
    if let Some(reference) = spec.deliver.as_deref().and_then(SecretRef::parse) {
        fetch("deliver".to_owned(), &reference)?;
    }
    let headers = spec.header_secrets().map(|(name, before, reference)| {
        let secret = fetch(format!("request.headers.{name}"), &reference)?;
        Ok(SecretHeader { name: name.to_ascii_lowercase(), before: before.to_owned(), secret })
    });
    headers.collect()
}

fn server_secret(key: &str, reference: Option<&SecretRef>, vault: Vault<'_>) -> Result<Option<Secret>, MissingSecret> {
    let missing = |reference: &SecretRef, why| MissingSecret { path: format!("server.{key}"), reference: reference.to_string(), why };
    reference.map(|reference| vault(reference).map_err(|why| missing(reference, why))).transpose()
}

fn front(tls: &Tls, around: Around<'_>) -> Result<Front, UnusableConfig> {
    let key = server_secret("tls.key", Some(&tls.key), around.vault)?;
    let chain = (around.files)(&tls.cert).map_err(UnusableConfig::Tls)?;
    Front::new(&chain, key.as_ref().map_or("", Secret::reveal).as_bytes()).map_err(UnusableConfig::Tls)
}

fn shared(server: &ServerConfig, vault: Vault<'_>) -> Result<Option<Arc<RedisStore>>, UnusableConfig> {
    let place = server.shared.as_str();
    let reference = match place.split_once(':') {
        _ if place == "local" => return Ok(None),
        Some(("env", name)) => Some(SecretRef::Env(name.to_owned())),
        Some(("file", path)) => Some(SecretRef::File(path.to_owned())),
        _ => None,
    };
    let missing = |why| MissingSecret { path: "server.shared".to_owned(), reference: place.to_owned(), why };
    let url = reference.map(|reference| vault(&reference).map_err(missing)).transpose()?;
    let url = url.as_ref().map_or(place, Secret::reveal);
    RedisStore::new(url, server.shared_timeout).map(|store| Some(Arc::new(store))).map_err(UnusableConfig::Shared)
}

/// Returns a bulkhead. It keeps its places and its queue while its settings stay the same.
fn pool(spec: &policy::BulkheadPolicy, before: Option<&Live>) -> Arc<BulkheadPool> {
    let same = before.and_then(|live| {
        let unchanged = live.config.pool(&spec.name) == Some(spec);
        live.pools.get(&spec.name).filter(|_| unchanged)
    });
    same.map_or_else(|| Arc::new(BulkheadPool::new(spec)), Arc::clone)
}

/// Builds the limit of a place. It keeps its cells while its place stays, even if its rate changes. Two places never share cells, because a
/// call locks the cells of all its places at once.
fn layer(spec: &policy::LimitPolicy, place: &str, before: Option<(&[LimitLayer], Mono)>) -> LimitLayer {
    let previous = before.and_then(|(layers, now)| Some((layers.iter().find(|layer| layer.place() == place)?, now)));
    previous.map_or_else(|| LimitLayer::new(spec).at(place), |(layer, now)| layer.changed(spec, now))
}

/// The common parts from which all upstreams are built.
struct Parts<'a> {
    config: &'a Config,
    around: Around<'a>,
    pools: &'a BTreeMap<String, Arc<BulkheadPool>>,
    global: &'a [LimitLayer],
    shared: Option<&'a Arc<RedisStore>>,
}

impl Parts<'_> {
    fn credentials(&self, spec: &UpstreamConfig, before: Option<&Arc<LiveUpstream>>) -> Result<Option<Credentials>, MissingSecret> {
        let Some(auth) = &spec.auth else { return Ok(None) };
        let (path, before) = (format!("upstreams.{}.auth", spec.name), before.and_then(|before| before.credentials.as_ref()));
        let shared = self.shared.map(|store| (store, spec.name.as_str()));
        Credentials::new(auth, &path, self.around.vault, before, shared).map(Some)
    }
}

impl LiveUpstream {
    fn new(parts: &Parts<'_>, spec: &Arc<UpstreamConfig>, before: Option<(&Arc<Self>, Now)>) -> Result<Self, UnusableConfig> {
        let mut layers: Vec<LimitLayer> = Vec::new();
        let previous_layers = before.map(|(before, now)| (before.layers.as_slice(), now.mono));
        let before = before.map(|(before, _)| before);
        let credentials = parts.credentials(spec, before)?;
        let state = state(spec, credentials.as_ref(), before);
        // What is known of one server says nothing of another, and calls that wait for the old one must not be the probes of the new one.
        let same_server = before.filter(|before| before.spec.url == spec.url);
        // A breaker for all endpoints is kept, and new endpoints join it.
        let of_all = |endpoint: &&Arc<LiveEndpoint>| endpoint.spec.policy.breaker.per == BreakerPer::Upstream;
        let shared = same_server
            .and_then(|before| before.endpoints.iter().find(of_all))
            .map(|endpoint| endpoint.state.shared_breaker())
            .unwrap_or_default();
        let endpoints = spec.endpoints.iter().map(|endpoint| {
            let previous = before.and_then(|before| before.endpoints.iter().find(|other| other.spec.name == endpoint.name));
            let previous_state = previous.filter(|_| same_server.is_some());
            let kept = previous_state.filter(|previous| previous.spec.policy.breaker.per == BreakerPer::Endpoint);
            let breaker = match endpoint.policy.breaker.per {
                BreakerPer::Upstream => shared.clone(),
                BreakerPer::Endpoint => kept.map(|previous| previous.state.shared_breaker()).unwrap_or_default(),
            };
            let names =
                previous.map_or_else(|| Arc::new(EndpointNames::new(&spec.name, &endpoint.name)), |previous| Arc::clone(&previous.names));
            let limits = EndpointLimits::new(
                parts.global.iter().cloned().chain(own_layers(endpoint, &spec.name, &mut layers, previous_layers)).collect(),
            );
            let pool = endpoint.policy.pool.as_ref().and_then(|name| parts.pools.get(name)).cloned();
            let mut plan = CallPlan::new(parts.config, spec, endpoint);
            let own_state = EndpointState::new(Arc::clone(&state), breaker, &endpoint.policy, Arc::clone(&names), limits, pool)
                .after(previous_state.map(|previous| &previous.state));
            plan.limited = !own_state.limits.is_empty();
            Ok(Arc::new(LiveEndpoint {
                deadline_header: endpoint.policy.deadline_header.as_deref().and_then(|name| HeaderName::from_bytes(name.as_bytes()).ok()),
                schema: schema(parts.config, spec, endpoint, parts.around)?,
                route: Arc::from(endpoint.matches.to_string()),
                spec: Arc::clone(endpoint),
                plan: Arc::new(plan),
                state: match parts.shared {
                    Some(store) => own_state.shared(store, &endpoint.policy),
                    None => own_state,
                },
                names,
            }))
        });
        let endpoints: Vec<Arc<LiveEndpoint>> = endpoints.collect::<Result<_, UnusableConfig>>()?;
        let id = same_server.map_or_else(|| IDS.fetch_add(1, Ordering::Relaxed), |before| before.id);
        Ok(Self {
            id,
            endpoints,
            layers,
            host: HeaderValue::from_str(&spec.url.authority()).expect("a checked URL has a host that fits a header"),
            credentials,
            spec: Arc::clone(spec),
            state,
            in_flight: before.map(|before| Arc::clone(&before.in_flight)).unwrap_or_default(),
            repeats: before.map(|before| Arc::clone(&before.repeats)).unwrap_or_default(),
            cached: before.map(|before| Arc::clone(&before.cached)).unwrap_or_default(),
        })
    }

    /// Rests or restores a key by hand. All endpoints have the same keys.
    pub async fn force_key(&self, key: u16, until: Option<Until>, clock: &Clock) {
        if let Some(endpoint) = self.endpoints.last() {
            endpoint.state.force_key(key, until, clock).await;
        }
    }

    /// Asks other instances about keys that are not viable here.
    pub async fn refresh_keys(&self, clock: &Clock) {
        let now = clock.now();
        let rests = |key| self.state.key_status(key, now).is_some_and(|status| status.dead || status.cooling.is_some());
        let keys = self.spec.auth.iter().flat_map(|auth| &auth.keys).zip(0u16..);
        if let Some(endpoint) = self.endpoints.last().filter(|_| keys.into_iter().any(|(_, key)| rests(key))) {
            endpoint.state.refresh_keys(clock).await;
        }
    }

    /// Returns the first endpoint whose pattern matches; `path` is below the upstream's base path.
    #[must_use]
    pub fn endpoint(&self, method: &str, path: &str) -> &Arc<LiveEndpoint> {
        if self.endpoints.len() > 1 {
            let path = path.split('?').next().unwrap_or(path);
            if let Some(found) = self.endpoints.iter().find(|endpoint| endpoint.spec.matches.takes(method, path)) {
                return found;
            }
        }
        self.endpoints.last().expect("resolve appends an endpoint that takes everything")
    }
}

/// Builds an endpoint's limits beside the global ones. Endpoints that inherit the same limit share its cells.
fn own_layers(
    endpoint: &EndpointConfig,
    upstream: &str,
    shared: &mut Vec<LimitLayer>,
    before: Option<(&[LimitLayer], Mono)>,
) -> Vec<LimitLayer> {
    let mut own = Vec::new();
    for spec in &endpoint.policy.limits {
        let found = shared.iter().find(|layer| layer.spec() == spec).cloned();
        own.push(found.unwrap_or_else(|| {
            // Endpoints may use one name for different limits, so the place contains a number.
            let namesakes = shared.iter().filter(|layer| layer.name() == spec.name).count();
            let made = layer(spec, &format!("{upstream}/{}/{namesakes}", spec.name), before);
            shared.push(made.clone());
            made
        }));
    }
    own
}

fn schema(
    config: &Config,
    upstream: &UpstreamConfig,
    endpoint: &EndpointConfig,
    around: Around<'_>,
) -> Result<Option<Schema>, UnusableConfig> {
    let Some(file) = &endpoint.policy.schema else { return Ok(None) };
    let schema = (around.files)(file).and_then(|text| Schema::parse(&text, config.server.max_body));
    let path = || format!("upstreams.{}/{}.schema", upstream.name, endpoint.name);
    schema.map(Some).map_err(|why| UnusableConfig::Schema { path: path(), file: file.clone(), why })
}

/// Builds the state that an upstream's endpoints share, continued from the previous configuration.
fn state(spec: &Arc<UpstreamConfig>, credentials: Option<&Credentials>, before: Option<&Arc<LiveUpstream>>) -> Arc<UpstreamState> {
    let secrets = credentials.map(Credentials::fingerprints).unwrap_or_default();
    let Some(before) = before else { return Arc::new(UpstreamState::new(spec.auth.as_ref(), secrets)) };
    let (old, new) = (keys(&before.spec, before.state.secrets()), keys(spec, &secrets));
    if old == new {
        return Arc::clone(&before.state);
    }
    let same = |index: u16| {
        let (id, _, secret) = *new.get(usize::from(index))?;
        old.iter().position(|(other, _, known)| (*other, *known) == (id, secret)).and_then(|at| u16::try_from(at).ok())
    };
    Arc::new(UpstreamState::new(spec.auth.as_ref(), secrets.clone()).after(&before.state, same))
}

/// Returns id, group and secret of each key.
fn keys<'a>(upstream: &'a UpstreamConfig, secrets: &[u32]) -> Vec<(&'a str, Option<&'a str>, u32)> {
    let keys = upstream.auth.iter().flat_map(|auth| &auth.keys);
    keys.zip(secrets).map(|(key, secret)| (key.id.as_str(), key.group.as_deref(), *secret)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_core::config;
    use seawall_core::time::Wall;

    /// Two endpoints, each with a limit of the same name.
    fn namesakes(rate: &str, before: Option<&Live>) -> Live {
        let endpoint = |name: &str, rate: &str| {
            format!(
                "[[upstreams.u.endpoints]]\nname = \"{name}\"\nmatch = \"GET /{name}\"\nlimits = [{{ name = \"same\", rate = \"{rate}\" }}]\n"
            )
        };
        let text = format!("[upstreams.u]\nurl = \"http://127.0.0.1:1\"\n{}{}", endpoint("a", rate), endpoint("b", "9/s"));
        let around = Around { vault: &|_| Err("none".to_owned()), files: &|_| Err("none".to_owned()) };
        let now = Now { mono: Mono(1), wall: Wall(1) };
        Live::new(config::load("t", text.as_bytes()).unwrap(), around, before.map(|live| (live, now))).unwrap()
    }

    fn with_key(secret: &str, before: Option<&Live>) -> Live {
        let keys = "[upstreams.u.auth]\nkeys = [{ id = \"a\", secret = \"env:A\" }, { id = \"b\", secret = \"env:B\" }]\n";
        let text = format!("[upstreams.u]\nurl = \"http://127.0.0.1:1\"\n{keys}");
        let vault = |reference: &SecretRef| Ok(Secret::new(if reference.to_string() == "env:A" { secret } else { "another" }));
        let around = Around { vault: &vault, files: &|_| Err("none".to_owned()) };
        let now = Now { mono: Mono(1), wall: Wall(1) };
        Live::new(config::load("t", text.as_bytes()).unwrap(), around, before.map(|live| (live, now))).unwrap()
    }

    #[test]
    fn a_key_with_another_secret_begins_as_ready() {
        let now = Now { mono: Mono(1), wall: Wall(1) };
        let cools = |live: &Live, key| live.upstreams[0].state.key_status(key, now).unwrap().cooling.is_some();
        let before = with_key("old", None);
        (0..2).for_each(|key| before.upstreams[0].state.cool_key(key, Until::Mono(Mono::MAX)));
        let same = with_key("old", Some(&before));
        assert!(cools(&same, 0) && cools(&same, 1));
        let replaced = with_key("new", Some(&before));
        assert!(!cools(&replaced, 0), "it is another key");
        assert!(cools(&replaced, 1), "this one is the same");
    }

    #[test]
    fn limits_of_one_name_stay_apart_through_a_reload() {
        let before = namesakes("5/s", None);
        let after = namesakes("6/s", Some(&before));
        let (old, new): (Vec<_>, Vec<_>) = (before.layers().collect(), after.layers().collect());
        assert!(!new[0].1.is_same(new[1].1), "each has cells of its own");
        assert!(new[0].1.is_same(old[0].1) && new[1].1.is_same(old[1].1), "and keeps them");
    }
}
