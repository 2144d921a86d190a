//! Tests every path of the admin port with every kind of unauthorised caller, and its OpenAPI description against its responses.

use super::caller::{Caller, eventually};
use super::forwarding::FAST;
use super::gateway::{Gateway, Start};
use super::upstream::{OK, Upstream, answer};
use serde_json::{Value, json};

const TOKEN: &str = "canary-admin-token-77aa";

/// Method, path with its parameters filled in, and whether it takes a body.
fn operations(gateway: &Gateway) -> Vec<(String, String, bool)> {
    let reply = gateway.admin_with("GET", "/openapi.json", &format!("Authorization: Bearer {TOKEN}\r\n"), "");
    let document: Value = serde_json::from_slice(&reply.body).unwrap();
    let mut all = Vec::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        let filled = path.replace("{upstream}", "api").replace("{endpoint}", "default").replace("{fingerprint}", "0123456789abcdef");
        let filled = filled.replace("{name}", "sync").replace("{subject}", "alice");
        let filled = filled.replace("/v1/keys/api/{id}", "/v1/keys/api/k").replace("{id}", "01jd0000000000000000000000");
        for (method, operation) in operations.as_object().unwrap() {
            all.push((method.to_ascii_uppercase(), filled.clone(), operation.get("requestBody").is_some()));
        }
    }
    assert!(all.len() > 25, "{all:?}");
    all
}

fn is_open(path: &str) -> bool {
    path == "/healthz" || path == "/readyz"
}

/// Asserts that this request gets one of our standard refusals.
#[track_caller]
fn refused(gateway: &Gateway, method: &str, path: &str, headers: &str, body: &str, expected: &[u16]) {
    let reply = gateway.admin_with(method, path, headers, body);
    assert!(expected.contains(&reply.status), "{method} {path} {headers:?}: {} {}", reply.status, reply.text());
    if method != "HEAD" {
        reply.problem();
    }
    guarded(&reply);
}

#[track_caller]
fn guarded(reply: &super::caller::Reply) {
    assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    assert!(reply.header("content-security-policy").is_some_and(|policy| policy.starts_with("default-src 'none'")));
    assert_eq!(reply.header("set-cookie"), None);
}

#[test]
fn nobody_gets_in_without_the_token() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, FAST).server("admin_token = \"env:ADMIN\"").secret("ADMIN", TOKEN).go();
    let right = format!("Authorization: Bearer {TOKEN}\r\n");
    for (method, path, takes_body) in operations(&gateway) {
        if is_open(&path) {
            assert_eq!(gateway.admin_with(&method, &path, "Host: any.example\r\n", "").status, 200);
            continue;
        }
        refused(&gateway, &method, &path, "", "", &[401]);
        refused(&gateway, &method, &path, "Authorization: Bearer wrong\r\n", "", &[401]);
        refused(&gateway, &method, &path, &format!("{right}Origin: http://evil.example\r\n"), "", &[403]);
        refused(&gateway, &method, &path, &format!("{right}Origin: null\r\n"), "", &[403]);
        refused(&gateway, "PATCH", &path, &right, "", &[405]);
        if path == "/v1/dead-letters/import" {
            // Each line gets its own response, also bad ones.
            continue;
        }
        if takes_body {
            for body in ["{", "[]", "{\"state\":7}", "{\"nonsense\":1}", "\u{0}"] {
                refused(&gateway, &method, &path, &right, body, &[400, 404]);
            }
            let huge = " ".repeat(match path.as_str() {
                "/v1/jobs" => 22 << 20,
                // Lists of ids are long.
                "/v1/dead-letters/replay" => 3 << 20,
                _ => 200_000,
            });
            refused(&gateway, &method, &path, &right, &huge, &[413]);
        } else if method != "POST" {
            // If the path alone identifies the subject, an unexpected body is not read.
            let expected: &[u16] = if path.contains("/subjects/") { &[404, 413] } else { &[413] };
            refused(&gateway, &method, &path, &right, &" ".repeat(200_000), expected);
        }
    }
    refused(&gateway, "GET", "/v1/nothing", &right, "", &[404]);
    assert_eq!(
        gateway.admin_with("GET", "/v1/status", &format!("{right}Origin: http://localhost\r\n"), "").status,
        200,
        "our own page may"
    );
}

