//! Content types that say whether a partial body is of use.

/// Whether a body of this type is a series of events or documents, each of which is of use before the body's end.
#[must_use]
pub fn is_event_stream(content_type: &[u8]) -> bool {
    const SERIES: [&str; 6] = [
        "text/event-stream",
        "application/x-ndjson",
        "application/ndjson",
        "application/jsonl",
        "application/stream+json",
        "application/json-seq",
    ];
    let essence = media_type(content_type);
    SERIES.iter().any(|kind| essence.eq_ignore_ascii_case(kind.as_bytes()))
}

/// A content type without its parameters.
fn media_type(content_type: &[u8]) -> &[u8] {
    content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii()
}

/// Whether a body of this type is of no use before its end.
#[must_use]
pub fn is_document(content_type: &[u8]) -> bool {
    if is_event_stream(content_type) {
        return false;
    }
    let essence = media_type(content_type);
    let is = |name: &[u8]| essence.eq_ignore_ascii_case(name);
    let ends_with = |suffix: &[u8]| essence.len() > suffix.len() && essence[essence.len() - suffix.len()..].eq_ignore_ascii_case(suffix);
    is(b"application/json") || is(b"application/xml") || is(b"text/xml") || ends_with(b"+json") || ends_with(b"+xml")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_told_from_what_comes_bit_by_bit() {
        for kind in ["application/json", "Application/JSON; charset=utf-8", "application/problem+json", "text/xml", "application/atom+xml "]
        {
            assert!(is_document(kind.as_bytes()), "{kind}");
        }
        for kind in ["", "text/event-stream", "application/x-ndjson", "application/jsonl", "text/plain", "+json", "video/mp4"] {
            assert!(!is_document(kind.as_bytes()), "{kind}");
        }
        assert!(is_event_stream(b"Text/Event-Stream; charset=utf-8") && !is_event_stream(b"text/event"));
        assert!(is_event_stream(b"application/x-ndjson") && !is_document(b"application/stream+json"));
    }
}
