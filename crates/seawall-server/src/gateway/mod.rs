//! Turns a caller's request into a call, and the end of the call into a response.

mod arrival;
mod async_call;
mod cached;
mod call_end;
mod call_records;
mod caller_context;
mod caller_deadline;
mod fallback;
mod idempotent_call;
pub(crate) mod request_check;

use crate::ServerState;
use crate::connection_limit::ConnectionLimit;
use crate::headers::{self, HeaderMarks, OwnHeaders};
use crate::idempotency::{self, KeyReservation};
use crate::response::{CallerResponse, HttpDate, Refusal, SignedHeaders};
pub(crate) use arrival::Entrance;
use arrival::{below, endpoint};
use cached::Lookup;
use call_end::{never_sent, own_path, refusal};
use caller_context::CallerContext;
use caller_deadline::{deadline, is_repeat};
use http::{HeaderMap, HeaderValue, Method, Response, request};
use http_body::Body as _;
use seawall_core::call::{self, Outcome};
use seawall_core::config::AtCost;
use seawall_core::id::CallId;
use seawall_core::policy::CachePolicy;
use seawall_core::record::{AttemptOutcome, Class, Code, Reason};
use seawall_core::request_target::RequestTarget;
use seawall_core::rng::Rng;
use seawall_core::time::{Nanos, Wall};
use seawall_engine::cache::{self, Revalidation};
use seawall_engine::deadlines::Deadlines;
use seawall_engine::driver::{CallContext, Finished, drive};
use seawall_engine::record::{EndpointNames, Record, RequestLine, TokenRecord};
use seawall_engine::runtime::{Live, LiveEndpoint, LiveUpstream};
use seawall_engine::sender::Sending;
use seawall_engine::trace::TraceContext;
use seawall_engine::transport::{HttpTransport, ReplayBody};
use seawall_engine::upstream_target::target;
use seawall_http::connection_pool::ConnectionPool;
use seawall_http::h1::{RawRequestHeaders, ReceivedBody};
use seawall_http::request_body::Inbound;
use seawall_http::request_headers::RequestHeaders;
use seawall_http::response_body::{HeldPermits, Relay};
use seawall_http::tls::Front;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The gateway of one worker.
#[derive(Debug)]
pub(crate) struct Gateway {
    pub(crate) shared: Arc<ServerState>,
    pub(crate) sending: Sending,
    deadlines: Deadlines,
    rng: RefCell<Rng>,
    pub(crate) ids: RefCell<seawall_engine::ids::Ids>,
    /// Names for requests that match no upstream or have no known caller.
    pub(crate) nowhere: Arc<EndpointNames>,
    pub(crate) nobody: Arc<str>,
    /// An empty header map for callers without header-based limits.
    bare: HeaderMap,
    date: HttpDate,
}

/// The attempts of a call, collected if its history is kept.
type Trail = RefCell<Vec<(Wall, AttemptOutcome)>>;

/// Range of the random part of `Retry-After` for calls refused by overload.
const SPREAD: Nanos = Nanos::from_secs(2);

/// A request that has been matched to its endpoint.
pub(crate) struct RoutedRequest<'a> {
    pub(crate) upstream: &'a Arc<LiveUpstream>,
    pub(crate) endpoint: &'a Arc<LiveEndpoint>,
    pub(crate) target: RequestTarget,
    pub(crate) from: CallerContext,
    /// The caller's unparsed headers, if no policy needs to read them. Then the parsed headers are empty.
    pub(crate) unread: Option<RawRequestHeaders>,
}

/// The request as sent to the upstream, except for the credential.
struct OutgoingRequest {
    method: Method,
    target: RequestTarget,
    headers: HeaderMap,
    unread: Option<RawRequestHeaders>,
    traced: bool,
    repeated: bool,
}

/// Counts a call in flight until it is dropped.
struct InFlight(Arc<AtomicU32>);

