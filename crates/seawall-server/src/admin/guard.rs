//! Access control of the admin port, and headers of all its responses. With a token, each request needs it. Without one the port is on
//! loopback, and requests from foreign web pages in the operator's browser (DNS rebinding) are refused.

use crate::ServerState;
use crate::query::refused;
use crate::response::Refusal;
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::{ALLOW, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, ORIGIN};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use seawall_core::admit::limit::{Gcra, LimitAnswer, LimitCell};
use seawall_core::admit::table::CellTable;
use seawall_core::config::place;
use seawall_core::policy::{self, Algorithm, Fail, LimitKey, Mode, Rate};
use seawall_core::time::{Mono, Nanos};
use seawall_engine::caller::canonical;
use seawall_engine::secret::Secret;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum body of a request that expects none.
const MAX_UNASKED: u64 = 64 * 1024;

/// Only our own pages may use our resources, and they may load no others.
const HEADERS: [(HeaderName, &str); 5] = [
    (
        HeaderName::from_static("content-security-policy"),
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (HeaderName::from_static("x-content-type-options"), "nosniff"),
    (HeaderName::from_static("x-frame-options"), "DENY"),
    (HeaderName::from_static("referrer-policy"), "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Wrong tokens by address: an address with too many must wait, even with the right token.
#[derive(Debug)]
pub(crate) struct Failures {
    limit: Gcra,
    cells: Mutex<CellTable>,
}

impl Default for Failures {
    fn default() -> Self {
        let limit = Gcra::from(&policy::LimitPolicy {
            name: "admin".to_owned(),
            key: vec![LimitKey::Ip],
            rate: Rate::per_second(5),
            burst: 100,
            algorithm: Algorithm::TokenBucket,
            mode: Mode::Enforce,
            fail: Fail::Closed,
            max_wait: Nanos::ZERO,
        });
        Self { limit, cells: Mutex::new(CellTable::new(10_000)) }
    }
}

impl Failures {
    fn wait(&self, from: IpAddr, now: Mono) -> Option<Nanos> {
        let cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        let cell: LimitCell = cells.find(key(from)).copied().unwrap_or_default();
        match self.limit.check(&cell, now, 1) {
            LimitAnswer::Refused { retry_at } => Some(retry_at.since(now)),
            LimitAnswer::Go { .. } | LimitAnswer::TooCostly { .. } => None,
        }
    }

    fn count(&self, from: IpAddr, now: Mono) {
        let mut cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        // The result is ignored here; `wait` checks the limit before the next try.
        let _: LimitAnswer = self.limit.take(cells.cell(&self.limit, key(from), now), now, 1);
    }
}

fn key(from: IpAddr) -> u128 {
    match from {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

/// The operator's name in the audit log.
#[derive(Clone, Debug)]
pub(crate) struct Operator(pub String);

pub(crate) async fn guard(
    State((shared, failures)): State<(Arc<ServerState>, Arc<Failures>)>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let mut response = match admit(&shared, &failures, peer, &request) {
        Ok(who) => {
            request.extensions_mut().insert(Operator(who));
            as_problem(next.run(request).await)
        }
        Err(refusal) => refused(&refusal),
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn admit(shared: &ServerState, failures: &Failures, peer: SocketAddr, request: &Request) -> Result<String, Box<Refusal>> {
    let peer = canonical(peer);
    let path = request.uri().path();
    // Health checks need no token and may use any host name.
    if matches!(path, "/healthz" | "/readyz") {
        return Ok("anybody".to_owned());
    }
    let refuse = |status, code, detail: &str| Err(Box::new(Refusal::plain(status, code, detail)));
    let headers = request.headers();
    if !is_own_origin(headers) {
        return refuse(403, "origin_refused", "pages of other origins may not use the admin port");
    }
    let live = shared.live.load();
    let who = match &live.admin_token {
        None if !names_this_machine(headers) => {
            return refuse(403, "host_refused", "without a token the admin port answers only to loopback names");
        }
        None => "loopback".to_owned(),
        // The dashboard's files contain no data; the dashboard asks its user for the token.
        Some(_) if path == "/" || path.starts_with("/assets/") => "anybody".to_owned(),
        Some(token) => {
            let now = shared.clock.now().mono;
            if let Some(wait) = failures.wait(peer.ip(), now) {
                let refusal = Refusal::plain(429, "rate_limited", "too many wrong tokens came from this address").retry_after(Some(wait));
                return Err(Box::new(refusal));
            }
            match bearer(headers) {
                None => return refuse(401, "token_required", "send the admin token as `Authorization: Bearer …`"),
                Some(presented) if !is_token(token, presented) => {
                    failures.count(peer.ip(), now);
                    return refuse(401, "token_required", "this is not the admin token");
                }
                Some(_) => format!("token from {}", peer.ip()),
            }
        }
    };
    let length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(0u64);
    if length > MAX_UNASKED && matches!(*request.method(), Method::GET | Method::HEAD | Method::DELETE) {
        return refuse(413, "too_large", "this request needs no body");
    }
    Ok(who)
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

fn is_token(token: &Secret, presented: &[u8]) -> bool {
    token.is(presented)
}

fn names_this_machine(headers: &HeaderMap) -> bool {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost");
    let port_given = host.ends_with(']') || !host.contains(':');
    place::is_loopback(&if port_given { format!("{host}:0") } else { host.to_owned() })
}

/// Browsers name the page that sends a request. Other programs send no `Origin`.
fn is_own_origin(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(ORIGIN) else { return true };
    let host = headers.get(HOST).map(HeaderValue::as_bytes).unwrap_or_default();
    let origin = origin.as_bytes();
    let named = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
    named.is_some_and(|named| named.eq_ignore_ascii_case(host))
}

/// Converts the router's own errors to our format.
fn as_problem(response: Response) -> Response {
    let kind = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    if !response.status().is_client_error() || kind.starts_with(b"application/") {
        return response;
    }
    let status = response.status();
    let (code, detail) = match status {
        StatusCode::METHOD_NOT_ALLOWED => ("method_not_allowed", "this path does not take this method; `Allow` says which it takes"),
        _ => ("bad_request", "the path cannot be read"),
    };
    let mut told = refused(&Refusal::plain(status.as_u16(), code, detail));
    if let Some(allow) = response.headers().get(ALLOW) {
        told.headers_mut().insert(ALLOW, allow.clone());
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())).collect()
    }

    #[test]
    fn only_our_own_pages_may_ask() {
        for (origin, host, own) in [
            ("http://127.0.0.1:7330", "127.0.0.1:7330", true),
            ("https://ops.example", "ops.example", true),
            ("http://evil.example", "127.0.0.1:7330", false),
            ("http://127.0.0.1:8080", "127.0.0.1:7330", false),
            ("null", "127.0.0.1:7330", false),
        ] {
            assert_eq!(is_own_origin(&headers(&[("origin", origin), ("host", host)])), own, "{origin} {host}");
        }
        assert!(is_own_origin(&headers(&[("host", "x")])));
    }

    #[test]
    fn whoever_guesses_waits_and_nobody_else_does() {
        let (failures, here, there) = (Failures::default(), IpAddr::from([127, 0, 0, 1]), IpAddr::from([10, 0, 0, 1]));
        for _ in 0..100 {
            assert_eq!(failures.wait(here, Mono(0)), None);
            failures.count(here, Mono(0));
        }
        assert!(failures.wait(here, Mono(0)).is_some());
        assert_eq!(failures.wait(there, Mono(0)), None);
        assert_eq!(failures.wait(here, Mono(1_000_000_000)), None);
    }
}
