//! Retries with jitter, and a hint that is heard. No budget, no breaker, no deadline: each caller is alone.
use super::{Api, No};
use backon::{ExponentialBuilder, Retryable};
use std::sync::Arc;
use std::time::Duration;

pub fn caller(api: Arc<Api>) -> impl Fn(u64) -> std::pin::Pin<Box<dyn Future<Output = bool> + Send>> {
    let backoff = ExponentialBuilder::default().with_min_delay(Duration::from_millis(200)).with_max_times(3).with_jitter();
    move |number| {
        let api = Arc::clone(&api);
        Box::pin(async move {
            (|| api.get(number))
                .retry(backoff)
                .when(|no| *no != No::NotFound)
                .adjust(|no, wait| match (no, wait) {
                    (No::Later(after), Some(wait)) => Some(wait.max(*after)),
                    (_, wait) => wait,
                })
                .await
                .is_ok()
        })
    }
}
