//! Four bounds that a call can go over, each told apart in log and metrics.

use super::gateway::{Gateway, Start};
use super::upstream::Upstream;
use serde_json::Value;
use std::net::TcpListener;

#[track_caller]
fn counted(gateway: &Gateway, expected: &str) {
    for kind in ["connect", "attempt", "total", "idle"] {
        let count = gateway.metric(&format!("seawall_timeouts_total{{upstream=\"api\",kind=\"{kind}\"}}"));
        assert_eq!(count, Some(if kind == expected { 1.0 } else { 0.0 }), "{kind}\n{}", gateway.metrics());
    }
}

/// The fields of the only attempt that tell its timeout.
#[track_caller]
fn told(gateway: &Gateway) -> (Value, Value, Value) {
    let mut log = gateway.log(1);
    let line = log[0].take();
    (line["status"].clone(), line["timeout"].clone(), line["reason"].clone())
}

const ONCE: &str = "retry = { attempts = 2, base = \"1ms\", unsafe = \"never\" }\n";

#[test]
fn an_attempt_that_gets_no_answer_is_over_its_own_bound() {
    let upstream = Upstream::with(|turn| turn.hang(600));
    let gateway = Start::before(&upstream, &format!("{ONCE}timeout = {{ attempt = \"200ms\", total = \"5s\" }}")).go();
    assert_eq!(gateway.post("/api/x", "", "x").code(), "deadline_exceeded");
    assert_eq!(told(&gateway), ("timeout".into(), "attempt".into(), "not_idempotent".into()));
    counted(&gateway, "attempt");
}

#[test]
fn an_attempt_that_the_deadline_ends_is_over_the_whole_calls_bound() {
    let upstream = Upstream::with(|turn| turn.hang(600));
    let gateway = Start::before(&upstream, &format!("{ONCE}timeout = {{ attempt = \"5s\", total = \"10s\" }}")).go();
    assert_eq!(gateway.get_with("/api/x", "Seawall-Timeout-Ms: 200\r\n").code(), "deadline_exceeded");
    assert_eq!(told(&gateway).1, "total");
    counted(&gateway, "total");
}

#[test]
fn a_connection_that_is_never_made_is_over_the_bound_for_connecting() {
    // It takes the connection and never says a word of TLS.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", silent.local_addr().unwrap());
    let policy = "retry = { attempts = 1 }\ntimeout = { connect = \"100ms\", attempt = \"5s\", total = \"10s\" }";
    let gateway = Start::with(&format!("[upstreams.api]\nurl = \"{url}\"\n{policy}")).go();
    let reply = gateway.get("/api/x");
    assert_eq!((reply.status, reply.header("proxy-status")), (502, Some("seawall; error=connection_timeout")));
    assert_eq!((told(&gateway).0, told(&gateway).1), ("connect".into(), "connect".into()));
    counted(&gateway, "connect");
}

#[test]
fn a_retry_after_a_timeout_names_the_bound_as_its_reason() {
    let upstream = Upstream::with(|turn| if turn.number == 0 { turn.hang(600) } else { turn.say(super::upstream::OK) });
    let gateway = Start::before(&upstream, "retry = { attempts = 2, base = \"1ms\" }\ntimeout = { attempt = \"200ms\" }").go();
    assert_eq!(gateway.get("/api/x").status, 200);
    assert_eq!(told(&gateway).2, "attempt timeout");
}

#[test]
fn an_answer_that_goes_silent_is_over_the_bound_for_silence() {
    let upstream = Upstream::with(|turn| {
        turn.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf").hang(800);
    });
    let gateway = Start::before(&upstream, "timeout = { attempt = \"200ms\", total = \"5s\" }").go();
    let reply = gateway.get("/api/x");
    assert_eq!((reply.status, reply.complete), (200, false));
    super::caller::eventually("the log has it", || gateway.stdout().contains("\"event\":\"timeout\""));
    let line = gateway.log(1).into_iter().find(|line| line["event"] == "timeout").unwrap();
    assert_eq!((&line["upstream"], &line["timeout"]), (&"api".into(), &"idle".into()));
    counted(&gateway, "idle");
}
