//! The announced end of the process: a call whose wait would outlast it is refused instead of cut off.

use crate::clock::Clock;
use seawall_core::time::Mono;
use tokio::sync::watch;

/// The time at which waiting calls are refused, once announced.
#[derive(Debug, Default)]
pub struct DrainDeadline {
    at: watch::Sender<Option<Mono>>,
}

impl DrainDeadline {
    /// Refuses every waiting call from that time on.
    pub fn announce(&self, at: Mono) {
        self.at.send_replace(Some(at));
    }

    /// Returns at the announced time; waits forever if none is announced.
    pub(crate) async fn wait_for_end(&self, clock: &Clock) {
        let mut announced = self.at.subscribe();
        let at = announced.wait_for(Option::is_some).await.ok().and_then(|at| *at);
        match at {
            Some(at) => clock.sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}
