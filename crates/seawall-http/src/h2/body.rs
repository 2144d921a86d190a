//! A body over HTTP/2.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The body of a request or response. It is complete only if its sender said so (`END_STREAM`).
///
/// hyper takes `RST_STREAM` with `NO_ERROR` as an end as well. Node sends that if a request or response is destroyed half-way.
#[derive(Debug)]
pub struct IncomingBody(Incoming);

/// The body broke off.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    #[error(transparent)]
    Connection(#[from] hyper::Error),
    #[error("the stream was reset before the end of its body")]
    Reset,
}

impl IncomingBody {
    #[must_use]
    pub const fn new(incoming: Incoming) -> Self {
        Self(incoming)
    }
}

impl Body for IncomingBody {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        Poll::Ready(match ready!(Pin::new(&mut self.0).poll_frame(cx)) {
            None if !self.0.is_end_stream() => Some(Err(Broken::Reset)),
            frame => frame.map(|frame| frame.map_err(Broken::Connection)),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
