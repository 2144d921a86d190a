//! One caller's connection: requests in, answers out, in turns. The body of a request is read by whoever wants it, over
//! the same socket, so what is read is shared between the conversation and the body of the moment. What is written is
//! not: an answer may be waiting for that very body.

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

/// What a caller that asks first is told when its body is wanted.
const GO_ON: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// So many bytes behind a request are read before it is answered.
const MAX_AHEAD: usize = 16 * 1024;

/// A request's body, and its headers where nobody has read them.
pub type ReceivedBody<I> = (I, Option<RawRequestHeaders>);

/// A connection, seen by whoever answers. Its socket is closed with it, whoever still holds a body.
#[derive(Debug)]
pub struct ServerConnection<B> {
    line: Rc<RefCell<ConnectionShared>>,
    out: Out<B>,
    progress: HeadProgress,
    asked: ResponseTurn,
    /// The body of the response of the moment ends with the connection.
    ends_with_connection: bool,
}

/// A request's body, seen by whoever reads it.
#[derive(Debug)]
pub struct Upload {
    line: Rc<RefCell<ConnectionShared>>,
    turn: u32,
    /// All of it has been read.
    is_whole: bool,
}

/// What both sides of a conversation share.
#[derive(Debug)]
struct ConnectionShared {
    /// Gone once the conversation is over.
    io: Option<Io>,
    reading: BodyReader,
    turn: u32,
    /// What is left to tell a caller that waits to be asked for its body, and whether that is on its way.
    leave: &'static [u8],
    flushes: bool,
    /// Who wants to know when the caller leaves, while somebody else reads its body.
    watcher: Option<Waker>,
}

/// What the request of the moment says about its answer.
#[derive(Clone, Copy, Debug)]
struct ResponseTurn {
    version: Version,
    to_head: bool,
    /// Neither side has said that this request is the last.
    stays: bool,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseEnd {
    /// Another request can follow.
    Open,
    /// It was the last.
    Last,
    /// It has no end, which the caller must not take for one.
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

    /// Waits for the next request: its head is put where it is wanted, its body is given, and its headers where they were left as they
    /// came; nothing where the caller has closed.
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

    /// Whether nothing of a next request has come.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.line.borrow().reading.ahead.is_empty()
    }

    /// Ready when the caller has left before it was answered. What it sends ahead of time is kept.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut line = self.line.borrow_mut();
        let ConnectionShared { io: Some(io), reading, watcher, .. } = &mut *line else { return Poll::Ready(()) };
        if !reading.is_over() {
            // Whoever reads the body has the socket, and may be another task.
            *watcher = Some(cx.waker().clone());
            return Poll::Pending;
        }
        // Requests that are sent ahead of time are read as well, since the end of the connection is behind them.
        while reading.ahead.len() < MAX_AHEAD {
            match reading.poll_more(io, cx) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(_)) => {}
                Poll::Pending => break,
            }
        }
        Poll::Pending
    }

    /// Ends the connection after a response that broke off. Where the end of the connection would pass for the end of the body, the
    /// caller gets a reset instead.
    pub fn break_off(self) {
        if self.ends_with_connection
            && let Some(Io::Plain(io)) = &self.line.borrow().io
        {
            // Without it the caller takes a part for the whole, which is no worse than before.
            let _is_reset = io.set_zero_linger();
        }
    }

    /// Starts the answer, and takes its body. `verbatim` are headers that it has besides its own; `last` means that no request will be
    /// heard after this one; `more` adds to the headers, and is told whether they say when it was given.
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
        // The rest of its body may never come, and cannot be told from a next request: the caller is told that none will be heard.
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
        // Whoever has its answer need not be asked for its body any more.
        self.line.borrow_mut().leave = &[];
    }

    /// Sends the answer, to its end.
    pub fn poll_answered(&mut self, cx: &mut Context<'_>) -> Poll<ResponseEnd> {
        // Nothing is borrowed here: the answer may be read from an upstream that is still being sent the request's body.
        self.out.push(&mut &*self.line, cx);
        if !self.out.is_over() {
            return Poll::Pending;
        }
        if !self.out.is_done() {
            return Poll::Ready(ResponseEnd::Broken);
        }
        let mut line = self.line.borrow_mut();
        // The end of a body that nobody wanted may be here already. Whoever reads it after all hears that it broke off.
        if !line.reading.is_over() {
            line.turn = line.turn.wrapping_add(1);
            while let Some(Ok(_)) = line.reading.take() {}
        }
        let goes_on = self.asked.stays && line.reading.is_over();
        line.reading.shrink();
        Poll::Ready(if goes_on { ResponseEnd::Open } else { ResponseEnd::Last })
    }

    /// How much of its answer the caller has taken, where it is waited for to take more.
    #[must_use]
    pub fn stuck(&self) -> Option<u64> {
        self.out.stuck()
    }

    /// The socket, to be closed. Nothing more is read or written here.
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

/// The socket, taken for a moment at a time.
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

/// Where the caller will know that an answer ends (RFC 9112 §6.3).
fn framing(has_length: impl FnOnce() -> bool, status: StatusCode, size: &SizeHint, asked: ResponseTurn) -> BodyFraming {
    let has_none = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) || status.is_informational();
    match size.exact() {
        _ if has_none => BodyFraming::Bare,
        // What a GET would have got, where that is known.
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
            // The conversation went on without the rest of it.
            return Poll::Ready(Some(Err(Cut::Short)));
        }
        let piece = ready!(line.poll_piece(cx));
        self.is_whole = line.reading.is_over();
        if (self.is_whole || matches!(piece, Some(Err(_))))
            && let Some(watcher) = line.watcher.take()
        {
            watcher.wake();
        }
        Poll::Ready(piece)
    }

    pub fn is_over(&self) -> bool {
        self.is_whole
    }

    /// Whether the caller has ended the connection while nobody reads the body.
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
