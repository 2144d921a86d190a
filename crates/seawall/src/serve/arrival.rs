//! How a request reached the gateway, and its response's links as its caller gets them.

use super::caller_context::CallerContext;
use super::gateway::Gateway;
use http::header::HOST;
use http::{HeaderMap, HeaderValue, Method, request};
use seawall_engine::h1::Unread;
use seawall_engine::links::{GatewayUrl, Links};
use seawall_engine::live::{Live, LiveEndpoint, LiveUpstream};
use std::net::SocketAddr;
use std::sync::Arc;

/// Host and port that a request names: those of its URL before those of its `Host` header (RFC 9112 §3.2.2). Empty where it names none.
pub(super) fn authority<'a>(head: &'a request::Parts, unread: Option<&'a Unread>) -> &'a str {
    let field = || match unread {
        Some(unread) => std::str::from_utf8(unread.host()).ok(),
        None => head.headers.get(HOST)?.to_str().ok(),
    };
    head.uri.authority().map(|authority| hostport(authority.as_str())).or_else(field).unwrap_or("")
}

/// An authority without the user that it may name.
fn hostport(authority: &str) -> &str {
    authority.rsplit('@').next().unwrap_or(authority)
}

/// The URL of a request, `prefix` bytes of whose path name its upstream.
pub(super) fn gateway_url(head: &request::Parts, unread: Option<&Unread>, live: &Live, peer: SocketAddr, prefix: usize) -> GatewayUrl {
    let field = || unread.map_or_else(|| head.headers.get(HOST).cloned(), Unread::host_value);
    let authority = match head.uri.authority() {
        Some(authority) => HeaderValue::from_str(hostport(authority.as_str())).ok(),
        None => field(),
    };
    let said = head.uri.scheme_str().map(|scheme| scheme == "https");
    let is_tls = live.callers.speaks_tls(peer.ip(), &head.headers).or(said).unwrap_or(live.front.is_some());
    GatewayUrl::new(authority, is_tls, head.uri.path(), prefix)
}

/// Path and query behind the `prefix` bytes that name the upstream.
pub(super) fn below(head: &request::Parts, prefix: usize) -> &str {
    head.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str).get(prefix..).unwrap_or("/")
}

/// The endpoint of a target below its upstream. A query may follow the upstream's name at once.
pub(super) fn endpoint<'a>(upstream: &'a LiveUpstream, method: &Method, below: &str) -> &'a Arc<LiveEndpoint> {
    upstream.endpoint(method.as_str(), if below.starts_with('/') { below } else { "/" })
}

impl Gateway {
    /// The endpoint that a refused request names, whose callers read its provider's error format.
    pub(super) fn named_endpoint(&self, head: &request::Parts, unread: Option<&Unread>) -> Option<Arc<LiveEndpoint>> {
        let live = self.shared.live.load();
        let (upstream, prefix) = live.route(|| authority(head, unread), head.uri.path())?;
        let is_own = head.uri.path().starts_with("/-/");
        (!is_own).then(|| Arc::clone(endpoint(upstream, &head.method, below(head, prefix))))
    }

    /// Points a response's links to the gateway where they point to its upstream. Stored responses hold them as they came, since
    /// each caller has its own way here.
    pub(super) fn keep_links_inside(
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
