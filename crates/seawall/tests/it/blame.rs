//! Blame: one caller's refused request costs no other caller a key, and limits in any order lock no caller out.

use super::caller::eventually;
use super::gateway::{Gateway, Start};
use super::upstream::{Upstream, answer};
use std::time::Duration;

const KEYS: &str = "[upstreams.api.auth]\ninject = \"header:X-Key\"\nkeys = [{ id = \"a\", secret = \"env:A\" }, \
                    { id = \"b\", secret = \"env:B\" }, { id = \"c\", secret = \"env:C\" }, { id = \"d\", secret = \"env:D\" }]\n";

fn with_keys(upstream: &Upstream) -> Gateway {
    let start = Start::before(upstream, KEYS);
    ["A", "B", "C", "D"].into_iter().fold(start, |start, name| start.secret(name, &format!("secret-of-{name}"))).go()
}

fn states(gateway: &Gateway) -> Vec<String> {
    let keys = gateway.look("/v1/keys");
    keys["items"].as_array().unwrap().iter().map(|key| key["state"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn paths_that_are_always_refused_take_no_key_from_anybody() {
    let upstream = Upstream::with(|turn| {
        let out = turn.seen.line().contains("/out");
        turn.say(answer(if out { "401 No" } else { "200 OK" }, "", ""));
    });
    let gateway = with_keys(&upstream);
    for number in 0..16 {
        assert_eq!(gateway.get(&format!("/api/out{number}")).status, 401, "the caller sees the upstream's own answer");
    }
    assert_eq!(states(&gateway), ["ready"; 4]);
    assert_eq!(gateway.get("/api/in").status, 200);
}

#[test]
fn a_key_that_is_refused_where_another_is_accepted_is_rejected() {
    let upstream = Upstream::with(|turn| {
        let revoked = turn.seen.all("x-key") == ["secret-of-A"];
        turn.say(answer(if revoked { "401 No" } else { "200 OK" }, "", ""));
    });
    let gateway = with_keys(&upstream);
    for _ in 0..8 {
        assert_eq!(gateway.get("/api/x").status, 200);
    }
    assert_eq!(states(&gateway), ["rejected", "ready", "ready", "ready"]);
}

#[test]
fn paths_that_an_only_key_is_refused_for_take_it_from_nobody() {
    let upstream = Upstream::with(|turn| {
        let out = turn.seen.line().contains("/out");
        turn.say(answer(if out { "401 No" } else { "200 OK" }, "", ""));
    });
    let auth = "[upstreams.api.auth]\nkeys = [{ id = \"a\", secret = \"env:A\" }]\n";
    let gateway = Start::before(&upstream, auth).secret("A", "secret-of-A").go();
    assert_eq!(gateway.get("/api/in").status, 200);
    for number in 0..16 {
        assert_eq!(gateway.get(&format!("/api/out{number}")).status, 401, "the caller sees the upstream's own answer");
    }
    assert_eq!(gateway.get("/api/in").status, 200);
    assert_eq!(states(&gateway), ["ready"]);
}

#[test]
fn jobs_outlive_a_rejected_key_and_calls_wait_for_its_probe() {
    let upstream = Upstream::with(|turn| {
        let out = turn.seen.line().contains("/out");
        turn.say(answer(if out { "401 No" } else { "200 OK" }, "", ""));
    });
    let auth = "[upstreams.api.auth]\nkeys = [{ id = \"a\", secret = \"env:A\" }]\n";
    let gateway = Start::before(&upstream, auth).secret("A", "secret-of-A").go();
    for number in 0..3 {
        assert_eq!(gateway.get(&format!("/api/out{number}")).status, 401);
    }
    assert_eq!(states(&gateway), ["rejected"]);
    let hurried = gateway.get_with("/api/in", "Seawall-Timeout-Ms: 500\r\n");
    assert_eq!((hurried.status, hurried.code().as_str()), (502, "keys_rejected"));
    assert!(hurried.header("retry-after").is_some(), "{}", hurried.text());
    let job = gateway.admin("POST", "/v1/jobs", r#"{"upstream":"api","path":"/in"}"#).json();
    let job = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    let reply = gateway.get("/api/in");
    assert_eq!(reply.status, 200, "{}", reply.text());
    eventually("the job is done", || gateway.look(&job)["state"] == "done");
    assert_eq!(states(&gateway), ["ready"]);
}

#[test]
fn a_callers_own_refused_credential_is_no_alarm_about_ours() {
    let upstream = Upstream::with(|turn| turn.say(answer("401 No", "", "")));
    let gateway = Start::before(&upstream, "").go();
    assert_eq!(gateway.get("/api/x").status, 401);
    gateway.log(1);
    assert!(!gateway.look("/v1/events/recent").to_string().contains("auth-failed"));
}

#[test]
fn endpoints_that_share_limits_in_opposite_order_serve_and_stop() {
    let upstream = Upstream::fine();
    let [x, y] = ["x", "y"].map(|name| format!("{{ name = \"{name}\", key = \"upstream\", rate = \"1000000/s\", burst = 1000000 }}"));
    let endpoint = |name: &str, limits: String| {
        format!("[[upstreams.api.endpoints]]\nname = \"{name}\"\nmatch = \"GET /{name}\"\nlimits = [{limits}]\n")
    };
    let policy = format!("{}{}", endpoint("a", format!("{x}, {y}")), endpoint("b", format!("{y}, {x}")));
    let mut gateway = Start::before(&upstream, &policy).threads(4).go();
    std::thread::scope(|scope| {
        for caller in 0..8 {
            let gateway = &gateway;
            scope.spawn(move || {
                let path = if caller % 2 == 0 { "/api/a" } else { "/api/b" };
                let mut caller = gateway.caller();
                for _ in 0..300 {
                    assert_eq!(caller.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")).reply().status, 200);
                }
            });
        }
    });
    gateway.signal("TERM");
    assert_eq!(gateway.ended_within(Duration::from_secs(20)), Some(0));
}
