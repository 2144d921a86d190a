//! A serving thread with its own runtime, its own listener on the shared port, and its own upstream connections.

use super::http1::{Http1Connection, serve_connection};
use super::http2;
use super::idle::IdleSweeper;
use super::ports::Port;
use crate::DrainPhase;
use crate::ServerState;
use crate::gateway::Entrance;
use crate::gateway::Gateway;
use anyhow::Context as _;
use seawall_engine::caller::canonical;
use seawall_http::io::Io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;

/// During a drain, the time for a new connection to send its request.
const LAST_WORD: Duration = Duration::from_millis(100);
/// Interval of the sweep for idle upstream connections.
const SWEEP: Duration = Duration::from_secs(10);

/// Returns the number of serving threads: the configured one, or one per processor.
pub(crate) fn threads(wanted: Option<u16>) -> usize {
    wanted.map_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get), usize::from)
}

/// Opens one listener per thread on the same port; the kernel distributes connections over them.
pub(crate) fn listeners(address: &str, count: usize) -> anyhow::Result<Vec<std::net::TcpListener>> {
    // `SO_REUSEPORT` is meant for our own threads: without this check, a second process would silently take half of the requests.
    drop(listen(address, false)?);
    let first = listen(address, true)?;
    // With port 0 the kernel chooses a port for the first listener; the others share it.
    let at = first.local_addr()?.to_string();
    let mut all = vec![first];
    for _ in 1..count {
        all.push(listen(&at, true)?);
    }
    Ok(all)
}

pub(crate) fn listen(address: &str, shared: bool) -> anyhow::Result<std::net::TcpListener> {
    let describe = || format!("cannot listen on `{address}`");
    let at: SocketAddr = address.to_socket_addrs().with_context(describe)?.next().with_context(describe)?;
    let socket = socket2::Socket::new(socket2::Domain::for_address(at), socket2::Type::STREAM, None).with_context(describe)?;
    socket.set_reuse_address(true)?;
    if shared {
        socket.set_reuse_port(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&at.into()).with_context(describe)?;
    socket.listen(4096).with_context(describe)?;
    Ok(socket.into())
}

/// The main function of a serving thread.
pub(crate) fn run(
    shared: &Arc<ServerState>,
    listener: std::net::TcpListener,
    ports: NewListeners,
    phases: watch::Receiver<DrainPhase>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::from_std(listener)?;
        let gateway = Rc::new(Gateway::new(Arc::clone(shared)));
        let hush = IdleSweeper::default();
        tokio::task::spawn_local(hush.clone().watch(shared.head_timeout, gateway.seats()));
        let open: OpenConnections = Rc::new(());
        let acceptor = Acceptor { gateway, hush, phases: phases.clone(), open: Rc::clone(&open) };
        tokio::task::spawn_local(acceptor.clone().open_ports(ports));
        // A task of its own: the main future of a `LocalSet` is polled after every event of the thread.
        tokio::task::spawn_local(acceptor.accept(listener, None, std::future::pending())).await?;
        drain(open, phases).await;
        Ok(())
    })
}

/// Its strong count is the number of open connections and accepting tasks.
type OpenConnections = Rc<()>;

/// Delivers listeners on ports of single upstreams as they are opened.
type NewListeners = mpsc::UnboundedReceiver<Port>;

/// Accepts connections.
#[derive(Clone)]
struct Acceptor {
    gateway: Rc<Gateway>,
    hush: IdleSweeper,
    phases: watch::Receiver<DrainPhase>,
    open: OpenConnections,
}

impl Acceptor {
    /// Accepts on every newly opened port until the process stops.
    async fn open_ports(self, mut ports: NewListeners) {
        loop {
            let Port { address, listener, mut open } = tokio::select! {
                Some(port) = ports.recv() => port,
                () = draining(self.phases.clone()) => return,
            };
            // If the runtime rejects a listener it is closed, and the other workers get the port's connections.
            if let Ok(listener) = TcpListener::from_std(listener) {
                let closed = async move { while open.changed().await.is_ok() {} };
                tokio::task::spawn_local(self.clone().accept(listener, Some(address), closed));
            }
        }
    }

