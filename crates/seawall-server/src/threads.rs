//! Named threads, and joins with a time limit.

use anyhow::Context as _;
use seawall_core::time::Nanos;
use seawall_engine::clock::Clock;
use std::thread;
use std::time::Duration;

/// A thread that serves requests or runs jobs.
pub(crate) type ServingThread = thread::JoinHandle<anyhow::Result<()>>;

pub(crate) fn spawn<T: Send + 'static>(name: &str, body: impl FnOnce() -> T + Send + 'static) -> anyhow::Result<thread::JoinHandle<T>> {
    thread::Builder::new().name(name.to_owned()).spawn(body).context("cannot start a thread")
}

/// Runs a blocking function on a thread of its own, so that a disk that hangs delays neither other work nor the end of the process.
pub(crate) async fn run_on_thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let (sender, done) = tokio::sync::oneshot::channel();
    // The receiver is gone if the time limit has passed.
    drop(spawn(name, move || drop(sender.send(work())))?);
    done.await.with_context(|| format!("the thread `{name}` panicked"))?
}

/// Joins threads that have been told to stop. A thread that does not stop in time is abandoned: the process exits without it, and the error
/// names it.
pub(crate) fn join_within(workers: Vec<ServingThread>, patience: Nanos, clock: &Clock) -> anyhow::Result<()> {
    let give_up = clock.now().mono + patience;
    while workers.iter().any(|worker| !worker.is_finished()) && clock.now().mono < give_up {
        thread::sleep(Duration::from_millis(5));
    }
    let (ended, stuck): (Vec<_>, Vec<_>) = workers.into_iter().partition(ServingThread::is_finished);
    for worker in ended {
        worker.join().map_err(|_| anyhow::anyhow!("a worker panicked"))??;
    }
    let names: Vec<&str> = stuck.iter().map(|worker| worker.thread().name().unwrap_or("a thread")).collect();
    anyhow::ensure!(names.is_empty(), "{} did not stop within {} s", names.join(", "), patience.as_secs_ceil());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_hangs_does_not_keep_the_process_from_ending() {
        let (_never, blocked) = std::sync::mpsc::channel::<()>();
        let hung = spawn("worker-7", move || {
            blocked.recv().unwrap_or_default();
            Ok(())
        });
        let workers = vec![spawn("worker-6", || Ok(())).unwrap(), hung.unwrap()];
        let error = join_within(workers, Nanos::from_millis(50), &Clock::start()).unwrap_err();
        assert_eq!(error.to_string(), "worker-7 did not stop within 1 s");
    }
}
