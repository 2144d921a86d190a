//! Checks the body of a successful response: JSON, text or bytes, and whether it matches its type and schema. A bad body ends its row, not
//! the run.

use super::pages::items;
use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use seawall_core::record::{Class, ErrorKind, Reason};
use seawall_engine::mask::Mask;
use seawall_engine::schema::{Mismatch, Schema};
use seawall_http::response_body::Relay;
use seawall_server::letter::Cause;
use serde::de::IgnoredAny;
use serde_json::Value;

/// A body in the form in which it is written.
#[derive(Debug)]
pub(super) enum Content {
    Nothing,
    /// Valid JSON, as received.
    Json(Bytes),
    Text(Bytes),
    Binary(Bytes),
    /// JSON texts.
    Items(Vec<String>),
}

impl Content {
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Json(bytes) | Self::Text(bytes) | Self::Binary(bytes) => bytes.len(),
            Self::Items(items) => items.iter().map(String::len).sum(),
        }
    }
}

/// The requirements for bodies.
#[derive(Debug)]
pub(super) struct BodyRequest {
    pub most: usize,
    pub schema: Option<Schema>,
    pub items: Option<String>,
    /// The schema, items or pages need the parsed JSON.
    pub parsed: bool,
}

/// A body that failed its check, and the reason. Both may repeat secrets that were sent to the upstream.
#[derive(Debug)]
pub(super) struct Unfit {
    code: &'static str,
    detail: String,
    body: Bytes,
}

impl Unfit {
    /// The cause of the row's end, and the body, both masked.
    pub(super) fn masked(self, mask: &Mask) -> (Cause, Bytes) {
        let reason = Reason::PermanentFailure.as_str().to_owned();
        let cause = Cause { class: Class::Permanent, reason, code: self.code.to_owned(), detail: mask.words(self.detail.as_bytes()) };
        (cause, mask.body(&self.body))
    }
}

impl BodyRequest {
    /// Checks the body; returns its content, and its JSON if that is needed.
    pub(super) fn check(&self, headers: &HeaderMap, body: Relay, mask: &Mask) -> Result<(Content, Option<Value>), Box<Unfit>> {
        let body = match body {
            Relay::Empty => Bytes::new(),
            // Masked, because an upstream that echoes its key would write it into the output.
            Relay::Full(bytes) if bytes.len() <= self.most => mask.body(&bytes),
            Relay::Full(_) | Relay::Stream(_) => {
                return Err(unfit("too_large", format!("the body is longer than {} bytes", self.most), Bytes::new()));
            }
        };
        let mismatch = |mismatch: Mismatch| match mismatch {
            Mismatch::NotJson(why) => unfit(ErrorKind::Malformed.as_str(), why, body.clone()),
            Mismatch::Shape(why) => unfit(ErrorKind::Schema.as_str(), why, body.clone()),
        };
        if let Some(schema) = &self.schema {
            schema.check(&body).map_err(mismatch)?;
        }
        let content = read(headers, &body).map_err(|why| unfit(ErrorKind::Malformed.as_str(), why, body.clone()))?;
        if !self.parsed {
            return Ok((content, None));
        }
        let json: Option<Value> = serde_json::from_slice(&body).ok();
        let Some(pointer) = &self.items else { return Ok((content, json)) };
        match items(json.as_ref(), Some(pointer)) {
            Ok(items) => Ok((Content::Items(items.iter().map(Value::to_string).collect()), json)),
            Err(why) => Err(unfit(ErrorKind::Malformed.as_str(), why, body)),
        }
    }
}

pub(super) fn unfit(code: &'static str, detail: String, body: Bytes) -> Box<Unfit> {
    Box::new(Unfit { code, detail, body })
}

/// A body with a JSON type must be JSON; a body without a type may be.
fn read(headers: &HeaderMap, body: &Bytes) -> Result<Content, String> {
    if body.is_empty() {
        return Ok(Content::Nothing);
    }
    let claimed = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).map(|kind| kind.split(';').next().unwrap_or("").trim());
    let is_json =
        claimed.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json") || kind.ends_with("+json") || kind.ends_with("/json"));
    let Ok(text) = std::str::from_utf8(body) else {
        return if is_json { Err("it is not JSON: it is not UTF-8".to_owned()) } else { Ok(Content::Binary(body.clone())) };
    };
    if !is_json && claimed.is_some() {
        return Ok(Content::Text(body.clone()));
    }
    match serde_json::from_str::<IgnoredAny>(text) {
        Ok(_) => Ok(Content::Json(body.clone())),
        Err(error) if is_json => Err(format!("it is not JSON: {error}")),
        Err(_) => Ok(Content::Text(body.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(wanted: &BodyRequest, kind: &str, body: &'static [u8]) -> String {
        let mut headers = HeaderMap::new();
        if !kind.is_empty() {
            headers.insert(CONTENT_TYPE, kind.parse().unwrap());
        }
        let relay = if body.is_empty() { Relay::Empty } else { Relay::Full(Bytes::from_static(body)) };
        match wanted.check(&headers, relay, &Mask::default()) {
            Ok((Content::Nothing, _)) => "nothing".to_owned(),
            Ok((Content::Json(_), _)) => "json".to_owned(),
            Ok((Content::Text(_), _)) => "text".to_owned(),
            Ok((Content::Binary(_), _)) => "binary".to_owned(),
            Ok((Content::Items(items), _)) => items.join(" "),
            Err(unfit) => format!("{} {}", unfit.code, unfit.detail),
        }
    }

    #[test]
    fn a_body_is_what_it_claims_to_be_or_unfit() {
        let wanted = BodyRequest { most: 100, schema: None, items: None, parsed: false };
        assert_eq!(look(&wanted, "application/json; charset=utf-8", b"{\"a\":1}"), "json");
        assert_eq!(look(&wanted, "", b"[1]"), "json");
        assert_eq!(look(&wanted, "", b"ok"), "text");
        assert_eq!(look(&wanted, "text/plain", b"1"), "text");
        assert_eq!(look(&wanted, "image/png", b"\xff\x00"), "binary");
        assert_eq!(look(&wanted, "application/json", b""), "nothing");
        assert!(look(&wanted, "application/problem+json", b"{\"a\":").starts_with("malformed it is not JSON"));
        assert!(look(&wanted, "application/json", b"\"\xff\"").starts_with("malformed"));
        assert!(look(&BodyRequest { most: 1, ..wanted }, "", b"ok").starts_with("too_large"));
    }

    #[test]
    fn items_and_schemas_are_looked_for() {
        let wanted = BodyRequest { most: 100, schema: None, items: Some("/i".to_owned()), parsed: true };
        assert_eq!(look(&wanted, "application/json", b"{\"i\":[1, {\"a\":2}]}"), "1 {\"a\":2}");
        assert!(look(&wanted, "application/json", b"{}").contains("there is no list at `/i`"));
        let schema = Some(Schema::parse(br#"{"required":["id"]}"#, 100).unwrap());
        let wanted = BodyRequest { most: 100, schema, items: None, parsed: false };
        assert!(look(&wanted, "application/json", b"{}").starts_with("schema the body: \"id\""));
    }
}
