//! Responses as bytes.

use super::entry::http_date;
use super::fate::{PlannedAnswer, PlannedBody, RequestFacts};
use bytes::Bytes;
use serde_json::json;
use std::io::Write as _;

/// The repeated text of bodies of a given size.
pub(crate) static FILL: [u8; 64 << 10] = {
    const LINE: &[u8; 64] = b"the quick brown fox jumps over the lazy dog 0123456789 -- again\n";
    let mut block = [0; 64 << 10];
    let mut at = 0;
    while at < block.len() {
        block[at] = LINE[at % LINE.len()];
        at += 1;
    }
    block
};

#[derive(Debug)]
pub(crate) enum Payload {
    Bytes(Bytes),
    /// This many bytes of `FILL`.
    Fill(u64),
    Events(u32),
}

impl Payload {
    pub(crate) fn length(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Fill(length) => *length,
            Self::Events(_) => 0,
        }
    }

    /// The payload in one piece, for faults; a longer one is cut.
    pub(crate) fn piece(&self) -> Bytes {
        match self {
            Self::Bytes(bytes) => bytes.clone(),
            Self::Fill(length) => Bytes::from_static(&FILL[..usize::try_from(*length).unwrap_or(usize::MAX).min(FILL.len())]),
            Self::Events(_) => Bytes::from_static(b"data: {\"n\":1}\n\n"),
        }
    }
}

/// A response's body, and its content type unless its route names one.
pub(crate) fn payload(answer: &PlannedAnswer, request: &RequestFacts<'_>) -> (Payload, &'static str) {
    const JSON: &str = "application/json";
    match &answer.body {
        PlannedBody::Good(n) => (Payload::Bytes(good(request.path, *n).into()), JSON),
        PlannedBody::Bad => {
            let words = http::StatusCode::from_u16(answer.status).ok().and_then(|status| status.canonical_reason()).unwrap_or("Failed");
            (Payload::Bytes(format!(r#"{{"error":"{words}","status":{}}}"#, answer.status).into()), JSON)
        }
        PlannedBody::Bytes(bytes) => (Payload::Bytes(bytes.clone()), JSON),
        PlannedBody::Fill(length) => (Payload::Fill(*length), "application/octet-stream"),
        PlannedBody::Echo => (Payload::Bytes(echo(request).into()), JSON),
        PlannedBody::Events(count) => (Payload::Events(*count), "text/event-stream"),
    }
}

fn good(path: &str, n: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(48 + path.len());
    out.extend_from_slice(br#"{"ok":true,"path":"#);
    // Writing to memory cannot fail.
    drop(serde_json::to_writer(&mut out, path));
    drop(write!(out, r#","n":{n}}}"#));
    out
}

/// The whole request, with names as they were spelled and repeated headers repeated.
fn echo(request: &RequestFacts<'_>) -> String {
    let headers: Vec<(&str, String)> =
        request.headers.iter().map(|header| (header.name, String::from_utf8_lossy(header.value).into_owned())).collect();
    let target = if request.query.is_empty() { request.path.to_owned() } else { format!("{}?{}", request.path, request.query) };
    json!({
        "method": request.method,
        "path": target,
        "headers": headers,
        "body": String::from_utf8_lossy(request.body),
        "body_bytes": request.body.len(),
    })
    .to_string()
}

/// The `Date` line, updated once a second.
#[derive(Debug, Default)]
pub(crate) struct DateLine {
    epoch_s: i64,
    line: String,
}

impl DateLine {
    pub(crate) fn line(&mut self, epoch_s: i64) -> &str {
        if self.epoch_s != epoch_s || self.line.is_empty() {
            *self = Self { epoch_s, line: format!("date: {}\r\n", http_date(epoch_s)) };
        }
        &self.line
    }
}

/// The framing of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framed {
    Length(u64),
    Chunked,
}

/// Status line and headers without the empty line that ends them.
pub(crate) fn head(out: &mut Vec<u8>, answer: &PlannedAnswer, kind: &str, framed: Framed, date: &str, keep_alive: bool) {
    let reason = http::StatusCode::from_u16(answer.status).ok().and_then(|status| status.canonical_reason()).unwrap_or("");
    drop(write!(out, "HTTP/1.1 {} {reason}\r\n", answer.status));
    out.extend_from_slice(date.as_bytes());
    let bare = matches!(answer.status, 204 | 304);
    if !bare {
        let kind = answer.content_type.as_deref().unwrap_or(kind);
        drop(write!(out, "content-type: {kind}\r\n"));
        match framed {
            Framed::Length(length) => drop(write!(out, "content-length: {length}\r\n")),
            Framed::Chunked => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        }
    }
    if let Some(headers) = &answer.headers {
        out.extend_from_slice(headers.as_bytes());
    }
    out.extend_from_slice(answer.extra.as_bytes());
    if !keep_alive {
        out.extend_from_slice(b"connection: close\r\n");
    }
}
