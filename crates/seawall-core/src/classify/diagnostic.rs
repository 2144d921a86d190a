//! Extracts the human-readable message of an error body, which dead letters and alerts show beside the status.

use serde_json::Value;

use super::fingerprint::is_id;
use super::json::{self, Pointer};
use super::xml::{self, XmlPath, clip};

/// The most characters of a diagnostic.
const LENGTH: usize = 300;
/// The most sentences joined from a list of errors.
const SENTENCES: usize = 5;

/// The places of the message in APIs' bodies, the most specific first.
const PLACES: &[&str] = &[
    "/error/message",
    "/message",
    "/error_description",
    "/detail",
    "/errors/*/message",
    "/errors/*/detail",
    "/detail/*/msg",
    "/*/error/message",
    "/error/detail",
    "/title",
    "/error",
    "/errors/*",
    "/Message",
    "/msg",
    "/reason",
];

const XML_PLACES: &[&str] = &["//Error/Message", "//error/@message", "//error", "//message", "//faultstring", "//Message"];

/// The message in `body`, one line of at most 300 characters without control characters; empty if there is none.
#[must_use]
pub fn diagnostic(body: &[u8], content_type: &str) -> String {
    if let Some(document) = json::document(body) {
        let sentence = PLACES.iter().map(|place| sentences(&document, place)).find(|found| !found.is_empty());
        return sentence.unwrap_or_else(|| line(&document.to_string()));
    }
    let Some(markup) = xml::document(body) else {
        return if is_text(body, content_type) { line(&String::from_utf8_lossy(start(body))) } else { String::new() };
    };
    let page = content_type.to_ascii_lowercase().contains("html") || is_page(&markup);
    let named = if page { title(&markup) } else { xml_sentence(&markup) };
    named.filter(|text| !text.is_empty()).unwrap_or_else(|| line(&without_tags(&markup)))
}

fn start(body: &[u8]) -> &[u8] {
    &body[..body.len().min(LENGTH * 8)]
}

/// Anything but images, archives and the like; a body without a type is text if it has no NUL.
fn is_text(body: &[u8], content_type: &str) -> bool {
    let kind = content_type.to_ascii_lowercase();
    let binary = ["image/", "audio/", "video/", "font/", "application/octet-stream", "application/zip", "application/gzip"];
    !binary.iter().any(|prefix| kind.starts_with(prefix)) && !start(body).contains(&0)
}

fn sentences(document: &Value, place: &str) -> String {
    let mut found: Vec<String> = Vec::new();
    if let Ok(pointer) = Pointer::parse(place) {
        pointer.any(document, |value| {
            found.extend(value.as_str().map(line).filter(|text| !text.is_empty()));
            found.len() == SENTENCES
        });
    }
    line(&found.join("; "))
}

fn xml_sentence(markup: &str) -> Option<String> {
    let paths = XML_PLACES.iter().filter_map(|place| XmlPath::parse(place).ok());
    let mut found = paths.filter_map(|path| path.values(markup).into_iter().map(|text| line(&text)).find(|text| !text.is_empty()));
    found.next()
}

pub(super) fn is_page(markup: &str) -> bool {
    let head = clip(markup.trim_start(), 64).to_ascii_lowercase();
    head.starts_with("<!doctype html") || head.starts_with("<html")
}

/// The title of a page: proxies name the error there.
pub(super) fn title(markup: &str) -> Option<String> {
    let lower = markup.to_ascii_lowercase();
    let from = lower.find("<title")?;
    let from = from + lower[from..].find('>')? + 1;
    let to = from + lower[from..].find("</title")?;
    Some(line(&markup[from..to]))
}

fn without_tags(markup: &str) -> String {
    let mut text = String::new();
    let mut inside = false;
    for c in markup.chars() {
        match c {
            '<' => inside = true,
            '>' if inside => {
                inside = false;
                text.push(' ');
            }
            _ if !inside => text.push(c),
            _ => {}
        }
        if text.len() > LENGTH * 8 {
            break;
        }
    }
    text
}

/// Makes one line: white space and control characters become single spaces, and the text is cut at `LENGTH` characters.
fn line(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control() || is_invisible(c)).filter(|word| !word.is_empty());
    let mut line = String::new();
    let mut length = 0;
    for word in words {
        let gap = usize::from(!line.is_empty());
        let room = LENGTH.saturating_sub(length + gap);
        if room == 0 {
            break;
        }
        if gap == 1 {
            line.push(' ');
        }
        let taken: String = word.chars().take(room).collect();
        length += gap + taken.chars().count();
        line.push_str(&taken);
    }
    line
}

