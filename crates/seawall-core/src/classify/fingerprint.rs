//! One name for all occurrences of an error: the upstream, the status and the shape of the body, without the parts that differ from call to
//! call.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::record::{AttemptStatus, ErrorKind};

use super::diagnostic::title;
use super::json;
use super::xml::{self, clip};

const DEPTH: usize = 6;
/// The most key paths of a shape: the first ones in sorted order.
const PATHS: usize = 64;
/// The most members, and elements of one list, that are visited.
const BREADTH: usize = 256;
const TEXT_BYTES: usize = 200;

/// Members whose value names the error instead of describing one instance of it.
pub(super) const NAMING: &[&str] = &["code", "type", "__type", "reason", "error", "status", "title", "name", "message", "detail", "domain"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ErrorFingerprint(pub u64);

impl ErrorFingerprint {
    /// Parses the output of `Display`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let plain = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        plain.then(|| u64::from_str_radix(text, 16).ok().map(Self))?
    }
}

impl fmt::Display for ErrorFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[must_use]
pub fn fingerprint(upstream: &str, result: Result<u16, ErrorKind>, body: &[u8]) -> ErrorFingerprint {
    let status = result.map_or_else(AttemptStatus::Error, AttemptStatus::Http);
    let mut hash = Sha256::new();
    // Parts are separated by a byte that no name contains, so that parts with shifted boundaries hash differently.
    for part in [upstream, &status.to_string(), &shape(body)] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let digest: [u8; 32] = hash.finalize().into();
    let (first, _) = digest.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
    ErrorFingerprint(u64::from_be_bytes(*first))
}

/// The part of the body that all errors of one kind share.
fn shape(body: &[u8]) -> String {
    if let Some(document) = json::document(body) {
        let mut paths = BTreeSet::new();
        collect(&document, &mut String::new(), DEPTH, &mut paths);
        return paths.into_iter().take(PATHS).collect::<Vec<_>>().join("\n");
    }
    let markup = xml::document(body);
    let named = markup.as_deref().and_then(title);
    let start = String::from_utf8_lossy(&body[..body.len().min(TEXT_BYTES)]);
    normalised(named.as_deref().unwrap_or(&start))
}

