//! The caller of a request: identified by its token, or anonymous, with its address.

use crate::secret::{MissingSecret, Vault};
use http::header::{AUTHORIZATION, HeaderName};
use http::{HeaderMap, HeaderValue};
use ipnet::IpNet;
use seawall_core::config::Config;
use seawall_core::config::model::ForwardedHeader;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

pub const TOKEN: HeaderName = HeaderName::from_static("seawall-token");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED: HeaderName = HeaderName::from_static("forwarded");

/// A caller as named in limits and logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub name: Arc<str>,
    pub tenant: String,
    pub user: String,
}

/// The callers of a configuration. Only hashes of tokens are stored, so the timing of a lookup reveals nothing about a partial match.
#[derive(Debug)]
pub struct Callers {
    known: BTreeMap<[u8; 32], Arc<Caller>>,
    anonymous: Arc<Caller>,
    required: bool,
    trusted: Vec<IpNet>,
    forwarded: ForwardedHeader,
}

impl Callers {
    /// # Errors
    /// When a caller's token is missing.
    pub fn new(config: &Config, vault: Vault<'_>) -> Result<Self, MissingSecret> {
        let mut known = BTreeMap::new();
        for caller in &config.callers {
            let missing =
                |why: String| MissingSecret { path: format!("callers.{}.token", caller.name), reference: caller.token.to_string(), why };
            let token = vault(&caller.token).map_err(missing)?;
            let named = Caller { name: Arc::from(caller.name.as_str()), tenant: caller.tenant.clone(), user: caller.user.clone() };
            if let Some(other) = known.insert(hash(token.reveal().as_bytes()), Arc::new(named)) {
                return Err(missing(format!("it is the token of `callers.{}` as well, and a token says who is calling", other.name)));
            }
        }
        let anonymous = Arc::new(Caller { name: Arc::from("anonymous"), tenant: String::new(), user: String::new() });
        Ok(Self {
            known,
            anonymous,
            required: config.server.require_caller,
            trusted: config.server.trust_forwarded.clone(),
            forwarded: config.server.forwarded_header,
        })
    }

    /// Returns the caller, or `None` if a known caller is required and the request names none.
    #[must_use]
    pub fn identify(&self, headers: &HeaderMap) -> Option<Arc<Caller>> {
        if !self.known.is_empty() {
            if let Some(caller) = headers.get(TOKEN).and_then(|token| self.known.get(&hash(token.as_bytes()))) {
                return Some(Arc::clone(caller));
            }
            if let Some(caller) = headers.get_all(AUTHORIZATION).iter().find_map(|value| self.of_bearer(value)) {
                return Some(Arc::clone(caller));
            }
        }
        (!self.required).then(|| Arc::clone(&self.anonymous))
    }

    fn of_bearer(&self, value: &HeaderValue) -> Option<&Arc<Caller>> {
        bearer(value.as_bytes()).and_then(|token| self.known.get(&hash(token)))
    }

    /// Removes our own tokens from `Authorization`, however the caller was identified, so that no upstream sees them.
    pub fn take_tokens(&self, headers: &mut HeaderMap) {
        let is_ours = |value: &HeaderValue| self.of_bearer(value).is_some();
        if self.known.is_empty() || !headers.get_all(AUTHORIZATION).iter().any(is_ours) {
            return;
        }
        let theirs: Vec<HeaderValue> = headers.get_all(AUTHORIZATION).iter().filter(|value| !is_ours(value)).cloned().collect();
        headers.remove(AUTHORIZATION);
        for value in theirs {
            headers.append(AUTHORIZATION, value);
        }
    }

    /// Returns the address of a request: the peer's, or the one reported by a trusted proxy. Only the configured header is read, because a
    /// client could set the other one itself.
    #[must_use]
    pub fn address(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        if self.trusted.is_empty() || !self.trusts(peer) {
            return peer;
        }
        let mut nearest = peer;
        // From the nearest hop outward: the first untrusted address is the caller's.
        for hop in hops(self.forwarded, headers).iter().rev() {
            // An unreadable entry ends the search: nothing beyond it can be trusted.
            let Some(address) = hop else { break };
            nearest = *address;
            if !self.trusts(nearest) {
                break;
            }
        }
        nearest
    }

