//! The destination of a row: its upstream or origin, and the request target there.

use super::row::InputRow;
use http::Method;
use seawall_core::request_target::{BadTarget, RequestTarget};
use seawall_engine::record::RequestLine;
use seawall_engine::runtime::{LiveEndpoint, LiveUpstream};
use seawall_engine::upstream_target::{base_target, target};
use std::sync::Arc;

pub(super) struct Destination {
    pub upstream: Arc<LiveUpstream>,
    pub endpoint: Arc<LiveEndpoint>,
    pub configured: bool,
}

impl Destination {
    /// The request line that records show for a row.
    pub(super) fn request_line(&self, row: &InputRow) -> Arc<RequestLine> {
        let method = Method::from_bytes(row.method.as_bytes()).unwrap_or_default();
        RequestLine::new(&method, &self.endpoint.route, &row.below)
    }

    /// The request target of a row.
    ///
    /// # Errors
    /// When it cannot be part of a request line.
    pub(super) fn request_target(&self, below: &str) -> Result<RequestTarget, BadTarget> {
        let is_base = !below.starts_with('/') && !self.upstream.spec.url.path.is_empty();
        match (self.configured, is_base) {
            (true, true) => base_target(&self.upstream, below),
            (true, false) => target(&self.upstream, below),
            (false, _) => RequestTarget::new(below),
        }
    }

    /// The whole URL of a row, without any key.
    pub(super) fn url(&self, below: &str) -> String {
        let base = &self.upstream.spec.url;
        let mut url = String::with_capacity(base.host.len() + base.path.len() + below.len() + 16);
        url.push_str(if base.tls { "https://" } else { "http://" });
        url.push_str(&base.authority());
        url.push_str(&base.path);
        url.push_str(below);
        url
    }
}
