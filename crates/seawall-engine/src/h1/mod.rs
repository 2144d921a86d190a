//! HTTP/1.1 to an upstream, spoken by the task that makes the call: a connection here has no task, channel or waker of
//! its own, which would cost more than parsing does. It carries one request at a time and knows nothing of retries.

mod chunks;
mod head;
mod out;

use crate::body::Outgoing;
use crate::fault::Fault;
use crate::io::Io;
use bytes::{Bytes, BytesMut};
use chunks::Chunks;
pub(crate) use head::Writer;
use head::{Answer, Length};
use http::response;
use http_body::{Body, Frame, SizeHint};
use out::Out;
use std::future::Future as _;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncRead, AsyncReadExt as _, ReadBuf};

/// Room for most answers in one read.
const FIRST_READ: usize = 8 * 1024;
/// No read asks for more.
const MOST_READ: usize = 64 * 1024;

/// What is left of an answer's body.
#[derive(Debug)]
enum Left {
    Nothing,
    Bytes(u64),
    Chunks(Chunks),
    /// Whatever comes until the upstream closes.
    UntilClose,
}

/// An answer's body did not come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cut {
    #[error("the connection ended before the body did")]
    Short,
    #[error("the body's chunks are malformed")]
    Malformed,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Conn {
    io: Io,
    out: Out,
    /// Where the next read goes.
    space: BytesMut,
    /// That is more room than an idle connection should keep.
    has_grown: bool,
    /// What has arrived and was not looked at yet.
    ahead: Bytes,
    left: Left,
    /// Neither side has said that this request is the last.
    stays: bool,
}

impl Conn {
    pub(crate) fn new(io: Io) -> Self {
        Self { io, out: Out::default(), space: BytesMut::new(), has_grown: false, ahead: Bytes::new(), left: Left::Nothing, stays: true }
    }

    /// Whether the upstream has closed an idle connection, or said something that nobody asked for. Costs no system
    /// call while the reactor has seen nothing.
    pub(crate) fn is_dead(&mut self) -> bool {
        let (mut byte, mut cx) = ([0; 1], Context::from_waker(Waker::noop()));
        Pin::new(&mut self.io).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_ready()
    }

    /// Starts a request: `write` puts its head down, framing aside, and `body` follows it.
    pub(crate) fn begin(&mut self, body: Outgoing, wants_length: bool, write: impl FnOnce(&mut Writer<'_>)) {
        self.out.begin(body, wants_length, write);
    }

    /// Whether any of the request may have reached the upstream.
    pub(crate) const fn has_sent(&self) -> bool {
        self.out.has_sent()
    }

    /// The body of a request of which nothing was sent.
    pub(crate) fn unsent(&mut self) -> Outgoing {
        self.out.take_body()
    }

    /// Sends, and waits for the head of the answer. Bodies of requests may go on after that.
    pub(crate) async fn answer(&mut self, to_head: bool) -> Result<response::Parts, Fault> {
        std::future::poll_fn(|cx| self.poll_answer(cx, to_head)).await
    }

    fn poll_answer(&mut self, cx: &mut Context<'_>, to_head: bool) -> Poll<Result<response::Parts, Fault>> {
        self.push(cx);
        if self.out.is_hopeless() {
            return Poll::Ready(Err(Fault::RESET));
        }
        loop {
            if !self.ahead.is_empty() {
                match head::read(&self.ahead, to_head)? {
                    Answer::Partial => {}
                    Answer::Interim(length) => {
                        drop(self.ahead.split_to(length));
                        continue;
                    }
                    Answer::Final { parts, length, body, stays } => {
                        drop(self.ahead.split_to(length));
                        self.left = body.into();
                        self.stays = stays;
                        return Poll::Ready(Ok(*parts));
                    }
                }
            }
            match ready!(self.poll_more(cx)) {
                Ok(0) | Err(_) => return Poll::Ready(Err(Fault::RESET)),
                Ok(_) => {}
            }
        }
    }

    /// Sends what can be sent. One that fails may still bring an answer, such as a refusal of the rest of the body.
    fn push(&mut self, cx: &mut Context<'_>) {
        if !self.out.is_over() {
            self.out.push(&mut self.io, cx);
        }
    }

    /// Reads behind what is ahead already.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<usize>> {
        let wanted = match self.left {
            Left::Bytes(left) => usize::try_from(left).unwrap_or(MOST_READ).clamp(1, MOST_READ),
            Left::Nothing | Left::Chunks(_) | Left::UntilClose => FIRST_READ,
        };
        if !self.ahead.is_empty() {
            // Part of a head: the rest goes right behind it.
            self.space = BytesMut::new();
            self.space = std::mem::take(&mut self.ahead).try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
            self.space.reserve(FIRST_READ);
            self.has_grown = true;
        } else if wanted > FIRST_READ {
            self.space.reserve(wanted);
            self.has_grown = true;
        } else if self.space.capacity() < wanted.min(FIRST_READ / 4) {
            self.space.reserve(FIRST_READ);
        }
        let had = self.space.len();
        let read = pin!(self.io.read_buf(&mut self.space)).poll(cx);
        if had > 0 || matches!(read, Poll::Ready(Ok(1..))) {
            self.ahead = self.space.split().freeze();
        }
        read
    }

