//! The socket side: accepts, reads requests, waits and responds as their fate says. It uses raw sockets, because a server library would not
//! let it violate the protocol.

use super::behave::FlakyUpstream;
use super::capacity::Due;
use super::fate::{PlannedAnswer, RequestFate};
use super::request::{self, BodyReading, Head, Refused};
use super::stats::SocketCounts;
use super::wire::{self, DateLine, FILL, Framed, Payload};
use bytes::BytesMut;
use seawall_core::time::{Nanos, Now};
use seawall_engine::clock::Clock;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Further connections are closed at once.
const MAX_CONNECTIONS: u64 = 50_000;
/// Responses to pipelined requests are gathered up to this length.
const MAX_PENDING: usize = 64 << 10;

/// State that all threads share.
#[derive(Debug)]
pub(crate) struct FlakyState {
    upstream: Mutex<FlakyUpstream>,
    pub wire: SocketCounts,
    pub clock: Clock,
}

impl FlakyState {
    pub(crate) fn new(upstream: FlakyUpstream) -> Self {
        Self { upstream: Mutex::new(upstream), wire: SocketCounts::default(), clock: Clock::start() }
    }

    /// A panic elsewhere can leave only counters behind, and none of them half updated.
    pub(crate) fn upstream(&self) -> MutexGuard<'_, FlakyUpstream> {
        self.upstream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn stats(&self) -> serde_json::Value {
        let upstream = self.upstream();
        upstream.stats.json(&upstream.names(), &self.wire)
    }
}

/// Serves until `stop`; connections end with it.
pub(crate) async fn accept(listener: TcpListener, shared: Arc<FlakyState>, mut stop: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = stop.changed() => return,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    shared.clock.follow();
                    connections.spawn(serve(stream, peer.ip(), Arc::clone(&shared)));
                }
                // Out of file descriptors: wait until connections close.
                Err(_) => shared.clock.sleep_until(shared.clock.now().mono + Nanos::from_millis(10)).await,
            }
        }
    }
}

async fn serve(stream: TcpStream, ip: IpAddr, shared: Arc<FlakyState>) {
    let Some(_open) = shared.wire.open(MAX_CONNECTIONS) else { return };
    // Without it small responses wait for acknowledgements; an error means that the connection is gone.
    drop(stream.set_nodelay(true));
    let mut connection = FlakyConnection {
        stream,
        shared: &shared,
        ip,
        input: BytesMut::new(),
        output: Vec::new(),
        kept: Vec::new(),
        dated: DateLine::default(),
    };
    while let Ok(NextRequest::Request) = connection.one().await {}
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextRequest {
    Request,
    Close,
}

#[derive(Debug)]
pub(super) struct FlakyConnection<'a> {
    pub stream: TcpStream,
    pub shared: &'a FlakyState,
    ip: IpAddr,
    input: BytesMut,
    /// Bytes that have not been written yet.
    pub output: Vec<u8>,
    kept: Vec<u8>,
    pub dated: DateLine,
}

/// One response on its way out.
#[derive(Debug)]
pub(super) struct FlakyReply {
    pub fate: RequestFate,
    pub payload: Payload,
    pub kind: &'static str,
    pub head: Head,
    pub epoch_s: i64,
}

