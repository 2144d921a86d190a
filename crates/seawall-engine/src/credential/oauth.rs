//! OAuth 2 tokens (RFC 6749): fetched on demand, kept in memory, with one token request however many calls wait.

use super::form::{CredentialForm, hide, probe, sent};
use crate::base64::base64;
use crate::locked_cell::Locked;
use crate::mask::{Mask, Masked, Probe};
use crate::secret::{MissingSecret, Secret, Vault, fetch};
use crate::sender::Sending;
use crate::shared::RedisStore;
use crate::shared::token::{self, SharedToken, TokenTurn};
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderValue, Method, Request, Uri};
use seawall_core::config::place::{Inject, SecretRef};
use seawall_core::config::{Auth, Refresh};
use seawall_core::request_target::RequestTarget;
use seawall_core::time::{Mono, Nanos};
use seawall_http::connect::{ConnectError, RequestSender};
use seawall_http::fault::Fault;
use seawall_http::h2::absolute;
use seawall_http::query_parameter::encode;
use seawall_http::request_body::Outgoing;
use seawall_http::response_body::read_up_to;
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

const CONNECT: Nanos = Nanos::from_secs(5);
const TOTAL: Duration = Duration::from_secs(10);
const MAX_ANSWER: usize = 64 * 1024;
/// After a refusal, the provider is not asked again for this long.
const DENIED_FOR: Nanos = Nanos::from_secs(1);
/// After an unusable response, it is asked again sooner, since such a failure passes.
const UNAVAILABLE_FOR: Nanos = Nanos::from_millis(200);
/// A token is renewed a tenth of its lifetime early, at most by this.
const EARLY: Nanos = Nanos::from_secs(30);
/// Minimum use of a token, whatever its lifetime. Otherwise a provider that returns `expires_in: 0` would be asked in an endless loop by
/// the first call that waits for a token.
const MIN_LIFE: Nanos = Nanos::from_millis(500);
/// Minimum interval of renewals after refusals by the upstream: a request that is refused with every token must not cause a token request
/// for each send.
const RENEWAL_PAUSE: Nanos = Nanos::from_secs(1);
/// Maximum characters of the provider's message.
const MAX_WORDS: usize = 300;
/// Replaced tokens that are still masked.
const MAX_PAST: usize = 8;

/// The source of an upstream's tokens, and the current token.
#[derive(Debug)]
pub struct Tokens {
    spec: Refresh,
    client_id: Secret,
    client_secret: Secret,
    first_refresh: Option<Secret>,
    inject: Inject,
    cell: Locked<OauthCell>,
    /// Tokens of other instances.
    shared: Option<SharedToken>,
}

#[derive(Debug, Default)]
struct OauthCell {
    token: Option<Arc<OauthToken>>,
    turn: u64,
    /// The refresh token, which the provider may replace with each token.
    refresh: Option<Secret>,
    /// Recently replaced access tokens: a response to an earlier request may still contain one.
    past: VecDeque<Secret>,
    /// Closed when the token request in flight has ended.
    flight: Option<watch::Receiver<()>>,
    denied: Option<(Mono, Denied)>,
    /// Time of the last renewal after a refusal by the upstream.
    renewed: Option<Mono>,
}

#[derive(Debug)]
pub struct OauthToken {
    turn: u64,
    until: Mono,
    secret: Secret,
    pub(crate) sent: CredentialForm,
    pub(crate) probe: Probe,
}

/// The reason why there is no token.
#[derive(Clone, Debug)]
pub struct Denied {
    pub why: Masked,
    pub fault: Fault,
}

