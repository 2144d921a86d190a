//! Four bounds that a call can go over, each told apart in log and metrics.

use super::caller::eventually;
use super::gateway::{Gateway, Start};
use super::jobs::{over, submit};
use super::upstream::{Turn, Upstream};
use serde_json::{Value, json};
use std::io::Write as _;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
    let reply = gateway.get_with("/api/x", "Seawall-Timeout-Ms: 200\r\n");
    let detail = reply.problem()["detail"].as_str().unwrap().to_owned();
    assert_eq!(reply.code(), "deadline_exceeded");
    assert!(detail.contains("no response within the ") && detail.contains(" that were left of the call's deadline"), "{detail}");
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
    let detail = reply.problem()["detail"].as_str().unwrap().to_owned();
    assert_eq!(detail, format!("no connection to {} within 100ms (`timeout.connect`)", silent.local_addr().unwrap()));
    assert_eq!((told(&gateway).0, told(&gateway).1), ("connect".into(), "connect".into()));
    counted(&gateway, "connect");
}

#[test]
fn a_retry_after_a_timeout_names_the_bound_as_its_reason() {
    let upstream = Upstream::with(|turn| if turn.number == 0 { turn.hang(600) } else { turn.say(super::upstream::OK) });
    let gateway = Start::before(&upstream, "retry = { attempts = 2, base = \"1ms\" }\ntimeout = { attempt = \"200ms\" }").go();
    assert_eq!(gateway.get("/api/x").status, 200);
    assert_eq!(told(&gateway).2, "attempt timeout");
    assert!(gateway.stdout().contains("\"error\":\"no response within 200ms (`timeout.attempt`)\""), "{}", gateway.stdout());
}

#[test]
fn an_answer_that_goes_silent_is_over_the_bound_for_silence() {
    let upstream = Upstream::with(|turn| {
        turn.send("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nhalf").hang(800);
    });
    let gateway = Start::before(&upstream, "timeout = { idle = \"200ms\" }").go();
    let reply = gateway.get("/api/x");
    assert_eq!((reply.status, reply.complete), (200, false));
    eventually("the log has it", || gateway.stdout().contains("\"event\":\"timeout\""));
    let line = gateway.log(1).into_iter().find(|line| line["event"] == "timeout").unwrap();
    assert_eq!((&line["upstream"], &line["timeout"]), (&"api".into(), &"idle".into()));
    counted(&gateway, "idle");
}

/// Announces a long body and sends a byte at a time, for three seconds at most; returns whether the gateway read to the end.
fn drips(turn: &mut Turn) -> bool {
    turn.send("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n");
    for _ in 0..100 {
        if turn.pause(30).stream.write_all(b"x").is_err() {
            return false;
        }
    }
    true
}

#[test]
fn a_body_that_drips_is_over_the_attempts_bound_where_it_is_read_as_a_whole() {
    let upstream = Upstream::with(|turn| assert!(!drips(turn), "nobody waits for this"));
    let gateway = Start::before(&upstream, "retry = { attempts = 1 }\ntimeout = { attempt = \"300ms\", total = \"600ms\" }").go();
    let id = submit(&gateway, &json!({ "upstream": "api", "path": "/job" }));
    let ended = over(&gateway, &id);
    assert_eq!((&ended["state"], &ended["error"]), (&json!("dead"), &json!("timeout")), "{ended}");
}

#[test]
fn a_body_that_drips_holds_no_revalidation_for_longer_than_the_call_may_take() {
    let waited = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&waited);
    let upstream = Upstream::with(move |turn| match turn.number {
        0 => turn.say(super::upstream::OK),
        _ => told.store(drips(turn), Ordering::SeqCst),
    });
    let cache = "cache = { ttl = \"50ms\", stale_while_revalidate = \"1h\" }\ntimeout = { attempt = \"300ms\", total = \"400ms\" }";
    let gateway = Start::before(&upstream, cache).go();
    assert_eq!(gateway.get("/api/x").text(), "ok");
    // Each is answered at once out of the cache; a second revalidation begins when the first was given up.
    eventually("another revalidation begins", || gateway.get("/api/x").text() == "ok" && upstream.count() >= 3);
    assert!(!waited.load(Ordering::SeqCst), "the first was not read to its end");
}
