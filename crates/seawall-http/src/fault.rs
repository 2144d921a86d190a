//! Failures of an attempt without a usable response, in two vocabularies: ours for policies and logs, RFC 9209's for the `Proxy-Status`
//! header.

use crate::egress::OUT_OF_REACH;
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
    /// An upload stood still for too long.
    pub const STALLED: Self = Self { kind: ErrorKind::Timeout, token: "connection_write_timeout" };
    pub const DNS: Self = Self { kind: ErrorKind::Dns, token: "dns_error" };
    pub const REFUSED: Self = Self { kind: ErrorKind::Connect, token: "connection_refused" };
    pub const UNREACHABLE: Self = Self { kind: ErrorKind::Connect, token: "destination_unavailable" };
    /// An address outside the reach of a URL from outside.
    pub const OUT_OF_REACH: Self = Self { kind: ErrorKind::Connect, token: "destination_ip_prohibited" };
    pub const TLS: Self = Self { kind: ErrorKind::Tls, token: "tls_protocol_error" };
    pub const CERTIFICATE: Self = Self { kind: ErrorKind::Tls, token: "tls_certificate_error" };
    pub const RESET: Self = Self { kind: ErrorKind::Reset, token: "connection_terminated" };
    /// An HTTP/2 server says that it did not process the request, or the connection did not accept it. As with a failed connection, nothing
    /// has been executed that a retry could repeat.
    pub const NOT_PROCESSED: Self = Self { kind: ErrorKind::Connect, token: "connection_terminated" };
    pub const INCOMPLETE: Self = Self { kind: ErrorKind::Reset, token: "http_response_incomplete" };
    pub const GARBAGE: Self = Self { kind: ErrorKind::Malformed, token: "http_protocol_error" };
    pub const HEADERS_TOO_LARGE: Self = Self { kind: ErrorKind::Malformed, token: "http_response_header_section_size" };
    pub const SCHEMA: Self = Self { kind: ErrorKind::Schema, token: "http_protocol_error" };

    /// The token provider refused; nothing went to the upstream.
    pub const TOKEN: Self = Self { kind: ErrorKind::Connect, token: "http_request_denied" };

    /// A failure without any relation to the upstream, which got no request: its token provider is unavailable, or this machine has no file
    /// descriptor or local port left.
    pub const UNRELATED: Self = Self { kind: ErrorKind::Connect, token: "proxy_internal_error" };

    /// The same, detected when the time of the attempt was over.
    pub const UNRELATED_TIMEOUT: Self = Self { kind: ErrorKind::Timeout, token: "proxy_internal_error" };
    /// The caller's own body broke off or is too large, so the request was aborted. The upstream had not failed by then.
    pub const ABANDONED: Self = Self { kind: ErrorKind::Reset, token: "http_request_error" };

    /// A description for people, if nothing more specific is known.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::TIMEOUT => "no response in time",
            Self::CONNECT_TIMEOUT => "no connection in time",
            Self::STALLED => "the upload stood still for longer than `timeout.idle`",
            Self::DNS => "the host's name cannot be resolved",
            Self::REFUSED => "the connection was refused",
            Self::UNREACHABLE => "the host cannot be reached",
            Self::OUT_OF_REACH => OUT_OF_REACH,
            Self::TLS => "the TLS handshake failed",
            Self::CERTIFICATE => "the host's certificate is not trusted",
            Self::RESET => "the connection was closed before a response came",
            Self::NOT_PROCESSED => "the server closed the connection and did not process the request",
            Self::INCOMPLETE => "the response broke off",
            Self::GARBAGE => "the response is not valid HTTP",
            Self::HEADERS_TOO_LARGE => "the headers of the response are too large",
            Self::SCHEMA => "the response does not have the expected shape",
            Self::TOKEN => "the provider of tokens refused",
            Self::ABANDONED => "the caller's body broke off",
            _ => "the upstream was not asked",
        }
    }

    /// The fault for hyper's error after the request was passed to a connection.
    #[must_use]
    pub fn of(error: &hyper::Error) -> Self {
        if error.is_parse_too_large() {
            Self::HEADERS_TOO_LARGE
        } else if error.is_parse() {
            Self::GARBAGE
        } else if error.is_timeout() {
            Self::TIMEOUT
        } else {
            // A connection that closes, resets or is torn down by HTTP/2: the server may have received the request.
            Self::RESET
        }
    }

    #[must_use]
    pub fn of_connect(error: &std::io::Error) -> Self {
        match error.kind() {
            _ if Shortage::of(error).is_some() => Self::UNRELATED,
            std::io::ErrorKind::ConnectionRefused => Self::REFUSED,
            std::io::ErrorKind::TimedOut => Self::CONNECT_TIMEOUT,
            _ => Self::UNREACHABLE,
        }
    }
}

/// A resource that this machine lacks, so that it could not try to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    Files,
    Memory,
    /// Local ports, or a local address of the upstream's address family.
    Ports,
}

impl Shortage {
    pub fn of(error: &std::io::Error) -> Option<Self> {
        match error.raw_os_error()? {
            ENFILE | EMFILE => Some(Self::Files),
            ENOBUFS | ENOMEM => Some(Self::Memory),
            _ if error.kind() == std::io::ErrorKind::AddrNotAvailable => Some(Self::Ports),
            _ => None,
        }
    }

    /// An explanation for the operator, with the remedy.
    pub const fn detail(self) -> &'static str {
        match self {
            Self::Files => "the gateway has no open file left for a connection; raise its limit of open files (ulimit -n)",
            Self::Memory => "the gateway's machine has no memory left for a connection",
            Self::Ports => "the gateway's machine has no local port or address left for a connection to this upstream",
        }
    }
}

// These numbers are the same on every Unix that this is built for, except ENOBUFS.
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;
const ENOMEM: i32 = 12;
const ENOBUFS: i32 = if cfg!(target_os = "linux") { 105 } else { 55 };

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind as Io};

    #[test]
    fn what_this_machine_lacks_is_no_fault_of_the_upstream() {
        for number in [ENFILE, EMFILE, ENOMEM, ENOBUFS] {
            assert_eq!(Fault::of_connect(&Error::from_raw_os_error(number)), Fault::UNRELATED, "{number}");
        }
        let taken = std::net::TcpListener::bind("192.0.2.1:0").unwrap_err();
        assert_eq!((Shortage::of(&taken), Fault::of_connect(&taken)), (Some(Shortage::Ports), Fault::UNRELATED));
        assert_eq!(Fault::of_connect(&Error::from(Io::ConnectionRefused)), Fault::REFUSED);
        assert_eq!(Fault::of_connect(&Error::from(Io::HostUnreachable)), Fault::UNREACHABLE);
    }
}
