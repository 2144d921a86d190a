//! The configuration after parsing, merging and checking, as the rest of Seawall uses it.

use super::at_cost::AtCost;
use super::endpoint::PathPattern;
use super::node::Tree;
use super::place::{self, Inject, SecretRef};
use super::url::Base;
use crate::classify::{Rule, RuleSet};
use crate::lease::Reset;
use crate::policy::{
    Backoff, BreakerPolicy, BulkheadPolicy, CachePolicy, DeadLetterPolicy, ErrorShape, Fallback, Idempotency, LimitPolicy, NotifyFormat,
    OnExhausted, Pick, Rate, Retry, Share, Timeout,
};
use crate::time::Nanos;
use crate::words::words;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct Config {
    pub server: ServerConfig,
    pub log_json: bool,
    pub callers: Vec<CallerConfig>,
    pub pools: Vec<BulkheadPolicy>,
    pub limits: Vec<LimitPolicy>,
    /// Sorted by name.
    pub upstreams: Vec<Arc<UpstreamConfig>>,
    pub schedules: Vec<Schedule>,
    pub notify: Vec<Notify>,
}

words! {
    /// The header in which trusted proxies name the caller.
    pub enum ForwardedHeader {
        XForwardedFor = "x-forwarded-for",
        Forwarded = "forwarded",
    }
}

/// The gateway's certificate and key for TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    pub cert: String,
    pub key: SecretRef,
}

#[derive(Clone, Debug)]
pub struct ServerConfig {
    pub listen: String,
    pub admin: String,
    pub admin_token: Option<SecretRef>,
    pub webhook_secret: Option<SecretRef>,
    pub store: String,
    pub shared: String,
    pub shared_timeout: Nanos,
    pub max_body: u64,
    pub replay_body: u64,
    pub drain: Nanos,
    pub require_caller: bool,
    pub default_upstream: Option<String>,
    pub trust_forwarded: Vec<ipnet::IpNet>,
    pub forwarded_header: ForwardedHeader,
    pub allow_private: Vec<ipnet::IpNet>,
    pub tls: Option<Tls>,
}

#[derive(Clone, Debug)]
pub struct CallerConfig {
    pub name: String,
    pub token: SecretRef,
    pub tenant: String,
    pub user: String,
}

#[derive(Clone, Debug)]
pub struct UpstreamConfig {
    pub name: String,
    pub url: Base,
    pub hosts: Vec<String>,
    /// The address of the upstream's own port.
    pub listen: Option<String>,
    /// The upstream is a Seawall; requests to it say whether they are repeats.
    pub seawall: bool,
    /// Requests to it have a header that names this Seawall as an intermediary.
    pub via: bool,
    /// It receives the headers in which callers, or proxies before us, name a request's origin.
    pub forwarded: bool,
    pub preset: Option<String>,
    pub auth: Option<Auth>,
    /// In the order of the file; the last one matches every other request.
    pub endpoints: Vec<Arc<EndpointConfig>>,
}

/// The endpoint of requests that no pattern matches.
pub const CATCH_ALL: &str = "default";

impl UpstreamConfig {
    /// Puts rules in front of every endpoint's own; they replace rules of the same names.
    pub fn add_rules(&mut self, rules: &[&Rule]) {
        for endpoint in &mut self.endpoints {
            let policy = &mut Arc::make_mut(endpoint).policy;
            let others = policy.rules.rules().iter().filter(|known| !rules.iter().any(|rule| rule.name == known.name));
            let all = rules.iter().copied().chain(others).cloned().collect();
            policy.rules = Arc::new(RuleSet::new(all));
        }
    }

    /// The first endpoint whose pattern matches this request.
    #[must_use]
    pub fn endpoint(&self, method: &str, path: &str) -> &Arc<EndpointConfig> {
        let path = path.split('?').next().unwrap_or(path);
        let taken = self.endpoints.iter().find(|endpoint| endpoint.matches.takes(method, path));
        taken.or_else(|| self.endpoints.last()).expect("resolve appends an endpoint that takes everything")
    }
}

#[derive(Clone, Debug)]
pub struct EndpointConfig {
    pub name: String,
    pub matches: PathPattern,
    pub policy: EndpointPolicy,
    /// The merged values with their origins, for `config explain` and for warnings that depend on origins.
    pub tree: Tree,
}

