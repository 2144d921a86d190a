//! The one thread that writes. Whatever arrived while it was committing goes into the next transaction, so that one
//! flush of the disk pays for many writes; nobody hears of a write that has to last before it is on disk.

use super::database_lock::{FileLock, Owner};
use super::fair_order::Turns;
use super::reserve::ReserveCommand;
use super::write_ahead_log::{LogBounds, WriteAheadLog};
use super::{Connection, Error, Tx, beside};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::{Notify, mpsc, oneshot};

/// Writes that one transaction holds at most; one of them may be the ends of many jobs, as many as a worker holds.
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

trait WriterCommand: Send {
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), Error>;
    fn weight(&self) -> Weight;
    /// It is on disk, or failed.
    fn acknowledge(self: Box<Self>, outcome: Result<(), Error>);
}

struct Pending<T, F> {
    weight: Weight,
    work: F,
    result: Option<T>,
    /// With the work itself, whose remains are cleared away by whoever asked and not by the one thread that all wait for.
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
        // Whoever asked may have left; what was written stays written.
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

/// The database and its log as they were when they were opened.
struct Files([(PathBuf, Option<(u64, u64)>); 2]);

impl Files {
    /// What a path leads to is named by SQLite: the log is beside it, and not beside a link.
    fn of(database: &Path) -> Self {
        Self(["", "-wal"].map(|ending| {
            let file = beside(database, ending);
            let identity = identity(&file);
            (file, identity)
        }))
    }

    /// A file that is not the one any more that we have open. Its name is not enough: whoever reads a database without a log
    /// makes a new one.
    fn missing(&self) -> Option<PathBuf> {
        self.0.iter().find(|(file, opened)| identity(file) != *opened).map(|(file, _)| file.clone())
    }
}

/// Device and number of a file.
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
    /// Whether a commit waits until the disk has it.
    flushes: bool,
    queue: mpsc::Receiver<Box<dyn WriterCommand>>,
    /// Dropped after the connection: fields are dropped in their order.
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
        // Nobody may come late to a commit that waits for no disk, or that not everybody may have a part in.
        let open = !is_full && batch.iter().any(|work| work.weight() != Weight::Repeats);
        if self.together(batch, open).is_ok() {
            batch.drain(..).for_each(|work| work.acknowledge(Ok(())));
            return;
        }
        // One of them is the cause, or all of them together were too much: each gets a transaction of its own.
        for work in batch.drain(..) {
            self.alone(work);
        }
    }

    /// A file was removed, moved away or replaced. We still have it open, so that what the log holds is folded in; but what we
    /// would write from now on nobody else could find, so that nothing more is written.
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

    /// Chooses what the next commit waits for. A commit that waits brings along those before it that did not.
    fn flush(&mut self, wanted: bool) -> Result<(), Error> {
        if self.flushes != wanted {
            self.db.pragma_update(None, "synchronous", if wanted { "FULL" } else { "NORMAL" })?;
            self.flushes = wanted;
        }
        Ok(())
    }

    /// One transaction for all, and where it is `open` for those who come while it is under way: they need not wait for the next.
    fn together(&mut self, batch: &mut Vec<Box<dyn WriterCommand>>, open: bool) -> Result<(), Error> {
        if batch.is_empty() {
            return Ok(());
        }
        self.flush(batch.iter().any(|work| work.weight() != Weight::Repeats))?;
        self.db.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let ran = self.run(batch, open);
        let committed = ran.and_then(|()| Ok(self.db.prepare_cached("COMMIT")?.execute([]).map(|_| ())?));
        if committed.is_err() && !self.db.is_autocommit() {
            // What cannot even be rolled back is rolled back by the next open.
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

/// What else waits, if there is room for it.
fn next(queue: &mut mpsc::Receiver<Box<dyn WriterCommand>>, batch: &[Box<dyn WriterCommand>]) -> Option<Box<dyn WriterCommand>> {
    if batch.len() < BATCH { queue.try_recv().ok() } else { None }
}

/// While the disk is full, only what ends something is tried.
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
