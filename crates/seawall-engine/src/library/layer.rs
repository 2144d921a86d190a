//! The policy as a `tower` layer. The service instance that reported readiness makes the first attempt; a retry polls it again.

use super::attempt::Attempt;
use super::failure::Failure;
use super::future::{AttemptSender, Calling};
use super::outcome::{Errors, Judge, Responses};
use super::policy::Policy;
use super::request::Terms;
use http::HeaderValue;
use http::header::HeaderName;
use pin_project_lite::pin_project;
use seawall_core::call::{CallEnd, Outcome};
use seawall_core::record::{Class, Reason};
use seawall_core::time::Nanos;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tower_service::Service;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Reads the terms of a request, and prepares it for an attempt.
pub trait Describe<R> {
    /// Returns the terms of a call that sends this request.
    fn terms(request: &R) -> Terms;
    /// Returns whether these terms are the default, up to the first result.
    fn is_plain(request: &R) -> bool;
    /// Prepares the request for this attempt.
    fn prepare(request: &mut R, attempt: &Attempt);
}

/// An unknown request type: it may be sent again.
impl<R, C> Describe<R> for Errors<C> {
    fn terms(_request: &R) -> Terms {
        Terms::default()
    }

    fn is_plain(_request: &R) -> bool {
        true
    }

    fn prepare(_request: &mut R, _attempt: &Attempt) {}
}

impl<B, C> Describe<http::Request<B>> for Responses<C> {
    fn terms(request: &http::Request<B>) -> Terms {
        let key = request.headers().get(IDEMPOTENCY_KEY).and_then(|key| key.to_str().ok()).map(Arc::from);
        Terms { method: Some(request.method().clone()), key, ..Terms::default() }
    }

    fn is_plain(request: &http::Request<B>) -> bool {
        !request.headers().contains_key(IDEMPOTENCY_KEY)
    }

    fn prepare(request: &mut http::Request<B>, attempt: &Attempt) {
        if let Some(key) = attempt.idempotency_key().and_then(|key| HeaderValue::from_str(key).ok()) {
            request.headers_mut().entry(IDEMPOTENCY_KEY).or_insert(key);
        }
    }
}

/// A layer that makes each request a call of its policy. See [`Policy::layer`] and [`Policy::http_layer`].
///
/// ```
/// use seawall_engine::{Class, Policy};
/// use tower_layer::Layer as _;
/// # #[derive(Clone)] struct Inner;
///
/// let layer = Policy::default().layer().classify(|_: &&str| Class::Transient);
/// let service = layer.layer(Inner);
/// ```
#[derive(Clone, Debug)]
pub struct PolicyLayer<J> {
    policy: Policy,
    judge: J,
}

impl<J> PolicyLayer<J> {
    pub(super) const fn new(policy: Policy, judge: J) -> Self {
        Self { policy, judge }
    }
}

impl<C> PolicyLayer<Errors<C>> {
    /// Classifies errors by this classifier.
    ///
    /// ```
    /// # use seawall_engine::{Class, Policy};
    /// # use tower_layer::Layer as _;
    /// # use tower_service::Service as _;
    /// # #[derive(Clone)] struct Inner;
    /// # impl tower_service::Service<u32> for Inner {
    /// #     type Response = u32;
    /// #     type Error = &'static str;
    /// #     type Future = std::future::Ready<Result<Self::Response, Self::Error>>;
    /// #     fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> { std::task::Poll::Ready(Ok(())) }
    /// #     fn call(&mut self, _: u32) -> Self::Future { std::future::ready(Err("no such track")) }
    /// # }
    /// # let clock = seawall_engine::Clock::simulated();
    /// # let policy = Policy::default().with_clock(clock.clone());
    /// let mut service = policy.layer().classify(|_: &&str| Class::Permanent).layer(Inner);
    /// assert_eq!(clock.run(service.call(7)).unwrap_err().attempts(), 1);
    /// ```
    #[must_use]
    pub fn classify<D>(self, classifier: D) -> PolicyLayer<Errors<D>> {
        PolicyLayer { policy: self.policy, judge: Errors(classifier) }
    }
}

impl<C> PolicyLayer<Responses<C>> {
    /// Classifies errors without a response by this classifier.
    ///
    /// ```
    /// # use seawall_engine::{Class, Policy};
    /// # use tower_layer::Layer as _;
    /// # use tower_service::Service as _;
    /// # #[derive(Clone)] struct Inner;
    /// # impl tower_service::Service<http::Request<()>> for Inner {
    /// #     type Response = http::Response<()>;
    /// #     type Error = &'static str;
    /// #     type Future = std::future::Ready<Result<Self::Response, Self::Error>>;
    /// #     fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> { std::task::Poll::Ready(Ok(())) }
    /// #     fn call(&mut self, _: http::Request<()>) -> Self::Future { std::future::ready(Err("no such track")) }
    /// # }
    /// # let clock = seawall_engine::Clock::simulated();
    /// # let policy = Policy::default().with_clock(clock.clone());
    /// let mut service = policy.http_layer().classify(|_: &&str| Class::Permanent).layer(Inner);
    /// assert_eq!(clock.run(service.call(http::Request::new(()))).unwrap_err().attempts(), 1);
    /// ```
    #[must_use]
    pub fn classify<D>(self, classifier: D) -> PolicyLayer<Responses<D>> {
        PolicyLayer { policy: self.policy, judge: Responses(classifier) }
    }
}

