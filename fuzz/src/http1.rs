//! What must hold of HTTP/1 on both sides, whatever arrives. Fuzz targets feed bytes to these functions, and a test on stable feeds the
//! committed corpora to them.

use http::{HeaderMap, Method, Version};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use seawall_http::h1::fuzzing::{FuzzEnd, FuzzInput, FuzzMessage, requests, responses};
use std::cell::RefCell;
use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Longer inputs find nothing that shorter ones do not.
const MAX_INPUT: usize = 256 * 1024;

/// Bytes of requests: the first byte says in which pieces they arrive, the rest is what arrives.
pub fn request_heads(data: &[u8]) {
    let Some((step, bytes)) = split(data) else { return };
    let whole = alike(bytes, step, requests);
    for message in &whole.0 {
        assert_request(bytes, message);
    }
}

/// Bytes of responses, in the same form.
pub fn response_heads(data: &[u8]) {
    let Some((step, bytes)) = split(data) else { return };
    for to_head in [false, true] {
        let read = alike(bytes, step, |arrival| responses(arrival, to_head, None));
        // Headers that are left as they came are those that would have been read.
        let left = alike(bytes, step, |arrival| responses(arrival, to_head, Some(|_| true)));
        assert_eq!(comparable(&read), comparable(&left), "read and left as it came");
        for message in read.0.iter().chain(&left.0) {
            assert_response(bytes, message, to_head);
        }
    }
}

/// The body of a request, and whatever follows it: the first byte says in which pieces it arrives, the second how long the body is.
pub fn request_bodies(data: &[u8]) {
    let Some((step, bytes)) = framed(data, "POST /first HTTP/1.1\r\nhost: h\r\n") else { return };
    let ours = alike(&bytes, step, requests);
    let theirs = hyper_requests(&bytes);
    for (at, message) in ours.0.iter().enumerate().filter(|(_, message)| message.is_whole) {
        let Some(other) = theirs.get(at) else { panic!("hyper reads no request {at}: {message:?}") };
        let own = (message.head.method.clone(), message.head.uri.to_string(), message.head.version, message.body.clone());
        assert_eq!(&own, other, "hyper reads another request");
        if message.head.method == Method::CONNECT {
            return;
        }
    }
}

/// The body of a response, in the same form.
pub fn response_bodies(data: &[u8]) {
    let Some((step, bytes)) = framed(data, "HTTP/1.1 200 OK\r\n") else { return };
    let ours = alike(&bytes, step, |arrival| responses(arrival, false, None));
    let first = &ours.0[0];
    let other = hyper_response(&bytes);
    if first.is_whole {
        assert_eq!(Some(&first.body), other.as_ref(), "hyper reads another body");
    }
}

fn split(data: &[u8]) -> Option<(usize, &[u8])> {
    let (step, bytes) = data.split_first().filter(|_| data.len() <= MAX_INPUT)?;
    Some((usize::from(*step), bytes))
}

/// A head that announces a body, and the bytes behind it. A second byte up to `9` and from `a` on is a length, any other means chunks.
fn framed(data: &[u8], head: &str) -> Option<(usize, Vec<u8>)> {
    let (step, rest) = split(data)?;
    let (kind, rest) = rest.split_first()?;
    let framing = match kind {
        b'0'..=b'9' => format!("content-length: {}\r\n\r\n", kind - b'0'),
        b'a'..=b'z' => format!("content-length: {}\r\n\r\n", 1 << (kind - b'a').min(20)),
        _ => "transfer-encoding: chunked\r\n\r\n".to_owned(),
    };
    Some((step, [head.as_bytes(), framing.as_bytes(), rest].concat()))
}

type Read<Head> = (Vec<FuzzMessage<Head>>, FuzzEnd);

