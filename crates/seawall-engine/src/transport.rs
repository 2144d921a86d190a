//! The HTTP transport of one call: sends its request to the upstream as often as the call machine decides. It keeps what a repetition
//! needs, and the last response. The credential is added last.

mod read_ahead;
mod repeated_secrets;

use crate::attempt::{AttemptRequest, KeyTail, Transport};
use crate::credential::{Credentials, OauthToken, Tokens};
use crate::mask::{Mask, Masked};
use crate::runtime::{LiveEndpoint, LiveUpstream};
use crate::schema::{Mismatch, Schema};
use crate::sender::Sending;
use crate::trace::{AttemptSpan, TRACEPARENT, TraceContext};
use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, response};
use http_body::Body;
use read_ahead::inflated;
use seawall_core::classify::HeaderLookup;
use seawall_core::classify::json::BODY_BYTES;
use seawall_core::request_target::RequestTarget;
use seawall_http::connection_pool::PooledSender;
use seawall_http::content_type::is_event_stream;
use seawall_http::fault::Fault;
use seawall_http::h1::{HeadWriter, Passes, RawRequestHeaders, RawResponseHeaders};
use seawall_http::h2::{H2Failure, absolute};
use seawall_http::query_parameter::QueryParameter;
use seawall_http::request_body::{Blame, Feed, Inbound, Limited, Outgoing};
use seawall_http::request_headers::RequestHeaders;
use seawall_http::response_body::{Arriving, Relay, read_up_to};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The number of the attempt, beyond the first. Sent only to upstreams that are a Seawall, so that they do not retry as well.
pub const REPEATED: HeaderName = HeaderName::from_static("seawall-attempt");

/// The request's body in a form that can be sent.
#[derive(Debug)]
pub enum ReplayBody {
    Empty,
    /// Small enough to be kept, so it can be sent again.
    Kept(Bytes),
    /// A stream that can be sent once and is watched meanwhile.
    Once(Option<Outgoing>, Feed),
}

impl ReplayBody {
    #[must_use]
    pub const fn is_replayable(&self) -> bool {
        !matches!(self, Self::Once(..))
    }

    /// Builds a body of which `ahead` has been read and `left` bytes may follow.
    #[must_use]
    pub fn once(ahead: Bytes, incoming: Inbound, left: u64) -> Self {
        let feed = Feed::default();
        Self::Once(Some(Outgoing::Stream(Some(ahead), Limited::new(incoming, left, feed.clone()))), feed)
    }

    /// Returns the whole body for a send, or `None` if it was streamed before: a partial body would not be the caller's.
    fn take(&mut self) -> Option<Outgoing> {
        match self {
            Self::Empty => Some(Outgoing::Empty),
            Self::Kept(bytes) => Some(Outgoing::Full(bytes.clone())),
            Self::Once(body, _) => body.take(),
        }
    }

    /// Takes back an unsent body. Returns whether it is complete, so that it can go over another connection.
    fn restore(&mut self, untouched: Option<Outgoing>) -> bool {
        if let Self::Once(body, _) = self {
            *body = untouched;
            return body.is_some();
        }
        true
    }
}

/// One request to one upstream.
#[derive(Debug)]
pub struct HttpTransport<'a> {
    pub sending: &'a Sending,
    pub upstream: &'a Arc<LiveUpstream>,
    pub endpoint: &'a Arc<LiveEndpoint>,
    pub method: Method,
    /// Path and query at the upstream's host, without the credential.
    pub target: RequestTarget,
    /// Without hop-by-hop headers and the caller's own credentials.
    pub headers: RequestHeaders,
    /// Our own conditions (`If-None-Match`, `If-Modified-Since`). They are apart from the caller's headers because their response is for
    /// us: a job or dead letter made from this request must not contain them.
    pub conditions: HeaderMap,
    /// Raw headers that precede them.
    pub unread: Option<RawRequestHeaders>,
    pub body: ReplayBody,
    pub answer: Option<UpstreamResponse>,
    /// The token of the last attempt, if the upstream uses tokens.
    pub token: Option<Arc<OauthToken>>,
    pub trace: Option<TraceContext>,
    /// The error of the last response, for the caller.
    pub detail: Option<Masked>,
    /// This much of a response is read before it counts as received; the whole body, if it will be stored. A break before that is a failure
    /// that can be retried.
    pub ahead: usize,
    /// Memory budget for long responses, if bounded.
    pub room: Option<Room>,
    /// If set, event streams are not read ahead: their callers want each event at once.
    pub spares_streams: bool,
    /// The body of an error response is read for diagnosis.
    pub diagnoses: bool,
    /// Selects response headers that may stay raw.
    pub passes: Option<Passes>,
    /// The sender of the request to us marked it as a repetition.
    pub repeated: bool,
    /// Sends of the last attempt that replaced a dead connection.
    pub resends: u32,
}

