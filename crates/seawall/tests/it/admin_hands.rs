//! The operators' actions: holding breakers, cooling keys, reloading files, and the shell commands for them.

use super::caller::eventually;
use super::forwarding::FAST;
use super::gateway::{Gateway, Start, program};
use super::upstream::Upstream;
use serde_json::{Value, json};

fn put(gateway: &Gateway, path: &str, body: &str) -> Value {
    let reply = gateway.admin_with("PUT", path, "", body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    serde_json::from_slice(&reply.body).unwrap()
}

pub(crate) fn run(gateway: &Gateway, arguments: &[&str]) -> (i32, String, String) {
    let output = program().args(arguments).args(["--admin", &format!("http://{}", gateway.admin)]).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

const KEYS: &str = "[upstreams.api.auth]\ninject = \"header:X-Key\"\nmax_wait = \"1ms\"\nkeys = [{ id = \"a\", secret = \"env:A\" }, { id = \"b\", secret = \"env:B\" }]\n[[upstreams.api.endpoints]]\nname = \"search\"\nmatch = \"GET /search\"\n";

fn keyed(upstream: &Upstream) -> Gateway {
    Start::before(upstream, &format!("{FAST}{KEYS}")).secret("A", "first-key-aaaa").secret("B", "second-key-bbbb").go()
}

#[test]
fn what_operators_did_is_in_one_list_that_outlives_the_process() {
    let upstream = Upstream::fine();
    let gateway = keyed(&upstream);
    let job = gateway.admin("POST", "/v1/jobs", r#"{"upstream":"api","path":"/x","delay":"1h"}"#).json();
    assert_eq!(gateway.admin("DELETE", &format!("/v1/jobs/{}", job["id"].as_str().unwrap()), "").status, 200);
    put(&gateway, "/v1/keys/api/a", r#"{"state":"cooling"}"#);
    let start = Start::before(&upstream, &format!("{FAST}{KEYS}")).secret("A", "first-key-aaaa").secret("B", "second-key-bbbb");
    let gateway = start.go_in(gateway.kill());
    let audit = gateway.look("/v1/audit")["items"].clone();
    let did: Vec<[&str; 2]> =
        audit.as_array().unwrap().iter().map(|deed| ["who", "action"].map(|name| deed[name].as_str().unwrap())).collect();
    assert_eq!(did, [["loopback", "key"], ["loopback", "cancel"]]);
}

#[test]
fn a_job_waits_for_a_breaker_that_somebody_holds() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, "breaker = { open = \"200ms\" }").go();
    put(&gateway, "/v1/breakers/api", r#"{"state":"open"}"#);
    let job = gateway.admin("POST", "/v1/jobs", r#"{"upstream":"api","path":"/x"}"#).json()["id"].as_str().unwrap().to_owned();
    let state = || gateway.look(&format!("/v1/jobs/{job}"))["state"].as_str().unwrap().to_owned();
    eventually("it is put off", || state() == "waiting");
    put(&gateway, "/v1/breakers/api", r#"{"state":"auto"}"#);
    eventually("it is done", || state() == "done");
    assert_eq!((upstream.count(), gateway.look(&format!("/v1/jobs/{job}"))["attempts"].clone()), (1, json!(1)));
}

#[test]
fn a_breaker_is_held_open_and_let_go() {
    let upstream = Upstream::fine();
    let gateway = keyed(&upstream);
    let changed = put(&gateway, "/v1/breakers/api/search", r#"{"state":"open"}"#);
    assert_eq!((&changed["items"][0]["state"], &changed["items"][0]["forced"]), (&json!("open"), &json!("open")));
    assert_eq!((gateway.get("/api/search").status, gateway.get("/api/x").status), (503, 200));
    let refused = gateway.get("/api/search");
    assert_eq!((refused.code().as_str(), refused.header("retry-after")), ("circuit_open", Some("5")), "the breaker's open time");
    put(&gateway, "/v1/breakers/api", r#"{"state":"open"}"#);
    assert_eq!((gateway.get("/api/search").status, gateway.get("/api/x").status), (503, 503));
    assert_eq!(put(&gateway, "/v1/breakers/api", r#"{"state":"auto"}"#)["items"].as_array().unwrap().len(), 2);
    assert_eq!((gateway.get("/api/search").status, gateway.get("/api/x").status), (200, 200));
    let audit = gateway.look("/v1/audit")["items"].clone();
    assert_eq!((&audit[0]["action"], &audit[0]["who"], &audit[0]["detail"]), (&json!("breaker"), &json!("loopback"), &json!("api: auto")));
    eventually("the log has it too", || gateway.stdout().contains("\"event\":\"operator\""));
    let page = gateway.look("/v1/audit?limit=2");
    let rest = gateway.look(&format!("/v1/audit?limit=2&cursor={}", page["next_cursor"].as_str().unwrap()));
    assert_eq!((page["items"].as_array().unwrap().len(), &rest["items"], &rest["next_cursor"]), (2, &json!([audit[2]]), &Value::Null));
    for path in ["/v1/breakers/nobody", "/v1/breakers/api/nothing"] {
        assert_eq!(gateway.admin_with("PUT", path, "", r#"{"state":"open"}"#).status, 404);
    }
}

#[test]
fn a_key_rests_and_comes_back() {
    let upstream = Upstream::fine();
    let gateway = keyed(&upstream);
    let until = "2099-01-01T00:00:00.000Z";
    let key = put(&gateway, "/v1/keys/api/a", &json!({ "state": "cooling", "until": until }).to_string());
    assert_eq!((&key["state"], &key["until"], &key["tail"]), (&json!("cooling"), &json!(until), &json!("…aaaa")));
    for _ in 0..4 {
        assert_eq!(gateway.get("/api/x").status, 200);
    }
    assert!(upstream.seen().iter().all(|seen| seen.all("x-key") == ["second-key-bbbb"]));
    put(&gateway, "/v1/keys/api/b", r#"{"state":"cooling"}"#);
    assert_eq!(gateway.get("/api/x").code(), "keys_exhausted");
    eventually("that is told", || gateway.look("/v1/events/recent").to_string().contains("keys-exhausted"));
    assert_eq!(put(&gateway, "/v1/keys/api/a", r#"{"state":"ready"}"#)["state"], "ready");
    assert_eq!(gateway.get("/api/x").status, 200);
    assert_eq!(upstream.seen().pop().unwrap().all("x-key"), ["first-key-aaaa"]);
    for (path, body, status) in [
        ("/v1/keys/api/c", r#"{"state":"ready"}"#, 404),
        ("/v1/keys/nobody/a", r#"{"state":"ready"}"#, 404),
        ("/v1/keys/api/a", r#"{"state":"cooling","until":"soon"}"#, 400),
        ("/v1/keys/api/a", r#"{"state":"cooling","until":"1999-01-01T00:00:00Z"}"#, 400),
        ("/v1/keys/api/a", r#"{"state":"rejected"}"#, 400),
    ] {
        assert_eq!(gateway.admin_with("PUT", path, "", body).status, status, "{path} {body}");
    }
}

#[test]
fn jobs_wait_no_longer_than_the_cause_that_an_operator_removes() {
    let upstream = Upstream::fine();
    let gateway = keyed(&upstream);
    let hands = [
        ("keys_cooling", ["/v1/keys/api/a", "/v1/keys/api/b"], r#"{"state":"cooling"}"#, r#"{"state":"ready"}"#),
        ("circuit_open", ["/v1/breakers/api", "/v1/breakers/api/search"], r#"{"state":"open"}"#, r#"{"state":"auto"}"#),
    ];
    for (reason, places, stop, go) in hands {
        places.iter().for_each(|place| drop(put(&gateway, place, stop)));
        let id = gateway.admin("POST", "/v1/jobs", r#"{"upstream":"api","path":"/x"}"#).json()["id"].as_str().unwrap().to_owned();
        let job = || gateway.look(&format!("/v1/jobs/{id}"));
        eventually("it waits", || job()["state"] == "waiting");
        assert_eq!(job()["error"], reason);
        places.iter().for_each(|place| drop(put(&gateway, place, go)));
        eventually("it is done", || job()["state"] == "done");
        assert_eq!(job()["attempts"], 1, "waiting is no attempt");
    }
}

#[test]
fn a_call_that_became_a_job_waits_no_longer_than_its_cause_either() {
    let upstream = Upstream::fine();
    let start = Start::before(&upstream, &format!("{FAST}on_exhausted = \"enqueue\"\n{KEYS}"));
    let gateway = start.secret("A", "first-key-aaaa").secret("B", "second-key-bbbb").go();
    let both = |state: &str| ["a", "b"].map(|key| put(&gateway, &format!("/v1/keys/api/{key}"), &json!({ "state": state }).to_string()));
    both("cooling");
    let reply = gateway.get("/api/x");
    assert_eq!(reply.status, 202, "{}", reply.text());
    let place = format!("/v1/jobs/{}", reply.json()["id"].as_str().unwrap());
    eventually("it waits", || gateway.look(&place)["error"] == "keys_cooling");
    both("ready");
    eventually("it is done", || gateway.look(&place)["state"] == "done");
}

#[test]
fn a_reload_can_be_tried_first() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, FAST).go();
    gateway.rewrite(&Start::before(
        &upstream,
        "retry = { attempts = 9, base = \"1ms\", cap = \"5ms\" }\n[upstreams.more]\nurl = \"http://127.0.0.1:1\"\n",
    ));
    let tried: Value = serde_json::from_slice(&gateway.admin_with("POST", "/v1/config/reload?dry_run=1", "", "").body).unwrap();
    assert!(
        tried["changes"].to_string().contains("api/default retry.attempts") && tried["changes"].to_string().contains("more/default"),
        "{tried}"
    );
    assert_eq!(gateway.get("/more/x").status, 404, "nothing has changed");
    let taken = gateway.admin_with("POST", "/v1/config/reload", "", "");
    assert_eq!(taken.status, 200);
    assert_eq!(gateway.get("/more/x").status, 502);
    assert_eq!(gateway.look("/v1/events/recent")["items"][0]["name"], "config-reloaded");
    gateway.rewrite(&Start::before(&upstream, "retry = { atempts = 9, base = 3 }"));
    for path in ["/v1/config/reload?dry_run=1", "/v1/config/reload"] {
        let refused = gateway.admin_with("POST", path, "", "");
        assert_eq!((refused.status, refused.code().as_str()), (422, "config_rejected"));
        let problems = refused.problem()["problems"].clone();
        assert_eq!(problems.as_array().unwrap().len(), 2, "{problems}");
        assert_eq!((&problems[0]["line"], &problems[0]["path"]), (&json!(7), &json!("upstreams.api.retry.atempts")));
    }
    assert_eq!(gateway.look("/v1/events/recent")["items"][0]["name"], "config-rejected");
    assert_eq!(gateway.look("/v1/status")["config"]["last_reload_ok"], false);
    assert!(gateway.look("/v1/config")["toml"].as_str().unwrap().contains("atempts"));
}

#[test]
fn a_reload_names_changes_that_no_policy_shows() {
    let upstream = Upstream::fine();
    let policy = |secret: &str, hosts: &str, token: &str| {
        let auth = format!("auth = {{ inject = \"query:k\", keys = [{{ id = \"a\", secret = \"env:{secret}\" }}] }}\n");
        let schedule = "[[schedules]]\nname = \"s\"\nupstream = \"api\"\nevery = \"1h\"\nrequest.path = \"/x\"\n";
        format!("{hosts}{auth}[callers.me]\ntoken = \"env:{token}\"\n{schedule}")
    };
    let start = |keys: &str, server: &str| {
        Start::before(&upstream, keys).server(server).secret("A", "first-key-aaaa").secret("B", "second-key-bbbb")
    };
    let gateway = start(&policy("A", "", "B"), "").go();
    let changed = |keys: &str, server: &str| -> Vec<String> {
        gateway.rewrite(&start(keys, server));
        let tried = gateway.admin("POST", "/v1/config/reload?dry_run=1", "").json();
        tried["changes"].as_array().unwrap().iter().map(|change| change.as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(changed(&policy("A", "", "B"), ""), Vec::<String>::new());
    assert_eq!(changed(&policy("B", "", "B"), ""), ["upstreams.api.auth.keys.a: env:A → env:B"]);
    assert_eq!(changed(&policy("A", "hosts = [\"a.test\"]\n", "B"), ""), ["upstreams.api.hosts: none → a.test"]);
    assert_eq!(changed(&policy("A", "", "A"), ""), ["callers.me: changed"]);
    assert_eq!(changed(&policy("A", "", "B").replace("1h", "2h"), ""), ["schedules.s: changed"]);
    assert_eq!(changed(&policy("A", "", "B"), "drain = \"7s\""), ["server.drain: 30s → 7s"]);
}

#[test]
fn whoever_drains_is_not_ready() {
    let upstream = Upstream::with(|turn| turn.hang(1500));
    let gateway = Start::before(&upstream, "").server("drain = \"10s\"").go();
    assert_eq!(gateway.admin_with("GET", "/readyz", "", "").status, 200);
    let mut caller = gateway.caller();
    caller.send("GET /api/x HTTP/1.1\r\nHost: h\r\n\r\n");
    eventually("the call is upstream", || upstream.count() == 1);
    gateway.signal("TERM");
    eventually("it says so", || gateway.admin_with("GET", "/readyz", "", "").status == 503);
    assert_eq!(gateway.look("/v1/status")["phase"], "draining");
}

#[test]
fn commands_do_the_same_from_a_shell() {
    let upstream = Upstream::fine();
    let gateway = keyed(&upstream);
    let (code, out, _) = run(&gateway, &["keys"]);
    assert_eq!(code, 0);
    assert!(out.contains("…aaaa") && out.lines().count() == 3 && !out.contains("first-key"), "{out}");
    assert!(run(&gateway, &["keys", "cool", "a"]).1.contains("cooling"));
    assert!(run(&gateway, &["keys", "restore", "api/a"]).1.contains("ready"));
    assert_eq!(run(&gateway, &["keys", "cool", "zzz"]).0, 2);
    let (code, out, _) = run(&gateway, &["breakers", "open", "api/search", "--json"]);
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &answer["items"][0]["forced"]), (0, &json!("open")));
    assert_eq!(gateway.get("/api/search").status, 503);
    assert!(run(&gateway, &["breakers", "auto", "api"]).1.contains("closed"));
    let (code, out, err) = run(&gateway, &["jobs", "submit", "--upstream", "api", "--path", "/later"]);
    assert_eq!(code, 0, "{err}");
    let id = serde_json::from_str::<Value>(&out).unwrap()["id"].as_str().unwrap().to_owned();
    eventually("the job is done", || run(&gateway, &["jobs", "show", &id]).1.contains("\"state\": \"done\""));
    assert!(run(&gateway, &["jobs", "list"]).1.contains(&id));
    let (code, _, err) = run(&gateway, &["jobs", "cancel", &id]);
    assert!(code == 1 && err.contains("job_over"), "{err}");
    assert_eq!(run(&gateway, &["dlq", "list"]).0, 0);
    assert_eq!(run(&gateway, &["dlq", "export"]).1, "");
    assert_eq!(run(&gateway, &["dlq", "replay"]).0, 2, "all of them is never meant by saying nothing");
    let (code, _, err) = run(&gateway, &["dlq", "show", "nothing"]);
    assert!(code == 1 && err.contains("no such dead letter"), "{err}");
}

#[test]
fn a_command_says_so_when_nobody_answers_or_a_token_is_needed() {
    let upstream = Upstream::fine();
    let nobody = program().args(["keys", "--admin", "http://127.0.0.1:1"]).output().unwrap();
    assert_eq!(nobody.status.code(), Some(10));
    assert!(String::from_utf8(nobody.stderr).unwrap().contains("no Seawall answers"));
    let gateway = Start::before(&upstream, FAST).server("admin_token = \"env:ADMIN\"").secret("ADMIN", "token-token-1234").go();
    let (code, _, err) = run(&gateway, &["breakers"]);
    assert!(code == 1 && err.contains("SEAWALL_ADMIN_TOKEN"), "{err}");
    let known = program()
        .env("SEAWALL_ADMIN_TOKEN", "token-token-1234")
        .args(["breakers", "--admin", &format!("http://{}", gateway.admin)])
        .output()
        .unwrap();
    assert_eq!(known.status.code(), Some(0));
}