#[test]
fn whoever_guesses_tokens_is_made_to_wait() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, FAST).server("admin_token = \"env:ADMIN\"").secret("ADMIN", TOKEN).go();
    let mut told = None;
    for _ in 0..200 {
        let reply = gateway.admin_with("GET", "/v1/status", "Authorization: Bearer wrong\r\n", "");
        if reply.status != 401 {
            told = Some(reply);
            break;
        }
    }
    let told = told.expect("it is not answered for ever");
    assert_eq!((told.status, told.code().as_str()), (429, "rate_limited"));
    let right = format!("Authorization: Bearer {TOKEN}\r\n");
    eventually("the wait is over", || gateway.admin_with("GET", "/v1/status", &right, "").status == 200);
}

#[test]
fn a_page_that_found_a_name_for_loopback_gets_nothing() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, FAST).go();
    for (method, path, _) in operations(&gateway).into_iter().filter(|(_, path, _)| !is_open(path)) {
        refused(&gateway, &method, &path, "Host: rebound.example\r\n", "", &[403]);
        refused(&gateway, &method, &path, "Origin: http://evil.example\r\n", "", &[403]);
    }
}

#[test]
fn parameters_that_cannot_be_read_are_refused() {
    let gateway = Start::before(&Upstream::fine(), FAST).go();
    for path in [
        "/v1/status/series?minutes=0",
        "/v1/status/series?minutes=x",
        "/v1/status/series?upstream=nobody",
        "/v1/calls?limit=0",
        "/v1/calls?limit=501",
        "/v1/calls?cursor=x",
        "/v1/calls?unknown=1",
        "/v1/rollups?from=yesterday",
        "/v1/rollups?upstream=a&upstream=b",
    ] {
        refused(&gateway, "GET", path, "", "", &[400]);
    }
    refused(&gateway, "POST", "/v1/config/reload?dry_run=maybe", "", "", &[400]);
    for path in ["/v1/calls/x", "/v1/calls/01jd0000000000000000000000", "/v1/calls/%ff"] {
        refused(&gateway, "GET", path, "", "", &[400, 404]);
    }
}

#[test]
fn every_parameter_is_described_and_nothing_else_is() {
    let gateway = Start::before(&Upstream::fine(), FAST).go();
    let document = gateway.look("/openapi.json");
    let mut checked = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            let mut described: Vec<&str> =
                parameters.iter().filter(|one| one["in"] == "query").map(|one| one["name"].as_str().unwrap()).collect();
            if described.is_empty() {
                continue;
            }
            let asked = path.replace("{name}", "sync");
            let told = gateway.admin_with(&method.to_ascii_uppercase(), &format!("{asked}?no_such=1"), "", "");
            let detail = told.json()["detail"].as_str().unwrap().to_owned();
            let mut known: Vec<&str> = detail.rsplit(" are ").next().unwrap().split(", ").collect();
            known.sort_unstable();
            described.sort_unstable();
            assert_eq!(known, described, "{method} {path}: {detail}");
            checked += 1;
        }
    }
    assert!(checked >= 9, "{checked}");
}

/// A gateway with at least one entry in every list.
fn lively() -> (Upstream, Gateway) {
    let upstream = Upstream::with(|turn| match turn.seen.line().split(' ').nth(1).unwrap().split('?').next().unwrap() {
        "/odd" => turn.say(answer(
            "418 Odd",
            "Content-Type: application/json\r\n",
            r#"{"error":{"code":"teapot","message":"key canary-in-use-1234 is short and stout"}}"#,
        )),
        "/waits" => turn.say(answer("529 Wait", "Retry-After: 300\r\n", "")),
        "/denied" => turn.say(answer("401 No", "", "canary-in-use-1234 is not welcome")),
        "/broken" => turn.say(answer("500 Oops", "", "canary-in-use-1234")),
        _ => turn.say(OK),
    });
    let keys = "retry = { attempts = 2, base = \"1ms\", cap = \"2ms\" }\nbreaker = { consecutive = 50 }\npool = \"p\"\ndead_letter = { from = [\"jobs\", \"gateway\"] }\nlimits = [{ name = \"qps\", key = \"caller\", rate = \"10/h\", burst = 1000 }]\n[pools.p]\nconcurrent = 5\nqueue = 5\n[upstreams.api.auth]\ninject = \"query:key\"\nmax_wait = \"1ms\"\nkeys = [{ id = \"k\", secret = \"env:CANARY\", group = \"g\" }, { id = \"l\", secret = \"env:CANARY2\" }]\n[[upstreams.api.endpoints]]\nname = \"search\"\nmatch = \"GET /search\"\n[[upstreams.api.endpoints]]\nname = \"waits\"\nmatch = \"GET /waits\"\n[[upstreams.api.endpoints.classify]]\nwhen = { status = [529] }\nas = \"transient\"\nscope = \"endpoint\"\nwait = \"retry-after\"\n[[schedules]]\nname = \"sync\"\nupstream = \"api\"\nrequest = { path = \"/ok?{subject}\" }\nevery = \"1h\"\nsubjects = [\"alice\"]\n";
    let gateway = Start::before(&upstream, keys).secret("CANARY", "canary-in-use-1234").secret("CANARY2", "canary-in-use-5678").go();
    (upstream, gateway)
}