    /// A piece of the body out of what is ahead.
    fn take(&mut self) -> Option<Result<Bytes, Cut>> {
        if self.ahead.is_empty() {
            return None;
        }
        match &mut self.left {
            Left::Nothing => None,
            Left::UntilClose => Some(Ok(std::mem::take(&mut self.ahead))),
            Left::Bytes(left) => {
                let here = u64::try_from(self.ahead.len()).unwrap_or(u64::MAX);
                if here <= *left {
                    *left -= here;
                    return Some(Ok(std::mem::take(&mut self.ahead)));
                }
                let piece = self.ahead.split_to(usize::try_from(*left).unwrap_or(usize::MAX));
                *left = 0;
                (!piece.is_empty()).then_some(Ok(piece))
            }
            Left::Chunks(chunks) => chunks.take(&mut self.ahead).transpose(),
        }
    }

    /// What is left of the body, where all of that is here already.
    pub(crate) fn rest(&mut self) -> Option<Bytes> {
        match self.left {
            Left::Bytes(left) if u64::try_from(self.ahead.len()).is_ok_and(|here| here >= left) => self.take()?.ok(),
            _ => None,
        }
    }

    fn is_over(&self) -> bool {
        match &self.left {
            Left::Nothing | Left::Bytes(0) => true,
            Left::Chunks(chunks) => chunks.is_over(),
            Left::Bytes(_) | Left::UntilClose => false,
        }
    }

    /// Whether another request can follow: both sides have said all, nothing more, and neither wants to close.
    pub(crate) fn can_go_on(&mut self) -> bool {
        let done = self.stays && self.is_over() && self.out.is_done() && self.ahead.is_empty();
        if std::mem::take(&mut self.has_grown) {
            self.space = BytesMut::new();
        }
        done
    }
}

/// The answer's body. What is left of the request's goes out meanwhile.
impl Body for Conn {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        self.push(cx);
        loop {
            if let Some(piece) = self.take() {
                return Poll::Ready(Some(piece.map(Frame::data)));
            }
            if self.is_over() {
                return Poll::Ready(None);
            }
            match ready!(self.poll_more(cx)) {
                Ok(1..) => {}
                Ok(0) if matches!(self.left, Left::UntilClose) => self.left = Left::Nothing,
                Ok(0) | Err(_) => return Poll::Ready(Some(Err(Cut::Short))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.is_over()
    }

    fn size_hint(&self) -> SizeHint {
        match self.left {
            Left::Nothing => SizeHint::with_exact(0),
            Left::Bytes(left) => SizeHint::with_exact(left),
            Left::Chunks(_) | Left::UntilClose => SizeHint::default(),
        }
    }
}

impl From<Length> for Left {
    fn from(length: Length) -> Self {
        match length {
            Length::None => Self::Nothing,
            Length::Known(length) => Self::Bytes(length),
            Length::Chunked => Self::Chunks(Chunks::default()),
            Length::UntilClose => Self::UntilClose,
        }
    }
}
