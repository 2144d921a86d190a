//! Input from either side's connection: the buffer of received bytes, and the body within them.

use super::chunks::{Chunks, Cut};
use bytes::{Bytes, BytesMut};
use http_body::SizeHint;
use std::cell::RefCell;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncReadExt as _, ReadBuf};

/// Enough for most messages in one read.
const FIRST_READ: usize = 8 * 1024;
/// The most bytes of one read.
const MAX_READ: usize = 64 * 1024;

thread_local! {
    static LOBBY: RefCell<[u8; FIRST_READ]> = const { RefCell::new([0; FIRST_READ]) };
}

/// The length of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    None,
    Known(u64),
    Chunked,
    UntilClose,
}

/// The unread part of a body.
#[derive(Debug, Default)]
enum BodyRemainder {
    #[default]
    Nothing,
    Bytes(u64),
    Chunks(Chunks),
    /// All bytes until the peer closes.
    UntilClose,
}

#[derive(Debug, Default)]
pub(super) struct BodyReader {
    /// The buffer for the next read.
    space: BytesMut,
    /// The buffer is larger than an idle connection should keep.
    has_grown: bool,
    /// Received bytes that have not been parsed.
    pub(super) ahead: Bytes,
    left: BodyRemainder,
}

impl BodyReader {
    /// A head of `head` bytes was read; its body has this length.
    pub(super) fn body(&mut self, head: usize, length: Length) {
        drop(self.ahead.split_to(head));
        self.left = length.into();
    }

    /// Reads more bytes behind those in `ahead`.
    pub(super) fn poll_more(&mut self, io: &mut (impl AsyncRead + Unpin), cx: &mut Context<'_>) -> Poll<std::io::Result<usize>> {
        if self.ahead.is_empty() && self.is_over() {
            return self.poll_first(io, cx);
        }
        let wanted = match self.left {
            BodyRemainder::Bytes(left) => usize::try_from(left).unwrap_or(MAX_READ).clamp(1, MAX_READ),
            BodyRemainder::Nothing | BodyRemainder::Chunks(_) | BodyRemainder::UntilClose => FIRST_READ,
        };
        if !self.ahead.is_empty() {
            // `ahead` has part of a head: the rest is read right behind it.
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
        let read = pin!(io.read_buf(&mut self.space)).poll(cx);
        if had > 0 || matches!(read, Poll::Ready(Ok(1..))) {
            self.ahead = self.space.split().freeze();
        }
        read
    }

    /// Reads the beginning of a message. Its time and size are unknown, so it is read into a buffer that all connections of the thread
    /// share, and copied into one of its own size.
    fn poll_first(&mut self, io: &mut (impl AsyncRead + Unpin), cx: &mut Context<'_>) -> Poll<std::io::Result<usize>> {
        LOBBY.with_borrow_mut(|lobby| {
            let mut buffer = ReadBuf::new(lobby);
            ready!(Pin::new(io).poll_read(cx, &mut buffer))?;
            self.ahead = Bytes::copy_from_slice(buffer.filled());
            Poll::Ready(Ok(self.ahead.len()))
        })
    }

    /// Takes a piece of the body out of `ahead`.
    pub(super) fn take(&mut self) -> Option<Result<Bytes, Cut>> {
        if self.ahead.is_empty() {
            return None;
        }
        match &mut self.left {
            BodyRemainder::Nothing => None,
            BodyRemainder::UntilClose => Some(Ok(std::mem::take(&mut self.ahead))),
            BodyRemainder::Bytes(left) => {
                let here = u64::try_from(self.ahead.len()).unwrap_or(u64::MAX);
                if here <= *left {
                    *left -= here;
                    return Some(Ok(std::mem::take(&mut self.ahead)));
                }
                let piece = self.ahead.split_to(usize::try_from(*left).unwrap_or(usize::MAX));
                *left = 0;
                (!piece.is_empty()).then_some(Ok(piece))
            }
            BodyRemainder::Chunks(chunks) => chunks.take(&mut self.ahead).transpose(),
        }
    }

    /// The next piece of the body, as soon as there is one.
    pub(super) fn poll_piece(&mut self, io: &mut (impl AsyncRead + Unpin), cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Cut>>> {
        loop {
            if let Some(piece) = self.take() {
                return Poll::Ready(Some(piece));
            }
            if self.is_over() {
                return Poll::Ready(None);
            }
            match ready!(self.poll_more(io, cx)) {
                Ok(1..) => {}
                Ok(0) if matches!(self.left, BodyRemainder::UntilClose) => self.left = BodyRemainder::Nothing,
                Ok(0) | Err(_) => return Poll::Ready(Some(Err(Cut::Short))),
            }
        }
    }

    /// The rest of the body, if all of it has arrived.
    pub(super) fn rest(&mut self) -> Option<Bytes> {
        if self.is_here() { self.take()?.ok() } else { None }
    }

    /// Whether the rest of a body of known length has arrived.
    pub(super) fn is_here(&self) -> bool {
        matches!(self.left, BodyRemainder::Bytes(left) if u64::try_from(self.ahead.len()).is_ok_and(|here| here >= left))
    }

    pub(super) fn is_over(&self) -> bool {
        match &self.left {
            BodyRemainder::Nothing | BodyRemainder::Bytes(0) => true,
            BodyRemainder::Chunks(chunks) => chunks.is_over(),
            BodyRemainder::Bytes(_) | BodyRemainder::UntilClose => false,
        }
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match self.left {
            BodyRemainder::Nothing => SizeHint::with_exact(0),
            BodyRemainder::Bytes(left) => SizeHint::with_exact(left),
            BodyRemainder::Chunks(_) | BodyRemainder::UntilClose => SizeHint::default(),
        }
    }

    /// Frees a large buffer between two messages.
    pub(super) fn shrink(&mut self) {
        if std::mem::take(&mut self.has_grown) {
            self.space = BytesMut::new();
        }
    }
}

impl From<Length> for BodyRemainder {
    fn from(length: Length) -> Self {
        match length {
            Length::None => Self::Nothing,
            Length::Known(length) => Self::Bytes(length),
            Length::Chunked => Self::Chunks(Chunks::default()),
            Length::UntilClose => Self::UntilClose,
        }
    }
}
