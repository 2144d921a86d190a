//! Responses to callers while the upstream fails: the real program in front of a failing upstream.

mod cache;
mod schema;
mod token;

use super::caller::eventually;
use super::gateway::{Gateway, Start};
use super::upstream::{Upstream, answer};

/// One upstream, `a`, with these keys, and retries without noticeable waits.
fn start(upstream: impl std::fmt::Display, keys: &str) -> Start {
    let retry = "retry = { attempts = 2, base = \"1ms\", cap = \"2ms\" }";
    Start::with(&format!("[upstreams.a]\nurl = \"http://{upstream}\"\n{retry}\n{keys}\n"))
}

fn before(upstream: &Upstream, keys: &str) -> Gateway {
    start(upstream.at, keys).go()
}

/// An upstream whose answers depend on the request's number, from 1, and on its text.
fn scripted(answer: impl Fn(usize, &str) -> String + Send + Sync + 'static) -> Upstream {
    Upstream::with(move |turn| turn.say(answer(turn.number + 1, &turn.seen.text())))
}

const FALLBACK: &str = r#"fallback = { status = 203, content_type = "text/plain", body = "later" }"#;

#[test]
fn a_failed_call_gets_the_fallback_and_is_counted_as_one() {
    let upstream = scripted(|_, _| answer("503 X", "", "no"));
    let gateway = before(&upstream, FALLBACK);
    let got = gateway.get("/a/x");
    assert_eq!((got.status, got.text().as_str(), got.outcome()), (203, "later", "fallback"));
    assert_eq!((got.header("content-type"), got.header("cache-control")), (Some("text/plain"), Some("no-store")));
    assert_eq!(got.header("seawall-attempts"), Some("2"));
    eventually("it is counted", || gateway.metrics().contains(r#"outcome="fallback"} 1"#));
    assert!(gateway.log(1).iter().any(|line| line["event"] == "call" && line["outcome"] == "fallback"));
}

#[test]
fn refusals_of_ours_get_the_fallback_too() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let gateway = start(nobody, &format!("{FALLBACK}\nbreaker = {{ consecutive = 2, open = \"5s\" }}")).go();
    for _ in 0..3 {
        assert_eq!(gateway.get("/a/x").outcome(), "fallback");
    }
    assert!(gateway.log(3).iter().any(|line| line["status"] == "circuit_open"));
}

#[test]
fn what_is_the_callers_own_doing_is_never_covered_up() {
    let upstream = scripted(|_, _| answer("404 X", "", "gone"));
    let gateway = before(&upstream, FALLBACK);
    let got = gateway.get("/a/x");
    assert_eq!((got.status, got.text().as_str(), got.outcome()), (404, "gone", "permanent"));
    assert_eq!(gateway.get("/nobody").status, 404);
}
