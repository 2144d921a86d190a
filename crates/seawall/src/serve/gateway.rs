//! A caller's request becomes a call, and the call's end becomes an answer.

use super::answer::{self, ATTEMPTS, CALL, OUTCOME, Refusal, stage};
use super::hygiene::{self, Ours};
use super::{Shared, intake};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Request, Response, StatusCode, request};
use hyper::body::Incoming;
use seawall_core::call::{self, Outcome};
use seawall_core::id::CallId;
use seawall_core::record::{Code, Reason};
use seawall_core::rng::Rng;
use seawall_core::time::Nanos;
use seawall_engine::body::{Blame, Relay};
use seawall_engine::caller::Caller;
use seawall_engine::drive::{Ended, Scene, drive};
use seawall_engine::limits::Who;
use seawall_engine::live::{LiveEndpoint, LiveUpstream};
use seawall_engine::pool::Pool;
use seawall_engine::recorder::{CallRecord, Record};
use seawall_engine::transport::{HttpTransport, Replay, Sending};
use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// One worker's gateway.
#[derive(Debug)]
pub(super) struct Gateway {
    shared: Arc<Shared>,
    sending: Sending,
    rng: RefCell<Rng>,
}

/// How far apart those come back who were turned away for lack of room.
const SPREAD: Nanos = Nanos::from_secs(2);

/// Who sent a request, from where, and how long they will wait.
struct From {
    address: IpAddr,
    caller: Arc<Caller>,
    left: Nanos,
}

/// Counts a call in flight for as long as it lives.
struct InFlight<'a>(&'a LiveUpstream);

impl<'a> InFlight<'a> {
    fn enter(upstream: &'a LiveUpstream) -> Self {
        upstream.in_flight.fetch_add(1, Ordering::Relaxed);
        Self(upstream)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Gateway {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let sending = Sending { clock: shared.clock.clone(), pool: Pool::default(), connector: shared.connector.clone() };
        Self { shared, sending, rng: RefCell::new(Rng::seeded(crate::setup::entropy())) }
    }

    pub(super) fn head_timeout(&self) -> std::time::Duration {
        self.shared.head_timeout
    }

    pub(super) fn sweep(&self) {
        self.sending.pool.sweep(self.sending.clock.now().mono);
    }

    pub(super) async fn handle(&self, request: Request<Incoming>, peer: SocketAddr) -> Response<Relay> {
        match intake::accept(request) {
            Ok((head, body)) => self.dispatch(head, body, peer).await,
            Err(refusal) => refusal.respond(),
        }
    }

    async fn dispatch(&self, mut head: request::Parts, body: Incoming, peer: SocketAddr) -> Response<Relay> {
        let path = head.uri.path();
        if path.starts_with("/-/") {
            return own_path(path);
        }
        let host = head.uri.host().or_else(|| head.headers.get(http::header::HOST)?.to_str().ok()).unwrap_or("");
        let live = self.shared.live.load_full();
        let Some((upstream, prefix)) = live.route(host, path) else {
            return Box::pin(intake::spurn(&head, body, Refusal::of(Code::NoUpstream, None))).await.respond();
        };
        if hygiene::is_loop(&head.headers, &self.shared.pseudonym) {
            let refusal = Refusal::plain(508, "loop_detected", "this request has passed through this gateway before");
            return Box::pin(intake::spurn(&head, body, refusal)).await.respond();
        }
        let Some(identified) = live.callers.identify(&head.headers) else {
            let refusal = Refusal::of(Code::CallerUnknown, None);
            return Box::pin(intake::spurn(&head, body, refusal)).await.respond();
        };
        let address = live.callers.address(peer.ip(), &head.headers);
        if identified.by_authorization {
            // It was meant for us, so nobody else gets to see it.
            head.headers.remove(http::header::AUTHORIZATION);
        }
        let below = head.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str).get(prefix..).unwrap_or("/");
        let below = if below.starts_with('/') { below.to_owned() } else { format!("/{below}") };
        let endpoint = upstream.endpoint(head.method.as_str(), &below);
        let mut from = From { address, caller: identified.caller, left: deadline(&head, endpoint) };
        let server = &live.config.server;
        let keep = server.replay_body.min(server.max_body);
        let started = self.sending.clock.now().mono;
        match intake::body(body, keep, server.max_body, from.left).await {
            Ok(Replay::Empty) => self.call(head, &below, upstream, endpoint, Replay::Empty, &from).await,
            Ok(body) => {
                // The caller's deadline began with its request, not with the end of its body.
                from.left = Nanos(from.left.0.saturating_sub(self.sending.clock.now().mono.since(started).0));
                self.call(head, &below, upstream, endpoint, body, &from).await
            }
            Err(refusal) => refusal.respond(),
        }
    }

