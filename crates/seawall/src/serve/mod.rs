//! The `serve` door: the gateway and its admin port in one process, until it is told to stop.

mod admin;
mod answer;
mod arrival;
mod banner;
mod cached;
mod call_records;
mod caller_context;
mod dashboard;
mod deferred;
mod degrade;
mod ends;
mod error_shape;
mod eyes;
mod gateway;
mod http2;
mod hush;
mod hygiene;
mod intake;
mod jobs;
mod keyed;
mod ledger;
mod memory;
mod notify;
mod operate;
mod ports;
mod seats;
mod talk;
mod target;
mod wire;
mod worker;

use crate::cli::File;
use crate::exit::Exit;
use crate::figures::Calculator;
use crate::open_files;
use crate::setup::{self, Environment, Purpose};
use crate::terminal::Terminal;
use anyhow::Context as _;
use arc_swap::ArcSwap;
pub(crate) use operate::Control;
use seawall_core::time::{Nanos, Wall};
use seawall_engine::cache::Cache;
use seawall_engine::clock::Clock;
use seawall_engine::closing::Closing;
use seawall_engine::live::Live;
use seawall_engine::recorder::Recorder;
use seawall_http::connect::Connector;
use seawall_store::Store;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tokio::sync::watch;

const AFTER_HELP: &str = "\
Examples:
  seawall serve
  seawall serve -c prod.toml

`server.listen` is the gateway: http://127.0.0.1:7329/UPSTREAM/PATH. `server.admin` is the dashboard, the \
admin API and /metrics: http://127.0.0.1:7330/. Jobs and [[schedules]] run in this process as well, and are \
kept in `server.store`.

SIGHUP reloads the file; a bad one changes nothing. SIGTERM drains and ends with 0; a second one cuts off \
what is in flight and ends with 130.";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    file: File,

    /// Threads that serve requests, and as many that work jobs off, four at most [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,

    /// Longest wait for a complete request head, on a new connection or after an answer; a caller that takes nothing of its answer has ten
    /// times as long
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = wait)]
    head_timeout: Duration,

    /// Callers that may be connected at once [default: what the open files that the system allows are enough for, two for each]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    connections: Option<u32>,
}

fn wait(text: &str) -> Result<Duration, String> {
    seawall_core::units::duration(text).map(|wait| Duration::from_nanos(wait.0))
}

/// What every thread of the process shares.
#[derive(Debug)]
pub(crate) struct Shared {
    pub live: ArcSwap<Live>,
    pub recorder: Recorder,
    pub clock: Clock,
    pub connector: Connector,
    pub cache: Cache,
    /// What we call ourselves in `Via`, different for each process so that a loop is seen.
    pub pseudonym: hygiene::Pseudonym,
    pub file: PathBuf,
    pub head_timeout: Duration,
    pub seats: Arc<seats::Seats>,
    /// Ports of upstreams' own.
    pub ports: ports::Ports,
    pub reloads: operate::Reloads,
    /// On the way out.
    pub draining: AtomicBool,
    pub closing: Closing,
    pub started_at: Wall,
    pub eyes: eyes::Eyes,
    /// What the configuration's references lead to.
    pub around: Environment,
    pub desk: Arc<jobs::Desk>,
    /// What policies come to.
    pub calculator: Calculator,
}

/// How far the process has come in stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Serving,
    /// No new connections; what is in flight may finish.
    Draining,
    /// Now.
    Stopping,
}

