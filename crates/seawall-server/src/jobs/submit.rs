//! The description of a job by its submitter, checked before the job is stored.

use super::JobContext;
use super::view::Encoding;
use crate::idempotency;
use crate::json_shapes::Time;
use base64::Engine as _;
use bytes::Bytes;
use http::{HeaderMap, HeaderName};
use seawall_core::config::url::Base;
use seawall_core::decide::CallProgress;
use seawall_core::request_method;
use seawall_core::request_target::RequestTarget;
use seawall_core::time::Wall;
use seawall_core::units;
use seawall_engine::runtime::Live;
use seawall_engine::upstream_target::target;
use seawall_http::egress::{OUT_OF_REACH, Reach};
use seawall_http::request_headers::{BadHeader, RequestHeaders};
use seawall_store::job::{AD_HOC, JobOrigin, JobRequest, NewJob};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use utoipa::ToSchema;
use utoipa::openapi::{Object, ObjectBuilder, Type};

/// Maximum length of a key.
const MAX_KEY: usize = 255;
const MAX_HEADERS: usize = 100;

/// `upstream` and `path`, or a whole `url`
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewJob)]
pub(crate) struct Submission {
    upstream: Option<String>,
    url: Option<String>,
    #[serde(default = "get")]
    #[schema(default = "GET")]
    method: String,
    #[schema(pattern = "^/")]
    path: Option<String>,
    #[serde(default)]
    #[schema(schema_with = few_headers)]
    headers: BTreeMap<String, String>,
    /// Text is sent as it is, anything else as JSON
    #[serde(default)]
    body: Value,
    #[schema(value_type = Option<Encoding>)]
    body_encoding: Option<String>,
    #[schema(value_type = Option<Time>)]
    run_at: Option<String>,
    /// Instead of `run_at`: a time from now, as in "30s"
    delay: Option<String>,
    #[schema(value_type = Option<Time>)]
    expires_at: Option<String>,
    #[serde(default)]
    priority: i64,
    #[schema(min_length = 1, max_length = 255, pattern = "^[!-~][ -~]*$")]
    pub(crate) idempotency_key: Option<String>,
    #[schema(max_length = 255)]
    correlation_id: Option<String>,
    callback: Option<String>,
    tenant: Option<String>,
}

fn few_headers() -> Object {
    let text = ObjectBuilder::new().schema_type(Type::String);
    ObjectBuilder::new().additional_properties(Some(text)).max_properties(Some(MAX_HEADERS)).build()
}

fn get() -> String {
    "GET".to_owned()
}

/// The submitter of a job: the caller who owns it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Submitter<'a> {
    pub caller: &'a str,
    pub tenant: &'a str,
}

/// # Errors
/// With a description of the problem for the submitter.
pub(crate) fn accept(text: &[u8], live: &Live, desk: &JobContext, by: Submitter<'_>) -> Result<NewJob, String> {
    // Checked here because serde would accept an array of the fields in order and complain about the first one.
    if text.trim_ascii_start().first().is_some_and(|first| *first != b'{') {
        return Err("this is no job: a job is one JSON object; many are lines of application/x-ndjson".to_owned());
    }
    let submission: Submission = serde_json::from_slice(text).map_err(|error| format!("this is no job: {error}"))?;
    check(submission, live, desk, by)
}

pub(crate) fn check(submission: Submission, live: &Live, desk: &JobContext, by: Submitter<'_>) -> Result<NewJob, String> {
    let reach = Reach::new(live.config.server.allow_private.clone());
    let (upstream, path) = match (submission.upstream, submission.url, submission.path) {
        (Some(name), None, path) => {
            let upstream = live.named(&name).ok_or_else(|| format!("no upstream named `{name}` is configured"))?;
            let path = checked_path(path.unwrap_or_else(|| "/".to_owned()))?;
            target(upstream, &path).map_err(|bad| bad.to_string())?;
            (name, path)
        }
        (None, Some(url), None) => (AD_HOC.to_owned(), outside(&url, &reach)?),
        _ => return Err("a job names an `upstream` and a `path`, or a whole `url`".to_owned()),
    };
    let method = submission.method.to_ascii_uppercase();
    checked_method(&method)?;
    let mut headers = headers(submission.headers)?;
    let body = body(submission.body, submission.body_encoding.as_deref(), &mut headers)?;
    let own = live.named(&upstream).map(|upstream| live.max_body(upstream.endpoint(&method, &path)));
    let most = live.config.server.max_body.min(own.unwrap_or(u64::MAX));
    if u64::try_from(body.len()).unwrap_or(u64::MAX) > most {
        return Err("the body is larger than `max_body`".to_owned());
    }
    let key = submission.idempotency_key.map(|key| plain_key(&key)).transpose()?;
    if let Some(key) = &key
        && !headers.iter().any(|(name, _)| name == "idempotency-key")
    {
        headers.push(("idempotency-key".to_owned(), key.clone()));
    }
    let now = desk.now();
    let callback = submission.callback.map(|url| outside(&url, &reach)).transpose()?;
    let content_type = headers.iter().find(|(name, _)| name == "content-type").map_or(&b""[..], |(_, value)| value.as_bytes());
    Ok(NewJob {
        id: desk.new_id(),
        dedup: key.as_ref().map(|key| {
            let headers = &header_map(&headers);
            idempotency::KeyedRequest { caller: by.caller, upstream: &upstream, method: &method, path: &path, headers, key }.scope()
        }),
        fingerprint: idempotency::fingerprint(&method, &path, content_type, &body),
        upstream,
        tenant: submission.tenant.unwrap_or_else(|| by.tenant.to_owned()),
        caller: by.caller.to_owned(),
        priority: submission.priority.clamp(-1000, 1000),
        request: JobRequest { method, path, headers, body },
        idempotency_key: key,
        correlation_id: submission.correlation_id.filter(|id| !id.is_empty()).map(bounded).transpose()?,
        callback,
        run_at: run_at(submission.run_at.as_deref(), submission.delay.as_deref(), now)?,
        expires_at: submission.expires_at.as_deref().map(|text| time("expires_at", text)).transpose()?,
        origin: JobOrigin::Caller,
        progress: CallProgress::default(),
        history: Vec::new(),
    })
}