    async fn call(
        &self,
        mut head: request::Parts,
        below: &str,
        upstream: &Arc<LiveUpstream>,
        endpoint: &Arc<LiveEndpoint>,
        body: Replay,
        from: &From,
    ) -> Response<Relay> {
        let _in_flight = InFlight::enter(upstream);
        let method = head.method.clone();
        // Who sent a request as TLS early data must hear of a 425 and send it again itself (RFC 8470 §5.2).
        let early = head.headers.get("early-data").is_some_and(|value| value == "1");
        let request = call::Request {
            method: method.as_str(),
            keyed: head.headers.contains_key("idempotency-key"),
            replayable: body.is_replayable() && !early,
            deadline: Some(from.left),
            patient: false,
        };
        // Limits look at the caller's own headers, before any is taken out.
        let asked = if endpoint.state.limits.is_empty() { http::HeaderMap::new() } else { head.headers.clone() };
        let ours = Ours { credentials: upstream.credentials.as_ref(), deadline: endpoint.spec.policy.deadline_header.as_deref() };
        hygiene::outward(&mut head.headers, ours, head.version, &self.shared.pseudonym);
        let now = self.sending.clock.now();
        let id = CallId::new(now.wall, &mut self.rng.borrow_mut());
        let mut transport = HttpTransport {
            sending: &self.sending,
            upstream,
            endpoint,
            method: head.method,
            target: target(upstream, below),
            headers: head.headers,
            body,
            answer: None,
        };
        let scene = Scene {
            clock: &self.sending.clock,
            rng: &self.rng,
            recorder: &self.shared.recorder,
            endpoint,
            id,
            caller: &from.caller.name,
            key_tail: upstream,
            who: Who { ip: from.address, caller: &from.caller.name, user: &from.caller.user, tenant: &from.caller.tenant, headers: &asked },
        };
        let ended = drive(&scene, &request, &mut transport).await;
        self.finish(endpoint, id, &ended, transport.answer, head.version, &from.caller.name)
    }

    /// The upstream's own answer where there is one, ours otherwise.
    fn finish(
        &self,
        endpoint: &Arc<LiveEndpoint>,
        id: CallId,
        ended: &Ended,
        answer: Option<seawall_engine::transport::Answer>,
        version: http::Version,
        caller: &Arc<str>,
    ) -> Response<Relay> {
        let finish = &ended.finish;
        let (outcome, refused_by) = match finish.outcome {
            Outcome::Success => ("success", None),
            Outcome::Failed(class) => (class.as_str(), None),
            Outcome::Refused(code) => (code.as_str(), Some(stage(code))),
            Outcome::Replayed => ("success", None),
        };
        self.record(endpoint, id, ended, caller, outcome, refused_by);
        let mut response = match (finish.outcome, answer) {
            (Outcome::Success | Outcome::Failed(_) | Outcome::Replayed, Some(answer)) => {
                let mut response = Response::from_parts(answer.head, answer.body);
                let from = response.version();
                hygiene::inward(response.headers_mut(), from, &self.shared.pseudonym);
                *response.version_mut() = version;
                response
            }
            (Outcome::Refused(code), _) => {
                let mut refusal = refusal(code, ended, endpoint, id);
                if code == Code::Overloaded {
                    // Callers that were turned away together should not come back together.
                    let spread = Nanos(self.rng.borrow_mut().up_to(SPREAD.0));
                    refusal.retry_after = refusal.retry_after.map(|wait| wait + spread);
                }
                refusal.respond()
            }
            (Outcome::Success | Outcome::Failed(_) | Outcome::Replayed, None) => {
                refusal(Code::UpstreamUnreachable, ended, endpoint, id).respond()
            }
        };
        let headers = response.headers_mut();
        if let Ok(value) = HeaderValue::from_bytes(&id.text()) {
            headers.insert(CALL, value);
        }
        headers.insert(ATTEMPTS, HeaderValue::from(finish.attempts));
        headers.insert(OUTCOME, HeaderValue::from_static(outcome));
        answer::rate_limit(headers, ended.rate_limit.as_ref());
        self.watch(&mut response, endpoint);
        response
    }

    /// An answer that breaks off after its first byte cannot be retried, but the breaker hears of it.
    fn watch(&self, response: &mut Response<Relay>, endpoint: &Arc<LiveEndpoint>) {
        let (endpoint, clock) = (Arc::clone(endpoint), self.sending.clock.clone());
        if matches!(response.body(), Relay::Stream(_)) {
            response.body_mut().on_break(seawall_engine::body::Broken(Box::new(move || endpoint.state.broke_off(clock.now()))));
        }
    }

