//! Export and import of dead letters, one complete letter per line. A letter that already exists stays unchanged.

use super::Operator;
use super::jobs::{self, RefusedLine};
use super::letters;
use super::paths::paths;
use crate::ServerState;
use crate::jobs::letter_filter::{self, LetterFilter};
use crate::jobs::line_stream::{self, BYTES_TOGETHER, InputLine, LineBounds};
use crate::jobs::submit;
use crate::jobs::view::{self, LetterView};
use crate::json_shapes::{ClassWord, DoorWord, LetterStatus, SeverityWord, Time};
use crate::observe::audit;
use crate::query::{QueryParameters, bad, either, of_store};
use crate::response::Refusal;
use axum::Extension;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use bytes::Bytes;
use futures_util::future::join_all;
use seawall_core::discretion::{self, REDACTED};
use seawall_core::id::CallId;
use seawall_core::policy::{Door, Severity};
use seawall_core::record::Class;
use seawall_core::time::Wall;
use seawall_engine::ad_hoc;
use seawall_engine::runtime::Live;
use seawall_engine::upstream_target::ASTERISK;
use seawall_http::egress::Reach;
use seawall_http::request_headers::{BadHeader, RequestHeaders};
use seawall_store::Error;
use seawall_store::dead::{LetterQuery, NewLetter};
use seawall_store::job::{Attempted, JobRequest, MAX_HISTORY};
use seawall_store::page::PageWindow;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc;
use utoipa::ToSchema;

/// Letters per page. No transaction is open between two pages.
const PAGE: usize = 100;
/// Maximum letters of one import.
const MAX_LINES: u64 = 1_000_000;
/// Letters that are written concurrently.
const TOGETHER: usize = 64;

paths!(export, import);

/// A letter; or, as the last line, why there are no more although there should be.
#[derive(ToSchema)]
#[schema(as = ExportedLine)]
#[serde(untagged)]
#[expect(dead_code, reason = "only described: both kinds of line are written where they are made")]
enum ExportedLine {
    Letter(Box<LetterView>),
    Broken(RefusedLine),
}

/// Dead letters as NDJSON, bodies included
#[utoipa::path(
    get, path = "/v1/dead-letters/export", operation_id = "exportDeadLetters", tag = "dead letters",
    params(LetterFilter, ("status" = Option<LetterStatus>, Query)),
    responses((status = 200, description = "One dead letter a line", body = Vec<ExportedLine>, content_type = "application/x-ndjson")),
)]
async fn export(State(shared): State<Arc<ServerState>>, RawQuery(query): RawQuery) -> Response {
    either(exported(shared, query.as_deref()))
}

fn exported(shared: Arc<ServerState>, query: Option<&str>) -> Result<Response, Box<Refusal>> {
    let query = QueryParameters::parse(query, letters::EXPORTED)?;
    let filter = letter_filter::filter(&query)?;
    let (sender, lines) = mpsc::channel(16);
    tokio::spawn(async move {
        if let Err(error) = write(&shared, filter, &sender).await {
            // The status has been sent already, so the last line reports the error.
            let last = RefusedLine::of(&of_store(&error));
            drop(sender.send(line_stream::written(&last)).await);
        }
    });
    Ok(line_stream::streamed(lines))
}

async fn write(shared: &ServerState, filter: LetterQuery, to: &mpsc::Sender<Bytes>) -> Result<(), Error> {
    let (store, mut after) = (&shared.desk.store, None);
    loop {
        let page = store.letters(filter.clone(), PageWindow { after, limit: PAGE }).await?;
        for listed in &page.entries {
            // Lists come without bodies; a letter that was deleted meanwhile is skipped.
            let Some(letter) = store.letter(listed.letter.id).await? else { continue };
            if to.send(line_stream::written(&view::letter(&letter))).await.is_err() {
                return Ok(());
            }
        }
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}

/// Keep dead letters that were exported; one answer a line
#[utoipa::path(
    post, path = "/v1/dead-letters/import", operation_id = "importDeadLetters", tag = "dead letters",
    request_body(content = Vec<ExportedLetter>, content_type = "application/x-ndjson"),
    responses((status = 200, description = "An answer a line", body = Vec<LetterLine>, content_type = "application/x-ndjson")),
)]
async fn import(State(shared): State<Arc<ServerState>>, Extension(who): Extension<Operator>, body: Body) -> Response {
    audit(&shared, &who.0, "import", "dead letters".to_owned()).await;
    let bounds = LineBounds {
        bytes_of_a_line: jobs::longest(&shared.live.load()),
        lines: MAX_LINES,
        together: TOGETHER,
        bytes_together: BYTES_TOGETHER,
    };
    line_stream::answer(body, bounds, move |lines| {
        let shared = Arc::clone(&shared);
        async move { join_all(lines.into_iter().map(|(number, line)| keep(&shared, number, line))).await.concat().into() }
    })
}

