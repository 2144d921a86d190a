//! Schedules as operators see them: each subject on its own, fired once, put off while it fails, stopped when a
//! credential is refused, and on after a restart.

use super::caller::eventually;
use super::databases::postgres;
use super::gateway::{Gateway, Start};
use super::upstream::{OK, Upstream, answer};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One schedule, `sync`, with these keys.
pub(crate) fn policy(upstream: &Upstream, keys: &str) -> String {
    format!(
        "[upstreams.api]\nurl = \"http://{}\"\nretry = {{ attempts = 1 }}\nbreaker = {{ mode = \"off\" }}\n\
         [[schedules]]\nname = \"sync\"\nupstream = \"api\"\nrequest = {{ path = \"/users/{{subject}}/history\" }}\n{keys}\n",
        upstream.at
    )
}

pub(crate) fn subject(gateway: &Gateway, name: &str) -> Value {
    let schedule = gateway.admin("GET", "/v1/schedules/sync", "").json();
    schedule["subjects"].as_array().unwrap().iter().find(|subject| subject["subject"] == name).cloned().unwrap_or_default()
}

fn asked(upstream: &Upstream, path: &str) -> usize {
    upstream.seen().iter().filter(|seen| seen.line().starts_with(&format!("GET {path} "))).count()
}

#[test]
fn subjects_are_fetched_again_and_again_each_by_its_own_path() {
    let upstream = Upstream::fine();
    let gateway = Start::with(&policy(&upstream, "every = \"300ms\"\nsubjects = [\"alice\", \"b/o b\"]")).go();
    assert!(!gateway.stderr().contains("schedules do not run"));
    eventually("both are fetched twice", || {
        asked(&upstream, "/users/alice/history") >= 2 && asked(&upstream, "/users/b%2Fo%20b/history") >= 2
    });
    eventually("it is known", || subject(&gateway, "alice")["last_ok_at"].is_string());
    let alice = subject(&gateway, "alice");
    assert_eq!((&alice["consecutive_failures"], &alice["last_error"], &alice["source"]), (&json!(0), &Value::Null, &json!("config")));
    let listed = gateway.admin("GET", "/v1/schedules", "").json()["items"][0].clone();
    assert_eq!((&listed["name"], &listed["upstream"], &listed["every"]), (&json!("sync"), &json!("api"), &json!("300ms")));
    let results = gateway.admin("GET", "/v1/jobs?correlation_id=schedule:sync:alice&state=done", "").json();
    let job = &results["items"][0];
    assert_eq!((&job["origin"]["kind"], &job["origin"]["subject"]), (&json!("schedule"), &json!("alice")));
}

#[test]
fn subjects_come_and_go_over_the_api() {
    let upstream = Upstream::fine();
    let gateway = Start::with(&policy(&upstream, "every = \"300ms\"\nsubjects = [\"alice\"]")).go();
    assert_eq!(gateway.admin("PUT", "/v1/schedules/sync/subjects/carol%2Fx", "").status, 201);
    assert_eq!(gateway.admin("PUT", "/v1/schedules/sync/subjects/carol%2Fx", "").status, 200, "it is there");
    eventually("it is fetched", || asked(&upstream, "/users/carol%2Fx/history") >= 1);
    // A restart keeps all subjects.
    let gateway = Start::with(&policy(&upstream, "every = \"300ms\"\nsubjects = [\"alice\"]")).go_in(gateway.kill());
    assert_eq!(subject(&gateway, "carol/x")["source"], "api");
    assert_eq!(gateway.admin("DELETE", "/v1/schedules/sync/subjects/carol%2Fx", "").status, 200);
    assert_eq!(subject(&gateway, "carol/x"), Value::Null);
    eventually("the configured one is there", || subject(&gateway, "alice")["source"] == "config");
    let refused = gateway.admin("DELETE", "/v1/schedules/sync/subjects/alice", "");
    assert_eq!((refused.status, refused.code().as_str()), (409, "subject_configured"));
    for (method, path) in
        [("GET", "/v1/schedules/nope"), ("PUT", "/v1/schedules/nope/subjects/x"), ("DELETE", "/v1/schedules/sync/subjects/x")]
    {
        assert_eq!(gateway.admin(method, path, "").status, 404, "{method} {path}");
    }
}

#[test]
fn a_subject_that_fails_is_put_off_and_disturbs_no_other() {
    let sick = Arc::new(AtomicBool::new(true));
    let now = Arc::clone(&sick);
    let upstream = Upstream::with(move |turn| {
        let fails = now.load(Ordering::SeqCst) && turn.seen.line().contains("/bob/");
        turn.say(if fails { answer("503 No", "", "bob is down") } else { OK.to_owned() });
    });
    let keys =
        "every = \"200ms\"\nsubjects = [\"alice\", \"bob\"]\nbackoff = { base = \"500ms\", factor = 2.0, cap = \"1s\", jitter = \"25%\" }";
    let gateway = Start::with(&policy(&upstream, keys)).go();
    eventually("bob has failed twice", || subject(&gateway, "bob")["consecutive_failures"].as_u64() >= Some(2));
    let bob = subject(&gateway, "bob");
    assert!(bob["last_error"].as_str().unwrap().contains("503 bob is down"), "{bob}");
    assert!(bob["next_retry_at"].is_string() || bob["state"] == "running", "{bob}");
    let count = |name: &str| asked(&upstream, &format!("/users/{name}/history"));
    // Not at once: on a busy machine both are late.
    eventually("alice goes on", || count("alice") > count("bob"));
    assert_eq!(gateway.admin("GET", "/v1/dead-letters", "").json()["items"], json!([]), "the next tick does the same work");
    sick.store(false, Ordering::SeqCst);
    eventually("success resets it", || {
        subject(&gateway, "bob")["consecutive_failures"] == 0 && subject(&gateway, "bob")["last_ok_at"].is_string()
    });
}