/// Memory budget for responses that are read ahead. Short ones are free. A longer one waits until its whole length fits, and holds that
/// budget until this is dropped.
#[derive(Debug)]
pub struct Room {
    of: Arc<Semaphore>,
    taken: Option<OwnedSemaphorePermit>,
}

impl Room {
    /// Responses up to this length are free.
    pub const FREE: usize = 64 * 1024;

    /// Each permit of `of` stands for one KiB.
    #[must_use]
    pub const fn new(of: Arc<Semaphore>) -> Self {
        Self { of, taken: None }
    }

    /// Returns the held permit, to be kept with the response.
    #[must_use]
    pub fn into_taken(self) -> Option<OwnedSemaphorePermit> {
        self.taken
    }

    async fn take(&mut self, bytes: usize) {
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        self.taken = Arc::clone(&self.of).acquire_many_owned(kib).await.ok();
    }
}

/// A response, and the part of its body that the rules have read.
#[derive(Debug)]
pub struct UpstreamResponse {
    /// Boxed from here to the caller: it is large and is moved often.
    pub response: Box<Response<Relay>>,
    /// Raw headers, if all of them may pass unparsed. Then the header map is empty.
    pub verbatim: Option<RawResponseHeaders>,
    legible: Bytes,
}

impl UpstreamResponse {
    /// Returns the decoded part of the body that was read ahead.
    #[must_use]
    pub const fn seen(&self) -> &Bytes {
        &self.legible
    }
}

impl HeaderLookup for UpstreamResponse {
    fn first(&self, name: &str) -> Option<&[u8]> {
        match &self.verbatim {
            Some(verbatim) => verbatim.first(name),
            None => self.response.headers().get(name).map(HeaderValue::as_bytes),
        }
    }
}

impl KeyTail for Arc<LiveUpstream> {
    fn tail(&self, key: u16) -> Option<Arc<str>> {
        self.credentials.as_ref()?.tail(key)
    }
}

impl<'a> HttpTransport<'a> {
    /// Adds the headers of this attempt to the request's own, including the credential. Except for `Accept-Encoding` with a schema, none of
    /// these names occurs in the request's own headers.
    fn additions(&self, attempt: AttemptRequest, mut put: impl FnMut(&HeaderName, &HeaderValue)) {
        for (name, value) in &self.conditions {
            put(name, value);
        }
        if let Some(name) = &self.endpoint.deadline_header {
            put(name, &HeaderValue::from(attempt.remaining.as_millis()));
        }
        if self.endpoint.schema.is_some() {
            // A compressed body cannot be checked.
            put(&ACCEPT_ENCODING, &HeaderValue::from_static("identity"));
        }
        if self.upstream.spec.seawall && (attempt.number > 1 || self.repeated) {
            put(&REPEATED, &HeaderValue::from(attempt.number.max(2)));
        }
        if let Some((name, value)) = self.credential(attempt) {
            put(name, value);
        }
        if let Some(span) = self.trace.as_ref().and_then(|trace| trace.attempt(attempt.number)) {
            put(&TRACEPARENT, &span);
        }
    }

    fn credential(&self, attempt: AttemptRequest) -> Option<(&HeaderName, &HeaderValue)> {
        let credentials = self.upstream.credentials.as_ref()?;
        match (attempt.key, &self.token) {
            (Some(key), _) => credentials.field(key),
            (None, Some(token)) => credentials.token_field(token),
            (None, None) => None,
        }
    }

    /// Returns the query parameter with the credential, if there is one.
    fn parameter(&self, attempt: AttemptRequest) -> Option<QueryParameter> {
        let credentials = self.upstream.credentials.as_ref()?;
        match (attempt.key, &self.token) {
            (Some(key), _) => credentials.query(key),
            (None, Some(token)) => credentials.query_token(token),
            (None, None) => None,
        }
    }

    /// Returns whether the method suggests a body, so that a server may require `Content-Length` (RFC 9110 §8.6).
    fn wants_length(&self) -> bool {
        matches!(self.method, Method::POST | Method::PUT | Method::PATCH)
    }

