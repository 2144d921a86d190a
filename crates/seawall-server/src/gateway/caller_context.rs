//! The caller of a request: name, address, credential and the time it will wait.

use crate::headers::HeaderMarks;
use http::HeaderMap;
use seawall_core::time::Nanos;
use seawall_engine::caller::Caller;
use seawall_engine::credential_pauses::CredentialMark;
use seawall_engine::limits::LimitSubject;
use seawall_engine::links::GatewayUrl;
use seawall_engine::record::RequestLine;
use seawall_engine::runtime::LiveEndpoint;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// The caller of one request, for limits, pauses and records.
pub(crate) struct CallerContext {
    address: IpAddr,
    pub(crate) caller: Arc<Caller>,
    pub(crate) left: Nanos,
    /// The URL by which the caller reached the upstream; `None` for the gateway's own requests, which follow no link.
    pub(crate) url: Option<GatewayUrl>,
    /// A copy of the caller's headers, if a limit reads them.
    asked: Option<Box<HeaderMap>>,
    /// The request line, once the endpoint is known.
    pub(crate) request: Option<Arc<RequestLine>>,
    /// A mark of the caller's own credential, if a provider's pause applies to it.
    mark: CredentialMark,
}

impl CallerContext {
    pub(crate) const fn new(address: IpAddr, caller: Arc<Caller>, left: Nanos, url: Option<GatewayUrl>) -> Self {
        Self { address, caller, left, url, asked: None, request: None, mark: CredentialMark::NONE }
    }

    /// Describes the gateway itself, for its own request with this caller's credential.
    pub(crate) fn on_behalf_of(&self, left: Nanos) -> Self {
        let caller = Caller { name: Arc::from("seawall"), tenant: String::new(), user: String::new() };
        Self { mark: self.mark, ..Self::new(IpAddr::V4(Ipv4Addr::LOCALHOST), Arc::new(caller), left, None) }
    }

    /// Copies the parts of the caller's headers that limits and pauses need, before headers are removed.
    pub(crate) fn capture(&mut self, headers: &HeaderMap, query: Option<&str>, marks: HeaderMarks, endpoint: &LiveEndpoint) {
        if query.is_some() || marks.has(HeaderMarks::CREDENTIAL) {
            self.mark = CredentialMark::sent(&endpoint.plan, headers, query);
        }
        if endpoint.state.looks_at_headers {
            self.asked = Some(Box::new(headers.clone()));
        }
    }

    pub(crate) fn limit_subject<'a>(&'a self, bare: &'a HeaderMap) -> LimitSubject<'a> {
        let Caller { name, tenant, user } = &*self.caller;
        LimitSubject {
            ip: self.address,
            caller: name,
            user,
            tenant,
            headers: self.asked.as_deref().unwrap_or(bare),
            credential: "",
            mark: self.mark,
        }
    }
}
