//! The request line of a call in records: method, route and path, without the values of the query.

use super::log_line;
use http::Method;
use std::sync::Arc;

/// Maximum path length, since records wait in bounded queues.
const MAX_PATH: usize = 512;

/// The request that a record is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestLine {
    pub method: Method,
    /// The endpoint's pattern.
    pub route: Arc<str>,
    /// The path with the names of its query parameters.
    pub path: String,
    /// The three as members of a log line, prebuilt because every call has two lines.
    pub(crate) json: Vec<u8>,
}

impl RequestLine {
    /// Builds the line of a request for this target, with the endpoint's pattern as route.
    #[must_use]
    pub fn new(method: &Method, route: &Arc<str>, target: &str) -> Arc<Self> {
        let path = without_values(target);
        let json = log_line::request_members(method, route, &path);
        Arc::new(Self { method: method.clone(), route: Arc::clone(route), path, json })
    }
}

/// Removes the values of the query, which may be secret or personal.
fn without_values(target: &str) -> String {
    let Some((path, query)) = memchr::memchr(b'?', target.as_bytes()).map(|at| (&target[..at], &target[at + 1..])) else {
        return cut(target.to_owned());
    };
    let mut text = String::with_capacity(path.len().min(MAX_PATH));
    text.push_str(path);
    for (number, pair) in query.split('&').filter(|pair| !pair.is_empty()).enumerate() {
        if text.len() > MAX_PATH {
            break;
        }
        text.push(if number == 0 { '?' } else { '&' });
        // A parameter without `=` may itself be a value.
        text.push_str(pair.split_once('=').map_or("…", |(name, _)| name));
    }
    cut(text)
}

fn cut(mut text: String) -> String {
    if text.len() > MAX_PATH {
        let end = (0..=MAX_PATH).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_query_are_left_out() {
        for (target, shown) in [
            ("/a/b", "/a/b"),
            ("/a?", "/a"),
            ("/a?q=secret&key=1234&flag", "/a?q&key&…"),
            ("/a?token", "/a?…"),
            ("/a?x=1=2?3&y=", "/a?x&y"),
            ("*", "*"),
        ] {
            assert_eq!(without_values(target), shown);
        }
    }

    #[test]
    fn a_long_path_is_cut_between_characters() {
        let text = without_values(&format!("/{}", "ä".repeat(MAX_PATH)));
        assert!(text.len() <= MAX_PATH + '…'.len_utf8() && text.ends_with("ä…"), "{}", text.len());
    }
}
