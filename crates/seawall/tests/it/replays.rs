//! Replays of dead letters as operators see them: a canary first, at a rate, never twice, through the same pipeline, and
//! on after a power cut.

use super::caller::{Reply, eventually};
use super::gateway::{Gateway, Start};
use super::upstream::{OK, Upstream, answer};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const POLICY: &str = "retry = { attempts = 1 }\ntimeout = { attempt = \"2s\", total = \"5s\" }\nbreaker = { mode = \"off\" }";

/// An upstream that fails until the flag is set.
pub(crate) fn patient() -> (Upstream, Arc<AtomicBool>) {
    let works = Arc::new(AtomicBool::new(false));
    let now = Arc::clone(&works);
    let upstream = Upstream::with(move |turn| {
        let refuses = turn.seen.line().contains("/wrong");
        let works = now.load(Ordering::SeqCst);
        turn.say(match (refuses, works) {
            (true, _) => answer("404 No", "", "no such thing"),
            (false, true) => OK.to_owned(),
            (false, false) => answer("503 No", "", "down"),
        });
    });
    (upstream, works)
}

/// Submits a job for each path, and waits for their letters.
#[track_caller]
pub(crate) fn die(gateway: &Gateway, jobs: &[Value]) -> Vec<String> {
    let before = open(gateway).len();
    let submit = |job: &Value| gateway.admin("POST", "/v1/jobs", &job.to_string()).json()["id"].as_str().unwrap().to_owned();
    let ids = jobs.iter().map(submit).collect();
    eventually("all are dead", || open(gateway).len() == before + jobs.len());
    ids
}

pub(crate) fn gets(count: usize) -> Vec<Value> {
    (0..count).map(|n| json!({ "upstream": "api", "path": format!("/{n}") })).collect()
}

/// Letters that have not been handled.
pub(crate) fn open(gateway: &Gateway) -> Vec<Value> {
    gateway.admin("GET", "/v1/dead-letters?status=kept&limit=500", "").json()["items"].as_array().unwrap().clone()
}

fn replay(gateway: &Gateway, wish: &Value) -> Reply {
    gateway.admin("POST", "/v1/dead-letters/replay", &wish.to_string())
}

fn found(gateway: &Gateway, id: &str) -> Value {
    gateway.admin("GET", &format!("/v1/replays/{id}"), "").json()
}

#[track_caller]
fn started(gateway: &Gateway, wish: &Value) -> String {
    let reply = replay(gateway, wish);
    assert_eq!(reply.status, 202, "{}", reply.text());
    reply.json()["replay"]["id"].as_str().unwrap().to_owned()
}

#[test]
fn what_is_meant_is_replayed_once_and_its_letters_are_done() {
    let (upstream, works) = patient();
    let gateway = Start::before(&upstream, POLICY).go();
    die(&gateway, &gets(6));
    works.store(true, Ordering::SeqCst);
    let (before, id) =
        (upstream.count(), started(&gateway, &json!({ "filter": { "upstream": "api" }, "rate": "100/s", "name": "after the fix" })));
    eventually("it is done", || found(&gateway, &id)["state"] == "done");
    let done = found(&gateway, &id);
    let counts = ["started", "ok", "failed", "held_back", "remaining"].map(|name| done[name].as_u64().unwrap());
    assert_eq!((counts, &done["name"], upstream.count() - before), ([6, 6, 0, 0, 0], &json!("after the fix"), 6));
    assert!(open(&gateway).is_empty());
    let letter = gateway.admin("GET", "/v1/dead-letters", "").json()["items"][0].clone();
    assert_eq!((&letter["status"], &letter["replays"]), (&json!("replayed"), &json!(1)));
    let job = gateway.admin("GET", &format!("/v1/jobs/{}", letter["replayed_by"].as_str().unwrap()), "").json();
    assert_eq!((&job["origin"]["kind"], &job["origin"]["letter"]), (&json!("replay"), &letter["id"]));
    eventually("the log says so", || gateway.stdout().contains("\"replay_done\""));
}

