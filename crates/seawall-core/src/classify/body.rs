//! A response body for the rules: its first 64 KiB, parsed at most once and only when a rule asks.

use std::cell::OnceCell;

use serde_json::Value;

use super::json::{self, BODY_BYTES};
use super::xml;

#[derive(Debug)]
pub(super) struct ParsedBody<'a> {
    whole: &'a [u8],
    json: OnceCell<Option<Value>>,
    xml: OnceCell<Option<String>>,
}

impl<'a> ParsedBody<'a> {
    pub(super) fn new(whole: &'a [u8]) -> Self {
        Self { whole, json: OnceCell::new(), xml: OnceCell::new() }
    }

    pub(super) fn bytes(&self) -> &'a [u8] {
        &self.whole[..self.whole.len().min(BODY_BYTES)]
    }

    /// Also `None` for a body above the limit: half a document cannot show that a member is absent.
    pub(super) fn json(&self) -> Option<&Value> {
        self.json.get_or_init(|| json::document(self.whole)).as_ref()
    }

    pub(super) fn xml(&self) -> Option<&str> {
        self.xml.get_or_init(|| xml::document(self.whole)).as_deref()
    }
}
