//! A body that comes over HTTP/2.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The body of a request or response, which has ended only where its sender said so (`END_STREAM`).
///
/// hyper takes `RST_STREAM` with `NO_ERROR` for an end as well. Node sends that for a request or response which is destroyed half-way.
#[derive(Debug)]
pub struct IncomingBody(Incoming);

/// A body did not come to its end.
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
