//! The gateway's own errors in the formats that providers' clients parse.

use super::caller::Reply;
use super::gateway::{Gateway, Start};
use super::upstream::{OK, Upstream};
use serde_json::{Value, json};

const DETAIL: &str = "a rate limit was reached";

/// A gateway whose upstream lets one call pass.
fn limited(keys: &str) -> (Upstream, Gateway) {
    let upstream = Upstream::with(|turn| turn.say(OK));
    let policy =
        format!("[upstreams.api]\nurl = \"http://{}\"\nlimits = [{{ name = \"one\", rate = \"1/h\", burst = 1 }}]\n{keys}\n", upstream.at);
    let gateway = Start::with(&policy).go();
    assert_eq!(gateway.get("/api/x").status, 200);
    (upstream, gateway)
}

/// The refusal of a call, with the members of problem+json that the provider's format does not use.
fn refused(keys: &str, claimed: &[&str]) -> (Reply, Value) {
    let (_upstream, gateway) = limited(keys);
    let reply = gateway.get("/api/x");
    assert_eq!((reply.status, reply.header("content-type")), (429, Some("application/json")), "{keys}");
    assert_eq!(reply.header("seawall-outcome"), Some("rate_limited"));
    assert!(reply.header("retry-after").is_some());
    let document: Value = serde_json::from_slice(&reply.body).unwrap();
    let common = json!({
        "type": "urn:seawall:rate_limited", "title": "Too Many Requests", "status": 429, "detail": DETAIL, "code": "rate_limited",
        "upstream": "api", "endpoint": "default", "attempts": 0,
    });
    for (name, value) in common.as_object().unwrap() {
        assert!(claimed.contains(&name.as_str()) || document[name] == *value, "{keys}: {name} in {document}");
    }
    (reply, document)
}

#[test]
fn each_preset_answers_as_its_provider_does() {
    let expected = [
        ("openai", json!({ "error": { "message": DETAIL, "type": "rate_limit_error", "param": null, "code": "rate_limited" } })),
        ("openrouter", json!({ "error": { "message": DETAIL, "code": 429, "metadata": { "code": "rate_limited" } } })),
        ("stripe", json!({ "error": { "message": DETAIL, "type": "rate_limit_error", "code": "rate_limited" } })),
        ("anthropic", json!({ "type": "error", "error": { "message": DETAIL, "type": "rate_limit_error", "code": "rate_limited" } })),
        (
            "google",
            json!({ "error": {
                "code": 429, "message": DETAIL, "status": "RESOURCE_EXHAUSTED",
                "errors": [{ "domain": "seawall", "reason": "rate_limited", "message": DETAIL }],
            } }),
        ),
        ("aws", json!({ "__type": "ThrottlingException", "message": DETAIL })),
        ("github", json!({ "message": DETAIL, "error": "rate_limited" })),
        ("slack", json!({ "ok": false, "error": "ratelimited" })),
        ("spotify", json!({ "error": { "status": 429, "message": DETAIL, "reason": "rate_limited" } })),
        ("lastfm", json!({ "error": 29, "message": DETAIL })),
        (
            "subsonic",
            json!({ "subsonic-response": {
                "status": "failed", "version": "1.16.1", "type": "seawall", "error": { "code": 0, "message": DETAIL },
            } }),
        ),
        ("discord", json!({ "message": DETAIL, "code": 0, "global": false })),
        ("shopify", json!({ "errors": DETAIL })),
        ("graphql", json!({ "errors": [{ "message": DETAIL, "extensions": { "code": "RATE_LIMITED" } }] })),
        ("x", json!({ "errors": [{ "code": 88, "message": DETAIL }] })),
    ];
    for (preset, members) in expected {
        let members = members.as_object().unwrap();
        let claimed: Vec<&str> = members.keys().map(String::as_str).collect();
        let (reply, document) = refused(&format!("preset = \"{preset}\""), &claimed);
        for (name, value) in members {
            assert_eq!(&document[name], value, "{preset}: {name}");
        }
        assert_eq!(reply.header("x-amzn-errortype"), (preset == "aws").then_some("ThrottlingException"), "{preset}");
    }
}

