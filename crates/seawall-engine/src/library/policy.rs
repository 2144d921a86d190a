//! A policy with its state and metrics. Clones share everything.

use super::attempt::Attempt;
use super::classify::{Classify, Usual};
use super::failure::Failure;
use super::layer::PolicyLayer;
use super::outcome::{Errors, Responses};
use super::report::{Hook, Reporter};
use super::request::Request;
use super::sharing;
use crate::clock::Clock;
use crate::entropy;
use crate::locked_cell::Locked;
use crate::record::{EndpointNames, Record};
use crate::runtime::{Around, Live, LiveEndpoint};
use crate::secret::Secret;
use http::HeaderMap;
use seawall_core::call::{CallPlan, First};
use seawall_core::config;
use seawall_core::guard::State;
use seawall_core::policy::IdempotencyMode;
use seawall_core::rng::Rng;
use std::sync::Arc;

/// The upstream that represents calls of no particular upstream.
const LIBRARY: &str = "library";

/// Timeouts, retries, budget, breaker and limits around any call. Clones share breaker, budget, limits, bulkhead and metrics; they are as
/// cheap as an `Arc`.
///
/// ```
/// use seawall_engine::Policy;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let policy = Policy::default();
/// let answer = policy.call(|_attempt| async { Ok::<_, std::io::Error>(42) }).await;
/// assert_eq!(answer.unwrap(), 42);
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Policy(pub(super) Arc<Shared>);

#[derive(Clone, Debug)]
pub(super) struct Shared {
    pub(super) endpoint: Arc<LiveEndpoint>,
    pub(super) plan: Arc<CallPlan>,
    /// The parameters of a first attempt, if it needs no further checks.
    pub(super) first: Option<First>,
    /// Ids of the upstream's keys.
    pub(super) credentials: Arc<[Arc<str>]>,
    pub(super) clock: Clock,
    pub(super) rng: Arc<Locked<Rng>>,
    pub(super) reporter: Reporter,
    /// An empty map, as limits see a caller without headers.
    pub(super) headers: HeaderMap,
    pub(super) idempotency: IdempotencyMode,
    /// The runtime with the connection to shared state, for threads without one.
    pub(super) runtime: Option<tokio::runtime::Handle>,
}

