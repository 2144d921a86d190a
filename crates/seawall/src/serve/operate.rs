//! Running the process: the admin port, signals, reloads, and the order in which it stops.

use super::eyes::{Event, Severity, keep};
use super::{Phase, Shared, admin, jobs, memory, notify};
use crate::exit::Exit;
use crate::open_files;
use crate::setup::{self, Environment};
use anyhow::Context as _;
use arc_swap::ArcSwap;
use seawall_core::config::{Config, Invalid};
use seawall_core::time::Nanos;
use seawall_engine::live::Live;
use seawall_engine::shared::{News, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// How reloads went, for metrics.
#[derive(Debug)]
pub(crate) struct Reloads {
    pub ok: AtomicU64,
    pub failed: AtomicU64,
    pub last_ok: AtomicBool,
    /// When the configuration in force was read, in milliseconds of the wall clock.
    pub loaded_at: AtomicI64,
    /// Keys that the file had other values for when it was read last, and that only a restart changes.
    pub needs_restart: ArcSwap<Vec<&'static str>>,
}

impl Default for Reloads {
    fn default() -> Self {
        Self {
            ok: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            last_ok: AtomicBool::new(true),
            loaded_at: AtomicI64::new(0),
            needs_restart: ArcSwap::default(),
        }
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
) -> anyhow::Result<Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    runtime.block_on(async {
        let admin = tokio::net::TcpListener::from_std(admin)?;
        let mut server = std::pin::pin!(admin::listener::serve(admin, admin::router(Arc::clone(shared)), open_files::admin_connections()));
        let mut signals = Signals::listen()?;
        let teller = Arc::clone(shared);
        // A task of its own: it goes on while we drain.
        tokio::spawn(async move { teller.eyes.bus.tell().await });
        setup::notify_ready();
        tokio::select! {
            never = &mut server => match never {},
            () = until_stopped(shared, &mut signals) => {}
            () = jobs::keep_up(shared) => {}
            () = keep::run(shared) => {}
            () = memory::run(shared) => {}
            () = notify::run(shared) => {}
            () = ended => {}
        }
        setup::notify_stopping();
        // Receivers live as long as their threads; one that is gone has nothing left to drain.
        shared.draining.store(true, Ordering::Relaxed);
        phase.send_replace(Phase::Draining);
        let drain = shared.live.load().config.server.drain;
        // Whoever asks meanwhile is told that we are on our way out.
        tokio::select! {
            exit = wait_for_drain(phase, drain, &mut signals) => Ok(exit),
            never = server => match never {},
        }
    })
}

/// How long what was seen before, and what was seen last, may take to be read and written.
const KEEPING: Duration = Duration::from_secs(5);

/// Before anybody is served: what operators named in an earlier life, and how upstreams and keys were then.
pub(super) fn recall(shared: &Shared) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    // A store that does not answer now is asked again every minute.
    drop(runtime.block_on(async {
        let all = async {
            drop(memory::recall(shared).await);
            drop(notify::recall(shared).await);
            keep::recall(shared).await
        };
        tokio::time::timeout(KEEPING, all).await
    }));
    Ok(())
}

/// When nobody is served any more. A store that does not answer loses the last minute.
pub(super) fn keep_last(shared: &Shared) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    // Each for itself: what keeps one from being written need not keep the other.
    let (known, seen) = runtime.block_on(async { tokio::join!(within(memory::last(shared)), within(keep::last(shared))) });
    if let Err(why) = runtime.block_on(within(shared.desk.store.close())) {
        crate::terminal::Terminal::plain().note(&format!("warning: the store's log is not folded into its file: {why}"));
    }
    let lost = [("the last second of what is known of breakers and keys", known), ("the last minute of roll-ups", seen)];
    for (what, written) in lost {
        if let Err(why) = written {
            crate::terminal::Terminal::plain().note(&format!("warning: {what} is lost: {why}"));
        }
    }
    Ok(())
}

