//! Bodies of responses on their way to a caller. A body returns its connection to the pool once it has been read to the end.

use crate::connection_pool::LeasedConnection;
use crate::fault::Fault;
use crate::h1::Cut;
use crate::h2::{self, StreamBody};
use crate::request_body::length;
use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use seawall_core::policy::Timeout;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Sleep;

/// A response's body for the caller.
#[derive(Debug, Default)]
pub enum Relay {
    #[default]
    Empty,
    Full(Bytes),
    Stream(Box<Streaming>),
}

/// A response's body from its connection.
#[derive(Debug)]
pub enum Arriving {
    /// Read to its end, or abandoned.
    Over,
    H1(LeasedConnection),
    H2(StreamBody),
}

impl Arriving {
    /// Whether the rest of the body has arrived.
    pub fn is_here(&self) -> bool {
        match self {
            Self::Over => true,
            Self::H1(lent) => lent.answer().is_here(),
            Self::H2(_) => false,
        }
    }

    /// Ends the body: a reusable connection returns to its shelf.
    fn end(&mut self) {
        if let Self::H1(lent) = std::mem::replace(self, Self::Over) {
            lent.give_back();
        }
    }
}

impl Body for Arriving {
    type Data = Bytes;
    type Error = RelayError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        match &mut *self {
            Self::Over => Poll::Ready(None),
            Self::H1(lent) => Pin::new(lent.conn()).poll_frame(cx).map_err(RelayError::Cut),
            Self::H2(body) => Pin::new(&mut body.incoming).poll_frame(cx).map_err(RelayError::Broken),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Over => true,
            Self::H1(lent) => lent.answer().is_end_stream(),
            Self::H2(body) => body.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Over => SizeHint::with_exact(0),
            Self::H1(lent) => lent.answer().size_hint(),
            Self::H2(body) => body.incoming.size_hint(),
        }
    }
}

/// A response that is still arriving.
#[derive(Debug)]
pub struct Streaming {
    /// The part that was read ahead for the rules.
    ahead: Option<Bytes>,
    incoming: Arriving,
    /// The longest wait for the next piece: `first_byte` until one has arrived, `idle` after that.
    patience: Duration,
    idle: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    /// Called once, with the end of the body.
    on_end: Option<OnEnd>,
    /// The error to return at the next poll.
    failed: Option<RelayError>,
    kept: Option<BodyCopy>,
    /// Dropped when the response has ended, however it ends.
    held: Option<HeldPermits>,
}

/// Permits that stay taken while a response is relayed.
pub struct HeldPermits(pub Box<dyn std::any::Any>);

impl std::fmt::Debug for HeldPermits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Held")
    }
}

/// A copy of a response that is being relayed, for a reader of the whole body.
pub struct BodyCopy {
    copy: BytesMut,
    most: usize,
    done: Box<dyn FnOnce(Bytes)>,
}

impl std::fmt::Debug for BodyCopy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kept({} of {})", self.copy.len(), self.most)
    }
}

/// The end of a body that was streamed.
#[derive(Debug)]
pub enum BodyEnd<'a> {
    Whole,
    /// It broke off after its first byte went out.
    Broken(&'a RelayError),
    /// The caller left before the end.
    Abandoned,
}