/// The reason why a text is no valid policy.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// All problems of the text, each with its position.
    #[error("{0}")]
    Text(#[from] config::Invalid),
    /// It needs features that only the gateway has.
    #[error(transparent)]
    Parts(#[from] crate::runtime::UnusableConfig),
    /// The thread for the connection to shared state cannot be started.
    #[error("shared state: {0}")]
    Thread(#[from] std::io::Error),
    /// No profile, upstream or endpoint has this name; contains the known names.
    #[error("there is no `{0}`, but {1}")]
    Unknown(String, String),
}

/// The built-in profile `external-api`.
impl Default for Policy {
    fn default() -> Self {
        Self::from_toml("").expect("the built-in defaults are valid")
    }
}

impl Policy {
    /// Returns a built-in profile by name: `external-api`, `fetcher`, `pipeline`, `payment`, `internal`, `database`, `cache`, `email` and
    /// so on.
    ///
    /// ```
    /// use seawall_engine::Policy;
    /// assert!(Policy::profile("payment").is_ok());
    /// assert!(Policy::profile("pavement").unwrap_err().to_string().contains("payment"));
    /// ```
    ///
    /// # Errors
    /// When there is no such profile.
    pub fn profile(name: &str) -> Result<Self, Unusable> {
        let known = config::profiles();
        if !known.contains(&name) {
            return Err(Unusable::Unknown(name.to_owned(), known.join(", ")));
        }
        Self::from_toml(&format!("[defaults]\nprofile = \"{name}\"\n"))
    }

    /// Parses a policy: the `[defaults]` of a configuration file as the gateway reads it. The file's upstreams are policies of their own;
    /// see [`Policies`].
    ///
    /// ```
    /// use seawall_engine::Policy;
    ///
    /// let policy = Policy::from_toml(r#"
    ///     [defaults]
    ///     profile = "internal"
    ///     retry = { attempts = 5 }
    ///     limits = [{ name = "qps", rate = "50/s" }]
    /// "#).unwrap();
    ///
    /// let wrong = Policy::from_toml("[defaults]\nretry = { atempts = 5 }").unwrap_err();
    /// assert!(wrong.to_string().contains("attempts"), "it says what was meant");
    /// ```
    ///
    /// # Errors
    /// With every problem of the text at once.
    pub fn from_toml(text: &str) -> Result<Self, Unusable> {
        // An upstream with the defaults only; appended, so that no line number changes.
        let text = format!("{text}\n[upstreams.{LIBRARY}]\nurl = \"http://library.invalid\"\n");
        Policies::from_toml(&text)?.get(LIBRARY)
    }

    fn new(policies: &Policies, upstream: usize, endpoint: &Arc<LiveEndpoint>) -> Self {
        let spec = &policies.live.upstreams[upstream].spec;
        let keys = spec.auth.iter().flat_map(|auth| &auth.keys);
        // The library never refreshes tokens: the caller has the secrets.
        let plan = Arc::new(CallPlan { refreshes: false, ..CallPlan::clone(&endpoint.plan) });
        let idempotency = endpoint.spec.policy.idempotency.mode;
        Self(Arc::new(Shared {
            // The fast path skips the driver, which generates keys and asks other processes.
            first: First::of(&plan, &endpoint.spec.policy.breaker)
                .filter(|_| idempotency != IdempotencyMode::Generate && endpoint.state.link().is_none()),
            plan,
            credentials: keys.map(|key| Arc::from(key.id.as_str())).collect(),
            clock: policies.clock.clone(),
            rng: Arc::new(Locked::new(Rng::seeded(entropy()))),
            reporter: Reporter::new(Arc::clone(&endpoint.names)),
            headers: HeaderMap::new(),
            idempotency,
            runtime: policies.runtime.clone(),
            endpoint: Arc::clone(endpoint),
        }))
    }

    fn with(&self, change: impl FnOnce(&mut Shared)) -> Self {
        let mut shared = Shared::clone(&self.0);
        change(&mut shared);
        Self(Arc::new(shared))
    }

    /// Sets another clock. Breaker, budget and limits depend on it, so set it before the first call. State that is shared with
    /// other processes follows Redis's clock, so this method does not apply to it.
    ///
    /// Ten minutes of outage in a millisecond:
    ///
    /// ```
    /// use seawall_engine::{Clock, Policy};
    /// use std::time::Duration;
    ///
    /// let clock = Clock::simulated();
    /// let text = "[defaults.breaker]\nconsecutive = 5\nopen = \"5s\"\nopen_max = \"60s\"\nmax_wait = \"0s\"";
    /// let policy = Policy::from_toml(text).unwrap().with_clock(clock.clone()).with_seed(7);
    /// let healthy = |clock: &Clock| clock.now().mono.0 >= 600_000_000_000;
    ///
    /// let sent = std::cell::Cell::new(0);
    /// clock.run(async {
    ///     loop {
    ///         let answer = policy.call(|_| async {
    ///             sent.set(sent.get() + 1);
    ///             clock.sleep(Duration::from_millis(20)).await;
    ///             if healthy(&clock) { Ok("healed") } else { Err(http::StatusCode::SERVICE_UNAVAILABLE) }
    ///         }).await;
    ///         if answer.is_ok() { break }
    ///         clock.sleep(Duration::from_secs(1)).await; // somebody asks once a second
    ///     }
    /// });
    /// assert!(clock.now().mono.0 < 661_000_000_000, "healed at the next probe");
    /// assert!(sent.get() < 40, "of six hundred askers few were let through: {}", sent.get());
    /// ```
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Self {
        self.with(|shared| shared.clock = clock)
    }

    /// Seeds the random generator: equal results give equal waits.
    ///
    /// ```
    /// use seawall_engine::{Clock, Policy};
    ///
    /// let elapsed = |seed| {
    ///     let clock = Clock::simulated();
    ///     let policy = Policy::default().with_clock(clock.clone()).with_seed(seed);
    ///     clock.run(policy.call(|_| async { Err::<(), _>(http::StatusCode::BAD_GATEWAY) })).unwrap_err().elapsed()
    /// };
    /// assert_eq!(elapsed(1), elapsed(1));
    /// assert_ne!(elapsed(1), elapsed(2));
    /// ```
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        self.with(|shared| shared.rng = Arc::new(Locked::new(Rng::seeded(seed))))
    }

    /// Sets a hook that gets a record of every event: the source of the gateway's log lines. The hook runs inside the call, so it should be
    /// quick.
    ///
    /// ```
    /// use seawall_engine::{Clock, Policy, Record};
    /// use std::sync::{Arc, Mutex};
    ///
    /// let lines = Arc::new(Mutex::new(Vec::new()));
    /// let log = Arc::clone(&lines);
    /// let clock = Clock::simulated();
    /// let policy = Policy::default().with_clock(clock.clone()).on_record(move |record| {
    ///     if let Record::Attempt(record) = record {
    ///         log.lock().unwrap().push(format!("#{} {}", record.attempt.number, record.attempt.decision));
    ///     }
    /// });
    /// let mut results = [Err(http::StatusCode::BAD_GATEWAY), Ok(())].into_iter();
    /// clock.run(policy.call(|_| std::future::ready(results.next().unwrap()))).unwrap();
    /// assert_eq!(*lines.lock().unwrap(), ["#1 retry", "#2 return"]);
    /// ```
    #[must_use]
    pub fn on_record(self, hook: impl Fn(&Record) + Send + Sync + 'static) -> Self {
        self.with(|shared| shared.reporter.hook = Some(Hook(Arc::new(hook))))
    }

    /// Sets the name of the policy in records, events and metrics.
    ///
    /// ```
    /// use seawall_engine::Policy;
    /// let policy = Policy::default().named("billing");
    /// assert!(!policy.metrics().is_empty());
    /// ```
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        let names = EndpointNames::new(name, &self.0.reporter.names.endpoint);
        self.with(|shared| shared.reporter = shared.reporter.renamed(names))
    }

    /// Makes a call: runs the closure as often as the policy decides, and waits as long as it decides.
    ///
    /// A closure may run more than once, unless the policy asks for idempotency keys (`payment`): then it has to send
    /// [`Attempt::idempotency_key`]. Errors are classified by [`Usual`], or by your own classifier with [`Policy::classify`].
    /// Dropping the future releases everything: the place in the bulkhead, the probe, the budget of a retry that was not sent.
    ///
    /// ```
    /// use seawall_engine::{Clock, Policy};
    ///
    /// let clock = Clock::simulated();
    /// let policy = Policy::default().with_clock(clock.clone());
    /// let answer = clock.run(policy.call(|attempt| async move {
    ///     if attempt.number() < 3 { Err(http::StatusCode::SERVICE_UNAVAILABLE) } else { Ok("third time lucky") }
    /// }));
    /// assert_eq!(answer.unwrap(), "third time lucky");
    /// ```
    pub fn call<T, E, F, Fut>(&self, send: F) -> impl Future<Output = Result<T, Failure<E>>> + use<T, E, F, Fut>
    where
        F: FnMut(Attempt) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        Usual: Classify<E>,
    {
        self.request().call(send)
    }

    /// Like [`Policy::call`], for plain threads: waits by sleeping. A closure that does not return cannot be stopped; it has to respect
    /// [`Attempt::timeout`].
    ///
    /// ```
    /// use seawall_engine::Policy;
    ///
    /// let policy = Policy::default();
    /// let mut results = [Err(std::io::Error::from(std::io::ErrorKind::Interrupted)), Ok(7)].into_iter();
    /// assert_eq!(policy.call_blocking(|_attempt| results.next().unwrap()).unwrap(), 7);
    /// ```
    ///
    /// # Errors
    /// When the call did not succeed.
    pub fn call_blocking<T, E, F>(&self, send: F) -> Result<T, Failure<E>>
    where
        F: FnMut(Attempt) -> Result<T, E>,
        Usual: Classify<E>,
    {
        self.request().call_blocking(send)
    }

    /// Returns a call with terms still to be set: its method, key, deadline and caller.
    ///
    /// ```
    /// use seawall_engine::{Clock, Policy};
    /// use std::time::Duration;
    ///
    /// let clock = Clock::simulated();
    /// let policy = Policy::default().with_clock(clock.clone());
    /// let order = policy.request().method(http::Method::POST).idempotency_key("order-17").deadline(Duration::from_secs(5));
    /// let answer = clock.run(order.call(|attempt| async move {
    ///     assert_eq!(attempt.idempotency_key(), Some("order-17"));
    ///     Ok::<_, std::io::Error>("paid")
    /// }));
    /// assert_eq!(answer.unwrap(), "paid");
    /// ```
    pub fn request(&self) -> Request<Errors<Usual>> {
        Request::new(self.clone(), Errors(Usual))
    }

    /// Returns a call whose errors this classifier decides.
    ///
    /// ```
    /// use seawall_engine::{Class, Clock, Policy};
    ///
    /// let clock = Clock::simulated();
    /// let policy = Policy::default().with_clock(clock.clone());
    /// let mut results = [Err("busy"), Ok(1)].into_iter();
    /// let call = policy
    ///     .classify(|error: &&str| if *error == "busy" { Class::Transient } else { Class::Permanent })
    ///     .call(|_| std::future::ready(results.next().unwrap()));
    /// assert_eq!(clock.run(call).unwrap(), 1);
    /// ```
    pub fn classify<C>(&self, classifier: C) -> Request<Errors<C>> {
        Request::new(self.clone(), Errors(classifier))
    }

    /// Returns a [`tower_layer::Layer`] that makes every request of a service a call of this policy. Every response is a success; errors
    /// are classified by [`Usual`], or by the classifier given to [`PolicyLayer::classify`].
    ///
    /// ```
    /// use seawall_engine::Policy;
    /// use tower_layer::Layer as _;
    /// # #[derive(Clone)] struct Inner;
    ///
    /// let service = Policy::default().layer().layer(Inner);
    /// ```
    #[must_use]
    pub fn layer(&self) -> PolicyLayer<Errors<Usual>> {
        PolicyLayer::new(self.clone(), Errors(Usual))
    }

    /// Like [`Policy::layer`], for HTTP: the policy's rules classify status and headers of responses, and the request's method and
    /// `Idempotency-Key` decide whether it may be repeated. The last response is returned, whatever it is.
    ///
    /// ```
    /// use seawall_engine::Policy;
    /// use tower_layer::Layer as _;
    /// # #[derive(Clone)] struct Client;
    ///
    /// let client = Policy::profile("internal").unwrap().http_layer().layer(Client);
    /// ```
    #[must_use]
    pub fn http_layer(&self) -> PolicyLayer<Responses<Usual>> {
        PolicyLayer::new(self.clone(), Responses(Usual))
    }

    /// Returns the state of the breaker.
    ///
    /// ```
    /// use seawall_engine::{BreakerState, Policy};
    /// assert_eq!(Policy::default().breaker(), BreakerState::Closed);
    /// ```
    #[must_use]
    pub fn breaker(&self) -> State {
        self.0.endpoint.state.breaker_state(self.0.clock.now().mono).0
    }

    /// Renders counters and histograms as Prometheus text, under the names that the gateway uses.
    ///
    /// ```
    /// use seawall_engine::{Clock, Policy};
    ///
    /// let clock = Clock::simulated();
    /// let policy = Policy::default().named("billing").with_clock(clock.clone());
    /// clock.run(policy.call(|_| async { Ok::<_, std::io::Error>(()) })).unwrap();
    /// let counted = r#"seawall_calls_total{upstream="billing",endpoint="default",caller="anonymous",outcome="success"} 1"#;
    /// assert!(policy.metrics().contains(counted));
    /// ```
    #[must_use]
    pub fn metrics(&self) -> String {
        let mut text = String::new();
        self.0.reporter.render(&mut text);
        text
    }
}

