//! Responses of our own: problem+json (RFC 9457) or the provider's format with a code, `Proxy-Status` (RFC 9209), and `Retry-After`.

use crate::error_shape::{self, OwnError};
use crate::figures::ConfigProblem;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, RETRY_AFTER, VIA, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use seawall_core::call::{CallEnd, Outcome};
use seawall_core::id::CallId;
use seawall_core::policy::ErrorShape;
use seawall_core::record::{Code, Reason};
use seawall_core::time::{Nanos, Wall};
use seawall_engine::driver::Finished;
use seawall_engine::runtime::LiveEndpoint;
use seawall_http::fault::Fault;
use seawall_http::h1::{HeadWriter, RawResponseHeaders};
use seawall_http::response_body::Relay;
use serde::Serialize;
use std::cell::RefCell;
use std::ops::Range;
use utoipa::ToSchema;

pub(crate) const CALL: HeaderName = HeaderName::from_static("seawall-call");
pub(crate) const ATTEMPTS: HeaderName = HeaderName::from_static("seawall-attempts");
pub(crate) const OUTCOME: HeaderName = HeaderName::from_static("seawall-outcome");
const REASON: HeaderName = HeaderName::from_static("seawall-reason");
const WAITED: HeaderName = HeaderName::from_static("seawall-waited-ms");
/// The `seawall-call` header line, and the range of the id in it.
const SIGNED_CALL: &[u8; 42] = b"seawall-call: 00000000000000000000000000\r\n";
const SIGNED_CALL_ID: Range<usize> = 14..40;
const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// A response to a caller, with our own headers if they are not in its header map yet. Writing a header to the wire directly is cheaper
/// than inserting it first.
#[derive(Debug)]
pub(crate) struct CallerResponse {
    pub response: Box<Response<Relay>>,
    /// Further headers in raw form.
    pub verbatim: Option<RawResponseHeaders>,
    pub signed: Option<SignedHeaders>,
}

impl CallerResponse {
    /// Merges all headers into the header map.
    pub(crate) fn whole(mut self) -> Response<Relay> {
        if let Some(verbatim) = self.verbatim {
            verbatim.add_to_header_map(self.response.headers_mut());
        }
        if let Some(signed) = self.signed {
            signed.put(self.response.headers_mut());
        }
        *self.response
    }
}

impl From<Response<Relay>> for CallerResponse {
    fn from(response: Response<Relay>) -> Self {
        Self { response: Box::new(response), verbatim: None, signed: None }
    }
}

/// Our own headers of a call's response.
#[derive(Debug)]
pub(crate) struct SignedHeaders {
    pub call: CallId,
    pub attempts: u32,
    pub outcome: &'static str,
    /// The reason why a failed call was not retried.
    pub reason: Option<&'static str>,
    /// Time that the call waited for a key, a pause or a breaker.
    pub waited: Nanos,
    /// `RateLimit-Policy` and `RateLimit` of a limited endpoint.
    pub rate_limit: Option<Box<(String, String)>>,
    /// `Via`, if the response does not contain it yet.
    pub via: Option<HeaderValue>,
}

impl SignedHeaders {
    pub(crate) fn of(call: CallId, ended: &Finished, outcome: &'static str) -> Self {
        let CallEnd { attempts, waited, reason, .. } = ended.finish;
        let reason = (ended.finish.outcome != Outcome::Success).then(|| explained(reason));
        Self { call, attempts, outcome, reason, waited, rate_limit: ended.rate_limit.clone(), via: None }
    }

    /// Attaches our headers to a response. They replace headers of the upstream by the same names.
    pub(crate) fn onto(self, mut response: Box<Response<Relay>>, mut verbatim: Option<RawResponseHeaders>) -> CallerResponse {
        if self.rate_limit.is_some()
            && let Some(verbatim) = verbatim.take()
        {
            verbatim.add_to_header_map(response.headers_mut());
        }
        for (name, _) in self.limits() {
            response.headers_mut().remove(name);
        }
        CallerResponse { response, verbatim, signed: Some(self) }
    }

    pub(crate) fn put(self, headers: &mut HeaderMap) {
        if let Ok(value) = HeaderValue::from_bytes(&self.call.text()) {
            headers.insert(CALL, value);
        }
        headers.insert(ATTEMPTS, count(self.attempts));
        headers.insert(OUTCOME, HeaderValue::from_static(self.outcome));
        if let Some(reason) = self.reason {
            headers.insert(REASON, HeaderValue::from_static(reason));
        }
        if let Some(waited) = self.waited_ms() {
            headers.insert(WAITED, HeaderValue::from(waited));
        }
        for (name, text) in self.limits() {
            if let Ok(value) = HeaderValue::from_str(text) {
                headers.insert(name, value);
            }
        }
        if let Some(via) = self.via {
            headers.append(VIA, via);
        }
    }