    fn admit(&self, (stream, peer): (TcpStream, SocketAddr), port: Option<&Arc<str>>) {
        let Self { gateway, phases, open, .. } = self;
        let seats = gateway.seats();
        let Some(seat) = seats.take() else {
            let now = gateway.front().is_none().then(|| gateway.wall());
            return seats.refuse(stream, now, gateway.port_endpoint(port).as_deref());
        };
        let from = Entrance { peer: canonical(peer), port: port.cloned() };
        let (gateway, phases, open, talk) = (Rc::clone(gateway), phases.clone(), Rc::clone(open), self.hush.watch_http1());
        tokio::task::spawn_local(async move {
            connection(gateway, stream, from, phases, talk).await;
            drop((open, seat));
        });
    }

    /// Accepts until the process stops or the port is `closed`.
    async fn accept(self, listener: TcpListener, port: Option<Arc<str>>, closed: impl Future<Output = ()>) {
        let mut phases = self.phases.clone();
        let mut sweep = tokio::time::interval(SWEEP);
        let mut closed = std::pin::pin!(closed);
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok(accepted) => self.admit(accepted, port.as_ref()),
                    // Probably out of file descriptors: wait until some are closed.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                },
                _ = sweep.tick(), if port.is_none() => self.gateway.sweep(),
                _ = phases.wait_for(|phase| *phase >= DrainPhase::Draining) => break,
                () = &mut closed => break,
            }
        }
        // Accepts the connections in the kernel's backlog, because closing the listener now would reset them. Asks the kernel directly: the
        // runtime only knows the readiness of its last poll.
        if let Ok(listener) = listener.into_std() {
            while let Ok((stream, peer)) = listener.accept() {
                if stream.set_nonblocking(true).is_ok()
                    && let Ok(stream) = TcpStream::from_std(stream)
                {
                    self.admit((stream, peer), port.as_ref());
                }
            }
        }
    }
}

/// Waits for open connections to end, or for the order to stop at once.
async fn drain(open: OpenConnections, mut phases: watch::Receiver<DrainPhase>) {
    let ended = async {
        while Rc::strong_count(&open) > 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        () = ended => {}
        _ = phases.wait_for(|phase| *phase >= DrainPhase::Stopping) => {}
    }
}

async fn connection(gateway: Rc<Gateway>, stream: TcpStream, from: Entrance, phases: watch::Receiver<DrainPhase>, talk: Http1Connection) {
    // The peer has already disconnected.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let head_timeout = gateway.head_timeout();
    let first = tokio::select! {
        first = tokio::time::timeout(head_timeout, begin(&gateway, stream)) => first,
        // A connection that has sent nothing for a while has no request in flight.
        () = silent_while_draining(phases.clone()) => return,
    };
    let Ok(Ok((stream, speaks_h2))) = first else { return };
    // Errors of a connection are the peer's fault; the caller has already been sent a response.
    if !speaks_h2 {
        return serve_connection(&gateway, stream, &from, phases, &talk).await;
    }
    // Boxed, so that the futures of HTTP/1 connections, the majority, stay small.
    Box::pin(http2::serve(gateway, stream, from, phases, &talk)).await;
}

pub(crate) async fn draining(mut phases: watch::Receiver<DrainPhase>) {
    // A closed channel means that the process is stopping, too.
    drop(phases.wait_for(|phase| *phase >= DrainPhase::Draining).await);
}

async fn silent_while_draining(phases: watch::Receiver<DrainPhase>) {
    draining(phases).await;
    tokio::time::sleep(LAST_WORD).await;
}

/// Detects the protocol version of a caller; TLS negotiates it by ALPN.
async fn begin(gateway: &Gateway, stream: TcpStream) -> std::io::Result<(Io, bool)> {
    match gateway.front() {
        Some(front) => Box::pin(front.accept(stream)).await,
        None => {
            let speaks_h2 = begins_with_h2(&stream).await?;
            Ok((Io::Plain(stream), speaks_h2))
        }
    }
}

/// Peeks at the first bytes: HTTP/2 with prior knowledge begins with `PRI * HTTP/2.0`.
async fn begins_with_h2(stream: &TcpStream) -> std::io::Result<bool> {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0";
    let mut seen = [0; PREFACE.len()];
    let mut pause = Duration::from_millis(1);
    loop {
        let count = stream.peek(&mut seen).await?;
        if count == 0 || seen[..count] != PREFACE[..count] {
            return Ok(false);
        }
        if count == PREFACE.len() {
            return Ok(true);
        }
        // The preface is incomplete. The rest usually follows at once; otherwise the pause grows.
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}