impl FlakyConnection<'_> {
    async fn one(&mut self) -> io::Result<NextRequest> {
        let head = loop {
            match request::head(&self.input) {
                Ok(Some(head)) => break head,
                Ok(None) if self.fill().await? => {}
                Ok(None) => return Ok(NextRequest::Close),
                Err(refused) => return self.refuse(refused).await,
            }
        };
        let bytes = self.input.split_to(head.length);
        if let Some(refused) = self.body(&head).await? {
            return self.refuse(refused).await;
        }
        let now = self.shared.clock.now();
        let (ip, shared) = (self.ip, self.shared);
        let met = request::with_facts(&bytes, &self.kept, ip, |facts| {
            let own = own(shared, facts.method, facts.path, now);
            let counted = own.is_none();
            let fate = own.unwrap_or_else(|| shared.upstream().decide(facts, now));
            let (payload, kind) = wire::payload(&fate.answer, facts);
            (FlakyReply { fate, payload, kind, head, epoch_s: now.wall.0.div_euclid(1000) }, counted)
        });
        let Some((reply, counted)) = met else { return self.refuse(Refused(400)).await };
        let _in_flight = counted.then(|| shared.wire.begin());
        self.wait(&reply.fate, now).await?;
        match reply.fate.fault {
            None => self.send(&reply).await,
            Some(fault) => self.fail(fault, &reply).await,
        }
    }

    /// Writes pending bytes and reads more; `false` at the end.
    async fn fill(&mut self) -> io::Result<bool> {
        self.flush().await?;
        self.input.reserve(4096);
        Ok(self.stream.read_buf(&mut self.input).await? > 0)
    }

    pub(super) async fn flush(&mut self) -> io::Result<()> {
        if !self.output.is_empty() {
            self.stream.write_all(&self.output).await?;
            self.output.clear();
        }
        Ok(())
    }

    async fn body(&mut self, head: &Head) -> io::Result<Option<Refused>> {
        self.kept.clear();
        let mut reading = BodyReading::begin(head.framing);
        if head.expects_continue {
            self.output.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        loop {
            match reading.take(&mut self.input, &mut self.kept) {
                Ok(true) => return Ok(None),
                Ok(false) if self.fill().await? => {}
                Ok(false) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(refused) => return Ok(Some(refused)),
            }
        }
    }

    async fn wait(&mut self, fate: &RequestFate, now: Now) -> io::Result<()> {
        let clock = &self.shared.clock;
        let mut ready = now.mono;
        if let Some(work) = fate.work {
            self.flush().await?;
            loop {
                ready = clock.now().mono;
                let due = self.shared.upstream().due(work, ready);
                match due {
                    Due::Finished => break,
                    Due::AskAgain(at) => clock.sleep_until(at).await,
                }
            }
        }
        if fate.wait > Nanos::ZERO {
            self.flush().await?;
            clock.sleep_until(ready + fate.wait).await;
        }
        Ok(())
    }

    async fn refuse(&mut self, refused: Refused) -> io::Result<NextRequest> {
        let line = format!("HTTP/1.1 {} Refused\r\ncontent-length: 0\r\nconnection: close\r\n\r\n", refused.0);
        self.output.extend_from_slice(line.as_bytes());
        self.close().await
    }

    pub(super) fn head(&mut self, reply: &FlakyReply, framed: Framed) {
        let date = self.dated.line(reply.epoch_s);
        wire::head(&mut self.output, &reply.fate.answer, reply.kind, framed, date, reply.head.keep_alive);
        self.output.extend_from_slice(b"\r\n");
    }

    pub(super) async fn send(&mut self, reply: &FlakyReply) -> io::Result<NextRequest> {
        let bare = reply.head.is_head || matches!(reply.fate.answer.status, 204 | 304);
        match &reply.payload {
            Payload::Events(count) => {
                self.head(reply, Framed::Chunked);
                if !bare {
                    self.events(*count).await?;
                }
            }
            payload => {
                self.head(reply, Framed::Length(payload.length()));
                if !bare {
                    self.whole(payload).await?;
                }
            }
        }
        self.next(reply).await
    }

    /// Keeps or closes the connection as the caller asked.
    pub(super) async fn next(&mut self, reply: &FlakyReply) -> io::Result<NextRequest> {
        if !reply.head.keep_alive {
            return self.close().await;
        }
        if self.output.len() > MAX_PENDING {
            self.flush().await?;
        }
        Ok(NextRequest::Request)
    }

    async fn whole(&mut self, payload: &Payload) -> io::Result<()> {
        match payload {
            Payload::Bytes(bytes) => self.output.extend_from_slice(bytes),
            Payload::Fill(length) => {
                let mut left = *length;
                while left > 0 {
                    let block = usize::try_from(left).unwrap_or(usize::MAX).min(FILL.len());
                    self.output.extend_from_slice(&FILL[..block]);
                    left -= block as u64;
                    self.flush().await?;
                }
            }
            Payload::Events(_) => {}
        }
        Ok(())
    }

    async fn events(&mut self, count: u32) -> io::Result<()> {
        for n in 1..=count {
            let event = format!("data: {{\"n\":{n}}}\n\n");
            self.output.extend_from_slice(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes());
            self.flush().await?;
            if n < count {
                self.pause(Nanos::from_millis(100)).await;
            }
        }
        self.output.extend_from_slice(b"0\r\n\r\n");
        Ok(())
    }

    pub(super) async fn pause(&self, length: Nanos) {
        let clock = &self.shared.clock;
        clock.sleep_until(clock.now().mono + length).await;
    }

    /// Shuts down, and reads what the caller still sends for a moment: a close with unread bytes would be a reset.
    pub(super) async fn close(&mut self) -> io::Result<NextRequest> {
        self.flush().await?;
        self.stream.shutdown().await?;
        let until = self.shared.clock.now().mono + Nanos::from_secs(1);
        tokio::select! {
            () = self.shared.clock.sleep_until(until) => {}
            () = drain(&mut self.stream) => {}
        }
        Ok(NextRequest::Close)
    }
}

/// Reads until the caller has left.
pub(super) async fn drain(stream: &mut TcpStream) {
    let mut nowhere = [0; 4096];
    while stream.read(&mut nowhere).await.is_ok_and(|read| read > 0) {}
}

/// The server's own paths, which are not counted.
fn own(shared: &FlakyState, method: &str, path: &str, now: Now) -> Option<RequestFate> {
    match (method, path) {
        ("GET", "/-/stats") => Some(PlannedAnswer::json(200, shared.stats().to_string()).into()),
        ("POST", "/-/reset") => {
            shared.upstream().reset(now.mono);
            shared.wire.reset();
            Some(PlannedAnswer::json(200, r#"{"ok":true}"#.to_owned()).into())
        }
        _ => None,
    }
}