/// Reads what arrives at once and in pieces. The messages are the same, and so are the bytes of their bodies; only bytes that never
/// become a head may be refused at another moment.
fn alike<Head: std::fmt::Debug>(bytes: &[u8], step: usize, read: impl Fn(FuzzInput<'_>) -> Read<Head>) -> Read<Head> {
    let whole = read(FuzzInput { bytes, sizes: &[], closes: true });
    assert_in_order(bytes, &whole);
    let sizes: [&[usize]; 3] = [&[1], &[step], &[step, 1, 7, step / 2]];
    // Byte by byte only where it is over soon.
    for sizes in &sizes[usize::from(bytes.len() > 4096)..] {
        let cut = read(FuzzInput { bytes, sizes, closes: true });
        assert_eq!(comparable(&cut), comparable(&whole), "in pieces of {sizes:?} and at once");
    }
    // Without an end that somebody has to wait for, nothing else is read.
    let open = read(FuzzInput { bytes, sizes: &[], closes: false });
    let (mut open, mut whole_messages) = (comparable(&open), comparable(&whole));
    for messages in [&mut open.0, &mut whole_messages.0] {
        messages.retain(|(.., is_whole)| *is_whole);
    }
    assert!(whole_messages.0.len() - open.0.len() <= 1, "an end completes one message at most");
    whole_messages.0.truncate(open.0.len());
    assert_eq!(open.0, whole_messages.0, "with and without an end");
    whole
}

/// What a reading comes to.
type Comparable = (Vec<(String, HeaderMap, Vec<u8>, bool)>, Option<usize>, bool);

fn comparable<Head: std::fmt::Debug>((messages, end): &Read<Head>) -> Comparable {
    let messages = messages.iter().map(|message| {
        let FuzzMessage { place, headers, body, is_whole, .. } = message;
        (format!("{place:?}"), headers.clone(), body.clone(), *is_whole)
    });
    let unread = if let FuzzEnd::Last { unread } = end { Some(*unread) } else { None };
    (messages.collect(), unread, *end == FuzzEnd::Closed)
}

/// Messages follow each other and lie within what arrived.
fn assert_in_order<Head>(bytes: &[u8], (messages, _): &Read<Head>) {
    let mut end = 0;
    for message in messages {
        assert!(end <= message.place.start && message.place.start < message.place.end);
        end = message.place.end + message.body.len();
        assert!(end <= bytes.len());
    }
}

/// Header lines as another reader gives them, but for those that are the hop's own.
fn fields<'a>(lines: impl IntoIterator<Item = (String, &'a [u8])>) -> Vec<(String, Vec<u8>)> {
    let mut fields: Vec<_> = lines
        .into_iter()
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .filter(|(name, _)| name != "connection" && name != "content-length")
        .collect();
    fields.sort();
    fields
}

fn of_map(headers: &HeaderMap) -> Vec<(String, Vec<u8>)> {
    fields(headers.iter().map(|(name, value)| (name.to_string(), value.as_bytes())))
}

