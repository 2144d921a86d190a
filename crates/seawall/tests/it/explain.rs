//! `seawall explain`: a dry run for one imagined result.

use crate::dir::{CONTRACT, Dir};
use serde_json::Value;

const CONFIG: &str = r#"
[server]
default_upstream = "rest"
[upstreams.plain]
url = "https://plain.test/v1"
hosts = ["alias.test"]
retry = { base = "1s", backoff = "exponential" }
[[upstreams.plain.endpoints]]
name = "items"
match = "GET /items/*"
[[upstreams.plain.classify]]
name = "asleep"
when = { header = { "x-state" = ["asleep*"] } }
as = "transient"
wait = { header = "x-wake", unit = "ms" }
[[upstreams.plain.classify]]
name = "later"
when = { status = [200], body = "try again" }
as = "ambiguous"
[upstreams.deep]
url = "https://plain.test/v1/deep"
[upstreams.tube]
url = "https://tube.test"
preset = "google"
[upstreams.tube.auth]
keys = [{ id = "a", secret = "env:A", group = "1" }, { id = "b", secret = "env:B", group = "2" }]
[upstreams.token]
url = "https://token.test"
auth.refresh = { kind = "client-credentials", token_url = "https://token.test/t", client_id = "env:I", client_secret = "env:S" }
[upstreams.rest]
url = "https://rest.test"
"#;

