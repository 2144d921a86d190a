//! One caller's connection: requests and responses in turn. The handler reads the body of a request over the same socket, so the connection
//! and the current body share the reading side. The writing side is not shared: a response may be waiting for that very body.

use super::body_reader::BodyReader;
use super::chunks::Cut;
use super::outgoing::{BodyFraming, BodyStart, Out, Socket};
use super::raw_request::RawRequestHeaders;
use super::raw_response::RawResponseHeaders;
use super::request_head::{self, HeadError, HeadProgress};
use super::writer::HeadWriter;
use crate::io::Io;
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, EXPECT};
use http::{Method, Response, StatusCode, Version, request};
use http_body::{Body, SizeHint};
use hyper::ext::ReasonPhrase;
use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::AsyncWrite as _;

/// The interim response to `Expect: 100-continue`, sent when the body is first read.
const GO_ON: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// The most bytes behind a request that are read before its response.
const MAX_AHEAD: usize = 16 * 1024;

/// A request's body, and its headers if they stayed raw.
pub type ReceivedBody<I> = (I, Option<RawRequestHeaders>);

/// A connection for the code that responds. Dropping it closes the socket, even while a body is still held.
#[derive(Debug)]
pub struct ServerConnection<B> {
    line: Rc<RefCell<ConnectionShared>>,
    out: Out<B>,
    progress: HeadProgress,
    asked: ResponseTurn,
    /// The current response's body ends with the connection.
    ends_with_connection: bool,
}

/// A request's body for the code that reads it.
#[derive(Debug)]
pub struct Upload {
    line: Rc<RefCell<ConnectionShared>>,
    turn: u32,
    /// All of it has been read.
    is_whole: bool,
}

/// State that the connection and the current body share.
#[derive(Debug)]
struct ConnectionShared {
    /// `None` once the connection has ended.
    io: Option<Io>,
    reading: BodyReader,
    turn: u32,
    /// The unsent part of `100 Continue`, and whether it still needs a flush.
    leave: &'static [u8],
    flushes: bool,
    /// The task to wake when the caller leaves, while another task reads the body.
    watcher: Option<Waker>,
}

/// The current request's properties that its response depends on.
#[derive(Clone, Copy, Debug)]
struct ResponseTurn {
    version: Version,
    to_head: bool,
    /// Neither side has said that this request is the last.
    stays: bool,
}

/// The end of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseEnd {
    /// Another request can follow.
    Open,
    /// It was the last response.
    Last,
    /// It is incomplete, and the caller must notice that.
    Broken,
}

impl<B: Body<Data = Bytes> + Default + Unpin> ServerConnection<B> {
    #[must_use]
    pub fn new(io: Io) -> Self {
        let line = ConnectionShared { io: Some(io), reading: BodyReader::default(), turn: 0, leave: &[], flushes: false, watcher: None };
        let asked = ResponseTurn { version: Version::HTTP_11, to_head: false, stays: true };
        Self {
            line: Rc::new(RefCell::new(line)),
            out: Out::default(),
            progress: HeadProgress::default(),
            asked,
            ends_with_connection: false,
        }
    }