fn header_map(headers: &[(String, String)]) -> HeaderMap {
    let parsed = headers.iter().filter_map(|(name, value)| Some((name.parse::<HeaderName>().ok()?, value.parse().ok()?)));
    parsed.collect()
}

fn bounded(text: String) -> Result<String, String> {
    if text.len() <= MAX_KEY { Ok(text) } else { Err(format!("a name of more than {MAX_KEY} characters")) }
}

/// Parses a key, bare or quoted as a structured field.
pub(crate) fn plain_key(text: &str) -> Result<String, String> {
    let text = text.trim();
    let bare = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(text);
    let fits = !bare.is_empty() && bare.len() <= MAX_KEY && bare.bytes().all(|byte| (0x20..0x7f).contains(&byte));
    if fits { Ok(bare.to_owned()) } else { Err(format!("an idempotency key has 1 to {MAX_KEY} printable characters")) }
}

/// Checks an ad-hoc URL. A literal address that is not permitted is refused at once.
pub(crate) fn outside(url: &str, reach: &Reach) -> Result<String, String> {
    let base = Base::parse_callback(url).map_err(|why| format!("`{url}` is no URL that can be called: {why}"))?;
    let bare = base.host.trim_start_matches('[').trim_end_matches(']');
    let literal = bare.parse().ok().or_else(|| bare.eq_ignore_ascii_case("localhost").then(|| std::net::Ipv4Addr::LOCALHOST.into()));
    if literal.is_some_and(|address| !reach.permits(address)) {
        return Err(format!("`{bare}` {OUT_OF_REACH}"));
    }
    Ok(url.to_owned())
}

/// # Errors
/// When the method may not be sent.
pub(crate) fn checked_method(method: &str) -> Result<(), String> {
    request_method::check(method).map_err(|bad| format!("`{}` is no method that can be sent: {bad}", method.escape_default()))
}

/// Checks a path.
///
/// # Errors
/// With a description of the problem.
pub(crate) fn checked_path(path: String) -> Result<String, String> {
    RequestTarget::new(path.as_str()).map_err(|bad| format!("`{}` is no path: {bad}", path.escape_default()))?;
    Ok(path)
}

fn headers(given: BTreeMap<String, String>) -> Result<Vec<(String, String)>, String> {
    if given.len() > MAX_HEADERS {
        return Err(format!("more than {MAX_HEADERS} headers"));
    }
    let mut kept = Vec::with_capacity(given.len());
    for (name, value) in given {
        RequestHeaders::check(&name, &value).map_err(|bad| bad.to_string())?;
        let lower = name.to_ascii_lowercase();
        if lower.starts_with("webhook-") {
            return Err(BadHeader::Reserved(name).to_string());
        }
        kept.push((lower, value));
    }
    Ok(kept)
}

/// Returns the body: text as it is, other values as JSON.
pub(crate) fn body(value: Value, encoding: Option<&str>, headers: &mut Vec<(String, String)>) -> Result<Bytes, String> {
    match (value, encoding) {
        (Value::Null, None) => Ok(Bytes::new()),
        (Value::String(text), None | Some("utf-8")) => Ok(Bytes::from(text)),
        (Value::String(text), Some("base64")) => base64::engine::general_purpose::STANDARD
            .decode(text)
            .map(Bytes::from)
            .map_err(|error| format!("the body is no base64: {error}")),
        (value, None) => {
            if !headers.iter().any(|(name, _)| name == "content-type") {
                headers.push(("content-type".to_owned(), "application/json".to_owned()));
            }
            Ok(Bytes::from(value.to_string()))
        }
        (_, Some(other)) => Err(format!("a body is `utf-8` or `base64`, not `{other}`")),
    }
}

fn run_at(at: Option<&str>, delay: Option<&str>, now: Wall) -> Result<Wall, String> {
    match (at, delay) {
        (None, None) => Ok(now),
        (Some(at), None) => time("run_at", at),
        (None, Some(delay)) => units::duration(delay).map(|wait| now + wait),
        (Some(_), Some(_)) => Err("a job has `run_at` or `delay`, not both".to_owned()),
    }
}

pub(crate) fn time(name: &str, text: &str) -> Result<Wall, String> {
    Wall::parse(text).ok_or_else(|| format!("`{name}` is a time like 2030-01-31T12:00:00Z, not `{text}`"))
}