    /// Returns whether the client uses TLS according to the nearest trusted proxy; `None` without a report.
    #[must_use]
    pub fn speaks_tls(&self, peer: IpAddr, headers: &HeaderMap) -> Option<bool> {
        if self.trusted.is_empty() || !self.trusts(peer) {
            return None;
        }
        let name = match self.forwarded {
            ForwardedHeader::XForwardedFor => FORWARDED_PROTO,
            ForwardedHeader::Forwarded => FORWARDED,
        };
        let nearest = headers.get_all(name).iter().next_back()?.to_str().ok()?.rsplit(',').next()?;
        let scheme = match self.forwarded {
            ForwardedHeader::XForwardedFor => nearest,
            ForwardedHeader::Forwarded => parameter(nearest, "proto")?,
        };
        match scheme.trim().trim_matches('"').to_ascii_lowercase().as_str() {
            "https" => Some(true),
            "http" => Some(false),
            _ => None,
        }
    }

    fn trusts(&self, ip: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(&ip))
    }
}

fn hash(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// Returns the token of `Bearer TOKEN`.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token.trim_ascii())
}

/// Returns the address that each hop reports for the one before it, in order; `None` for an entry that is no address.
fn hops(header: ForwardedHeader, headers: &HeaderMap) -> Vec<Option<IpAddr>> {
    let name = match header {
        ForwardedHeader::XForwardedFor => FORWARDED_FOR,
        ForwardedHeader::Forwarded => FORWARDED,
    };
    let lines = headers.get_all(name).iter().map(|value| value.to_str().unwrap_or(""));
    let hops = lines.flat_map(|line| line.split(','));
    match header {
        ForwardedHeader::XForwardedFor => hops.map(address).collect(),
        ForwardedHeader::Forwarded => hops.map(forwarded_for).collect(),
    }
}

/// Returns the `for` parameter of one element of `Forwarded` (RFC 7239).
fn forwarded_for(element: &str) -> Option<IpAddr> {
    parameter(element, "for").and_then(address)
}

fn parameter<'a>(element: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = element.split(';').filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// Returns the canonical form of a peer: IPv4 through a dual-stack socket is IPv4.
#[must_use]
pub fn canonical(peer: SocketAddr) -> SocketAddr {
    SocketAddr::new(peer.ip().to_canonical(), peer.port())
}