impl Tokens {
    pub(crate) fn new(
        auth: &Auth,
        spec: &Refresh,
        path: &str,
        vault: Vault<'_>,
        before: Option<&Arc<Self>>,
        shared: Option<(&Arc<RedisStore>, &str)>,
    ) -> Result<Arc<Self>, MissingSecret> {
        let secret = |name: &str, reference: &SecretRef| {
            let missing = |why| MissingSecret { path: format!("{path}.refresh.{name}"), reference: reference.to_string(), why };
            fetch(reference, vault).map_err(missing)
        };
        let first_refresh = spec.refresh_token.as_ref().map(|reference| secret("refresh_token", reference)).transpose()?;
        if spec.kind == "refresh-token" && first_refresh.is_none() {
            let why = "the refresh-token grant needs one".to_owned();
            return Err(MissingSecret { path: format!("{path}.refresh.refresh_token"), reference: "(none)".to_owned(), why });
        }
        let (client_id, client_secret) = (secret("client_id", &spec.client_id)?, secret("client_secret", &spec.client_secret)?);
        let same = |old: &&Arc<Self>| {
            old.spec == *spec
                && old.inject == auth.inject
                && (&old.client_id, &old.client_secret, &old.first_refresh) == (&client_id, &client_secret, &first_refresh)
        };
        if let Some(old) = before.filter(same) {
            return Ok(Arc::clone(old));
        }
        let cell = Locked::new(OauthCell { refresh: first_refresh.clone(), ..OauthCell::default() });
        let shared = shared.and_then(|(store, upstream)| SharedToken::new(store, upstream, &client_id, &client_secret));
        Ok(Arc::new(Self { spec: spec.clone(), client_id, client_secret, first_refresh, inject: auth.inject.clone(), cell, shared }))
    }

    /// Returns the current token, or a new one; the upstream has refused `rejected`.
    ///
    /// # Errors
    /// When the provider gives none.
    pub async fn token(self: &Arc<Self>, sending: &Sending, rejected: Option<&OauthToken>) -> Result<Arc<OauthToken>, Denied> {
        loop {
            let mut flight = {
                let now = sending.clock.now().mono;
                let mut cell = self.cell.lock();
                let usable = |token: &&Arc<OauthToken>| now < token.until && rejected.is_none_or(|rejected| token.turn > rejected.turn);
                if let Some(token) = cell.token.as_ref().filter(usable) {
                    return Ok(Arc::clone(token));
                }
                if let Some((_, denied)) = cell.denied.as_ref().filter(|(at, denied)| now.since(*at) < denied.lasts()) {
                    return Err(denied.clone());
                }
                match cell.flight.as_ref().filter(|flight| flight.has_changed().is_ok()) {
                    Some(flight) => flight.clone(),
                    None => {
                        if rejected.is_some() {
                            if cell.renewed.is_some_and(|at| now.since(at) < RENEWAL_PAUSE) {
                                return Err(denied("the upstream has just refused a new one too"));
                            }
                            cell.renewed = Some(now);
                        }
                        self.start_refresh(&mut cell, sending)
                    }
                }
            };
            // An error means that the sender is gone, which is how a request ends.
            drop(flight.changed().await);
        }
    }

    /// Starts the one token request that all calls wait for. It is a separate task, because the call that needed it first may be dropped.
    fn start_refresh(self: &Arc<Self>, cell: &mut OauthCell, sending: &Sending) -> watch::Receiver<()> {
        let (done, flight) = watch::channel(());
        cell.flight = Some(flight.clone());
        let refresh = cell.refresh.clone();
        let (tokens, sending) = (Arc::clone(self), sending.clone());
        tokio::task::spawn_local(async move {
            let asked = tokio::time::timeout(TOTAL, tokens.fetch(&sending, refresh.as_ref())).await;
            let result = asked.unwrap_or_else(|_| Err(tokens.unavailable("did not answer in time")));
            tokens.finish_refresh(result, sending.clock.now().mono);
            drop(done);
        });
        flight
    }

    /// Returns the provider's response, possibly from another instance.
    async fn fetch(&self, sending: &Sending, refresh: Option<&Secret>) -> Result<Value, Denied> {
        let Some(shared) = &self.shared else { return self.ask(sending, refresh).await };
        loop {
            match shared.turn(sending.clock.now().wall).await {
                TokenTurn::Found(answer) => return Ok(answer),
                TokenTurn::Alone => return self.ask(sending, refresh).await,
                TokenTurn::Others => tokio::time::sleep(token::LOOK).await,
                TokenTurn::Ours => {
                    let answer = self.ask(sending, refresh).await;
                    shared.keep(answer.as_ref().ok(), sending.clock.now().wall).await;
                    return answer;
                }
            }
        }
    }

