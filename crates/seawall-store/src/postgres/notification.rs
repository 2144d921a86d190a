//! Telling and hearing of work, whichever process enqueued it, so that nobody has to wait for a poll.

use super::claim_position::Positions;
use super::errors::failed;
use super::heartbeat::beat;
use super::pool::{PostgresPool, ServerStream};
use super::transaction::{RELAXED, ask};
use crate::error::Error;
use crate::model::job::NewJob;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio_postgres::{AsyncMessage, Connection, Socket};

const CHANNEL: &str = "seawall_jobs";
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Notifications of one process are at least so far apart: each takes a lock of the whole server while it commits.
const BETWEEN_RINGS: Duration = Duration::from_millis(5);

/// Rung where there is something new to claim.
#[derive(Debug, Default)]
pub(super) struct Bell {
    rung: Notify,
    pub(super) positions: Positions,
}

impl Bell {
    /// For jobs that were there before, and come back at any place.
    pub(super) fn ring(&self) {
        self.positions.clear();
        self.rung.notify_one();
    }

    /// For jobs that are new, and come after those of their own priority.
    pub(super) fn ring_for<'j>(&self, jobs: impl Iterator<Item = &'j NewJob>) {
        self.positions.outrun(jobs);
        self.rung.notify_one();
    }
}

/// Wakes whoever waits for work, in every process. After the work is there, and not in its transaction: nobody's
/// acknowledgement waits for it.
pub(super) async fn ring(pool: PostgresPool) {
    let statement = format!("SELECT {RELAXED}, pg_notify($1, '') IS NULL");
    loop {
        pool.bell().rung.notified().await;
        // Those who did not hear it find the work when they poll.
        if let Ok(connection) = pool.get().await {
            drop(ask(&connection, &statement, &[&CHANNEL]).await);
        }
        tokio::time::sleep(BETWEEN_RINGS).await;
    }
}

/// Listens for as long as it is let. Those who wait also poll, so a gap here costs time and never work.
pub(super) async fn listen(pool: PostgresPool, woken: Arc<Notify>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let begun = || {
            // Something may have been missed while nobody listened.
            woken.notify_one();
            pause = FIRST_PAUSE;
        };
        // Its error is its end.
        drop(once(&pool, &woken, begun).await);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Until the connection is lost, or nothing more is heard on it.
async fn once(pool: &PostgresPool, woken: &Notify, begun: impl FnOnce()) -> Result<(), Error> {
    let (client, mut connection) = pool.apart().await?;
    let first = format!("LISTEN {CHANNEL}");
    tokio::select! {
        // What has arrived is read before anybody says that nothing has.
        biased;
        ended = hear(&mut connection, woken) => ended,
        silent = beat(pool, &client, &first, begun) => silent,
    }
}

async fn hear(connection: &mut Connection<Socket, impl ServerStream>, woken: &Notify) -> Result<(), Error> {
    while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
        if let AsyncMessage::Notification(_) = message.map_err(|error| failed(&error))? {
            woken.notify_one();
        }
    }
    Ok(())
}
