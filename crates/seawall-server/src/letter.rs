//! Dead letters: a call that is given up on is kept with its request, the last response, the cause, and whether a replay can help.

use bytes::Bytes;
use seawall_core::call::{CallEnd, Outcome};
use seawall_core::discretion;
use seawall_core::policy::{Door, Severity};
use seawall_core::record::{AttemptOutcome, AttemptStatus, Class, Code, Reason};
use seawall_core::time::Wall;
use seawall_engine::attempt::Transport as _;
use seawall_engine::credential::Credentials;
use seawall_engine::driver::Finished;
use seawall_engine::mask::{Mask, Masked};
use seawall_engine::runtime::{LiveEndpoint, LiveUpstream};
use seawall_engine::transport::HttpTransport;
use seawall_http::fault::Fault;
use seawall_store::dead::NewLetter;
use seawall_store::headers::StoredHeaders;
use seawall_store::job::{AD_HOC, Attempted, Job, JobEnding, JobRequest, NewJob, Response};
use std::borrow::Cow;

/// Maximum bytes kept of a request's body.
const MAX_BODY: usize = 256 * 1024;
/// Maximum bytes kept of the detail text from the upstream or the checker.
const MAX_DETAIL: usize = 2000;

/// The code of jobs that were given up on because they seem to crash their workers.
pub const POISON: &str = "poison";

/// The cause for which a call is given up on.
#[derive(Clone, Debug)]
pub struct Cause {
    pub class: Class,
    pub reason: String,
    pub code: String,
    pub detail: Masked,
}

impl Cause {
    /// Returns the cause of a failed call. The code is that of the last attempt, if there was one: a breaker that opened between two
    /// attempts does not hide the failure.
    pub fn of(finish: &CallEnd, trail: &[(Wall, AttemptOutcome)], detail: Masked) -> Self {
        let mut attempts = trail.iter().rev().map(|(_, attempt)| attempt);
        let (class, code) = match finish.outcome {
            Outcome::Refused(code) => match attempts.next().filter(|attempt| matches!(attempt.status, AttemptStatus::Error(_))) {
                Some(met) => (met.class, met.status.to_string()),
                None => (class_of(code), code.as_str().to_owned()),
            },
            Outcome::Failed(class) => {
                let met = attempts.find(|attempt| attempt.status != AttemptStatus::CircuitOpen);
                (class, met.map_or_else(|| class.as_str().to_owned(), |attempt| attempt.status.to_string()))
            }
            Outcome::Success | Outcome::Replayed => (Class::Success, "success".to_owned()),
        };
        Self { class, reason: finish.reason.as_str().to_owned(), code, detail }
    }

    /// The cause of a job whose workers were lost. Its request may be fine: it may have been executed, and it may have crashed its workers.
    pub fn poison(crashes: u32) -> Self {
        Self {
            class: Class::Ambiguous,
            reason: POISON.to_owned(),
            code: POISON.to_owned(),
            detail: Masked::own_words(format!("{crashes} workers in a row ended while they had this job; each may have sent it")),
        }
    }

    /// The cause of a started send that may not be repeated and whose outcome is unknown.
    pub fn outcome_unknown(detail: Masked) -> Self {
        let code = Code::OutcomeUnknown.as_str().to_owned();
        Self { class: Class::Ambiguous, reason: code.clone(), code, detail }
    }

    pub fn no_upstream(name: &str) -> Self {
        Self {
            class: Class::Permanent,
            reason: Reason::TurnedAway.as_str().to_owned(),
            code: Code::NoUpstream.as_str().to_owned(),
            detail: Masked::own_words(format!("no upstream named `{name}` is configured")),
        }
    }

    pub fn unusable(detail: Masked) -> Self {
        Self { class: Class::Permanent, reason: Reason::TurnedAway.as_str().to_owned(), code: "bad_request".to_owned(), detail }
    }
}

const fn class_of(code: Code) -> Class {
    match code {
        Code::SchemaMismatch | Code::NoUpstream | Code::TooLarge => Class::Permanent,
        Code::KeysRejected | Code::CallerUnknown => Class::Auth,
        Code::KeysExhausted => Class::Quota,
        _ => Class::Transient,
    }
}

/// The upstream and endpoint of a job's letter, with their policy for letters.
#[derive(Debug)]
pub struct LetterPlace<'a> {
    pub upstream: Option<&'a LiveUpstream>,
    pub endpoint: Option<&'a LiveEndpoint>,
}