async fn within(written: impl Future<Output = Result<(), seawall_store::Error>>) -> Result<(), String> {
    match tokio::time::timeout(KEEPING, written).await {
        Ok(written) => written.map_err(|error| error.to_string()),
        Err(_) => Err("the store does not answer".to_owned()),
    }
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

/// Until every worker has let go of its receiver, the time is up, or a second signal comes. Who ends it by hand is told that
/// something was cut off; that the time was up is what was agreed.
async fn wait_for_drain(phase: &watch::Sender<Phase>, drain: Nanos, signals: &mut Signals) -> Exit {
    let exit = tokio::select! {
        biased;
        () = phase.closed() => Exit::Done,
        () = tokio::time::sleep(Duration::from_nanos(drain.0)) => Exit::Done,
        _ = signals.terminate.recv() => Exit::Interrupted,
        _ = signals.interrupt.recv() => Exit::Interrupted,
    };
    phase.send_replace(Phase::Stopping);
    exit
}

/// A configuration that could take the place of the one in force.
#[derive(Debug)]
pub(super) struct Ready {
    pub live: Live,
    /// Keys of the file that only a restart would change; until then they are what they were.
    pub needs_restart: Vec<&'static str>,
}

/// Reads the file and makes it ready; nothing is changed by that.
pub(super) fn prepare(shared: &Shared) -> anyhow::Result<Ready> {
    let (file, mut config) = setup::load(Some(&shared.file))?;
    let needs_restart = config.stay_until_restart(&shared.live.load().config);
    shared.eyes.add_named(&mut config);
    Ok(Ready { live: put_to_work(shared, config, &Environment::beside(&file))?, needs_restart })
}

/// The configuration in force, with the rules that operators have made by now.
pub(super) fn renamed(shared: &Shared) -> anyhow::Result<Live> {
    let mut config = shared.live.load().config.clone();
    shared.eyes.add_named(&mut config);
    put_to_work(shared, config, &shared.around)
}

fn put_to_work(shared: &Shared, config: Config, around: &Environment) -> anyhow::Result<Live> {
    let before = shared.live.load();
    Ok(setup::put_to_work(config, around, Some((&before, shared.clock.now())))?)
}

/// Validates the file and swaps it in; a bad one changes nothing. What is left to a restart is told.
pub(super) fn reload(shared: &Shared) -> anyhow::Result<Vec<&'static str>> {
    let result = prepare(shared).map(|ready| {
        shared.live.store(Arc::new(ready.live));
        ready.needs_restart
    });
    let now = shared.clock.now().wall;
    let bus = &shared.eyes.bus;
    let refused = Event::new("config-rejected", Severity::Fatal, "a new configuration was refused; the one in force stays");
    match &result {
        Ok(needs_restart) => {
            shared.reloads.loaded_at.store(now.0, Ordering::Relaxed);
            shared.reloads.needs_restart.store(Arc::new(needs_restart.clone()));
            let severity = if needs_restart.is_empty() { Severity::Info } else { Severity::Warning };
            let event = Event::new("config-reloaded", severity, "the configuration was reloaded")
                .detail(restart(needs_restart).unwrap_or_default());
            bus.publish(&event.resolving(bus.ended(&refused)), now);
        }
        Err(error) => {
            bus.raise(&refused.detail(summary(error)), now);
        }
    }
    shared.reloads.last_ok.store(result.is_ok(), Ordering::Relaxed);
    let count = if result.is_ok() { &shared.reloads.ok } else { &shared.reloads.failed };
    count.fetch_add(1, Ordering::Relaxed);
    result
}

/// Keeps the connection to shared state up, on a thread and a runtime of its own.
pub(super) fn look_after(store: &Store, shared: &Shared) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    let terminal = crate::terminal::Terminal::plain();
    let (bus, now) = (&shared.eyes.bus, || shared.clock.now().wall);
    runtime.block_on(store.supervise(&shared.clock, |news| match news {
        News::Lost(why) => {
            let share = store.instances();
            let meanwhile = format!("limits run on a share of one in {share}, breakers and keys on what is known here");
            terminal.note(&format!("warning: shared state does not answer ({why}); {meanwhile}"));
            let event = Event::new("shared-state-lost", Severity::Warning, "shared state does not answer");
            bus.raise(&event.detail(format!("{why}; {meanwhile}")), now());
        }
        News::Back => {
            terminal.note("shared state is back");
            bus.clear(back(), now());
        }
    }));
    Ok(())
}

/// Ends what was told when it was lost, in this process or in an earlier one.
pub(super) fn back() -> Event {
    Event::new("shared-state-lost", Severity::Info, "shared state is back")
}

/// One line that says what is wrong.
pub(super) fn summary(error: &anyhow::Error) -> String {
    let Some(invalid) = error.downcast_ref::<Invalid>() else { return error.to_string() };
    let problems = invalid.problems();
    let first = problems.first().map(|problem| format!("line {}: {}", invalid.position(problem).0, problem.message)).unwrap_or_default();
    if problems.len() > 1 { format!("{first}, and {} more", problems.len() - 1) } else { first }
}

/// What is left to a restart, in words.
fn restart(keys: &[&str]) -> Option<String> {
    (!keys.is_empty()).then(|| format!("{} changed in the file, and only a restart changes that here", keys.join(", ")))
}

fn tell(result: &anyhow::Result<Vec<&str>>) {
    let terminal = crate::terminal::Terminal::plain();
    match result {
        Ok(needs_restart) => {
            terminal.note("configuration reloaded");
            if let Some(left) = restart(needs_restart) {
                terminal.note(&format!("warning: {left}"));
            }
        }
        Err(error) => {
            let _: Exit = terminal.fail(error);
            terminal.note("the configuration in force stays as it is");
        }
    }
}
