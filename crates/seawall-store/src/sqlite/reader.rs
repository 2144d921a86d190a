//! Two reading threads, so that a slow list delays neither writes nor the next list.

use super::database_lock::Owner;
use super::{Connection, Error, connect_to_read};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{mpsc, oneshot};

const THREADS: usize = 2;
/// Maximum reads in the queue.
const QUEUE: usize = 256;

type ReadQuery = Box<dyn FnOnce(&Connection) + Send>;

#[derive(Clone, Debug)]
pub(super) struct ReadConnection(mpsc::Sender<ReadQuery>);

impl ReadConnection {
    pub(super) fn start(path: &Path, owner: &Owner) -> Result<Self, Error> {
        let (sender, receiver) = mpsc::channel::<ReadQuery>(QUEUE);
        let receiver = Arc::new(Mutex::new(receiver));
        for number in 0..THREADS {
            let (file, db, receiver) = (owner.file(), connect_to_read(path)?, Arc::clone(&receiver));
            let serve = move || {
                loop {
                    // Locked only while waiting: a thread that has a query releases the lock, so that the other can wait for the next.
                    let next = receiver.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv();
                    let Some(query) = next else { break };
                    query(&db);
                }
                drop(db);
                drop(file);
            };
            let thread = std::thread::Builder::new().name(format!("store-reader-{number}"));
            thread.spawn(serve).map_err(|error| Error::Unavailable(error.to_string()))?;
        }
        Ok(Self(sender))
    }

    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        let query: ReadQuery = Box::new(move |db| drop(reply.send(work(db))));
        self.0.send(query).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

fn gone() -> Error {
    Error::Unavailable("its readers have stopped".to_owned())
}
