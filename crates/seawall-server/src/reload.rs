//! Reloads: the configuration is read again, checked and swapped in.

use crate::ServerState;
use crate::configuration::{self, Unreadable};
use crate::listener::NewPorts;
use crate::observe::{OperatorEvent, Severity};
use crate::threads::run_on_thread;
use arc_swap::ArcSwap;
use seawall_core::config::{Config, Invalid, masked};
use seawall_core::lint::{self, Warning};
use seawall_engine::runtime::Live;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// Results of reloads, for metrics.
#[derive(Debug)]
pub(crate) struct ReloadStatus {
    pub ok: AtomicU64,
    pub failed: AtomicU64,
    pub last_ok: AtomicBool,
    /// Time at which the configuration in force was read, in milliseconds of the wall clock.
    pub loaded_at: AtomicI64,
    /// Changed keys of the file, at its latest read, that only a restart applies.
    pub needs_restart: ArcSwap<Vec<&'static str>>,
    /// Locked by the thread that reads the configuration.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Default for ReloadStatus {
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

/// Time limit for reading the files of a configuration.
const READING: Duration = Duration::from_secs(10);

pub(crate) async fn within_time<T>(reading: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::time::timeout(READING, reading).await.unwrap_or_else(|_| {
        let file = configuration::being_read().map_or_else(|| "the configuration".to_owned(), |file| format!("`{}`", file.display()));
        Err(Unreadable { file, why: format!("it did not answer within {} s", READING.as_secs()) }.into())
    })
}

/// Reads configuration files in a running process: on a thread of its own, one read at a time, with a time limit.
async fn read_on_thread<T: Send + 'static>(
    shared: &Arc<ServerState>,
    read: impl FnOnce(&ServerState) -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let own = Arc::clone(shared);
    within_time(async move {
        // A thread that hangs keeps the lock, so that at most one thread hangs.
        let turn = Arc::clone(&own.reloads.turn).lock_owned().await;
        run_on_thread("reload", move || {
            let done = read(&own);
            drop(turn);
            done
        })
        .await
    })
    .await
}

/// A checked configuration, ready to replace the one in force.
#[derive(Debug)]
pub(crate) struct PreparedReload {
    pub live: Live,
    /// Ports that it adds.
    pub ports: NewPorts,
    /// Changed keys of the file that only a restart applies; until then the old values hold.
    pub needs_restart: Vec<&'static str>,
}

/// Reads and checks the file without applying it.
pub(crate) async fn prepare(shared: &Arc<ServerState>) -> anyhow::Result<PreparedReload> {
    read_on_thread(shared, prepare_here).await
}

fn prepare_here(shared: &ServerState) -> anyhow::Result<PreparedReload> {
    let mut config = configuration::load(&shared.file)?;
    let needs_restart = config.stay_until_restart(&shared.live.load().config);
    shared.eyes.add_named(&mut config);
    let live = activate(shared, config)?;
    let ports = shared.ports.prepare(&live.config)?;
    Ok(PreparedReload { live, ports, needs_restart })
}

/// Builds the configuration in force with the operators' current endpoint rules.
pub(crate) async fn renamed(shared: &Arc<ServerState>) -> anyhow::Result<Live> {
    read_on_thread(shared, |shared| {
        let mut config = shared.live.load().config.clone();
        shared.eyes.add_named(&mut config);
        activate(shared, config)
    })
    .await
}

/// Returns the warnings about the configuration in force, and its file with possible secrets masked.
pub(crate) async fn described(shared: &Arc<ServerState>) -> anyhow::Result<(Vec<Warning>, Option<String>)> {
    read_on_thread(shared, |shared| {
        let warnings = lint::warnings(&shared.live.load().config, &shared.around);
        // The file may have changed since, and may have been refused for a plain-text secret. An unreadable file has no text.
        let toml = configuration::read(&shared.file).ok().and_then(|bytes| String::from_utf8(bytes).ok()).map(|text| masked(&text));
        Ok((warnings, toml))
    })
    .await
}

/// Simulates unknown figures of the policies in force: some milliseconds per policy.
pub(crate) async fn calculate(shared: &Arc<ServerState>) {
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
    // If no thread can be started, the request for the figures simulates them itself.
    drop(run_on_thread("figures", simulate).await);
}

fn activate(shared: &ServerState, config: Config) -> anyhow::Result<Live> {
    let before = shared.live.load();
    Ok(configuration::activate(config, &shared.around, Some((&before, shared.clock.now())))?)
}

/// Checks the file and swaps it in; an invalid file changes nothing. Returns the keys that only a restart applies.
pub(crate) async fn reload(shared: &Arc<ServerState>) -> anyhow::Result<Vec<&'static str>> {
    let result = prepare(shared).await.map(|PreparedReload { live, ports, needs_restart }| {
        let live = Arc::new(live);
        shared.live.store(Arc::clone(&live));
        shared.ports.switch(&live.config, ports);
        needs_restart
    });
    let now = shared.clock.now().wall;
    let bus = &shared.eyes.bus;
    let refused = OperatorEvent::new("config-rejected", Severity::Fatal, "a new configuration was refused; the one in force stays");
    match &result {
        Ok(needs_restart) => {
            shared.reloads.loaded_at.store(now.0, Ordering::Relaxed);
            shared.reloads.needs_restart.store(Arc::new(needs_restart.clone()));
            let severity = if needs_restart.is_empty() { Severity::Info } else { Severity::Warning };
            let event = OperatorEvent::new("config-reloaded", severity, "the configuration was reloaded")
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

/// Summarises an error in one line.
pub(crate) fn summary(error: &anyhow::Error) -> String {
    let Some(invalid) = error.downcast_ref::<Invalid>() else { return error.to_string() };
    let problems = invalid.problems();
    let first = problems.first().map(|problem| format!("line {}: {}", invalid.position(problem).0, problem.message)).unwrap_or_default();
    if problems.len() > 1 { format!("{first}, and {} more", problems.len() - 1) } else { first }
}

/// Describes the keys that only a restart applies.
pub(crate) fn restart(keys: &[&str]) -> Option<String> {
    (!keys.is_empty()).then(|| format!("{} changed in the file, and only a restart changes that here", keys.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_file_that_does_not_answer_is_given_up_on() {
        let (_never, blocked) = std::sync::mpsc::channel::<()>();
        let hung = run_on_thread("load", move || Ok(blocked.recv()?));
        let error = within_time(hung).await.unwrap_err();
        assert_eq!(error.to_string(), "cannot read the configuration: it did not answer within 10 s");
    }
}