async fn keep(shared: &ServerState, number: u64, line: InputLine) -> String {
    let read = line.and_then(|line| letter(&line, &shared.live.load(), shared.desk.now()));
    let refused = |refusal: &Refusal| LetterLine { refused: RefusedLine::of(refusal), ..LetterLine::default() };
    let mut said = match read {
        Err(why) => refused(&bad(&why)),
        Ok(letter) => {
            let id = Some(letter.id.to_string());
            match shared.desk.store.keep_letter(letter).await {
                Ok(()) => LetterLine { id, kept: Some(true), ..LetterLine::default() },
                Err(error) => LetterLine { id, ..refused(&of_store(&error)) },
            }
        }
    };
    said.line = number;
    line_stream::text(&said)
}

/// What is said of one line: its letter, or what is wrong with it
#[derive(Debug, Default, Serialize, ToSchema)]
struct LetterLine {
    line: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    kept: Option<bool>,
    #[serde(flatten)]
    #[schema(inline)]
    refused: RefusedLine,
}

/// A letter as an export writes it; what it says besides is how things stood there.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = ExportedLetter)]
struct ExportedLetter {
    id: String,
    queue: String,
    endpoint: String,
    #[schema(value_type = DoorWord)]
    door: String,
    original: Original,
    #[schema(value_type = ClassWord)]
    class: String,
    failure_reason: String,
    failure_code: String,
    #[serde(default)]
    error_detail: String,
    #[schema(value_type = Option<Time>)]
    last_attempt_at: Option<String>,
    total_attempts: u32,
    correlation_id: Option<String>,
    idempotency_key: Option<String>,
    caller: String,
    tenant: String,
    #[schema(value_type = Time)]
    enqueued_at: String,
    #[schema(value_type = Time)]
    dead_lettered_at: String,
    #[schema(value_type = Time)]
    expires_at: String,
    #[schema(value_type = SeverityWord)]
    severity: String,
    replayable: bool,
    #[serde(default)]
    replay_instructions: String,
    #[serde(default)]
    #[schema(value_type = Vec<view::Tried>)]
    history: Vec<Attempted>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = ExportedRequest)]
struct Original {
    method: String,
    url: String,
    path: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    body: Value,
    #[schema(value_type = Option<view::Encoding>)]
    body_encoding: Option<String>,
    #[serde(default)]
    body_cut: bool,
}

/// Returns the headers that can be sent again. Exports contain no secrets, and connection headers do not belong to the request.
fn headers(written: BTreeMap<String, String>) -> Result<Vec<(String, String)>, String> {
    let mut kept = Vec::with_capacity(written.len());
    for (name, value) in written {
        match RequestHeaders::check(&name, &value) {
            Ok(_) if discretion::is_secret(&name) => {}
            Ok(_) => kept.push((name, value)),
            Err(BadHeader::Reserved(_)) => {}
            Err(bad @ BadHeader::Unsendable(_)) => return Err(bad.to_string()),
        }
    }
    Ok(kept)
}

fn letter(line: &[u8], live: &Live, now: Wall) -> Result<NewLetter, String> {
    let written: ExportedLetter = serde_json::from_slice(line).map_err(|error| format!("this is no dead letter: {error}"))?;
    if written.queue == ad_hoc::NAME {
        // An ad-hoc URL is checked as it is on submission.
        submit::outside(&written.original.path, &Reach::new(live.config.server.allow_private.clone()))?;
    } else if written.original.path != ASTERISK {
        submit::checked_path(written.original.path.clone())?;
    }
    submit::checked_method(&written.original.method)?;
    let mut headers = headers(written.original.headers)?;
    let body = submit::body(written.original.body, written.original.body_encoding.as_deref(), &mut headers)?;
    // A redacted export cannot be replayed.
    let is_whole = !discretion::secrets(&written.original.path).any(|secret| secret == REDACTED);
    let word = |name: &str, text: &str| format!("`{name}` is not `{text}`");
    let (dead_at, expires_at) =
        (submit::time("dead_lettered_at", &written.dead_lettered_at)?, submit::time("expires_at", &written.expires_at)?);
    Ok(NewLetter {
        id: CallId::parse(&written.id).ok_or_else(|| word("id", &written.id))?,
        door: Door::from_word(&written.door).ok_or_else(|| word("door", &written.door))?,
        upstream: written.queue,
        endpoint: written.endpoint,
        tenant: written.tenant,
        caller: written.caller,
        url: written.original.url,
        request: JobRequest { method: written.original.method, path: written.original.path, headers, body },
        body_cut: written.original.body_cut,
        class: Class::from_word(&written.class).ok_or_else(|| word("class", &written.class))?,
        reason: written.failure_reason,
        code: written.failure_code,
        detail: written.error_detail,
        last_attempt_at: written.last_attempt_at.as_deref().map(|text| submit::time("last_attempt_at", text)).transpose()?,
        attempts: written.total_attempts,
        correlation_id: written.correlation_id,
        idempotency_key: written.idempotency_key,
        enqueued_at: submit::time("enqueued_at", &written.enqueued_at)?,
        dead_at,
        // A letter that has expired elsewhere gets its full time again; otherwise it would be deleted at once.
        expires_at: if expires_at > now { expires_at } else { now + expires_at.since(dead_at) },
        severity: Severity::from_word(&written.severity).ok_or_else(|| word("severity", &written.severity))?,
        replayable: written.replayable && is_whole,
        instructions: written.replay_instructions,
        history: written.history.into_iter().take(MAX_HISTORY).collect(),
    })
}
