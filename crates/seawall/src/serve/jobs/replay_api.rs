//! Replays over the admin API: start one, look at all, hold one and let it go on, call one off.

use super::replay::{self, Asked, Plan, Wish};
use crate::serve::Shared;
use crate::serve::admin::Operator;
use crate::serve::admin::query::{Query, document, either, not_found, of_store, page};
use crate::serve::answer::Refusal;
use crate::serve::eyes::audit;
use axum::Extension;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use axum::routing::{delete, get, post};
use seawall_core::id::CallId;
use seawall_core::time::{Nanos, Wall};
use seawall_store::Error;
use seawall_store::dead::{Filter, Status};
use seawall_store::page::{MOST, Window};
use seawall_store::replay::{Created, NewReplay, Replay, State as ReplayState};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Letters that are looked at before the answer; the rest is counted as the replay gets there.
const LOOKED_AT: usize = 10_000;
/// Letters that the answer gives a reason for.
const MOST_REASONS: usize = 1000;

pub(super) fn router() -> Router<Arc<Shared>> {
    Router::new()
        .route("/v1/dead-letters/replay", post(start))
        .route("/v1/replays", get(list))
        .route("/v1/replays/{id}", delete(cancel).get(show))
        .route("/v1/replays/{id}/pause", post(pause))
        .route("/v1/replays/{id}/resume", post(resume))
}

async fn start(State(shared): State<Arc<Shared>>, Extension(who): Extension<Operator>, body: Bytes) -> Response {
    either(started(&shared, &who, &body).await)
}

/// The end of the time of letters that there are now. Another instance's clock may be ahead of ours by some milliseconds.
async fn newest(shared: &Shared) -> Result<Wall, Box<Refusal>> {
    let one = Window { after: None, limit: 1 };
    let page = shared.desk.store.letters(Filter::default(), one).await.map_err(|error| of_store(&error))?;
    Ok(page.entries.first().map_or(Wall(0), |letter| letter.letter.id.made_at() + Nanos::from_millis(1)))
}

async fn started(shared: &Shared, operator: &Operator, body: &[u8]) -> Result<Response, Box<Refusal>> {
    let desk = &shared.desk;
    let now = desk.now();
    let Asked { plan, rate, name } = Wish::read(body, newest(shared).await?.max(now))?;
    let looked = look(shared, &plan, plan.filter()?).await?;
    let answer = |replay: Value| {
        let mut told = json!({ "replay": replay, "started": looked.meant, "held_back": looked.held_back });
        if looked.is_cut {
            told["more"] = json!(true);
        }
        told
    };
    if looked.meant == 0 && !looked.is_cut {
        return Ok(document(200, &answer(Value::Null)));
    }
    let upstreams: Vec<String> = looked.upstreams.iter().cloned().collect();
    let rate = rate.unwrap_or_else(|| replay::slowest(&upstreams, &shared.live.load()));
    let filter = serde_json::to_string(&plan).map_err(|error| of_store(&Error::Failed(error.to_string())))?;
    let (id, who) = (desk.new_id(), operator.0.clone());
    let new = NewReplay { id, name, who, filter, upstreams, rate: rate.to_string(), canary: 1, created_at: now };
    match desk.store.create_replay(new).await.map_err(|error| of_store(&error))? {
        Created::Started => {
            audit(shared, &operator.0, "replay", format!("{id}: {} letters or more", looked.meant)).await;
            let replay = desk.store.replay(id).await.map_err(|error| of_store(&error))?;
            let view = replay.map_or(Value::Null, |replay| view(&replay, Some(looked.meant)));
            Ok(document(202, &answer(view)))
        }
        Created::Underway(other) => {
            let detail = format!("replay {other} is at one of these upstreams; wait for it, or cancel it");
            Err(Box::new(Refusal::plain(409, "replay_running", &detail)))
        }
    }
}

/// What a plan comes to, as far as one looks.
#[derive(Default)]
struct Looked {
    meant: u64,
    held_back: Vec<Value>,
    upstreams: BTreeSet<String>,
    is_cut: bool,
}

