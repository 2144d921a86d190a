//! A stalled write, to test concurrent access.

use super::Sqlite;
use super::writer::Weight;
use crate::error::Error;
use std::sync::mpsc::{Sender, channel};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Starts a write that has written a snapshot and ends on a signal.
pub(super) async fn stalled(store: &Sqlite, weight: Weight) -> (JoinHandle<()>, Sender<()>) {
    let ((go, told), (begun, begins)) = (channel(), oneshot::channel());
    let (writer, mut begun) = (store.writer.clone(), Some(begun));
    let write = tokio::spawn(async move {
        let work = move |tx: &mut super::Tx<'_>| {
            tx.db.execute("INSERT INTO snapshots VALUES ('x', 0, x'')", [])?;
            if let Some(begun) = begun.take() {
                let _nobody_asked = begun.send(());
            }
            told.recv().map_err(|error| Error::Failed(error.to_string()))
        };
        writer.run(weight, work).await.unwrap();
    });
    begins.await.unwrap();
    (write, go)
}