    /// Waits for the next request. Its head is written into `head`; its body, and its headers if they stayed raw, are returned; `None` if
    /// the caller has closed.
    pub fn poll_request<I>(&mut self, head: &mut request::Parts, cx: &mut Context<'_>) -> Poll<Result<Option<ReceivedBody<I>>, HeadError>>
    where
        I: From<Option<Upload>>,
    {
        let Some(asked) = ready!(self.poll_asked(head, cx))? else { return Poll::Ready(Ok(None)) };
        let request_head::RequestInfo { length, body, stays, unread } = asked;
        let mut line = self.line.borrow_mut();
        line.reading.body(length, body);
        line.turn = line.turn.wrapping_add(1);
        self.asked = ResponseTurn { version: head.version, to_head: head.method == Method::HEAD, stays };
        if line.reading.is_over() {
            return Poll::Ready(Ok(Some((I::from(None), unread))));
        }
        let waits = head.headers.get(EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
        line.leave = if waits && head.version == Version::HTTP_11 { GO_ON } else { &[] };
        let upload = Upload { line: Rc::clone(&self.line), turn: line.turn, is_whole: false };
        Poll::Ready(Ok(Some((I::from(Some(upload)), unread))))
    }

    fn poll_asked(
        &mut self,
        head: &mut request::Parts,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<request_head::RequestInfo>, HeadError>> {
        let mut line = self.line.borrow_mut();
        let ConnectionShared { io: Some(io), reading, .. } = &mut *line else { return Poll::Ready(Ok(None)) };
        request_head::poll(reading, io, cx, &mut self.progress, head)
    }

    /// Whether no byte of a next request has arrived.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.line.borrow().reading.ahead.is_empty()
    }

    /// Ready when the caller has left before its response. Keeps the bytes that it sends ahead of time.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut line = self.line.borrow_mut();
        let ConnectionShared { io: Some(io), reading, watcher, .. } = &mut *line else { return Poll::Ready(()) };
        if !reading.is_over() {
            // The body's reader polls the socket, perhaps in another task. It wakes this task when the body ends or fails.
            *watcher = Some(cx.waker().clone());
            return Poll::Pending;
        }
        // Also reads pipelined requests, because the end of the connection comes after them.
        while reading.ahead.len() < MAX_AHEAD {
            match reading.poll_more(io, cx) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(_)) => {}
                Poll::Pending => break,
            }
        }
        Poll::Pending
    }

    /// Ends the connection after a response that broke off. If the end of the connection would look like the end of the body, the caller
    /// gets a reset instead.
    pub fn break_off(self) {
        if self.ends_with_connection
            && let Some(Io::Plain(io)) = &self.line.borrow().io
        {
            // If this fails, the caller takes a part for the whole, which is no worse than without a reset.
            let _is_reset = io.set_zero_linger();
        }
    }

    /// Starts the response, and takes its body. `verbatim` are raw headers besides its own; `last` means that no request follows this one;
    /// `more` adds headers, and its argument says whether there is a `Date` already.
    pub fn answer(
        &mut self,
        response: &mut Response<B>,
        verbatim: Option<&RawResponseHeaders>,
        last: bool,
        more: impl FnOnce(&mut HeadWriter<'_>, bool),
    ) {
        let ResponseTurn { version, to_head, stays } = self.asked;
        let has_length = || verbatim.is_some_and(RawResponseHeaders::has_length) || response.headers().contains_key(CONTENT_LENGTH);
        let framing = framing(has_length, response.status(), &response.body().size_hint(), self.asked);
        self.ends_with_connection = framing == BodyFraming::UntilClose;
        let keeps_length = framing == BodyFraming::Bare && response.status() != StatusCode::NO_CONTENT;
        let (mut stays, mut is_dated) = (stays && !last && framing != BodyFraming::UntilClose, false);
        // The rest of the request's body may never come, and would be read as the next request, so this response announces the close.
        stays &= self.line.borrow().reading.is_over();
        let body = std::mem::take(response.body_mut());
        let body = if to_head { B::default() } else { body };
        self.out.begin(body, framing, BodyStart::WithHead, |out: &mut HeadWriter<'_>| {
            out.status(version, response.status(), response.extensions().get::<ReasonPhrase>());
            if let Some(verbatim) = verbatim {
                verbatim.write(out, keeps_length);
                is_dated = verbatim.is_dated();
            }
            for (name, value) in response.headers() {
                if name == CONNECTION {
                    stays &= !value.as_bytes().eq_ignore_ascii_case(b"close");
                } else if name != CONTENT_LENGTH || keeps_length {
                    is_dated |= name == DATE;
                    out.field(name, value);
                }
            }
            more(out, is_dated);
            match (stays, version) {
                (false, Version::HTTP_11) => out.raw(b"connection", b"close"),
                (true, Version::HTTP_10) => out.raw(b"connection", b"keep-alive"),
                _ => {}
            }
        });
        self.asked.stays = stays;
        // After the response begins, `100 Continue` is of no use.
        self.line.borrow_mut().leave = &[];
    }

    /// Sends the response to its end.
    pub fn poll_answered(&mut self, cx: &mut Context<'_>) -> Poll<ResponseEnd> {
        // Borrows the shared state only for each write: the response may come from an upstream that is still receiving this request's body.
        self.out.push(&mut &*self.line, cx);
        if !self.out.is_over() {
            return Poll::Pending;
        }
        if !self.out.is_done() {
            return Poll::Ready(ResponseEnd::Broken);
        }
        let mut line = self.line.borrow_mut();
        // The end of an unread body may have arrived already. A late reader of that body gets an error.
        if !line.reading.is_over() {
            line.turn = line.turn.wrapping_add(1);
            while let Some(Ok(_)) = line.reading.take() {}
        }
        let goes_on = self.asked.stays && line.reading.is_over();
        line.reading.shrink();
        Poll::Ready(if goes_on { ResponseEnd::Open } else { ResponseEnd::Last })
    }

    /// The bytes of the response that the caller has accepted, while it accepts no more.
    #[must_use]
    pub fn stalled_at(&self) -> Option<u64> {
        self.out.stalled_at()
    }

    /// Returns the socket, to be closed. Nothing more is read or written here.
    #[must_use]
    pub fn close(&mut self) -> Option<Io> {
        self.line.borrow_mut().io.take()
    }
}

