//! Asynchronous calls: requests that become jobs on the caller's wish, calls that become jobs when their retries are exhausted, and the
//! endpoint where a caller finds its own jobs.

use super::caller_context::CallerContext;
use super::idempotent_call;
use super::request_check;
use super::{Gateway, RoutedRequest};
use crate::headers::{self, HeaderMarks, OwnHeaders};
use crate::idempotency::{KEY, KeyReservation, KeyedRequest, fingerprint};
use crate::jobs;
use crate::letter;
use crate::response::{Refusal, SignedHeaders};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, LOCATION};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, request};
use seawall_core::config::AtCost;
use seawall_core::decide::{CallProgress, repeatable};
use seawall_core::id::CallId;
use seawall_core::policy::{Door, OnExhausted, Unsafe};
use seawall_core::record::{AttemptOutcome, Code, Reason};
use seawall_core::time::{Nanos, Wall};
use seawall_engine::driver::Finished;
use seawall_engine::record::{CallRecord, Record};
use seawall_engine::runtime::{LiveEndpoint, LiveUpstream};
use seawall_engine::transport::{HttpTransport, ReplayBody};
use seawall_http::egress::Reach;
use seawall_http::request_body::Inbound;
use seawall_http::response_body::Relay;
use seawall_store::job::{Enqueued, JobOrigin, JobRequest, JobState, NewJob};
use serde::Serialize;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

const PREFER: HeaderName = HeaderName::from_static("prefer");
const APPLIED: HeaderName = HeaderName::from_static("preference-applied");
const CALLBACK: HeaderName = HeaderName::from_static("seawall-callback");
const CORRELATION: HeaderName = HeaderName::from_static("x-correlation-id");
/// Maximum seconds that a caller may wait for its job; for longer waits it polls.
const MAX_WAIT: u64 = 60;
/// Interval at which a waiting caller's job is read.
const LOOK: Duration = Duration::from_millis(25);

/// The caller's `Prefer: respond-async` (RFC 7240).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Async {
    /// Time for which the caller prefers to wait for the response itself.
    wait: Duration,
}

/// Returns whether a caller asks for an asynchronous response.
pub(crate) fn asked(headers: &HeaderMap) -> Option<Async> {
    let mut asked = false;
    let mut wait = Duration::ZERO;
    for value in headers.get_all(PREFER).iter().filter_map(|value| value.to_str().ok()) {
        for preference in value.split([',', ';']).map(str::trim) {
            if preference.eq_ignore_ascii_case("respond-async") {
                asked = true;
            } else if let Some(seconds) = preference.strip_prefix("wait=").and_then(|seconds| seconds.trim().parse().ok()) {
                wait = Duration::from_secs(std::cmp::min(seconds, MAX_WAIT));
            }
        }
    }
    asked.then_some(Async { wait })
}

/// A call in the form in which it is stored.
struct Described<'a> {
    upstream: &'a str,
    method: &'a str,
    below: &'a str,
    /// Only the headers that go to the upstream.
    headers: &'a HeaderMap,
    body: Bytes,
    key: Option<String>,
    callback: Option<String>,
}

impl Gateway {
    fn describe(&self, call: Described<'_>, id: CallId, from: &CallerContext) -> NewJob {
        let text = |value: &HeaderValue| value.to_str().ok().map(str::to_owned);
        let content_type = call.headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        NewJob {
            id,
            upstream: call.upstream.to_owned(),
            tenant: from.caller.tenant.clone(),
            caller: from.caller.name.to_string(),
            priority: 0,
            dedup: call.key.as_ref().map(|key| {
                let Described { upstream, method, below, headers, .. } = call;
                KeyedRequest { caller: &from.caller.name, upstream, method, path: below, headers, key }.scope()
            }),
            fingerprint: fingerprint(call.method, call.below, content_type, &call.body),
            correlation_id: call.headers.get(CORRELATION).and_then(text).filter(|id| id.len() <= 255),
            request: JobRequest {
                method: call.method.to_owned(),
                path: call.below.to_owned(),
                headers: headers::pairs(call.headers),
                body: call.body,
            },
            idempotency_key: call.key,
            callback: call.callback,
            run_at: self.shared.desk.now(),
            expires_at: None,
            origin: JobOrigin::Caller,
            progress: CallProgress::default(),
            history: Vec::new(),
        }
    }