fn of_list(headers: &[httparse::Header<'_>]) -> Vec<(String, Vec<u8>)> {
    fields(headers.iter().map(|header| (header.name.to_owned(), header.value)))
}

/// Asserts that httparse reads the same request out of the same bytes, and no other headers out of what goes on.
fn assert_request(bytes: &[u8], message: &FuzzMessage<http::request::Parts>) {
    let head = &bytes[message.place.clone()];
    let mut space = [httparse::EMPTY_HEADER; 256];
    let mut other = httparse::Request::new(&mut space);
    assert_eq!(other.parse(head), Ok(httparse::Status::Complete(head.len())), "{message:?}");
    assert_eq!(other.method, Some(message.head.method.as_str()));
    assert_eq!(other.version, Some(u8::from(message.head.version == Version::HTTP_11)));
    let target = other.path.and_then(|path| path.split('#').next());
    if other.path.is_some_and(|path| path.starts_with('/')) {
        assert_eq!(target, Some(message.head.uri.to_string().as_str()));
    }
    assert_eq!(of_list(other.headers), of_map(&message.headers));
    assert_length(other.headers, message.is_whole.then_some(message.body.len()), &message.headers);
    let mut headers = message.headers.clone();
    headers.remove("host");
    assert_relayed(&message.relayed, &headers, "host");
}

/// Asserts the same of a response.
fn assert_response(bytes: &[u8], message: &FuzzMessage<http::response::Parts>, to_head: bool) {
    let head = &bytes[message.place.clone()];
    let mut space = [httparse::EMPTY_HEADER; 512];
    let mut other = httparse::Response::new(&mut space);
    assert_eq!(other.parse(head), Ok(httparse::Status::Complete(head.len())), "{message:?}");
    assert_eq!(other.code, Some(message.head.status.as_u16()));
    assert_eq!(other.version, Some(u8::from(message.head.version == Version::HTTP_11)));
    assert_eq!(of_list(other.headers), of_map(&message.headers));
    let has_body = !to_head && !message.head.status.is_informational() && !matches!(message.head.status.as_u16(), 204 | 304);
    assert_length(other.headers, (has_body && message.is_whole).then_some(message.body.len()), &message.headers);
    assert_relayed(&message.relayed, &message.headers, "");
}

/// Asserts that every `Content-Length` is a number, and that a body is as long, unless there is a coding.
fn assert_length(headers: &[httparse::Header<'_>], body: Option<usize>, map: &HeaderMap) {
    if map.contains_key("transfer-encoding") {
        return;
    }
    for header in headers.iter().filter(|header| header.name.eq_ignore_ascii_case("content-length")) {
        for length in header.value.split(|byte| *byte == b',') {
            let length = std::str::from_utf8(length).unwrap().trim_matches([' ', '\t']);
            // To Rust `+5` is a number too.
            assert!(length.bytes().all(|byte| byte.is_ascii_digit()), "{length}");
            let length: u64 = length.parse().unwrap();
            assert!(body.is_none_or(|body| body as u64 == length), "{length} {body:?}");
        }
    }
}

/// Asserts that header lines which go on are one head with these headers, to a reader that knows nothing of where they came from.
fn assert_relayed(lines: &[u8], headers: &HeaderMap, without: &str) {
    let head = [b"HTTP/1.1 200 OK\r\n", lines, b"\r\n"].concat();
    let mut space = [httparse::EMPTY_HEADER; 512];
    let mut other = httparse::Response::new(&mut space);
    assert_eq!(other.parse(&head), Ok(httparse::Status::Complete(head.len())), "{:?}", String::from_utf8_lossy(lines));
    let mut relayed = of_list(other.headers);
    relayed.retain(|(name, _)| name != without);
    assert_eq!(relayed, of_map(headers));
}

/// A socket that takes everything. What it gives has arrived when it is opened, which a client's is with its first write.
struct Memory<'a> {
    rest: &'a [u8],
    is_open: bool,
}

impl hyper::rt::Read for Memory<'_> {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, mut buffer: hyper::rt::ReadBufCursor<'_>) -> Poll<std::io::Result<()>> {
        if !self.is_open {
            return Poll::Pending;
        }
        let (piece, rest) = self.rest.split_at(self.rest.len().min(buffer.remaining()));
        buffer.put_slice(piece);
        self.rest = rest;
        Poll::Ready(Ok(()))
    }
}

impl hyper::rt::Write for Memory<'_> {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        self.is_open = true;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

type Heard = (Method, String, Version, Vec<u8>);

/// Requests as hyper reads them, each with a whole body.
fn hyper_requests(bytes: &[u8]) -> Vec<Heard> {
    let heard = Rc::new(RefCell::new(Vec::new()));
    let service = service_fn(|request: Request<Incoming>| {
        let heard = Rc::clone(&heard);
        async move {
            let (parts, body) = request.into_parts();
            if let Ok(body) = body.collect().await {
                heard.borrow_mut().push((parts.method, parts.uri.to_string(), parts.version, body.to_bytes().to_vec()));
            }
            Ok::<_, Infallible>(Response::new(String::new()))
        }
    });
    let io = Memory { rest: bytes, is_open: true };
    let mut connection = hyper::server::conn::http1::Builder::new().half_close(true).serve_connection(io, service);
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..10_000 {
        if Pin::new(&mut connection).poll(&mut cx).is_ready() {
            break;
        }
    }
    drop(connection);
    heard.take()
}

/// The body of the first response as hyper reads it, where that came to its end.
fn hyper_response(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut cx = Context::from_waker(Waker::noop());
    let io = Memory { rest: bytes, is_open: false };
    let mut shake = Box::pin(hyper::client::conn::http1::handshake::<_, String>(io));
    let Poll::Ready(Ok((mut sender, mut connection))) = shake.as_mut().poll(&mut cx) else { return None };
    let request = Request::get("/").header("host", "h").body(String::new()).unwrap();
    let mut exchange = Box::pin(async move { sender.send_request(request).await.ok()?.into_body().collect().await.ok() });
    // Nothing is waited for but each other's turn.
    for _ in 0..10_000 {
        if let Poll::Ready(body) = exchange.as_mut().poll(&mut cx) {
            return body.map(|body| body.to_bytes().to_vec());
        }
        if Pin::new(&mut connection).poll(&mut cx).is_ready() {
            break;
        }
    }
    match exchange.as_mut().poll(&mut cx) {
        Poll::Ready(body) => body.map(|body| body.to_bytes().to_vec()),
        Poll::Pending => None,
    }
}
