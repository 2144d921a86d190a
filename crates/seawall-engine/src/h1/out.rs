//! A request on its way out: head and body, written as far as the socket takes them.

use super::head::Writer;
use crate::body::Outgoing;
use crate::io::Io;
use bytes::{Buf as _, Bytes};
use http_body::Body as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite as _;

/// A piece of a body up to this size is written in one go with what is before it.
const JOINED: usize = 16 * 1024;
/// An idle connection keeps no more room than this for the next head.
const KEPT: usize = 4 * 1024;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Done,
    Sending,
    /// The body has ended; what is left are bytes in the buffers.
    Closing,
    /// The upstream takes no more.
    Refused,
    /// The caller's body broke off.
    Broken,
}

/// One request, as far as it has not been sent.
#[derive(Debug, Default)]
pub(super) struct Out {
    state: State,
    /// The head, then whatever frames the body.
    frame: Vec<u8>,
    at: usize,
    /// A large piece of the body, behind the frame.
    piece: Bytes,
    body: Outgoing,
    chunked: bool,
    has_sent: bool,
}

impl Out {
    /// A body without a known length goes in chunks; one without bytes has a length only where the method wants one.
    pub(super) fn begin(&mut self, body: Outgoing, wants_length: bool, write: impl FnOnce(&mut Writer<'_>)) {
        let length = body.size_hint().exact();
        self.frame.clear();
        let mut writer = Writer::new(&mut self.frame);
        write(&mut writer);
        match length {
            Some(0) if !wants_length => {}
            Some(length) => writer.length(length),
            None => writer.chunked(),
        }
        writer.end();
        self.chunked = length.is_none();
        self.body = body;
        self.at = 0;
        self.has_sent = false;
        self.state = if length == Some(0) { State::Closing } else { State::Sending };
    }

    pub(super) const fn has_sent(&self) -> bool {
        self.has_sent
    }

    /// Whether no answer can follow: nothing was sent, or the rest will never be.
    pub(super) fn is_hopeless(&self) -> bool {
        self.state == State::Broken || (self.state == State::Refused && !self.has_sent)
    }

    pub(super) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Nothing more will be sent, for better or worse.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Done | State::Refused | State::Broken)
    }

    pub(super) fn take_body(&mut self) -> Outgoing {
        std::mem::take(&mut self.body)
    }

    pub(super) fn push(&mut self, io: &mut Io, cx: &mut Context<'_>) {
        match self.poll(io, cx) {
            Poll::Pending => {}
            Poll::Ready(Ok(())) => {
                self.state = State::Done;
                self.frame.shrink_to(KEPT);
            }
            Poll::Ready(Err(state)) => self.state = state,
        }
    }

    fn poll(&mut self, io: &mut Io, cx: &mut Context<'_>) -> Poll<Result<(), State>> {
        loop {
            // A small body that is there already leaves together with its head.
            while self.state == State::Sending && self.piece.is_empty() && self.frame.len() - self.at < JOINED {
                match Pin::new(&mut self.body).poll_frame(cx) {
                    Poll::Pending => break,
                    Poll::Ready(Some(Err(_))) => return Poll::Ready(Err(State::Broken)),
                    Poll::Ready(Some(Ok(frame))) => {
                        if let Ok(data) = frame.into_data() {
                            self.put(data);
                        }
                    }
                    Poll::Ready(None) => self.close(),
                }
                if self.state == State::Sending && !self.chunked && self.body.is_end_stream() {
                    self.close();
                }
            }
            if self.at == self.frame.len() && self.piece.is_empty() {
                // TLS may hold back what was written.
                ready!(Pin::new(&mut *io).poll_flush(cx)).map_err(|_| State::Refused)?;
                return if self.state == State::Closing { Poll::Ready(Ok(())) } else { Poll::Pending };
            }
            ready!(self.write(io, cx))?;
        }
    }

    fn close(&mut self) {
        if self.chunked {
            self.frame.extend_from_slice(b"0\r\n\r\n");
        }
        self.state = State::Closing;
    }

    fn put(&mut self, data: Bytes) {
        if data.is_empty() {
            return;
        }
        if self.at == self.frame.len() {
            self.frame.clear();
            self.at = 0;
        }
        if self.chunked {
            // A chunk is whole in the frame, however large: its end must follow it.
            Writer::new(&mut self.frame).chunk(&data);
        } else if data.len() <= JOINED {
            self.frame.extend_from_slice(&data);
        } else {
            self.piece = data;
        }
    }

    fn write(&mut self, io: &mut Io, cx: &mut Context<'_>) -> Poll<Result<(), State>> {
        let in_frame = self.at < self.frame.len();
        let bytes = if in_frame { &self.frame[self.at..] } else { &self.piece[..] };
        match ready!(Pin::new(&mut *io).poll_write(cx, bytes)) {
            Ok(0) | Err(_) => return Poll::Ready(Err(State::Refused)),
            Ok(count) if in_frame => self.at += count,
            Ok(count) => self.piece.advance(count),
        }
        self.has_sent = true;
        Poll::Ready(Ok(()))
    }
}
