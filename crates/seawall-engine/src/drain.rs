//! The end of the program, as calls that wait hear of it: one whose wait would outlast the program is refused instead of cut off.

use crate::clock::Clock;
use seawall_core::time::Mono;
use tokio::sync::watch;

/// When calls that still wait are refused, once that is known.
#[derive(Debug, Default)]
pub struct DrainDeadline {
    at: watch::Sender<Option<Mono>>,
}

impl DrainDeadline {
    /// Refuses from then on every call that waits.
    pub fn announce(&self, at: Mono) {
        self.at.send_replace(Some(at));
    }

    /// Returns at the announced time; never while none is announced.
    pub(crate) async fn reached(&self, clock: &Clock) {
        let mut announced = self.at.subscribe();
        let at = announced.wait_for(Option::is_some).await.ok().and_then(|at| *at);
        match at {
            Some(at) => clock.sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}
