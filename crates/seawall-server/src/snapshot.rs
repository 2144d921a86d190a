//! Persistence of the state of breakers and keys. It is written to the store within a second of a change and read before requests are
//! served. If Redis has the state, it is read from there instead, repeatedly while a key rests.

use crate::ServerState;

use crate::shared_state;
use seawall_engine::snapshot::Memory;
use seawall_store::Error;
use std::time::Duration;

const EVERY: Duration = Duration::from_secs(1);
const NAME: &str = "upstreams";

/// Runs while the process serves.
pub(crate) async fn run(shared: &ServerState) {
    let mut every = tokio::time::interval(EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut written = None;
    loop {
        every.tick().await;
        let live = shared.live.load_full();
        if live.shared.as_ref().is_none_or(|store| store.is_up()) {
            shared.eyes.bus.clear(shared_state::back(), shared.clock.now().wall);
        }
        if live.shared.is_some() {
            futures_util::future::join_all(live.upstreams.iter().map(|upstream| upstream.refresh_keys(&shared.clock))).await;
            continue;
        }
        let known = Memory::of(&live, shared.clock.now());
        if written.as_ref() == Some(&known) {
            continue;
        }
        // Failures show in the store's health, and the write is repeated in the next round.
        if write(shared, &known).await.is_ok() {
            written = Some(known);
        }
    }
}

/// Saves the state after all other work has ended.
pub(crate) async fn last(shared: &ServerState) -> Result<(), Error> {
    write(shared, &Memory::of(&shared.live.load(), shared.clock.now())).await
}

async fn write(shared: &ServerState, known: &Memory) -> Result<(), Error> {
    if shared.live.load().shared.is_some() {
        return Ok(());
    }
    let text = serde_json::to_vec(known).unwrap_or_default();
    shared.desk.store.put_snapshot(NAME.to_owned(), text.into(), shared.desk.now()).await
}

/// Restores the state before requests are served.
pub(crate) async fn recall(shared: &ServerState) -> Result<(), Error> {
    let live = shared.live.load();
    if live.shared.is_none()
        && let Some((_, text)) = shared.desk.store.snapshot(NAME.to_owned()).await?
    {
        // Data that another version wrote and that cannot be parsed is ignored.
        let known: Memory = serde_json::from_slice(&text).unwrap_or_default();
        known.recall(&live, shared.clock.now());
    }
    Ok(())
}
