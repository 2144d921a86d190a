//! The running process: the admin port, signals, reloads, and the order in which it stops.

use crate::admin;
use crate::host::Host;
use crate::jobs;
use crate::notify;
use crate::open_files;
use crate::reload::{reload, restart, within_time};
use crate::saved_observations as saved;
use crate::snapshot;
use crate::threads::run_on_thread;
use crate::{DrainPhase, ServerState};
use anyhow::Context as _;
use seawall_core::time::Nanos;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// The signals that an operator can send.
#[derive(Debug)]
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?,
            hangup: signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?,
        })
    }
}

/// The way in which a server stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Stopped {
    /// All calls in flight finished, or were cut off after the drain time.
    Drained,
    /// A second signal cut off the calls in flight.
    CutOff,
}

/// The runtime that handles signals and serves the admin port. Blocking work runs on threads of its own.
#[derive(Debug)]
pub struct Control {
    runtime: tokio::runtime::Runtime,
    signals: Signals,
}

impl Control {
    /// Handles signals from now on. Before, SIGHUP would end the process.
    ///
    /// # Errors
    /// When the system refuses a runtime or a signal handler.
    pub fn listen() -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
        let signals = runtime.block_on(async { Signals::listen() })?;
        Ok(Self { runtime, signals })
    }

    /// Reads the files of the configuration. Returns `None` if a signal says stop meanwhile.
    ///
    /// # Errors
    /// Those of `load`, or that it takes too long.
    pub fn load<T: Send + 'static>(&mut self, load: impl FnOnce() -> anyhow::Result<T> + Send + 'static) -> anyhow::Result<Option<T>> {
        self.unless_stopped(async { within_time(run_on_thread("load", load)).await })
    }

    /// Runs a slow function on a thread of its own. Returns `None` if a signal says stop meanwhile.
    ///
    /// # Errors
    /// Those of `start`.
    pub fn start<T: Send + 'static>(&mut self, start: impl FnOnce() -> anyhow::Result<T> + Send + 'static) -> anyhow::Result<Option<T>> {
        self.unless_stopped(run_on_thread("start", start))
    }

    fn unless_stopped<T>(&mut self, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<Option<T>> {
        let Self { runtime, signals } = self;
        runtime.block_on(async {
            tokio::select! {
                _ = signals.terminate.recv() => Ok(None),
                _ = signals.interrupt.recv() => Ok(None),
                done = work => done.map(Some),
            }
        })
    }
}

/// Serves the admin port until `ended` or a signal says stop, then drains within the configured time.
pub(crate) fn run(
    control: Control,
    shared: &Arc<ServerState>,
    admin: std::net::TcpListener,
    phase: &watch::Sender<DrainPhase>,
    ended: impl Future<Output = ()>,
) -> anyhow::Result<Stopped> {
    let Control { runtime, mut signals } = control;
    runtime.block_on(async {
        let admin = tokio::net::TcpListener::from_std(admin)?;
        let mut server = std::pin::pin!(admin::listener::serve(admin, admin::router(Arc::clone(shared)), open_files::admin_connections()));
        let teller = Arc::clone(shared);
        // A task of its own, so that it continues during the drain.
        tokio::spawn(async move { teller.eyes.bus.tell().await });
        shared.host.ready();
        tokio::select! {
            never = &mut server => match never {},
            () = until_stopped(shared, &mut signals) => {}
            () = jobs::run(shared) => {}
            () = saved::run(shared) => {}
            () = snapshot::run(shared) => {}
            () = notify::run(shared) => {}
            () = ended => {}
        }
        shared.host.stopping();
        // Each thread holds a receiver until it ends, so without receivers there is nothing left to drain.
        shared.draining.store(true, Ordering::Relaxed);
        phase.send_replace(DrainPhase::Draining);
        let drain = shared.live.load().config.server.drain;
        let answering = Nanos((drain.0 / 10).min(LAST_ANSWERS.0));
        shared.closing.announce(shared.clock.now().mono + Nanos(drain.0 - answering.0));
        // The admin port still responds meanwhile and reports the drain.
        tokio::select! {
            exit = wait_for_drain(phase, drain, &mut signals) => Ok(exit),
            never = server => match never {},
        }
    })
}

