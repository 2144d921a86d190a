//! An entry for fuzz targets and fixtures, which need no socket: the parsers of both sides over bytes that arrive in chosen pieces. Not
//! part of the library.

use super::body_reader::{BodyReader, Length};
use super::chunks::Cut;
use super::raw_response::Passes;
use super::request_head::{self, HeadProgress, RequestInfo};
use super::response_head::{self, ResponseHead};
use super::writer::HeadWriter;
use crate::fault::Fault;
use http::{HeaderMap, Request, request, response};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, ReadBuf};

/// The bytes of a connection, and the sizes in which they arrive.
#[derive(Clone, Copy, Debug)]
pub struct FuzzInput<'a> {
    pub bytes: &'a [u8],
    /// The sizes of reads, in turn; if empty, each read fills its buffer.
    pub sizes: &'a [usize],
    /// The peer closes after the last byte; otherwise nothing more happens.
    pub closes: bool,
}

/// A parsed message.
#[derive(Debug)]
pub struct FuzzMessage<Head> {
    /// The range of its head among all bytes.
    pub place: std::ops::Range<usize>,
    pub head: Head,
    /// All of its headers as a map, raw or parsed.
    pub headers: HeaderMap,
    /// The header lines as they are relayed to the next hop.
    pub relayed: Vec<u8>,
    pub body: Vec<u8>,
    /// The body is complete.
    pub is_whole: bool,
}

/// The reason why no further message was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FuzzEnd {
    /// More bytes are needed.
    Waits,
    /// The peer closed between two messages.
    Closed,
    /// The message said that it is the last one; `unread` bytes follow it.
    Last { unread: usize },
    /// The bytes are not a valid message.
    Refused,
    /// The peer closed within a message.
    Cut,
}

struct FuzzConnection<'a> {
    arrival: FuzzInput<'a>,
    rest: &'a [u8],
    turn: usize,
}

impl AsyncRead for FuzzConnection<'_> {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        if self.rest.is_empty() {
            return if self.arrival.closes { Poll::Ready(Ok(())) } else { Poll::Pending };
        }
        let sizes = self.arrival.sizes;
        let most = if sizes.is_empty() { usize::MAX } else { sizes[self.turn % sizes.len()].max(1) };
        let (piece, rest) = self.rest.split_at(most.min(buffer.remaining()).min(self.rest.len()));
        buffer.put_slice(piece);
        (self.rest, self.turn) = (rest, self.turn + 1);
        Poll::Ready(Ok(()))
    }
}

/// One side of a connection.
struct FuzzReader<'a> {
    io: FuzzConnection<'a>,
    reading: BodyReader,
    cx: Context<'static>,
}

impl<'a> FuzzReader<'a> {
    fn new(arrival: FuzzInput<'a>) -> Self {
        let io = FuzzConnection { arrival, rest: arrival.bytes, turn: 0 };
        Self { io, reading: BodyReader::default(), cx: Context::from_waker(Waker::noop()) }
    }

    fn unread(&self) -> usize {
        self.io.rest.len() + self.reading.ahead.len()
    }

    /// The range of a head of this length that was just read.
    fn place(&self, length: usize) -> std::ops::Range<usize> {
        let end = self.io.arrival.bytes.len() - self.unread();
        end - length..end
    }

    /// Reads a body, and the reason if it did not come to its end.
    fn body(&mut self) -> (Vec<u8>, Option<FuzzEnd>) {
        let mut body = Vec::new();
        loop {
            match self.reading.poll_piece(&mut self.io, &mut self.cx) {
                Poll::Pending => return (body, Some(FuzzEnd::Waits)),
                Poll::Ready(None) => return (body, None),
                Poll::Ready(Some(Ok(piece))) => body.extend_from_slice(&piece),
                Poll::Ready(Some(Err(Cut::Short))) => return (body, Some(FuzzEnd::Cut)),
                Poll::Ready(Some(Err(Cut::Malformed))) => return (body, Some(FuzzEnd::Refused)),
            }
        }
    }
}

/// Reads requests as a caller's connection does, one after the other.
#[must_use]
pub fn requests(arrival: FuzzInput<'_>) -> (Vec<FuzzMessage<request::Parts>>, FuzzEnd) {
    let (mut reader, mut progress, mut messages) = (FuzzReader::new(arrival), HeadProgress::default(), Vec::new());
    loop {
        let (mut head, ()) = Request::new(()).into_parts();
        let polled = request_head::poll(&mut reader.reading, &mut reader.io, &mut reader.cx, &mut progress, &mut head);
        let RequestInfo { length, body, stays, unread } = match polled {
            Poll::Pending => return (messages, FuzzEnd::Waits),
            Poll::Ready(Err(_)) => return (messages, FuzzEnd::Refused),
            Poll::Ready(Ok(None)) => return (messages, if reader.unread() > 0 { FuzzEnd::Cut } else { FuzzEnd::Closed }),
            Poll::Ready(Ok(Some(asked))) => asked,
        };
        reader.reading.body(length, body);
        let place = reader.place(length);
        let mut relayed = Vec::new();
        match &unread {
            Some(unread) => unread.write(&mut HeadWriter::new(&mut relayed)),
            None => write(&mut relayed, &head.headers),
        }
        let headers = unread.map_or_else(|| head.headers.clone(), |unread| unread.to_header_map());
        let (body, end) = reader.body();
        messages.push(FuzzMessage { place, head, headers, relayed, body, is_whole: end.is_none() });
        if let Some(end) = end {
            return (messages, end);
        }
        if !stays {
            return (messages, FuzzEnd::Last { unread: reader.unread() });
        }
        reader.reading.shrink();
    }
}

/// Reads responses as an upstream's connection does, each of them to a HEAD if `to_head` says so.
#[must_use]
pub fn responses(arrival: FuzzInput<'_>, to_head: bool, passes: Option<Passes>) -> (Vec<FuzzMessage<response::Parts>>, FuzzEnd) {
    let (mut reader, mut messages) = (FuzzReader::new(arrival), Vec::new());
    loop {
        let ResponseHead { parts: head, verbatim, length, body: framing, stays } =
            match response_head::poll(&mut reader.reading, &mut reader.io, &mut reader.cx, to_head, passes) {
                Poll::Pending => return (messages, FuzzEnd::Waits),
                Poll::Ready(Err(fault)) if fault != Fault::RESET => return (messages, FuzzEnd::Refused),
                Poll::Ready(Err(_)) => return (messages, if reader.unread() > 0 { FuzzEnd::Cut } else { FuzzEnd::Closed }),
                Poll::Ready(Ok(answer)) => answer,
            };
        let place = reader.place(length);
        let (mut relayed, mut headers) = (Vec::new(), head.headers.clone());
        match verbatim {
            Some(verbatim) => {
                verbatim.write(&mut HeadWriter::new(&mut relayed), true);
                verbatim.add_to_header_map(&mut headers);
            }
            None => write(&mut relayed, &headers),
        }
        let ends_by_itself = !matches!(framing, Length::UntilClose);
        let (body, end) = reader.body();
        messages.push(FuzzMessage { place, head, headers, relayed, body, is_whole: end.is_none() });
        if let Some(end) = end {
            return (messages, end);
        }
        if !stays || !ends_by_itself {
            return (messages, FuzzEnd::Last { unread: reader.unread() });
        }
        reader.reading.shrink();
    }
}

fn write(out: &mut Vec<u8>, headers: &HeaderMap) {
    let mut writer = HeadWriter::new(out);
    headers.iter().for_each(|(name, value)| writer.field(name, value));
}
