//! HTTP/2 to an upstream: one connection carries many requests, and what its failures say about whether a request was
//! processed. That decides whether a POST may go again.

mod hearing;

use crate::body::Outgoing;
use crate::fault::Fault;
use crate::io::LocalExecutor;
use hearing::Hearing;
use http::{Request, response};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::error::Error as _;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// Longer header sections of an answer are refused.
const MOST_HEADER_BYTES: u32 = 64 * 1024;

/// A connection that any number of calls send over.
#[derive(Clone, Debug)]
pub(crate) struct Shared(http2::SendRequest<Outgoing>);

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
        let mut builder = http2::Builder::new(LocalExecutor);
        builder
            .timer(TokioTimer::new())
            .max_header_list_size(MOST_HEADER_BYTES)
            .keep_alive_interval(Duration::from_secs(30))
            .adaptive_window(true);
        let (sender, connection) = builder.handshake(TokioIo::new(Hearing::new(io))).await.map_err(|error| Fault::of(&error))?;
        tokio::task::spawn_local(async move { drop(connection.await) });
        Ok(Self(sender))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    pub(crate) async fn send(&mut self, request: Request<Outgoing>) -> Result<(response::Parts, Incoming), Failure> {
        match self.0.try_send_request(request).await {
            Ok(answer) => Ok(answer.into_parts()),
            Err(mut failed) => {
                let unsent = failed.take_message().map(Request::into_body);
                let is_unprocessed = unsent.is_some() || is_unprocessed(failed.error());
                let fault = if is_unprocessed { Fault::NOT_PROCESSED } else { Fault::of(failed.error()) };
                Err(Failure { fault, unsent })
            }
        }
    }
}

/// Whether the server has said that it did not look at the request (RFC 9113 §8.7): it refused the stream, or goes away
/// and counts the stream among those that it will not answer. Those that it was working on when its connection ended fail
/// with an I/O error instead.
fn is_unprocessed(error: &hyper::Error) -> bool {
    let Some(error) = error.source().and_then(|source| source.downcast_ref::<::h2::Error>()) else { return false };
    let is_refused = error.is_reset() && error.reason() == Some(::h2::Reason::REFUSED_STREAM);
    error.is_remote() && (is_refused || error.is_go_away())
}
