//! Replays over the admin API: start, list, show, pause, resume, cancel.

use super::Operator;
use super::paths::paths;
use crate::ServerState;
use crate::jobs::replay::{self, ReplayPlan, ReplayRequest, ReplayWish};
use crate::json_shapes::{self, Time};
use crate::observe::audit;
use crate::query::{List, Paged, QueryParameters, document, either, not_found, of_store, page};
use crate::response::Refusal;
use axum::Extension;
use axum::body::Bytes;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use seawall_core::id::CallId;
use seawall_core::time::{Nanos, Wall};
use seawall_store::Error;
use seawall_store::dead::{LetterQuery, LetterStatus};
use seawall_store::page::{MAX_ENTRIES, PageWindow};
use seawall_store::replay::{Created, NewReplay, Replay, ReplayState};
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::Arc;
use utoipa::ToSchema;

/// Letters that are read before the response; the replay counts the rest as it advances.
const LOOKED_AT: usize = 10_000;
/// Held-back letters that the response lists with a reason.
const MAX_REASONS: usize = 1000;

paths!(start, list, show, cancel, pause, resume);

/// A replay, as far as it has come.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Replay)]
struct ShownReplay {
    id: String,
    name: String,
    state: json_shapes::ReplayState,
    /// Why it is paused.
    reason: Option<String>,
    rate: String,
    upstreams: Vec<String>,
    /// Which letters it means.
    plan: Option<ReplayPlan>,
    started: u64,
    ok: u64,
    failed: u64,
    held_back: u64,
    /// Null where there is a page or more.
    remaining: Option<u64>,
    created_at: Time,
    updated_at: Time,
}

/// What a wish came to.
#[derive(Debug, Serialize, ToSchema)]
struct ReplayStarted {
    /// Null where there is nothing to send.
    replay: Option<ShownReplay>,
    started: u64,
    held_back: Vec<HeldBack>,
    /// There are more letters than were looked at.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    more: bool,
}

/// A letter that is not replayed.
#[derive(Debug, Serialize, ToSchema)]
struct HeldBack {
    id: String,
    reason: String,
    /// Whether `force` sends it all the same.
    forcible: bool,
}

/// Send dead letters again: a durable task that answers what it takes and what it holds back
#[utoipa::path(
    post, path = "/v1/dead-letters/replay", operation_id = "startReplay", tag = "replays",
    request_body = ReplayWish,
    responses(
        (status = 200, description = "There is nothing to send", body = ReplayStarted),
        (status = 202, description = "It is under way", body = ReplayStarted),
        (status = 409, description = "Another replay is at one of these upstreams"),
    ),
)]
async fn start(State(shared): State<Arc<ServerState>>, Extension(who): Extension<Operator>, body: Bytes) -> Response {
    either(started(&shared, &who, &body).await)
}

/// Returns the creation time up to which letters exist now. Another instance's clock may be ahead of ours by some milliseconds.
async fn newest(shared: &ServerState) -> Result<Wall, Box<Refusal>> {
    let one = PageWindow { after: None, limit: 1 };
    let page = shared.desk.store.letters(LetterQuery::default(), one).await.map_err(|error| of_store(&error))?;
    Ok(page.entries.first().map_or(Wall(0), |letter| letter.letter.id.created_at() + Nanos::from_millis(1)))
}

async fn started(shared: &ServerState, operator: &Operator, body: &[u8]) -> Result<Response, Box<Refusal>> {
    let desk = &shared.desk;
    let now = desk.now();
    let ReplayRequest { plan, rate, name } = ReplayWish::read(body, newest(shared).await?.max(now))?;
    let looked = estimate(shared, &plan, plan.filter()?).await?;
    let Looked { meant: started, held_back, upstreams, is_cut: more } = looked;
    if started == 0 && !more {
        return Ok(document(200, &ReplayStarted { replay: None, started, held_back, more }));
    }
    let upstreams: Vec<String> = upstreams.into_iter().collect();
    let rate = rate.unwrap_or_else(|| replay::slowest(&upstreams, &shared.live.load()));
    let filter = serde_json::to_string(&plan).map_err(|error| of_store(&Error::Failed(error.to_string())))?;
    let (id, who) = (desk.new_id(), operator.0.clone());
    let new = NewReplay { id, name, who, filter, upstreams, rate: rate.to_string(), canary: 1, created_at: now };
    match desk.store.create_replay(new).await.map_err(|error| of_store(&error))? {
        Created::Started => {
            audit(shared, &operator.0, "replay", format!("{id}: {started} letters or more")).await;
            let replay = desk.store.replay(id).await.map_err(|error| of_store(&error))?;
            let replay = replay.map(|replay| view(&replay, Some(started)));
            Ok(document(202, &ReplayStarted { replay, started, held_back, more }))
        }
        Created::Underway(other) => {
            let detail = format!("replay {other} is at one of these upstreams; wait for it, or cancel it");
            Err(Box::new(Refusal::plain(409, "replay_running", &detail)))
        }
    }
}

