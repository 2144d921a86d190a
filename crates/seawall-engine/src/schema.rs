//! The schema of an endpoint's responses. Errors describe the mismatch and never quote the response.

use bytes::Bytes;
use serde_json::Value;

/// A compiled JSON Schema. References must stay within the schema: nothing is fetched.
#[derive(Debug)]
pub struct Schema {
    validator: jsonschema::Validator,
    /// Larger responses are not checked.
    pub most: u64,
}

/// The reason why a response does not match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    NotJson(String),
    Shape(String),
}

impl Schema {
    /// # Errors
    /// When the text is no JSON, or no JSON Schema, or refers to something outside of itself.
    pub fn parse(text: &[u8], most: u64) -> Result<Self, String> {
        let schema: Value = serde_json::from_slice(text).map_err(|error| format!("it is not JSON: {error}"))?;
        let validator =
            jsonschema::validator_for(&schema).map_err(|error| format!("it is not a JSON Schema: {}", shortened(&error.to_string())))?;
        Ok(Self { validator, most })
    }

    /// # Errors
    /// When the body is no JSON or does not have the shape.
    pub fn check(&self, body: &Bytes) -> Result<(), Mismatch> {
        let value: Value = serde_json::from_slice(body).map_err(|error| Mismatch::NotJson(format!("it is not JSON: {error}")))?;
        match self.validator.validate(&value) {
            Ok(()) => Ok(()),
            Err(error) => {
                let at = error.instance_path().to_string();
                let at = if at.is_empty() { "the body" } else { &at };
                Err(Mismatch::Shape(shortened(&format!("{at}: {}", error.masked()))))
            }
        }
    }
}

impl Mismatch {
    /// Builds the mismatch of a response that cannot be checked.
    pub(crate) fn unreadable(why: &str) -> Self {
        Self::Shape(why.to_owned())
    }
}

/// Shortens a message, since it may quote a long part of the schema.
fn shortened(text: &str) -> String {
    const MAX_MESSAGE: usize = 300;
    match text.char_indices().nth(MAX_MESSAGE) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(text: &str) -> Result<Schema, String> {
        Schema::parse(text.as_bytes(), 100)
    }

    #[test]
    fn a_mismatch_names_the_place_and_keeps_the_value_to_itself() {
        let schema = schema(r#"{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}"#).unwrap();
        assert_eq!(schema.check(&Bytes::from_static(br#"{"id":1}"#)), Ok(()));
        let Err(Mismatch::Shape(why)) = schema.check(&Bytes::from_static(br#"{"id":"hunter2"}"#)) else { panic!("a mismatch") };
        assert!(why.starts_with("/id: ") && why.contains("integer") && !why.contains("hunter2"), "{why}");
        assert!(matches!(schema.check(&Bytes::from_static(b"{}")), Err(Mismatch::Shape(why)) if why.contains("\"id\"")));
        assert!(matches!(schema.check(&Bytes::from_static(b"{")), Err(Mismatch::NotJson(_))));
    }

    #[test]
    fn messages_are_bounded() {
        let long = "x".repeat(5000);
        let schema = schema(&format!(r#"{{"const":"{long}"}}"#)).unwrap();
        let Err(Mismatch::Shape(why)) = schema.check(&Bytes::from_static(b"1")) else { panic!("a mismatch") };
        assert!(why.chars().count() <= 301, "{}", why.len());
    }

    #[test]
    fn what_is_no_schema_is_refused_and_nothing_is_fetched() {
        assert!(schema("{").unwrap_err().contains("not JSON"));
        assert!(schema(r#"{"type":"nothing"}"#).unwrap_err().contains("not a JSON Schema"));
        for elsewhere in ["http://127.0.0.1:1/x.json", "file:///etc/passwd", "other.json"] {
            assert!(schema(&format!(r#"{{"$ref":"{elsewhere}"}}"#)).is_err(), "{elsewhere}");
        }
    }
}
