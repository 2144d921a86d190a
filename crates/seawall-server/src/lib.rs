//! Seawall's server: the gateway, durable jobs, schedules and the admin port in one process.
//!
//! [`start`] starts the threads of a server; [`RunningServer::until`] serves until a signal says stop. The [`Host`] runs the
//! server: it prints notes and notifies a service manager.

mod admin;
mod banner;
pub mod configuration;
mod connection_limit;
mod dashboard;
mod error_shape;
pub mod figures;
mod gateway;
mod headers;
mod host;
mod idempotency;
mod job_counts;
mod jobs;
mod json_shapes;
pub mod letter;
mod listener;
mod notify;
mod observe;
pub mod open_files;
mod process;
mod query;
mod reload;
mod response;
mod saved_observations;
mod shared_state;
mod snapshot;
mod store_clock;
mod threads;

use arc_swap::ArcSwap;
use configuration::Environment;
use figures::Calculator;
pub use host::Host;
pub use process::{Control, Stopped};
use seawall_core::time::{Nanos, Wall};
use seawall_engine::cache::ResponseCache;
use seawall_engine::clock::Clock;
use seawall_engine::drain::DrainDeadline;
use seawall_engine::recorder::Recorder;
use seawall_engine::runtime::Live;
use seawall_http::connect::Connector;
use seawall_store::Store;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use threads::{ServingThread, join_within, spawn};
use tokio::sync::watch;

/// State shared by all threads of the process.
#[derive(Debug)]
pub struct ServerState {
    pub live: ArcSwap<Live>,
    pub recorder: Recorder,
    pub clock: Clock,
    pub(crate) connector: Connector,
    pub(crate) cache: ResponseCache,
    /// Our name in `Via`, different for each process so that a loop is detected.
    pub(crate) pseudonym: headers::Pseudonym,
    pub(crate) file: PathBuf,
    pub(crate) head_timeout: Duration,
    pub(crate) seats: Arc<connection_limit::ConnectionLimit>,
    /// Ports that belong to single upstreams.
    pub(crate) ports: listener::Ports,
    pub(crate) reloads: reload::ReloadStatus,
    /// The process is stopping.
    pub(crate) draining: AtomicBool,
    pub(crate) closing: DrainDeadline,
    pub(crate) started_at: Wall,
    pub(crate) eyes: observe::Observer,
    pub(crate) host: Box<dyn Host>,
    pub(crate) version: &'static str,
    /// Resolves the configuration's references.
    pub(crate) around: Environment,
    pub(crate) desk: Arc<jobs::JobContext>,
    /// Computes the figures of policies.
    pub(crate) calculator: Calculator,
}

/// The phase of stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DrainPhase {
    Serving,
    /// No new connections; calls in flight may finish.
    Draining,
    /// Stop at once.
    Stopping,
}

/// Parameters of a process besides its configuration.
#[derive(Debug)]
pub struct StartUp {
    pub store: Store,
    pub file: PathBuf,
    pub around: Environment,
    pub threads: Option<u16>,
    pub head_timeout: Duration,
    /// Maximum connected callers [default: as many as the open files allow].
    pub connections: Option<usize>,
    pub host: Box<dyn Host>,
    pub version: &'static str,
}

/// The running threads of the server.
#[derive(Debug)]
pub struct RunningServer {
    pub gateway: SocketAddr,
    pub admin: SocketAddr,
    pub shared: Arc<ServerState>,
    admin_listener: std::net::TcpListener,
    phase: watch::Sender<DrainPhase>,
    workers: Vec<ServingThread>,
    writer: thread::JoinHandle<()>,
}

