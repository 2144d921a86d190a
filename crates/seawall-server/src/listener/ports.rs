//! Ports of single upstreams. Every worker listens on each of them. A reload opens new ports and closes removed ones.

use super::worker;
use seawall_core::config::Config;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{mpsc, watch};

/// The open ports, by their configured address.
#[derive(Debug)]
pub(crate) struct Ports {
    /// One channel per worker.
    workers: Vec<mpsc::UnboundedSender<Port>>,
    open: Mutex<BTreeMap<String, OpenPort>>,
}

#[derive(Debug)]
struct OpenPort {
    at: SocketAddr,
    /// Dropping this closes the listeners.
    _closes: watch::Sender<()>,
}

/// The listener of one worker on one port.
#[derive(Debug)]
pub(crate) struct Port {
    pub address: Arc<str>,
    pub listener: TcpListener,
    /// The sender is dropped when the port closes.
    pub open: watch::Receiver<()>,
}

/// Listeners of ports that a new configuration adds. Connections are accepted only once it is in force.
#[derive(Debug)]
pub(crate) struct NewPorts(BTreeMap<String, Vec<TcpListener>>);

impl Ports {
    pub(crate) fn new(workers: usize) -> (Self, Vec<mpsc::UnboundedReceiver<Port>>) {
        let (workers, receivers) = (0..workers).map(|_| mpsc::unbounded_channel()).unzip();
        (Self { workers, open: Mutex::default() }, receivers)
    }

    /// Listens on each port of this configuration that is not open yet. If a port is not available, the configuration is refused.
    pub(crate) fn prepare(&self, config: &Config) -> anyhow::Result<NewPorts> {
        let mut ports = BTreeMap::new();
        for upstream in &config.upstreams {
            let Some(address) = upstream.listen.as_ref().filter(|address| !self.is_open(address)) else { continue };
            let listeners = worker::listeners(address, self.workers.len())
                .map_err(|error| anyhow::anyhow!("`upstreams.{}.listen`: {error:#}", upstream.name))?;
            ports.insert(address.clone(), listeners);
        }
        Ok(NewPorts(ports))
    }

    /// Opens the new ports of the configuration in force and closes those which it no longer names.
    pub(crate) fn switch(&self, config: &Config, NewPorts(new): NewPorts) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|address, _| config.upstreams.iter().any(|upstream| upstream.listen.as_ref() == Some(address)));
        for (address, listeners) in new {
            let Some(at) = listeners.first().and_then(|listener| listener.local_addr().ok()) else { continue };
            let (closes, is_open) = watch::channel(());
            let shared: Arc<str> = Arc::from(address.as_str());
            for (worker, listener) in self.workers.iter().zip(listeners) {
                // A worker that has ended serves no port at all.
                drop(worker.send(Port { address: Arc::clone(&shared), listener, open: is_open.clone() }));
            }
            open.insert(address, OpenPort { at, _closes: closes });
        }
    }

    /// Returns the local address of a port.
    pub(crate) fn at(&self, address: &str) -> Option<SocketAddr> {
        Some(self.open.lock().unwrap_or_else(PoisonError::into_inner).get(address)?.at)
    }

    fn is_open(&self, address: &str) -> bool {
        self.at(address).is_some()
    }
}

/// Returns the number of ports that a configuration names.
pub(crate) fn count(config: &Config) -> usize {
    config.upstreams.iter().filter(|upstream| upstream.listen.is_some()).count()
}
