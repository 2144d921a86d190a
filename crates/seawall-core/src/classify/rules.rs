//! One rule: its conditions, and the class, scope and wait that it gives a result.

use crate::record::{Class, ErrorKind, Scope};
use crate::time::Nanos;
use crate::words::words;

use super::ObservedResult;
use super::body::ParsedBody;
use super::json::{self, Pointer};
use super::pattern::{Expression, Pattern, StatusSet};
use super::wait::Wait;
use super::xml::XmlPath;

words! {
    /// The origin of a rule. Rules are tried in this order.
    pub enum RuleSource {
        Endpoint = "endpoint",
        Upstream = "upstream",
        Preset = "preset",
        Profile = "profile",
        Generic = "generic",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub name: String,
    pub when: When,
    pub class: Class,
    pub scope: Scope,
    pub wait: Wait,
    /// Added to the wait, if the rule or the server gives one.
    pub skew: Nanos,
    /// The server says it did not execute the request, so even an unsafe method may be sent again.
    pub unprocessed: bool,
    /// A catch-all: a failure that no other rule matches is unnamed, and kept for review.
    pub fallback: bool,
    pub source: RuleSource,
}

/// All conditions must hold; a list means any of its entries. `status` and `error` together select results; if both are empty the rule
/// applies to every response, and to no error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct When {
    pub status: StatusSet,
    pub error: Vec<ErrorKind>,
    /// Upper-case names; empty means any.
    pub method: Vec<String>,
    /// Lower-case names. An empty list of patterns means absent, here and below.
    pub header: Vec<(String, Vec<Pattern>)>,
    /// Holds only for a body that is a JSON document, even if it asks for absence.
    pub json: Vec<(Pointer, Vec<Pattern>)>,
    /// Holds only for a body that looks like XML, even if it asks for absence.
    pub xml: Vec<(XmlPath, Vec<Pattern>)>,
    pub body: Option<Expression>,
    /// At least this slow.
    pub slower: Option<Nanos>,
}

impl When {
    /// Whether the status or error of a result selects the rule; rule sets are indexed by this.
    #[must_use]
    pub fn is_about(&self, result: Result<u16, ErrorKind>) -> bool {
        match result {
            Ok(status) => self.status.contains(status) || (self.status.is_empty() && self.error.is_empty()),
            Err(kind) => self.error.contains(&kind),
        }
    }

    #[must_use]
    pub fn needs_body(&self) -> bool {
        !self.json.is_empty() || !self.xml.is_empty() || self.body.is_some()
    }

    /// Whether status or error alone decide.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.method.is_empty() && self.header.is_empty() && self.slower.is_none() && !self.needs_body()
    }

    #[must_use]
    pub fn allows(&self, method: &str) -> bool {
        self.method.is_empty() || self.method.iter().any(|one| one == method)
    }

    /// Whether all conditions besides status and error hold; the cheapest come first.
    pub(super) fn holds(&self, seen: &ObservedResult<'_>, body: &ParsedBody<'_>) -> bool {
        self.allows(seen.method)
            && self.slower.is_none_or(|least| seen.latency >= least)
            && self.header.iter().all(|(name, patterns)| header_holds(seen.headers.first(name), patterns))
            && self.body.as_ref().is_none_or(|expression| expression.is_match(body.bytes()))
            && self.json.iter().all(|(pointer, patterns)| json_holds(pointer, patterns, body))
            && self.xml.iter().all(|(path, patterns)| xml_holds(path, patterns, body))
    }
}

fn header_holds(value: Option<&[u8]>, patterns: &[Pattern]) -> bool {
    let Some(value) = value else { return patterns.is_empty() };
    let value = String::from_utf8_lossy(value);
    patterns.iter().any(|pattern| pattern.matches_ignoring_case(value.trim()))
}

fn json_holds(pointer: &Pointer, patterns: &[Pattern], body: &ParsedBody<'_>) -> bool {
    let Some(document) = body.json() else { return false };
    if patterns.is_empty() {
        return !pointer.any(document, |_| true);
    }
    pointer.any(document, |value| match json::text(value) {
        Some(text) => patterns.iter().any(|pattern| pattern.matches(&text)),
        None => patterns.iter().any(Pattern::is_any),
    })
}

fn xml_holds(path: &XmlPath, patterns: &[Pattern], body: &ParsedBody<'_>) -> bool {
    let Some(document) = body.xml() else { return false };
    let values = path.values(document);
    if patterns.is_empty() {
        return values.is_empty();
    }
    values.iter().any(|value| patterns.iter().any(|pattern| pattern.matches(value)))
}
