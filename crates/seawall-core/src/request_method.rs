//! Methods that may be sent to an upstream. Every door checks here, so that no door admits what another refuses.

/// The reason why a text is not a method that may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMethod {
    #[error("a method is a word of letters, digits and !#$%&'*+-.^_`|~")]
    NoToken,
    /// The method addresses the connection or an intermediary, and not a resource.
    #[error("CONNECT, TRACE and PRI are not for gateways")]
    Forbidden,
}

/// Checks a method. Methods for the hop itself are refused in any letter case: HTTP methods are case-sensitive, but not on every server.
///
/// # Errors
/// When it may not be sent.
pub fn check(method: &str) -> Result<(), BadMethod> {
    if matches!(method, "GET" | "POST" | "PUT" | "DELETE" | "HEAD" | "PATCH" | "OPTIONS") {
        return Ok(());
    }
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if method.is_empty() || !method.bytes().all(is_token) {
        return Err(BadMethod::NoToken);
    }
    let is_forbidden = ["CONNECT", "TRACE", "PRI"].iter().any(|word| method.eq_ignore_ascii_case(word));
    if is_forbidden { Err(BadMethod::Forbidden) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_that_speak_to_the_hop_are_refused_in_every_case() {
        for method in ["CONNECT", "TRACE", "PRI", "connect", "Trace", "pri"] {
            assert_eq!(check(method), Err(BadMethod::Forbidden), "{method}");
        }
        for method in ["", "GE T", "GET\r\n", "GET/", "G\u{e4}T", "A:B"] {
            assert_eq!(check(method), Err(BadMethod::NoToken), "{method:?}");
        }
        for method in ["GET", "get", "PROPFIND", "QUERY", "M-SEARCH", "X"] {
            assert_eq!(check(method), Ok(()), "{method}");
        }
    }
}
