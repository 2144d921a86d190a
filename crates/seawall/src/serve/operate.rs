//! Running the process: the admin port, signals, reloads, and the order in which it stops.

use super::{Phase, Shared, admin, jobs};
use crate::setup::{self, Environment};
use anyhow::Context as _;
use seawall_core::time::Nanos;
use seawall_engine::clock::Clock;
use seawall_engine::shared::{News, Store};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// How reloads went, for metrics.
#[derive(Debug)]
pub(crate) struct Reloads {
    pub ok: AtomicU64,
    pub failed: AtomicU64,
    pub last_ok: AtomicBool,
}

impl Default for Reloads {
    fn default() -> Self {
        Self { ok: AtomicU64::new(0), failed: AtomicU64::new(0), last_ok: AtomicBool::new(true) }
    }
}

/// What an operator can tell a running process.
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

/// Serves the admin port until `ended` or a signal says stop, then drains within the configured time. `ended` is not
/// begun before signals are heard.
pub(super) fn run(
    shared: &Arc<Shared>,
    admin: std::net::TcpListener,
    phase: &watch::Sender<Phase>,
    ended: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    runtime.block_on(async {
        let admin = tokio::net::TcpListener::from_std(admin)?;
        let mut server = pin!(axum::serve(admin, admin::router(Arc::clone(shared))).into_future());
        let mut signals = Signals::listen()?;
        setup::notify_ready();
        tokio::select! {
            served = server.as_mut() => served.context("the admin port failed")?,
            () = until_stopped(shared, &mut signals) => {}
            () = jobs::keep_up(shared) => {}
            () = ended => {}
        }
        shared.is_stopping.store(true, Ordering::Relaxed);
        setup::notify_stopping();
        // Receivers live as long as their threads; one that is gone has nothing left to drain.
        phase.send_replace(Phase::Draining);
        let drain = shared.live.load().config.server.drain;
        // The admin port stays open meanwhile, so that a drain can be watched.
        tokio::select! {
            () = wait_for_drain(phase, drain, &mut signals) => {}
            () = async { drop(server.await); std::future::pending().await } => {}
        }
        Ok(())
    })
}

async fn until_stopped(shared: &Arc<Shared>, signals: &mut Signals) {
    let mut second = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            _ = signals.terminate.recv() => return,
            _ = signals.interrupt.recv() => return,
            _ = signals.hangup.recv() => tell(&reload(shared)),
            _ = second.tick() => shared.clock.follow(),
        }
    }
}

/// Until every worker has let go of its receiver, the time is up, or a second signal comes.
async fn wait_for_drain(phase: &watch::Sender<Phase>, drain: Nanos, signals: &mut Signals) {
    tokio::select! {
        () = phase.closed() => {}
        () = tokio::time::sleep(Duration::from_nanos(drain.0)) => {}
        _ = signals.terminate.recv() => {}
        _ = signals.interrupt.recv() => {}
    }
    phase.send_replace(Phase::Stopping);
}

/// Validates the file and swaps it in; a bad one changes nothing.
pub(super) fn reload(shared: &Shared) -> anyhow::Result<()> {
    let loaded = setup::load(Some(&shared.file)).and_then(|(file, config)| {
        let vault = Environment::beside(&file);
        let before = shared.live.load();
        Ok(super::put_to_work(config, &vault, Some((&before, shared.clock.now())))?)
    });
    let result = loaded.map(|live| shared.live.store(Arc::new(live)));
    shared.reloads.last_ok.store(result.is_ok(), Ordering::Relaxed);
    let count = if result.is_ok() { &shared.reloads.ok } else { &shared.reloads.failed };
    count.fetch_add(1, Ordering::Relaxed);
    result
}

/// Keeps the connection to shared state up, on a thread and a runtime of its own.
pub(super) fn look_after(store: &Store, clock: &Clock) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    let terminal = crate::terminal::Terminal::plain();
    runtime.block_on(store.supervise(clock, |news| match news {
        News::Lost(why) => terminal.note(&format!(
            "warning: shared state does not answer ({why}); limits run on a share of one in {}, breakers and keys on what is known here",
            store.instances()
        )),
        News::Back => terminal.note("shared state is back"),
    }));
    Ok(())
}

fn tell(result: &anyhow::Result<()>) {
    let terminal = crate::terminal::Terminal::plain();
    match result {
        Ok(()) => terminal.note("configuration reloaded"),
        Err(error) => {
            let _: crate::exit::Exit = terminal.fail(error);
            terminal.note("the configuration in force stays as it is");
        }
    }
}