/// Its backoff would send it again before the next tick.
#[test]
fn a_tick_that_may_have_been_executed_is_not_sent_again_before_the_next() {
    let upstream = Upstream::with(|turn| turn.close());
    let policy =
        policy(&upstream, "every = \"1h\"\nspread = \"0%\"\nsubjects = [\"alice\"]\nbackoff = { base = \"100ms\", cap = \"200ms\" }");
    let posts = policy.replace("request = { path", "request = { method = \"POST\", path");
    let gateway = Start::with(&posts).go();
    eventually("it has failed", || subject(&gateway, "alice")["consecutive_failures"] == 1);
    std::thread::sleep(std::time::Duration::from_millis(700));
    let alice = subject(&gateway, "alice");
    assert_eq!((&alice["next_retry_at"], upstream.count()), (&Value::Null, 1), "{alice}");
}

#[test]
fn a_refused_credential_stops_the_subject_until_somebody_lets_it_go_on() {
    let refused = Arc::new(AtomicBool::new(true));
    let now = Arc::clone(&refused);
    let upstream = Upstream::with(move |turn| {
        turn.say(if now.load(Ordering::SeqCst) { answer("401 No", "", "who are you") } else { OK.to_owned() });
    });
    let gateway = Start::with(&policy(&upstream, "every = \"200ms\"\nsubjects = [\"alice\"]")).go();
    eventually("it stops", || subject(&gateway, "alice")["state"] == "stopped");
    eventually("it says so", || gateway.stdout().contains("\"schedule_stopped\""));
    let (count, alice) = (upstream.count(), subject(&gateway, "alice"));
    assert!(alice["last_error"].as_str().unwrap().contains("401"), "{alice}");
    assert_eq!(alice["next_at"], Value::Null);
    refused.store(false, Ordering::SeqCst);
    assert_eq!(upstream.count(), count);
    assert_eq!(gateway.admin("PUT", "/v1/schedules/sync/subjects/alice", "").status, 200);
    eventually("it goes on", || subject(&gateway, "alice")["last_ok_at"].is_string());
    let told = gateway.look("/v1/events/recent")["items"].clone();
    let stops: Vec<&Value> = told.as_array().unwrap().iter().filter(|event| event["name"] == "schedule-stopped").collect();
    assert_eq!(stops.len(), 2, "{told}");
    assert!(stops[1]["detail"].as_str().unwrap().contains("who are you"), "in the provider's words: {told}");
    assert_eq!((&stops[0]["resolves"], &stops[1]["severity"]), (&stops[1]["id"], &json!("fatal")));
}

#[test]
fn results_are_delivered_to_whoever_the_schedule_names() {
    let (upstream, receiver) = (Upstream::fine(), Upstream::fine());
    let keys = "every = \"10m\"\nspread = \"0%\"\nsubjects = [\"alice\"]\ndeliver = \"env:HOOK\"";
    let start = Start::with(&policy(&upstream, keys)).server("allow_private = [\"127.0.0.0/8\"]");
    let gateway = start.secret("HOOK", &format!("http://{}/hook/canary-token", receiver.at)).go();
    eventually("it is delivered", || receiver.count() == 1);
    let seen = receiver.seen().remove(0);
    assert_eq!(seen.line(), "POST /hook/canary-token HTTP/1.1");
    let told: Value = serde_json::from_slice(&seen.body).unwrap();
    assert_eq!((&told["type"], &told["data"]["response"]["body"]), (&json!("job.done"), &json!("ok")));
    eventually("its call is logged", || {
        gateway.stdout().contains("\"event\":\"call\"") && gateway.stdout().contains("\"path\":\"env:HOOK\"")
    });
    let shown = gateway.admin("GET", "/v1/jobs", "").text() + &gateway.stdout() + &gateway.stderr();
    assert!(!shown.contains("canary-token"), "what a reference stands for is nobody's business: {shown}");
}

#[test]
fn two_instances_fire_a_tick_once() {
    let upstream = Upstream::fine();
    let url = postgres();
    let subjects: Vec<String> = (0..40).map(|n| format!("\"s{n}\"")).collect();
    let keys = format!("every = \"10m\"\nspread = \"0%\"\nsubjects = [{}]", subjects.join(", "));
    let start = || Start::with(&policy(&upstream, &keys)).server(&format!("store = \"{url}\"")).go();
    let (first, second) = (start(), start());
    for n in 0..40 {
        eventually("each has had its tick", || subject(&first, &format!("s{n}"))["last_ok_at"].is_string());
    }
    assert_eq!(upstream.count(), 40);
    assert_eq!(second.admin("GET", "/v1/jobs?limit=500", "").json()["items"].as_array().unwrap().len(), 40);
}