#[test]
fn what_is_said_is_what_is_described_and_no_key_is_in_it() {
    let (_upstream, gateway) = lively();
    let mut events = Caller::connect(gateway.admin);
    events.send("GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
    for path in ["/api/ok", "/api/search", "/api/odd", "/api/broken", "/api/denied", "/api/waits", "/api/ok"] {
        gateway.get(path);
    }
    let job = gateway.admin_with("POST", "/v1/jobs", "", &json!({ "upstream": "api", "path": "/odd" }).to_string());
    assert_eq!(job.status, 202, "{}", job.text());
    gateway.log(8);
    eventually("the job is dead", || gateway.look("/v1/dead-letters")["items"].as_array().unwrap().len() >= 2);
    assert_eq!(gateway.admin_with("PUT", "/v1/breakers/api/search", "", r#"{"state":"open"}"#).status, 200);
    let mut told = String::new();
    eventually("something was told", || {
        told.push_str(&events.piece());
        told.contains("event: breaker-opened")
            && told.contains("event: tick")
            && told.contains("event: auth-failed")
            && told.contains("event: dead-letter")
    });
    let limits = gateway.look("/v1/limits");
    assert_eq!((&limits["limits"][0]["top"][0]["key"], &limits["pools"][0]["name"]), (&json!("anonymous"), &json!("p")), "{limits:#}");
    let document = gateway.look("/openapi.json");
    let letter = gateway.look("/v1/dead-letters")["items"][0]["id"].as_str().unwrap().to_owned();
    let job = gateway.look("/v1/jobs")["items"][0]["id"].as_str().unwrap().to_owned();
    let call = gateway.look("/v1/calls")["items"][0]["id"].as_str().unwrap().to_owned();
    let wish = json!({ "ids": [letter], "force": true }).to_string();
    let started = gateway.admin_with("POST", "/v1/dead-letters/replay", "", &wish);
    assert_eq!(started.status, 202, "{}", started.text());
    let replay = started.json()["replay"]["id"].as_str().unwrap().to_owned();
    let mut checked = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        let Some(described) = operations.get("get").map(|operation| &operation["responses"]["200"]["content"]) else { continue };
        let asked = match path.as_str() {
            "/v1/jobs/{id}" => path.replace("{id}", &job),
            "/v1/calls/{id}" => path.replace("{id}", &call),
            "/v1/dead-letters/{id}" => path.replace("{id}", &letter),
            "/v1/replays/{id}" => path.replace("{id}", &replay),
            "/v1/schedules/{name}" => path.replace("{name}", "sync"),
            "/v1/events" => continue,
            _ => path.clone(),
        };
        let reply = gateway.admin_with("GET", &asked, "", "");
        assert_eq!(reply.status, 200, "{asked}");
        guarded(&reply);
        told.push_str(&reply.text());
        let kind = ["application/json", "application/x-ndjson"].into_iter().find(|kind| described.get(kind).is_some());
        let Some(kind) = kind else { continue };
        let schema = &described[kind]["schema"];
        let schema =
            json!({ "$schema": "https://json-schema.org/draft/2020-12/schema", "components": document["components"], "allOf": [schema] });
        let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let said = if kind == "application/json" { read(&reply.text()) } else { reply.text().lines().map(read).collect() };
        if let Err(error) = jsonschema::validate(&schema, &said) {
            panic!("{asked}: {error} at {}: {said:#}", error.instance_path());
        }
        // An empty list agrees with any description.
        if let Some(items) = said.get("items").and_then(Value::as_array) {
            assert!(!items.is_empty(), "{asked} says nothing");
        }
        checked += 1;
    }
    assert!(checked > 20, "{checked}");
    for canary in ["canary-in-use", "use-1234", "use-5678"] {
        assert!(!told.contains(canary), "{canary} in {}", &told[told.find(canary).unwrap().saturating_sub(300)..][..400]);
    }
}
