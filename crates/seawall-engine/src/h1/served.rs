//! One caller's connection: requests in, answers out, in turns. The body of a request is read by whoever wants it, over
//! the same socket, so a connection is shared between its conversation and the body of the moment.

use super::asked::{self, Unheard};
use super::head::Writer;
use super::out::{Framing, Out};
use super::reading::{Cut, Reading};
use crate::body::{Inbound, Relay};
use crate::io::Io;
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, EXPECT};
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use http_body::{Body as _, SizeHint};
use hyper::ext::ReasonPhrase;
use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite as _;

/// What a caller that asks first is told when its body is wanted.
const GO_ON: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A connection, seen by whoever answers.
#[derive(Debug)]
pub struct Served(Rc<RefCell<Line>>);

/// A request's body, seen by whoever reads it.
#[derive(Debug)]
pub struct Upload {
    line: Rc<RefCell<Line>>,
    /// Bodies of earlier requests have ended, whatever follows.
    turn: u32,
}

#[derive(Debug)]
struct Line {
    /// Gone once the conversation is over.
    io: Option<Io>,
    reading: Reading,
    out: Out<Relay>,
    /// How much of a head was there when it was last looked at.
    looked: usize,
    turn: u32,
    /// What is left to tell a caller that waits to be asked for its body.
    leave: &'static [u8],
    asked: Turn,
}

/// What the request of the moment says about its answer.
#[derive(Clone, Copy, Debug)]
struct Turn {
    version: Version,
    to_head: bool,
    /// Neither side has said that this request is the last.
    stays: bool,
}

impl Served {
    #[must_use]
    pub fn new(io: Io) -> Self {
        Self(Rc::new(RefCell::new(Line {
            io: Some(io),
            reading: Reading::default(),
            out: Out::default(),
            looked: 0,
            turn: 0,
            leave: &[],
            asked: Turn { version: Version::HTTP_11, to_head: false, stays: true },
        })))
    }

    /// Waits for the next request's head; nothing where the caller has closed.
    pub fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Request<Inbound>>, Unheard>> {
        let mut line = self.0.borrow_mut();
        let Some(asked) = ready!(line.poll_asked(cx))? else { return Poll::Ready(Ok(None)) };
        let asked::Asked { parts, length, body, stays } = asked;
        line.reading.body(length, body);
        line.turn = line.turn.wrapping_add(1);
        line.asked = Turn { version: parts.version, to_head: parts.method == Method::HEAD, stays };
        if line.reading.is_over() {
            return Poll::Ready(Ok(Some(Request::from_parts(parts, Inbound::None))));
        }
        let waits = parts.headers.get(EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
        line.leave = if waits && parts.version == Version::HTTP_11 { GO_ON } else { &[] };
        let upload = Upload { line: Rc::clone(&self.0), turn: line.turn };
        Poll::Ready(Ok(Some(Request::from_parts(parts, Inbound::H1(upload)))))
    }

    /// Whether nothing of a next request has come.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.0.borrow().reading.ahead.is_empty()
    }