#[test]
fn a_replay_stops_where_more_than_half_fail_again_and_says_why() {
    let (works, worked) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
    let now = Arc::clone(&works);
    let upstream = Upstream::with(move |turn| {
        turn.say(match now.load(Ordering::SeqCst) {
            false => answer("503 No", "", "down"),
            // The first is fine, so that others follow it.
            true if !worked.swap(true, Ordering::SeqCst) => OK.to_owned(),
            true => answer("422 No", "", "not like this"),
        });
    });
    let gateway = Start::before(&upstream, POLICY).go();
    die(&gateway, &gets(100));
    works.store(true, Ordering::SeqCst);
    let id = started(&gateway, &json!({ "filter": { "upstream": "api" }, "rate": "100/s" }));
    eventually("it stops", || found(&gateway, &id)["state"] == "paused");
    let paused = found(&gateway, &id);
    let reason = paused["reason"].as_str().unwrap();
    assert!(reason.starts_with("more than half failed again: ") && reason.contains("of the last 20"), "{paused}");
    let burned = paused["started"].as_u64().unwrap();
    assert!(burned < 60, "{paused}");
    assert_eq!(gateway.admin("POST", &format!("/v1/replays/{id}/resume"), "").status, 200);
    eventually("whoever lets it go on is obeyed, and told again", || {
        let replay = found(&gateway, &id);
        replay["state"] == "paused" && replay["started"].as_u64() > Some(burned)
    });
}

#[test]
fn what_cannot_help_or_may_harm_is_held_back_with_its_reason_unless_somebody_insists() {
    let (upstream, works) = patient();
    let gateway = Start::before(&upstream, POLICY).go();
    let ids = die(
        &gateway,
        &[
            json!({ "upstream": "api", "path": "/wrong" }),
            json!({ "upstream": "api", "path": "/pay", "method": "POST", "body": "1" }),
            json!({ "upstream": "api", "path": "/keyed", "method": "POST", "body": "1", "idempotency_key": "k" }),
        ],
    );
    works.store(true, Ordering::SeqCst);
    let reply = replay(&gateway, &json!({ "ids": [ids[0], ids[1], "06FAZC8R80YJB9XZ9KJQ7K9M3C"] })).json();
    assert_eq!((&reply["replay"], &reply["started"]), (&Value::Null, &json!(0)), "{reply}");
    let why = |id: &str| {
        let entry = reply["held_back"].as_array().unwrap().iter().find(|entry| entry["id"] == id).cloned();
        entry.map(|entry| entry["reason"].as_str().unwrap().to_owned()).unwrap_or_default()
    };
    assert!(why(&ids[0]).contains("cannot help") && why(&ids[1]).contains("execute it twice"), "{reply}");
    let id = started(&gateway, &json!({ "ids": ids, "rate": "100/s" }));
    eventually("the keyed one is replayed", || found(&gateway, &id)["state"] == "done");
    assert_eq!((&found(&gateway, &id)["ok"], &found(&gateway, &id)["held_back"]), (&json!(1), &json!(2)));
    let keyed: Vec<_> = upstream.seen().into_iter().filter(|seen| seen.line().contains("/keyed")).collect();
    assert_eq!(keyed.last().unwrap().all("idempotency-key"), ["k"], "the key is kept");
    let id = started(&gateway, &json!({ "ids": [ids[1]], "force": true }));
    eventually("who insists gets it", || found(&gateway, &id)["ok"] == 1);
}