    pub(crate) fn write(&self, out: &mut HeadWriter<'_>) {
        let mut call = *SIGNED_CALL;
        call[SIGNED_CALL_ID].copy_from_slice(&self.call.text());
        out.lines(&call);
        if self.attempts == 1 && self.outcome == "success" {
            // Fast path: the most frequent result is a single copy.
            out.lines(b"seawall-attempts: 1\r\nseawall-outcome: success\r\n");
        } else {
            out.field(&ATTEMPTS, &count(self.attempts));
            out.bytes(&OUTCOME, self.outcome.as_bytes());
        }
        if let Some(reason) = self.reason {
            out.bytes(&REASON, reason.as_bytes());
        }
        if let Some(waited) = self.waited_ms() {
            out.field(&WAITED, &HeaderValue::from(waited));
        }
        for (name, text) in self.limits() {
            out.bytes(&name, text.as_bytes());
        }
        if let Some(via) = &self.via {
            out.field(&VIA, via);
        }
    }

    /// Rounds up, so that a wait is never shown as zero.
    fn waited_ms(&self) -> Option<u64> {
        (self.waited > Nanos::ZERO).then(|| self.waited.0.div_ceil(1_000_000))
    }

    fn limits(&self) -> impl Iterator<Item = (HeaderName, &String)> {
        let pair = |(policy, limit)| [(RATE_LIMIT_POLICY, policy), (RATE_LIMIT, limit)];
        self.rate_limit.as_deref().map(|(policy, limit)| pair((policy, limit))).into_iter().flatten()
    }
}

/// Returns the reason as callers read it. Only a method that may not be repeated without a key ends with `not_idempotent`.
const fn explained(reason: Reason) -> &'static str {
    match reason {
        Reason::NotIdempotent => "post_without_key",
        reason => reason.as_str(),
    }
}

/// The value of the `Date` header, formatted once per second.
#[derive(Debug)]
pub(crate) struct HttpDate(RefCell<(i64, HeaderValue)>);

impl Default for HttpDate {
    fn default() -> Self {
        Self(RefCell::new((i64::MIN, HeaderValue::from_static(""))))
    }
}

impl HttpDate {
    pub(crate) fn at(&self, now: Wall) -> HeaderValue {
        let second = now.0.div_euclid(1000);
        let mut date = self.0.borrow_mut();
        if date.0 != second
            && let Ok(value) = HeaderValue::from_str(&now.http_date())
        {
            *date = (second, value);
        }
        date.1.clone()
    }
}

/// An error response of our own.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub status: u16,
    pub code: &'static str,
    pub detail: String,
    pub retry_after: Option<Nanos>,
    pub token: &'static str,
    pub upstream: Option<String>,
    pub endpoint: Option<String>,
    pub call: Option<String>,
    pub attempts: u32,
    /// The reason in the log for a request that never became a call.
    pub reason: Reason,
    /// The error format of the upstream's clients.
    shape: ErrorShape,
    close: bool,
    /// The problems of a configuration file.
    problems: Vec<ConfigProblem>,
}

/// A refusal (RFC 9457).
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemDocument<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    code: &'a str,
    error: &'a str,
    upstream: Option<&'a str>,
    endpoint: Option<&'a str>,
    call: Option<&'a str>,
    attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    retry_after_seconds: Option<u64>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    problems: &'a [ConfigProblem],
}

impl Refusal {
    /// Builds a refusal with a code of the admin API.
    pub(crate) fn plain(status: u16, code: &'static str, detail: &str) -> Self {
        Self {
            status,
            code,
            detail: detail.to_owned(),
            retry_after: None,
            token: "http_request_error",
            upstream: None,
            endpoint: None,
            call: None,
            attempts: 0,
            reason: Reason::TurnedAway,
            shape: ErrorShape::Problem,
            close: false,
            problems: Vec::new(),
        }
    }

    pub(crate) fn code(status: u16, code: Code, detail: &str) -> Self {
        Self::plain(status, code.as_str(), detail)
    }

