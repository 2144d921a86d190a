//! The input and the output of [`super::behave`]: a request's facts and its fate.

use super::entry::Fault;
use super::errors;
use super::script::KeyAt;
use bytes::Bytes;
use seawall_core::time::{Nanos, Now};
use std::net::IpAddr;
use std::sync::Arc;

/// The relevant facts of a request.
#[derive(Debug)]
pub(crate) struct RequestFacts<'a> {
    pub method: &'a str,
    /// Without the query.
    pub path: &'a str,
    pub query: &'a str,
    pub headers: &'a [httparse::Header<'a>],
    pub body: &'a [u8],
    pub ip: IpAddr,
}

impl<'a> RequestFacts<'a> {
    pub(crate) fn header(&self, name: &str) -> Option<&'a str> {
        let header = self.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(header.value).ok()
    }

    pub(super) fn bearer(&self) -> Option<&'a str> {
        self.header("authorization")?.strip_prefix("Bearer ")
    }

    pub(super) fn key(&self, at: &KeyAt) -> Option<&'a str> {
        match at {
            KeyAt::Bearer => self.bearer(),
            KeyAt::Header(name) => self.header(name),
            KeyAt::Query(name) => {
                self.query.split('&').find_map(|pair| pair.split_once('=').filter(|(own, _)| own == name)).map(|(_, key)| key)
            }
        }
    }
}

/// The fate of a request.
#[derive(Debug)]
pub(crate) struct RequestFate {
    /// Work that a worker must do first.
    pub work: Option<ServiceTime>,
    /// Time that passes after the work.
    pub wait: Nanos,
    /// The fault that follows, if any.
    pub fault: Option<Fault>,
    pub answer: PlannedAnswer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServiceTime {
    pub route: usize,
    pub ticket: u64,
}

#[derive(Debug)]
pub(crate) struct PlannedAnswer {
    pub status: u16,
    pub content_type: Option<Arc<str>>,
    /// The route's header lines.
    pub headers: Option<Arc<str>>,
    /// The header lines of this response.
    pub extra: String,
    pub body: PlannedBody,
}

#[derive(Clone, Debug)]
pub(crate) enum PlannedBody {
    /// `{"ok":true,…}` of the n-th request.
    Good(u64),
    /// `{"error":…}` with the status's reason phrase.
    Bad,
    Bytes(Bytes),
    Fill(u64),
    Echo,
    Events(u32),
}

impl PlannedAnswer {
    pub(super) fn new(status: u16, body: PlannedBody) -> Self {
        Self { status, content_type: None, headers: None, extra: String::new(), body }
    }

    pub(super) fn json(status: u16, text: String) -> Self {
        Self::new(status, PlannedBody::Bytes(text.into()))
    }

    pub(super) fn error(error: &errors::ErrorAnswer, now: Now) -> Self {
        let mut answer = Self::json(error.status, errors::timed(&error.body, now.wall));
        answer.content_type = Some(error.content_type.as_str().into());
        for (name, value) in &error.headers {
            answer.extra.push_str(&format!("{name}: {}\r\n", errors::timed(value, now.wall)));
        }
        answer
    }
}

impl From<PlannedAnswer> for RequestFate {
    fn from(answer: PlannedAnswer) -> Self {
        Self { work: None, wait: Nanos::ZERO, fault: None, answer }
    }
}