    /// Turns a request into a job at once.
    pub(crate) async fn defer(
        &self,
        head: &mut request::Parts,
        marks: HeaderMarks,
        body: Inbound,
        routed: RoutedRequest<'_>,
        prefer: Async,
    ) -> Response<Relay> {
        let RoutedRequest { upstream, endpoint, target, from, unread: _ } = &routed;
        let live = self.shared.live.load_full();
        // A job's body is held in memory, while that of a synchronous call may be streamed, so the server's limit applies too.
        let most = live.max_body(endpoint).min(live.config.server.max_body);
        let body = match request_check::body(body, most, most, from.left).await {
            Ok(ReplayBody::Kept(bytes)) => bytes,
            Ok(ReplayBody::Empty) => Bytes::new(),
            Ok(ReplayBody::Once(..)) => return self.record_refusal(request_check::body_too_large(), Some(endpoint)),
            Err(refusal) => return self.record_refusal(*refusal, Some(endpoint)),
        };
        let text = |name: &HeaderName| head.headers.get(name).map(|value| value.to_str().unwrap_or("").to_owned());
        let reach = Reach::new(live.config.server.allow_private.clone());
        let checked =
            (text(&KEY).map(|key| jobs::plain_key(&key)).transpose(), text(&CALLBACK).map(|url| jobs::outside(&url, &reach)).transpose());
        let (key, callback) = match checked {
            (Ok(key), Ok(callback)) => (key, callback),
            (Err(why), _) | (_, Err(why)) => return self.record_refusal(request_check::bad_request(&why), Some(endpoint)),
        };
        let ours = OwnHeaders::of(upstream, endpoint, &self.shared.pseudonym);
        headers::to_upstream(&mut head.headers, marks, ours, head.version);
        head.headers.remove(PREFER);
        let id = self.shared.desk.new_id();
        let method = head.method.as_str();
        let below = below(upstream, target);
        let described = Described { upstream: &upstream.spec.name, method, below, headers: &head.headers, body, key, callback };
        let job = self.describe(described, id, from);
        let kept = self.shared.desk.enqueue(vec![job]).await;
        match kept.as_deref() {
            Ok([Enqueued::New(id) | Enqueued::Known(id, _)]) => self.accepted(*id, prefer, &routed).await,
            Ok([Enqueued::Mismatch(_)]) => self.record_refusal(Refusal::of(Code::IdempotencyKeyMismatch, None), Some(endpoint)),
            Ok(_) => self.record_refusal(Refusal::code(503, Code::StoreUnavailable, "the store gave no answer"), Some(endpoint)),
            Err(error) => self.record_refusal(*crate::query::of_store(error), Some(endpoint)),
        }
    }

    /// Responds for a job that is on disk. A caller that prefers the result waits a little for it.
    async fn accepted(&self, id: CallId, prefer: Async, routed: &RoutedRequest<'_>) -> Response<Relay> {
        let RoutedRequest { upstream, endpoint, target, from, unread: _ } = routed;
        let until = tokio::time::sleep(prefer.wait);
        tokio::pin!(until);
        let mut state = JobState::Queued;
        while !prefer.wait.is_zero() && !until.is_elapsed() {
            if let Ok(Some(job)) = self.shared.desk.store.job(id).await {
                let done = job.response.as_ref().filter(|_| job.state == JobState::Done);
                if let Some(mut response) = done.and_then(|kept| replayed(kept, id, job.progress.attempts)) {
                    self.keep_links_inside(from, (upstream, endpoint), target, response.headers_mut());
                    return response;
                }
                state = job.state;
                if state.is_over() {
                    break;
                }
            }
            tokio::select! {
                () = &mut until => {}
                () = tokio::time::sleep(LOOK) => {}
            }
        }
        self.log(endpoint, id, 0, "enqueued", from);
        let mut response = enqueued(id, state, 0);
        response.headers_mut().insert(APPLIED, HeaderValue::from_static("respond-async"));
        response
    }

