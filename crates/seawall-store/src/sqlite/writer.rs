//! The one thread that writes. Whatever arrived while it was committing goes into the next transaction, so that one
//! flush of the disk pays for many writes; nobody hears of a write before it is on disk.

use super::log::{Bounds, Log};
use super::reserve::Reserve;
use super::turns::Turns;
use super::{Connection, Error, Tx};
use std::path::Path;
use std::sync::Arc;
use tokio::sync::{Notify, mpsc, oneshot};

/// Writes that one transaction holds at most.
const BATCH: usize = 512;
/// Writes that may wait for their transaction.
const QUEUE: usize = 8192;

/// What a write does to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    /// Brings something new: refused first when space runs out.
    Adds,
    /// Ends something that is there.
    Ends,
    /// Would be done over after a power cut, by whoever comes next: a claim without its worker, what time brought about,
    /// what was forgotten. A crash of ours loses none of it, so it waits for no flush of its own.
    Repeats,
}

trait Work: Send {
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), Error>;
    fn weight(&self) -> Weight;
    /// It is on disk, or failed.
    fn acknowledge(self: Box<Self>, outcome: Result<(), Error>);
}

struct Pending<T, F> {
    weight: Weight,
    work: F,
    result: Option<T>,
    reply: oneshot::Sender<Result<T, Error>>,
}

impl<T: Send, F: FnMut(&mut Tx<'_>) -> Result<T, Error> + Send> Work for Pending<T, F> {
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), Error> {
        self.result = Some((self.work)(tx)?);
        Ok(())
    }

    fn weight(&self) -> Weight {
        self.weight
    }

    fn acknowledge(self: Box<Self>, outcome: Result<(), Error>) {
        let Self { result, reply, .. } = *self;
        let result = outcome.and_then(|()| result.ok_or_else(|| Error::Failed("a write left no result".to_owned())));
        // Whoever asked may have left; what was written stays written.
        drop(reply.send(result));
    }
}

#[derive(Clone, Debug)]
pub(super) struct Writer(mpsc::Sender<Box<dyn Work>>);

impl Writer {
    pub(super) fn start(mut db: Connection, turns: Turns, path: &Path, woken: Arc<Notify>) -> Result<Self, Error> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let reserve = Reserve::beside(path);
        let log = Log::watch(&mut db, path, Bounds::USUAL)?;
        std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || Thread { db, log, turns, reserve, woken, flushes: true }.serve(receiver))
            .map_err(|error| Error::Unavailable(error.to_string()))?;
        Ok(Self(sender))
    }

    pub(super) async fn run<T, F>(&self, weight: Weight, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnMut(&mut Tx<'_>) -> Result<T, Error> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let pending = Box::new(Pending { weight, work, result: None, reply });
        self.0.send(pending).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

fn gone() -> Error {
    Error::Unavailable("its writer has stopped".to_owned())
}

struct Thread {
    db: Connection,
    log: Log,
    turns: Turns,
    reserve: Reserve,
    woken: Arc<Notify>,
    /// Whether a commit waits until the disk has it.
    flushes: bool,
}

impl Thread {
    fn serve(mut self, mut queue: mpsc::Receiver<Box<dyn Work>>) {
        let mut batch: Vec<Box<dyn Work>> = Vec::with_capacity(BATCH);
        while let Some(first) = queue.blocking_recv() {
            batch.push(first);
            while batch.len() < BATCH {
                let Ok(next) = queue.try_recv() else { break };
                batch.push(next);
            }
            self.write(&mut batch);
            self.log.begin_anew_if_due(&self.db);
            if self.turns.take_given() {
                self.woken.notify_one();
            }
        }
    }

    fn write(&mut self, batch: &mut Vec<Box<dyn Work>>) {
        if self.reserve.is_spent() && !self.reserve.restore() {
            refuse_what_adds(batch);
        }
        if self.together(batch).is_ok() {
            batch.drain(..).for_each(|work| work.acknowledge(Ok(())));
            return;
        }
        // One of them is the cause, or all of them together were too much: each gets a transaction of its own.
        for mut work in batch.drain(..) {
            let outcome = self.alone(&mut work);
            work.acknowledge(outcome);
        }
    }

    fn alone(&mut self, work: &mut Box<dyn Work>) -> Result<(), Error> {
        let one = std::slice::from_mut(work);
        match self.together(one) {
            Err(Error::Full) if one[0].weight() != Weight::Adds && self.reserve.spend() => self.together(one),
            Err(Error::Full) => {
                self.reserve.spend();
                Err(Error::Full)
            }
            outcome => outcome,
        }
    }

    /// Chooses what the next commit waits for. A commit that waits brings along those before it that did not.
    fn flush(&mut self, wanted: bool) -> Result<(), Error> {
        if self.flushes != wanted {
            self.db.pragma_update(None, "synchronous", if wanted { "FULL" } else { "NORMAL" })?;
            self.flushes = wanted;
        }
        Ok(())
    }

    fn together(&mut self, batch: &mut [Box<dyn Work>]) -> Result<(), Error> {
        if batch.is_empty() {
            return Ok(());
        }
        self.flush(batch.iter().any(|work| work.weight() != Weight::Repeats))?;
        self.db.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let mut tx = Tx { db: &self.db, turns: &mut self.turns };
        let ran = batch.iter_mut().try_for_each(|work| work.run(&mut tx));
        let committed = ran.and_then(|()| Ok(self.db.prepare_cached("COMMIT")?.execute([]).map(|_| ())?));
        if committed.is_err() && !self.db.is_autocommit() {
            // What cannot even be rolled back is rolled back by the next open.
            drop(self.db.execute_batch("ROLLBACK"));
        }
        committed
    }
}

/// While the disk is full, only what ends something is tried.
fn refuse_what_adds(batch: &mut Vec<Box<dyn Work>>) {
    for work in std::mem::take(batch) {
        match work.weight() {
            Weight::Ends | Weight::Repeats => batch.push(work),
            Weight::Adds => work.acknowledge(Err(Error::Full)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::Sqlite;

    fn synchronous(tx: &mut Tx<'_>) -> Result<i64, Error> {
        Ok(tx.db.pragma_query_value(None, "synchronous", |row| row.get(0))?)
    }

    #[tokio::test]
    async fn a_commit_waits_for_the_disk_unless_it_would_only_be_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let store = Sqlite::open(&folder.path().join("seawall.db")).unwrap();
        const FULL: i64 = 2;
        for _ in 0..2 {
            assert!(store.repeat(synchronous).await.unwrap() < FULL);
            assert_eq!(store.write(synchronous).await.unwrap(), FULL);
            assert_eq!(store.finish(synchronous).await.unwrap(), FULL);
        }
    }
}
