//! The values of headers as text, for storage.

use std::borrow::Cow;

/// Returns a header's value as text. Bytes that are not UTF-8 are read as Latin-1, as in old HTTP, and are sent as UTF-8 again.
#[must_use]
pub fn text(value: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(value) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(value.iter().map(|byte| char::from(*byte)).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_gets_lost() {
        for (value, expected) in [(&b"plain"[..], "plain"), ("caf\u{e9}".as_bytes(), "caf\u{e9}"), (b"caf\xe9", "caf\u{e9}")] {
            assert_eq!(text(value), expected);
        }
    }
}