    fn finish_refresh(&self, result: Result<Value, Denied>, now: Mono) {
        let mut cell = self.cell.lock();
        cell.flight = None;
        let turn = cell.turn + 1;
        match result.and_then(|answer| self.read(&answer, turn, now)) {
            Ok((token, refresh)) => {
                cell.turn = turn;
                let replaced = cell.token.replace(Arc::new(token)).map(|token| token.secret.clone());
                cell.past.extend(replaced);
                if cell.past.len() > MAX_PAST {
                    cell.past.pop_front();
                }
                cell.denied = None;
                cell.refresh = refresh.or_else(|| cell.refresh.take());
            }
            Err(denied) => cell.denied = Some((now, denied)),
        }
    }

    fn read(&self, answer: &Value, turn: u64, now: Mono) -> Result<(OauthToken, Option<Secret>), Denied> {
        let text = |name: &str| answer[name].as_str().filter(|text| !text.is_empty());
        let access = text("access_token").ok_or_else(|| denied("its answer has no access_token"))?;
        let secret = Secret::new(access);
        let sent = sent(&self.inject, &secret).map_err(|_| denied("its token fits into no header"))?;
        let until = token::seconds(answer).map_or(Mono::MAX, |seconds| {
            let life = Nanos::from_secs(seconds);
            now + Nanos(life.0 - (life.0 / 10).min(EARLY.0)).max(MIN_LIFE)
        });
        let probe = probe(&self.inject, &secret);
        Ok((OauthToken { turn, until, secret, sent, probe }, text("refresh_token").map(Secret::new)))
    }

    async fn ask(&self, sending: &Sending, refresh: Option<&Secret>) -> Result<Value, Denied> {
        let base = &self.spec.token_url;
        let failed = |fault: Fault| self.unavailable(&format!("did not answer ({})", fault.token));
        let unconnected = |error: ConnectError| match error.detail {
            // Waiting does not make a certificate valid.
            Some(detail) if error.fault == Fault::CERTIFICATE => untrusted(&detail),
            Some(detail) => self.unavailable(&format!("cannot be connected to: {detail}")),
            None => self.unavailable(&format!("cannot be connected to ({})", error.fault.token)),
        };
        let path = if base.path.is_empty() { "/" } else { &base.path };
        let target = RequestTarget::new(path).map_err(|_| denied("its URL cannot be sent"))?;
        let mut request = self.request(refresh)?;
        let (head, body) = match sending.connector.connect(base, CONNECT).await.map_err(unconnected)? {
            RequestSender::H1(mut conn) => {
                let (said, body) = request.into_parts();
                let start = body.start();
                conn.begin(body, start, true, |out| {
                    out.line(&said.method, &target, None);
                    said.headers.iter().for_each(|(name, value)| out.field(name, value));
                });
                let (head, _) = conn.answer(false, None).await.map_err(failed)?;
                (head, read_up_to(&mut conn, MAX_ANSWER).await)
            }
            RequestSender::H2(mut shared) => {
                *request.uri_mut() = absolute(base, &target.parse::<Uri>().map_err(|_| denied("its URL cannot be sent"))?);
                request.headers_mut().remove(HOST);
                let (head, mut body) = shared.send(request).await.map_err(|failure| failed(failure.fault))?;
                (head, read_up_to(&mut body.incoming, MAX_ANSWER).await)
            }
        };
        let body = body.map_err(failed)?;
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        let status = head.status.as_u16();
        if is_token(status, &answer) {
            Ok(answer)
        } else if is_refusal(status, &answer) {
            let said = ["error", "error_description"].iter().filter_map(|name| answer[*name].as_str());
            let said = self.masked(&said.collect::<Vec<_>>().join(": "));
            Err(denied(&format!("it answered {status} {said}")))
        } else {
            let what = if head.status.is_success() { " without a token" } else { "" };
            Err(self.unavailable(&format!("answered {status}{what}")))
        }
    }