    /// Builds the refusal for a call without a response of the upstream.
    pub(crate) fn of(code: Code, fault: Option<Fault>) -> Self {
        let (status, detail) = describe(code);
        let mut refusal = Self::code(status, code, detail);
        refusal.token = match (code, fault) {
            (Code::UpstreamUnreachable | Code::DeadlineExceeded | Code::SchemaMismatch, Some(fault)) => fault.token,
            (Code::DeadlineExceeded, None) => "http_response_timeout",
            (Code::CircuitOpen | Code::Paused | Code::KeysExhausted | Code::KeysRejected, _) => "destination_unavailable",
            (Code::Overloaded, _) => "connection_limit_reached",
            _ => "http_request_denied",
        };
        if (code, fault) == (Code::UpstreamUnreachable, Some(Fault::UNRELATED)) {
            NOT_ASKED.clone_into(&mut refusal.detail);
        }
        refusal
    }

    #[must_use]
    pub(crate) const fn closing(mut self) -> Self {
        self.close = true;
        self
    }

    /// Sets the error format of this endpoint.
    #[must_use]
    pub(crate) fn shaped(mut self, endpoint: Option<&LiveEndpoint>) -> Self {
        if let Some(endpoint) = endpoint {
            self.shape = endpoint.spec.policy.error_shape;
        }
        self
    }

    /// Marks the refusal as a response to a call of this endpoint.
    #[must_use]
    pub(crate) fn at(mut self, endpoint: &LiveEndpoint) -> Self {
        self.upstream = Some(endpoint.names.upstream.clone());
        self.endpoint = Some(endpoint.names.endpoint.clone());
        self.shaped(Some(endpoint))
    }

    #[must_use]
    pub(crate) fn with(mut self, problems: Vec<ConfigProblem>) -> Self {
        self.problems = problems;
        self
    }

    #[must_use]
    pub(crate) const fn retry_after(mut self, wait: Option<Nanos>) -> Self {
        self.retry_after = wait;
        self
    }

    /// Adds the detail that is known about this failure.
    #[must_use]
    pub(crate) fn because(mut self, detail: Option<&str>) -> Self {
        if let Some(detail) = detail.filter(|_| self.detail == UNREACHABLE) {
            // The cause alone says enough.
            detail.clone_into(&mut self.detail);
        } else if let Some(detail) = detail {
            self.detail = format!("{}: {detail}", self.detail);
        }
        self
    }

    /// Returns whole seconds, rounded up, at least one, so that no caller returns too early.
    fn seconds(&self) -> Option<u64> {
        self.retry_after.map(|wait| wait.as_secs_ceil().max(1))
    }

    fn document(&self) -> Vec<u8> {
        let title = StatusCode::from_u16(self.status).ok().and_then(|status| status.canonical_reason()).unwrap_or("Error");
        let document = ProblemDocument {
            r#type: format!("urn:seawall:{}", self.code),
            title,
            status: self.status,
            detail: &self.detail,
            code: self.code,
            error: self.code,
            upstream: self.upstream.as_deref(),
            endpoint: self.endpoint.as_deref(),
            call: self.call.as_deref(),
            attempts: self.attempts,
            retry_after_seconds: self.seconds(),
            problems: &self.problems,
        };
        self.document_as(&document).unwrap_or_default()
    }

    fn document_as(&self, problem: &ProblemDocument<'_>) -> serde_json::Result<Vec<u8>> {
        if self.shape == ErrorShape::Problem {
            return serde_json::to_vec(problem);
        }
        let error = self.own_error();
        if let Some(xml) = error.xml(self.shape) {
            return Ok(xml.into_bytes());
        }
        let mut document = serde_json::to_value(problem)?;
        if let Some(members) = document.as_object_mut() {
            error.add_members(self.shape, members);
        }
        serde_json::to_vec(&document)
    }