    fn write(&self, attempt: AttemptRequest, out: &mut HeadWriter<'_>) {
        out.line(&self.method, &self.target, self.parameter(attempt).as_ref());
        out.field(&HOST, &self.upstream.host);
        if let Some(unread) = &self.unread {
            unread.write(out);
        }
        let injected = self.upstream.credentials.as_ref().and_then(Credentials::header);
        for (name, value) in &*self.headers {
            // Our own header replaces one of the request.
            let is_replaced = injected == Some(name) || (self.endpoint.schema.is_some() && name == ACCEPT_ENCODING);
            if !is_replaced {
                out.field(name, value);
            }
        }
        self.additions(attempt, |name, value| out.field(name, value));
    }

    /// Builds the request for HTTP/2, which contains scheme and authority.
    fn request(&mut self, attempt: AttemptRequest) -> Result<Request<Outgoing>, Fault> {
        let mut headers = HeaderMap::clone(&self.headers);
        if let Some(unread) = &self.unread {
            unread.add_to_header_map(&mut headers);
        }
        self.additions(attempt, |name, value| drop(headers.insert(name, value.clone())));
        if matches!(self.body, ReplayBody::Empty) && self.wants_length() {
            headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        let path = match self.parameter(attempt).zip(self.target.joint()) {
            None => PathAndQuery::from_maybe_shared(Bytes::copy_from_slice(self.target.as_bytes())),
            Some((parameter, joint)) => {
                PathAndQuery::from_maybe_shared(Bytes::from(format!("{}{joint}{}", &*self.target, parameter.as_str())))
            }
        };
        let uri = absolute(&self.upstream.spec.url, &Uri::from(path.map_err(|_| Fault::GARBAGE)?));
        let mut request = Request::new(self.body.take().ok_or(Fault::RESET)?);
        (*request.method_mut(), *request.uri_mut(), *request.headers_mut()) = (self.method.clone(), uri, headers);
        Ok(request)
    }

    /// Sends over a pooled connection. If the server has closed that connection while it was idle, the send is repeated once on another;
    /// this does not count as an attempt.
    async fn exchange(&mut self, attempt: AttemptRequest) -> Result<(response::Parts, Option<RawResponseHeaders>, Arriving), Fault> {
        let Sending { pool, connector, .. } = self.sending;
        let (id, base, now) = (self.upstream.id, &self.upstream.spec.url, attempt.now.mono);
        let connect = self.endpoint.spec.policy.timeout.connect;
        // Headers stay raw only if no header decides how the body is read.
        let passes = self.passes.filter(|_| self.endpoint.schema.is_none() && !(self.ahead > 0 && self.spares_streams));
        let mut found = pool.idle(id, now);
        loop {
            let line = match found.take() {
                Some(line) => line,
                None => match pool.connect_new(id, base, connector, connect).await {
                    Ok(line) => line,
                    Err(error) => {
                        self.detail = error.detail.map(Masked::own_words);
                        return Err(error.fault);
                    }
                },
            };
            let (mut lent, reused) = match line {
                PooledSender::H1 { lent, reused } => (lent, reused),
                PooledSender::H2 { mut shared, reused } => {
                    // Boxed, since most attempts use HTTP/1 and should not carry its size.
                    match Box::pin(shared.send(self.request(attempt)?)).await {
                        Ok((head, incoming)) => return Ok((head, None, Arriving::H2(incoming))),
                        Err(H2Failure { unsent: Some(body), fault }) => {
                            if !self.body.restore(Some(body)) || !reused {
                                return Err(fault);
                            }
                        }
                        Err(H2Failure { fault, .. }) => return Err(fault),
                    }
                    continue;
                }
            };
            let body = self.body.take().ok_or(Fault::RESET)?;
            let start = body.start();
            lent.conn().begin(body, start, self.wants_length(), |out| self.write(attempt, out));
            match lent.conn().answer(self.method == Method::HEAD, passes).await {
                Ok((head, verbatim)) => return Ok((head, verbatim, Arriving::H1(lent))),
                Err(_) if reused && !lent.conn().has_sent() && self.body.restore(lent.conn().take_untouched_body()) => {}
                // The server closed during our write: a repetition is safe only if the request changes nothing.
                Err(Fault::RESET) if reused && self.is_harmless() => self.resends += 1,
                Err(fault) => return Err(fault),
            }
        }
    }

    fn tokens(&self) -> Option<&'a Arc<Tokens>> {
        let upstream: &'a Arc<LiveUpstream> = self.upstream;
        upstream.credentials.as_ref()?.tokens.as_ref()
    }

