//! The policy as a `tower` layer.

use http::{Method, Request, Response, StatusCode};
use seawall_engine::{Class, Clock, Failure, Policy, Reason};
use std::collections::VecDeque;
use std::io::{Error, ErrorKind};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use tower_layer::Layer as _;
use tower_service::Service;

/// Responds by a script, records requests, and requires a readiness check before each call.
#[derive(Debug, Default)]
struct Upstream {
    script: Arc<Mutex<VecDeque<Result<u16, ErrorKind>>>>,
    seen: Arc<Mutex<Vec<Request<String>>>>,
    ready: bool,
}

/// Readiness is not copied, as with connections.
impl Clone for Upstream {
    fn clone(&self) -> Self {
        Self { script: Arc::clone(&self.script), seen: Arc::clone(&self.seen), ready: false }
    }
}

impl Upstream {
    fn of(script: &[Result<u16, ErrorKind>]) -> Self {
        Self { script: Arc::new(Mutex::new(script.iter().copied().collect())), ..Self::default() }
    }
}

impl Service<Request<String>> for Upstream {
    type Response = Response<String>;
    type Error = Error;
    type Future = std::future::Ready<Result<Response<String>, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<String>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called without being asked whether it is ready");
        self.seen.lock().unwrap().push(request);
        let next = self.script.lock().unwrap().pop_front().expect("the script has a result for each send");
        std::future::ready(match next {
            Ok(status) => Ok(Response::builder().status(status).body(format!("{status}")).unwrap()),
            Err(kind) => Err(kind.into()),
        })
    }
}

fn sent(policy: &Policy, clock: &Clock, upstream: &Upstream, method: Method) -> Result<Response<String>, Failure<Error>> {
    let mut service = policy.http_layer().layer(upstream.clone());
    let ready = service.poll_ready(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(ready, Poll::Ready(Ok(()))));
    clock.run(service.call(Request::builder().method(method).uri("/x").body("body".to_owned()).unwrap()))
}

fn policy() -> (Policy, Clock) {
    let clock = Clock::simulated();
    (Policy::default().with_clock(clock.clone()).with_seed(3), clock)
}

#[test]
fn a_gateways_whole_file_is_a_policy_for_the_library_too() {
    let text = "[server]\ntls = { cert = \"c.pem\", key = \"file:k.pem\" }\n[callers.a]\ntoken = \"env:A\"\n[callers.b]\ntoken = \"env:B\"\n\
                [upstreams.x]\nurl = \"http://x.test\"\n";
    assert!(seawall_engine::Policies::from_toml(text).unwrap().get("x").is_ok());
}

#[test]
fn answers_are_judged_by_the_policys_rules_and_sent_again_whole() {
    let (policy, clock) = policy();
    let upstream = Upstream::of(&[Ok(503), Err(ErrorKind::ConnectionReset), Ok(200)]);
    assert_eq!(sent(&policy, &clock, &upstream, Method::GET).unwrap().status(), StatusCode::OK);
    assert!(upstream.seen.lock().unwrap().iter().all(|request| request.body() == "body" && request.uri() == "/x"));
    assert_eq!(upstream.seen.lock().unwrap().len(), 3);
}

#[test]
fn the_last_answer_is_returned_whatever_it_is() {
    let (policy, clock) = policy();
    let upstream = Upstream::of(&[Ok(404)]);
    assert_eq!(sent(&policy, &clock, &upstream, Method::GET).unwrap().into_body(), "404");
    let upstream = Upstream::of(&[Ok(503); 5]);
    assert_eq!(sent(&policy, &clock, &upstream, Method::GET).unwrap().into_body(), "503");
}

#[test]
fn a_post_without_a_key_is_not_sent_twice() {
    let (policy, clock) = policy();
    let upstream = Upstream::of(&[Err(ErrorKind::ConnectionReset)]);
    let failure = sent(&policy, &clock, &upstream, Method::POST).unwrap_err();
    assert_eq!((failure.reason(), failure.class()), (Reason::NotIdempotent, Some(Class::Transient)));
    assert_eq!(failure.error().unwrap().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_payment_gets_a_key_and_keeps_it() {
    let clock = Clock::simulated();
    let policy = Policy::profile("payment").unwrap().with_clock(clock.clone());
    let upstream = Upstream::of(&[Err(ErrorKind::ConnectionReset), Ok(201)]);
    sent(&policy, &clock, &upstream, Method::POST).unwrap();
    let seen = upstream.seen.lock().unwrap();
    let keys: Vec<_> = seen.iter().map(|request| request.headers()["idempotency-key"].clone()).collect();
    assert!(keys.len() == 2 && keys[0] == keys[1], "{keys:?}");
}

#[test]
fn services_of_any_kind_take_a_classifier() {
    #[derive(Clone)]
    struct Flaky(Arc<Mutex<u32>>);

    impl Service<u32> for Flaky {
        type Response = u32;
        type Error = &'static str;
        type Future = std::future::Ready<Result<u32, &'static str>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: u32) -> Self::Future {
            let mut calls = self.0.lock().unwrap();
            *calls += 1;
            std::future::ready(if *calls < 3 { Err("busy") } else { Ok(request) })
        }
    }

    let (policy, clock) = policy();
    let layer = policy.layer().classify(|_: &&str| Class::Transient);
    assert_eq!(clock.run(layer.layer(Flaky(Arc::default())).call(9)).unwrap(), 9);
}
