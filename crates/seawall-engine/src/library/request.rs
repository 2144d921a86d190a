//! The terms of one call, and the call itself.

use super::attempt::Attempt;
use super::classify::{Classify, Usual};
use super::failure::Failure;
use super::future::{Calling, Closure};
use super::outcome::{Errors, Judge, Responses};
use super::policy::Policy;
use http::Method;
use std::sync::Arc;
use std::time::Duration;

/// The terms of a call for the policy.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// `None` means that the call may be repeated, or has a key if the policy asks for one.
    pub(super) method: Option<Method>,
    pub(super) key: Option<Arc<str>>,
    pub(super) deadline: Option<Duration>,
    pub(super) caller: Option<Arc<str>>,
    pub(super) patient: bool,
}

/// A call that has not been made yet. See [`Policy::request`].
///
/// ```
/// use seawall_engine::{Clock, Policy, Reason};
///
/// let clock = Clock::simulated();
/// let policy = Policy::default().with_clock(clock.clone());
/// // A POST without a key is not sent twice once it may have arrived.
/// let reset = || std::io::Error::from(std::io::ErrorKind::ConnectionReset);
/// let post = policy.request().method(http::Method::POST);
/// let failure = clock.run(post.call(|_| async move { Err::<(), _>(reset()) })).unwrap_err();
/// assert_eq!((failure.attempts(), failure.reason()), (1, Reason::NotIdempotent));
/// ```
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it is called"]
pub struct Request<J> {
    policy: Policy,
    judge: J,
    /// Most calls have none.
    terms: Option<Box<Terms>>,
}

impl<J> Request<J> {
    pub(super) const fn new(policy: Policy, judge: J) -> Self {
        Self { policy, judge, terms: None }
    }

    fn terms(&mut self) -> &mut Terms {
        self.terms.get_or_insert_default()
    }

    /// Sets the HTTP method, which decides whether the call may be repeated.
    ///
    /// ```
    /// # use seawall_engine::{Class, Clock, Code, Policy, Reason};
    /// # use std::time::Duration;
    /// # let clock = Clock::simulated();
    /// # let policy = Policy::default().with_clock(clock.clone());
    /// let reset = || std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    /// let delete = policy.request().method(http::Method::DELETE);
    /// let failure = clock.run(delete.call(|_| async move { Err::<(), _>(reset()) })).unwrap_err();
    /// assert!(failure.attempts() > 1, "deleting twice is deleting once");
    /// ```
    pub fn method(mut self, method: Method) -> Self {
        self.terms().method = Some(method);
        self
    }

    /// Sets the idempotency key: the other side executes the call once, however often it is sent.
    ///
    /// ```
    /// # use seawall_engine::{Class, Clock, Code, Policy, Reason};
    /// # use std::time::Duration;
    /// # let clock = Clock::simulated();
    /// # let policy = Policy::default().with_clock(clock.clone());
    /// let reset = || std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    /// let order = policy.request().method(http::Method::POST).idempotency_key("order-17");
    /// let failure = clock.run(order.call(|_| async move { Err::<(), _>(reset()) })).unwrap_err();
    /// assert!(failure.attempts() > 1);
    /// ```
    pub fn idempotency_key(mut self, key: &str) -> Self {
        self.terms().key = Some(Arc::from(key));
        self
    }

    /// Sets the caller's own deadline, which can only shorten the policy's.
    ///
    /// ```
    /// # use seawall_engine::{Class, Clock, Code, Policy, Reason};
    /// # use std::time::Duration;
    /// # let clock = Clock::simulated();
    /// # let policy = Policy::default().with_clock(clock.clone());
    /// let hasty = policy.request().deadline(Duration::from_millis(100));
    /// let failure = clock.run(hasty.call(|_| std::future::pending::<Result<(), std::io::Error>>())).unwrap_err();
    /// assert!(failure.elapsed() <= Duration::from_millis(100));
    /// ```
    pub fn deadline(mut self, length: Duration) -> Self {
        self.terms().deadline = Some(length);
        self
    }

    /// Sets the caller's name, for limits per caller and for metrics: one of a few names, not a user's.
    ///
    /// ```
    /// # use seawall_engine::{Class, Clock, Code, Policy, Reason};
    /// # use std::time::Duration;
    /// # let clock = Clock::simulated();
    /// let text = "[defaults]\nlimits = [{ name = \"each\", key = [\"caller\"], rate = \"1/m\", burst = 1 }]";
    /// let policy = Policy::from_toml(text).unwrap().with_clock(clock.clone());
    /// let ask = |name| clock.run(policy.request().caller(name).call(|_| async { Ok::<_, std::io::Error>(()) }));
    /// assert!(ask("importer").is_ok() && ask("exporter").is_ok());
    /// assert_eq!(ask("importer").unwrap_err().code(), Some(Code::RateLimited));
    /// ```
    pub fn caller(mut self, name: &str) -> Self {
        self.terms().caller = Some(Arc::from(name));
        self
    }

