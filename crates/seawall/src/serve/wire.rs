//! A caller's socket as hyper sees it. Two things that hyper leaves to its user happen here: what hyper answers by
//! itself to a malformed head becomes a problem document, and a connection that we end first lingers, so that a caller
//! who is still sending gets to read the answer instead of a reset.

use super::answer::Refusal;
use super::gateway::Gateway;
use super::hush::Hushing;
use super::{Phase, intake};
use bytes::{Buf as _, Bytes};
use http_body::{Body, Frame, SizeHint};
use seawall_engine::body::{Relay, RelayError};
use seawall_engine::io::Io;
use std::cell::Cell;
use std::io::IoSlice;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::Sleep;

/// How long a caller may take to notice that we have nothing more to say.
const LINGER: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Wire {
    stream: Io,
    phases: watch::Receiver<Phase>,
    talk: Talk,
    gateway: Rc<Gateway>,
    /// Our own words, on their way out in place of hyper's.
    instead: Bytes,
    closing: Closing,
}

/// Whether an answer is on its way out. While one is, its bytes are its author's: an upstream could otherwise write a
/// body that looks like hyper's own words, and have us say more than it was allowed to.
#[derive(Clone, Debug, Default)]
pub(super) struct Talk(Rc<Spoken>);

/// What is known of one connection's conversation.
#[derive(Debug, Default)]
pub(super) struct Spoken {
    saying: Cell<Saying>,
    /// Requests so far.
    turns: Cell<u32>,
    /// The line that the next request begins with: how much of it has come, and whether that is all.
    line: Cell<(usize, bool)>,
    pub hush: Hushing,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Saying {
    #[default]
    Nothing,
    Answer,
    /// All of it has been handed to hyper, and some of it may still wait to be written.
    LastWords,
}

impl Talk {
    /// A request has come in; what is written from here on answers it.
    pub(super) fn begin(&self) {
        self.0.saying.set(Saying::Answer);
        self.0.turns.set(self.0.turns.get().wrapping_add(1));
        self.0.line.set((0, false));
    }

    pub(super) fn spoken(&self) -> &Rc<Spoken> {
        &self.0
    }

    /// Whether the caller has been silent for too long; whoever asks is woken when that happens.
    pub(super) fn is_hushed(&self, cx: &Context<'_>) -> bool {
        self.0.hush.is_over(cx)
    }

    fn flushed(&self) {
        if self.0.saying.get() == Saying::LastWords {
            self.0.saying.set(Saying::Nothing);
        }
    }
}

impl Spoken {
    /// Bytes of a request's head came in.
    fn heard(&self, bytes: &[u8]) {
        if let (Saying::Nothing, (length, false)) = (self.saying.get(), self.line.get()) {
            let end = bytes.iter().position(|byte| *byte == b'\n');
            self.line.set((length + end.unwrap_or(bytes.len()), end.is_some()));
        }
    }

    /// The turn in which a request is waited for, if one is.
    pub(super) fn waiting(&self) -> Option<u32> {
        (self.saying.get() == Saying::Nothing).then(|| self.turns.get())
    }
}

/// An answer's body, which tells when it has been handed over.
#[derive(Debug)]
pub(super) struct Said {
    body: Relay,
    talk: Talk,
}

impl Said {
    pub(super) const fn new(body: Relay, talk: Talk) -> Self {
        Self { body, talk }
    }
}

impl Drop for Said {
    fn drop(&mut self) {
        self.talk.0.saying.set(Saying::LastWords);
    }
}

impl Body for Said {
    type Data = Bytes;
    type Error = RelayError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[derive(Debug)]
enum Closing {
    Open,
    Lingering(Pin<Box<Sleep>>),
}

impl Wire {
    pub(super) const fn new(stream: Io, phases: watch::Receiver<Phase>, talk: Talk, gateway: Rc<Gateway>) -> Self {
        Self { stream, phases, talk, gateway, instead: Bytes::new(), closing: Closing::Open }
    }

    fn poll_instead(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        while self.instead.has_remaining() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.instead))?;
            self.instead.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    /// Reads and forgets until the caller has closed its side or has had its time.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let Closing::Lingering(timer) = &mut self.closing else { return Poll::Ready(Ok(())) };
        let mut space = [0; 16 * 1024];
        loop {
            if timer.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let mut buffer = ReadBuf::new(&mut space);
            match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                // Closed or reset: the caller has gone.
                Ok(()) | Err(_) => return Poll::Ready(Ok(())),
            }
        }
    }
}

/// The status of an answer that hyper made up itself. Ours and the upstream's always have other headers in front.
fn automatic(head: &[u8]) -> Option<u16> {
    const REST: &[u8] = b"\r\nconnection: close\r\ncontent-length: 0\r\n";
    if head.len() > 256 || !head.starts_with(b"HTTP/1.") {
        return None;
    }
    let line = head.windows(2).position(|pair| pair == b"\r\n")?;
    let bare = head[line..].starts_with(REST) && head.ends_with(b"\r\n\r\n");
    let status = std::str::from_utf8(head.get(9..12)?).ok()?.parse().ok()?;
    (bare && status >= 400).then_some(status)
}

/// hyper says 431 of any head that is too long for it, also where that is the target.
fn instead_of(status: u16, line: usize) -> Refusal {
    match status {
        414 => intake::target_too_long(),
        431 if line > intake::MAX_TARGET => intake::target_too_long(),
        431 => intake::too_large(status, "the request's headers are too large"),
        _ => intake::bad_request("the request is malformed"),
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        self.talk.0.heard(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        ready!(self.poll_instead(cx))?;
        if let Some(status) = automatic(bytes).filter(|_| self.talk.0.saying.get() == Saying::Nothing) {
            let refusal = instead_of(status, self.talk.0.line.get().0).closing();
            self.instead = self.gateway.noted(refusal, None).wire(self.gateway.wall());
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<std::io::Result<usize>> {
        if let [only] = slices {
            return self.poll_write(cx, only);
        }
        ready!(self.poll_instead(cx))?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        ready!(self.poll_instead(cx))?;
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.talk.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        if matches!(self.closing, Closing::Open) {
            ready!(self.poll_instead(cx))?;
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
            // A process on its way out does not wait for callers who keep idle connections.
            if *self.phases.borrow() >= Phase::Draining {
                return Poll::Ready(Ok(()));
            }
            self.closing = Closing::Lingering(Box::pin(tokio::time::sleep(LINGER)));
        }
        self.poll_linger(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hypers_own_answers_are_replaced() {
        let own = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n";
        assert_eq!(automatic(own), Some(431));
        assert_eq!(automatic(b"HTTP/1.1 400 Bad Request\r\nvia: 1.1 s\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"), None);
        assert_eq!(automatic(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"), None);
        assert_eq!(automatic(b"HTTP/1.1 100 Continue\r\n\r\n"), None);
        assert_eq!(automatic(b""), None);
    }
}
