//! One HTTP/2 connection of a caller. Its streams have the limits of HTTP/1 connections: the first request must come in time, no connection
//! is idle for longer than that, and no response stays unread.

use super::caller_socket::{CallerSocket, LINGER};
use super::http1::{AwaitedRead, ConnectionActivity, Http1Connection};
use super::idle::IdleWatch;
use super::worker::draining;
use crate::DrainPhase;
use crate::connection_limit::Seat;
use crate::gateway::Entrance;
use crate::gateway::Gateway;
use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use seawall_http::h2::IncomingBody;
use seawall_http::io::Io;
use seawall_http::request_body::Inbound;
use seawall_http::response_body::{Relay, RelayError};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;

const MAX_HEADER_BYTES: u32 = 64 * 1024;
/// Maximum response bytes per stream that wait for the caller.
const MAX_SEND_BUFFER: usize = 64 * 1024;
const PING_INTERVAL: Duration = Duration::from_secs(30);

/// The open streams of one connection.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    open: RefCell<BTreeMap<u32, Rc<StreamState>>>,
    /// The stream whose task is about to be spawned: hyper calls the service and spawns its stream in one go.
    spawning: RefCell<Option<OpenStream>>,
    count: Cell<u32>,
}

/// The progress of one stream's response.
#[derive(Debug, Default)]
struct StreamState {
    /// Body chunks that hyper has asked for. It asks for the next one when the caller's window has room for the last.
    pieces: Cell<u64>,
    /// The last chunk waits for the caller's window.
    is_held: Cell<bool>,
    hush: IdleWatch,
}

/// A stream from its request to its end.
#[derive(Debug)]
struct OpenStream {
    number: u32,
    state: Rc<StreamState>,
    talk: Rc<ConnectionActivity>,
    /// Each stream beyond the first takes a place in the connection limit, as an HTTP/1 connection would.
    _seat: Option<Seat>,
}

impl Streams {
    /// Checks each stream and ends the ones whose response is not read.
    pub(crate) fn look(&self, is_short: bool) {
        for stream in self.open.borrow().values() {
            let awaited = stream.is_held.get().then(|| AwaitedRead::Reader(stream.pieces.get()));
            stream.hush.look(awaited, is_short);
        }
    }
}

impl ConnectionActivity {
    /// Opens a new stream of this connection.
    fn open_stream(self: &Rc<Self>, seat: Option<Seat>) -> OpenStream {
        let streams = &self.streams;
        let number = streams.count.get().wrapping_add(1);
        streams.count.set(number);
        let state = Rc::<StreamState>::default();
        streams.open.borrow_mut().insert(number, Rc::clone(&state));
        self.begin();
        OpenStream { number, state, talk: Rc::clone(self), _seat: seat }
    }

    fn has_streams(&self) -> bool {
        !self.streams.open.borrow().is_empty()
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.talk.streams.open.borrow_mut().remove(&self.number);
        if !self.talk.has_streams() {
            // The connection is idle; the idle limits of HTTP/1 apply.
            self.talk.end();
        }
    }
}

/// Runs a connection's streams on its thread. Dropping a stream's task resets the stream and returns its upstream connection to the pool.
#[derive(Clone)]
struct StreamTasks(Rc<ConnectionActivity>);

impl<F: Future + 'static> hyper::rt::Executor<F> for StreamTasks {
    fn execute(&self, task: F) {
        let stream = self.0.streams.spawning.take();
        tokio::task::spawn_local(async move {
            let mut task = pin!(task);
            poll_fn(|cx| {
                let is_given_up = stream.as_ref().is_some_and(|stream| stream.state.hush.is_over(cx));
                if is_given_up { Poll::Ready(()) } else { task.as_mut().poll(cx).map(drop) }
            })
            .await;
        });
    }
}

/// A response body that records whether the caller reads it.
struct ReadBody {
    body: Relay,
    state: Rc<StreamState>,
}

impl Body for ReadBody {
    type Data = Bytes;
    type Error = RelayError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        self.state.pieces.set(self.state.pieces.get().wrapping_add(1));
        self.state.is_held.set(matches!(polled, Poll::Ready(Some(Ok(_)))));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Serves a connection until the caller disconnects, a time limit ends it, or the process stops.
pub(crate) async fn serve(gateway: Rc<Gateway>, stream: Io, from: Entrance, phases: watch::Receiver<DrainPhase>, talk: &Http1Connection) {
    let (spoken, max_streams) = (Rc::clone(talk.activity()), gateway.seats().max_streams());
    let tasks = StreamTasks(Rc::clone(&spoken));
    let service = service_fn(move |request: Request<Incoming>| {
        let (gateway, seats, from) = (Rc::clone(&gateway), gateway.seats(), from.clone());
        let seat = if spoken.has_streams() { seats.take().map(Some) } else { Some(None) };
        let is_full = seat.is_none();
        let stream = spoken.open_stream(seat.flatten());
        let state = Rc::clone(&stream.state);
        *spoken.streams.spawning.borrow_mut() = Some(stream);
        Box::pin(async move {
            let (mut head, body) = request.into_parts();
            let response: Response<Relay> = if is_full {
                gateway.record_refusal(gateway.shed().shaped(gateway.named_endpoint(&head, None, &from).as_deref()), None)
            } else {
                gateway.handle(&mut head, (Inbound::H2(IncomingBody::new(body)), None), &from).await.whole()
            };
            let mut response = response.map(|body| ReadBody { body, state });
            if response.status() == StatusCode::NO_CONTENT {
                // No body follows, and some clients would wait for `Content-Length` bytes.
                response.headers_mut().remove(CONTENT_LENGTH);
            }
            Ok::<_, Infallible>(response)
        })
    });
    let mut builder = http2::Builder::new(tasks);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(max_streams)
        .max_send_buf_size(MAX_SEND_BUFFER)
        .max_header_list_size(MAX_HEADER_BYTES)
        .keep_alive_interval(PING_INTERVAL);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(CallerSocket::new(stream, phases.clone())), service));
    let is_idle = tokio::select! {
        // In this order, so that requests that have arrived are read before the connection shuts down.
        biased;
        _ = connection.as_mut() => return,
        () = poll_fn(|cx| if talk.activity().hush.is_over(cx) { Poll::Ready(()) } else { Poll::Pending }) => true,
        () = draining(phases) => false,
    };
    connection.as_mut().graceful_shutdown();
    if is_idle {
        // No stream is open, so a caller that does not read the GOAWAY loses nothing.
        drop(tokio::time::timeout(LINGER, connection).await);
    } else {
        drop(connection.await);
    }
}