pub fn letter(job: &Job, door: Door, place: &LetterPlace<'_>, cause: Cause, trail: &[Attempted], now: Wall) -> NewLetter {
    let policy = place.endpoint.map(|endpoint| &endpoint.spec.policy.dead_letter);
    let (request, body_cut, stripped) = kept(&job.request);
    let whole = !body_cut && !stripped;
    let mut instructions = policy.map(|policy| policy.instructions.clone()).unwrap_or_default();
    if stripped {
        instructions.push_str("The caller's own credential was not kept: send the request again from where it came. ");
    }
    if body_cut {
        instructions.push_str("The body was longer than what is kept: send the request again from where it came. ");
    }
    let url = match place.upstream {
        _ if job.upstream == AD_HOC => without_query_values(&job.request.path),
        Some(upstream) => {
            let scheme = if upstream.spec.url.tls { "https" } else { "http" };
            format!("{scheme}://{}{}{}", upstream.spec.url.authority(), upstream.spec.url.path, job.request.path)
        }
        None => job.request.path.clone(),
    };
    NewLetter {
        id: job.id,
        door,
        upstream: if job.upstream == AD_HOC { seawall_engine::ad_hoc::NAME.to_owned() } else { job.upstream.clone() },
        endpoint: place.endpoint.map_or_else(|| "default".to_owned(), |endpoint| endpoint.names.endpoint.clone()),
        tenant: job.tenant.clone(),
        caller: job.caller.clone(),
        url,
        request,
        body_cut,
        class: cause.class,
        reason: cause.reason,
        code: cause.code,
        detail: cut(cause.detail.into_string(), MAX_DETAIL),
        last_attempt_at: (!trail.is_empty()).then_some(now),
        attempts: job.progress.attempts,
        correlation_id: job.correlation_id.clone(),
        idempotency_key: job.idempotency_key.clone(),
        enqueued_at: job.created_at,
        dead_at: now,
        expires_at: now + policy.map_or(seawall_core::time::Nanos::from_secs(14 * 86_400), |policy| policy.ttl),
        // A request that was never sent needs no urgent attention: nothing is in doubt, and a replay sends it.
        severity: policy.filter(|_| job.progress.attempts > 0).map_or(Severity::Review, |policy| policy.severity),
        replayable: whole && is_replayable(cause.class, &job.request.method, job.idempotency_key.is_some(), &trail_refused(trail)),
        instructions: instructions.trim_end().to_owned(),
        history: trail.to_vec(),
    }
}

/// Masks our own credentials for an upstream.
pub fn own_mask(upstream: Option<&LiveUpstream>) -> Mask {
    upstream.and_then(|upstream| upstream.credentials.as_ref()).map(Credentials::mask).unwrap_or_default()
}

/// Masks all secrets sent to an upstream: our credentials, and those of the request.
pub fn mask(upstream: Option<&LiveUpstream>, request: &JobRequest) -> Mask {
    and_request(own_mask(upstream), request)
}

pub fn and_request(mask: Mask, request: &JobRequest) -> Mask {
    mask.and_request(request.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())), &request.path)
}

/// Masks a response. `legible` is the decoded body if the body is compressed: a body that repeats a secret is stored as masked plain text.
pub fn masked_response(mut response: Response, legible: Option<&Bytes>, mask: &Mask) -> Response {
    if mask.is_empty() {
        return response;
    }
    if let Cow::Owned(_) = mask.bytes(response.headers.as_json().as_bytes()) {
        let shown = response.headers.pairs().into_iter().map(|(name, value)| (name, mask.words(value.as_bytes()).into_string()));
        response.headers = shown.collect();
    }
    let text = legible.unwrap_or(&response.body);
    if let Cow::Owned(masked) = mask.bytes(text) {
        if *text != response.body {
            let plain = |(name, _): &(String, String)| !name.eq_ignore_ascii_case("content-encoding");
            response.headers = response.headers.pairs().into_iter().filter(plain).collect::<StoredHeaders>();
        }
        response.body = Bytes::from(masked);
    }
    response
}

/// Describes the failure of an attempt without a response.
pub fn fault_words(fault: Option<Fault>) -> Masked {
    fault.map(|fault| Masked::own_words(fault.describe())).unwrap_or_default()
}

/// Returns the status of the last attempt, if there was one.
fn trail_refused(trail: &[Attempted]) -> Option<&str> {
    trail.last().map(|last| last.status.as_str())
}

