//! Request targets that can stand in a request line.

pub mod dots;

use std::borrow::Cow;
use std::ops::Deref;

/// A path with its query, or `*`. It has no byte that ends the target or the line, and no fragment, so that a path from outside cannot hold
/// a second request. Only a check can construct one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestTarget(Cow<'static, str>);

/// The reason why a text is not a request target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTarget {
    #[error("a path begins with `/`")]
    NoPath,
    #[error("a path has no spaces, control characters or `#`")]
    BadByte,
    /// The path climbs above the upstream's base path: keys and policies are only for that part of the server.
    #[error("a path does not leave the upstream's base path by `..`")]
    Escapes,
}

impl RequestTarget {
    /// Checks a path with its query.
    ///
    /// # Errors
    /// When it does not begin with `/`, or has a byte that may not stand in a request line.
    pub fn new(text: impl Into<String>) -> Result<Self, BadTarget> {
        let text = text.into();
        if !text.starts_with('/') {
            return Err(BadTarget::NoPath);
        }
        // Bytes above ASCII are against the standard but harmless, and callers' targets are relayed byte for byte.
        if text.bytes().any(|byte| byte <= b' ' || byte == 0x7f || byte == b'#') {
            return Err(BadTarget::BadByte);
        }
        Ok(Self(Cow::Owned(text)))
    }

    /// `*`: the whole server, used only by OPTIONS (RFC 9112 §3.2.4).
    #[must_use]
    pub fn asterisk() -> Self {
        Self(Cow::Borrowed("*"))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The character before a parameter that is added to the query. Returns nothing for `*`, which has no query.
    #[must_use]
    pub fn joint(&self) -> Option<char> {
        if self.0 == "*" {
            return None;
        }
        Some(if self.0.contains('?') { '&' } else { '?' })
    }
}

/// The root.
impl Default for RequestTarget {
    fn default() -> Self {
        Self(Cow::Borrowed("/"))
    }
}

impl Deref for RequestTarget {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_with_queries_are_targets() {
        for text in ["/", "/a/b?c=d&e", "/%20?x={y}|\"", "/ü", "//a", "/?"] {
            assert_eq!(RequestTarget::new(text).unwrap().as_str(), text);
        }
    }

    #[test]
    fn what_could_end_a_request_line_is_no_target() {
        for text in ["", "a", "*", "http://a/", "?a"] {
            assert_eq!(RequestTarget::new(text), Err(BadTarget::NoPath), "{text:?}");
        }
        for text in ["/a b", "/a\r\n", "/a\n", "/a\t", "/a\0", "/a\u{7f}", "/a#b", "/a# HTTP/1.1\r\n\r\nDELETE /x"] {
            assert_eq!(RequestTarget::new(text), Err(BadTarget::BadByte), "{text:?}");
        }
    }

    #[test]
    fn a_parameter_is_added_where_there_can_be_a_query() {
        let joint = |text: &str| RequestTarget::new(text).unwrap().joint();
        assert_eq!((joint("/a"), joint("/a?b"), RequestTarget::asterisk().joint()), (Some('?'), Some('&'), None));
    }

    proptest! {
        #[test]
        fn a_request_line_has_three_words_whatever_the_target(text in "/(.|[ \r\n\t#])*") {
            if let Ok(target) = RequestTarget::new(text) {
                let line = format!("GET {} HTTP/1.1", &*target);
                prop_assert_eq!(line.split([' ', '\r', '\n', '\t']).count(), 3);
            }
        }
    }
}
