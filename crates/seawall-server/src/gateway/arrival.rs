//! The entrance of a request to the gateway, and links of its response rewritten for the caller.

use super::Gateway;
use super::caller_context::CallerContext;
use crate::response::Refusal;
use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, Method, request};
use seawall_core::record::Code;
use seawall_engine::links::{GatewayUrl, Links};
use seawall_engine::runtime::{Live, LiveEndpoint, LiveUpstream};
use seawall_http::h1::RawRequestHeaders;
use std::net::SocketAddr;
use std::sync::Arc;

/// Returns host and port of a request: from its URL, or else from its `Host` header (RFC 9112 §3.2.2). Empty if it has none.
pub(crate) fn authority<'a>(head: &'a request::Parts, unread: Option<&'a RawRequestHeaders>) -> &'a str {
    let field = || match unread {
        Some(unread) => std::str::from_utf8(unread.host()).ok(),
        None => head.headers.get(HOST)?.to_str().ok(),
    };
    head.uri.authority().map(|authority| hostport(authority.as_str())).or_else(field).unwrap_or("")
}

/// Removes the user part of an authority.
fn hostport(authority: &str) -> &str {
    authority.rsplit('@').next().unwrap_or(authority)
}

/// The entrance by which a caller connected.
#[derive(Clone, Debug)]
pub(crate) struct Entrance {
    pub peer: SocketAddr,
    /// The address, if it is an upstream's own port.
    pub port: Option<Arc<str>>,
}

impl Entrance {
    /// Returns the upstream of a request, and how many bytes of its path name it.
    pub(crate) fn route<'a>(
        &self,
        live: &'a Live,
        head: &request::Parts,
        unread: Option<&RawRequestHeaders>,
    ) -> Option<(&'a Arc<LiveUpstream>, usize)> {
        match &self.port {
            Some(port) => live.at_port(port).map(|upstream| (upstream, 0)),
            None => live.route(|| authority(head, unread), head.uri.path()),
        }
    }

    /// Returns the refusal of a request that matches no upstream.
    pub(crate) fn nowhere(&self) -> Refusal {
        match self.port {
            Some(_) => Refusal::code(404, Code::NoUpstream, "no upstream has this port any more").closing(),
            None => Refusal::of(Code::NoUpstream, None),
        }
    }

    /// Returns the URL of a request; the first `prefix` bytes of its path name the upstream.
    pub(crate) fn gateway_url(&self, head: &request::Parts, unread: Option<&RawRequestHeaders>, live: &Live, prefix: usize) -> GatewayUrl {
        let copied = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
        let field =
            || unread.map_or_else(|| head.headers.get(HOST).map(|host| copied(host.as_bytes())), |unread| Some(unread.shared_host()));
        let authority = match head.uri.authority() {
            Some(authority) => Some(copied(hostport(authority.as_str()).as_bytes())),
            None => field(),
        };
        let said = head.uri.scheme_str().map(|scheme| scheme == "https");
        let is_tls = live.callers.speaks_tls(self.peer.ip(), &head.headers).or(said).unwrap_or(live.front.is_some());
        match self.port {
            Some(_) => GatewayUrl::at_own_port(authority, is_tls),
            None => GatewayUrl::new(authority, is_tls, head.uri.path(), prefix),
        }
    }
}

/// Returns path and query behind the `prefix` bytes that name the upstream.
pub(crate) fn below(head: &request::Parts, prefix: usize) -> &str {
    head.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str).get(prefix..).unwrap_or("/")
}

/// Returns the endpoint of a target below its upstream. A query may follow the upstream's name directly.
pub(crate) fn endpoint<'a>(upstream: &'a LiveUpstream, method: &Method, below: &str) -> &'a Arc<LiveEndpoint> {
    upstream.endpoint(method.as_str(), if below.starts_with('/') { below } else { "/" })
}

impl Gateway {
    /// Returns the endpoint that a refused request names; it determines the error format.
    pub(crate) fn named_endpoint(
        &self,
        head: &request::Parts,
        unread: Option<&RawRequestHeaders>,
        from: &Entrance,
    ) -> Option<Arc<LiveEndpoint>> {
        let live = self.shared.live.load();
        let (upstream, prefix) = from.route(&live, head, unread)?;
        let is_own = head.uri.path().starts_with("/-/");
        (!is_own).then(|| Arc::clone(endpoint(upstream, &head.method, below(head, prefix))))
    }

    /// Returns the endpoint for unreadable input on an upstream's own port.
    pub(crate) fn port_endpoint(&self, port: Option<&Arc<str>>) -> Option<Arc<LiveEndpoint>> {
        self.shared.live.load().at_port(port?)?.endpoints.last().cloned()
    }

    /// Rewrites links in a response from its upstream to the gateway. Stored responses keep the original links, because callers may use
    /// different addresses of the gateway.
    pub(crate) fn keep_links_inside(
        &self,
        from: &CallerContext,
        (upstream, endpoint): (&LiveUpstream, &LiveEndpoint),
        target: &str,
        headers: &mut HeaderMap,
    ) {
        let Some(url) = from.url.as_ref().filter(|_| endpoint.spec.policy.rewrite_links && Links::are_in(headers)) else { return };
        Links { live: &self.shared.live.load(), upstream, target, url }.rewrite(headers);
    }
}