    fn request(&self, refresh: Option<&Secret>) -> Result<Request<Outgoing>, Denied> {
        let mut form = match refresh.filter(|_| self.spec.kind == "refresh-token") {
            Some(refresh) => format!("grant_type=refresh_token&refresh_token={}", encode(refresh.reveal())),
            None => "grant_type=client_credentials".to_owned(),
        };
        if !self.spec.scope.is_empty() {
            form.push_str(&format!("&scope={}", encode(&self.spec.scope)));
        }
        // RFC 6749 §2.3.1: both are encoded before they are joined, in a header or in the form.
        let (id, secret) = (encode(self.client_id.reveal()), encode(self.client_secret.reveal()));
        if self.spec.client_in_body {
            form.push_str(&format!("&client_id={id}&client_secret={secret}"));
        }
        let basic = HeaderValue::from_str(&format!("Basic {}", base64(format!("{id}:{secret}").as_bytes())))
            .map_err(|_| denied("its client cannot be named"))?;
        let base = &self.spec.token_url;
        let mut request = Request::new(Outgoing::Full(Bytes::from(form)));
        *request.method_mut() = Method::POST;
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_str(&base.authority()).map_err(|_| denied("its URL cannot be sent"))?);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if !self.spec.client_in_body {
            headers.insert(AUTHORIZATION, basic);
        }
        Ok(request)
    }

    /// Masks current and recent tokens, and the client's credentials.
    pub(crate) fn hide(&self, mask: &mut Mask) {
        let cell = self.cell.lock();
        for token in cell.token.iter().map(|token| &token.secret).chain(&cell.past) {
            hide(&self.inject, token, "…", mask);
        }
        for secret in [Some(&self.client_secret), self.first_refresh.as_ref(), cell.refresh.as_ref()].into_iter().flatten() {
            mask.hide(secret.reveal(), "…");
        }
        // The form in which RFC 6749 sends both in a header.
        mask.hide_basic(&format!("{}:{}", encode(self.client_id.reveal()), encode(self.client_secret.reveal())), "…");
    }

    /// Builds the error for a temporary failure of the provider. Nothing was sent to the upstream, so the call may be retried whatever its
    /// method, and the upstream is not blamed.
    pub(crate) fn unavailable(&self, why: &str) -> Denied {
        let host = &self.spec.token_url.host;
        Denied { why: Masked::own_words(format!("the token provider {host} {why}")), fault: Fault::UNRELATED }
    }

    /// Returns the provider's message, shortened and masked.
    fn masked(&self, text: &str) -> Masked {
        let mut mask = Mask::default();
        self.hide(&mut mask);
        Masked::own_words(mask.words(text.as_bytes()).as_str().chars().take(MAX_WORDS).collect::<String>())
    }
}

impl Denied {
    /// Returns for how long further calls get this error without a new request.
    fn lasts(&self) -> Nanos {
        if self.fault == Fault::TOKEN { DENIED_FOR } else { UNAVAILABLE_FOR }
    }
}

fn is_token(status: u16, answer: &Value) -> bool {
    matches!(status, 200..300) && answer["access_token"].as_str().is_some_and(|token| !token.is_empty())
}

/// Returns whether the provider refuses (RFC 6749 §5.2). All other failures, such as a load balancer's error page, are temporary.
fn is_refusal(status: u16, answer: &Value) -> bool {
    let passes = matches!(status, 408 | 429 | 500..);
    !passes && answer["error"].as_str().is_some_and(|error| !matches!(error, "temporarily_unavailable" | "slow_down" | "server_error"))
}

fn denied(why: &str) -> Denied {
    Denied { why: Masked::own_words(format!("the token was refused: {}", why.trim_end())), fault: Fault::TOKEN }
}

fn untrusted(why: &str) -> Denied {
    Denied { why: Masked::own_words(format!("the token's provider is not trusted: {why}")), fault: Fault::TOKEN }
}
