//! The classify stage: ordered rules over status, headers and body, and the waits that servers ask for.
//!
//! A [`RuleSet`] is built once per endpoint, from the endpoint's, the upstream's, the preset's and the generic rules in
//! this order; the first that matches names the result. It says what happened, never what to do about it.

mod body;
pub mod diagnostic;
pub mod fingerprint;
pub mod json;
mod naming;
pub mod parse;
pub mod pattern;
pub mod presets;
pub mod retry_after;
mod rules;
mod set;
mod wait;
pub mod xml;

pub use diagnostic::{diagnostic, redacted};
pub use fingerprint::{ErrorFingerprint, fingerprint};
pub use naming::Condition;
pub use retry_after::Unit;
pub use rules::{Rule, RuleSource, When};
pub use set::{Classification, RuleSet};
pub use wait::{Hint, Wait};

use crate::record::ErrorKind;
use crate::time::Nanos;

/// One result, as input to the rules.
#[derive(Clone, Copy, Debug)]
pub struct ObservedResult<'a> {
    /// Upper case, as HTTP methods are.
    pub method: &'a str,
    pub result: Result<u16, ErrorKind>,
    pub headers: &'a dyn HeaderLookup,
    /// The part of the body that was read; empty if [`RuleSet::needs_body`] does not ask for it.
    pub body: &'a [u8],
    pub latency: Nanos,
}

/// Response headers, independent of the type that holds them.
pub trait HeaderLookup: std::fmt::Debug {
    /// The first value of a name given in lower case; names compare without regard to case.
    fn first(&self, name: &str) -> Option<&[u8]>;
}

impl<N: AsRef<str> + std::fmt::Debug, V: AsRef<[u8]> + std::fmt::Debug> HeaderLookup for &[(N, V)] {
    fn first(&self, name: &str) -> Option<&[u8]> {
        first(self, name)
    }
}

impl<N: AsRef<str> + std::fmt::Debug, V: AsRef<[u8]> + std::fmt::Debug, const LEN: usize> HeaderLookup for [(N, V); LEN] {
    fn first(&self, name: &str) -> Option<&[u8]> {
        first(self, name)
    }
}

impl<N: AsRef<str> + std::fmt::Debug, V: AsRef<[u8]> + std::fmt::Debug> HeaderLookup for Vec<(N, V)> {
    fn first(&self, name: &str) -> Option<&[u8]> {
        first(self, name)
    }
}

fn first<'h, N: AsRef<str>, V: AsRef<[u8]>>(headers: &'h [(N, V)], name: &str) -> Option<&'h [u8]> {
    let found = headers.iter().find(|(key, _)| key.as_ref().eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.as_ref())
}

/// No headers, for an attempt without a response.
impl HeaderLookup for () {
    fn first(&self, _name: &str) -> Option<&[u8]> {
        None
    }
}
