//! What is written down of calls, as plain data.

mod endpoint_names;
pub mod log_line;
mod request_line;

pub use endpoint_names::EndpointNames;
pub use request_line::RequestLine;

use crate::mask::{Mask, Masked};
use crate::trace::AttemptSpan;
use seawall_core::classify::HeaderLookup;
use seawall_core::guard;
use seawall_core::id::CallId;
use seawall_core::record::{AttemptOutcome, Reason, Timeout};
use seawall_core::time::{Nanos, Wall};
use std::sync::Arc;

/// One thing that happened.
#[derive(Clone, Debug)]
pub enum Record {
    Attempt(AttemptRecord),
    Call(CallRecord),
    Breaker(BreakerRecord),
    Idle(IdleRecord),
    Token(TokenRecord),
    Note(NoteRecord),
}

/// Something that happened outside of any attempt, in the words of whoever saw it.
#[derive(Clone, Debug)]
pub struct NoteRecord {
    pub at: Wall,
    pub event: &'static str,
    pub fields: Vec<(&'static str, String)>,
}

impl Record {
    /// The endpoint that it happened to, if it happened to one.
    pub(crate) const fn names(&self) -> Option<&Arc<EndpointNames>> {
        match self {
            Self::Attempt(AttemptRecord { names, .. })
            | Self::Call(CallRecord { names, .. })
            | Self::Breaker(BreakerRecord { names, .. })
            | Self::Idle(IdleRecord { names, .. })
            | Self::Token(TokenRecord { names, .. }) => Some(names),
            Self::Note(_) => None,
        }
    }
}

#[derive(Clone, Debug)]
pub struct AttemptRecord {
    pub at: Wall,
    pub call: CallId,
    pub names: Arc<EndpointNames>,
    pub caller: Arc<str>,
    pub attempt: AttemptOutcome,
    /// What the call asks for. A call of the library has none.
    pub request: Option<Arc<RequestLine>>,
    /// Sends beside this one that replaced a connection which had died while it was idle.
    pub resends: u32,
    /// What the upstream got as its parent, where the caller sent a trace.
    pub span: Option<Box<AttemptSpan>>,
    /// Last four characters of the key that was used.
    pub key_tail: Option<Arc<str>>,
    /// The bound that it went over, where it did.
    pub timeout: Option<Timeout>,
    /// What happened, where no response came.
    pub error: Option<Box<str>>,
    /// What an answer looks like that no rule names, or that refuses a credential.
    pub sample: Option<Box<ErrorSample>>,
}

/// The beginning of a response, without the secrets that it repeats. It may hold anything else.
#[derive(Clone, Debug, Default)]
pub struct ErrorSample {
    pub content_type: String,
    pub body: Vec<u8>,
}

impl ErrorSample {
    /// About what it takes in memory.
    pub(crate) fn size(&self) -> usize {
        size_of::<Self>() + self.content_type.capacity() + self.body.capacity()
    }

    /// What is kept of a body.
    pub(crate) const MAX_BODY: usize = 8 * 1024;

    #[must_use]
    pub fn of(answer: Option<(u16, &dyn HeaderLookup, &[u8])>, mask: &Mask) -> Self {
        let Some((_, headers, body)) = answer else { return Self::default() };
        // Before the cut, which could leave the half of a secret that nobody knows again.
        let body = mask.bytes(body);
        let content_type = headers.first("content-type").map(|value| String::from_utf8_lossy(value).into_owned());
        Self { content_type: content_type.unwrap_or_default(), body: body[..body.len().min(Self::MAX_BODY)].to_vec() }
    }
}

/// An answer whose first byte had gone out already went silent.
#[derive(Clone, Debug)]
pub struct IdleRecord {
    pub at: Wall,
    pub call: CallId,
    pub names: Arc<EndpointNames>,
}

#[derive(Clone, Debug)]
pub struct CallRecord {
    pub at: Wall,
    pub call: CallId,
    pub names: Arc<EndpointNames>,
    pub caller: Arc<str>,
    pub request: Option<Arc<RequestLine>>,
    pub attempts: u32,
    /// What the caller got, where it got a response.
    pub response_status: Option<u16>,
    /// `success`, `stale`, `fallback`, a class, or the code of our refusal.
    pub outcome: &'static str,
    pub reason: Reason,
    pub elapsed: Nanos,
    /// A refusal of ours, and the stage that made it.
    pub refused_by: Option<&'static str>,
}

/// A call ended because its upstream's tokens have a provider that gave none.
#[derive(Clone, Debug)]
pub struct TokenRecord {
    pub at: Wall,
    pub call: CallId,
    pub names: Arc<EndpointNames>,
    /// The provider's words.
    pub error: Masked,
}

#[derive(Clone, Debug)]
pub struct BreakerRecord {
    pub at: Wall,
    pub names: Arc<EndpointNames>,
    pub change: guard::PhaseChange,
}