impl<B> Drop for ServerConnection<B> {
    fn drop(&mut self) {
        drop(self.line.borrow_mut().io.take());
    }
}

/// The shared socket, borrowed for one operation at a time.
impl Socket for &RefCell<ConnectionShared> {
    fn poll_send(&mut self, cx: &mut Context<'_>, frame: &[u8], piece: &[u8]) -> Poll<std::io::Result<usize>> {
        match &mut self.borrow_mut().io {
            Some(io) => io.poll_send(cx, frame, piece),
            None => Poll::Ready(Ok(0)),
        }
    }

    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match &mut self.borrow_mut().io {
            Some(io) => io.poll_sent(cx),
            None => Poll::Ready(Ok(())),
        }
    }
}

impl ConnectionShared {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Cut>>> {
        let Some(io) = &mut self.io else { return Poll::Ready(Some(Err(Cut::Short))) };
        while !self.leave.is_empty() {
            match ready!(Pin::new(&mut *io).poll_write(cx, self.leave)) {
                Ok(told @ 1..) => self.leave = self.leave.get(told..).unwrap_or_default(),
                Ok(0) | Err(_) => return Poll::Ready(Some(Err(Cut::Short))),
            }
            self.flushes = true;
        }
        // TLS may hold back what was written.
        if self.flushes && ready!(Pin::new(&mut *io).poll_flush(cx)).is_err() {
            return Poll::Ready(Some(Err(Cut::Short)));
        }
        self.flushes = false;
        self.reading.poll_piece(io, cx)
    }
}

/// The framing of a response (RFC 9112 §6.3).
fn framing(has_length: impl FnOnce() -> bool, status: StatusCode, size: &SizeHint, asked: ResponseTurn) -> BodyFraming {
    let has_none = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) || status.is_informational();
    match size.exact() {
        _ if has_none => BodyFraming::Bare,
        // For HEAD, the length that a GET would have, if it is known.
        None | Some(0) if asked.to_head => BodyFraming::Bare,
        Some(_) if asked.to_head && has_length() => BodyFraming::Bare,
        Some(length) => BodyFraming::Length(length),
        None if asked.version == Version::HTTP_11 => BodyFraming::Chunked,
        None => BodyFraming::UntilClose,
    }
}

impl Upload {
    pub fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Cut>>> {
        if self.is_whole {
            return Poll::Ready(None);
        }
        let mut line = self.line.borrow_mut();
        if line.turn != self.turn {
            // The connection has moved on to a later request.
            return Poll::Ready(Some(Err(Cut::Short)));
        }
        let piece = ready!(line.poll_piece(cx));
        self.is_whole = line.reading.is_over();
        if (self.is_whole || matches!(piece, Some(Err(_))))
            && let Some(watcher) = line.watcher.take()
        // Wakes `poll_gone`, which takes over polling the socket.
        {
            watcher.wake();
        }
        Poll::Ready(piece)
    }

    pub fn is_over(&self) -> bool {
        self.is_whole
    }

    /// Whether the caller has ended the connection before the body was read.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        let line = self.line.borrow();
        !self.is_whole && (line.turn != self.turn || line.io.as_ref().is_none_or(Io::is_ended))
    }

    pub fn size_hint(&self) -> SizeHint {
        let line = self.line.borrow();
        if line.turn == self.turn { line.reading.size_hint() } else { SizeHint::default() }
    }
}
