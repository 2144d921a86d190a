//! The `flaky` door: a scriptable, seeded, faulty upstream. Tests, the demo and benchmarks start it in-process.

mod behave;
mod capacity;
mod entry;
mod errors;
mod fate;
mod fault;
mod request;
mod script;
mod serve;
mod shape;
mod stats;
mod wire;

use crate::exit::{CommandError, Exit};
use crate::setup;
use crate::terminal::Terminal;
use anyhow::Context as _;
use behave::FlakyUpstream;
pub(crate) use script::Script;
use serde_json::{Value, json};
use serve::FlakyState;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::watch;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  seawall flaky --listen 127.0.0.1:8080
  seawall flaky --script scenarios/flaky.toml --seed 7
  curl -i 127.0.0.1:8080/status/503
  curl -i 127.0.0.1:8080/seq/one/503,reset-before,200
  curl -i -H 'X-Flaky: 429:retry-after=2,200' 127.0.0.1:8080/anything
  curl 127.0.0.1:8080/-/stats")]
pub(crate) struct Args {
    /// Where to listen; port 0 takes a free one and says which
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// What requests meet [default: 200, and what paths and X-Flaky headers ask for]
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,

    /// The same seed gives the n-th request of a route the same fate
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,

    /// Threads that serve [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    threads: Option<u8>,

    /// Say where it listens as a line of JSON on stdout
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, terminal: &Terminal) -> anyhow::Result<Exit> {
    let script = match &args.script {
        Some(path) => Script::load(&path.display().to_string(), &setup::script(path)?)?,
        None => Script::default(),
    };
    let listener = TcpListener::bind(args.listen).map_err(|error| CommandError {
        exit: Exit::Failed,
        message: format!("cannot listen on {}: {error}", args.listen),
        hint: None,
    })?;
    let threads = args.threads.map_or_else(cores, usize::from);
    // Before anything else starts, so that no signal is missed.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ending = runtime.block_on(async { EndSignals::listen() })?;
    let running = start_on(script, listener, args.seed, threads)?;
    if args.json {
        let mut out = terminal.out();
        writeln!(out, "{}", json!({ "listening": running.address.to_string() }))?;
        out.flush()?;
    }
    terminal.note(&format!("flaky listens on http://{} (seed {}); Ctrl-C ends it", running.address, args.seed));
    runtime.block_on(ending.come());
    let stats = running.stats();
    running.stop();
    terminal.note(&summary(&stats));
    Ok(Exit::Done)
}

/// The signals that ask a program to end.
struct EndSignals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl EndSignals {
    fn listen() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn come(mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A faulty upstream on threads of its own. Dropping it stops it.
#[derive(Debug)]
pub(crate) struct RunningFlaky {
    pub address: SocketAddr,
    shared: Arc<FlakyState>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl RunningFlaky {
    /// The response of `GET /-/stats`.
    pub(crate) fn stats(&self) -> Value {
        self.shared.stats()
    }

    /// Ends all connections at once; returns when no thread is left.
    pub(crate) fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

impl Drop for RunningFlaky {
    fn drop(&mut self) {
        self.end();
    }
}

/// Serves the script on a thread of its own.
pub(crate) fn start(script: Script, listener: TcpListener, seed: u64) -> anyhow::Result<RunningFlaky> {
    start_on(script, listener, seed, 1)
}

/// Each thread has its own runtime and accepts from the same listener, so that no connection moves between threads.
fn start_on(script: Script, listener: TcpListener, seed: u64, threads: usize) -> anyhow::Result<RunningFlaky> {
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let shared = Arc::new(FlakyState::new(FlakyUpstream::new(script, seed)));
    let (stop, stopped) = watch::channel(false);
    let mut running = RunningFlaky { address, shared, stop, threads: Vec::new() };
    for n in 0..threads {
        let (listener, shared, stopped) = (listener.try_clone()?, Arc::clone(&running.shared), stopped.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _entered = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let serve = move || runtime.block_on(serve::accept(listener, shared, stopped));
        let thread = std::thread::Builder::new().name(format!("flaky-{n}")).spawn(serve).context("cannot start a thread")?;
        running.threads.push(thread);
    }
    // Only the threads' clones remain, so the port is free as soon as they end.
    drop(listener);
    Ok(running)
}

fn summary(stats: &Value) -> String {
    let counts = |key: &str| match stats[key].as_object() {
        Some(map) if !map.is_empty() => map.iter().map(|(name, n)| format!("{name} × {n}")).collect::<Vec<_>>().join(", "),
        _ => "none".to_owned(),
    };
    format!(
        "{} requests on {} connections, at most {} at once\n  statuses: {}\n  faults: {}",
        stats["requests"],
        stats["connections"],
        stats["max_in_flight"],
        counts("statuses"),
        counts("faults")
    )
}

#[cfg(test)]
mod tests;