    fn log(&self, endpoint: &LiveEndpoint, call: CallId, attempts: u32, outcome: &'static str, from: &CallerContext) {
        self.shared.recorder.push(Record::Call(CallRecord {
            at: self.shared.clock.now().wall,
            call,
            names: Arc::clone(&endpoint.names),
            caller: Arc::clone(&from.caller.name),
            request: from.request.clone(),
            attempts,
            response_status: Some(202),
            outcome,
            reason: Reason::Queued,
            elapsed: Nanos::ZERO,
            refused_by: None,
        }));
    }

    /// Returns whether a failed call becomes a job or a letter, so that its attempts are recorded from the start.
    pub(crate) fn leaves_a_trace(endpoint: &LiveEndpoint) -> bool {
        let policy = &endpoint.spec.policy;
        policy.on_exhausted == OnExhausted::Enqueue || policy.dead_letter.from.contains(&Door::Gateway)
    }

    /// Turns a failed call into a job if that can still help, or into a dead letter. Returns our response if it became a job.
    pub(crate) async fn keep_failed_call(
        &self,
        id: CallId,
        ended: &Finished,
        transport: &HttpTransport<'_>,
        trail: &[(Wall, AttemptOutcome)],
        (from, keyed): (&CallerContext, Option<&KeyReservation>),
    ) -> Option<Response<Relay>> {
        let body = idempotent_call::whole(&transport.body)?;
        let (policy, finish) = (&transport.endpoint.spec.policy, &ended.finish);
        if !jobs::is_failure(finish.outcome) {
            return None;
        }
        let key = transport.headers.get(KEY).and_then(|value| jobs::plain_key(value.to_str().ok()?).ok());
        let unsent = finish.attempts == 0 || ended.fault.is_some_and(|fault| fault.kind.is_unsent());
        let at_cost = policy
            .at_cost
            .allows(path_below(transport.upstream, &transport.target), || transport.headers.get(AtCost::OPERATION)?.to_str().ok());
        let at_cost = at_cost && policy.retry.unsafe_methods != Unsafe::Never;
        let safe = unsent || at_cost || repeatable(transport.method.as_str(), policy.retry.unsafe_methods, key.is_some());
        let described = Described {
            upstream: &transport.upstream.spec.name,
            method: transport.method.as_str(),
            below: below(transport.upstream, &transport.target),
            headers: &transport.headers,
            body,
            key,
            callback: None,
        };
        let mut job = self.describe(described, id, from);
        job.history = letter::history(&[], trail);
        if policy.on_exhausted == OnExhausted::Enqueue && safe && jobs::is_worth_keeping(finish.outcome) {
            let rest = jobs::delay_before_job(finish.reason, finish.retry_after, policy.retry.backoff.cap);
            job.run_at = self.shared.desk.now() + rest;
            // The store may know the request already; the response then names that job.
            let known = match self.shared.desk.enqueue(vec![job.clone()]).await.as_deref() {
                Ok([Enqueued::New(new)]) => {
                    keyed.iter().for_each(|keyed| keyed.leave());
                    Some((*new, if rest == Nanos::ZERO { JobState::Queued } else { JobState::Waiting }))
                }
                Ok([Enqueued::Known(known, state)]) => Some((*known, *state)),
                Ok(_) | Err(_) => None,
            };
            if let Some((known, state)) = known {
                self.log(transport.endpoint, id, finish.attempts, "enqueued", from);
                return Some(enqueued(known, state, finish.attempts));
            }
        }
        if policy.dead_letter.from.contains(&Door::Gateway) {
            let letter = letter::gateway_letter(&job, transport, ended, trail, self.shared.desk.now());
            let desk = Arc::clone(&self.shared.desk);
            // Runs in the background: the caller gets the failure itself.
            tokio::task::spawn_local(async move { drop(desk.store.keep_letter(letter).await) });
        }
        None
    }

