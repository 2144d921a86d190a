//! Running the process: the admin port, signals, reloads, and the order in which it stops.

use super::eyes::{Event, Severity, keep};
use super::ports::NewPorts;
use super::{Phase, Shared, admin, jobs, memory, notify};
use crate::configuration::{self, Unreadable};
use crate::host::Host;
use crate::open_files;
use anyhow::Context as _;
use arc_swap::ArcSwap;
use seawall_core::config::{Config, Invalid, masked};
use seawall_core::lint::{self, Warning};
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
    /// Held by the thread that reads the configuration.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Default for Reloads {
    fn default() -> Self {
        Self {
            ok: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            last_ok: AtomicBool::new(true),
            loaded_at: AtomicI64::new(0),
            needs_restart: ArcSwap::default(),
            turn: Arc::default(),
        }
    }
}

/// What an operator can tell a running process.
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

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Stopped {
    /// All calls in flight were finished, or cut off when the time for that was over.
    Drained,
    /// A second signal cut off what was in flight.
    CutOff,
}

/// The runtime that hears signals and serves the admin port. It does no blocking work: that has threads of its own.
#[derive(Debug)]
pub struct Control {
    runtime: tokio::runtime::Runtime,
    signals: Signals,
}

impl Control {
    /// Hears signals from now on. Before, SIGHUP would end the process.
    ///
    /// # Errors
    /// When the system refuses a runtime or a signal handler.
    pub fn listen() -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
        let signals = runtime.block_on(async { Signals::listen() })?;
        Ok(Self { runtime, signals })
    }

    /// Reads the files of the configuration. `None` if a signal says stop meanwhile.
    ///
    /// # Errors
    /// Those of `load`, or that it takes too long.
    pub fn load<T: Send + 'static>(&mut self, load: impl FnOnce() -> anyhow::Result<T> + Send + 'static) -> anyhow::Result<Option<T>> {
        self.unless_stopped(async { within_time(aside("load", load)).await })
    }

    /// Runs what may take long on a thread of its own. `None` if a signal says stop meanwhile.
    ///
    /// # Errors
    /// Those of `start`.
    pub fn start<T: Send + 'static>(&mut self, start: impl FnOnce() -> anyhow::Result<T> + Send + 'static) -> anyhow::Result<Option<T>> {
        self.unless_stopped(aside("start", start))
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

/// How long the files of a configuration may take to be read.
const READING: Duration = Duration::from_secs(10);

/// Runs what blocks on a thread of its own, so that a disk that does not answer holds up nobody else, nor the end of the process.
async fn aside<T: Send + 'static>(name: &str, work: impl FnOnce() -> anyhow::Result<T> + Send + 'static) -> anyhow::Result<T> {
    let (sender, done) = tokio::sync::oneshot::channel();
    // The receiver is gone if the time was up.
    drop(super::spawn(name, move || drop(sender.send(work())))?);
    done.await.with_context(|| format!("the thread `{name}` panicked"))?
}

async fn within_time<T>(reading: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::time::timeout(READING, reading).await.unwrap_or_else(|_| {
        let file = configuration::being_read().map_or_else(|| "the configuration".to_owned(), |file| format!("`{}`", file.display()));
        Err(Unreadable { file, why: format!("it did not answer within {} s", READING.as_secs()) }.into())
    })
}

/// Reads files of the configuration for a process that serves: on a thread of its own, one at a time and with a time limit.
async fn read_aside<T: Send + 'static>(
    shared: &Arc<Shared>,
    read: impl FnOnce(&Shared) -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let own = Arc::clone(shared);
    within_time(async move {
        // Kept by a thread that hangs, so that there is only one of them.
        let turn = Arc::clone(&own.reloads.turn).lock_owned().await;
        aside("reload", move || {
            let done = read(&own);
            drop(turn);
            done
        })
        .await
    })
    .await
}

