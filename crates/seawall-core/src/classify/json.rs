//! Places in a JSON body: RFC 6901 pointers in which `*` stands for every element or member. Comparing the values is the patterns' task.

use std::borrow::Cow;

use serde_json::Value;

/// Larger bodies are not parsed.
pub const BODY_BYTES: usize = 64 * 1024;
const POINTER_TOKENS: usize = 16;
/// Values one look-up visits before it gives up: `*` over a long list must not cost more than reading it.
const VISITS: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
enum JsonToken {
    Member(String),
    Any,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointer {
    text: String,
    tokens: Vec<JsonToken>,
}

impl Pointer {
    /// # Errors
    /// A sentence for the person who wrote the pointer.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix('/') else {
            return Err(format!("{text:?} is not a JSON pointer: it starts with `/`, as in \"/error/code\""));
        };
        let tokens: Vec<JsonToken> = rest.split('/').map(token).collect::<Result<_, _>>()?;
        if tokens.len() > POINTER_TOKENS {
            return Err(format!("a pointer has at most {POINTER_TOKENS} parts, {text:?} has {}", tokens.len()));
        }
        Ok(Self { text: text.to_owned(), tokens })
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether `found` holds for one of the values at this place; `null` counts as absent.
    pub fn any(&self, document: &Value, mut found: impl FnMut(&Value) -> bool) -> bool {
        let mut visits = VISITS;
        walk(&self.tokens, document, &mut visits, &mut found)
    }

    /// The first value at this place that `pick` accepts.
    pub fn find_map<T>(&self, document: &Value, mut pick: impl FnMut(&Value) -> Option<T>) -> Option<T> {
        let mut picked = None;
        self.any(document, |value| {
            picked = pick(value);
            picked.is_some()
        });
        picked
    }
}

fn token(text: &str) -> Result<JsonToken, String> {
    if text == "*" {
        return Ok(JsonToken::Any);
    }
    let unescaped = text.replace("~1", "/").replace("~0", "~");
    if text.replace("~1", "").replace("~0", "").contains('~') {
        return Err(format!("{text:?} is not a part of a JSON pointer: `~` is written `~0` and `/` is written `~1`"));
    }
    Ok(JsonToken::Member(unescaped))
}

/// Recursion is bounded by the number of tokens, not by the document.
fn walk(tokens: &[JsonToken], value: &Value, visits: &mut usize, found: &mut dyn FnMut(&Value) -> bool) -> bool {
    let Some(left) = visits.checked_sub(1) else { return false };
    *visits = left;
    let Some((token, rest)) = tokens.split_first() else { return !value.is_null() && found(value) };
    match (token, value) {
        (JsonToken::Any, Value::Array(items)) => items.iter().any(|item| walk(rest, item, visits, found)),
        (JsonToken::Any, Value::Object(members)) => members.values().any(|item| walk(rest, item, visits, found)),
        (JsonToken::Member(name), Value::Array(items)) => {
            let item = index(name).and_then(|at| items.get(at));
            item.is_some_and(|item| walk(rest, item, visits, found))
        }
        (JsonToken::Member(name), Value::Object(members)) => members.get(name).is_some_and(|item| walk(rest, item, visits, found)),
        (JsonToken::Any | JsonToken::Member(_), Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => false,
    }
}

/// RFC 6901 indices have no leading zero and no sign.
fn index(text: &str) -> Option<usize> {
    let canonical = text == "0" || (text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0'));
    canonical.then(|| text.parse().ok())?
}

/// Parses `body` if it is an object or an array of at most `BODY_BYTES`. `serde_json` bounds the nesting at 128.
#[must_use]
pub fn document(body: &[u8]) -> Option<Value> {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let first = body.iter().find(|byte| !byte.is_ascii_whitespace())?;
    let plausible = matches!(first, b'{' | b'[') && body.len() <= BODY_BYTES;
    plausible.then(|| serde_json::from_slice(body).ok())?
}

/// A scalar as text for the rules; numbers and booleans in their JSON spelling.
#[must_use]
pub fn text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Number(number) => Some(Cow::Owned(number.to_string())),
        Value::Bool(flag) => Some(Cow::Borrowed(if *flag { "true" } else { "false" })),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn all(pointer: &str, document: &Value) -> Vec<String> {
        let mut values = Vec::new();
        Pointer::parse(pointer).unwrap().any(document, |value| {
            values.push(value.to_string());
            false
        });
        values
    }

    #[test]
    fn pointers_follow_rfc_6901() {
        let document = json!({"a/b": 1, "m~n": 2, "": 3, "list": [4, 5], "01": 6});
        for (pointer, value) in [("/a~1b", "1"), ("/m~0n", "2"), ("/", "3"), ("/list/1", "5"), ("/01", "6")] {
            assert_eq!(all(pointer, &document), [value], "{pointer}");
        }
        for pointer in ["/list/01", "/list/-", "/list/2", "/list/4/x", "/none"] {
            assert!(all(pointer, &document).is_empty(), "{pointer}");
        }
    }

    #[test]
    fn a_star_visits_every_element_and_member() {
        let document = json!({"errors": [{"type": "A"}, {"type": null}, {"other": 1}, {"type": "B"}]});
        assert_eq!(all("/errors/*/type", &document), ["\"A\"", "\"B\""]);
        assert_eq!(all("/*/3/*", &document), ["\"B\""]);
    }

    #[test]
    fn a_long_list_stops_the_look_up() {
        let document = json!({"l": vec![0; VISITS * 2]});
        assert!(all("/l/*", &document).len() < VISITS);
    }

    #[test]
    fn bad_pointers_are_refused_with_the_reason() {
        for pointer in ["", "error/code", "/a~2", "/a~"] {
            assert!(Pointer::parse(pointer).is_err(), "{pointer}");
        }
        assert!(Pointer::parse(&"/a".repeat(17)).is_err());
    }

    #[test]
    fn only_bounded_objects_and_arrays_are_documents() {
        assert!(document(b"\xef\xbb\xbf {\"a\":1}").is_some());
        for body in [&b""[..], b"null", b"<html>", b"{\"a\":", b"{}x"] {
            assert!(document(body).is_none());
        }
        let large = format!("[\"{}\"]", "x".repeat(BODY_BYTES));
        assert!(document(large.as_bytes()).is_none());
        assert!(document("[".repeat(60_000).as_bytes()).is_none());
    }
}
