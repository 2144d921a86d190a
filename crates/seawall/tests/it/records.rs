//! Records answer "which request?": method, route, path and status in lines and in the API.

use super::caller::eventually;
use super::gateway::Start;
use super::upstream::{OK, Upstream};
use serde_json::json;

const ENDPOINT: &str = "retry = { base = \"1ms\" }\n[[upstreams.api.endpoints]]\nname = \"item\"\nmatch = \"GET /items/*\"\n";

#[test]
fn lines_and_calls_name_the_request_without_its_values() {
    let upstream = Upstream::with(|turn| turn.say(if turn.number == 0 { "HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n" } else { OK }));
    let gateway = Start::before(&upstream, ENDPOINT).go();
    assert_eq!(gateway.get("/api/items/7?token=canary&page=2").status, 200);
    let lines = gateway.log(1);
    for line in &lines {
        assert_eq!(
            (&line["method"], &line["route"], &line["path"]),
            (&json!("GET"), &json!("GET /items/*"), &json!("/items/7?token&page")),
            "{line}"
        );
    }
    let call = lines.iter().find(|line| line["event"] == "call").unwrap();
    assert_eq!((&call["response_status"], &call["attempts"]), (&json!(200), &json!(2)));
    eventually("the call is listed", || gateway.look("/v1/calls")["items"].as_array().is_some_and(|calls| calls.len() == 1));
    let listed = &gateway.look("/v1/calls")["items"][0];
    for (name, value) in [
        ("method", json!("GET")),
        ("route", json!("GET /items/*")),
        ("path", json!("/items/7?token&page")),
        ("response_status", json!(200)),
    ] {
        assert_eq!(listed[name], value, "{name} of {listed}");
    }
    assert!(!gateway.stdout().contains("canary") && !listed.to_string().contains("canary"));
}

#[test]
fn a_refusal_and_a_failure_have_the_status_that_the_caller_got() {
    let upstream = Upstream::with(|turn| turn.close());
    let gateway = Start::before(&upstream, "retry = { attempts = 1 }\n").go();
    assert_eq!(gateway.post("/api/orders", "", "x").status, 502);
    let call = gateway.log(1).into_iter().find(|line| line["event"] == "call").unwrap();
    assert_eq!((&call["method"], &call["path"], &call["response_status"]), (&json!("POST"), &json!("/orders"), &json!(502)));
    assert_eq!(gateway.get("/nowhere").status, 404);
    eventually("the refusal is in the log", || gateway.stdout().contains("\"outcome\":\"no_upstream\""));
    let refused = gateway.log(2).into_iter().find(|line| line["outcome"] == "no_upstream").unwrap();
    assert_eq!(refused["response_status"], json!(404));
}

/// A pooled connection that the upstream drops after it has read the request costs a send that no attempt counts.
#[test]
fn a_send_that_replaces_a_dead_connection_is_counted() {
    let upstream = Upstream::with(|turn| if turn.number == 1 { turn.close() } else { turn.say(OK) });
    let gateway = Start::before(&upstream, "retry = { attempts = 1 }\n").threads(1).go();
    assert_eq!(gateway.get("/api/x").status, 200);
    let reply = gateway.get("/api/x");
    assert_eq!((reply.status, reply.header("seawall-attempts"), upstream.count()), (200, Some("2"), 3));
    let lines = gateway.log(2);
    let resent: Vec<_> = lines.iter().filter(|line| line["resends"] == json!(1)).collect();
    assert_eq!(resent.len(), 1, "{lines:?}");
    assert_eq!(lines.last().unwrap()["attempts"], json!(2));
    let name = "seawall_resends_total{upstream=\"api\",endpoint=\"default\"}";
    eventually("it is counted", || gateway.metric(name) == Some(1.0));
}
