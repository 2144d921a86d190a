//! What a successful call costs, ours and our peers': runs one operation N times, so that the difference between two
//! counts of instructions is the operation and nothing else; `run` prints the table. `bench-library same` runs one task in
//! each of them.

mod same;

use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tower::retry::budget::{Budget as _, TpsBudget};
use tower::{Layer as _, Service, service_fn};

/// An operation by name: runs itself so many times.
type Operation = (&'static str, fn(u64));

const OPERATIONS: [Operation; 12] = [
    ("empty", |times| every(times, |at| _ = black_box(at))),
    ("clock", |times| every(times, |_| _ = black_box(Instant::now()))),
    ("bare service", |times| served(times, service_fn(echo))),
    ("seawall call", |times| closure(times, "")),
    ("seawall call, limit + pool", |times| closure(times, LIMITED)),
    ("seawall layer", |times| served(times, seawall_engine::Policy::default().layer().layer(service_fn(echo)))),
    ("tower retry + budget", tower_retry),
    ("tower-resilience retry", |times| served(times, resilient_retry().layer(service_fn(echo)))),
    ("tower-resilience breaker", |times| served(times, resilient_breaker().layer(service_fn(echo)))),
    ("tower-resilience both", |times| served(times, resilient_retry().layer(resilient_breaker().layer(service_fn(echo))))),
    ("failsafe breaker, blocking", failsafe_blocking),
    ("failsafe breaker, async", failsafe_async),
];

#[derive(Clone, Debug)]
struct Broken;

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("broken")
    }
}

impl std::error::Error for Broken {}

impl seawall_engine::Classify<Broken> for seawall_engine::Usual {
    fn classify<'a>(&self, _error: &'a Broken) -> seawall_engine::Meaning<'a> {
        seawall_engine::Class::Transient.into()
    }
}

async fn echo(at: u64) -> Result<u64, Broken> {
    Ok(black_box(at))
}

fn every(times: u64, mut act: impl FnMut(u64)) {
    for at in 0..times {
        act(at);
    }
}

/// Every future here is ready at once.
fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("nothing here waits"),
    }
}

fn served<S: Service<u64, Response = u64>>(times: u64, mut service: S)
where
    S::Error: std::fmt::Debug,
{
    let mut cx = Context::from_waker(Waker::noop());
    every(times, |at| {
        assert!(matches!(service.poll_ready(&mut cx), Poll::Ready(Ok(()))));
        black_box(now(service.call(at)).unwrap());
    });
}

/// Never reached, but asked each time.
const LIMITED: &str = "[pools.p]\nconcurrent = 9\n[defaults]\npool = \"p\"\nlimits = [{ name = \"l\", rate = \"1000000000/s\" }]\n";

fn closure(times: u64, policy: &str) {
    let policy = seawall_engine::Policy::from_toml(policy).unwrap();
    every(times, |at| {
        black_box(now(policy.call(|_| echo(at))).unwrap());
    });
}

#[derive(Clone)]
struct Budgeted(Arc<TpsBudget>);

impl tower::retry::Policy<u64, u64, Broken> for Budgeted {
    type Future = std::future::Ready<()>;

    fn retry(&mut self, _request: &mut u64, result: &mut Result<u64, Broken>) -> Option<Self::Future> {
        if result.is_ok() {
            self.0.deposit();
            return None;
        }
        self.0.withdraw().then(|| std::future::ready(()))
    }

    fn clone_request(&mut self, request: &u64) -> Option<u64> {
        Some(*request)
    }
}

fn tower_retry(times: u64) {
    served(times, tower::retry::Retry::new(Budgeted(Arc::default()), service_fn(echo)));
}

/// The retry layer around errors of whatever kind the service below has.
fn resilient_retry<E: Send + 'static>() -> tower_resilience::retry::RetryLayer<u64, u64, E> {
    tower_resilience::retry::RetryLayer::builder().max_attempts(4).exponential_backoff(Duration::from_millis(200)).build()
}

fn resilient_breaker() -> tower_resilience::circuitbreaker::CircuitBreakerLayer {
    let breaker = tower_resilience::circuitbreaker::CircuitBreakerLayer::builder();
    breaker.failure_rate_threshold(0.5).sliding_window_size(100).build().unwrap()
}

fn failsafe_blocking(times: u64) {
    use failsafe::CircuitBreaker as _;
    let breaker = failsafe::Config::new().build();
    every(times, |at| {
        black_box(breaker.call(|| Ok::<_, Broken>(black_box(at))).unwrap());
    });
}

fn failsafe_async(times: u64) {
    use failsafe::futures::CircuitBreaker as _;
    let breaker = failsafe::Config::new().build();
    every(times, |at| {
        black_box(now(breaker.call(echo(at))).unwrap());
    });
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    if name == "list" {
        return OPERATIONS.iter().for_each(|(name, _)| println!("{name}"));
    }
    if name == "same" {
        return same::run();
    }
    let times = arguments.next().and_then(|text| text.parse().ok()).expect("usage: bench-library <operation> <times> [ns]");
    let (_, run) = OPERATIONS.into_iter().find(|(known, _)| *known == name).expect("an operation from `bench-library list`");
    run(times / 10);
    let before = Instant::now();
    run(times);
    if arguments.next().is_some() {
        println!("{:.1}", before.elapsed().as_nanos() as f64 / times as f64);
    }
}