/// Returns whether a replay can help without harm: a request that the upstream rejected fails again, and a request that may have run
/// must not run twice.
fn is_replayable(class: Class, method: &str, keyed: bool, last: &Option<&str>) -> bool {
    let may_help = match class {
        Class::Permanent | Class::Success => false,
        Class::Transient | Class::Ambiguous | Class::Quota | Class::Auth => true,
    };
    let unsent = matches!(last, None | Some("dns" | "connect" | "tls" | "circuit_open"));
    let harmless = keyed || unsent || matches!(method, "GET" | "HEAD" | "OPTIONS" | "PUT" | "DELETE");
    may_help && harmless
}

/// Returns why a letter is not replayed without `force`.
pub(crate) fn why_not(letter: &NewLetter) -> Option<&'static str> {
    if letter.replayable {
        return None;
    }
    let would_do = is_replayable(letter.class, &letter.request.method, letter.idempotency_key.is_some(), &trail_refused(&letter.history));
    Some(match letter.class {
        Class::Permanent | Class::Success => "the request itself was refused: sending it again cannot help",
        _ if would_do => "a part of the request was not kept: its credential or the end of its body",
        _ => MAY_HAVE_RUN,
    })
}

const MAY_HAVE_RUN: &str = "it may have been executed, and has no idempotency key: sending it again may execute it twice";

/// Returns whether a replay may execute the request a second time.
pub fn may_have_run(letter: &NewLetter) -> bool {
    why_not(letter) == Some(MAY_HAVE_RUN)
}