/// All settings for calls to one endpoint.
#[derive(Clone, Debug)]
pub struct EndpointPolicy {
    pub profile: String,
    pub timeout: Timeout,
    pub retry: Retry,
    pub breaker: BreakerPolicy,
    pub limits: Vec<LimitPolicy>,
    pub pool: Option<String>,
    pub cost: u64,
    /// Calls that may wait at once for a key, a pause or a breaker.
    pub waiting: u32,
    pub at_cost: AtCost,
    /// `server.max_body` where absent.
    pub max_body: Option<u64>,
    /// Responses up to this size are read whole before the caller gets any of them.
    pub read_ahead: u64,
    pub deadline_header: Option<String>,
    /// Links in responses are rewritten from the upstream to the gateway.
    pub rewrite_links: bool,
    pub error_shape: ErrorShape,
    pub cache: CachePolicy,
    pub fallback: Option<Fallback>,
    pub on_exhausted: OnExhausted,
    pub idempotency: Idempotency,
    pub dead_letter: DeadLetterPolicy,
    pub schema: Option<String>,
    pub rules: Arc<RuleSet>,
}

#[derive(Clone, Debug)]
pub struct Auth {
    pub inject: Inject,
    pub pick: Pick,
    pub reset: Reset,
    /// The longest wait for a key; if absent, the rest of the call's deadline.
    pub max_wait: Option<Nanos>,
    pub keys: Vec<KeyConfig>,
    pub refresh: Option<Refresh>,
}