    /// Serves `/-/jobs/{id}`: a job is visible to its own caller only.
    pub(crate) async fn own_job(&self, id: &str, headers: &HeaderMap) -> Response<Relay> {
        let live = self.shared.live.load_full();
        let Some(caller) = live.callers.identify(headers) else {
            return self.record_refusal(Refusal::of(Code::CallerUnknown, None), None);
        };
        let unknown = || Refusal::code(404, Code::NotFound, "there is no such job of yours").respond();
        let Some(id) = CallId::parse(id) else { return unknown() };
        match self.shared.desk.store.job(id).await {
            Ok(Some(job)) if *job.caller == *caller.name => document(200, &jobs::view(&job)),
            Ok(_) => unknown(),
            Err(error) => crate::query::of_store(&error).respond(),
        }
    }
}

/// Returns the target below the upstream's base path.
pub(crate) fn below<'a>(upstream: &LiveUpstream, target: &'a str) -> &'a str {
    target.get(upstream.spec.url.path.len()..).filter(|below| !below.is_empty()).unwrap_or("/")
}

/// Returns the same without the query.
pub(crate) fn path_below<'a>(upstream: &LiveUpstream, target: &'a str) -> &'a str {
    below(upstream, target).split('?').next().unwrap_or("")
}

fn document(status: u16, value: &impl Serialize) -> Response<Relay> {
    let mut response = Response::new(Relay::Full(Bytes::from(serde_json::to_vec(value).unwrap_or_default())));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn enqueued(id: CallId, state: JobState, attempts: u32) -> Response<Relay> {
    let mut response = document(202, &json!({ "id": id.to_string(), "state": state.as_str() }));
    let headers = response.headers_mut();
    if let Ok(place) = HeaderValue::from_str(&format!("/-/jobs/{id}")) {
        headers.insert(LOCATION, place);
    }
    SignedHeaders { call: id, attempts, outcome: "enqueued", reason: None, waited: Nanos::ZERO, rate_limit: None, via: None }.put(headers);
    response
}

/// Builds the response from a stored one, of an earlier call or of a job that ended while its caller waited. Returns `None` if the stored
/// body is truncated.
pub(crate) fn replayed(kept: &seawall_store::job::Response, id: CallId, attempts: u32) -> Option<Response<Relay>> {
    if kept.truncated {
        return None;
    }
    let mut response = Response::new(Relay::Full(kept.body.clone()));
    *response.status_mut() = StatusCode::from_u16(kept.status).unwrap_or(StatusCode::OK);
    for (name, value) in kept.headers.pairs() {
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value.as_bytes()))
            && name != http::header::CONTENT_LENGTH
        {
            response.headers_mut().append(name, value);
        }
    }
    SignedHeaders { call: id, attempts, outcome: "success", reason: None, waited: Nanos::ZERO, rate_limit: None, via: None }
        .put(response.headers_mut());
    Some(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefer(values: &[&str]) -> Option<u64> {
        let headers = values.iter().map(|value| (PREFER, value.parse().unwrap())).collect();
        asked(&headers).map(|asked| asked.wait.as_secs())
    }

    #[test]
    fn preferences_are_read_as_they_are_written() {
        assert_eq!(prefer(&["respond-async"]), Some(0));
        assert_eq!(prefer(&["respond-async, wait=5"]), Some(5));
        assert_eq!(prefer(&["wait=900", "Respond-Async"]), Some(MAX_WAIT));
        assert_eq!(prefer(&["wait=5"]), None);
        assert_eq!(prefer(&["return=minimal"]), None);
    }
}