/// The preview of a plan, over the letters read.
#[derive(Default)]
struct Looked {
    meant: u64,
    held_back: Vec<HeldBack>,
    upstreams: BTreeSet<String>,
    is_cut: bool,
}

async fn estimate(shared: &ServerState, plan: &ReplayPlan, filter: LetterQuery) -> Result<Looked, Box<Refusal>> {
    let store = &shared.desk.store;
    let live = shared.live.load_full();
    let (mut looked, mut after, mut count) = (Looked::default(), None, 0);
    // Each letter named by id gets a reason of its own.
    for id in &filter.ids {
        let letter = store.letter(*id).await.map_err(|error| of_store(&error))?;
        let why = match letter.map(|letter| letter.status) {
            None => "there is no such dead letter",
            Some(LetterStatus::Replaying) => "a replay is at it",
            Some(LetterStatus::Replayed) => "it was replayed and worked",
            Some(LetterStatus::Kept) => continue,
        };
        looked.held_back.push(HeldBack { id: id.to_string(), reason: why.to_owned(), forcible: false });
    }
    loop {
        let page = store.letters(filter.clone(), PageWindow { after, limit: MAX_ENTRIES }).await.map_err(|error| of_store(&error))?;
        for letter in &page.entries {
            count += 1;
            looked.upstreams.insert(letter.letter.upstream.clone());
            match plan.holds_back(letter, &live) {
                None => looked.meant += 1,
                Some(reason) if looked.held_back.len() < MAX_REASONS => {
                    let forcible = plan.yields_to_force(letter, &live);
                    looked.held_back.push(HeldBack { id: letter.letter.id.to_string(), reason, forcible });
                }
                Some(_) => {}
            }
        }
        after = page.next;
        if after.is_none() {
            return Ok(looked);
        }
        if count >= LOOKED_AT {
            looked.is_cut = true;
            // The upstreams of the remaining letters are unknown, so all upstreams with letters count, or the one in the filter.
            let depths = store.depths().await.map_err(|error| of_store(&error))?;
            let others = depths.into_iter().filter(|depth| depth.open > 0).map(|depth| depth.queue);
            looked.upstreams.extend(others.filter(|queue| filter.upstream.as_ref().is_none_or(|meant| meant == queue)));
            return Ok(looked);
        }
    }
}

/// Replays, newest first
#[utoipa::path(get, path = "/v1/replays", operation_id = "listReplays", tag = "replays", params(Paged), responses((status = 200, body = List<ShownReplay>)))]
async fn list(State(shared): State<Arc<ServerState>>, RawQuery(query): RawQuery) -> Response {
    either(listed(&shared, query.as_deref()).await)
}

async fn listed(shared: &ServerState, query: Option<&str>) -> Result<Response, Box<Refusal>> {
    let window = QueryParameters::parse(query, &["cursor", "limit"])?.window()?;
    let replays = shared.desk.store.replays(window).await.map_err(|error| of_store(&error))?;
    let mut remaining = Vec::new();
    for replay in &replays.entries {
        remaining.push((replay.new.id, letters_left(shared, replay).await?));
    }
    let left = |replay: &Replay| remaining.iter().find(|(id, _)| *id == replay.new.id).and_then(|(_, left)| *left);
    Ok(document(200, &page(&replays, |replay| view(replay, left(replay)))))
}

/// Returns the number of letters that a replay has not reached yet; `None` means a page or more.
async fn letters_left(shared: &ServerState, replay: &Replay) -> Result<Option<u64>, Box<Refusal>> {
    if !matches!(replay.state, ReplayState::Running | ReplayState::Paused(_)) {
        return Ok(Some(0));
    }
    let Ok(plan) = serde_json::from_str::<ReplayPlan>(&replay.new.filter) else { return Ok(None) };
    let window = PageWindow { after: replay.position, limit: MAX_ENTRIES };
    let page = shared.desk.store.letters(plan.filter()?, window).await.map_err(|error| of_store(&error))?;
    Ok(if page.next.is_some() { None } else { u64::try_from(page.entries.len()).ok() })
}