    /// Ensures that there is a token if one is needed, and a newer one than `rejected`.
    async fn authorize(&mut self, rejected: Option<&OauthToken>) -> Result<(), Fault> {
        let Some(tokens) = self.tokens() else { return Ok(()) };
        // Cleared first: a timeout during this wait is caused by the token provider.
        self.token = None;
        match Box::pin(tokens.token(self.sending, rejected)).await {
            Ok(token) => self.token = Some(token),
            Err(denied) => {
                self.detail = Some(denied.why);
                return Err(denied.fault);
            }
        }
        Ok(())
    }

    fn mismatched(&mut self, mismatch: Mismatch) -> Fault {
        let (why, fault) = match mismatch {
            Mismatch::NotJson(why) => (why, Fault::GARBAGE),
            Mismatch::Shape(why) => (why, Fault::SCHEMA),
        };
        self.detail = Some(self.mask().words(why.as_bytes()));
        fault
    }

    /// Reads up to `most` bytes of a body, once they fit into the memory budget. The wait counts as part of the attempt, like a slow
    /// upstream.
    async fn read_ahead(&mut self, incoming: &mut Arriving, most: usize) -> Result<Bytes, Fault> {
        let Some(room) = self.room.as_mut().filter(|_| most > Room::FREE) else { return read_up_to(incoming, most).await };
        let first = read_up_to(incoming, Room::FREE).await?;
        if first.len() < Room::FREE || incoming.is_end_stream() {
            return Ok(first);
        }
        room.take(most).await;
        let mut whole = BytesMut::with_capacity(first.len() * 2);
        whole.extend_from_slice(&first);
        whole.extend_from_slice(&read_up_to(incoming, most - first.len().min(most)).await?);
        Ok(whole.freeze())
    }

    fn is_harmless(&self) -> bool {
        self.body.is_replayable() && self.method.is_safe()
    }
}

