//! HTTP/2 to an upstream: one connection carries many requests, and what its failures say about whether a request was
//! processed. That decides whether a POST may go again.

use crate::body::Outgoing;
use crate::fault::Fault;
use http::{Request, response};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::error::Error as _;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Longer header sections of an answer are refused.
const MOST_HEADER_BYTES: u32 = 64 * 1024;

/// A connection that any number of calls send over.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    sender: http2::SendRequest<Outgoing>,
    /// Set once the socket has ended.
    ended: Arc<AtomicBool>,
}

/// A request that got no answer.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) fault: Fault,
    /// The body of a request of which nothing was sent.
    pub(crate) unsent: Option<Outgoing>,
}

impl Shared {
    pub(crate) async fn open<I>(io: I) -> Result<Self, Fault>
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let ended = Arc::<AtomicBool>::default();
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_header_list_size(MOST_HEADER_BYTES)
            .keep_alive_interval(Duration::from_secs(30))
            .adaptive_window(true);
        let io = TokioIo::new(Watched { io, ended: Arc::clone(&ended) });
        let (sender, connection) = builder.handshake(io).await.map_err(|error| Fault::of(&error))?;
        tokio::task::spawn_local(async move { drop(connection.await) });
        Ok(Self { sender, ended })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    pub(crate) async fn send(&mut self, request: Request<Outgoing>) -> Result<(response::Parts, Incoming), Failure> {
        match self.sender.try_send_request(request).await {
            Ok(answer) => Ok(answer.into_parts()),
            Err(mut failed) => {
                let unsent = failed.take_message().map(Request::into_body);
                let is_unprocessed = unsent.is_some() || self.is_unprocessed(failed.error());
                let fault = if is_unprocessed { Fault::NOT_PROCESSED } else { Fault::of(failed.error()) };
                Err(Failure { fault, unsent })
            }
        }
    }

    /// Whether the server has said that it did not look at the request (RFC 9113 §8.7): it refused the stream, or goes
    /// away and counts the stream among those that it will not answer. Once the socket has ended, every stream fails
    /// with the words of that farewell, also those that were being worked on, so nothing is known of any.
    fn is_unprocessed(&self, error: &hyper::Error) -> bool {
        let Some(error) = error.source().and_then(|source| source.downcast_ref::<::h2::Error>()) else { return false };
        let is_refused = error.is_reset() && error.reason() == Some(::h2::Reason::REFUSED_STREAM);
        error.is_remote() && (is_refused || (error.is_go_away() && !self.ended.load(Ordering::Relaxed)))
    }
}

/// The socket, and whether it has ended.
#[derive(Debug)]
struct Watched<I> {
    io: I,
    ended: Arc<AtomicBool>,
}

impl<I> Watched<I> {
    fn note<T>(&self, result: Poll<std::io::Result<T>>) -> Poll<std::io::Result<T>> {
        if matches!(result, Poll::Ready(Err(_))) {
            self.ended.store(true, Ordering::Relaxed);
        }
        result
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Watched<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let room = buffer.remaining();
        let read = Pin::new(&mut self.io).poll_read(cx, buffer);
        if matches!(read, Poll::Ready(Ok(()))) && room > 0 && buffer.remaining() == room {
            self.ended.store(true, Ordering::Relaxed);
        }
        self.note(read)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Watched<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.note(written)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, parts);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.note(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
