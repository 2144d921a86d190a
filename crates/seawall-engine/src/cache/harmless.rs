//! Request headers that do not identify the caller. Any other header separates callers with different values.

/// Names in lower case.
const NAMES: [&str; 61] = [
    // The requested content and its form. Responses that depend on it name it in `Vary`.
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "content-encoding",
    "content-language",
    "content-length",
    "content-type",
    "prefer",
    "range",
    "want-digest",
    "want-content-digest",
    "want-repr-digest",
    // The client program and its screen.
    "user-agent",
    "device-memory",
    "downlink",
    "dnt",
    "dpr",
    "ect",
    "rtt",
    "save-data",
    "viewport-width",
    "width",
    // The context of a request within a page.
    "origin",
    "priority",
    "purpose",
    "referer",
    "sec-gpc",
    "sec-purpose",
    "upgrade-insecure-requests",
    "x-purpose",
    "x-requested-with",
    // The use of stored responses.
    "cache-control",
    "pragma",
    "if-match",
    "if-none-match",
    "if-modified-since",
    "if-unmodified-since",
    "if-range",
    // The connection.
    "alt-used",
    "connection",
    "date",
    "early-data",
    "expect",
    "host",
    "keep-alive",
    "max-forwards",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    // Identifiers of the single request, different each time.
    "idempotency-key",
    "request-id",
    "correlation-id",
    "traceparent",
    "tracestate",
    "request-start",
    "seawall-timeout-ms",
    "seawall-attempt",
];

/// Prefixes. `sec-fetch-` and `sec-ch-` are set by browsers alone.
const PREFIXES: [&str; 3] = ["sec-fetch-", "sec-ch-", "sec-websocket-"];

/// Identifiers of one request or trace, by the names of tracers and proxies.
const TRACES: [&str; 14] = [
    "b3",
    "x-b3-traceid",
    "x-b3-spanid",
    "x-b3-parentspanid",
    "x-b3-sampled",
    "x-b3-flags",
    "x-amzn-trace-id",
    "x-cloud-trace-context",
    "x-request-id",
    "x-correlation-id",
    "x-request-start",
    "x-queue-start",
    "uber-trace-id",
    "sentry-trace",
];

/// The origin of a request according to earlier proxies. Upstreams see it only with `forwarded = true`; a response that depends on it must
/// then name it in `Vary`.
const PLACES: [&str; 8] = [
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-forwarded-prefix",
    "x-forwarded-server",
    "x-real-ip",
];

pub(super) fn is_harmless(name: &str) -> bool {
    NAMES.contains(&name)
        || TRACES.contains(&name)
        || PLACES.contains(&name)
        || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || name.starts_with("x-datadog-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_that_credentials_go_by_is_harmless() {
        for name in [
            "authorization",
            "cookie",
            "proxy-authorization",
            "x-api-key",
            "seawall-token",
            "from",
            "x-tenant",
            "x-user",
            "x-account-id",
            "apikey",
            "x-forwarded-user",
            "x-forwarded-email",
            "x-forwarded-client-cert",
            "x-ssl-client-cert",
            "x-remote-user",
            "x-org",
            "baggage",
            "x-whatever",
        ] {
            assert!(!is_harmless(name), "{name}");
        }
    }

    #[test]
    fn names_are_written_as_they_are_compared() {
        for name in NAMES.iter().chain(&TRACES).chain(&PLACES).chain(&PREFIXES) {
            assert_eq!(**name, name.to_ascii_lowercase(), "{name}");
        }
    }
}