/// All policies of a configuration file, with the sharing defined there: an upstream's budget and keys, named bulkheads, limits that span
/// upstreams.
///
/// ```
/// use seawall_engine::Policies;
///
/// let policies = Policies::from_toml(r#"
///     [pools.slow]
///     concurrent = 8
///
///     [upstreams.stripe]
///     url = "https://api.stripe.com"
///     profile = "payment"
///     pool = "slow"
///     endpoints = [{ name = "charges", match = "POST /v1/charges", retry = { attempts = 2 } }]
/// "#).unwrap();
/// let charges = policies.get("stripe/charges").unwrap();
/// let anything_else = policies.get("stripe").unwrap();
/// assert!(policies.get("strype").is_err());
/// ```
///
/// With `shared = "redis://…"` in `[server]`, limits, breakers and keys are shared with every process that names the same Redis, gateways
/// included. A separate thread maintains the connection while any of the policies lives. While Redis does not reply, each process continues
/// with its own copy.
#[derive(Debug)]
pub struct Policies {
    live: Live,
    /// One clock for all policies, so that one offset leads to Redis's clock.
    clock: Clock,
    runtime: Option<tokio::runtime::Handle>,
}

impl Policies {
    /// Reads a configuration file as the gateway does. Secrets are not fetched: [`Attempt::credential`] names keys by id.
    ///
    /// ```
    /// # use seawall_engine::Policies;
    /// let wrong = Policies::from_toml("[upstreams.a]\nurl = \"http://a.test\"\nretries = 3").unwrap_err();
    /// assert!(wrong.to_string().contains("policy.toml:3"), "it says where");
    /// ```
    ///
    /// # Errors
    /// With every problem of the text at once.
    pub fn from_toml(text: &str) -> Result<Self, Unusable> {
        let mut config = config::load("policy.toml", text.as_bytes())?;
        config.uncalled();
        let files = |_: &str| Err("the library sees no bodies to hold against a schema".to_owned());
        let around = Around { vault: &|_| Ok(Secret::new("-")), files: &files };
        let live = Live::new(config, around, None)?;
        let clock = Clock::start();
        let runtime = live.shared.as_ref().map(|store| sharing::start_supervisor(store, &clock)).transpose()?;
        Ok(Self { live, clock, runtime })
    }