/// Characters that reverse or hide text on a terminal without being control characters.
const fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// A line of foreign text that is safe to keep and show: words that could be credentials, ids or personal addresses are removed.
#[must_use]
pub fn redacted(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if !is_part(first) {
            out.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        let after_name = out.to_ascii_lowercase();
        let announced = ["bearer ", "basic ", "token ", "key "].iter().any(|name| after_name.ends_with(name)) && word.len() > 8;
        let long = word.len() > 8 && (is_id(word) || word.bytes().any(|byte| byte.is_ascii_digit()));
        out.push_str(if long || announced || word.contains('@') || word.len() > 40 { "…" } else { word });
        rest = after;
    }
    out
}

/// The characters of words, keys, tokens and mail addresses.
fn is_part(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '-' | '_' | '@' | '+' | '.' | '~')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: &str) -> String {
        diagnostic(body.as_bytes(), "")
    }

    #[test]
    fn the_usual_places_are_tried_in_order() {
        let bodies = [
            (r#"{"error":{"message":"Quota gone","code":403},"message":"no"}"#, "Quota gone"),
            (r#"{"message":"Validation Failed","errors":[{"field":"title"}]}"#, "Validation Failed"),
            (r#"{"error":"invalid_grant","error_description":"Token revoked"}"#, "Token revoked"),
            (r#"{"title":"Not valid","detail":"age must be positive"}"#, "age must be positive"),
            (r#"{"errors":[{"message":"a is missing"},{"message":"b is wrong"}]}"#, "a is missing; b is wrong"),
            (r#"{"detail":[{"loc":["body"],"msg":"field required"}]}"#, "field required"),
            (r#"{"subsonic-response":{"error":{"code":40,"message":"Wrong username"}}}"#, "Wrong username"),
            (r#"{"ok":false,"error":"invalid_auth"}"#, "invalid_auth"),
            (r#"{"errors":{"name":["can't be blank"]}}"#, r#"{"errors":{"name":["can't be blank"]}}"#),
        ];
        for (body, said) in bodies {
            assert_eq!(of(body), said);
        }
    }

    #[test]
    fn xml_and_pages_say_something_too() {
        assert_eq!(of(r#"<lfm status="failed"><error code="10">Invalid API key</error></lfm>"#), "Invalid API key");
        assert_eq!(of(r#"<subsonic-response><error code="40" message="Wrong username"/></subsonic-response>"#), "Wrong username");
        assert_eq!(of("<Error><Code>SlowDown</Code><Message>Reduce your rate</Message></Error>"), "Reduce your rate");
        assert_eq!(of("<!DOCTYPE html><html><head><title>502 Bad\nGateway</title></head><p>x"), "502 Bad Gateway");
        assert_eq!(of("<html><body><h1>Blocked</h1> by policy</body></html>"), "Blocked by policy");
    }

    #[test]
    fn it_is_one_bounded_line_without_control_characters() {
        assert_eq!(of("a\x1b[31m\r\nb\u{202e}c"), "a [31m b c");
        assert_eq!(of(&"é".repeat(5000)).chars().count(), 300);
        assert_eq!(of(&format!("{{\"message\":\"{}\"}}", "sentence ".repeat(500))).chars().count(), 300);
        assert_eq!(diagnostic(b"\x89PNG\0\0", ""), "");
        assert_eq!(diagnostic(b"PK", "application/zip"), "");
        assert_eq!(of(""), "");
    }

    #[test]
    fn what_could_be_a_credential_is_taken_out() {
        for (said, shown) in [
            ("key sk-live-0123456789abcdef is not valid", "key … is not valid"),
            ("Bearer abcdefghijkl expired", "Bearer … expired"),
            ("no such user ann@example.org", "no such user …"),
            ("?api_key=hunter2hunter2&x=1", "?api_key=…&x=1"),
            ("item 42 of v2 is sold out", "item 42 of v2 is sold out"),
            ("the quota of this project is exhausted", "the quota of this project is exhausted"),
        ] {
            assert_eq!(redacted(said), shown);
        }
    }
}