impl Transport for HttpTransport<'_> {
    async fn send(&mut self, attempt: AttemptRequest) -> Result<(), Fault> {
        self.answer = None;
        self.detail = None;
        self.resends = 0;
        if let Some(room) = &mut self.room {
            room.taken = None;
        }
        self.authorize(None).await?;
        let (mut head, mut verbatim, mut incoming) = self.exchange(attempt).await?;
        if let Some(credentials) = &self.upstream.credentials {
            let probe = credentials.probe(attempt.key, self.token.as_deref());
            repeated_secrets::strip(credentials, probe, &mut head.headers, &mut verbatim);
            repeated_secrets::strip_reason(credentials, &mut head.extensions);
        }
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            // A protocol switch that we never asked for; what follows is not HTTP that we could relay.
            return Err(Fault::GARBAGE);
        }
        // An event stream is no error document, and reading ahead would delay its events.
        let is_series = || head.status.is_success() && is_event_stream(content_type(&head.headers, verbatim.as_ref()));
        let reads_body = self.endpoint.plan.rules.needs_body(self.method.as_str(), Ok(head.status.as_u16())) && !is_series();
        let reads_failure = self.diagnoses && head.status.as_u16() >= 400;
        if (reads_body || reads_failure)
            && let Some(verbatim) = verbatim.take()
        {
            verbatim.add_to_header_map(&mut head.headers);
        }
        let seen;
        let mut is_for_rules = true;
        if let Some(schema) = self.endpoint.schema.as_ref().filter(|_| has_shape(&self.method, head.status)) {
            seen = match checked(schema, &head.headers, &mut incoming).await? {
                Ok(seen) => seen,
                Err(mismatch) => return Err(self.mismatched(mismatch)),
            };
        } else if reads_body {
            let ahead = if self.spares_streams && is_stream(&head.headers) { 0 } else { self.ahead };
            seen = self.read_ahead(&mut incoming, BODY_BYTES.max(ahead)).await?;
        } else if self.ahead > 0 && !(self.spares_streams && is_stream(&head.headers)) {
            seen = self.read_ahead(&mut incoming, self.ahead).await?;
        } else if reads_failure {
            seen = read_up_to(&mut incoming, BODY_BYTES).await?;
        } else {
            is_for_rules = false;
            let most = self.endpoint.spec.policy.read_ahead;
            seen = if most == 0 || incoming.is_end_stream() || incoming.is_here() {
                Bytes::new()
            } else {
                read_ahead::small(&mut incoming, content_type(&head.headers, verbatim.as_ref()), most, &self.sending.clock).await?
            };
        }
        let coding = || match &verbatim {
            Some(verbatim) => verbatim.first(CONTENT_ENCODING.as_str()),
            None => head.headers.get(CONTENT_ENCODING).map(HeaderValue::as_bytes),
        };
        let legible = if seen.is_empty() || !is_for_rules { None } else { coding().and_then(|coding| inflated(coding, &seen)) };
        let legible = legible.unwrap_or_else(|| seen.clone());
        let response = Box::new(Response::from_parts(head, Relay::new(seen, incoming, self.endpoint.spec.policy.timeout)));
        self.answer = Some(UpstreamResponse { response, verbatim, legible });
        Ok(())
    }

    fn answer(&self) -> Option<(u16, &dyn HeaderLookup, &[u8])> {
        let answer = self.answer.as_ref()?;
        Some((answer.response.status().as_u16(), answer, &answer.legible))
    }

    /// Masks our credentials and secrets of the caller.
    fn mask(&self) -> Mask {
        let own = self.upstream.credentials.as_ref().map(Credentials::mask).unwrap_or_default();
        let headers = self.headers.iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
        own.and_request(headers, &self.target)
    }

    fn blame(&self, fault: Fault) -> Option<Blame> {
        match &self.body {
            ReplayBody::Once(_, feed) => feed.blame(fault),
            ReplayBody::Empty | ReplayBody::Kept(_) => None,
        }
    }

    fn body_bytes(&self) -> u64 {
        let kept = match &self.body {
            ReplayBody::Kept(bytes) | ReplayBody::Once(Some(Outgoing::Full(bytes) | Outgoing::Stream(Some(bytes), _)), _) => bytes.len(),
            ReplayBody::Empty | ReplayBody::Once(..) => 0,
        };
        u64::try_from(kept).unwrap_or(u64::MAX)
    }

    fn is_abandoned(&self) -> bool {
        matches!(&self.body, ReplayBody::Once(Some(Outgoing::Stream(_, rest)), _) if rest.is_abandoned())
    }

    fn upload(&self) -> Option<Feed> {
        match &self.body {
            ReplayBody::Once(_, feed) => Some(feed.clone()),
            ReplayBody::Empty | ReplayBody::Kept(_) => None,
        }
    }

    fn span(&self, attempt: u32) -> Option<AttemptSpan> {
        Some(self.trace.as_ref()?.span(attempt))
    }

    fn resends(&self) -> u32 {
        self.resends
    }

    fn detail(&self) -> Option<&Masked> {
        self.detail.as_ref()
    }

    fn explain(&mut self, detail: Masked) {
        self.detail = Some(detail);
    }

    fn overdue(&mut self) -> Fault {
        match self.tokens() {
            Some(tokens) if self.token.is_none() => {
                let late = tokens.unavailable("did not answer in time");
                self.detail = Some(late.why);
                Fault::UNRELATED_TIMEOUT
            }
            Some(_) | None => Fault::TIMEOUT,
        }
    }

    async fn refresh(&mut self) -> bool {
        let rejected = self.token.take();
        self.authorize(rejected.as_deref()).await.is_ok()
    }
}

/// Returns whether the schema applies to a response: a success with a body.
fn has_shape(method: &Method, status: StatusCode) -> bool {
    status.is_success() && method != Method::HEAD && status != StatusCode::NO_CONTENT && status != StatusCode::RESET_CONTENT
}

fn content_type<'a>(headers: &'a HeaderMap, verbatim: Option<&'a RawResponseHeaders>) -> &'a [u8] {
    let kind = match verbatim {
        Some(verbatim) => verbatim.first(CONTENT_TYPE.as_str()),
        None => headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes),
    };
    kind.unwrap_or_default()
}

fn is_stream(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| is_event_stream(kind.as_bytes()))
}

/// Returns the whole body if it matches the schema.
async fn checked(schema: &Schema, headers: &HeaderMap, incoming: &mut Arriving) -> Result<Result<Bytes, Mismatch>, Fault> {
    if headers.get(CONTENT_ENCODING).is_some_and(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Ok(Err(Mismatch::unreadable("it is compressed although it was asked not to be")));
    }
    let most = usize::try_from(schema.most).unwrap_or(usize::MAX);
    let body = read_up_to(incoming, most.saturating_add(1)).await?;
    if body.len() > most {
        return Ok(Err(Mismatch::unreadable("it is larger than `max_body`")));
    }
    Ok(schema.check(&body).map(|()| body))
}

#[cfg(test)]
mod tests;
