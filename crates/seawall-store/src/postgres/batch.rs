//! Group commit over the network: commands that arrive during a statement form the next one.

use super::pool::PostgresPool;
use crate::error::Error;
use std::future::Future;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

/// Approximate maximum of rows per statement.
const BATCH: usize = 512;
/// Approximate maximum size of a statement: a server accepts no message above a gigabyte and holds each in memory.
const BATCH_BYTES: usize = 8 << 20;
/// Maximum commands in the queue.
const QUEUE: usize = 8192;
/// Pauses before a batch is written again after its connection broke.
const PAUSES_MS: [u64; 3] = [50, 250, 1000];

/// A command that can be batched.
pub(super) trait BatchCommand: Sized + Send + Sync + 'static {
    type Answer: Send + 'static;

    fn rows(&self) -> usize;

    /// Approximate size of its large parts.
    fn bytes(&self) -> usize;

    /// Returns whether an earlier try may have written it already.
    fn is_in_doubt(&self) -> bool;

    /// Writes a batch; replies are in order. Commands in `doubt` may have been written already and must not count twice. If a part was
    /// written before the rest failed, that part is in doubt from then on.
    fn write(pool: &PostgresPool, batch: &[Self], doubt: &mut [bool]) -> impl Future<Output = Result<Vec<Self::Answer>, Error>> + Send;
}

type BatchReply<B> = oneshot::Sender<Result<<B as BatchCommand>::Answer, Error>>;

pub(super) struct Batcher<B: BatchCommand>(mpsc::Sender<(B, BatchReply<B>)>);

impl<B: BatchCommand> std::fmt::Debug for Batcher<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batcher").field("room", &self.0.capacity()).finish()
    }
}

impl<B: BatchCommand> Batcher<B> {
    pub(super) fn start(pool: &PostgresPool, tasks: &mut JoinSet<()>) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        tasks.spawn(serve(pool.clone(), receiver));
        Self(sender)
    }

    pub(super) async fn run(&self, command: B) -> Result<B::Answer, Error> {
        self.enqueue(command).await?.await.map_err(|_| connection_lost())?
    }

    /// Runs several commands; the replies are in their order.
    pub(super) async fn run_all(&self, commands: Vec<B>) -> Vec<Result<B::Answer, Error>> {
        let mut answers = Vec::with_capacity(commands.len());
        for command in commands {
            answers.push(self.enqueue(command).await);
        }
        let mut all = Vec::with_capacity(answers.len());
        for answer in answers {
            all.push(match answer {
                Ok(answer) => answer.await.unwrap_or_else(|_| Err(connection_lost())),
                Err(error) => Err(error),
            });
        }
        all
    }

    async fn enqueue(&self, command: B) -> Result<oneshot::Receiver<Result<B::Answer, Error>>, Error> {
        let (reply, answer) = oneshot::channel();
        self.0.send((command, reply)).await.map_err(|_| connection_lost())?;
        Ok(answer)
    }
}

fn connection_lost() -> Error {
    Error::Unavailable("its writer has stopped".to_owned())
}

async fn serve<B: BatchCommand>(pool: PostgresPool, mut queue: mpsc::Receiver<(B, BatchReply<B>)>) {
    while let Some((command, reply)) = queue.recv().await {
        let (mut rows, mut bytes) = (command.rows(), command.bytes());
        let (mut batch, mut replies) = (vec![command], vec![reply]);
        while rows < BATCH
            && bytes < BATCH_BYTES
            && let Ok((command, reply)) = queue.try_recv()
        {
            rows += command.rows();
            bytes += command.bytes();
            batch.push(command);
            replies.push(reply);
        }
        let mut doubt: Vec<bool> = batch.iter().map(BatchCommand::is_in_doubt).collect();
        match patiently(&pool, &batch, &mut doubt).await {
            // The caller may have gone; the write stays.
            Ok(answers) => replies.into_iter().zip(answers).for_each(|(reply, answer)| drop(reply.send(Ok(answer)))),
            Err(error) if batch.len() == 1 || (error.passes() && pool.probe().await.is_err()) => {
                replies.into_iter().for_each(|reply| drop(reply.send(Err(error.clone()))));
            }
            // The server is reachable, so one command is the cause: each gets a statement of its own.
            Err(_) => run_one_by_one(&pool, batch, replies, doubt).await,
        }
    }
}

async fn run_one_by_one<B: BatchCommand>(pool: &PostgresPool, batch: Vec<B>, replies: Vec<BatchReply<B>>, doubt: Vec<bool>) {
    for ((command, reply), doubt) in batch.into_iter().zip(replies).zip(doubt) {
        let written = patiently(pool, &[command], &mut [doubt]).await;
        let answer = written.and_then(|answers| answers.into_iter().next().ok_or_else(connection_lost));
        drop(reply.send(answer));
    }
}

async fn patiently<B: BatchCommand>(pool: &PostgresPool, batch: &[B], doubt: &mut [bool]) -> Result<Vec<B::Answer>, Error> {
    for pause in PAUSES_MS {
        match B::write(pool, batch, doubt).await {
            // If another request has found the server away, it has already waited long enough.
            Err(Error::Unavailable(_)) if !pool.is_unreachable() => tokio::time::sleep(Duration::from_millis(pause)).await,
            done => return done,
        }
        doubt.fill(true);
    }
    B::write(pool, batch, doubt).await
}
