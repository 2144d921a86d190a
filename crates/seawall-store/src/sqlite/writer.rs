//! The writer thread. Writes that arrive during a commit form the next transaction, so that one flush of the disk pays for many of them. A
//! durable write is acknowledged only once it is on disk.

use super::database_lock::{FileLock, Owner};
use super::fair_order::Turns;
use super::reserve::ReserveCommand;
use super::write_ahead_log::{LogBounds, WriteAheadLog};
use super::{Connection, Error, Tx, beside};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::{Notify, mpsc, oneshot};

/// Maximum writes per transaction; one of them may settle as many jobs as a worker holds.
const BATCH: usize = 512;
/// Maximum writes in the queue.
const QUEUE: usize = 8192;

/// The kind of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    /// Adds data: refused first when space runs out.
    Adds,
    /// Ends something that exists.
    Ends,
    /// Can be redone after a power cut: claims, ticks, deletions. A crash of the process loses none of it, so it needs no flush of its own.
    Repeats,
}

trait WriterCommand: Send {
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), Error>;
    fn weight(&self) -> Weight;
    /// Called when the write is on disk or has failed.
    fn acknowledge(self: Box<Self>, outcome: Result<(), Error>);
}

struct Pending<T, F> {
    weight: Weight,
    work: F,
    result: Option<T>,
    /// Returns the work itself as well, so that its caller drops it and not the writer thread, which all writes wait for.
    reply: oneshot::Sender<(F, Result<T, Error>)>,
}

impl<T: Send, F: FnMut(&mut Tx<'_>) -> Result<T, Error> + Send> WriterCommand for Pending<T, F> {
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), Error> {
        self.result = Some((self.work)(tx)?);
        Ok(())
    }

    fn weight(&self) -> Weight {
        self.weight
    }

    fn acknowledge(self: Box<Self>, outcome: Result<(), Error>) {
        let Self { result, reply, work, .. } = *self;
        let result = outcome.and_then(|()| result.ok_or_else(|| Error::Failed("a write left no result".to_owned())));
        // The caller may have gone; the write stays.
        drop(reply.send((work, result)));
    }
}

#[derive(Clone, Debug)]
pub(super) struct WriterThread(mpsc::Sender<Box<dyn WriterCommand>>);

impl WriterThread {
    pub(super) fn start(mut db: Connection, turns: Turns, path: &Path, woken: Arc<Notify>, owner: &Owner) -> Result<Self, Error> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let reserve = ReserveCommand::beside(path);
        let log = WriteAheadLog::watch(&mut db, path, LogBounds::USUAL, owner.file())?;
        let file = owner.file();
        let files = Files::of(db.path().map_or(path, Path::new));
        std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || Thread { db, log, files, turns, reserve, woken, flushes: true, queue: receiver, _file: file }.serve())
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
        answer.await.map_err(|_| gone())?.1
    }
}

fn gone() -> Error {
    Error::Unavailable("its writer has stopped".to_owned())
}

/// The identity of the database and its log when they were opened.
struct Files([(PathBuf, Option<(u64, u64)>); 2]);

impl Files {
    /// SQLite resolves the path: the log is beside the file itself, not beside a link to it.
    fn of(database: &Path) -> Self {
        Self(["", "-wal"].map(|ending| {
            let file = beside(database, ending);
            let identity = identity(&file);
            (file, identity)
        }))
    }

    /// Returns a file that is no longer the one we have open. Comparing names is not enough: a reader of a database without a log
    /// creates a new one.
    fn missing(&self) -> Option<PathBuf> {
        self.0.iter().find(|(file, opened)| identity(file) != *opened).map(|(file, _)| file.clone())
    }
}

/// Returns device and inode number of a file.
fn identity(file: &Path) -> Option<(u64, u64)> {
    file.metadata().ok().map(|file| (file.dev(), file.ino()))
}

struct Thread {
    db: Connection,
    log: WriteAheadLog,
    files: Files,
    turns: Turns,
    reserve: ReserveCommand,
    woken: Arc<Notify>,
    /// Whether commits currently wait for the disk.
    flushes: bool,
    queue: mpsc::Receiver<Box<dyn WriterCommand>>,
    /// Dropped after the connection: fields are dropped in order.
    _file: Arc<FileLock>,
}

impl Thread {
    fn serve(mut self) {
        let mut batch: Vec<Box<dyn WriterCommand>> = Vec::with_capacity(BATCH);
        while let Some(first) = self.queue.blocking_recv() {
            batch.push(first);
            while let Some(next) = next(&mut self.queue, &batch) {
                batch.push(next);
            }
            self.write(&mut batch);
            self.log.begin_anew_if_due(&self.db);
            if self.turns.take_given() {
                self.woken.notify_one();
            }
        }
    }

    fn write(&mut self, batch: &mut Vec<Box<dyn WriterCommand>>) {
        if let Some(gone) = self.files.missing() {
            return self.refuse_without(&gone, batch);
        }
        let is_full = self.reserve.is_spent() && !self.reserve.restore();
        if is_full {
            refuse_what_adds(batch);
        }
        // Closed to late writes if the commit does not wait for the disk, or if the disk is full and only some writes are allowed.
        let open = !is_full && batch.iter().any(|work| work.weight() != Weight::Repeats);
        if self.together(batch, open).is_ok() {
            batch.drain(..).for_each(|work| work.acknowledge(Ok(())));
            return;
        }
        // One of the writes failed, or all together were too large: each gets a transaction of its own.
        for work in batch.drain(..) {
            self.alone(work);
        }
    }