fn view(replay: &Replay, remaining: Option<u64>) -> ShownReplay {
    let reason = if let ReplayState::Paused(reason) = &replay.state { Some(reason.clone()) } else { None };
    ShownReplay {
        id: replay.new.id.to_string(),
        name: replay.new.name.clone(),
        state: json_shapes::ReplayState(replay.state.clone()),
        reason,
        rate: replay.new.rate.clone(),
        upstreams: replay.new.upstreams.clone(),
        plan: serde_json::from_str(&replay.new.filter).ok(),
        started: replay.counts.started,
        ok: replay.counts.worked,
        failed: replay.counts.failed,
        held_back: replay.counts.held_back,
        remaining,
        created_at: Time(replay.new.created_at),
        updated_at: Time(replay.updated_at),
    }
}

/// One replay
#[utoipa::path(
    get, path = "/v1/replays/{id}", operation_id = "showReplay", tag = "replays",
    params(("id" = String, Path)),
    responses((status = 200, body = ShownReplay), (status = 404, description = "There is no such replay")),
)]
async fn show(State(shared): State<Arc<ServerState>>, Path(id): Path<String>) -> Response {
    either(shown(&shared, &id).await)
}

async fn shown(shared: &ServerState, id: &str) -> Result<Response, Box<Refusal>> {
    let replay = find(shared, id).await?;
    let left = letters_left(shared, &replay).await?;
    Ok(document(200, &view(&replay, left)))
}

async fn find(shared: &ServerState, id: &str) -> Result<Replay, Box<Refusal>> {
    let unknown = || not_found("there is no such replay");
    let id = CallId::parse(id).ok_or_else(unknown)?;
    shared.desk.store.replay(id).await.map_err(|error| of_store(&error))?.ok_or_else(unknown)
}

/// Pause a replay
#[utoipa::path(
    post, path = "/v1/replays/{id}/pause", operation_id = "pauseReplay", tag = "replays",
    params(("id" = String, Path)),
    responses(
        (status = 200, body = ShownReplay),
        (status = 404, description = "There is no such replay"),
        (status = 409, description = "It is over"),
    ),
)]
async fn pause(State(shared): State<Arc<ServerState>>, Extension(who): Extension<Operator>, Path(id): Path<String>) -> Response {
    either(set(&shared, &who, &id, ReplayState::Paused("an operator paused it".to_owned())).await)
}

/// Let a paused replay go on
#[utoipa::path(
    post, path = "/v1/replays/{id}/resume", operation_id = "resumeReplay", tag = "replays",
    params(("id" = String, Path)),
    responses(
        (status = 200, body = ShownReplay),
        (status = 404, description = "There is no such replay"),
        (status = 409, description = "It is over"),
    ),
)]
async fn resume(State(shared): State<Arc<ServerState>>, Extension(who): Extension<Operator>, Path(id): Path<String>) -> Response {
    either(set(&shared, &who, &id, ReplayState::Running).await)
}

/// Cancel a replay; what it has started goes on
#[utoipa::path(
    delete, path = "/v1/replays/{id}", operation_id = "cancelReplay", tag = "replays",
    params(("id" = String, Path)),
    responses(
        (status = 200, body = ShownReplay),
        (status = 404, description = "There is no such replay"),
        (status = 409, description = "It is over"),
    ),
)]
async fn cancel(State(shared): State<Arc<ServerState>>, Extension(who): Extension<Operator>, Path(id): Path<String>) -> Response {
    either(set(&shared, &who, &id, ReplayState::Cancelled).await)
}

async fn set(shared: &ServerState, who: &Operator, id: &str, state: ReplayState) -> Result<Response, Box<Refusal>> {
    let replay = find(shared, id).await?;
    let desk = &shared.desk;
    if !desk.store.set_replay(replay.new.id, state.clone(), desk.now()).await.map_err(|error| of_store(&error))? {
        return Err(Box::new(Refusal::plain(409, "replay_over", "the replay is over")));
    }
    audit(shared, &who.0, "replay", format!("{}: {}", replay.new.id, state.as_str())).await;
    shown(shared, id).await
}