pub(crate) fn run(args: &Args, terminal: &Terminal) -> anyhow::Result<Exit> {
    #[cfg(debug_assertions)]
    {
        setup::failpoint()?;
        setup::clock_step()?;
    }
    open_files::raise_limit();
    open_files::make_room();
    let mut control = Control::listen()?;
    let path = args.file.path.clone();
    let Some((file, vault, live)) = control.load(move || {
        let (file, config) = setup::load(path.as_deref())?;
        let vault = Environment::beside(&file);
        let live = setup::live(config, &vault)?;
        Ok((file, vault, live))
    })?
    else {
        return Ok(Exit::Done);
    };
    let listeners = 1 + ports::count(&live.config);
    let by_files = || open_files::connections(worker::threads(args.threads), listeners);
    let connections = args.connections.map_or_else(by_files, |most| usize::try_from(most).unwrap_or(usize::MAX));
    let (threads, head_timeout) = (args.threads, args.head_timeout);
    let Some((running, banner)) = control.start(move || {
        let store = setup::open(&live.config.server.store, &vault, Purpose::Jobs)?;
        let start_up = StartUp { store, file, around: vault, threads, head_timeout, connections };
        let running = start(live, start_up, Box::new(std::io::stdout()))?;
        let banner = banner::text(&running);
        Ok((running, banner))
    })?
    else {
        return Ok(Exit::Done);
    };
    let jobs = running.shared.desk.crew.size();
    terminal.detail(&format!("{} threads serve, {jobs} work jobs off", running.workers.len() - jobs));
    running.until(control, async {
        terminal.note(&banner);
        std::future::pending().await
    })
}

/// What a process is started with, besides its configuration.
#[derive(Debug)]
pub(crate) struct StartUp {
    pub store: Store,
    pub file: PathBuf,
    pub around: Environment,
    pub threads: Option<u16>,
    pub head_timeout: Duration,
    /// Callers that may be connected at once.
    pub connections: usize,
}

/// The gateway's threads, at work.
#[derive(Debug)]
pub(crate) struct Running {
    pub gateway: SocketAddr,
    pub admin: SocketAddr,
    pub shared: Arc<Shared>,
    admin_listener: std::net::TcpListener,
    phase: watch::Sender<Phase>,
    workers: Vec<Worker>,
    writer: thread::JoinHandle<()>,
}

/// Starts the threads. Log lines go to `log`.
pub(crate) fn start(live: Live, with: StartUp, log: Box<dyn std::io::Write + Send>) -> anyhow::Result<Running> {
    let StartUp { store, file, around, threads, head_timeout, connections } = with;
    let server = live.config.server.clone();
    let json = live.config.log_json;
    let listeners = worker::listeners(&server.listen, worker::threads(threads))?;
    let (ports, new_listeners) = ports::Ports::new(listeners.len());
    let new_ports = ports.prepare(&live.config)?;
    let admin_listener = worker::listen(&server.admin, false)?;
    let (gateway, admin) = (listeners[0].local_addr()?, admin_listener.local_addr()?);
    let clock = Clock::start();
    let started_at = clock.now().wall;
    let desk = Arc::new(jobs::Desk::new(store, live.shared.clone(), clock.clone(), listeners.len(), setup::entropy));
    let shared = Arc::new(Shared {
        live: ArcSwap::from_pointee(live),
        recorder: Recorder::default(),
        eyes: eyes::Eyes::new(desk.new_id()),
        desk,
        clock,
        connector: Connector::new(),
        cache: Cache::default(),
        pseudonym: hygiene::Pseudonym::new(&format!("seawall-{}", setup::instance())),
        file,
        head_timeout,
        seats: Arc::new(seats::Seats::new(connections, open_files::farewells())),
        ports,
        reloads: operate::Reloads::default(),
        draining: AtomicBool::new(false),
        closing: Closing::default(),
        started_at,
        around,
        calculator: Calculator::default(),
    });
    shared.reloads.loaded_at.store(started_at.0, Ordering::Relaxed);
    operate::recall(&shared)?;
    let (phase, phases) = watch::channel(Phase::Serving);
    let writer = {
        let shared = Arc::clone(&shared);
        spawn("writer", move || shared.recorder.write_to(log, json, |records| shared.eyes.look(records, &shared)))?
    };
    if let Some(store) = shared.live.load().shared.clone() {
        let shared = Arc::clone(&shared);
        // Nothing waits for its end: what it looks after is another process's.
        drop(spawn("shared", move || operate::look_after(&store, &shared))?);
    }
    let mut workers = Vec::new();
    shared.ports.switch(&shared.live.load().config, new_ports);
    for (i, (listener, ports)) in listeners.into_iter().zip(new_listeners).enumerate() {
        let (shared, phases) = (Arc::clone(&shared), phases.clone());
        workers.push(spawn(&format!("worker-{i}"), move || worker::run(&shared, listener, ports, phases))?);
    }
    for i in 0..shared.desk.crew.size() {
        let (shared, phases) = (Arc::clone(&shared), phases.clone());
        workers.push(spawn(&format!("jobs-{i}"), move || jobs::work(&shared, i, phases))?);
    }
    Ok(Running { gateway, admin, shared, admin_listener, phase, workers, writer })
}

