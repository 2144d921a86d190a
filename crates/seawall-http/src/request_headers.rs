//! The headers of a request, except the few that the gateway writes itself.

use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, TE, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue};
use std::ops::Deref;

/// The headers of a request to an upstream. None of them affects routing or framing: the gateway writes those once, and a second one would
/// let a forged request be read in another way.
#[derive(Clone, Debug, Default)]
pub struct RequestHeaders(HeaderMap);

/// The reason why a header cannot go into a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHeader {
    #[error("the header `{0}` cannot be sent")]
    Unsendable(String),
    #[error("the header `{0}` is not yours to set")]
    Reserved(String),
}

/// Headers that belong to one connection or frame a message, in lower case. Only the sender of a message may write them.
const RESERVED: [&str; 11] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Normalises a name as servers do that pass headers on as variables: they treat `_`, `.` and the like as `-`.
fn plain(name: &str) -> String {
    name.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' }).collect()
}

fn is_reserved(plain: &str) -> bool {
    RESERVED.contains(&plain) || plain.starts_with("seawall-")
}

/// Whether a name is not reserved but some servers may read it as a reserved one: `Transfer_Encoding`, `Content.Length`.
fn is_imitation(name: &HeaderName) -> bool {
    let is_odd = name.as_str().bytes().any(|byte| !byte.is_ascii_alphanumeric() && byte != b'-');
    is_odd && is_reserved(&plain(name.as_str()))
}

impl RequestHeaders {
    /// Takes over a caller's headers, without framing headers and their imitations.
    #[must_use]
    pub fn new(mut headers: HeaderMap) -> Self {
        if !headers.is_empty() {
            for name in [HOST, CONTENT_LENGTH, TRANSFER_ENCODING] {
                headers.remove(name);
            }
            // `TE: trailers` may be relayed, and must be named in `Connection`. Nothing else of a connection may.
            if headers.get(CONNECTION).is_some_and(|value| value != "te") || headers.get(TE).is_some_and(|value| value != "trailers") {
                headers.remove(CONNECTION);
                headers.remove(TE);
            }
            if headers.keys().any(is_imitation) {
                let imitations: Vec<HeaderName> = headers.keys().filter(|name| is_imitation(name)).cloned().collect();
                imitations.iter().for_each(|name| drop(headers.remove(name)));
            }
        }
        Self(headers)
    }

    /// Reads headers from a store, a file or an import, and leaves out those of a connection.
    ///
    /// # Errors
    /// When a name or a value has bytes that no header can carry.
    pub fn read<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<HeaderMap, BadHeader> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            match Self::check(name, value) {
                Ok((name, value)) => drop(headers.append(name, value)),
                Err(BadHeader::Reserved(_)) => {}
                Err(bad @ BadHeader::Unsendable(_)) => return Err(bad),
            }
        }
        Ok(headers)
    }

    /// Checks one header from outside.
    ///
    /// # Errors
    /// When it cannot be sent, or is reserved for the gateway.
    pub fn check(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), BadHeader> {
        let (Ok(header), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value.as_bytes())) else {
            return Err(BadHeader::Unsendable(name.to_owned()));
        };
        if is_reserved(&plain(header.as_str())) {
            return Err(BadHeader::Reserved(name.to_owned()));
        }
        Ok((header, value))
    }
}

impl Deref for RequestHeaders {
    type Target = HeaderMap;

    fn deref(&self) -> &HeaderMap {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap())).collect()
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        headers.keys().map(HeaderName::as_str).collect()
    }

    #[test]
    fn framing_is_ours_to_write() {
        let sent = map(&[("host", "h"), ("content-length", "3"), ("transfer-encoding", "chunked"), ("connection", "close"), ("x-a", "b")]);
        assert_eq!(names(&RequestHeaders::new(sent)), ["x-a"]);
        let imitated =
            ["transfer_encoding", "content_length", "content.length", "transfer-encoding~", "host", "te_st", "te.", "seawall.token"];
        let imitations: Vec<(&str, &str)> = imitated.iter().map(|name| (*name, "1")).collect();
        let taken = RequestHeaders::new(map(&imitations));
        let mut left = names(&taken);
        left.sort_unstable();
        assert_eq!(left, ["te.", "te_st", "transfer-encoding~"]);
        let trailers = map(&[("te", "trailers"), ("connection", "te")]);
        assert_eq!(RequestHeaders::new(trailers).len(), 2);
    }

    #[test]
    fn what_a_store_holds_is_checked_before_it_is_sent() {
        let kept = [("Accept", "*/*"), ("Host", "h"), ("Transfer_Encoding", "chunked"), ("seawall-token", "t"), ("x-a", "b")];
        assert_eq!(names(&RequestHeaders::read(kept).unwrap()), ["accept", "x-a"]);
        for (name, value) in [("a b", "c"), ("", "c"), ("x-a:", "b"), ("x-a", "b\r\nx: y"), ("x-a", "b\0")] {
            assert_eq!(RequestHeaders::read([(name, value)]).unwrap_err(), BadHeader::Unsendable(name.to_owned()), "{name}: {value}");
        }
    }
}