    fn own_error(&self) -> OwnError<'_> {
        let Self { status, code, retry_after, .. } = *self;
        OwnError { status, code, detail: &self.detail, retry_after, call: self.call.as_deref() }
    }

    /// Encodes the whole response, for input that never became a request.
    pub(crate) fn wire(&self, now: Wall) -> Bytes {
        let response = self.respond();
        let status = response.status();
        let mut wire = format!("HTTP/1.1 {} {}\r\n", status.as_u16(), status.canonical_reason().unwrap_or("")).into_bytes();
        for (name, value) in response.headers() {
            wire.extend_from_slice(name.as_str().as_bytes());
            wire.extend_from_slice(b": ");
            wire.extend_from_slice(value.as_bytes());
            wire.extend_from_slice(b"\r\n");
        }
        wire.extend_from_slice(format!("date: {}\r\n", now.http_date()).as_bytes());
        let document = self.document();
        wire.extend_from_slice(format!("content-length: {}\r\n\r\n", document.len()).as_bytes());
        wire.extend_from_slice(&document);
        Bytes::from(wire)
    }

    pub(crate) fn respond(&self) -> Response<Relay> {
        self.respond_as(Relay::Full)
    }

    /// Builds the response with the body type of the calling server.
    pub(crate) fn respond_as<B>(&self, body: impl FnOnce(Bytes) -> B) -> Response<B> {
        let mut response = Response::new(body(Bytes::from(self.document())));
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, error_shape::content_type(self.shape));
        self.own_error().add_headers(self.shape, headers);
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(OUTCOME, HeaderValue::from_static(self.code));
        headers.insert(ATTEMPTS, count(self.attempts));
        if let Ok(value) = HeaderValue::from_str(&format!("seawall; error={}", self.token)) {
            headers.insert(PROXY_STATUS, value);
        }
        if let Some(seconds) = self.seconds() {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(call) = self.call.as_deref().and_then(|call| HeaderValue::from_str(call).ok()) {
            headers.insert(CALL, call);
        }
        if self.status == 401 {
            // RFC 9110 §15.5.2 requires it: it names the authentication scheme.
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"seawall\""));
        }
        if self.close {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// The explanation if the upstream was not involved.
const NOT_ASKED: &str = "the upstream was not asked";

/// The explanation if the cause is unknown.
const UNREACHABLE: &str = "the upstream could not be reached or did not answer properly";

/// Returns status and explanation of each code.
const fn describe(code: Code) -> (u16, &'static str) {
    match code {
        Code::RateLimited => (429, "a rate limit was reached"),
        Code::KeysExhausted => (429, "every key of this upstream is cooling down"),
        Code::KeysRejected => (502, "the upstream has rejected every key"),
        Code::Overloaded => (503, "there is no room for this call right now"),
        Code::CircuitOpen => (503, "the upstream is failing and is given time to recover"),
        Code::Paused => (503, "the upstream asked for a pause, and it is not over"),
        Code::DeadlineExceeded => (504, "the deadline passed before the upstream answered"),
        Code::UpstreamUnreachable => (502, UNREACHABLE),
        Code::SchemaMismatch => (502, "the upstream's answer does not have the expected shape"),
        Code::NoUpstream => (404, "no upstream is configured for this path"),
        Code::IdempotencyKeyMissing => (400, "this endpoint needs an Idempotency-Key"),
        Code::IdempotencyKeyMismatch => (422, "the Idempotency-Key was used for a different request"),
        Code::IdempotencyKeyInFlight => (409, "a call with this Idempotency-Key is still running"),
        Code::OutcomeUnknown => (409, "an earlier call with this Idempotency-Key was sent and never answered, or its answer was not kept"),
        Code::CallerUnknown => (401, "a caller's token is required"),
        Code::TooLarge => (413, "the request is too large"),
        Code::Cancelled => (499, "the caller left"),
        Code::BadRequest => (400, "the request is malformed"),
        Code::LoopDetected => (508, "the request has been here before"),
        Code::MethodNotAllowed => (405, "the method is not for gateways"),
        Code::NotFound => (404, "there is nothing at this path"),
        Code::NotImplemented => (501, "the request wants what this gateway does not do"),
        Code::RequestTimeout => (408, "the request did not arrive in time"),
        Code::StorageFull => (507, "the store has no room"),
        Code::StoreUnavailable => (503, "the store gave no answer"),
        Code::StreamCut => (502, "the upstream's response broke off on its way to the caller"),
    }
}

/// Formats a small number, mostly without an allocation.
pub(crate) fn count(number: u32) -> HeaderValue {
    match number {
        0 => HeaderValue::from_static("0"),
        1 => HeaderValue::from_static("1"),
        2 => HeaderValue::from_static("2"),
        3 => HeaderValue::from_static("3"),
        more => HeaderValue::from(more),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_never_early() {
        for (wait, seconds) in [(Nanos(1), 1), (Nanos::from_millis(1001), 2), (Nanos::ZERO, 1), (Nanos::from_secs(7), 7)] {
            let response = Refusal::of(Code::CircuitOpen, None).retry_after(Some(wait)).respond();
            assert_eq!(response.headers()[RETRY_AFTER], seconds.to_string());
        }
    }

    #[test]
    fn every_code_has_a_status_and_an_explanation() {
        for &code in Code::ALL {
            let (status, detail) = describe(code);
            assert!((400..=599).contains(&status) && !detail.is_empty(), "{code}");
        }
    }
}