impl InFlight {
    fn enter(upstream: &LiveUpstream) -> Self {
        upstream.in_flight.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&upstream.in_flight))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Gateway {
    pub(crate) fn new(shared: Arc<ServerState>) -> Self {
        let sending = Sending { clock: shared.clock.clone(), pool: ConnectionPool::default(), connector: shared.connector.clone() };
        let (nowhere, nobody, bare) = (Arc::new(EndpointNames::new("none", "none")), Arc::from("anonymous"), HeaderMap::new());
        let (rng, ids) = (RefCell::new(Rng::seeded(seawall_engine::entropy())), RefCell::default());
        Self { shared, sending, deadlines: Deadlines::default(), rng, ids, nowhere, nobody, bare, date: HttpDate::default() }
    }

    pub(crate) fn seats(&self) -> Arc<ConnectionLimit> {
        Arc::clone(&self.shared.seats)
    }

    pub(crate) fn front(&self) -> Option<Front> {
        self.shared.live.load().front.clone()
    }

    pub(crate) fn head_timeout(&self) -> std::time::Duration {
        self.shared.head_timeout
    }

    pub(crate) fn sweep(&self) {
        self.sending.pool.sweep(self.sending.clock.now().mono);
    }

    pub(crate) async fn handle(
        &self,
        head: &mut request::Parts,
        (incoming, unread): ReceivedBody<Inbound>,
        entrance: &Entrance,
    ) -> CallerResponse {
        let marks = HeaderMarks::of(&head.headers);
        if let Err(refusal) = request_check::inspect(head, unread.as_ref(), marks) {
            let refusal = refusal.closing().shaped(self.named_endpoint(head, unread.as_ref(), entrance).as_deref());
            return self.record_refusal(refusal, None).into();
        }
        if head.uri.path().starts_with("/-/") {
            return match head.uri.path().strip_prefix("/-/jobs/") {
                Some(id) => Box::pin(self.own_job(id, &head.headers)).await,
                None => own_path(head.uri.path()),
            }
            .into();
        }
        let live = self.shared.live.load_full();
        let mut routed = match self.route(&live, head, unread, marks, entrance) {
            Ok(routed) => routed,
            Err(refusal) => return self.record_refusal(Box::pin(request_check::refuse_body(head, incoming, *refusal)).await, None).into(),
        };
        if live.sheds(routed.endpoint) {
            return self
                .record_refusal(Box::pin(request_check::refuse_body(head, incoming, self.shed())).await, Some(routed.endpoint))
                .into();
        }
        if idempotency::is_missing(&routed.endpoint.spec.policy.idempotency, &head.method, idempotent_call::is_given(&head.headers, marks))
        {
            return self
                .record_refusal(
                    Box::pin(request_check::refuse_body(head, incoming, idempotent_call::missing())).await,
                    Some(routed.endpoint),
                )
                .into();
        }
        if let Some(prefer) = marks.has(HeaderMarks::PREFER).then(|| async_call::asked(&head.headers)).flatten() {
            return Box::pin(self.defer(head, marks, incoming, routed, prefer)).await.into();
        }
        let body = if incoming.is_end_stream() {
            ReplayBody::Empty
        } else {
            match Box::pin(self.read_body(incoming, &live, &mut routed)).await {
                Ok(body) => body,
                Err(refusal) => return self.record_refusal(*refusal, Some(routed.endpoint)).into(),
            }
        };
        self.call(head, marks, body, &mut routed).await
    }

    /// Finds the endpoint and the caller of a request, or the reason for its refusal.
    fn route<'a>(
        &self,
        live: &'a Live,
        head: &mut request::Parts,
        unread: Option<RawRequestHeaders>,
        marks: HeaderMarks,
        entrance: &Entrance,
    ) -> Result<RoutedRequest<'a>, Box<Refusal>> {
        let Some((upstream, prefix)) = entrance.route(live, head, unread.as_ref()) else { return Err(Box::new(entrance.nowhere())) };
        let below = below(head, prefix);
        let endpoint = endpoint(upstream, &head.method, below);
        let refuse = |refusal: Refusal| Err(Box::new(refusal.shaped(Some(endpoint))));
        if marks.has(HeaderMarks::VIA) && headers::is_loop(&head.headers, &self.shared.pseudonym) {
            return refuse(Refusal::code(508, Code::LoopDetected, "this request has passed through this gateway before"));
        }
        let Some(caller) = live.callers.identify(&head.headers) else { return refuse(Refusal::of(Code::CallerUnknown, None)) };
        let target = match target(upstream, below) {
            Ok(target) => target,
            Err(bad) => return refuse(request_check::bad_request(&bad.to_string())),
        };
        let request = RequestLine::new(&head.method, &endpoint.route, below);
        let address = live.callers.address(entrance.peer.ip(), &head.headers);
        let url = entrance.gateway_url(head, unread.as_ref(), live, prefix);
        live.callers.take_tokens(&mut head.headers);
        let left = if marks.has(HeaderMarks::OURS) { deadline(&head.headers, endpoint) } else { endpoint.spec.policy.timeout.total };
        let mut from = CallerContext::new(address, caller, left, Some(url));
        from.request = Some(request);
        let unread = unread.and_then(|unread| self.left_unread(unread, upstream, endpoint, head));
        Ok(RoutedRequest { upstream, endpoint, target, from, unread })
    }

    /// Returns the unparsed headers if no policy needs to read them; otherwise parses them.
    fn left_unread(
        &self,
        mut unread: RawRequestHeaders,
        upstream: &LiveUpstream,
        endpoint: &LiveEndpoint,
        head: &mut request::Parts,
    ) -> Option<RawRequestHeaders> {
        let (policy, ours) = (&endpoint.spec.policy, OwnHeaders::of(upstream, endpoint, &self.shared.pseudonym));
        let is_read = endpoint.state.looks_at_headers
            || policy.cache.is_on()
            || endpoint.schema.is_some()
            || idempotency::is_generated(&policy.idempotency, &head.method, false)
            || Self::leaves_a_trace(endpoint)
            || ours.are_among(&unread);
        if is_read {
            head.headers = unread.to_header_map();
            return None;
        }
        unread.via = ours.name.map(|name| name.value(head.version).clone());
        Some(unread)
    }

    /// Removes the headers that the upstream must not see. Unparsed headers are returned as they are.
    fn outward(&self, head: &mut request::Parts, marks: HeaderMarks, routed: &mut RoutedRequest<'_>) -> Option<RawRequestHeaders> {
        let unread = routed.unread.take();
        if unread.is_none() {
            let ours = OwnHeaders::of(routed.upstream, routed.endpoint, &self.shared.pseudonym);
            headers::to_upstream(&mut head.headers, marks, ours, head.version);
        }
        unread
    }

    /// Reads the body and subtracts the time from the caller's deadline, which began with the request.
    async fn read_body(&self, incoming: Inbound, live: &Live, routed: &mut RoutedRequest<'_>) -> Result<ReplayBody, Box<Refusal>> {
        let max_body = live.max_body(routed.endpoint);
        let from = &mut routed.from;
        let started = self.sending.clock.now().mono;
        let body = request_check::body(incoming, live.config.server.replay_body.min(max_body), max_body, from.left).await?;
        from.left = Nanos(from.left.0.saturating_sub(self.sending.clock.now().mono.since(started).0));
        Ok(body)
    }

    /// Returns the refusal of a call that is shed in favour of calls of higher priority.
    pub(crate) fn shed(&self) -> Refusal {
        let spread = Nanos(self.rng.borrow_mut().up_to(SPREAD.0));
        let mut refusal = Refusal::of(Code::Overloaded, None).retry_after(Some(Nanos::from_secs(1) + spread));
        refusal.reason = Reason::Shed;
        refusal
    }

    pub(crate) fn record_refusal(&self, refusal: Refusal, endpoint: Option<&Arc<LiveEndpoint>>) -> Response<Relay> {
        self.noted(refusal, endpoint).respond()
    }

    pub(crate) fn wall(&self) -> Wall {
        self.sending.clock.now().wall
    }

    /// Returns the `Date` value for a response that has none.
    pub(crate) fn date(&self) -> HeaderValue {
        self.date.at(self.wall())
    }

    /// Returns whether a repetition of the request costs money but has no other effect.
    fn is_repeatable_at_cost(head: &request::Parts, routed: &RoutedRequest<'_>) -> bool {
        let at_cost = &routed.endpoint.plan.at_cost;
        let operation = || head.headers.get(AtCost::OPERATION)?.to_str().ok();
        !at_cost.is_none() && at_cost.allows(async_call::path_below(routed.upstream, &routed.target), operation)
    }

    async fn call(
        &self,
        head: &mut request::Parts,
        marks: HeaderMarks,
        body: ReplayBody,
        routed: &mut RoutedRequest<'_>,
    ) -> CallerResponse {
        let (upstream, endpoint) = (routed.upstream, routed.endpoint);
        let in_flight = InFlight::enter(upstream);
        let method = head.method.clone();
        let (has_key, traced) = (idempotent_call::is_given(&head.headers, marks), marks.has(HeaderMarks::TRACE));
        let made = idempotency::is_generated(&endpoint.spec.policy.idempotency, &method, has_key);
        // A client that sent the request as TLS early data must see a 425 and send it again itself (RFC 8470 §5.2).
        let early = marks.has(HeaderMarks::EARLY) && head.headers.get("early-data").is_some_and(|value| value == "1");
        let repeated = marks.has(HeaderMarks::OURS) && is_repeat(&head.headers, upstream);
        let request = call::CallRequest {
            method: method.as_str(),
            mark: endpoint.plan.mark(method.as_str(), head.uri.path()),
            keyed: has_key || made,
            at_cost: Self::is_repeatable_at_cost(head, routed),
            replayable: body.is_replayable() && !early && !repeated,
            deadline: Some(routed.from.left),
            patient: false,
        };
        routed.from.capture(&head.headers, head.uri.query(), marks, endpoint);
        // Only requests without a body are cached: an unread body would be parsed as the next request.
        let cached =
            endpoint.spec.policy.cache.is_on() && matches!(body, ReplayBody::Empty) && cached::is_cacheable_request(&method, &head.headers);
        let caller = if cached { cache::CallerDigest::of_stored(&head.headers) } else { None };
        let unread = self.outward(head, marks, routed);
        let now = self.sending.clock.now();
        let id = self.ids.borrow_mut().next(now.wall);
        let keyed = match request.keyed.then(|| self.keyed(id, routed, made, head, &body)).transpose() {
            Ok(keyed) => keyed.flatten(),
            Err(refusal) => return self.record_refusal(*refusal, Some(endpoint)).into(),
        };
        let (target, from) = (std::mem::take(&mut routed.target), &routed.from);
        let mut lookup = cached.then(|| Lookup::begin(&self.shared.cache, upstream, &target, &method, &head.headers, caller));
        if let Some((mut response, claim)) = lookup.as_ref().and_then(|lookup| lookup.answer(now.wall)) {
            self.keep_links_inside(from, (upstream, endpoint), &target, response.headers_mut());
            if let (Some(claim), Some(lookup)) = (claim, lookup) {
                let sent = OutgoingRequest { method, target, headers: std::mem::take(&mut head.headers), unread, traced, repeated };
                self.revalidate(claim, lookup, upstream, endpoint, sent, from.on_behalf_of(endpoint.spec.policy.timeout.total));
            }
            let ended = never_sent(now);
            self.record(endpoint, id, &ended, from, "success", response.status());
            return Self::sign(response, id, &ended, "success").into();
        }
        let conditions = lookup.as_mut().map(|lookup| lookup.validate(&head.headers)).unwrap_or_default();
        let sent = OutgoingRequest { method: method.clone(), target, headers: std::mem::take(&mut head.headers), unread, traced, repeated };
        let mut transport = self.transport(upstream, endpoint, sent, body);
        transport.conditions = conditions;
        if keyed.is_some() {
            (transport.ahead, transport.spares_streams) = (idempotency::MAX_ANSWER + 1, true);
        }
        // The cache needs parsed headers, and HTTP/2 encodes headers in its own way.
        transport.passes = (lookup.is_none() && head.version != http::Version::HTTP_2).then_some(headers::passes);
        let trail = RefCell::new(Vec::new());
        let kept = Self::leaves_a_trace(endpoint).then_some(&trail);
        transport.diagnoses = kept.is_some();
        let scene = self.call_context(id, upstream, endpoint, from, (kept, keyed.as_ref()));
        let mut ended = drive(&scene, &request, &mut transport).await;
        let place = ended.place.take();
        if kept.is_some() || keyed.is_some() {
            let trail = trail.take();
            if let Some(response) = Box::pin(self.finish_call(id, &ended, &transport, &trail, (from, keyed))).await {
                return response.into();
            }
        }
        if !method.is_safe() && transport.answer.as_ref().is_some_and(|answer| answer.response.status().as_u16() < 400) {
            self.shared.cache.invalidate(upstream.id, &transport.target);
        }
        let mut answered = self.finish(id, &ended, &mut transport, lookup, head.version, from);
        let response = &mut answered.response;
        if matches!(response.body(), Relay::Stream(_)) {
            // A call ends when its response has been sent, so the permits live as long as the body.
            response.body_mut().hold(HeldPermits(Box::new((in_flight, place))));
        }
        answered
    }

    fn transport<'a>(
        &'a self,
        upstream: &'a Arc<LiveUpstream>,
        endpoint: &'a Arc<LiveEndpoint>,
        sent: OutgoingRequest,
        body: ReplayBody,
    ) -> HttpTransport<'a> {
        let OutgoingRequest { method, target, mut headers, unread, traced, repeated } = sent;
        let trace = if traced { TraceContext::take(&mut headers, self.rng.borrow_mut().draw()) } else { None };
        HttpTransport {
            sending: &self.sending,
            upstream,
            endpoint,
            method,
            target,
            headers: RequestHeaders::new(headers),
            conditions: HeaderMap::new(),
            unread,
            body,
            answer: None,
            token: None,
            trace,
            detail: None,
            ahead: 0,
            room: None,
            spares_streams: false,
            diagnoses: false,
            passes: None,
            repeated,
            resends: 0,
        }
    }

    fn call_context<'a>(
        &'a self,
        id: CallId,
        upstream: &'a Arc<LiveUpstream>,
        endpoint: &'a Arc<LiveEndpoint>,
        from: &'a CallerContext,
        (trail, keyed): (Option<&'a Trail>, Option<&'a KeyReservation>),
    ) -> CallContext<'a> {
        CallContext {
            clock: &self.sending.clock,
            deadlines: &self.deadlines,
            rng: &self.rng,
            recorder: &self.shared.recorder,
            endpoint,
            id,
            caller: &from.caller.name,
            key_tail: upstream,
            request: from.request.clone(),
            who: from.limit_subject(&self.bare),
            trail,
            keeper: keyed.map(|keyed| keyed as _),
            start_log: None,
            closing: Some(&self.shared.closing),
        }
    }

    /// Refreshes a cached response while the caller gets the old one. The refresh is a call of our own, with the same policy.
    fn revalidate(
        &self,
        claim: Revalidation,
        mut lookup: Lookup,
        upstream: &Arc<LiveUpstream>,
        endpoint: &Arc<LiveEndpoint>,
        sent: OutgoingRequest,
        mut from: CallerContext,
    ) {
        let gateway = Self { sending: self.sending.clone(), deadlines: self.deadlines.clone(), ..Self::new(Arc::clone(&self.shared)) };
        let (upstream, endpoint) = (Arc::clone(upstream), Arc::clone(endpoint));
        tokio::task::spawn_local(async move {
            from.request = Some(RequestLine::new(&sent.method, &endpoint.route, &sent.target));
            let method = sent.method.clone();
            let request = call::CallRequest::plain(method.as_str());
            let conditions = lookup.validate(&sent.headers);
            let id = gateway.ids.borrow_mut().next(gateway.sending.clock.now().wall);
            let mut transport = gateway.transport(&upstream, &endpoint, sent, ReplayBody::Empty);
            transport.conditions = conditions;
            let ended = drive(&gateway.call_context(id, &upstream, &endpoint, &from, (None, None)), &request, &mut transport).await;
            let answered = gateway.finish(id, &ended, &mut transport, Some(lookup), http::Version::HTTP_11, &from);
            cached::drained(answered.response.into_body(), from.left).await;
            drop(claim);
        });
    }

    /// Builds the final response: the upstream's own if there is one, otherwise ours.
    fn finish(
        &self,
        id: CallId,
        ended: &Finished,
        transport: &mut HttpTransport<'_>,
        lookup: Option<Lookup>,
        version: http::Version,
        from: &CallerContext,
    ) -> CallerResponse {
        let HttpTransport { upstream, endpoint, answer, headers: sent, target, detail, .. } = transport;
        let (upstream, endpoint, answer) = (*upstream, *endpoint, answer.take());
        let (finish, policy) = (&ended.finish, &endpoint.spec.policy);
        let status = answer.as_ref().map(|answer| answer.response.status());
        if let (Reason::AuthFailed, Some(error)) = (finish.reason, &*detail) {
            let (names, error) = (Arc::clone(&endpoint.names), error.clone());
            self.shared.recorder.push(Record::Token(TokenRecord { at: ended.at.wall, call: id, names, error }));
        }
        if fallback::is_degradable(finish.outcome, status)
            && let Some((mut response, outcome)) = fallback::instead(lookup.as_ref(), policy, ended.at.wall)
        {
            self.keep_links_inside(from, (upstream, endpoint), target, response.headers_mut());
            self.record(endpoint, id, ended, from, outcome, response.status());
            return Self::sign(response, id, ended, outcome).into();
        }
        let (outcome, refused_by) = match finish.outcome {
            Outcome::Success => ("success", None),
            Outcome::Failed(class) => (class.as_str(), None),
            Outcome::Refused(code) => (code.as_str(), Some(code.stage())),
            Outcome::Replayed => ("success", None),
        };
        let mut record = Self::call_record(endpoint, id, ended, from, outcome, refused_by);
        if finish.outcome != Outcome::Success {
            lookup.iter().for_each(Lookup::missed);
        }
        let answered: CallerResponse = match (finish.outcome, answer) {
            (Outcome::Success | Outcome::Failed(_) | Outcome::Replayed, Some(answer)) => {
                let (mut response, verbatim) = (answer.response, answer.verbatim);
                let spoken = std::mem::replace(response.version_mut(), version);
                let mut signed = SignedHeaders::of(id, ended, outcome);
                if let Some(lookup) = lookup {
                    // A stored response carries its own `Via`.
                    let ends = cached::has_marked_end(spoken, response.headers(), response.body());
                    headers::to_caller(response.headers_mut(), spoken, &self.shared.pseudonym);
                    if finish.outcome == Outcome::Success {
                        response = self.kept(response, lookup, sent, ends, &policy.cache, ended);
                    }
                } else {
                    if verbatim.is_none() {
                        headers::relayed(response.headers_mut());
                    }
                    signed.via = Some(self.shared.pseudonym.value(spoken).clone());
                }
                // Raw headers contain no links to rewrite.
                self.keep_links_inside(from, (upstream, endpoint), target, response.headers_mut());
                self.record_at_end(&mut response, endpoint, record);
                return signed.onto(response, verbatim);
            }
            (Outcome::Refused(code), _) => Self::sign(self.refuse(code, ended, endpoint, id, detail.as_deref()), id, ended, outcome).into(),
            (Outcome::Failed(Class::Auth), None) => {
                Self::sign(refusal(Code::KeysRejected, ended, endpoint, id).respond(), id, ended, outcome).into()
            }
            (Outcome::Success | Outcome::Failed(_) | Outcome::Replayed, None) => {
                let refusal = refusal(Code::UpstreamUnreachable, ended, endpoint, id).because(detail.as_deref());
                Self::sign(refusal.respond(), id, ended, outcome).into()
            }
        };
        record.response_status = Some(answered.response.status().as_u16());
        self.shared.recorder.push(Record::Call(record));
        answered
    }

    /// Builds our own error response.
    fn refuse(&self, code: Code, ended: &Finished, endpoint: &LiveEndpoint, id: CallId, detail: Option<&str>) -> Response<Relay> {
        let mut refusal = refusal(code, ended, endpoint, id).because(detail);
        if code == Code::Overloaded {
            // Callers that were refused together should not come back together.
            let spread = Nanos(self.rng.borrow_mut().up_to(SPREAD.0));
            refusal.retry_after = refusal.retry_after.map(|wait| wait + spread);
        }
        refusal.respond()
    }

    /// Passes a good response through the cache. A response that only confirms the stored one is replaced by it.
    fn kept(
        &self,
        mut response: Box<Response<Relay>>,
        lookup: Lookup,
        sent: &HeaderMap,
        ends: bool,
        policy: &CachePolicy,
        ended: &Finished,
    ) -> Box<Response<Relay>> {
        let now = ended.at.wall;
        if let Some(confirmed) = lookup.confirmed(&self.shared.cache, sent, response.status(), response.headers(), policy, now) {
            return Box::new(confirmed);
        }
        lookup.keep(&self.shared, sent, &mut response, ends, policy, now);
        response
    }

    /// Adds our own headers to a response.
    pub(crate) fn sign(mut response: Response<Relay>, id: CallId, ended: &Finished, outcome: &'static str) -> Response<Relay> {
        SignedHeaders::of(id, ended, outcome).put(response.headers_mut());
        response
    }
}
