//! Pauses that a provider asks for: bounded, shown, and ended by an operator.

use super::caller::{Reply, eventually};
use super::gateway::{Gateway, Start, program};
use super::servers::Redis;
use super::shared::pair;
use super::upstream::{OK, Upstream, answer};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Refuses requests for ten days while the flag is set.
fn throttling() -> (Upstream, Arc<AtomicBool>) {
    let refuses = Arc::new(AtomicBool::new(true));
    let told = Arc::clone(&refuses);
    let later = answer("429 Later", "Retry-After: 864000\r\n", "");
    let upstream = Upstream::with(move |turn| turn.say(if told.load(Ordering::SeqCst) { &later } else { OK }));
    (upstream, refuses)
}

/// The refusal of a call that has no time to wait for a probe. Now and then a call is that probe itself.
fn refusal(gateway: &Gateway) -> Reply {
    let mut reply = None;
    eventually("a call is refused", || {
        let got = gateway.get_with("/api/x", "Seawall-Timeout-Ms: 100\r\n");
        let is_refused = got.outcome() == "paused";
        reply = Some(got);
        is_refused
    });
    reply.unwrap()
}

fn start(upstream: &Upstream, scope: &str, more: &str) -> Start {
    let rule = format!("when = {{ status = [429] }}\nas = \"transient\"\nscope = \"{scope}\"\nwait = \"retry-after\"\n");
    Start::before(upstream, &format!("{more}[[upstreams.api.classify]]\n{rule}"))
}

fn lift(gateway: &Gateway, place: &str) {
    let reply = gateway.admin("PUT", &format!("/v1/pauses/{place}"), r#"{"state":"lifted"}"#);
    assert_eq!(reply.status, 200, "{}", reply.text());
}

#[test]
fn a_pause_is_bounded_shown_and_lifted() {
    for (scope, place, endpoint) in [("endpoint", "api/default", json!("default")), ("upstream", "api", json!(null))] {
        let (upstream, refuses) = throttling();
        let limit = "limits = [{ name = \"qps\", key = \"upstream\", rate = \"100/s\" }]\n";
        let gateway = start(&upstream, scope, limit).go();
        assert_eq!(gateway.get("/api/x").status, 429, "the caller gets the provider's own answer");
        let pauses = gateway.look("/v1/pauses");
        assert_eq!((&pauses["items"][0]["upstream"], &pauses["items"][0]["endpoint"]), (&json!("api"), &endpoint));
        assert_eq!(gateway.look("/v1/breakers")["items"][0]["state"], "closed");
        let left = gateway.metric("seawall_pause_seconds{upstream=\"api\",endpoint=\"default\"}").unwrap();
        assert!((3_000.0..=3_600.0).contains(&left), "{left}");
        refuses.store(false, Ordering::SeqCst);
        lift(&gateway, place);
        assert_eq!(gateway.look("/v1/pauses")["items"], json!([]));
        assert_eq!(gateway.get("/api/x").status, 200);
    }
}

#[test]
fn a_pause_refuses_by_its_own_name_and_says_when_it_ends() {
    let (upstream, refuses) = throttling();
    let gateway = start(&upstream, "endpoint", "").go();
    assert_eq!(gateway.get("/api/x").status, 429);
    let refused = refusal(&gateway);
    assert_eq!((refused.status, refused.code().as_str()), (503, "paused"));
    assert!(upstream.count() <= 3, "{}", upstream.count());
    let after: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((3_000..=3_600).contains(&after), "{after}");
    let run = |arguments: &[&str]| {
        let out = program().args(arguments).args(["--admin", &format!("http://{}", gateway.admin)]).output().unwrap();
        assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    assert!(run(&["pauses"]).contains("default"));
    refuses.store(false, Ordering::SeqCst);
    assert!(!run(&["pauses", "lift", "api"]).contains("default"));
    assert_eq!(gateway.get("/api/x").status, 200);
    for path in ["nobody", "api/nothing"] {
        assert_eq!(gateway.admin("PUT", &format!("/v1/pauses/{path}"), r#"{"state":"lifted"}"#).status, 404);
    }
    assert_eq!(gateway.admin("PUT", "/v1/pauses/api", r#"{"state":"open"}"#).status, 400);
}

#[test]
fn a_pause_goes_on_after_a_restart_and_is_still_lifted() {
    let (upstream, refuses) = throttling();
    let gateway = start(&upstream, "upstream", "").go();
    assert_eq!(gateway.get("/api/x").status, 429);
    let again = start(&upstream, "upstream", "").go_in(gateway.stop());
    assert_eq!(refusal(&again).code(), "paused");
    refuses.store(false, Ordering::SeqCst);
    lift(&again, "api");
    assert_eq!(again.get("/api/x").status, 200);
}

#[test]
fn a_pause_is_probed_while_redis_is_away() {
    let (mut redis, (upstream, refuses)) = (Redis::start(), throttling());
    let [a, b] = pair(&redis, || start(&upstream, "upstream", ""));
    assert_eq!(a.get("/api/x").status, 429);
    assert_eq!(refusal(&b).code(), "paused", "the other instance heard of it");
    redis.kill();
    refuses.store(false, Ordering::SeqCst);
    for gateway in [&a, &b] {
        eventually("a probe ends it", || gateway.get_with("/api/x", "Seawall-Timeout-Ms: 100\r\n").status == 200);
        assert_eq!(gateway.look("/v1/pauses")["items"], json!([]));
    }
}

#[test]
fn instances_share_a_pause_and_its_end() {
    for (scope, place) in [("endpoint", "api/default"), ("upstream", "api")] {
        let (redis, (upstream, refuses)) = (Redis::start(), throttling());
        let [a, b] = pair(&redis, || start(&upstream, scope, ""));
        assert_eq!(a.get("/api/x").status, 429);
        assert_eq!(refusal(&b).code(), "paused", "the other instance heard of it");
        refuses.store(false, Ordering::SeqCst);
        lift(&b, place);
        for gateway in [&b, &a] {
            eventually("it is over", || gateway.get("/api/x").status == 200);
        }
    }
}
