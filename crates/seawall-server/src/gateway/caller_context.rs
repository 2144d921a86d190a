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

/// One caller's request, for limits, pauses and records.
pub(crate) struct CallerContext {
    address: IpAddr,
    pub(crate) caller: Arc<Caller>,
    pub(crate) left: Nanos,
    /// The URL by which it reached the upstream here; nothing for the gateway itself, which follows no link.
    pub(crate) url: Option<GatewayUrl>,
    /// The caller's own headers, where a limit looks at them.
    asked: Option<Box<HeaderMap>>,
    /// What the caller asks for, once its endpoint is known.
    pub(crate) request: Option<Arc<RequestLine>>,
    /// The caller's own credential, where it is what a provider's pause binds.
    mark: CredentialMark,
}

impl CallerContext {
    pub(crate) const fn new(address: IpAddr, caller: Arc<Caller>, left: Nanos, url: Option<GatewayUrl>) -> Self {
        Self { address, caller, left, url, asked: None, request: None, mark: CredentialMark::NONE }
    }

    /// The gateway itself, for a request of its own that it sends with this caller's credential.
    pub(crate) fn on_behalf_of(&self, left: Nanos) -> Self {
        let caller = Caller { name: Arc::from("seawall"), tenant: String::new(), user: String::new() };
        Self { mark: self.mark, ..Self::new(IpAddr::V4(Ipv4Addr::LOCALHOST), Arc::new(caller), left, None) }
    }

    /// Keeps what limits and pauses ask of the caller's own headers, before any is taken out.
    pub(crate) fn look_at(&mut self, headers: &HeaderMap, query: Option<&str>, marks: HeaderMarks, endpoint: &LiveEndpoint) {
        if query.is_some() || marks.has(HeaderMarks::CREDENTIAL) {
            self.mark = CredentialMark::sent(&endpoint.plan, headers, query);
        }
        if endpoint.state.looks_at_headers {
            self.asked = Some(Box::new(headers.clone()));
        }
    }

    pub(crate) fn who<'a>(&'a self, bare: &'a HeaderMap) -> LimitSubject<'a> {
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
