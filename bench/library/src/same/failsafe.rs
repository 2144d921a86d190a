//! A breaker; retries come from elsewhere, and know nothing of each other.
use super::{Api, No};
use backon::{ExponentialBuilder, Retryable};
use failsafe::futures::CircuitBreaker;
use failsafe::{Config, Error, backoff, failure_policy};
use std::sync::Arc;
use std::time::Duration;

pub fn caller(api: Arc<Api>) -> impl Fn(u64) -> std::pin::Pin<Box<dyn Future<Output = bool> + Send>> {
    let open = backoff::constant(Duration::from_secs(1));
    let breaker = Config::new().failure_policy(failure_policy::consecutive_failures(5, open)).build();
    let retries = ExponentialBuilder::default().with_min_delay(Duration::from_millis(200)).with_max_times(3).with_jitter();
    move |number| {
        let (api, breaker) = (Arc::clone(&api), breaker.clone());
        Box::pin(async move {
            (|| breaker.call_with(|no: &No| *no == No::Unavailable, api.get(number)))
                .retry(retries)
                .when(|error| matches!(error, Error::Inner(No::Unavailable | No::Later(_))))
                .adjust(|error, wait| match (error, wait) {
                    (Error::Inner(No::Later(after)), Some(wait)) => Some(wait.max(*after)),
                    (_, wait) => wait,
                })
                .await
                .is_ok()
        })
    }
}
