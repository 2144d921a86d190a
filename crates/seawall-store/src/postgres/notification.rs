//! Notifications of new work across processes, so that no worker has to wait for a poll.

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
/// Minimum interval of one process's notifications: each takes a server-wide lock during its commit.
const BETWEEN_RINGS: Duration = Duration::from_millis(5);

/// Signals new jobs to claim.
#[derive(Debug, Default)]
pub(super) struct Bell {
    rung: Notify,
    pub(super) positions: Positions,
}

impl Bell {
    /// Signals jobs that existed before and return at any position.
    pub(super) fn ring(&self) {
        self.positions.clear();
        self.rung.notify_one();
    }

    /// Signals new jobs, which follow the others of their priority.
    pub(super) fn ring_for<'j>(&self, jobs: impl Iterator<Item = &'j NewJob>) {
        self.positions.outrun(jobs);
        self.rung.notify_one();
    }
}

/// Wakes waiting workers in every process. The notification follows the job's transaction instead of joining it, so that no acknowledgement
/// waits for it.
pub(super) async fn ring(pool: PostgresPool) {
    let statement = format!("SELECT {RELAXED}, pg_notify($1, '') IS NULL");
    loop {
        pool.bell().rung.notified().await;
        // Workers that miss the notification find the work when they poll.
        if let Ok(connection) = pool.get().await {
            drop(ask(&connection, &statement, &[&CHANNEL]).await);
        }
        tokio::time::sleep(BETWEEN_RINGS).await;
    }
}

/// Listens for notifications until it is dropped. Waiters poll as well, so a gap costs time but loses no work.
pub(super) async fn listen(pool: PostgresPool, woken: Arc<Notify>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let begun = || {
            // A notification may have been missed during the gap.
            woken.notify_one();
            pause = FIRST_PAUSE;
        };
        // An error only ends this connection.
        drop(listen_once(&pool, &woken, begun).await);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Listens until the connection is lost or the server is silent.
async fn listen_once(pool: &PostgresPool, woken: &Notify, begun: impl FnOnce()) -> Result<(), Error> {
    let (client, mut connection) = pool.dedicated_connection().await?;
    let first = format!("LISTEN {CHANNEL}");
    tokio::select! {
        // Messages that have arrived are read before the server counts as silent.
        biased;
        ended = receive(&mut connection, woken) => ended,
        silent = beat(pool, &client, &first, begun) => silent,
    }
}

async fn receive(connection: &mut Connection<Socket, impl ServerStream>, woken: &Notify) -> Result<(), Error> {
    while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
        if let AsyncMessage::Notification(_) = message.map_err(|error| failed(&error))? {
            woken.notify_one();
        }
    }
    Ok(())
}