impl<S, J: Clone> tower_layer::Layer<S> for PolicyLayer<J> {
    type Service = PolicyService<S, J>;

    fn layer(&self, inner: S) -> Self::Service {
        PolicyService { inner, policy: self.policy.clone(), judge: self.judge.clone() }
    }
}

/// A service under a policy. Its error is a [`Failure`] that contains the inner service's error.
///
/// ```
/// use seawall_engine::{Clock, Policy};
/// use std::task::{Context, Poll};
/// use tower_layer::Layer as _;
/// use tower_service::Service;
///
/// #[derive(Clone)]
/// struct Doubler;
///
/// impl Service<u32> for Doubler {
///     type Response = u32;
///     type Error = std::io::Error;
///     type Future = std::future::Ready<Result<u32, std::io::Error>>;
///
///     fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
///         Poll::Ready(Ok(()))
///     }
///
///     fn call(&mut self, request: u32) -> Self::Future {
///         std::future::ready(Ok(request * 2))
///     }
/// }
///
/// let clock = Clock::simulated();
/// let mut service = Policy::default().with_clock(clock.clone()).layer().layer(Doubler);
/// assert_eq!(clock.run(service.call(21)).unwrap(), 42);
/// ```
#[derive(Clone, Debug)]
pub struct PolicyService<S, J> {
    inner: S,
    policy: Policy,
    judge: J,
}

impl<S, J, R> Service<R> for PolicyService<S, J>
where
    S: Service<R> + Clone,
    R: Clone,
    J: Judge<S::Response, S::Error> + Describe<R> + Clone,
{
    type Response = S::Response;
    type Error = Failure<S::Error>;
    type Future = Calling<Resend<S, R>, J>;

    /// Ready when the inner service is. An open breaker does not affect readiness: its refusal comes at once, as an error with the time to
    /// come back.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(|error| Failure {
            error: Some(error),
            finish: CallEnd {
                outcome: Outcome::Failed(Class::Permanent),
                reason: Reason::PermanentFailure,
                attempts: 0,
                elapsed: Nanos::ZERO,
                waited: Nanos::ZERO,
                retry_after: None,
            },
            class: None,
        })
    }

    fn call(&mut self, request: R) -> Self::Future {
        // Readiness belongs to the instance that was polled; the new clone has to be polled again.
        let fresh = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, fresh);
        Calling::new(self.policy.clone(), self.judge.clone(), Resend { service: ready, request })
    }
}

/// Sends one request to a service repeatedly.
pub struct Resend<S, R> {
    service: S,
    request: R,
}

impl<S, R> fmt::Debug for Resend<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resend")
    }
}

impl<S: Service<R> + Clone, R: Clone, J: Describe<R>> AttemptSender<J> for Resend<S, R> {
    type Value = S::Response;
    type Error = S::Error;
    type Future = Sending<S, R>;

    fn terms(&mut self) -> Terms {
        J::terms(&self.request)
    }

    #[inline]
    fn is_plain(&self) -> bool {
        J::is_plain(&self.request)
    }

    #[inline]
    fn send(&mut self, attempt: Attempt) -> Self::Future {
        let mut request = self.request.clone();
        J::prepare(&mut request, &attempt);
        if attempt.number() == 1 {
            return Sending { step: SendingStep::Sent { future: self.service.call(request) } };
        }
        Sending { step: SendingStep::Unready { service: self.service.clone(), request: Some(request) } }
    }
}

pin_project! {
    /// One attempt: waits until the service is ready, then for its response.
    pub struct Sending<S: Service<R>, R> {
        #[pin]
        step: SendingStep<S, R>,
    }
}

pin_project! {
    #[project = SendingNow]
    enum SendingStep<S: Service<R>, R> {
        Unready { service: S, request: Option<R> },
        Sent { #[pin] future: S::Future },
    }
}

impl<S: Service<R>, R> Future for Sending<S, R> {
    type Output = Result<S::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut step = self.project().step;
        loop {
            let future = match step.as_mut().project() {
                SendingNow::Sent { future } => return future.poll(cx),
                SendingNow::Unready { service, request } => {
                    if let Err(error) = ready!(service.poll_ready(cx)) {
                        return Poll::Ready(Err(error));
                    }
                    let Some(request) = request.take() else { unreachable!("a request is sent once") };
                    service.call(request)
                }
            };
            step.set(SendingStep::Sent { future });
        }
    }
}

impl<S: Service<R>, R> fmt::Debug for Sending<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sending")
    }
}