/// Serves the admin port until `ended` or a signal says stop, then drains within the configured time.
pub(super) fn run(
    control: Control,
    shared: &Arc<Shared>,
    admin: std::net::TcpListener,
    phase: &watch::Sender<Phase>,
    ended: impl Future<Output = ()>,
) -> anyhow::Result<Stopped> {
    let Control { runtime, mut signals } = control;
    runtime.block_on(async {
        let admin = tokio::net::TcpListener::from_std(admin)?;
        let mut server = std::pin::pin!(admin::listener::serve(admin, admin::router(Arc::clone(shared)), open_files::admin_connections()));
        let teller = Arc::clone(shared);
        // A task of its own: it goes on while we drain.
        tokio::spawn(async move { teller.eyes.bus.tell().await });
        shared.host.ready();
        tokio::select! {
            never = &mut server => match never {},
            () = until_stopped(shared, &mut signals) => {}
            () = jobs::keep_up(shared) => {}
            () = keep::run(shared) => {}
            () = memory::run(shared) => {}
            () = notify::run(shared) => {}
            () = ended => {}
        }
        shared.host.stopping();
        // Receivers live as long as their threads; one that is gone has nothing left to drain.
        shared.draining.store(true, Ordering::Relaxed);
        phase.send_replace(Phase::Draining);
        let drain = shared.live.load().config.server.drain;
        let answering = Nanos((drain.0 / 10).min(LAST_ANSWERS.0));
        shared.closing.announce(shared.clock.now().mono + Nanos(drain.0 - answering.0));
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
pub(super) fn recall(shared: &Arc<Shared>) -> anyhow::Result<()> {
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
            _ = signals.hangup.recv() => {
                let shared = Arc::clone(shared);
                // A task of its own: other signals are heard meanwhile.
                tokio::spawn(async move { tell(&*shared.host, &reload(&shared).await) });
            }
            _ = second.tick() => shared.clock.follow(),
        }
    }
}

/// Calls that still wait are refused this long before the end of a drain, or a tenth of it, so that their callers get an answer.
const LAST_ANSWERS: Nanos = Nanos::from_secs(1);

/// Until every worker has let go of its receiver, the time is up, or a second signal comes. Who ends it by hand is told that
/// something was cut off; that the time was up is what was agreed.
async fn wait_for_drain(phase: &watch::Sender<Phase>, drain: Nanos, signals: &mut Signals) -> Stopped {
    let exit = tokio::select! {
        biased;
        () = phase.closed() => Stopped::Drained,
        () = tokio::time::sleep(Duration::from_nanos(drain.0)) => Stopped::Drained,
        _ = signals.terminate.recv() => Stopped::CutOff,
        _ = signals.interrupt.recv() => Stopped::CutOff,
    };
    phase.send_replace(Phase::Stopping);
    exit
}

/// A configuration that could take the place of the one in force.
#[derive(Debug)]
pub(super) struct Ready {
    pub live: Live,
    /// Ports that it opens.
    pub ports: NewPorts,
    /// Keys of the file that only a restart would change; until then they are what they were.
    pub needs_restart: Vec<&'static str>,
}

/// Reads the file and makes it ready; nothing is changed by that.
pub(super) async fn prepare(shared: &Arc<Shared>) -> anyhow::Result<Ready> {
    read_aside(shared, prepare_here).await
}

fn prepare_here(shared: &Shared) -> anyhow::Result<Ready> {
    let mut config = configuration::load(&shared.file)?;
    let needs_restart = config.stay_until_restart(&shared.live.load().config);
    shared.eyes.add_named(&mut config);
    let live = put_to_work(shared, config)?;
    let ports = shared.ports.prepare(&live.config)?;
    Ok(Ready { live, ports, needs_restart })
}

/// The configuration in force, with the rules that operators have made by now.
pub(super) async fn renamed(shared: &Arc<Shared>) -> anyhow::Result<Live> {
    read_aside(shared, |shared| {
        let mut config = shared.live.load().config.clone();
        shared.eyes.add_named(&mut config);
        put_to_work(shared, config)
    })
    .await
}

/// What there is to say about the configuration in force, and its file as it is now without what may be a secret.
pub(super) async fn described(shared: &Arc<Shared>) -> anyhow::Result<(Vec<Warning>, Option<String>)> {
    read_aside(shared, |shared| {
        let warnings = lint::warnings(&shared.live.load().config, &shared.around);
        // The file may have been changed since, and refused for a secret that stands in it. One that cannot be read any more has no text.
        let toml = configuration::read(&shared.file).ok().and_then(|bytes| String::from_utf8(bytes).ok()).map(|text| masked(&text));
        Ok((warnings, toml))
    })
    .await
}

/// Simulates what the policies in force come to, where that is not known yet: some milliseconds for each policy.
pub(super) async fn calculate(shared: &Arc<Shared>) {
    let (own, live) = (Arc::clone(shared), shared.live.load_full());
    if live.config.endpoints().all(|(upstream, endpoint)| own.calculator.knows(&live.config, upstream, endpoint)) {
        return;
    }
    let simulate = move || {
        for (upstream, endpoint) in live.config.endpoints() {
            own.calculator.chances(&live.config, upstream, endpoint);
        }
        Ok(())
    };
    // Without a thread for it, whoever asks simulates for itself.
    drop(aside("figures", simulate).await);
}

fn put_to_work(shared: &Shared, config: Config) -> anyhow::Result<Live> {
    let before = shared.live.load();
    Ok(configuration::put_to_work(config, &shared.around, Some((&before, shared.clock.now())))?)
}

/// Validates the file and swaps it in; a bad one changes nothing. What is left to a restart is told.
pub(super) async fn reload(shared: &Arc<Shared>) -> anyhow::Result<Vec<&'static str>> {
    let result = prepare(shared).await.map(|Ready { live, ports, needs_restart }| {
        let live = Arc::new(live);
        shared.live.store(Arc::clone(&live));
        shared.ports.switch(&live.config, ports);
        needs_restart
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
    let terminal = &shared.host;
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

fn tell(terminal: &dyn Host, result: &anyhow::Result<Vec<&str>>) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_file_that_does_not_answer_is_given_up_on() {
        let (_never, blocked) = std::sync::mpsc::channel::<()>();
        let hung = aside("load", move || Ok(blocked.recv()?));
        let error = within_time(hung).await.unwrap_err();
        assert_eq!(error.to_string(), "cannot read the configuration: it did not answer within 10 s");
    }
}