    /// Waits where other calls would be refused: for an open breaker, a limit, a server that asks for an hour. For background workers; the
    /// policy's total time does not apply, only [`Request::deadline`] does.
    ///
    /// ```
    /// # use seawall_engine::{Class, Clock, Code, Policy, Reason};
    /// # use std::time::Duration;
    /// # let clock = Clock::simulated();
    /// let text = "[defaults]\nlimits = [{ name = \"once\", rate = \"1/m\", burst = 1 }]";
    /// let policy = Policy::from_toml(text).unwrap().with_clock(clock.clone());
    /// for _ in 0..3 {
    ///     clock.run(policy.request().patient().call(|_| async { Ok::<_, std::io::Error>(()) })).unwrap();
    /// }
    /// assert_eq!(clock.now().mono.0, 120_000_000_000, "the second and the third waited for their minute");
    /// ```
    pub fn patient(mut self) -> Self {
        self.terms().patient = true;
        self
    }

    /// Classifies errors by this classifier.
    ///
    /// ```
    /// # use seawall_engine::{Class, Clock, Code, Policy, Reason};
    /// # use std::time::Duration;
    /// # let clock = Clock::simulated();
    /// # let policy = Policy::default().with_clock(clock.clone());
    /// let request = policy.request().classify(|_: &&str| Class::Permanent);
    /// assert_eq!(clock.run(request.call(|_| async { Err::<(), _>("no such track") })).unwrap_err().attempts(), 1);
    /// ```
    pub fn classify<C>(self, classifier: C) -> Request<Errors<C>> {
        Request { policy: self.policy, judge: Errors(classifier), terms: self.terms }
    }

    /// Declares that values are HTTP responses, which the policy's rules classify by status and headers. The last one is returned, whatever
    /// it is, so that no response of the other side is lost.
    ///
    /// ```
    /// use seawall_engine::{Clock, Policy};
    ///
    /// let clock = Clock::simulated();
    /// let policy = Policy::default().with_clock(clock.clone());
    /// let mut sent = 0;
    /// let answer = clock.run(policy.request().responses().call(|_| {
    ///     sent += 1;
    ///     let status = if sent == 1 { 503 } else { 200 };
    ///     std::future::ready(Ok::<_, std::io::Error>(http::Response::builder().status(status).body(()).unwrap()))
    /// }));
    /// assert_eq!((answer.unwrap().status(), sent), (http::StatusCode::OK, 2));
    /// ```
    pub fn responses(self) -> Request<Responses<Usual>> {
        Request { policy: self.policy, judge: Responses(Usual), terms: self.terms }
    }

    /// Makes the call. See [`Policy::call`].
    ///
    /// ```
    /// # use seawall_engine::{Class, Clock, Code, Policy, Reason};
    /// # use std::time::Duration;
    /// # let clock = Clock::simulated();
    /// # let policy = Policy::default().with_clock(clock.clone());
    /// let answer = clock.run(policy.request().call(|_| async { Ok::<_, std::io::Error>(42) }));
    /// assert_eq!(answer.unwrap(), 42);
    /// ```
    pub fn call<T, E, F, Fut>(self, send: F) -> impl Future<Output = Result<T, Failure<E>>> + use<J, T, E, F, Fut>
    where
        F: FnMut(Attempt) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        J: Judge<T, E>,
    {
        Calling::new(self.policy, self.judge, Closure { send, terms: self.terms })
    }

    /// Makes the call on a plain thread. See [`Policy::call_blocking`].
    ///
    /// ```
    /// # use seawall_engine::Policy;
    /// let answer = Policy::default().request().call_blocking(|_| Ok::<_, std::io::Error>(42));
    /// assert_eq!(answer.unwrap(), 42);
    /// ```
    ///
    /// # Errors
    /// When the call did not succeed.
    pub fn call_blocking<T, E, F>(self, mut send: F) -> Result<T, Failure<E>>
    where
        F: FnMut(Attempt) -> Result<T, E>,
        J: Judge<T, E>,
    {
        let clock = self.policy.0.clock.for_thread();
        let policy = self.policy.with_clock(clock.clone());
        let send = |attempt| std::future::ready(send(attempt));
        let runtime = policy.0.runtime.clone();
        let _entered = runtime.as_ref().map(tokio::runtime::Handle::enter);
        clock.run(Calling::new(policy, self.judge, Closure { send, terms: self.terms }))
    }
}

impl<C> Request<Responses<C>> {
    /// Classifies errors without a response by this classifier.
    ///
    /// ```
    /// # use seawall_engine::{Class, Clock, Code, Policy, Reason};
    /// # use std::time::Duration;
    /// # let clock = Clock::simulated();
    /// # let policy = Policy::default().with_clock(clock.clone());
    /// let mut results = [Err("line dropped"), Ok(http::Response::new(()))].into_iter();
    /// let request = policy.request().responses().errors(|_: &&str| Class::Transient);
    /// let answer = clock.run(request.call(|_| std::future::ready(results.next().unwrap())));
    /// assert_eq!(answer.unwrap().status(), 200);
    /// ```
    pub fn errors<E, D: Classify<E>>(self, classifier: D) -> Request<Responses<D>> {
        Request { policy: self.policy, judge: Responses(classifier), terms: self.terms }
    }
}
