//! The writer of message heads.

use crate::query_parameter::QueryParameter;
use http::{HeaderName, HeaderValue, Method, StatusCode, Version};
use hyper::ext::ReasonPhrase;
use seawall_core::request_target::RequestTarget;

/// Writes a head into a buffer.
#[derive(Debug)]
pub struct HeadWriter<'a>(&'a mut Vec<u8>);

impl<'a> HeadWriter<'a> {
    pub(super) const fn new(out: &'a mut Vec<u8>) -> Self {
        Self(out)
    }

    /// The request line; `parameter` is added to the target's query.
    pub fn line(&mut self, method: &Method, target: &RequestTarget, parameter: Option<&QueryParameter>) {
        self.0.reserve(512);
        self.0.extend_from_slice(method.as_str().as_bytes());
        self.0.push(b' ');
        self.0.extend_from_slice(target.as_bytes());
        if let Some((parameter, joint)) = parameter.zip(target.joint()) {
            self.0.extend_from_slice(joint.encode_utf8(&mut [0; 4]).as_bytes());
            self.0.extend_from_slice(parameter.as_str().as_bytes());
        }
        self.0.extend_from_slice(b" HTTP/1.1\r\n");
    }

    /// The status line, with the upstream's reason or the canonical one.
    pub(super) fn status(&mut self, version: Version, status: StatusCode, reason: Option<&ReasonPhrase>) {
        self.0.reserve(512);
        self.0.extend_from_slice(if version == Version::HTTP_10 { b"HTTP/1.0 " } else { b"HTTP/1.1 " });
        self.0.extend_from_slice(status.as_str().as_bytes());
        self.0.push(b' ');
        let usual = || status.canonical_reason().unwrap_or_default().as_bytes();
        self.0.extend_from_slice(reason.map_or_else(usual, ReasonPhrase::as_bytes));
        self.0.extend_from_slice(b"\r\n");
    }

    pub fn field(&mut self, name: &HeaderName, value: &HeaderValue) {
        self.raw(name.as_str().as_bytes(), value.as_bytes());
    }

    pub(super) fn raw(&mut self, name: &[u8], value: &[u8]) {
        self.0.reserve(name.len() + value.len() + 4);
        self.0.extend_from_slice(name);
        self.0.extend_from_slice(b": ");
        self.0.extend_from_slice(value);
        self.0.extend_from_slice(b"\r\n");
    }

    /// Writes a value of our own, which needs no check.
    pub fn bytes(&mut self, name: &HeaderName, value: &[u8]) {
        self.raw(name.as_str().as_bytes(), value);
    }

    /// Writes whole lines, with their ends. Lines of a known length are cheapest.
    #[inline]
    pub fn lines(&mut self, lines: &[u8]) {
        self.0.extend_from_slice(lines);
    }

    pub(super) fn length(&mut self, length: u64) {
        self.lines(b"content-length: ");
        self.lines(itoa::Buffer::new().format(length).as_bytes());
        self.lines(b"\r\n");
    }

    pub(super) fn chunked(&mut self) {
        self.lines(b"transfer-encoding: chunked\r\n");
    }

    pub(super) fn end(&mut self) {
        self.0.extend_from_slice(b"\r\n");
    }

    pub(super) fn chunk(&mut self, data: &[u8]) {
        self.0.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
        self.0.extend_from_slice(data);
        self.0.extend_from_slice(b"\r\n");
    }
}