/// Starts the threads. Log lines go to `log`.
///
/// # Errors
/// When a port is taken or a thread cannot be started.
pub fn start(live: Live, with: StartUp, log: Box<dyn std::io::Write + Send>) -> anyhow::Result<RunningServer> {
    let StartUp { store, file, around, threads, head_timeout, connections, host, version } = with;
    let threads = listener::threads(threads);
    let connections = connections.unwrap_or_else(|| open_files::connections(threads, 1 + listener::count(&live.config)));
    let server = live.config.server.clone();
    let json = live.config.log_json;
    let listeners = listener::listeners(&server.listen, threads)?;
    let (ports, new_listeners) = listener::Ports::new(listeners.len());
    let new_ports = ports.prepare(&live.config)?;
    let admin_listener = listener::listen(&server.admin, false)?;
    let (gateway, admin) = (listeners[0].local_addr()?, admin_listener.local_addr()?);
    let clock = Clock::start();
    let started_at = clock.now().wall;
    let desk = Arc::new(jobs::JobContext::new(store, live.shared.clone(), clock.clone(), listeners.len(), seawall_engine::entropy));
    let shared = Arc::new(ServerState {
        live: ArcSwap::from_pointee(live),
        recorder: Recorder::default(),
        eyes: observe::Observer::new(desk.new_id()),
        desk,
        clock,
        connector: Connector::new(),
        cache: ResponseCache::default(),
        pseudonym: headers::Pseudonym::new(&format!("seawall-{}", instance())),
        file,
        head_timeout,
        seats: Arc::new(connection_limit::ConnectionLimit::new(connections, open_files::refusals_in_flight())),
        ports,
        reloads: reload::ReloadStatus::default(),
        draining: AtomicBool::new(false),
        closing: DrainDeadline::default(),
        started_at,
        host,
        version,
        around,
        calculator: Calculator::default(),
    });
    shared.reloads.loaded_at.store(started_at.0, Ordering::Relaxed);
    process::recall(&shared)?;
    let (phase, phases) = watch::channel(DrainPhase::Serving);
    let writer = {
        let shared = Arc::clone(&shared);
        spawn("writer", move || shared.recorder.write_to(log, json, |records| shared.eyes.observe(records, &shared)))?
    };
    if let Some(store) = shared.live.load().shared.clone() {
        let shared = Arc::clone(&shared);
        // Not joined: the thread only maintains state that other processes share.
        drop(spawn("shared", move || shared_state::supervise(&store, &shared))?);
    }
    let mut workers = Vec::new();
    shared.ports.switch(&shared.live.load().config, new_ports);
    for (i, (listener, ports)) in listeners.into_iter().zip(new_listeners).enumerate() {
        let (shared, phases) = (Arc::clone(&shared), phases.clone());
        workers.push(spawn(&format!("worker-{i}"), move || listener::run(&shared, listener, ports, phases))?);
    }
    for i in 0..shared.desk.crew.size() {
        let (shared, phases) = (Arc::clone(&shared), phases.clone());
        workers.push(spawn(&format!("jobs-{i}"), move || jobs::work(&shared, i, phases))?);
    }
    Ok(RunningServer { gateway, admin, shared, admin_listener, phase, workers, writer })
}

impl RunningServer {
    /// Serves until `ended` or until a signal says stop, then takes everything down in order.
    ///
    /// # Errors
    /// When the admin port cannot be served, or a thread panicked or does not stop.
    pub fn until(self, control: Control, ended: impl Future<Output = ()>) -> anyhow::Result<Stopped> {
        let stopped = process::run(control, &self.shared, self.admin_listener, &self.phase, ended)?;
        finish(&self.shared, self.workers, self.writer)?;
        Ok(stopped)
    }

    /// Returns the start-up text for people: addresses and warnings.
    pub fn banner(&self) -> String {
        banner::text(self)
    }

    /// Returns the number of threads that serve requests and of threads that run jobs.
    pub fn threads(&self) -> (usize, usize) {
        let jobs = self.shared.desk.crew.size();
        (self.workers.len() - jobs, jobs)
    }
}

/// Returns four characters that distinguish this process from its peers.
fn instance() -> String {
    format!("{:04x}", seawall_engine::entropy() & 0xffff)
}

/// Joins the workers first, so that their last records are still written.
fn finish(shared: &ServerState, workers: Vec<ServingThread>, writer: thread::JoinHandle<()>) -> anyhow::Result<()> {
    let joined = join_within(workers, LAST_WORKER, &shared.clock);
    shared.recorder.stop();
    // The reader of the log may have stopped reading: lines that it does not take are lost, but the process ends.
    let patience = shared.live.load().config.server.drain.min(LAST_LINES);
    let give_up = shared.clock.now().mono + patience;
    while !writer.is_finished() && shared.clock.now().mono < give_up {
        thread::sleep(Duration::from_millis(5));
    }
    let written = if writer.is_finished() { writer.join().map_err(|_| anyhow::anyhow!("the log's writer panicked")) } else { Ok(()) };
    process::keep_last(shared)?;
    joined.and(written)
}

/// Time limit of workers to stop after the order to stop at once.
const LAST_WORKER: Nanos = Nanos::from_secs(10);

/// Time limit to write the last log lines.
const LAST_LINES: Nanos = Nanos::from_secs(2);

/// Formats an address as a URL.
fn shown(address: SocketAddr, is_tls: bool) -> String {
    format!("{}://{address}", if is_tls { "https" } else { "http" })
}