#[derive(Clone, Debug)]
pub struct KeyConfig {
    pub id: String,
    pub secret: SecretRef,
    pub group: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refresh {
    pub kind: String,
    pub token_url: Base,
    pub client_id: SecretRef,
    pub client_secret: SecretRef,
    pub refresh_token: Option<SecretRef>,
    pub scope: String,
    /// The client sends its credentials in the form instead of a header.
    pub client_in_body: bool,
}

#[derive(Clone, Debug)]
pub struct Schedule {
    pub name: String,
    pub upstream: String,
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: String,
    pub every: Nanos,
    pub backoff: Backoff,
    pub subjects: Vec<String>,
    pub deliver: Option<String>,
    pub spread: Share,
    pub run_missed: bool,
}

impl Schedule {
    /// Headers that end with a reference to a secret: name, the text before the secret, and the reference.
    pub fn header_secrets(&self) -> impl Iterator<Item = (&str, &str, SecretRef)> {
        self.headers.iter().filter_map(|(name, value)| {
            let (before, secret) = place::header_secret(value)?;
            Some((name.as_str(), before, secret))
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notify {
    pub url: String,
    pub format: NotifyFormat,
    pub secret: Option<SecretRef>,
    pub events: Vec<String>,
}

/// Keeps the running value; returns whether the new one differs.
fn stay<T: Clone + PartialEq>(own: &mut T, running: &T) -> bool {
    let changed = own != running;
    own.clone_from(running);
    changed
}

impl Config {
    /// Removes what only a server needs: the settings for callers and operators.
    pub fn uncalled(&mut self) {
        self.callers.clear();
        (self.server.admin_token, self.server.tls) = (None, None);
    }

    /// Keeps the running configuration's values of settings that need a restart. Returns the keys whose new values were ignored.
    pub fn stay_until_restart(&mut self, running: &Self) -> Vec<&'static str> {
        let (own, old) = (&mut self.server, &running.server);
        let changed = [
            ("server.listen", stay(&mut own.listen, &old.listen)),
            ("server.admin", stay(&mut own.admin, &old.admin)),
            ("server.store", stay(&mut own.store, &old.store)),
            ("server.shared", stay(&mut own.shared, &old.shared)),
            ("server.shared_timeout", stay(&mut own.shared_timeout, &old.shared_timeout)),
            ("server.tls", own.tls.is_some() != old.tls.is_some()),
            ("log.format", stay(&mut self.log_json, &running.log_json)),
        ];
        if own.tls.is_some() != old.tls.is_some() {
            own.tls.clone_from(&old.tls);
        }
        changed.into_iter().filter(|(_, changed)| *changed).map(|(key, _)| key).collect()
    }

    #[must_use]
    pub fn upstream(&self, name: &str) -> Option<&Arc<UpstreamConfig>> {
        self.upstreams.iter().find(|upstream| upstream.name == name)
    }

    /// Every endpoint with its upstream, in the order in which requests are matched.
    pub fn endpoints(&self) -> impl Iterator<Item = (&UpstreamConfig, &EndpointConfig)> {
        self.upstreams.iter().flat_map(|upstream| upstream.endpoints.iter().map(|endpoint| (upstream.as_ref(), endpoint.as_ref())))
    }

    /// The limits for a call under this policy: the global ones, then its own.
    pub fn limits_of<'a>(&'a self, policy: &'a EndpointPolicy) -> impl Iterator<Item = &'a LimitPolicy> {
        self.limits.iter().chain(&policy.limits)
    }

    /// The pool that a call under this policy runs in.
    #[must_use]
    pub fn pool_of(&self, policy: &EndpointPolicy) -> Option<&BulkheadPolicy> {
        self.pool(policy.pool.as_deref()?)
    }

    #[must_use]
    pub fn pool(&self, name: &str) -> Option<&BulkheadPolicy> {
        self.pools.iter().find(|pool| pool.name == name)
    }

    /// Every reference to a secret, with the key path that holds it.
    #[must_use]
    pub fn secrets(&self) -> Vec<(String, SecretRef)> {
        let mut all = self.key_secrets();
        let places = [("server.store", &self.server.store), ("server.shared", &self.server.shared)];
        all.extend(places.into_iter().filter_map(|(path, place)| Some((path.to_owned(), SecretRef::parse(place)?))));
        all.extend(
            self.notify.iter().enumerate().filter_map(|(i, notify)| Some((format!("notify[{i}].url"), SecretRef::parse(&notify.url)?))),
        );
        for (i, schedule) in self.schedules.iter().enumerate() {
            let deliver = schedule.deliver.as_deref().and_then(SecretRef::parse);
            all.extend(deliver.map(|secret| (format!("schedules[{i}].deliver"), secret)));
            let headers = schedule.header_secrets().map(|(name, _, secret)| (format!("schedules[{i}].request.headers.{name}"), secret));
            all.extend(headers);
        }
        all
    }

    /// Secrets under keys of their own.
    fn key_secrets(&self) -> Vec<(String, SecretRef)> {
        let mut all: Vec<(String, &SecretRef)> = self.server.admin_token.iter().map(|s| ("server.admin_token".to_owned(), s)).collect();
        all.extend(self.server.webhook_secret.iter().map(|s| ("server.webhook_secret".to_owned(), s)));
        all.extend(self.server.tls.iter().map(|tls| ("server.tls.key".to_owned(), &tls.key)));
        all.extend(self.callers.iter().map(|caller| (format!("callers.{}.token", caller.name), &caller.token)));
        for upstream in &self.upstreams {
            let Some(auth) = &upstream.auth else { continue };
            let at = format!("upstreams.{}.auth", upstream.name);
            all.extend(auth.keys.iter().enumerate().map(|(i, key)| (format!("{at}.keys[{i}].secret"), &key.secret)));
            if let Some(refresh) = &auth.refresh {
                all.push((format!("{at}.refresh.client_id"), &refresh.client_id));
                all.push((format!("{at}.refresh.client_secret"), &refresh.client_secret));
                all.extend(refresh.refresh_token.iter().map(|s| (format!("{at}.refresh.refresh_token"), s)));
            }
        }
        all.extend(self.notify.iter().enumerate().filter_map(|(i, n)| Some((format!("notify[{i}].secret"), n.secret.as_ref()?))));
        all.into_iter().map(|(path, secret)| (path, secret.clone())).collect()
    }
}

impl Auth {
    /// For each key the number of its group; a key without a group is a group of its own.
    #[must_use]
    pub fn group_numbers(&self) -> Vec<u16> {
        let names: Vec<&str> = self.keys.iter().map(|key| key.group.as_deref().unwrap_or(&key.id)).collect();
        let first = |name: &str| names.iter().position(|other| *other == name).unwrap_or(0);
        names.iter().map(|name| u16::try_from(first(name)).unwrap_or(u16::MAX)).collect()
    }

    /// The number of separate quotas of the keys.
    #[must_use]
    pub fn groups(&self) -> usize {
        let mut named = self.group_numbers();
        named.sort_unstable();
        named.dedup();
        named.len()
    }
}

/// The default burst is the rate's count: a second's worth at once for `50/s`.
#[must_use]
pub(crate) const fn default_burst(rate: Rate) -> u64 {
    rate.count
}