#[test]
fn discord_clients_find_the_wait_in_the_body() {
    let (reply, document) = refused("preset = \"discord\"", &["code"]);
    let (wait, header) = (document["retry_after"].as_f64().unwrap(), reply.header("retry-after").unwrap().parse::<f64>().unwrap());
    assert!(wait > 0.0 && wait <= header, "{wait} {header}");
}

#[test]
fn an_endpoint_may_have_a_shape_of_its_own() {
    let (_upstream, gateway) =
        limited("preset = \"aws\"\n[[upstreams.api.endpoints]]\nname = \"s3\"\nmatch = \"* /s3/**\"\nerror_shape = \"aws-xml\"");
    let reply = gateway.get("/api/s3/x");
    assert_eq!((reply.status, reply.header("content-type")), (429, Some("application/xml")));
    assert_eq!(reply.header("x-amzn-errortype"), Some("ThrottlingException"));
    let text = reply.text();
    assert!(
        text.contains(&format!("<Error><Type>Sender</Type><Code>ThrottlingException</Code><Message>{DETAIL}</Message></Error>")),
        "{text}"
    );
    assert_eq!(gateway.get("/api/x").header("content-type"), Some("application/json"));
    let (_upstream, gateway) = limited("preset = \"openai\"\nerror_shape = \"problem\"");
    assert_eq!(gateway.get("/api/x").problem()["error"], "rate_limited");
}

#[test]
fn requests_that_never_become_calls_are_refused_in_the_same_shape() {
    let upstream = Upstream::with(|turn| turn.say(OK));
    let policy =
        |keys: &str| format!("[upstreams.api]\nurl = \"http://{}\"\npreset = \"openai\"\nmax_body = \"1KiB\"\n{keys}", upstream.at);
    let gateway = Start::with(&policy("idempotency = { mode = \"required\" }\n")).server("require_caller = true").go();
    let code = |reply: &Reply| {
        let document: Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(document["error"]["message"], document["detail"], "{document}");
        (document["error"]["code"].clone(), document["error"]["type"].clone())
    };
    let expected = |code: &str, kind: &str| (json!(code), json!(kind));
    assert_eq!(code(&gateway.get("/api/x")), expected("caller_unknown", "authentication_error"));
    let upgrade = "GET /api/x HTTP/1.1\r\nHost: gateway\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    assert_eq!(code(&gateway.ask(upgrade)), expected("not_implemented", "server_error"));
    let gateway = Start::with(&policy("idempotency = { mode = \"required\" }\n")).go();
    let post = |headers: &str| format!("POST /api/x HTTP/1.1\r\nHost: gateway\r\n{headers}\r\n");
    assert_eq!(code(&gateway.ask(post("Content-Length: 0\r\n"))), expected("idempotency_key_missing", "invalid_request_error"));
    let large = post("Idempotency-Key: a\r\nContent-Length: 2000\r\n");
    assert_eq!(code(&gateway.ask(large)), expected("too_large", "invalid_request_error"));
    let elsewhere = gateway.get("/nowhere/x");
    assert_eq!(elsewhere.problem()["error"], "no_upstream");
}

#[test]
fn a_call_that_was_given_up_and_a_breaker_speak_the_same_shape() {
    let upstream = Upstream::with(|turn| turn.close());
    let keys = "preset = \"stripe\"\nretry = { attempts = 1 }\nbreaker = { consecutive = 1, open = \"1h\", open_max = \"1h\", max_wait = \"0s\" }\n";
    let gateway = Start::with(&format!("[upstreams.api]\nurl = \"http://{}\"\n{keys}", upstream.at)).go();
    for code in ["upstream_unreachable", "circuit_open"] {
        let reply = gateway.get("/api/x");
        let document: Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!((&document["error"]["code"], &document["error"]["type"]), (&json!(code), &json!("api_error")), "{document}");
        assert_eq!(document["error"]["message"], document["detail"]);
        assert_eq!(document["type"], format!("urn:seawall:{code}"));
    }
}