/// Headers that are not kept with a letter: an operator who replays it need not know its caller's credential. Other secret headers, such as
/// signatures, are kept because the request needs them, but they are not shown.
const CREDENTIALS: &[&str] = &["authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "seawall-token"];

fn is_credential(header: &str) -> bool {
    CREDENTIALS.iter().any(|name| header.eq_ignore_ascii_case(name))
}

/// Returns a request in its stored form: no credential, and a body of bounded length.
fn kept(request: &JobRequest) -> (JobRequest, bool, bool) {
    let stripped = request.headers.iter().any(|(name, _)| is_credential(name));
    let headers = request.headers.iter().filter(|(name, _)| !is_credential(name)).cloned().collect();
    let body_cut = request.body.len() > MAX_BODY;
    // Copies: a slice would keep the whole body in memory.
    let body = if body_cut { Bytes::copy_from_slice(&request.body[..MAX_BODY]) } else { request.body.clone() };
    (JobRequest { method: request.method.clone(), path: request.path.clone(), headers, body }, body_cut, stripped)
}

fn cut(mut text: String, most: usize) -> String {
    if text.len() > most {
        let at = (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(at);
        text.push('…');
    }
    text
}

/// Removes the query values of an ad-hoc URL, since they may be secrets.
fn without_query_values(url: &str) -> String {
    url.split_once('?').map_or_else(|| url.to_owned(), |(path, _)| format!("{path}?…"))
}

/// Builds the letter of a synchronous call that never was a job.
pub fn gateway_letter(
    call: &NewJob,
    transport: &HttpTransport<'_>,
    ended: &Finished,
    trail: &[(Wall, AttemptOutcome)],
    now: Wall,
) -> NewLetter {
    let said = transport.answer.as_ref().map(|answer| transport.mask().words(answer.seen()));
    let detail = transport.detail.clone().or(said).unwrap_or_default();
    let cause = Cause::of(&ended.finish, trail, detail);
    let place = LetterPlace { upstream: Some(transport.upstream), endpoint: Some(transport.endpoint) };
    let mut job = call.clone().begun(now);
    job.progress.attempts = ended.finish.attempts;
    letter(&job, Door::Gateway, &place, cause, &call.history, now)
}

/// Appends the attempts of this run to the history, in the terms of the attempt log.
pub fn history(before: &[Attempted], trail: &[(Wall, AttemptOutcome)]) -> Vec<Attempted> {
    let new = trail.iter().map(|(at, attempt)| Attempted {
        attempt: attempt.number,
        status: attempt.status.to_string(),
        latency_ms: attempt.latency.as_millis_f64(),
        outcome: attempt.outcome().to_owned(),
        at: at.to_string(),
    });
    before.iter().cloned().chain(new).collect()
}

/// The status of an attempt that may or may not have been executed.
const UNKNOWN: &str = "unknown";

/// Returns the history of a job after a send whose outcome is unknown.
pub fn with_unknown(before: &[Attempted], attempt: u32, at: Wall) -> Vec<Attempted> {
    let outcome = Class::Ambiguous.as_str().to_owned();
    let unknown = Attempted { attempt, status: UNKNOWN.to_owned(), latency_ms: 0.0, outcome, at: at.to_string() };
    before.iter().cloned().chain([unknown]).collect()
}

/// Returns whether the history has an attempt whose outcome is unknown.
pub fn has_unknown(history: &[Attempted]) -> bool {
    history.iter().any(|attempt| attempt.status == UNKNOWN)
}

/// Describes a started request that may not be repeated.
pub fn outcome_unknown(job: &Job, begun_at: Wall, why: &str) -> Cause {
    let attempt = job.progress.attempts.saturating_add(1);
    let words = format!("attempt {attempt} was begun at {begun_at}, and {why}; the request may have been executed");
    Cause::outcome_unknown(Masked::own_words(words))
}

/// Describes a request that may have been started while a rule let it be repeated.
pub fn begun_by_rule(job: &Job) -> Cause {
    let attempt = job.progress.attempts.saturating_add(1);
    let words = format!(
        "attempt {attempt} may have been begun while a rule let it be repeated, which does not hold any more; the request may have been executed"
    );
    Cause::outcome_unknown(Masked::own_words(words))
}

/// Returns whether the secrets of a job's request may be erased at its end. They stay if the result repeats one: its caller may see the
/// result, and for others they are needed to mask it.
pub fn forgets(job: &Job, ending: &JobEnding) -> bool {
    let has_secrets = job.request.has_secrets() || job.callback.as_deref().is_some_and(|url| discretion::secrets(url).next().is_some());
    let is_repeated = |response: &Response| masked_response(response.clone(), None, &mask(None, &job.request)) != *response;
    has_secrets && !matches!(ending, JobEnding::Done(response) if is_repeated(response))
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_core::record::{Decision, ErrorKind};
    use seawall_core::time::Nanos;

    #[test]
    fn only_what_can_help_and_cannot_harm_is_replayable() {
        assert!(is_replayable(Class::Transient, "GET", false, &Some("503")));
        assert!(is_replayable(Class::Transient, "POST", true, &Some("503")));
        assert!(!is_replayable(Class::Transient, "POST", false, &Some("503")), "it may have been executed");
        assert!(is_replayable(Class::Transient, "POST", false, &Some("connect")), "it never left us");
        assert!(is_replayable(Class::Transient, "POST", false, &None));
        assert!(!is_replayable(Class::Permanent, "GET", true, &Some("404")));
    }

    #[test]
    fn credentials_and_long_bodies_are_not_kept() {
        let request = JobRequest {
            method: "POST".to_owned(),
            path: "/".to_owned(),
            headers: vec![("Cookie".to_owned(), "secret".to_owned()), ("accept".to_owned(), "*/*".to_owned())],
            body: Bytes::from(vec![b'x'; MAX_BODY + 1]),
        };
        let (kept, cut, stripped) = kept(&request);
        assert!(cut && stripped);
        assert_eq!((kept.headers.len(), kept.body.len()), (1, MAX_BODY));
    }

    #[test]
    fn details_are_cut_between_characters() {
        assert_eq!(cut("ü".repeat(10), 3), "ü…");
        assert_eq!(without_query_values("https://x/y?token=1"), "https://x/y?…");
    }

    #[test]
    fn a_breaker_that_opens_in_between_leaves_the_upstreams_own_code() {
        let attempt = |number, status| {
            let (decision, reason) = (Decision::Return, Reason::AttemptsExhausted);
            let (latency, elapsed, wait) = (Nanos::ZERO, Nanos::ZERO, Nanos::ZERO);
            let attempt = AttemptOutcome {
                number,
                status,
                key: None,
                latency,
                elapsed,
                class: Class::Transient,
                named: true,
                decision,
                wait,
                reason,
            };
            (Wall(0), attempt)
        };
        let ended = |outcome| CallEnd {
            outcome,
            reason: Reason::AttemptsExhausted,
            attempts: 1,
            elapsed: Nanos::ZERO,
            waited: Nanos::ZERO,
            retry_after: None,
        };
        let trail = [attempt(1, AttemptStatus::Http(503)), attempt(2, AttemptStatus::CircuitOpen)];
        assert_eq!(Cause::of(&ended(Outcome::Failed(Class::Transient)), &trail, Masked::default()).code, "503");
        assert_eq!(Cause::of(&ended(Outcome::Refused(Code::CircuitOpen)), &trail, Masked::default()).code, "circuit_open");
        let reset = [attempt(1, AttemptStatus::Error(ErrorKind::Reset))];
        assert_eq!(Cause::of(&ended(Outcome::Failed(Class::Transient)), &reset, Masked::default()).code, "reset");
    }
}