#[test]
fn a_canary_that_fails_stops_the_replay_until_somebody_says_go_on() {
    let (upstream, works) = patient();
    let gateway = Start::before(&upstream, POLICY).go();
    die(&gateway, &gets(4));
    let (before, id) = (upstream.count(), started(&gateway, &json!({ "filter": {}, "rate": "1000/s" })));
    eventually("it pauses itself", || found(&gateway, &id)["state"] == "paused");
    assert_eq!(upstream.count() - before, 1, "one letter was enough");
    assert!(found(&gateway, &id)["reason"].as_str().unwrap().contains("failed again: 503"), "{}", found(&gateway, &id));
    let second = replay(&gateway, &json!({ "filter": { "upstream": "api" } }));
    assert_eq!((second.status, second.code().as_str()), (409, "replay_running"));
    works.store(true, Ordering::SeqCst);
    assert_eq!(gateway.admin("POST", &format!("/v1/replays/{id}/resume"), "").status, 200);
    eventually("the rest is replayed", || found(&gateway, &id)["state"] == "done");
    assert_eq!((&found(&gateway, &id)["ok"], open(&gateway).len()), (&json!(3), 1), "the canary waits for the next one");
    let over = gateway.admin("DELETE", &format!("/v1/replays/{id}"), "");
    assert_eq!((over.status, over.code().as_str()), (409, "replay_over"));
}

#[test]
fn an_open_breaker_pauses_the_replay() {
    let (upstream, _) = patient();
    let policy = "retry = { attempts = 1 }\nbreaker = { consecutive = 3, min_calls = 100, open = \"60s\", open_max = \"60s\" }";
    let gateway = Start::before(&upstream, policy).go();
    die(&gateway, &gets(2));
    assert_eq!(gateway.get("/api/x").status, 503);
    eventually("the breaker is open", || gateway.get("/api/x").header("seawall-outcome") == Some("circuit_open"));
    let (before, id) = (upstream.count(), started(&gateway, &json!({ "filter": {} })));
    eventually("it pauses itself", || found(&gateway, &id)["state"] == "paused");
    assert!(found(&gateway, &id)["reason"].as_str().unwrap().contains("the breaker of `api`"), "{}", found(&gateway, &id));
    assert_eq!(upstream.count(), before);
    assert_eq!(gateway.admin("DELETE", &format!("/v1/replays/{id}"), "").status, 200);
    assert_eq!((&found(&gateway, &id)["state"], open(&gateway).len()), (&json!("cancelled"), 2));
}

#[test]
fn a_replay_goes_on_after_a_power_cut_and_repeats_nothing() {
    let (upstream, works) = patient();
    let gateway = Start::before(&upstream, POLICY).go();
    die(&gateway, &gets(30));
    works.store(true, Ordering::SeqCst);
    let (before, id) = (upstream.count(), started(&gateway, &json!({ "filter": {}, "rate": "20/s" })));
    eventually("it is on its way", || found(&gateway, &id)["ok"].as_u64().unwrap() >= 3);
    let again = Start::before(&upstream, POLICY).go_in(gateway.kill());
    assert!(matches!(found(&again, &id)["state"].as_str(), Some("running")));
    eventually("it is done", || found(&again, &id)["state"] == "done");
    assert_eq!((&found(&again, &id)["ok"], open(&again).len()), (&json!(30), 0));
    let paths: Vec<String> = upstream.seen()[before..].iter().map(|seen| seen.line().to_owned()).collect();
    let distinct: BTreeSet<&String> = paths.iter().collect();
    assert!(distinct.len() == 30 && paths.len() <= 31, "one may have been under way: {paths:?}");
}

#[test]
fn wishes_that_cannot_be_granted_say_why() {
    let gateway = Start::before(&Upstream::fine(), POLICY).go();
    for (wish, why) in [("{", "no replay"), ("{}", "`ids` or a `filter`"), (r#"{"filter":{"odd":"1"}}"#, "no parameter `odd`")] {
        let reply = gateway.admin("POST", "/v1/dead-letters/replay", wish);
        assert_eq!((reply.status, reply.code().as_str()), (400, "bad_request"), "{wish}");
        assert!(reply.problem()["detail"].as_str().unwrap().contains(why), "{wish}: {}", reply.text());
    }
    assert_eq!(gateway.admin("GET", "/v1/replays/nonsense", "").status, 404);
    let none = replay(&gateway, &json!({ "filter": {} })).json();
    assert_eq!(none, json!({ "replay": null, "started": 0, "held_back": [] }));
}
