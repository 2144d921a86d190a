//! Bodies of requests on their way to an upstream, with a limit on the caller's remaining bytes.

use crate::fault::Fault;
use crate::h1::{BodyStart, Cut, Upload};
use crate::h2::{self, IncomingBody};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

/// A request's body for an upstream.
#[derive(Debug, Default)]
pub enum Outgoing {
    #[default]
    Empty,
    Full(Bytes),
    /// The part that was read ahead, then the rest as it arrives. Can be sent once.
    Stream(Option<Bytes>, Limited),
}

impl Outgoing {
    /// When a connection first takes bytes out of it.
    #[must_use]
    pub const fn start(&self) -> BodyStart {
        match self {
            Self::Empty | Self::Full(_) => BodyStart::WithHead,
            Self::Stream(..) => BodyStart::AfterHead,
        }
    }
}

/// A caller's body as it arrives.
#[derive(Debug, Default)]
pub enum Inbound {
    #[default]
    None,
    H1(Upload),
    H2(IncomingBody),
}

impl From<Option<Upload>> for Inbound {
    fn from(upload: Option<Upload>) -> Self {
        upload.map_or(Self::None, Self::H1)
    }
}

/// A caller's body broke off.
#[derive(Debug, thiserror::Error)]
pub enum Unfinished {
    #[error(transparent)]
    H1(#[from] Cut),
    #[error(transparent)]
    H2(#[from] h2::Broken),
}

impl Body for Inbound {
    type Data = Bytes;
    type Error = Unfinished;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Unfinished>>> {
        match &mut *self {
            Self::None => Poll::Ready(None),
            Self::H1(upload) => upload.poll_piece(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece?)))),
            Self::H2(incoming) => Pin::new(incoming).poll_frame(cx).map_err(Unfinished::H2),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::None => true,
            Self::H1(upload) => upload.is_over(),
            Self::H2(incoming) => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::None => SizeHint::with_exact(0),
            Self::H1(upload) => upload.size_hint(),
            Self::H2(incoming) => incoming.size_hint(),
        }
    }
}

/// The rest of a caller's body, with a limit on its size.
#[derive(Debug)]
pub struct Limited {
    incoming: Inbound,
    left: u64,
    feed: Feed,
}

impl Limited {
    pub const fn new(incoming: Inbound, left: u64, feed: Feed) -> Self {
        Self { incoming, left, feed }
    }

    /// Whether the caller has left before the rest was read.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        match &self.incoming {
            Inbound::H1(upload) => upload.is_abandoned(),
            // A reset stream ends its call.
            Inbound::None | Inbound::H2(_) => false,
        }
    }
}

/// A caller's fault while its body was relayed. The upstream is not responsible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    Broke,
    TooLarge,
    TooSlow,
}

/// The state of a caller's upload, for the code that waits for the attempt.
#[derive(Clone, Debug, Default)]
pub struct Feed(Arc<UploadProgress>);

#[derive(Debug, Default)]
struct UploadProgress {
    // Relaxed accesses suffice: no other memory is read on account of these values.
    state: AtomicU8,
    is_whole: AtomicBool,
    /// Bytes that the connection to the upstream has accepted.
    moved: AtomicU64,
}

impl Feed {
    const FLOWS: u8 = 0;
    const WAITS: u8 = 1;
    const BROKE: u8 = 2;
    const TOO_LARGE: u8 = 3;

    fn set(&self, state: u8) {
        self.0.state.store(state, Ordering::Relaxed);
    }

    fn advance(&self, bytes: u64) {
        self.0.moved.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of the body that have been accepted so far.
    pub fn moved(&self) -> u64 {
        self.0.moved.load(Ordering::Relaxed)
    }

    /// Whether the whole body has been accepted.
    pub fn is_whole(&self) -> bool {
        self.0.is_whole.load(Ordering::Relaxed)
    }

    /// The caller's fault, if any, once an attempt has failed with `fault`. A stalled upload alone proves nothing: the caller was too slow
    /// only if time ran out. An upstream that closes meanwhile, or in the same moment as the caller, has failed by itself.
    pub fn blame(&self, fault: Fault) -> Option<Blame> {
        match self.0.state.load(Ordering::Relaxed) {
            Self::WAITS if fault == Fault::TIMEOUT || fault == Fault::STALLED => Some(Blame::TooSlow),
            Self::BROKE if fault == Fault::ABANDONED => Some(Blame::Broke),
            Self::TOO_LARGE if fault == Fault::ABANDONED => Some(Blame::TooLarge),
            _ => None,
        }
    }
}

/// The reason why a request body could not be relayed.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("the body is larger than allowed")]
    TooLarge,
    #[error("the caller's body broke off")]
    Broken(#[source] Unfinished),
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                *self = Self::Empty;
                Poll::Ready(if bytes.is_empty() { None } else { Some(Ok(Frame::data(bytes))) })
            }
            Self::Stream(ahead, rest) => {
                if let Some(bytes) = ahead.take().filter(|bytes| !bytes.is_empty()) {
                    rest.feed.advance(length(&bytes));
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                let polled = Pin::new(&mut rest.incoming).poll_frame(cx);
                rest.feed.set(match &polled {
                    Poll::Pending => Feed::WAITS,
                    Poll::Ready(Some(Err(_))) => Feed::BROKE,
                    Poll::Ready(Some(Ok(_)) | None) => Feed::FLOWS,
                });
                let frame = match ready!(polled) {
                    None => {
                        rest.feed.0.is_whole.store(true, Ordering::Relaxed);
                        return Poll::Ready(None);
                    }
                    Some(Err(error)) => return Poll::Ready(Some(Err(BodyError::Broken(error)))),
                    Some(Ok(frame)) => frame,
                };
                let size = frame.data_ref().map_or(0, |data| u64::try_from(data.len()).unwrap_or(u64::MAX));
                rest.feed.advance(size);
                if rest.incoming.is_end_stream() {
                    rest.feed.0.is_whole.store(true, Ordering::Relaxed);
                }
                match rest.left.checked_sub(size) {
                    Some(left) => rest.left = left,
                    None => {
                        rest.feed.set(Feed::TOO_LARGE);
                        return Poll::Ready(Some(Err(BodyError::TooLarge)));
                    }
                }
                // Trailers belong to one hop and are dropped.
                if frame.is_data() { Poll::Ready(Some(Ok(frame))) } else { self.poll_frame(cx) }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Full(bytes) => bytes.is_empty(),
            Self::Stream(ahead, rest) => ahead.is_none() && rest.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Full(bytes) => SizeHint::with_exact(length(bytes)),
            Self::Stream(ahead, rest) => {
                let read = ahead.as_ref().map_or(0, length);
                rest.incoming.size_hint().exact().map_or_else(SizeHint::default, |rest| SizeHint::with_exact(rest + read))
            }
        }
    }
}

pub(crate) fn length(bytes: &Bytes) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}
