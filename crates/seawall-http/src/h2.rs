//! HTTP/2 to an upstream: one connection carries many requests. Its errors tell whether a request was processed, which decides whether a
//! POST may be sent again.

mod body;
mod hearing;

pub use body::{Broken, IncomingBody};

use crate::fault::Fault;
use crate::io::LocalExecutor;
use bytes::Bytes;
use hearing::Hearing;
use http::uri::PathAndQuery;
use http::{Request, Uri, response};
use http_body::Body;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use seawall_core::config::url::Base;
use std::cell::Cell;
use std::error::Error;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// Streams that may start before a peer has announced its limit.
const BEFORE_SETTINGS: usize = 1;
/// Longer header sections of a response are refused.
const MAX_HEADER_BYTES: u32 = 64 * 1024;

/// A connection that several calls use at once, as many as its peer allows.
#[derive(Debug)]
pub struct MultiplexedConnection<B> {
    sender: http2::SendRequest<B>,
    load: Rc<StreamLoad>,
}

impl<B> Clone for MultiplexedConnection<B> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), load: Rc::clone(&self.load) }
    }
}

/// A connection's streams, and its peer's limit. hyper would accept more requests and queue them, and their time in that queue would count
/// as the upstream's.
#[derive(Debug)]
struct StreamLoad {
    streams: Cell<usize>,
    limit: Cell<usize>,
}

/// One stream, from its request until its response has been read or given up.
#[derive(Debug)]
pub struct H2Stream {
    load: Rc<StreamLoad>,
}

impl H2Stream {
    fn of(load: &Rc<StreamLoad>) -> Self {
        load.streams.set(load.streams.get() + 1);
        Self { load: Rc::clone(load) }
    }
}

impl Drop for H2Stream {
    fn drop(&mut self) {
        self.load.streams.set(self.load.streams.get().saturating_sub(1));
    }
}

/// A response's body, and the stream that it comes over.
#[derive(Debug)]
pub struct StreamBody {
    pub incoming: IncomingBody,
    _stream: H2Stream,
}

/// A request that got no response.
#[derive(Debug)]
pub struct H2Failure<B> {
    pub fault: Fault,
    /// The body of a request of which nothing was sent.
    pub unsent: Option<B>,
}

impl<B> MultiplexedConnection<B>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + 'static,
{
    pub async fn open<I>(io: I) -> Result<Self, Fault>
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut builder = http2::Builder::new(LocalExecutor);
        builder
            .timer(TokioTimer::new())
            .max_header_list_size(MAX_HEADER_BYTES)
            .keep_alive_interval(Duration::from_secs(30))
            .initial_max_send_streams(BEFORE_SETTINGS)
            .adaptive_window(true);
        let (sender, connection) = builder.handshake(TokioIo::new(Hearing::new(io))).await.map_err(|error| Fault::of(&error))?;
        let load = Rc::new(StreamLoad { streams: Cell::new(0), limit: Cell::new(BEFORE_SETTINGS) });
        tokio::task::spawn_local(run(connection, Rc::clone(&load)));
        Ok(Self { sender, load })
    }

    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Whether its peer allows one more stream.
    pub fn has_room(&self) -> bool {
        self.load.streams.get() < self.load.limit.get()
    }

    /// Whether it carries no stream.
    pub fn is_idle(&self) -> bool {
        self.load.streams.get() == 0
    }

    pub async fn send(&mut self, request: Request<B>) -> Result<(response::Parts, StreamBody), H2Failure<B>> {
        let stream = H2Stream::of(&self.load);
        match self.sender.try_send_request(request).await {
            Ok(answer) => {
                let (head, incoming) = answer.into_parts();
                Ok((head, StreamBody { incoming: IncomingBody::new(incoming), _stream: stream }))
            }
            Err(mut failed) => {
                let unsent = failed.take_message().map(Request::into_body);
                let is_unprocessed = unsent.is_some() || is_unprocessed(failed.error());
                let fault = match failed.error() {
                    _ if is_unprocessed => Fault::NOT_PROCESSED,
                    error if is_abandoned(error) => Fault::ABANDONED,
                    error => Fault::of(error),
                };
                Err(H2Failure { fault, unsent })
            }
        }
    }
}

/// The absolute form of a URI: HTTP/2 sends scheme and authority in the request itself.
#[must_use]
pub fn absolute(base: &Base, uri: &Uri) -> Uri {
    let scheme = if base.tls { "https" } else { "http" };
    let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    Uri::builder().scheme(scheme).authority(base.authority()).path_and_query(path).build().unwrap_or_else(|_| uri.clone())
}

/// Drives a connection and records its peer's stream limit.
async fn run<I, B>(connection: http2::Connection<TokioIo<Hearing<I>>, B, LocalExecutor>, load: Rc<StreamLoad>)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + 'static,
{
    let mut connection = pin!(connection);
    let ended = poll_fn(|cx| {
        let polled = connection.as_mut().poll(cx);
        load.limit.set(connection.current_max_send_streams());
        polled
    });
    drop(ended.await);
}

/// Whether the server has said that it did not process the request (RFC 9113 §8.7): it refused the stream, or its GOAWAY excludes the
/// stream. Streams that it was processing when the connection ended fail with an I/O error instead.
fn is_unprocessed(error: &hyper::Error) -> bool {
    let Some(error) = error.source().and_then(|source| source.downcast_ref::<::h2::Error>()) else { return false };
    let is_refused = error.is_reset() && error.reason() == Some(::h2::Reason::REFUSED_STREAM);
    error.is_remote() && (is_refused || error.is_go_away())
}

/// Whether we reset the stream ourselves, as we do if the caller's body breaks off.
fn is_abandoned(error: &hyper::Error) -> bool {
    let Some(error) = error.source().and_then(|source| source.downcast_ref::<::h2::Error>()) else { return error.is_user() };
    error.is_reset() && !error.is_remote() && !error.is_library()
}
