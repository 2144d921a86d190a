//! A retry layer with a budget around a breaker layer. What the server asks for is not heard: the backoff sees no errors.
use super::{Api, No};
use std::sync::Arc;
use std::time::Duration;
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_resilience::circuitbreaker::{CircuitBreakerError, CircuitBreakerLayer};
use tower_resilience::retry::{ExponentialRandomBackoff, RetryBudgetBuilder, RetryLayer};

pub fn caller(api: Arc<Api>) -> impl Fn(u64) -> std::pin::Pin<Box<dyn Future<Output = bool> + Send>> {
    let retry = RetryLayer::<u64, u64, CircuitBreakerError<No>>::builder()
        .max_attempts(4)
        .backoff(ExponentialRandomBackoff::new(Duration::from_millis(200), 0.5).unwrap())
        .retry_on(|error| matches!(error, CircuitBreakerError::Inner(No::Unavailable | No::Later(_))))
        .budget(RetryBudgetBuilder::new().token_bucket().tokens_per_second(10.0).max_tokens(100).build().unwrap())
        .build();
    let breaker = CircuitBreakerLayer::builder()
        .failure_classifier(|result: &Result<u64, No>| matches!(result, Err(No::Unavailable)))
        .failure_rate_threshold(0.5)
        .sliding_window_size(20)
        .wait_duration_in_open(Duration::from_secs(1))
        .permitted_calls_in_half_open(2)
        .build()
        .unwrap();
    let service = ServiceBuilder::new().layer(retry).layer(breaker).service(service_fn(move |number| {
        let api = Arc::clone(&api);
        async move { api.get(number).await }
    }));
    move |number| {
        let service = service.clone();
        Box::pin(async move { service.oneshot(number).await.is_ok() })
    }
}