    /// A file was deleted, moved or replaced. We still have it open, so the content of the log is checkpointed. Further writes would be
    /// invisible to other processes, so they are refused.
    fn refuse_without(&self, file: &Path, batch: &mut Vec<Box<dyn WriterCommand>>) {
        self.log.fold_all(&self.db);
        let gone = Error::Unavailable(format!("{} was removed or replaced while it was in use; restart Seawall", file.display()));
        batch.drain(..).for_each(|work| work.acknowledge(Err(gone.clone())));
    }

    fn alone(&mut self, work: Box<dyn WriterCommand>) {
        let mut one = vec![work];
        let outcome = match self.together(&mut one, false) {
            Err(Error::Full) if one[0].weight() != Weight::Adds && self.reserve.spend() => self.together(&mut one, false),
            Err(Error::Full) => {
                self.reserve.spend();
                Err(Error::Full)
            }
            outcome => outcome,
        };
        one.into_iter().for_each(|work| work.acknowledge(outcome.clone()));
    }

    /// Sets whether the next commit waits for the disk. A commit that waits also makes the ones before it durable.
    fn flush(&mut self, wanted: bool) -> Result<(), Error> {
        if self.flushes != wanted {
            self.db.pragma_update(None, "synchronous", if wanted { "FULL" } else { "NORMAL" })?;
            self.flushes = wanted;
        }
        Ok(())
    }

    /// Runs all writes in one transaction. If it is `open`, writes that arrive meanwhile join it instead of waiting for the next.
    fn together(&mut self, batch: &mut Vec<Box<dyn WriterCommand>>, open: bool) -> Result<(), Error> {
        if batch.is_empty() {
            return Ok(());
        }
        self.flush(batch.iter().any(|work| work.weight() != Weight::Repeats))?;
        self.db.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let ran = self.run(batch, open);
        let committed = ran.and_then(|()| Ok(self.db.prepare_cached("COMMIT")?.execute([]).map(|_| ())?));
        if committed.is_err() && !self.db.is_autocommit() {
            // If even the rollback fails, the next open rolls back.
            drop(self.db.execute_batch("ROLLBACK"));
        }
        committed
    }

    fn run(&mut self, batch: &mut Vec<Box<dyn WriterCommand>>, open: bool) -> Result<(), Error> {
        let (mut tx, mut ran) = (Tx::begun(&self.db, &mut self.turns), 0);
        loop {
            while let Some(work) = batch.get_mut(ran) {
                work.run(&mut tx)?;
                ran += 1;
            }
            match if open { next(&mut self.queue, batch) } else { None } {
                Some(next) => batch.push(next),
                None => return Ok(()),
            }
        }
    }
}

/// Returns the next queued write, if the batch is not full.
fn next(queue: &mut mpsc::Receiver<Box<dyn WriterCommand>>, batch: &[Box<dyn WriterCommand>]) -> Option<Box<dyn WriterCommand>> {
    if batch.len() < BATCH { queue.try_recv().ok() } else { None }
}

/// Refuses new data while the disk is full; other writes are tried.
fn refuse_what_adds(batch: &mut Vec<Box<dyn WriterCommand>>) {
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
    use crate::sqlite::stalled_write::stalled;

    const FULL: i64 = 2;

    fn synchronous(tx: &mut Tx<'_>) -> Result<i64, Error> {
        Ok(tx.db.pragma_query_value(None, "synchronous", |row| row.get(0))?)
    }

    #[tokio::test]
    async fn a_commit_waits_for_the_disk_unless_it_would_only_be_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let store = Sqlite::open(&folder.path().join("seawall.db")).unwrap();
        for _ in 0..2 {
            assert!(store.repeat(synchronous).await.unwrap() < FULL);
            assert_eq!(store.write(synchronous).await.unwrap(), FULL);
            assert_eq!(store.finish(synchronous).await.unwrap(), FULL);
        }
    }

    #[tokio::test]
    async fn whoever_comes_while_a_transaction_is_under_way_is_part_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("seawall.db");
        let store = Sqlite::open(&path).unwrap();
        let (first, go) = stalled(&store, Weight::Adds).await;
        let others_see = move |_: &mut Tx<'_>| {
            let others = Connection::open(&path)?;
            Ok(others.query_row("SELECT count(*) FROM snapshots", [], |row| row.get::<_, i64>(0))?)
        };
        let it_sees = |tx: &mut Tx<'_>| Ok(tx.db.query_row("SELECT count(*) FROM snapshots", [], |row| row.get::<_, i64>(0))?);
        let late = tokio::spawn(async move { tokio::join!(store.write(others_see), store.write(it_sees)) });
        tokio::task::yield_now().await;
        go.send(()).unwrap();
        let (second, third) = late.await.unwrap();
        assert_eq!((second.unwrap(), third.unwrap()), (0, 1), "what the first wrote is not committed yet, and there");
        first.await.unwrap();
    }

    #[tokio::test]
    async fn nobody_who_waits_for_the_disk_joins_those_who_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let store = Sqlite::open(&folder.path().join("seawall.db")).unwrap();
        let (first, go) = stalled(&store, Weight::Repeats).await;
        let late = tokio::spawn(async move { store.write(synchronous).await.unwrap() });
        tokio::task::yield_now().await;
        go.send(()).unwrap();
        assert_eq!(late.await.unwrap(), FULL);
        first.await.unwrap();
    }
}