/// A callback for the end of a body.
pub struct OnEnd(pub Box<dyn FnOnce(BodyEnd<'_>)>);

impl std::fmt::Debug for OnEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnEnd")
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    #[error("the upstream's answer broke off")]
    Broken(#[source] h2::Broken),
    #[error("the upstream's answer broke off")]
    Cut(#[source] Cut),
    #[error("the upstream went silent in the middle of its answer")]
    Silent,
}

impl Relay {
    /// The rest of a response; empty if the response has ended.
    pub fn new(mut ahead: Bytes, mut incoming: Arriving, timeout: Timeout) -> Self {
        if ahead.is_empty()
            && let Arriving::H1(lent) = &mut incoming
            && let Some(rest) = lent.conn().rest()
        {
            ahead = rest;
        }
        if incoming.is_end_stream() {
            incoming.end();
            return if ahead.is_empty() { Self::Empty } else { Self::Full(ahead) };
        }
        let ahead = Some(ahead).filter(|bytes| !bytes.is_empty());
        let idle = Duration::from_nanos(timeout.idle.0);
        let patience = if ahead.is_some() { idle } else { Duration::from_nanos(timeout.first_byte.0) };
        Self::Stream(Box::new(Streaming {
            ahead,
            incoming,
            patience,
            idle,
            timer: None,
            on_end: None,
            failed: None,
            kept: None,
            held: None,
        }))
    }

    /// Keeps `held` until the response has been read; drops it at once if it has been already.
    pub fn hold(&mut self, held: HeldPermits) {
        if let Self::Stream(streaming) = self {
            streaming.held = Some(held);
        }
    }

    /// Runs `on_end` once when a body that is still arriving has ended; never if it has ended already.
    pub fn on_end(&mut self, on_end: OnEnd) {
        if let Self::Stream(streaming) = self {
            streaming.on_end = Some(on_end);
        }
    }

    /// Runs `done` with the whole body once the caller has got it: never with a part, and never with more than `most`.
    pub fn on_whole(&mut self, most: usize, done: impl FnOnce(Bytes) + 'static) {
        match self {
            Self::Empty => done(Bytes::new()),
            Self::Full(bytes) if bytes.len() <= most => done(bytes.clone()),
            Self::Full(_) => {}
            Self::Stream(streaming) => {
                let announced = streaming.incoming.size_hint().lower();
                if announced <= u64::try_from(most).unwrap_or(u64::MAX) {
                    streaming.kept = Some(BodyCopy { copy: BytesMut::new(), most, done: Box::new(done) });
                }
            }
        }
    }
}

impl Streaming {
    /// The part that was read ahead of a response that is not read further.
    #[must_use]
    pub fn into_ahead(mut self) -> Option<Bytes> {
        self.ahead.take()
    }

    fn ended(&mut self) {
        self.timer = None;
        self.held = None;
        self.incoming.end();
        if let Some(kept) = self.kept.take() {
            (kept.done)(kept.copy.freeze());
        }
        self.tell(BodyEnd::Whole);
    }

    fn tell(&mut self, end: BodyEnd<'_>) {
        if let Some(OnEnd(tell)) = self.on_end.take() {
            tell(end);
        }
    }

    fn keep(&mut self, data: &Bytes) {
        if let Some(kept) = &mut self.kept {
            if kept.copy.len() + data.len() <= kept.most {
                kept.copy.extend_from_slice(data);
            } else {
                self.kept = None;
            }
        }
    }

    fn broke(&mut self, error: &RelayError) {
        self.incoming = Arriving::Over;
        self.tell(BodyEnd::Broken(error));
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Some(Err(error)));
        }
        if let Some(bytes) = self.ahead.take() {
            self.keep(&bytes);
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        match Pin::new(&mut self.incoming).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                self.timer = None;
                self.patience = self.idle;
                if let Some(data) = frame.data_ref() {
                    self.keep(data);
                }
                if self.incoming.is_end_stream() {
                    self.ended();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(None) => {
                self.ended();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(error))) => {
                self.broke(&error);
                // A server drops unwritten data when a body fails, so this wakes it for one more turn to write first.
                self.failed = Some(error);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Pending => {
                let patience = self.patience;
                let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
                if timer.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                self.broke(&RelayError::Silent);
                Poll::Ready(Some(Err(RelayError::Silent)))
            }
        }
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        self.tell(BodyEnd::Abandoned);
    }
}

impl Body for Relay {
    type Data = Bytes;
    type Error = RelayError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                *self = Self::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Self::Stream(streaming) => streaming.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Full(bytes) => bytes.is_empty(),
            Self::Stream(streaming) => streaming.ahead.is_none() && streaming.failed.is_none() && streaming.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Full(bytes) => SizeHint::with_exact(length(bytes)),
            Self::Stream(streaming) => {
                let read = streaming.ahead.as_ref().map_or(0, length);
                streaming.incoming.size_hint().exact().map_or_else(SizeHint::default, |rest| SizeHint::with_exact(rest + read))
            }
        }
    }
}

/// Reads at most `most` bytes of a body. If it breaks off here, the caller has got nothing yet, so a retry is possible.
///
/// # Errors
/// When the body breaks off.
pub async fn read_up_to<B: Body<Data = Bytes> + Unpin>(incoming: &mut B, most: usize) -> Result<Bytes, Fault> {
    let mut read = BytesMut::new();
    while read.len() < most && !incoming.is_end_stream() {
        match std::future::poll_fn(|cx| Pin::new(&mut *incoming).poll_frame(cx)).await {
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    read.extend_from_slice(&data);
                }
            }
            Some(Err(_)) => return Err(Fault::INCOMPLETE),
            None => break,
        }
    }
    Ok(read.freeze())
}
