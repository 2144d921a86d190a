//! Keeps reading a connection after its write side has failed. A server that goes away sends GOAWAY, which says which requests it did not
//! process, and closes; a write to the closed connection fails while the GOAWAY is still unread. This wrapper discards such writes, so that
//! the reader gets to the GOAWAY and to the end behind it.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

#[derive(Debug)]
pub(super) struct Hearing<I> {
    io: I,
    is_mute: bool,
}

impl<I> Hearing<I> {
    pub(super) const fn new(io: I) -> Self {
        Self { io, is_mute: false }
    }

    /// The result of a write. After an error that the reader will see too, every write counts as done.
    fn written<T>(&mut self, written: Poll<io::Result<T>>, otherwise: T) -> Poll<io::Result<T>> {
        match written {
            Poll::Ready(Err(error)) if is_the_other_ends(&error) => {
                self.is_mute = true;
                Poll::Ready(Ok(otherwise))
            }
            written => written,
        }
    }
}

fn is_the_other_ends(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted)
}

impl<I: AsyncRead + Unpin> AsyncRead for Hearing<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Hearing<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_mute {
            return Poll::Ready(Ok(buf.len()));
        }
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        self.written(written, buf.len())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_mute {
            return Poll::Ready(Ok(()));
        }
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.written(flushed, ())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::super::MultiplexedConnection;
    use super::*;
    use crate::fault::Fault;
    use crate::request_body::Outgoing;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};
    use std::task::Waker;

    const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    /// A GOAWAY that leaves every stream unprocessed.
    const GOAWAY: &[u8] = &[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

    /// A server whose GOAWAY arrives together with the close that the next write meets.
    #[derive(Default)]
    struct Leaving {
        has_greeted: bool,
        leaves: Arc<AtomicBool>,
        left: bool,
        farewell: Option<&'static [u8]>,
        reader: Arc<Mutex<Option<Waker>>>,
    }

    impl AsyncRead for Leaving {
        fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            if !self.has_greeted {
                self.has_greeted = true;
                buf.put_slice(SETTINGS);
            } else if self.left {
                buf.put_slice(self.farewell.take().unwrap_or_default());
            } else {
                *self.reader.lock().unwrap() = Some(cx.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Leaving {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            if !self.leaves.load(Ordering::SeqCst) {
                return Poll::Ready(Ok(buf.len()));
            }
            self.left = true;
            if let Some(reader) = self.reader.lock().unwrap().take() {
                reader.wake();
            }
            Poll::Ready(Err(ErrorKind::BrokenPipe.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    async fn sent_to(farewell: &'static [u8]) -> Fault {
        let leaves = Arc::new(AtomicBool::new(false));
        let io = Leaving { leaves: Arc::clone(&leaves), farewell: Some(farewell), ..Leaving::default() };
        let mut shared = MultiplexedConnection::open(io).await.unwrap();
        tokio::task::yield_now().await;
        leaves.store(true, Ordering::SeqCst);
        let request = http::Request::post("https://a.test/x").body(Outgoing::Full(bytes::Bytes::from_static(b"paid once"))).unwrap();
        shared.send(request).await.unwrap_err().fault
    }

    #[test]
    fn a_farewell_is_read_though_the_request_could_not_be_written() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            assert_eq!(sent_to(GOAWAY).await, Fault::NOT_PROCESSED);
            assert_ne!(sent_to(b"").await, Fault::NOT_PROCESSED, "an end without a word proves nothing");
        });
    }
}
