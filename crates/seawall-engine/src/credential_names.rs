//! Common names of credentials, used wherever callers must be distinguished.

/// Returns whether a header of this name, in lower case, identifies the caller.
#[must_use]
pub fn is_credential(name: &str) -> bool {
    const PARTS: [&str; 12] =
        ["auth", "cookie", "token", "key", "secret", "session", "signature", "passw", "credential", "assertion", "jwt", "dpop"];
    !is_ordinary(name) && PARTS.iter().any(|part| name.contains(part))
}

/// Returns whether a header occurs in nearly every request, so that a search is not worthwhile, or is called a key without identifying the
/// caller.
fn is_ordinary(name: &str) -> bool {
    matches!(
        name,
        "host"
            | "user-agent"
            | "accept"
            | "accept-encoding"
            | "accept-language"
            | "content-type"
            | "content-length"
            | "connection"
            | "cache-control"
            | "idempotency-key"
            | "sec-websocket-key"
    )
}

/// Returns whether a query parameter carries a caller's credential.
#[must_use]
pub fn is_credential_parameter(name: &str) -> bool {
    const NAMES: &[&str] = &[
        "key",
        "api_key",
        "apikey",
        "api-key",
        "access_token",
        "token",
        "auth",
        "auth_token",
        "appid",
        "app_id",
        "subscription-key",
        "oauth_token",
        "oauth_consumer_key",
    ];
    NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Returns whether a credential of this name changes with each request: it proves a fact and identifies no caller.
pub(crate) fn changes_each_time(name: &str) -> bool {
    ["signature", "dpop", "csrf", "xsrf", "nonce", "idempotency"].iter().any(|part| name.contains(part))
}

/// Returns whether a credential of this name may change between requests, so that it counts only without a better one.
pub(crate) fn may_change(name: &str) -> bool {
    name.contains("cookie") || name.contains("session")
}

/// Returns whether a query parameter contains the access key of a signed URL, with its scope.
pub(crate) fn is_scoped_parameter(name: &str) -> bool {
    const NAMES: &[&str] = &["x-amz-credential", "x-goog-credential", "awsaccesskeyid", "googleaccessid"];
    NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_apis_give_to_credentials_are_known() {
        for name in [
            "authorization",
            "cookie",
            "x-api-key",
            "apikey",
            "private-token",
            "ocp-apim-subscription-key",
            "xi-api-key",
            "x-auth-key",
            "x-rapidapi-key",
            "dd-api-key",
            "x-figma-token",
            "x-riot-token",
            "x-vault-token",
            "x-postmark-server-token",
        ] {
            assert!(is_credential(name), "{name}");
        }
    }

    #[test]
    fn names_that_say_nothing_of_who_asks_are_none() {
        for name in ["host", "user-agent", "accept", "x-request-id", "idempotency-key", "sec-websocket-key", "traceparent", "content-type"]
        {
            assert!(!is_credential(name), "{name}");
        }
    }
}