impl Running {
    /// Serves until `ended` or until a signal says stop, then takes everything down in order.
    pub(crate) fn until(self, control: Control, ended: impl Future<Output = ()>) -> anyhow::Result<Exit> {
        let exit = operate::run(control, &self.shared, self.admin_listener, &self.phase, ended)?;
        finish(&self.shared, self.workers, self.writer)?;
        Ok(exit)
    }
}

/// Workers first, so that what they recorded last is still written.
fn finish(shared: &Shared, workers: Vec<Worker>, writer: thread::JoinHandle<()>) -> anyhow::Result<()> {
    let joined = join_within(workers, LAST_WORKER, &shared.clock);
    shared.recorder.stop();
    // Whoever reads the log may have stopped reading: what it does not take is lost, but the process ends.
    let patience = shared.live.load().config.server.drain.min(LAST_LINES);
    let give_up = shared.clock.now().mono + patience;
    while !writer.is_finished() && shared.clock.now().mono < give_up {
        thread::sleep(Duration::from_millis(5));
    }
    let written = if writer.is_finished() { writer.join().map_err(|_| anyhow::anyhow!("the log's writer panicked")) } else { Ok(()) };
    operate::keep_last(shared)?;
    joined.and(written)
}

/// Waits for threads that were told to stop. One that does not stop in time is left behind: the process ends with it, and the
/// error names it.
fn join_within(workers: Vec<Worker>, patience: Nanos, clock: &Clock) -> anyhow::Result<()> {
    let give_up = clock.now().mono + patience;
    while workers.iter().any(|worker| !worker.is_finished()) && clock.now().mono < give_up {
        thread::sleep(Duration::from_millis(5));
    }
    let (ended, stuck): (Vec<_>, Vec<_>) = workers.into_iter().partition(Worker::is_finished);
    for worker in ended {
        worker.join().map_err(|_| anyhow::anyhow!("a worker panicked"))??;
    }
    let names: Vec<&str> = stuck.iter().map(|worker| worker.thread().name().unwrap_or("a thread")).collect();
    anyhow::ensure!(names.is_empty(), "{} did not stop within {} s", names.join(", "), patience.as_secs_ceil());
    Ok(())
}

/// A thread that serves requests or runs jobs.
type Worker = thread::JoinHandle<anyhow::Result<()>>;

/// How long workers may take to stop once they are told to stop at once.
const LAST_WORKER: Nanos = Nanos::from_secs(10);

/// How long the last log lines may take to be read.
const LAST_LINES: Nanos = Nanos::from_secs(2);

fn spawn<T: Send + 'static>(name: &str, body: impl FnOnce() -> T + Send + 'static) -> anyhow::Result<thread::JoinHandle<T>> {
    thread::Builder::new().name(name.to_owned()).spawn(body).context("cannot start a thread")
}

/// An address as people type it.
fn shown(address: SocketAddr, is_tls: bool) -> String {
    format!("{}://{address}", if is_tls { "https" } else { "http" })
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
