//! One connection to an upstream: sends requests and reads responses.

use super::body_reader::BodyReader;
use super::chunks::Cut;
use super::outgoing::{BodyFraming, BodyStart, Out};
use super::raw_response::{Passes, RawResponseHeaders};
use super::response_head::{self, ResponseHead};
use super::writer::HeadWriter;
use crate::fault::Fault;
use crate::io::Io;
use bytes::Bytes;
use http::response;
use http_body::{Body, Frame, SizeHint};
use std::io::ErrorKind;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncRead, ReadBuf};

/// One connection to an upstream.
#[derive(Debug)]
pub struct Conn<B> {
    io: Io,
    out: Out<B>,
    reading: BodyReader,
    /// Neither side has said that this request is the last.
    stays: bool,
}

impl<B: Body<Data = Bytes> + Default + Unpin> Conn<B> {
    pub fn new(io: Io) -> Self {
        Self { io, out: Out::default(), reading: BodyReader::default(), stays: true }
    }

    /// Whether the upstream has closed an idle connection, or sent bytes without a request. Costs no system call while the reactor has no
    /// event.
    pub fn is_dead(&mut self) -> bool {
        let mut byte = [0; 1];
        if let Io::Plain(io) = &self.io {
            // `try_read` registers no waker; a poll would, and later wake this task for nothing.
            return !io.try_read(&mut byte).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        }
        let mut cx = Context::from_waker(Waker::noop());
        Pin::new(&mut self.io).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_ready()
    }

    /// Starts a request: `write` writes its head without the framing, `body` follows when `start` says. A body without a known length is
    /// sent in chunks; an empty one has a length only if the method expects one.
    pub fn begin(&mut self, body: B, start: BodyStart, wants_length: bool, write: impl FnOnce(&mut HeadWriter<'_>)) {
        let framing = match body.size_hint().exact() {
            Some(0) if !wants_length => BodyFraming::Bare,
            Some(length) => BodyFraming::Length(length),
            None => BodyFraming::Chunked,
        };
        self.out.begin(body, framing, start, write);
    }

    /// Whether any of the request may have reached the upstream.
    pub const fn has_sent(&self) -> bool {
        self.out.has_sent()
    }

    /// The body of a request of which nothing was sent, if no bytes were taken out of it either.
    pub fn take_untouched_body(&mut self) -> Option<B> {
        self.out.take_untouched()
    }

    /// Sends the request and waits for the response's head. Its headers are returned raw if all of them pass. The request's body may
    /// continue after that.
    pub async fn answer(&mut self, to_head: bool, passes: Option<Passes>) -> Result<(response::Parts, Option<RawResponseHeaders>), Fault> {
        std::future::poll_fn(|cx| self.poll_answer(cx, to_head, passes)).await
    }

    fn poll_answer(
        &mut self,
        cx: &mut Context<'_>,
        to_head: bool,
        passes: Option<Passes>,
    ) -> Poll<Result<(response::Parts, Option<RawResponseHeaders>), Fault>> {
        self.out.push(&mut self.io, cx);
        if self.out.is_hopeless() {
            let is_callers = self.out.is_broken() && !self.is_hung_up(cx);
            return Poll::Ready(Err(if is_callers { Fault::ABANDONED } else { Fault::RESET }));
        }
        let ResponseHead { parts, verbatim, stays, .. } =
            ready!(response_head::poll(&mut self.reading, &mut self.io, cx, to_head, passes))?;
        self.stays = stays;
        Poll::Ready(Ok((parts, verbatim)))
    }

    /// Whether the upstream has ended the connection too. A reset that the reactor has not reported yet counts: caller and upstream may
    /// stop in the same moment.
    fn is_hung_up(&mut self, cx: &mut Context<'_>) -> bool {
        let is_reset = matches!(&self.io, Io::Plain(io) if !matches!(io.take_error(), Ok(None)));
        is_reset || matches!(self.reading.poll_more(&mut self.io, cx), Poll::Ready(Ok(0) | Err(_)))
    }

    /// Whether the rest of the body has arrived.
    pub fn is_here(&self) -> bool {
        self.reading.is_here()
    }

    /// The rest of the body, if all of it has arrived.
    pub fn rest(&mut self) -> Option<Bytes> {
        self.reading.rest()
    }

    /// Whether another request can follow: both messages are complete, nothing else has arrived, and neither side wants to close.
    pub fn can_go_on(&mut self) -> bool {
        let done = self.stays && self.reading.is_over() && self.out.is_done() && self.reading.ahead.is_empty();
        self.reading.shrink();
        done
    }
}

/// The response's body. Polling it also sends the rest of the request.
impl<B: Body<Data = Bytes> + Default + Unpin> Body for Conn<B> {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let Self { io, out, reading, .. } = &mut *self;
        out.push(io, cx);
        reading.poll_piece(io, cx).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.reading.is_over()
    }

    fn size_hint(&self) -> SizeHint {
        self.reading.size_hint()
    }
}
