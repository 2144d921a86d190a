//! An outgoing message, a request or a response: head and body, written as far as the socket accepts them.

use super::writer::HeadWriter;
use crate::io::Io;
use bytes::{Buf as _, Bytes};
use http_body::Body;
use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite as _;

/// A piece of a body up to this size is copied behind the bytes before it and written with them.
const JOINED: usize = 16 * 1024;
/// The most buffer that an idle connection keeps for the next head.
const KEPT: usize = 4 * 1024;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum OutState {
    #[default]
    Done,
    Sending,
    /// The body has ended; only buffered bytes remain.
    Closing,
    /// The peer accepts no more bytes.
    Refused,
    /// The body broke off.
    Broken,
}

/// The destination of a message.
pub(super) trait Socket {
    /// Writes as much as possible of a frame and of the piece behind it.
    fn poll_send(&mut self, cx: &mut Context<'_>, frame: &[u8], piece: &[u8]) -> Poll<std::io::Result<usize>>;

    /// Flushes what TLS may hold back.
    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>>;
}

impl Socket for Io {
    fn poll_send(&mut self, cx: &mut Context<'_>, frame: &[u8], piece: &[u8]) -> Poll<std::io::Result<usize>> {
        match (frame, piece) {
            (_, []) => Pin::new(self).poll_write(cx, frame),
            ([], _) => Pin::new(self).poll_write(cx, piece),
            _ => Pin::new(self).poll_write_vectored(cx, &[IoSlice::new(frame), IoSlice::new(piece)]),
        }
    }

    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(self).poll_flush(cx)
    }
}

/// The framing of a body (RFC 9112 §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyFraming {
    /// No body and no framing headers.
    Bare,
    Length(u64),
    Chunked,
    UntilClose,
}

/// One message, with the part that has not been sent.
#[derive(Debug, Default)]
pub(super) struct Out<B> {
    state: OutState,
    /// The head, then the framing of the body.
    frame: Vec<u8>,
    at: usize,
    /// A large piece of the body, sent after the frame.
    piece: Bytes,
    body: B,
    chunked: bool,
    start: BodyStart,
    /// Bytes were taken out of the body.
    is_touched: bool,
    /// Bytes that the peer has accepted.
    sent: u64,
}

/// When a message's body is first polled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyStart {
    /// At once: a small body is sent together with its head.
    #[default]
    WithHead,
    /// When the peer has accepted some of the head. If a connection turns out to be dead, a body that can be read only once is then still
    /// complete and can be sent over another one.
    AfterHead,
}

impl<B: Body<Data = Bytes> + Default + Unpin> Out<B> {
    /// Starts a message: `write` writes its head without the framing.
    pub(super) fn begin(&mut self, body: B, framing: BodyFraming, start: BodyStart, write: impl FnOnce(&mut HeadWriter<'_>)) {
        self.frame.clear();
        let mut writer = HeadWriter::new(&mut self.frame);
        write(&mut writer);
        match framing {
            BodyFraming::Bare | BodyFraming::UntilClose => {}
            BodyFraming::Length(length) => writer.length(length),
            BodyFraming::Chunked => writer.chunked(),
        }
        writer.end();
        self.chunked = framing == BodyFraming::Chunked;
        self.start = start;
        self.is_touched = false;
        self.at = 0;
        self.piece = Bytes::new();
        self.sent = 0;
        let is_whole = matches!(framing, BodyFraming::Bare | BodyFraming::Length(0));
        (self.state, self.body) = if is_whole { (OutState::Closing, B::default()) } else { (OutState::Sending, body) };
    }

    pub(super) const fn has_sent(&self) -> bool {
        self.sent > 0
    }

    /// The bytes sent so far, if the message waits for its peer to accept more.
    pub(super) fn stalled_at(&self) -> Option<u64> {
        (self.at < self.frame.len() || !self.piece.is_empty()).then_some(self.sent)
    }

    /// Whether no response can follow: nothing was sent, or the rest will never be.
    pub(super) fn is_hopeless(&self) -> bool {
        self.state == OutState::Broken || (self.state == OutState::Refused && !self.has_sent())
    }

    /// The body broke off.
    pub(super) fn is_broken(&self) -> bool {
        self.state == OutState::Broken
    }

    pub(super) fn is_done(&self) -> bool {
        self.state == OutState::Done
    }

    /// Nothing more will be sent: the message is complete or has failed.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, OutState::Done | OutState::Refused | OutState::Broken)
    }

