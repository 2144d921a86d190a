//! Shared state for programs without a gateway: a thread maintains the connection to Redis while any policy needs it.

use crate::clock::Clock;
use crate::shared::{News, RedisStore};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Handle};

/// Interval at which the thread checks whether it is still needed.
const LOOK: Duration = Duration::from_secs(1);

/// Starts the thread. Its runtime also serves callers that have none.
pub(super) fn start_supervisor(store: &Arc<RedisStore>, clock: &Clock) -> std::io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let (handle, store, clock) = (runtime.handle().clone(), Arc::clone(store), clock.clone());
    std::thread::Builder::new().name("seawall-shared".to_owned()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                () = store.supervise(&clock, tell) => {}
                () = alone(&store) => {}
            }
        });
    })?;
    Ok(handle)
}

/// Waits until the thread has the last reference.
async fn alone(store: &Arc<RedisStore>) {
    while Arc::strong_count(store) > 1 {
        tokio::time::sleep(LOOK).await;
    }
}

fn tell(news: News) {
    match news {
        News::Lost(why) => tracing::warn!(target: "seawall", why, "shared state does not answer: each process goes on with what it knows"),
        News::Back => tracing::info!(target: "seawall", "shared state is back"),
    }
}