    fn record(
        &self,
        endpoint: &Arc<LiveEndpoint>,
        id: CallId,
        ended: &Ended,
        caller: &Arc<str>,
        outcome: &'static str,
        refused_by: Option<&'static str>,
    ) {
        self.shared.recorder.push(Record::Call(CallRecord {
            at: ended.at.wall,
            call: id,
            names: Arc::clone(&endpoint.names),
            caller: Arc::clone(caller),
            attempts: ended.finish.attempts,
            outcome,
            reason: ended.finish.reason,
            elapsed: ended.finish.elapsed,
            refused_by,
        }));
    }
}

fn refusal(code: Code, ended: &Ended, endpoint: &LiveEndpoint, id: CallId) -> Refusal {
    let mut refusal = match ended.blame {
        Some(Blame::Broke) => intake::body_broke(),
        Some(Blame::TooLarge) => intake::body_too_large(),
        Some(Blame::TooSlow) => intake::body_too_slow(),
        // A breaker that opened meanwhile knows a time, but a deadline or a reset does not name one.
        None => Refusal::of(code, ended.fault).retry_after(ended.finish.retry_after.filter(|_| names_a_time(code))),
    };
    if ended.finish.reason == Reason::ExceedsCapacity {
        refusal.detail = "this call costs more than its limit ever holds".to_owned();
    }
    refusal.upstream = Some(endpoint.names.upstream.clone());
    refusal.endpoint = Some(endpoint.names.endpoint.clone());
    refusal.call = Some(id.to_string());
    refusal.attempts = ended.finish.attempts;
    refusal
}

const fn names_a_time(code: Code) -> bool {
    matches!(code, Code::RateLimited | Code::KeysExhausted | Code::Overloaded | Code::CircuitOpen | Code::IdempotencyKeyInFlight)
}

/// The upstream's base path and what is below it, byte for byte. A caller's own value for the parameter that carries
/// our key would be sent beside it, so it is taken out.
fn target(upstream: &LiveUpstream, below: &str) -> String {
    let mut target = format!("{}{below}", upstream.spec.url.path);
    if let (Some(name), Some((path, query))) =
        (upstream.credentials.as_ref().and_then(|credentials| credentials.parameter()), target.split_once('?'))
    {
        let own = |pair: &&str| !is_spelt(pair.split('=').next().unwrap_or(pair), name);
        if !query.split('&').all(|pair| own(&pair)) {
            let kept: Vec<&str> = query.split('&').filter(own).collect();
            target = if kept.is_empty() { path.to_owned() } else { format!("{path}?{}", kept.join("&")) };
        }
    }
    target
}

/// Whether a parameter's name, once its escapes are read, is this one.
fn is_spelt(written: &str, name: &str) -> bool {
    let mut bytes = written.bytes();
    let read = std::iter::from_fn(|| match bytes.next()? {
        b'%' => {
            let mut ahead = bytes.clone();
            let hex = |digit: Option<u8>| char::from(digit?).to_digit(16);
            let Some((high, low)) = hex(ahead.next()).zip(hex(ahead.next())) else { return Some(b'%') };
            bytes = ahead;
            u8::try_from(high * 16 + low).ok()
        }
        b'+' => Some(b' '),
        byte => Some(byte),
    });
    read.eq(name.bytes())
}

/// What the whole call may take: the policy's word, which the caller can only shorten, in milliseconds.
fn deadline(head: &request::Parts, endpoint: &LiveEndpoint) -> Nanos {
    let total = endpoint.spec.policy.timeout.total;
    let asked = head.headers.get("seawall-timeout-ms").and_then(|value| value.to_str().ok()?.trim().parse().ok());
    asked.map_or(total, |ms| Nanos::from_millis(ms).min(total))
}

/// The paths that the gateway keeps for itself.
fn own_path(path: &str) -> Response<Relay> {
    if path != "/-/health" {
        return Refusal::plain(404, "not_found", "there is nothing at this path of the gateway").respond();
    }
    let mut response = Response::new(Relay::Full(bytes::Bytes::from_static(b"{\"status\":\"ok\"}\n")));
    *response.status_mut() = StatusCode::OK;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_hide_no_parameter() {
        for written in ["key", "k%65y", "%6b%65%79", "%6B%65%79"] {
            assert!(is_spelt(written, "key"), "{written}");
        }
        for written in ["keys", "ke", "k%6y", "k%65", "%", "k%zzy", "Key", ""] {
            assert!(!is_spelt(written, "key"), "{written}");
        }
    }
}