    /// The body of a message of which nothing was sent, if all of it is still there. Bytes that were moved from the body into a buffer are
    /// gone from the body even if they were not sent.
    pub(super) fn take_untouched(&mut self) -> Option<B> {
        (!self.has_sent() && !self.is_touched).then(|| std::mem::take(&mut self.body))
    }

    /// Sends as much as possible. After a failure there may still be a response, such as a refusal of the rest of the body.
    pub(super) fn push(&mut self, io: &mut impl Socket, cx: &mut Context<'_>) {
        if self.is_over() {
            return;
        }
        match self.poll(io, cx) {
            Poll::Pending => return,
            Poll::Ready(Ok(())) => {
                self.state = OutState::Done;
                (self.at, self.piece) = (0, Bytes::new());
                self.frame.clear();
                self.frame.shrink_to(KEPT);
            }
            Poll::Ready(Err(state)) => self.state = state,
        }
        // An untouched body may be sent over another connection. Any other is dropped, with all that it holds.
        if self.has_sent() || self.is_touched {
            self.body = B::default();
        }
    }

    fn poll(&mut self, io: &mut impl Socket, cx: &mut Context<'_>) -> Poll<Result<(), OutState>> {
        loop {
            while self.state == OutState::Sending && self.piece.is_empty() && self.frame.len() - self.at < JOINED && self.may_read() {
                match Pin::new(&mut self.body).poll_frame(cx) {
                    Poll::Pending => break,
                    Poll::Ready(Some(Err(_))) => return Poll::Ready(Err(OutState::Broken)),
                    Poll::Ready(Some(Ok(frame))) => {
                        self.is_touched = true;
                        if let Ok(data) = frame.into_data() {
                            self.put(data);
                        }
                    }
                    Poll::Ready(None) => self.close(),
                }
                if self.state == OutState::Sending && !self.chunked && self.body.is_end_stream() {
                    self.close();
                }
            }
            if self.at == self.frame.len() && self.piece.is_empty() {
                // TLS may hold back what was written.
                ready!(io.poll_sent(cx)).map_err(|_| OutState::Refused)?;
                return if self.state == OutState::Closing { Poll::Ready(Ok(())) } else { Poll::Pending };
            }
            ready!(self.write(io, cx))?;
        }
    }

    fn may_read(&self) -> bool {
        self.start == BodyStart::WithHead || self.has_sent()
    }

    fn close(&mut self) {
        if self.chunked {
            self.frame.extend_from_slice(b"0\r\n\r\n");
        }
        self.state = OutState::Closing;
    }

    fn put(&mut self, data: Bytes) {
        if data.is_empty() {
            return;
        }
        if self.at == self.frame.len() {
            self.frame.clear();
            self.at = 0;
        } else if self.at >= JOINED {
            drop(self.frame.drain(..self.at));
            self.at = 0;
        }
        if self.chunked {
            // A chunk is copied into the frame, however large, because its end must follow it.
            HeadWriter::new(&mut self.frame).chunk(&data);
        } else if data.len() <= JOINED {
            self.frame.extend_from_slice(&data);
        } else {
            self.piece = data;
        }
    }

    fn write(&mut self, io: &mut impl Socket, cx: &mut Context<'_>) -> Poll<Result<(), OutState>> {
        let frame = &self.frame[self.at..];
        match ready!(io.poll_send(cx, frame, &self.piece)) {
            Ok(0) | Err(_) => return Poll::Ready(Err(OutState::Refused)),
            Ok(count) => {
                let of_frame = count.min(frame.len());
                self.at += of_frame;
                self.piece.advance(count - of_frame);
                self.sent = self.sent.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
            }
        }
        Poll::Ready(Ok(()))
    }
}
