//! One connection to an upstream: a request out, its answer in.

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

    /// Whether the upstream has closed an idle connection, or said something that nobody asked for. Costs no system
    /// call while the reactor has seen nothing.
    pub fn is_dead(&mut self) -> bool {
        let mut byte = [0; 1];
        if let Io::Plain(io) = &self.io {
            // Nobody wants to be woken, and whoever polls is put down to be.
            return !io.try_read(&mut byte).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        }
        let mut cx = Context::from_waker(Waker::noop());
        Pin::new(&mut self.io).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_ready()
    }

    /// Starts a request: `write` puts its head down, framing aside, and `body` follows it, `start` says when. A body without a
    /// known length goes in chunks; one without bytes has a length only where the method wants one.
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

    /// The body of a request of which nothing was sent, if nothing was taken out of it either.
    pub fn untouched(&mut self) -> Option<B> {
        self.out.take_untouched()
    }

    /// Sends, and waits for the head of the answer, whose headers are apart where all of them pass. Bodies of requests may go on
    /// after that.
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

    /// Whether the upstream has ended the connection too. A reset that the reactor has not reported yet counts: caller and upstream
    /// may stop in the same moment.
    fn is_hung_up(&mut self, cx: &mut Context<'_>) -> bool {
        let is_reset = matches!(&self.io, Io::Plain(io) if !matches!(io.take_error(), Ok(None)));
        is_reset || matches!(self.reading.poll_more(&mut self.io, cx), Poll::Ready(Ok(0) | Err(_)))
    }

    /// Whether all that is left of the body has arrived.
    pub fn is_here(&self) -> bool {
        self.reading.is_here()
    }

    /// What is left of the body, where all of that is here already.
    pub fn rest(&mut self) -> Option<Bytes> {
        self.reading.rest()
    }

    /// Whether another request can follow: both sides have said all, nothing more, and neither wants to close.
    pub fn can_go_on(&mut self) -> bool {
        let done = self.stays && self.reading.is_over() && self.out.is_done() && self.reading.ahead.is_empty();
        self.reading.shrink();
        done
    }
}

/// The answer's body. What is left of the request's goes out meanwhile.
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