fn said(args: &[&str]) -> Value {
    let dir = Dir::with(CONFIG);
    dir.write("quota.json", r#"{"error":{"code":403,"errors":[{"reason":"quotaExceeded","domain":"youtube.quota"}],"message":"quota"}}"#);
    dir.write("later.txt", "please try again");
    dir.run(["explain", "--json"].iter().chain(args)).ends_with(0).json()
}

/// Class, decision and reason.
fn decided(args: &[&str], class: &str, decision: &str, reason: &str) -> Value {
    let said = said(args);
    assert_eq!(
        (said["class"].as_str(), said["decision"].as_str(), said["reason"].as_str()),
        (Some(class), Some(decision), Some(reason)),
        "{args:?}: {said}"
    );
    said
}

#[test]
fn each_class_has_its_decision() {
    decided(&["GET", "/plain/x"], "success", "return", "succeeded");
    decided(&["GET", "/plain/x", "--status", "503"], "transient", "retry", "transient_failure");
    decided(&["GET", "/plain/x", "--status", "404"], "permanent", "return", "permanent_failure");
    decided(&["GET", "/plain/x", "--status", "409"], "ambiguous", "retry", "ambiguous_failure");
    decided(&["GET", "/tube/x", "--status", "403", "--body", "quota.json"], "quota", "rotate_key", "quota_rotation");
    decided(&["GET", "/plain/x", "--status", "401"], "auth", "return", "auth_failed");
    decided(&["GET", "/tube/x", "--status", "401"], "auth", "rotate_key", "key_rejected");
    decided(&["GET", "/token/x", "--status", "401"], "auth", "refresh_token", "token_expired");
}

#[test]
fn every_error_has_a_class() {
    for (error, class, decision) in [
        ("timeout", "transient", "retry"),
        ("dns", "transient", "retry"),
        ("connect", "transient", "retry"),
        ("reset", "transient", "retry"),
        ("tls", "transient", "retry"),
        ("malformed", "permanent", "return"),
        ("schema", "permanent", "return"),
    ] {
        let said = said(&["GET", "/plain/x", "--error", error]);
        assert_eq!((said["class"].as_str(), said["decision"].as_str()), (Some(class), Some(decision)), "{error}: {said}");
        assert_eq!(said["status"], error);
    }
}

#[test]
fn an_unsafe_method_goes_again_only_with_a_key_or_unsent() {
    decided(&["POST", "/plain/x", "--status", "503"], "transient", "return", "not_idempotent");
    decided(&["POST", "/plain/x", "--status", "503", "--keyed"], "transient", "retry", "transient_failure");
    decided(&["post", "/plain/x", "--error", "connect"], "transient", "retry", "transient_failure");
    decided(&["PATCH", "/plain/x", "--error", "timeout"], "transient", "return", "not_idempotent");
}

#[test]
fn gateway_paths_urls_hosts_and_the_default_find_their_upstream() {
    let whose = |url: &str| {
        let said = said(&["GET", url]);
        format!("{}/{}", said["upstream"].as_str().unwrap(), said["endpoint"].as_str().unwrap())
    };
    assert_eq!(whose("/plain/items/7?x=1"), "plain/items");
    assert_eq!(whose("/plain/items"), "plain/default");
    assert_eq!(whose("/plain"), "plain/default");
    assert_eq!(whose("https://plain.test/v1/items/7"), "plain/items");
    assert_eq!(whose("https://plain.test/v1/deep/items/7"), "deep/default");
    assert_eq!(whose("https://alias.test/items/7"), "plain/items");
    assert_eq!(whose("http://127.0.0.1:7329/plain/items/7"), "plain/items");
    assert_eq!(whose("/elsewhere/x"), "rest/default");
    let lost = Dir::with("[upstreams.a]\nurl = \"https://a.test\"\n").run(["explain", "GET", "/b/x"]).ends_with(1);
    assert!(lost.err.contains("no upstream takes `/b/x`") && lost.err.contains("hint:"), "{}", lost.err);
}

#[test]
fn rules_look_at_headers_and_bodies() {
    let said = decided(
        &["GET", "/plain/x", "--status", "200", "--header", "X-State: asleep-deep", "--header", "X-Wake: 4500"],
        "transient",
        "retry",
        "server_hint",
    );
    assert_eq!((said["rule"].as_str(), said["rule_source"].as_str()), (Some("asleep"), Some("upstream")));
    assert_eq!((said["wait_ms"]["min"].as_f64(), said["wait_ms"]["max"].as_f64()), (Some(4500.0), Some(4500.0)));
    let said = decided(&["GET", "/plain/x", "--status", "200", "--body", "later.txt"], "ambiguous", "retry", "ambiguous_failure");
    assert_eq!(said["rule"], "later");
}

#[test]
fn the_wait_is_the_longer_of_backoff_and_hint() {
    let wait = |args: &[&str]| {
        let said = said(args);
        (said["wait_ms"]["min"].as_f64().unwrap(), said["wait_ms"]["max"].as_f64().unwrap())
    };
    assert_eq!(wait(&["GET", "/plain/x", "--status", "503"]), (1000.0, 1000.0));
    assert_eq!(wait(&["GET", "/plain/x", "--status", "503", "--header", "Retry-After: 0.5"]), (1000.0, 1000.0));
    assert_eq!(wait(&["GET", "/plain/x", "--status", "503", "--header", "Retry-After: 9"]), (9000.0, 9000.0));
    // Equal jitter from half of it to 500 ms, and never before the hint.
    assert_eq!(wait(&["GET", "/rest/x", "--status", "503"]), (250.0, 500.0));
    assert_eq!(wait(&["GET", "/rest/x", "--status", "429", "--header", "retry-after: 0.4"]), (400.0, 500.0));
    decided(&["GET", "/rest/x", "--status", "429", "--header", "Retry-After: 61"], "transient", "return", "hint_too_long");
}

#[test]
fn the_text_names_every_stage() {
    let dir = Dir::with(CONFIG);
    let text = dir.run(["explain", "GET", "/plain/items/1", "--status", "503"]).ends_with(0).out;
    for row in [
        "endpoint   plain/items (GET /items/*)",
        "result     503",
        "rule ",
        "class      transient",
        "decision   retry (transient_failure)",
        "wait       1s",
        "caller ",
    ] {
        assert!(text.lines().any(|line| line.starts_with(row)), "{row}:\n{text}");
    }
}

#[test]
fn an_endpoint_whose_limit_refuses_everything_is_explained_all_the_same() {
    let dir = Dir::with(CONTRACT);
    dir.write("quota.json", r#"{"error":{"errors":[{"reason":"quotaExceeded"}]}}"#);
    let run = dir.run(["explain", "GET", "/youtube/search", "--status", "403", "--body", "quota.json", "--json"]).ends_with(0);
    let said = run.json();
    assert_eq!(
        (said["endpoint"].as_str(), said["class"].as_str(), said["scope"].as_str()),
        (Some("search"), Some("quota"), Some("group")),
        "{said}"
    );
    assert_eq!(said["decision"], "rotate_key");
}

#[test]
fn what_makes_no_sense_is_bad_usage() {
    let dir = Dir::with(CONFIG);
    dir.run(["explain", "GET"]).ends_with(2);
    dir.run(["explain", "GET", "/plain/x", "--status", "99"]).ends_with(2);
    dir.run(["explain", "GET", "/plain/x", "--status", "503", "--error", "dns"]).ends_with(2);
    dir.run(["explain", "GET", "/plain/x", "--error", "gremlins"]).ends_with(2);
    dir.run(["explain", "GET", "/plain/x", "--header", "nocolon"]).ends_with(2);
    let run = dir.run(["explain", "GET", "/plain/x", "--body", "nowhere"]).ends_with(1);
    assert!(run.err.contains("cannot read the body `nowhere`"), "{}", run.err);
}