async fn look(shared: &Shared, plan: &Plan, filter: Filter) -> Result<Looked, Box<Refusal>> {
    let store = &shared.desk.store;
    let live = shared.live.load_full();
    let (mut looked, mut after, mut count) = (Looked::default(), None, 0);
    // Of those that were named, each gets an answer.
    for id in &filter.ids {
        let letter = store.letter(*id).await.map_err(|error| of_store(&error))?;
        let why = match letter.map(|letter| letter.status) {
            None => "there is no such dead letter",
            Some(Status::Replaying) => "a replay is at it",
            Some(Status::Replayed) => "it was replayed and worked",
            Some(Status::Kept) => continue,
        };
        looked.held_back.push(json!({ "id": id.to_string(), "reason": why }));
    }
    loop {
        let page = store.letters(filter.clone(), Window { after, limit: MOST }).await.map_err(|error| of_store(&error))?;
        for letter in &page.entries {
            count += 1;
            looked.upstreams.insert(letter.letter.upstream.clone());
            match plan.holds_back(letter, &live) {
                None => looked.meant += 1,
                Some(reason) if looked.held_back.len() < MOST_REASONS => {
                    looked.held_back.push(json!({ "id": letter.letter.id.to_string(), "reason": reason }));
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
            // Whose letters the rest are is not known: all that have some, then, or the one that is meant.
            let depths = store.depths().await.map_err(|error| of_store(&error))?;
            let others = depths.into_iter().filter(|depth| depth.open > 0).map(|depth| depth.queue);
            looked.upstreams.extend(others.filter(|queue| filter.upstream.as_ref().is_none_or(|meant| meant == queue)));
            return Ok(looked);
        }
    }
}

async fn list(State(shared): State<Arc<Shared>>, RawQuery(query): RawQuery) -> Response {
    either(listed(&shared, query.as_deref()).await)
}

async fn listed(shared: &Shared, query: Option<&str>) -> Result<Response, Box<Refusal>> {
    let window = Query::parse(query, &["cursor", "limit"])?.window()?;
    let replays = shared.desk.store.replays(window).await.map_err(|error| of_store(&error))?;
    let mut remaining = Vec::new();
    for replay in &replays.entries {
        remaining.push((replay.new.id, left(shared, replay).await?));
    }
    let left = |replay: &Replay| remaining.iter().find(|(id, _)| *id == replay.new.id).and_then(|(_, left)| *left);
    Ok(document(200, &page(&replays, |replay| view(replay, left(replay)))))
}

/// How many letters a replay has not come to yet, where that is worth a look: `None` is "a page or more".
async fn left(shared: &Shared, replay: &Replay) -> Result<Option<u64>, Box<Refusal>> {
    if !matches!(replay.state, ReplayState::Running | ReplayState::Paused(_)) {
        return Ok(Some(0));
    }
    let Ok(plan) = serde_json::from_str::<Plan>(&replay.new.filter) else { return Ok(None) };
    let window = Window { after: replay.position, limit: MOST };
    let page = shared.desk.store.letters(plan.filter()?, window).await.map_err(|error| of_store(&error))?;
    Ok(if page.next.is_some() { None } else { u64::try_from(page.entries.len()).ok() })
}

fn view(replay: &Replay, remaining: Option<u64>) -> Value {
    let reason = if let ReplayState::Paused(reason) = &replay.state { Some(reason) } else { None };
    json!({
        "id": replay.new.id.to_string(),
        "name": replay.new.name,
        "state": replay.state.as_str(),
        "reason": reason,
        "rate": replay.new.rate,
        "upstreams": replay.new.upstreams,
        "plan": serde_json::from_str::<Value>(&replay.new.filter).unwrap_or(Value::Null),
        "started": replay.counts.started,
        "ok": replay.counts.worked,
        "failed": replay.counts.failed,
        "held_back": replay.counts.held_back,
        "remaining": remaining,
        "created_at": replay.new.created_at.to_string(),
        "updated_at": replay.updated_at.to_string(),
    })
}

async fn show(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Response {
    either(shown(&shared, &id).await)
}

async fn shown(shared: &Shared, id: &str) -> Result<Response, Box<Refusal>> {
    let replay = find(shared, id).await?;
    let left = left(shared, &replay).await?;
    Ok(document(200, &view(&replay, left)))
}

async fn find(shared: &Shared, id: &str) -> Result<Replay, Box<Refusal>> {
    let unknown = || not_found("there is no such replay");
    let id = CallId::parse(id).ok_or_else(unknown)?;
    shared.desk.store.replay(id).await.map_err(|error| of_store(&error))?.ok_or_else(unknown)
}

async fn pause(State(shared): State<Arc<Shared>>, Extension(who): Extension<Operator>, Path(id): Path<String>) -> Response {
    either(set(&shared, &who, &id, ReplayState::Paused("an operator paused it".to_owned())).await)
}

async fn resume(State(shared): State<Arc<Shared>>, Extension(who): Extension<Operator>, Path(id): Path<String>) -> Response {
    either(set(&shared, &who, &id, ReplayState::Running).await)
}

async fn cancel(State(shared): State<Arc<Shared>>, Extension(who): Extension<Operator>, Path(id): Path<String>) -> Response {
    either(set(&shared, &who, &id, ReplayState::Cancelled).await)
}

async fn set(shared: &Shared, who: &Operator, id: &str, state: ReplayState) -> Result<Response, Box<Refusal>> {
    let replay = find(shared, id).await?;
    let desk = &shared.desk;
    if !desk.store.set_replay(replay.new.id, state.clone(), desk.now()).await.map_err(|error| of_store(&error))? {
        return Err(Box::new(Refusal::plain(409, "replay_over", "the replay is over")));
    }
    audit(shared, &who.0, "replay", format!("{}: {}", replay.new.id, state.as_str())).await;
    shown(shared, id).await
}
