//! One attempt of a call, and the transport that sends it.

use crate::mask::{Mask, Masked};
use crate::trace::AttemptSpan;
use seawall_core::classify::HeaderLookup;
use seawall_core::time::{Nanos, Now};
use seawall_http::fault::Fault;
use seawall_http::request_body::{Blame, Feed};
use std::sync::Arc;

/// The parameters of one attempt for the transport.
#[derive(Clone, Copy, Debug)]
pub struct AttemptRequest {
    pub number: u32,
    pub key: Option<u16>,
    /// Time limit of this attempt.
    pub timeout: Nanos,
    /// Remaining time of the whole call.
    pub remaining: Nanos,
    pub now: Now,
}

/// Status, headers and the part of the body that the rules need.
pub type RuleView<'a> = (u16, &'a dyn HeaderLookup, &'a [u8]);

/// Sends single attempts and keeps the last response.
#[expect(async_fn_in_trait, reason = "every driver knows its transport; nobody needs it to be Send")]
pub trait Transport {
    /// Sends the request once. The response is kept until the next attempt or until it is taken.
    async fn send(&mut self, attempt: AttemptRequest) -> Result<(), Fault>;

    /// Returns the last response as the rules see it.
    fn answer(&self) -> Option<RuleView<'_>>;

    /// Masks the secrets that the request was sent with.
    fn mask(&self) -> Mask {
        Mask::default()
    }

    /// Returns the caller's error in its body, if that caused this fault of the last attempt.
    fn blame(&self, _fault: Fault) -> Option<Blame> {
        None
    }

    /// Returns whether the caller has left while its body waits to be sent. No other part reads the body then, so only this check detects
    /// it.
    fn is_abandoned(&self) -> bool {
        false
    }

    /// Returns the length of the body that is kept until it is sent.
    fn body_bytes(&self) -> u64 {
        0
    }

    /// Returns the progress of a streamed body, to be watched while it is sent.
    fn upload(&self) -> Option<Feed> {
        None
    }

    /// Returns the sends of the last attempt that replaced a connection which had died while it was idle.
    fn resends(&self) -> u32 {
        0
    }

    /// Describes the last attempt's failure for a person.
    fn detail(&self) -> Option<&Masked> {
        None
    }

    /// Sets the description of a failure, unless the transport has a better one.
    fn explain(&mut self, _detail: Masked) {}

    /// Returns the span that this attempt sends upstream, if the caller sent a trace.
    fn span(&self, _attempt: u32) -> Option<AttemptSpan> {
        None
    }

    /// Returns the fault of an attempt whose time ended before `send` returned.
    fn overdue(&mut self) -> Fault {
        Fault::TIMEOUT
    }

    /// Gets a new token. Returns whether that succeeded.
    async fn refresh(&mut self) -> bool;
}

/// Names keys for logs.
pub trait KeyTail: std::fmt::Debug {
    fn tail(&self, key: u16) -> Option<Arc<str>>;
}
