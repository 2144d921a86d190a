//! Who sends a request: a caller known by its token, or nobody in particular, and from which address.

use crate::live::{MissingSecret, Vault};
use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderName};
use ipnet::IpNet;
use seawall_core::config::Config;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

pub const TOKEN: HeaderName = HeaderName::from_static("seawall-token");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED: HeaderName = HeaderName::from_static("forwarded");

/// A caller as limits and logs name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub name: Arc<str>,
    pub tenant: String,
    pub user: String,
}

/// The callers of a configuration. Tokens are known by their hash only, so that looking one up tells nothing about
/// how much of it was right.
#[derive(Debug)]
pub struct Callers {
    known: BTreeMap<[u8; 32], Arc<Caller>>,
    anonymous: Arc<Caller>,
    required: bool,
    trusted: Vec<IpNet>,
}

/// Who it is, and whether `Authorization` was spent on telling us.
#[derive(Clone, Debug)]
pub struct Identified {
    pub caller: Arc<Caller>,
    pub by_authorization: bool,
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
        Ok(Self { known, anonymous, required: config.server.require_caller, trusted: config.server.trust_forwarded.clone() })
    }

    /// The caller, or `None` where one is required and the request names none that is known.
    #[must_use]
    pub fn identify(&self, headers: &HeaderMap) -> Option<Identified> {
        if !self.known.is_empty() {
            if let Some(caller) = headers.get(TOKEN).and_then(|token| self.known.get(&hash(token.as_bytes()))) {
                return Some(Identified { caller: Arc::clone(caller), by_authorization: false });
            }
            let bearer = headers.get(AUTHORIZATION).map(|value| value.as_bytes()).and_then(bearer);
            if let Some(caller) = bearer.and_then(|token| self.known.get(&hash(token))) {
                return Some(Identified { caller: Arc::clone(caller), by_authorization: true });
            }
        }
        (!self.required).then(|| Identified { caller: Arc::clone(&self.anonymous), by_authorization: false })
    }

    /// The address that a request comes from: the peer's, unless the peer is a forwarder that we were told to believe.
    #[must_use]
    pub fn address(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        if self.trusted.is_empty() || !self.trusts(peer) {
            return peer;
        }
        let named = forwarded(headers);
        // From the nearest hop outward: the first that nobody vouches for is the caller.
        named.iter().rev().find(|ip| !self.trusts(**ip)).or(named.first()).copied().unwrap_or(peer)
    }

    fn trusts(&self, ip: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(&ip))
    }
}

fn hash(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// The token of `Bearer TOKEN`.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token.trim_ascii())
}

/// Addresses in the order in which hops added them: `Forwarded` (RFC 7239) where there is one, else `X-Forwarded-For`.
fn forwarded(headers: &HeaderMap) -> Vec<IpAddr> {
    let texts = |name: &HeaderName| headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect::<Vec<_>>().join(",");
    let standard = texts(&FORWARDED);
    if !standard.is_empty() {
        let parts = standard.split([',', ';']).filter_map(|part| part.trim().split_once('='));
        return parts.filter(|(name, _)| name.eq_ignore_ascii_case("for")).filter_map(|(_, value)| address(value)).collect();
    }
    texts(&FORWARDED_FOR).split(',').filter_map(address).collect()
}

/// An address with or without port, brackets and quotes.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim().trim_matches('"');
    if let Some(inside) = text.strip_prefix('[') {
        return inside.split(']').next()?.parse().ok();
    }
    text.parse().ok().or_else(|| text.rsplit_once(':')?.0.parse().ok())
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
            assert_eq!(&*callers.identify(&headers(&known)).unwrap().caller.name, "acme");
        }
        for unknown in [[("authorization", "Bearer token-of-acm")], [("authorization", "Basic eA==")], [("x", "y")]] {
            assert_eq!(&*callers.identify(&headers(&unknown)).unwrap().caller.name, "anonymous");
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
    fn only_trusted_forwarders_are_believed() {
        let callers = callers("trust_forwarded = [\"10.0.0.0/8\"]");
        let spoofed = headers(&[("x-forwarded-for", "1.1.1.1, 2.2.2.2:80, 10.0.0.9")]);
        let (inside, outside) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([9, 9, 9, 9]));
        assert_eq!(callers.address(outside, &spoofed), outside);
        assert_eq!(callers.address(inside, &spoofed), IpAddr::from([2, 2, 2, 2]));
        let standard = headers(&[("forwarded", "for=\"[2001:db8::1]:8080\";proto=https, for=10.1.1.1")]);
        assert_eq!(callers.address(inside, &standard), "2001:db8::1".parse::<IpAddr>().unwrap());
        assert_eq!(callers.address(inside, &headers(&[])), inside);
    }
}
