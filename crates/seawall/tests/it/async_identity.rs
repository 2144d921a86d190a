//! Ownership of jobs: requests that become jobs keep their callers apart as synchronous calls do, and hold no secret of ours.

use super::caller::{Reply, eventually};
use super::gateway::{Gateway, Start};
use super::upstream::{Turn, Upstream, answer};
use serde_json::Value;

const ENQUEUE: &str = "retry = { attempts = 1, cap = \"10ms\" }\non_exhausted = \"enqueue\"\n";

/// Answers each request with the credential that it came with.
fn echo(turn: &mut Turn) {
    let credential = turn.seen.all("authorization").join(",");
    turn.say(answer("200 OK", "", &credential));
}

fn post(gateway: &Gateway, who: &str, prefer: &str) -> Reply {
    gateway.post("/api/x", &format!("authorization: Bearer {who}\r\nidempotency-key: k\r\n{prefer}"), "body")
}

/// The job at the place that a 202 names, once it is done.
fn done(gateway: &Gateway, reply: &Reply) -> Value {
    assert_eq!(reply.status, 202, "{}", reply.text());
    let place = reply.header("location").unwrap().to_owned();
    eventually("the job is done", || gateway.get(&place).json()["state"] == "done");
    gateway.get(&place).json()
}

#[test]
fn an_async_caller_gets_the_response_to_its_own_credential() {
    let upstream = Upstream::with(echo);
    let gateway = Start::before(&upstream, "").go();
    for who in ["one", "two"] {
        let reply = post(&gateway, who, "prefer: respond-async\r\n");
        assert_eq!(done(&gateway, &reply)["response"]["body"], format!("Bearer {who}"));
    }
    let again = post(&gateway, "one", "prefer: respond-async\r\n");
    assert_eq!((done(&gateway, &again)["response"]["body"].as_str(), upstream.count()), (Some("Bearer one"), 2));
}

#[test]
fn jobs_that_are_submitted_are_told_apart_by_their_credentials_too() {
    let upstream = Upstream::with(echo);
    let gateway = Start::before(&upstream, "").go();
    let submit = |who: &str| {
        let job = format!(
            r#"{{"upstream":"api","method":"POST","path":"/x","idempotency_key":"k","headers":{{"authorization":"Bearer {who}"}}}}"#
        );
        gateway.admin("POST", "/v1/jobs", &job).json()["id"].as_str().unwrap().to_owned()
    };
    let (one, two) = (submit("one"), submit("two"));
    assert_ne!(one, two);
    assert_eq!(submit("one"), one);
    eventually("both are sent", || upstream.count() == 2);
}

#[test]
fn a_call_that_becomes_a_job_is_told_where_the_job_is() {
    let upstream = Upstream::with(echo);
    let keys = format!("{ENQUEUE}idempotency = {{ mode = \"off\" }}\n");
    let gateway = Start::before(&upstream, &keys).go();
    let held = gateway.admin("PUT", "/v1/breakers/api", r#"{"state":"open"}"#);
    assert_eq!(held.status, 200, "{}", held.text());
    let replies = ["one", "two", "one"].map(|who| post(&gateway, who, ""));
    let places = replies.each_ref().map(|reply| (reply.status, reply.header("location").map(str::to_owned)));
    assert_eq!(places[0], places[2], "the same request is the same job");
    assert_ne!(places[0], places[1], "another caller's request is another job");
    gateway.admin("PUT", "/v1/breakers/api", r#"{"state":"auto"}"#);
    for (reply, who) in replies.iter().zip(["one", "two", "one"]) {
        assert_eq!(done(&gateway, reply)["response"]["body"], format!("Bearer {who}"));
    }
}

#[test]
fn a_condition_of_the_cache_is_no_part_of_the_job_that_a_call_becomes() {
    let upstream = Upstream::with(|turn| match (turn.number, turn.seen.has("if-none-match")) {
        (1, true) => turn.say(answer("503 No", "", "")),
        (_, true) => turn.say(answer("304 Same", "etag: \"v\"\r\n", "")),
        (_, false) => turn.say(answer("200 OK", "etag: \"v\"\r\n", "whole")),
    });
    let gateway = Start::before(&upstream, &format!("{ENQUEUE}cache = {{ ttl = \"1ms\" }}\n")).go();
    assert_eq!(gateway.get("/api/x").text(), "whole");
    let reply = eventually_stale(&gateway);
    assert!(upstream.seen()[1].has("if-none-match"), "the cache asks whether its entry is still good");
    let job = done(&gateway, &reply);
    assert_eq!((&job["response"]["status"], &job["response"]["body"]), (&200.into(), &"whole".into()), "{job}");
}

/// The first response that is not the cache's: an entry may be fresh for a moment.
fn eventually_stale(gateway: &Gateway) -> Reply {
    let mut reply = gateway.get("/api/x");
    eventually("the entry is stale", || {
        if reply.status == 200 {
            reply = gateway.get("/api/x");
        }
        reply.status != 200
    });
    reply
}
