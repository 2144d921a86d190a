//! Persistence of roll-ups and of unnamed errors with their names. They are written once a minute and at the end, so a crash loses at most
//! a minute.

use crate::ServerState;
use crate::observe::{Observations, unnamed};
use crate::reload;
use seawall_core::time::Wall;
use seawall_store::Error;
use std::sync::Arc;
use std::time::Duration;

const EVERY: Duration = Duration::from_secs(60);
/// Rows per transaction, so that other writes wait little.
const TOGETHER: usize = 200;
/// Roll-ups are kept for ninety days.
const KEPT_MS: i64 = 90 * 24 * 60 * 60 * 1000;

/// Runs while the process serves.
pub(crate) async fn run(shared: &Arc<ServerState>) {
    let mut every = tokio::time::interval(EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        // Failures show in the store's health, and the writes are repeated in the next round.
        drop(rollups(shared).await);
        drop(errors(shared).await);
        drop(recall(shared).await);
        let before = Wall(shared.desk.now().0.saturating_sub(KEPT_MS));
        while shared.desk.store.sweep_rollups(before).await.is_ok_and(|gone| gone > 0) {}
    }
}

/// Saves the latest state after all other work has ended.
pub(crate) async fn last(shared: &ServerState) -> Result<(), Error> {
    let live = shared.live.load();
    {
        let mut seen = shared.eyes.seen();
        let Observations { alarms, rollups, .. } = &mut *seen;
        alarms.open_time(&live, rollups, shared.clock.now());
    }
    rollups(shared).await?;
    errors(shared).await
}

async fn rollups(shared: &ServerState) -> Result<(), Error> {
    let changed = shared.eyes.seen().rollups.take_changed(shared.eyes.writer);
    for (number, rows) in changed.chunks(TOGETHER).enumerate() {
        if let Err(error) = shared.desk.store.put_rollups(rows.to_vec()).await {
            shared.eyes.seen().rollups.give_back(&changed[number * TOGETHER..]);
            return Err(error);
        }
    }
    Ok(())
}

/// Writes new occurrences of errors to the store.
pub(crate) async fn errors(shared: &ServerState) -> Result<(), Error> {
    let fresh = shared.eyes.seen().errors.take_fresh();
    if fresh.is_empty() {
        return Ok(());
    }
    let noted = shared.desk.store.note_unnamed(fresh.clone()).await;
    if noted.is_err() {
        shared.eyes.seen().errors.give_back(&fresh);
    }
    noted
}

/// Loads errors and names from earlier and from other instances. A name applies from then on.
pub(crate) async fn recall(shared: &Arc<ServerState>) -> Result<(), Error> {
    let stored = shared.desk.store.unnamed(unnamed::MAX_ERRORS).await?;
    let rules = shared.eyes.seen().errors.take_over(&stored);
    if shared.eyes.rename(rules) {
        // If a secret is unreadable now, the rules apply with the next configuration.
        if let Ok(live) = reload::renamed(shared).await {
            shared.live.store(Arc::new(live));
        }
    }
    Ok(())
}
