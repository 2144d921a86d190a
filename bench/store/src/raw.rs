//! What the disk can do with rows like a job's, by SQLite itself with the same settings: in a plain loop, and for producers that each
//! wait for their own acknowledgement, as ours do.

use rusqlite::Connection;
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Instant;
use tokio::sync::oneshot;

/// What a job takes in the file, with its entries in two indexes.
const BYTES: usize = 350;
/// As the store's own: rows that one transaction holds at most.
const BATCH: usize = 512;

/// One row: its bytes, and who waits for it.
type Row = (Vec<u8>, oneshot::Sender<()>);

/// A table without an index.
fn open(folder: &Path, name: &str) -> Connection {
    let db = Connection::open(folder.join(name)).unwrap();
    db.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE t (row INTEGER PRIMARY KEY, body BLOB)").unwrap();
    db
}

fn begin(db: &Connection) {
    db.prepare_cached("BEGIN IMMEDIATE").unwrap().execute([]).unwrap();
}

fn insert(db: &Connection, body: &[u8]) {
    db.prepare_cached("INSERT INTO t (body) VALUES (?)").unwrap().execute([body]).unwrap();
}

fn commit(db: &Connection) {
    db.prepare_cached("COMMIT").unwrap().execute([]).unwrap();
}

/// Rows a second, as many in a commit as there are producers, with nobody waiting.
pub(crate) fn alone(folder: &Path) -> f64 {
    let db = open(folder, "raw.db");
    let (started, mut rows) = (Instant::now(), 0);
    while started.elapsed() < crate::RUN {
        begin(&db);
        (0..crate::PRODUCERS).for_each(|_| insert(&db, &[7; BYTES]));
        commit(&db);
        rows += crate::PRODUCERS;
    }
    rows as f64 / started.elapsed().as_secs_f64()
}

/// A thread that commits whatever waits, and tells each afterwards.
fn write(db: &Connection, rows: &Receiver<Row>) {
    let mut waiting = Vec::with_capacity(BATCH);
    while let Ok((body, told)) = rows.recv() {
        begin(db);
        insert(db, &body);
        waiting.push(told);
        while waiting.len() < BATCH
            && let Ok((body, told)) = rows.try_recv()
        {
            insert(db, &body);
            waiting.push(told);
        }
        commit(db);
        waiting.drain(..).for_each(|told: oneshot::Sender<()>| told.send(()).unwrap());
    }
}

/// Rows a second that producers were told of, through one thread with group commit.
pub(crate) async fn with_producers(folder: &Path, name: &str) -> f64 {
    // Every producer has one row under way at most, so nobody waits for room.
    let (sender, rows) = sync_channel(crate::PRODUCERS);
    let db = open(folder, name);
    let writer = std::thread::spawn(move || write(&db, &rows));
    let rate = crate::produce(|| {
        let sender = sender.clone();
        move || {
            let (told, acknowledged) = oneshot::channel();
            sender.send((vec![7; BYTES], told)).unwrap();
            async move { acknowledged.await.unwrap() }
        }
    })
    .await
    .0;
    drop(sender);
    writer.join().unwrap();
    rate
}
