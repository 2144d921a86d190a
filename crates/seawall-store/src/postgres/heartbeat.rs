//! Detects a silent server by an empty query twice a second, on the listening connection. After three seconds without a reply all
//! connections are closed, so that waiting requests fail, and no request waits for a new connection until the server replies again. A
//! statement may take longer: a busy server still replies to the heartbeat.

use super::errors::failed;
use super::pool::PostgresPool;
use crate::error::Error;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

const LOOK: Duration = Duration::from_millis(500);
/// Checks without a reply after which the server counts as silent. Checks are counted instead of time, because a stalled process has not
/// listened meanwhile.
const LOOKS: u32 = 6;
/// More checks for a new connection, which costs the server a new process.
const LOOKS_FOR_A_NEW_ONE: u32 = 8;

/// Whether the server is silent; shared by all tasks.
#[derive(Clone, Debug)]
pub(super) struct Pulse(Arc<watch::Sender<bool>>);

impl Pulse {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    pub(super) fn is_silent(&self) -> bool {
        *self.0.borrow()
    }

    pub(super) fn record_reply(&self) {
        self.0.send_if_modified(std::mem::take);
    }

    /// Runs a future while the server is not silent.
    pub(super) async fn during<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        let mut silence = self.0.subscribe();
        tokio::select! {
            biased;
            _ = silence.wait_for(|silent| *silent) => Err(unresponsive()),
            done = work => Ok(done),
        }
    }

    /// Waits for a reply for a number of checks.
    async fn wait_for_answer<T>(&self, looks: u32, answer: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Error> {
        let mut answer = pin!(answer);
        for _ in 0..looks {
            tokio::select! {
                biased;
                answered = &mut answer => return answered.map_err(|error| failed(&error)),
                () = tokio::time::sleep(LOOK) => {}
            }
        }
        self.0.send_replace(true);
        Err(unresponsive())
    }

    pub(super) async fn connect<T>(&self, connected: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Error> {
        self.wait_for_answer(LOOKS_FOR_A_NEW_ONE, connected).await
    }
}

fn unresponsive() -> Error {
    Error::Unavailable("nothing is heard of it".to_owned())
}

/// Sends `first`, then heartbeats until a reply is missing.
pub(super) async fn beat(pool: &PostgresPool, client: &tokio_postgres::Client, first: &str, begun: impl FnOnce()) -> Result<(), Error> {
    let pulse = pool.pulse();
    pulse.wait_for_answer(LOOKS, client.batch_execute(first)).await?;
    pulse.record_reply();
    begun();
    loop {
        tokio::time::sleep(LOOK).await;
        pulse.wait_for_answer(LOOKS, client.batch_execute("")).await?;
    }
}
