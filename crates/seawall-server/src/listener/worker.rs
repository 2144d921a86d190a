//! One thread that serves: its own runtime, its own listener on the shared port, its own connections upstream.

use super::http1::{Http1Connection, converse};
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

/// When draining, how long a connection that is new may take to say what it wants.
const LAST_WORD: Duration = Duration::from_millis(100);
/// How often a thread looks after its idle connections.
const SWEEP: Duration = Duration::from_secs(10);

/// Threads that serve callers: as many as there are processors, unless somebody says otherwise.
pub(crate) fn threads(wanted: Option<u16>) -> usize {
    wanted.map_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get), usize::from)
}

/// One listener for each thread on the same port; the kernel deals connections out.
pub(crate) fn listeners(address: &str, count: usize) -> anyhow::Result<Vec<std::net::TcpListener>> {
    // Sharing a port is for our own threads: without this, a second process would silently take half of the requests.
    drop(listen(address, false)?);
    let first = listen(address, true)?;
    // Port 0 is chosen once and then shared.
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

/// The life of one worker.
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
        // A task of its own: what a `LocalSet` runs until its end is polled after every event of the thread.
        tokio::task::spawn_local(acceptor.accept(listener, None, std::future::pending())).await?;
        drain(open, phases).await;
        Ok(())
    })
}

/// Counts the connections that are still open, and the tasks that accept more.
type OpenConnections = Rc<()>;

/// Listeners on ports of upstreams' own, as they are opened.
type NewListeners = mpsc::UnboundedReceiver<Port>;

/// Lets callers in.
#[derive(Clone)]
struct Acceptor {
    gateway: Rc<Gateway>,
    hush: IdleSweeper,
    phases: watch::Receiver<DrainPhase>,
    open: OpenConnections,
}

impl Acceptor {
    /// Accepts on every port that is opened, until the process ends.
    async fn open_ports(self, mut ports: NewListeners) {
        loop {
            let Port { address, listener, mut open } = tokio::select! {
                Some(port) = ports.recv() => port,
                () = draining(self.phases.clone()) => return,
            };
            // A listener that the runtime does not take closes, and the other workers have the port's connections.
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
            return seats.turn_away(stream, now, gateway.port_endpoint(port).as_deref());
        };
        let from = Entrance { peer: canonical(peer), port: port.cloned() };
        let (gateway, phases, open, talk) = (Rc::clone(gateway), phases.clone(), Rc::clone(open), self.hush.talk());
        tokio::task::spawn_local(async move {
            connection(gateway, stream, from, phases, talk).await;
            drop((open, seat));
        });
    }

    /// Accepts until the process ends or the port is `closed`.
    async fn accept(self, listener: TcpListener, port: Option<Arc<str>>, closed: impl Future<Output = ()>) {
        let mut phases = self.phases.clone();
        let mut sweep = tokio::time::interval(SWEEP);
        let mut closed = std::pin::pin!(closed);
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok(accepted) => self.admit(accepted, port.as_ref()),
                    // Out of descriptors, most likely: those in use must come back first.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                },
                _ = sweep.tick(), if port.is_none() => self.gateway.sweep(),
                _ = phases.wait_for(|phase| *phase >= DrainPhase::Draining) => break,
                () = &mut closed => break,
            }
        }
        // Whoever the kernel has let in already takes the port for open; closing it now would reset them.
        // Asked of the kernel itself: the runtime only knows what it was told when it last slept.
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
    // A peer that is gone already needs no answer.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let head_timeout = gateway.head_timeout();
    let first = tokio::select! {
        first = tokio::time::timeout(head_timeout, begin(&gateway, stream)) => first,
        // A connection that has said nothing for a while has nothing in flight.
        () = silent_while_draining(phases.clone()) => return,
    };
    let Ok(Ok((stream, speaks_h2))) = first else { return };
    // Errors of a connection are the peer's; whoever waits for an answer has been told.
    if !speaks_h2 {
        return converse(&gateway, stream, &from, phases, &talk).await;
    }
    // In a box: most connections speak HTTP/1, and should not carry its weight.
    Box::pin(http2::serve(gateway, stream, from, phases, &talk)).await;
}

pub(crate) async fn draining(mut phases: watch::Receiver<DrainPhase>) {
    // A closed channel means that the process is on its way out too.
    drop(phases.wait_for(|phase| *phase >= DrainPhase::Draining).await);
}

async fn silent_while_draining(phases: watch::Receiver<DrainPhase>) {
    draining(phases).await;
    tokio::time::sleep(LAST_WORD).await;
}

/// Finds out what a caller speaks; TLS says so itself.
async fn begin(gateway: &Gateway, stream: TcpStream) -> std::io::Result<(Io, bool)> {
    match gateway.front() {
        Some(front) => Box::pin(front.accept(stream)).await,
        None => {
            let speaks_h2 = begins_with_h2(&stream).await?;
            Ok((Io::Plain(stream), speaks_h2))
        }
    }
}

/// Looks at the first bytes without taking them: HTTP/2 with prior knowledge opens with `PRI * HTTP/2.0`.
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
        // The preface came in pieces; the next one is a moment away, or whoever sends it has time.
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}