/// Time limit for reading saved state at start and for writing it at the end.
const KEEPING: Duration = Duration::from_secs(5);

/// Restores saved state before the first request is served: operators' names for endpoints, and the state of upstreams and keys.
pub(crate) fn recall(shared: &Arc<ServerState>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    // If the store does not reply now, the state is read again every minute.
    drop(runtime.block_on(async {
        let all = async {
            drop(snapshot::recall(shared).await);
            drop(notify::recall(shared).await);
            saved::recall(shared).await
        };
        tokio::time::timeout(KEEPING, all).await
    }));
    Ok(())
}

/// Saves the state after the last request. If the store does not reply, the last minute is lost.
pub(crate) fn keep_last(shared: &ServerState) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    // Each has its own time limit, so that a failure of one does not prevent the other.
    let (known, seen) =
        runtime.block_on(async { tokio::join!(within_time_limit(snapshot::last(shared)), within_time_limit(saved::last(shared))) });
    if let Err(why) = runtime.block_on(within_time_limit(shared.desk.store.close())) {
        shared.host.note(&format!("warning: the store's log is not folded into its file: {why}"));
    }
    let lost = [("the last second of what is known of breakers and keys", known), ("the last minute of roll-ups", seen)];
    for (what, written) in lost {
        if let Err(why) = written {
            shared.host.note(&format!("warning: {what} is lost: {why}"));
        }
    }
    Ok(())
}

async fn within_time_limit(written: impl Future<Output = Result<(), seawall_store::Error>>) -> Result<(), String> {
    match tokio::time::timeout(KEEPING, written).await {
        Ok(written) => written.map_err(|error| error.to_string()),
        Err(_) => Err("the store does not answer".to_owned()),
    }
}

async fn until_stopped(shared: &Arc<ServerState>, signals: &mut Signals) {
    let mut second = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            _ = signals.terminate.recv() => return,
            _ = signals.interrupt.recv() => return,
            _ = signals.hangup.recv() => {
                let shared = Arc::clone(shared);
                // A task of its own, so that other signals are handled meanwhile.
                tokio::spawn(async move { print_reload(&*shared.host, &reload(&shared).await) });
            }
            _ = second.tick() => shared.clock.follow(),
        }
    }
}

/// Waiting calls are refused this long (or a tenth of the drain time, if shorter) before the end of a drain, so that their callers get a
/// response.
const LAST_ANSWERS: Nanos = Nanos::from_secs(1);

/// Waits until every worker has dropped its receiver, the time is up, or a second signal comes. Only the second signal counts as cut off;
/// the end of the drain time is the configured behaviour.
async fn wait_for_drain(phase: &watch::Sender<DrainPhase>, drain: Nanos, signals: &mut Signals) -> Stopped {
    let exit = tokio::select! {
        biased;
        () = phase.closed() => Stopped::Drained,
        () = tokio::time::sleep(Duration::from_nanos(drain.0)) => Stopped::Drained,
        _ = signals.terminate.recv() => Stopped::CutOff,
        _ = signals.interrupt.recv() => Stopped::CutOff,
    };
    phase.send_replace(DrainPhase::Stopping);
    exit
}

fn print_reload(terminal: &dyn Host, result: &anyhow::Result<Vec<&str>>) {
    match result {
        Ok(needs_restart) => {
            terminal.note("configuration reloaded");
            if let Some(left) = restart(needs_restart) {
                terminal.note(&format!("warning: {left}"));
            }
        }
        Err(error) => {
            terminal.error(error);
            terminal.note("the configuration in force stays as it is");
        }
    }
}
