//! A caller's socket. When Seawall closes a connection first, the socket lingers, so that a caller who is still sending can read the
//! response instead of a reset.

use crate::DrainPhase;
use seawall_http::io::Io;
use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::Sleep;

/// Time for the caller to close its side after we have closed ours.
pub(crate) const LINGER: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct CallerSocket {
    stream: Io,
    phases: watch::Receiver<DrainPhase>,
    closing: LingerState,
}

#[derive(Debug)]
enum LingerState {
    Open,
    Lingering(Pin<Box<Sleep>>),
}

impl CallerSocket {
    pub(crate) const fn new(stream: Io, phases: watch::Receiver<DrainPhase>) -> Self {
        Self { stream, phases, closing: LingerState::Open }
    }

    /// Reads and discards input until the caller has closed its side or the time is up.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let LingerState::Lingering(timer) = &mut self.closing else { return Poll::Ready(Ok(())) };
        let mut space = [0; 16 * 1024];
        loop {
            if timer.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let mut buffer = ReadBuf::new(&mut space);
            match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                // Closed or reset by the caller.
                Ok(()) | Err(_) => return Poll::Ready(Ok(())),
            }
        }
    }
}

impl AsyncRead for CallerSocket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for CallerSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        if matches!(self.closing, LingerState::Open) {
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
            // A stopping process does not wait for callers with idle connections.
            if *self.phases.borrow() >= DrainPhase::Draining {
                return Poll::Ready(Ok(()));
            }
            self.closing = LingerState::Lingering(Box::pin(tokio::time::sleep(LINGER)));
        }
        self.poll_linger(cx)
    }
}
