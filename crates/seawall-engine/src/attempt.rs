//! One attempt of a call, and what sends it.

use crate::mask::{Mask, Masked};
use crate::trace::AttemptSpan;
use seawall_core::classify::HeaderLookup;
use seawall_core::time::{Nanos, Now};
use seawall_http::fault::Fault;
use seawall_http::request_body::{Blame, Feed};
use std::sync::Arc;

/// One attempt, as the transport needs to know it.
#[derive(Clone, Copy, Debug)]
pub struct AttemptRequest {
    pub number: u32,
    pub key: Option<u16>,
    /// What this attempt may take.
    pub timeout: Nanos,
    /// What is left of the whole call.
    pub remaining: Nanos,
    pub now: Now,
}

/// Status, headers and as much of the body as the rules need.
pub type RuleView<'a> = (u16, &'a dyn HeaderLookup, &'a [u8]);

/// Sends single attempts and keeps the last answer.
#[expect(async_fn_in_trait, reason = "every driver knows its transport; nobody needs it to be Send")]
pub trait Transport {
    /// Sends the request once. The answer stays inside until the next attempt or until it is taken.
    async fn send(&mut self, attempt: AttemptRequest) -> Result<(), Fault>;

    /// The last answer as the rules see it.
    fn answer(&self) -> Option<RuleView<'_>>;

    /// Hides the secrets that the request was sent with, for whoever keeps a part of the answer.
    fn mask(&self) -> Mask {
        Mask::default()
    }

    /// What the caller did wrong with its body, if that is why the last attempt failed with this fault.
    fn blame(&self, _fault: Fault) -> Option<Blame> {
        None
    }

    /// Whether the caller has left while its body waits to be sent. Nobody reads the body then, so nobody else notices.
    fn is_abandoned(&self) -> bool {
        false
    }

    /// The length of the body that is kept until it is sent.
    fn body_bytes(&self) -> u64 {
        0
    }

    /// A body that goes through once, to be watched while it is sent.
    fn upload(&self) -> Option<Feed> {
        None
    }

    /// Sends of the last attempt that replaced a connection which had died while it was idle.
    fn resends(&self) -> u32 {
        0
    }

    /// What is known of the last attempt's failure, for a person.
    fn detail(&self) -> Option<&Masked> {
        None
    }

    /// Says what happened where the transport does not know better.
    fn explain(&mut self, _detail: Masked) {}

    /// The span that this attempt sends upstream, where the caller sent a trace.
    fn span(&self, _attempt: u32) -> Option<AttemptSpan> {
        None
    }

    /// What it means that the attempt's time is over before `send` has returned.
    fn overdue(&mut self) -> Fault {
        Fault::TIMEOUT
    }

    /// Gets a new token; whether that worked.
    async fn refresh(&mut self) -> bool;
}

/// Names keys for logs.
pub trait KeyTail: std::fmt::Debug {
    fn tail(&self, key: u16) -> Option<Arc<str>>;
}