    /// Ready when the caller has left before it was answered. What it sends ahead of time is kept.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut line = self.0.borrow_mut();
        let Line { io: Some(io), reading, .. } = &mut *line else { return Poll::Ready(()) };
        if !reading.is_over() || !reading.ahead.is_empty() {
            // Whoever reads the body will see; and whoever has said more has not left.
            return Poll::Pending;
        }
        match reading.poll_more(io, cx) {
            Poll::Ready(Ok(0) | Err(_)) => Poll::Ready(()),
            Poll::Ready(Ok(_)) | Poll::Pending => Poll::Pending,
        }
    }

    /// Starts the answer. `last` means that no request will be heard after this one; `more` adds to the headers, and is
    /// told whether they say when it was given.
    pub fn answer(&mut self, response: Response<Relay>, last: bool, more: impl FnOnce(&mut Writer<'_>, bool)) {
        let (head, body) = response.into_parts();
        let mut line = self.0.borrow_mut();
        let Turn { version, to_head, stays } = line.asked;
        let framing = framing(&head.headers, head.status, &body.size_hint(), line.asked);
        let keeps_length = framing == Framing::Bare && head.status != StatusCode::NO_CONTENT;
        let (mut stays, mut is_dated) = (stays && !last && framing != Framing::UntilClose, false);
        let body = if to_head { Relay::Empty } else { body };
        line.out.begin(body, framing, |out: &mut Writer<'_>| {
            out.status(version, head.status, head.extensions.get::<ReasonPhrase>());
            for (name, value) in &head.headers {
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
        line.asked.stays = stays;
    }

    /// Sends the answer. Says at its end whether another request can follow.
    pub fn poll_answered(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let mut line = self.0.borrow_mut();
        let Line { io: Some(io), reading, out, asked, leave, .. } = &mut *line else { return Poll::Ready(false) };
        out.push(io, cx);
        if !out.is_over() {
            return Poll::Pending;
        }
        // The end of a body that nobody wanted may be here already.
        while let Some(Ok(_)) = reading.take() {}
        *leave = &[];
        let goes_on = out.is_done() && asked.stays && reading.is_over();
        drop(out.take_body());
        reading.shrink();
        Poll::Ready(goes_on)
    }

    /// The socket, to be closed. Nothing more is read or written here.
    #[must_use]
    pub fn close(&mut self) -> Option<Io> {
        self.0.borrow_mut().io.take()
    }
}

impl Line {
    fn poll_asked(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<asked::Asked>, Unheard>> {
        let Some(io) = &mut self.io else { return Poll::Ready(Ok(None)) };
        loop {
            if !self.reading.ahead.is_empty()
                && let Some(asked) = asked::read(&self.reading.ahead, &mut self.looked)?
            {
                return Poll::Ready(Ok(Some(asked)));
            }
            match ready!(self.reading.poll_more(io, cx)) {
                Ok(1..) => {}
                Ok(0) | Err(_) => return Poll::Ready(Ok(None)),
            }
        }
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Cut>>> {
        let Some(io) = &mut self.io else { return Poll::Ready(Some(Err(Cut::Short))) };
        while !self.leave.is_empty() {
            match ready!(Pin::new(&mut *io).poll_write(cx, self.leave)) {
                Ok(told @ 1..) => self.leave = self.leave.get(told..).unwrap_or_default(),
                Ok(0) | Err(_) => return Poll::Ready(Some(Err(Cut::Short))),
            }
            // TLS may hold back what was written.
            if ready!(Pin::new(&mut *io).poll_flush(cx)).is_err() {
                return Poll::Ready(Some(Err(Cut::Short)));
            }
        }
        self.reading.poll_piece(io, cx)
    }
}

/// Where the caller will know that an answer ends (RFC 9112 §6.3).
fn framing(headers: &HeaderMap, status: StatusCode, size: &SizeHint, asked: Turn) -> Framing {
    let has_none = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) || status.is_informational();
    match size.exact() {
        _ if has_none => Framing::Bare,
        // What a GET would have got, where that is known.
        None | Some(0) if asked.to_head => Framing::Bare,
        Some(_) if asked.to_head && headers.contains_key(CONTENT_LENGTH) => Framing::Bare,
        Some(length) => Framing::Length(length),
        None if asked.version == Version::HTTP_11 => Framing::Chunked,
        None => Framing::UntilClose,
    }
}

impl Upload {
    pub(crate) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Cut>>> {
        let mut line = self.line.borrow_mut();
        if line.turn == self.turn { line.poll_piece(cx) } else { Poll::Ready(None) }
    }

    pub(crate) fn is_over(&self) -> bool {
        let line = self.line.borrow();
        line.turn != self.turn || line.reading.is_over()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.line.borrow().reading.size_hint()
    }
}
