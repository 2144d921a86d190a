//! What callers get while the upstream fails: the real program before an upstream that does.

mod cache;
mod schema;
pub(crate) mod stage;
mod token;

use stage::{Gateway, Scripted, answer};

const FALLBACK: &str = r#"fallback = { status = 203, content_type = "text/plain", body = "later" }"#;

#[test]
fn a_failed_call_gets_the_fallback_and_is_counted_as_one() {
    let upstream = Scripted::start(|_, _| answer(503, "", "no"));
    let gateway = Gateway::before(&upstream.address, FALLBACK);
    let got = gateway.get("/a/x");
    assert_eq!((got.status, got.body.as_str(), got.outcome()), (203, "later", "fallback"));
    assert_eq!((got.header("content-type"), got.header("cache-control")), (Some("text/plain"), Some("no-store")));
    assert_eq!(got.header("seawall-attempts"), Some("2"));
    assert!(gateway.metrics().contains(r#"outcome="fallback"} 1"#));
    let log = gateway.log();
    assert!(log.contains(r#""event":"call""#) && log.contains(r#""outcome":"fallback""#), "{log}");
}

#[test]
fn refusals_of_ours_get_the_fallback_too() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let gateway = Gateway::before(&nobody, &format!("{FALLBACK}\nbreaker = {{ consecutive = 2 }}"));
    for _ in 0..3 {
        assert_eq!(gateway.get("/a/x").outcome(), "fallback");
    }
    assert!(gateway.log().contains(r#""status":"circuit_open""#));
}

#[test]
fn what_is_the_callers_own_doing_is_never_covered_up() {
    let upstream = Scripted::start(|_, _| answer(404, "", "gone"));
    let gateway = Gateway::before(&upstream.address, FALLBACK);
    let got = gateway.get("/a/x");
    assert_eq!((got.status, got.body.as_str(), got.outcome()), (404, "gone", "permanent"));
    assert_eq!(gateway.get("/nobody").status, 404);
}