/// Collects key paths with types; every element of a list has the same path, so that its length does not matter.
fn collect(value: &Value, path: &mut String, depth: usize, paths: &mut BTreeSet<String>) {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    };
    let member = path.rsplit('/').next().unwrap_or_default();
    match json::text(value).filter(|_| NAMING.contains(&member)) {
        Some(text) if value.is_string() => paths.insert(format!("{path}:{kind}={}", normalised(&text))),
        Some(text) => paths.insert(format!("{path}:{kind}={text}")),
        None => paths.insert(format!("{path}:{kind}")),
    };
    let Some(depth) = depth.checked_sub(1).filter(|_| paths.len() <= BREADTH) else { return };
    let length = path.len();
    match value {
        Value::Array(items) => {
            path.push_str("/*");
            items.iter().take(BREADTH).for_each(|item| collect(item, path, depth, paths));
        }
        Value::Object(members) => {
            for (name, item) in members.iter().take(BREADTH) {
                path.push('/');
                path.push_str(&normalised(name));
                collect(item, path, depth, paths);
                path.truncate(length);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    path.truncate(length);
}

/// Removes the parts of a text that differ from call to call: quoted parts, ids (words with a digit, UUIDs, hex) and white space.
pub(super) fn normalised(text: &str) -> String {
    let mut out = String::new();
    let mut rest = clip(text, TEXT_BYTES);
    while let Some(first) = rest.chars().next() {
        if let Some(after) = quoted(rest) {
            out.push('…');
            rest = after;
        } else if first.is_alphanumeric() {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '-' && c != '_').unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            out.push_str(if is_id(word) { "#" } else { word });
            rest = after;
        } else {
            let gap = first.is_whitespace();
            if !gap || !out.ends_with(' ') {
                out.push(if gap { ' ' } else { first });
            }
            rest = &rest[first.len_utf8()..];
        }
    }
    out.trim().to_owned()
}

/// Returns the text after a quotation that starts here. An apostrophe inside a word never gets here, because words are taken whole.
fn quoted(text: &str) -> Option<&str> {
    let mark = text.chars().next().filter(|c| matches!(c, '"' | '\'' | '`'))?;
    let inside = &text[1..];
    let end = inside.find(mark)?;
    inside[..end].chars().all(|c| c != '\n').then(|| &inside[end + 1..])
}

/// Short words such as `v2` or `oauth2` are names; longer ones with a digit, and numbers, are ids.
pub(super) fn is_id(word: &str) -> bool {
    let digits = word.bytes().filter(u8::is_ascii_digit).count();
    digits == word.len() || (digits > 0 && (word.len() > 8 || digits > 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: &str) -> ErrorFingerprint {
        fingerprint("youtube", Ok(400), body.as_bytes())
    }

    #[test]
    fn what_differs_from_call_to_call_does_not_matter() {
        let bodies = [
            r#"{"error":{"code":7,"message":"user 123 has no item 'shoe'"},"request_id":"a1","items":[{"id":1}]}"#,
            r#"{"items":[{"id":4},{"id":5}],"request_id":"zz","error":{"message":"user 77 has no  item 'hat'","code":7}}"#,
        ];
        assert_eq!(of(bodies[0]), of(bodies[1]));
        let uuids = ["no row 0b9f0f5e-55a5-4c9b-8a8e-1f2f3a4b5c6d here", "no row 11111111-2222-3333-4444-555566667777 here"];
        assert_eq!(of(uuids[0]), of(uuids[1]));
    }

    #[test]
    fn what_names_the_error_does() {
        let one = of(r#"{"error":{"code":"a","message":"m"}}"#);
        assert_ne!(one, of(r#"{"error":{"code":"b","message":"m"}}"#));
        assert_ne!(one, of(r#"{"error":{"code":"a","message":"other"}}"#));
        assert_ne!(one, of(r#"{"error":{"code":"a"}}"#));
        assert_ne!(fingerprint("a", Ok(400), b""), fingerprint("a", Ok(401), b""));
        assert_ne!(fingerprint("a", Ok(400), b""), fingerprint("b", Ok(400), b""));
        assert_ne!(fingerprint("a", Err(ErrorKind::Tls), b""), fingerprint("a", Err(ErrorKind::Reset), b""));
    }

    #[test]
    fn it_is_the_same_in_every_release() {
        assert_eq!(fingerprint("youtube", Ok(418), br#"{"error":"teapot"}"#).to_string(), "9ed2e53b1a4bf01c");
    }

    #[test]
    fn its_text_leads_back() {
        let one = of("x");
        assert_eq!(ErrorFingerprint::parse(&one.to_string()), Some(one));
        for text in ["", "xyz", "+123456789abcdef", "0123456789abcdef0"] {
            assert_eq!(ErrorFingerprint::parse(text), None);
        }
    }

    #[test]
    fn pages_are_named_by_their_title() {
        assert_eq!(of("<html><title>Blocked</title>1"), of("<html><title>Blocked</title>2"));
        assert_ne!(of("<html><title>Blocked</title>"), of("<html><title>Other</title>"));
    }

    #[test]
    fn deep_and_wide_bodies_cost_a_bounded_shape() {
        let deep = format!("{}1{}", "{\"a\":".repeat(100), "}".repeat(100));
        assert!(shape(deep.as_bytes()).lines().count() <= DEPTH + 1);
        let wide: Vec<String> =
            (0..2000).map(|n| format!("\"k{}\":1", (0..n % 50).map(|_| 'a').collect::<String>() + &"b".repeat(n / 50))).collect();
        assert!(shape(format!("{{{}}}", wide.join(",")).as_bytes()).lines().count() <= PATHS);
    }
}
