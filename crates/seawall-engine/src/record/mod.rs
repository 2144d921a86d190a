//! Records of calls, as plain data.

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

/// One recorded event.
#[derive(Clone, Debug)]
pub enum Record {
    Attempt(AttemptRecord),
    Call(CallRecord),
    Breaker(BreakerRecord),
    Idle(IdleRecord),
    Token(TokenRecord),
    Note(NoteRecord),
}

/// An event outside of any attempt, with fields given by its reporter.
#[derive(Clone, Debug)]
pub struct NoteRecord {
    pub at: Wall,
    pub event: &'static str,
    pub fields: Vec<(&'static str, String)>,
}

impl Record {
    /// Returns the endpoint of the event, if it has one.
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
    /// The request line. A call of the library has none.
    pub request: Option<Arc<RequestLine>>,
    /// Further sends that replaced a connection which had died while it was idle.
    pub resends: u32,
    /// The span sent to the upstream as its parent, if the caller sent a trace.
    pub span: Option<Box<AttemptSpan>>,
    /// Last four characters of the key that was used.
    pub key_tail: Option<Arc<str>>,
    /// The timeout that it exceeded, if any.
    pub timeout: Option<Timeout>,
    /// The failure of an attempt without a response.
    pub error: Option<Box<str>>,
    /// A sample of a response that no rule names, or that refuses a credential.
    pub sample: Option<Box<ErrorSample>>,
}

/// The beginning of a response, with our secrets masked. It may contain other sensitive data.
#[derive(Clone, Debug, Default)]
pub struct ErrorSample {
    pub content_type: String,
    pub body: Vec<u8>,
}

impl ErrorSample {
    /// Returns the approximate memory use.
    pub(crate) fn size(&self) -> usize {
        size_of::<Self>() + self.content_type.capacity() + self.body.capacity()
    }

    /// Maximum bytes kept of a body.
    pub(crate) const MAX_BODY: usize = 8 * 1024;

    #[must_use]
    pub fn of(answer: Option<(u16, &dyn HeaderLookup, &[u8])>, mask: &Mask) -> Self {
        let Some((_, headers, body)) = answer else { return Self::default() };
        // Masked before the cut, which could leave a part of a secret that is no longer recognised.
        let body = mask.bytes(body);
        let content_type = headers.first("content-type").map(|value| String::from_utf8_lossy(value).into_owned());
        Self { content_type: content_type.unwrap_or_default(), body: body[..body.len().min(Self::MAX_BODY)].to_vec() }
    }
}

/// A response stalled after its first byte had been sent to the caller.
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
    /// The status sent to the caller, if a response was sent.
    pub response_status: Option<u16>,
    /// `success`, `stale`, `fallback`, a class, or the code of our refusal.
    pub outcome: &'static str,
    pub reason: Reason,
    pub elapsed: Nanos,
    /// The stage that refused the call, if Seawall refused it.
    pub refused_by: Option<&'static str>,
}

/// A call ended because the token provider of its upstream gave no token.
#[derive(Clone, Debug)]
pub struct TokenRecord {
    pub at: Wall,
    pub call: CallId,
    pub names: Arc<EndpointNames>,
    /// The provider's message.
    pub error: Masked,
}

#[derive(Clone, Debug)]
pub struct BreakerRecord {
    pub at: Wall,
    pub names: Arc<EndpointNames>,
    pub change: guard::PhaseChange,
}