/// Parses an address with or without port, brackets and quotes.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim().trim_matches('"');
    let address: IpAddr = match text.strip_prefix('[') {
        Some(inside) => inside.split(']').next()?.parse().ok()?,
        None => text.parse().ok().or_else(|| text.rsplit_once(':')?.0.parse().ok())?,
    };
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secret;
    use seawall_core::config;

    fn callers(server: &str) -> Callers {
        let text = format!(
            "[server]\n{server}\n[callers.acme]\ntoken = \"env:T\"\ntenant = \"acme-inc\"\n[upstreams.a]\nurl = \"http://127.0.0.1:1\"\n"
        );
        let config = config::load("t", text.as_bytes()).unwrap();
        Callers::new(&config, &|_| Ok(Secret::new("token-of-acme"))).unwrap()
    }

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn callers_are_known_by_their_token() {
        let callers = callers("");
        for known in
            [[("authorization", "Bearer token-of-acme")], [("authorization", "bearer token-of-acme")], [("seawall-token", "token-of-acme")]]
        {
            assert_eq!(&*callers.identify(&headers(&known)).unwrap().name, "acme");
        }
        for unknown in [[("authorization", "Bearer token-of-acm")], [("authorization", "Basic eA==")], [("x", "y")]] {
            assert_eq!(&*callers.identify(&headers(&unknown)).unwrap().name, "anonymous");
        }
    }

    #[test]
    fn one_token_cannot_be_two_callers() {
        let text = "[callers.a]\ntoken = \"env:A\"\n[callers.b]\ntoken = \"env:B\"\n[upstreams.a]\nurl = \"http://127.0.0.1:1\"\n";
        let config = config::load("t", text.as_bytes()).unwrap();
        let refused = Callers::new(&config, &|_| Ok(Secret::new("one-and-the-same"))).unwrap_err().to_string();
        assert!(refused.contains("`callers.b.token`") && refused.contains("the token of `callers.a`"), "{refused}");
        assert!(!refused.contains("one-and-the-same"));
    }

    #[test]
    fn a_caller_can_be_required() {
        let callers = callers("require_caller = true");
        assert!(callers.identify(&headers(&[])).is_none());
        assert!(callers.identify(&headers(&[("seawall-token", "token-of-acme")])).is_some());
    }

    #[test]
    fn only_trusted_proxies_are_believed() {
        let callers = callers("trust_forwarded = [\"10.0.0.0/8\"]");
        let spoofed = headers(&[("x-forwarded-for", "1.1.1.1, 2.2.2.2:80, 10.0.0.9")]);
        let (inside, outside) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([9, 9, 9, 9]));
        assert_eq!(callers.address(outside, &spoofed), outside);
        assert_eq!(callers.address(inside, &spoofed), IpAddr::from([2, 2, 2, 2]));
        assert_eq!(callers.address(inside, &headers(&[])), inside);
        let within = headers(&[("x-forwarded-for", "10.0.0.7, 10.0.0.8")]);
        assert_eq!(callers.address(inside, &within), IpAddr::from([10, 0, 0, 7]));
    }

    #[test]
    fn the_header_that_is_not_named_is_the_clients_own_and_not_read() {
        let inside = IpAddr::from([10, 0, 0, 1]);
        let both = headers(&[("forwarded", "for=7.7.7.7"), ("x-forwarded-for", "6.6.6.6")]);
        let by = |header: &str| callers(&format!("trust_forwarded = [\"10.0.0.0/8\"]\n{header}")).address(inside, &both);
        assert_eq!(by(""), IpAddr::from([6, 6, 6, 6]), "what most proxies write is read by default");
        assert_eq!(by("forwarded_header = \"x-forwarded-for\""), IpAddr::from([6, 6, 6, 6]));
        assert_eq!(by("forwarded_header = \"forwarded\""), IpAddr::from([7, 7, 7, 7]));
    }

    #[test]
    fn a_trusted_proxy_says_whether_its_client_speaks_tls() {
        let (inside, outside) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([9, 9, 9, 9]));
        let both = headers(&[("x-forwarded-proto", "http, HTTPS"), ("forwarded", "for=1.1.1.1;proto=http")]);
        let by = |header: &str, peer| callers(&format!("trust_forwarded = [\"10.0.0.0/8\"]\n{header}")).speaks_tls(peer, &both);
        assert_eq!((by("", inside), by("", outside)), (Some(true), None));
        assert_eq!(by("forwarded_header = \"forwarded\"", inside), Some(false));
        assert_eq!(callers("").speaks_tls(inside, &both), None);
    }

    #[test]
    fn nothing_beyond_a_hop_that_cannot_be_read_counts() {
        let (inside, server) = (IpAddr::from([10, 0, 0, 1]), "trust_forwarded = [\"10.0.0.0/8\"]");
        let named = |text| callers(server).address(inside, &headers(&[("x-forwarded-for", text)]));
        assert_eq!(named("1.1.1.1, unknown"), inside, "a client may write whatever it likes before that");
        assert_eq!(named("1.1.1.1, , 10.0.0.2"), IpAddr::from([10, 0, 0, 2]));
        let standard = callers(&format!("{server}\nforwarded_header = \"forwarded\""));
        let named = |text| standard.address(inside, &headers(&[("forwarded", text)]));
        assert_eq!(named("for=\"[2001:db8::1]:8080\";proto=https, for=10.1.1.1"), "2001:db8::1".parse::<IpAddr>().unwrap());
        assert_eq!(named("for=1.1.1.1, for=_hidden"), inside);
        assert_eq!(named("for=1.1.1.1, proto=https"), inside);
        assert_eq!(named("for=\"1.1.1.1, for=2.2.2.2"), IpAddr::from([2, 2, 2, 2]));
    }

    #[test]
    fn ipv4_is_the_same_through_a_socket_of_both_families() {
        let callers = callers("trust_forwarded = [\"::ffff:10.0.0.0/104\"]");
        let mapped = canonical("[::ffff:10.0.0.1]:80".parse().unwrap()).ip();
        assert_eq!(mapped, IpAddr::from([10, 0, 0, 1]));
        let named = headers(&[("x-forwarded-for", "::ffff:2.2.2.2")]);
        assert_eq!(callers.address(mapped, &named), IpAddr::from([2, 2, 2, 2]));
    }
}
