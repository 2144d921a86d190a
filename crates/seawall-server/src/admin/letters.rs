//! Dead letters over the admin API: list, show, discard, and the issues that group them.

use super::Operator;
use super::paths::paths;
use crate::ServerState;
use crate::jobs::letter_filter::{LetterFilter, filter};
use crate::jobs::view::{self, LetterView, ShownIssue};
use crate::json_shapes::LetterStatus;
use crate::observe::audit;
use crate::query::{List, Paged, QueryParameters, document, either, not_found, of_store, page};
use crate::response::Refusal;
use axum::Extension;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use seawall_core::id::CallId;
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

paths!(list, issues, show, discard);

/// A letter that is gone.
#[derive(Debug, Serialize, ToSchema)]
struct Discarded {
    id: String,
    discarded: bool,
}

/// All issues at once.
#[derive(Debug, Serialize, ToSchema)]
struct Issues {
    items: Vec<ShownIssue>,
}

/// Dead letters, newest first
#[utoipa::path(
    get, path = "/v1/dead-letters", operation_id = "listDeadLetters", tag = "dead letters",
    params(LetterFilter, ("status" = Option<LetterStatus>, Query), Paged),
    responses((status = 200, body = List<LetterView>)),
)]
async fn list(State(shared): State<Arc<ServerState>>, RawQuery(query): RawQuery) -> Response {
    either(listed(&shared, query.as_deref()).await)
}

/// Query parameters of an export.
pub(crate) const EXPORTED: &[&str] = &["upstream", "endpoint", "class", "code", "severity", "since", "until", "status", "q"];

/// Query parameters of the list.
const PARAMETERS: &[&str] = &["upstream", "endpoint", "class", "code", "severity", "since", "until", "status", "q", "cursor", "limit"];

async fn listed(shared: &ServerState, query: Option<&str>) -> Result<Response, Box<Refusal>> {
    let query = QueryParameters::parse(query, PARAMETERS)?;
    let letters = shared.desk.store.letters(filter(&query)?, query.window()?).await.map_err(|error| of_store(&error))?;
    Ok(document(200, &page(&letters, view::letter)))
}

/// Dead letters that failed the same way
#[utoipa::path(get, path = "/v1/dead-letters/issues", operation_id = "listIssues", tag = "dead letters", responses((status = 200, body = Issues)))]
async fn issues(State(shared): State<Arc<ServerState>>) -> Response {
    let issues = shared.desk.store.issues().await.map_err(|error| of_store(&error));
    either(issues.map(|issues| document(200, &Issues { items: issues.iter().map(view::issue).collect() })))
}

/// One dead letter
#[utoipa::path(
    get, path = "/v1/dead-letters/{id}", operation_id = "showDeadLetter", tag = "dead letters",
    params(("id" = String, Path)),
    responses((status = 200, body = LetterView), (status = 404, description = "There is no such dead letter")),
)]
async fn show(State(shared): State<Arc<ServerState>>, Path(id): Path<String>) -> Response {
    either(shown(&shared, &id).await)
}

async fn shown(shared: &ServerState, id: &str) -> Result<Response, Box<Refusal>> {
    let id = CallId::parse(id).ok_or_else(|| not_found("there is no such dead letter"))?;
    let letter = shared.desk.store.letter(id).await.map_err(|error| of_store(&error))?;
    letter.map(|letter| document(200, &view::letter(&letter))).ok_or_else(|| not_found("there is no such dead letter"))
}

/// Discard a dead letter
#[utoipa::path(
    delete, path = "/v1/dead-letters/{id}", operation_id = "discardDeadLetter", tag = "dead letters",
    params(("id" = String, Path)),
    responses(
        (status = 200, body = Discarded),
        (status = 404, description = "There is no such dead letter"),
        (status = 409, description = "It is being replayed"),
    ),
)]
async fn discard(State(shared): State<Arc<ServerState>>, Extension(who): Extension<Operator>, Path(id): Path<String>) -> Response {
    either(discarded(&shared, &who, &id).await)
}

async fn discarded(shared: &ServerState, who: &Operator, id: &str) -> Result<Response, Box<Refusal>> {
    let id = CallId::parse(id).ok_or_else(|| not_found("there is no such dead letter"))?;
    let store = &shared.desk.store;
    if store.discard_letter(id).await.map_err(|error| of_store(&error))? {
        audit(shared, &who.0, "discard", format!("dead letter {id}")).await;
        return Ok(document(200, &Discarded { id: id.to_string(), discarded: true }));
    }
    match store.letter(id).await.map_err(|error| of_store(&error))? {
        Some(_) => Err(Box::new(Refusal::plain(409, "replay_running", "the dead letter is being replayed"))),
        None => Err(not_found("there is no such dead letter")),
    }
}