    /// Returns the policy of `UPSTREAM` or `UPSTREAM/ENDPOINT`. The same name gives the same state each time.
    ///
    /// ```
    /// # use seawall_engine::Policies;
    /// let policies = Policies::from_toml("[upstreams.a]\nurl = \"http://a.test\"").unwrap();
    /// assert!(policies.get("a").is_ok());
    /// assert_eq!(policies.get("b").unwrap_err().to_string(), "there is no `b`, but a/default");
    /// ```
    ///
    /// # Errors
    /// When there is no policy of that name.
    pub fn get(&self, name: &str) -> Result<Policy, Unusable> {
        let (upstream, endpoint) = name.split_once('/').unwrap_or((name, config::CATCH_ALL));
        let found = self.live.upstreams.iter().position(|other| other.spec.name == upstream).and_then(|at| {
            let endpoint = self.live.upstreams[at].endpoints.iter().find(|other| other.spec.name == endpoint)?;
            Some(Policy::new(self, at, endpoint))
        });
        found.ok_or_else(|| {
            let all = self.live.config.endpoints().map(|(upstream, endpoint)| format!("{}/{}", upstream.name, endpoint.name));
            Unusable::Unknown(name.to_owned(), all.collect::<Vec<_>>().join(", "))
        })
    }
}
