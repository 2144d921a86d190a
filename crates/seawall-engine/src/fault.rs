//! How an attempt failed without a usable answer, in two vocabularies: ours for policies and logs, RFC 9209's for
//! the `Proxy-Status` header.

use seawall_core::record::ErrorKind;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub kind: ErrorKind,
    /// The error type of `Proxy-Status`.
    pub token: &'static str,
}

impl Fault {
    pub const TIMEOUT: Self = Self { kind: ErrorKind::Timeout, token: "http_response_timeout" };
    pub const CONNECT_TIMEOUT: Self = Self { kind: ErrorKind::Connect, token: "connection_timeout" };
    pub const DNS: Self = Self { kind: ErrorKind::Dns, token: "dns_error" };
    pub const REFUSED: Self = Self { kind: ErrorKind::Connect, token: "connection_refused" };
    pub const UNREACHABLE: Self = Self { kind: ErrorKind::Connect, token: "destination_unavailable" };
    /// An address that whoever handed in the URL may not reach through us.
    pub const OUT_OF_REACH: Self = Self { kind: ErrorKind::Connect, token: "destination_ip_prohibited" };
    pub const TLS: Self = Self { kind: ErrorKind::Tls, token: "tls_protocol_error" };
    pub const CERTIFICATE: Self = Self { kind: ErrorKind::Tls, token: "tls_certificate_error" };
    pub const RESET: Self = Self { kind: ErrorKind::Reset, token: "connection_terminated" };
    /// An HTTP/2 server says that it did not look at the request, or the connection did not take it: as good as no
    /// connection, and nothing has happened that a second try could repeat.
    pub const NOT_PROCESSED: Self = Self { kind: ErrorKind::Connect, token: "connection_terminated" };
    pub const INCOMPLETE: Self = Self { kind: ErrorKind::Reset, token: "http_response_incomplete" };
    pub const GARBAGE: Self = Self { kind: ErrorKind::Malformed, token: "http_protocol_error" };
    pub const HEADERS_TOO_LARGE: Self = Self { kind: ErrorKind::Malformed, token: "http_response_header_section_size" };
    pub const SCHEMA: Self = Self { kind: ErrorKind::Schema, token: "http_protocol_error" };

    /// The provider of tokens said no; nothing went to the upstream.
    pub const TOKEN: Self = Self { kind: ErrorKind::Connect, token: "http_request_denied" };

    /// What hyper's error means for the attempt. The request had been handed to a connection.
    #[must_use]
    pub fn of(error: &hyper::Error) -> Self {
        if error.is_parse_too_large() {
            Self::HEADERS_TOO_LARGE
        } else if error.is_parse() {
            Self::GARBAGE
        } else if error.is_timeout() {
            Self::TIMEOUT
        } else {
            // A connection that closes, resets or is torn down by HTTP/2: the server may have seen the request.
            Self::RESET
        }
    }

    #[must_use]
    pub fn of_connect(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::ConnectionRefused => Self::REFUSED,
            std::io::ErrorKind::TimedOut => Self::CONNECT_TIMEOUT,
            _ => Self::UNREACHABLE,
        }
    }
}
