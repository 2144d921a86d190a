//! The operators' views: timelines, roll-ups that agree with the log, events, unnamed errors.

use super::caller::{Caller, eventually};
use super::gateway::{Gateway, Start};
use super::upstream::{OK, Upstream, answer};
use seawall_core::record::histogram::StepHistogram;
use seawall_core::time::{Nanos, Wall};
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn listen(gateway: &Gateway) -> Caller {
    let mut events = Caller::connect(gateway.admin);
    events.send("GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(events.piece().contains("200 OK"));
    events
}

/// Reads until this event has come; returns its data.
fn until(events: &mut Caller, told: &mut String, name: &str) -> Value {
    let mark = format!("event: {name}\n");
    let mut found = None;
    eventually(name, || {
        if !told.contains(&mark) {
            told.push_str(&events.piece());
        }
        let data = told.split(&mark).nth(1).and_then(|rest| rest.split_once("data: ")).and_then(|(_, rest)| rest.split_once('\n'));
        found = data.and_then(|(data, _)| serde_json::from_str(data).ok());
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn a_breaker_is_seen_to_open_and_close() {
    let upstream = Upstream::with(|turn| turn.say(if turn.number < 2 { answer("500 Oops", "", "") } else { OK.to_owned() }));
    let keys =
        "retry = { attempts = 1 }\nbreaker = { consecutive = 2, open = \"1200ms\", successes = 1, ramp = \"0s\", max_wait = \"0s\" }\n";
    let gateway = Start::before(&upstream, keys).go();
    let (mut events, mut told) = (listen(&gateway), String::new());
    assert_eq!([500, 500, 503], [(); 3].map(|()| gateway.get("/api/x").status));
    let opened = until(&mut events, &mut told, "breaker-opened");
    assert_eq!(
        (&opened["upstream"], &opened["endpoint"], &opened["severity"], &opened["cause"]),
        (&json!("api"), &json!("default"), &json!("warning"), &json!("consecutive"))
    );
    let shown = &gateway.look("/v1/breakers")["items"][0];
    assert_eq!((&shown["state"], &shown["forced"]), (&json!("open"), &Value::Null));
    assert!(Wall::parse(shown["retry_at"].as_str().unwrap()).is_some());
    until(&mut events, &mut told, "breaker-half-open");
    assert_eq!(gateway.get("/api/x").status, 200);
    let closed = until(&mut events, &mut told, "breaker-closed");
    assert_eq!(closed["resolves"], opened["id"], "it says what it ends");
    let tick = until(&mut events, &mut told, "tick");
    for member in ["t", "calls", "success", "failed", "retries", "rejected", "in_flight", "p50_ms", "p95_ms", "p99_ms"] {
        assert!(tick.get(member).is_some(), "no {member} in {tick}");
    }
    let names: Vec<Value> =
        gateway.look("/v1/events/recent")["items"].as_array().unwrap().iter().map(|event| event["name"].clone()).collect();
    assert_eq!(names, ["breaker-closed", "breaker-half-open", "breaker-opened"]);
    let changes = gateway.look("/v1/breakers")["items"][0]["changes"].clone();
    let path: Vec<&str> = changes.as_array().unwrap().iter().map(|change| change["to"].as_str().unwrap()).collect();
    assert_eq!(path, ["open", "half-open", "closed"]);
    let mut back = Caller::connect(gateway.admin);
    back.send(format!("GET /v1/events HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: {}\r\n\r\n", opened["id"]));
    let mut heard = String::new();
    until(&mut back, &mut heard, "breaker-closed");
    assert!(!heard.contains("event: breaker-opened"), "what was heard is not told again");
}

#[test]
fn an_upstream_says_since_when_and_why_it_refuses() {
    let upstream = Upstream::with(|turn| turn.say(answer("429 Slow", "Retry-After: 60\r\n", "")));
    let down = Upstream::with(|turn| turn.say(answer("500 Oops", "", "")));
    let policy = format!(
        "[upstreams.paused]\nurl = \"http://{}\"\nretry = {{ attempts = 1 }}\n\
         classify = [{{ when = {{ status = [429] }}, as = \"transient\", scope = \"upstream\", wait = \"retry-after\" }}]\n\
         [upstreams.down]\nurl = \"http://{}\"\nretry = {{ attempts = 1 }}\n\
         breaker = {{ per = \"upstream\", consecutive = 1, open = \"50ms\", open_max = \"50ms\", max_wait = \"0s\" }}\n\
         endpoints = [{{ name = \"one\", match = \"GET /one\" }}]\n\
         [upstreams.limited]\nurl = \"http://{}\"\nlimits = [{{ name = \"few\", key = \"upstream\", rate = \"1/h\", burst = 1 }}]\n\
         auth = {{ inject = \"query:k\", keys = [{{ id = \"a\", secret = \"env:A\" }}] }}\n",
        upstream.at, down.at, down.at
    );
    let gateway = Start::with(&policy).secret("A", "the-only-key").go();
    let shown = |name: &str| -> Value {
        let all = gateway.look("/v1/upstreams");
        all["items"].as_array().unwrap().iter().find(|one| one["name"] == name).unwrap().clone()
    };
    let opened = |breaker: &Value| Wall::parse(breaker["since"].as_str().unwrap_or_default());
    gateway.get("/paused/x");
    gateway.get("/down/one");
    eventually("its opening is seen", || opened(&shown("down")["endpoints"][0]["breaker"]).is_some());
    let first = opened(&shown("down")["endpoints"][0]["breaker"]);
    eventually("more probes fail than changes are kept", || {
        gateway.get("/down/one");
        down.count() > 30
    });
    let down = shown("down");
    assert_eq!(opened(&down["endpoints"][0]["breaker"]), first, "probes do not begin it anew");
    assert_eq!(down["endpoints"][0]["breaker"]["per"], "upstream");
    let paused = &shown("paused")["endpoints"][0];
    let time = |member: &str| Wall::parse(paused[member].as_str().unwrap()).unwrap();
    assert!(time("paused_since") < time("paused_until"), "{paused}");
    for _ in 0..4 {
        gateway.get("/limited/x");
    }
    eventually("refusals are counted by code", || shown("limited")["endpoints"][0]["refused"] == json!({ "rate_limited": 3 }));
    gateway.admin("PUT", "/v1/keys/limited/a", r#"{"state":"cooling"}"#);
    eventually("the key says since when", || {
        Wall::parse(gateway.look("/v1/keys")["items"][0]["since"].as_str().unwrap_or_default()).is_some()
    });
}

#[test]
fn a_calls_timeline_says_why_everything_was_done() {
    let upstream = Upstream::replying(&[&answer("503 Later", "", ""), &answer("502 Bad", "", ""), OK]);
    let gateway = Start::before(&upstream, "retry = { attempts = 4, base = \"5ms\", cap = \"9ms\" }\n").go();
    let reply = gateway.get("/api/x");
    let id = reply.header("seawall-call").unwrap().to_owned();
    gateway.log(1);
    let mut call = Value::Null;
    eventually("the call is shown", || {
        let reply = gateway.admin_with("GET", &format!("/v1/calls/{id}"), "", "");
        call = serde_json::from_slice(&reply.body).unwrap();
        reply.status == 200
    });
    assert_eq!(
        (&call["outcome"], &call["attempts"], &call["upstream"], &call["caller"]),
        (&json!("success"), &json!(3), &json!("api"), &json!("anonymous"))
    );
    let seen: Vec<[&str; 3]> = call["timeline"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| ["status", "class", "decision"].map(|name| step[name].as_str().unwrap()))
        .collect();
    assert_eq!(seen, [["503", "transient", "retry"], ["502", "transient", "retry"], ["200", "success", "return"]]);
    assert!(call["timeline"][0]["wait_ms"].as_f64().unwrap() > 0.0);
    for (query, count) in
        [("", 1), ("?upstream=api&outcome=success&caller=anonymous", 1), ("?outcome=permanent", 0), ("?upstream=other", 0)]
    {
        assert_eq!(gateway.look(&format!("/v1/calls{query}"))["items"].as_array().unwrap().len(), count, "{query}");
    }
    for _ in 0..5 {
        gateway.get("/api/x");
    }
    gateway.log(6);
    let (mut all, mut cursor) = (Vec::new(), String::new());
    eventually("all are shown", || gateway.look("/v1/calls")["items"].as_array().unwrap().len() == 6);
    loop {
        let page = gateway.look(&format!("/v1/calls?limit=4{cursor}"));
        all.extend(page["items"].as_array().unwrap().iter().map(|call| call["id"].as_str().unwrap().to_owned()));
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(all.len(), 6);
    assert_eq!(all.last(), Some(&id), "newest first");
}

/// A roll-up's counts, computed from the lines of the log.
#[derive(Default)]
struct Row {
    attempts: BTreeMap<String, u64>,
    calls: u64,
    success: u64,
    retries: u64,
    rejects: u64,
    latency: StepHistogram,
}

/// The expected roll-ups, from the lines of the log alone.
fn recomputed(log: &[Value]) -> Vec<Value> {
    let mut rows: BTreeMap<(String, String, String), Row> = BTreeMap::new();
    for line in log {
        let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        let Some(at) = Wall::parse(&text("ts")) else { continue };
        let start = Wall(at.0.div_euclid(900_000) * 900_000).to_string();
        if line["event"] != "attempt" && line["event"] != "call" {
            continue;
        }
        let row = rows.entry((start, text("upstream"), text("endpoint"))).or_default();
        if line["event"] == "attempt" {
            *row.attempts.entry(text("outcome")).or_default() += 1;
            row.retries += u64::from(["retry", "rotate_key", "refresh_token"].contains(&text("decision").as_str()));
            if line["status"] != "circuit_open" {
                row.latency.add(Nanos(1000 * format!("{:.0}", line["latency_ms"].as_f64().unwrap() * 1000.0).parse::<u64>().unwrap()));
            }
        } else {
            row.calls += 1;
            row.success += u64::from(line["outcome"] == "success");
            row.rejects += u64::from(line["outcome"] == "circuit_open" || line["outcome"] == "no_upstream");
        }
    }
    let ms = |row: &Row, per_mille| row.latency.quantile(per_mille).map_or(Value::Null, |length| json!((length.0 / 1000) as f64 / 1000.0));
    rows.iter()
        .map(|((at, upstream, endpoint), row)| {
            let sends: u64 = row.attempts.iter().filter(|(outcome, _)| *outcome != "circuit_open").map(|(_, n)| n).sum();
            let transient = row.attempts.get("transient").copied().unwrap_or(0);
            json!({
                "at": at, "upstream": upstream, "endpoint": endpoint, "attempts": row.attempts, "calls": row.calls, "success": row.success,
                "transient_rate": transient as f64 / sends.max(1) as f64,
                "retries_per_success": row.retries as f64 / row.success.max(1) as f64,
                "p50_ms": ms(row, 500), "p95_ms": ms(row, 950), "p99_ms": ms(row, 990), "rejects": row.rejects,
            })
        })
        .collect()
}

/// The roll-ups as they are shown, without open time, which no log line has.
fn rolled_up(gateway: &Gateway) -> Value {
    let mut shown = gateway.look("/v1/rollups")["items"].as_array().unwrap().clone();
    for row in &mut shown {
        let minutes = row.as_object_mut().unwrap().remove("circuit_open_minutes").unwrap();
        assert!(minutes.as_f64().is_some());
    }
    json!(shown)
}

/// Seconds that the breaker was open, by the metric of this process and by the roll-ups of all.
fn open_seconds(gateway: &Gateway) -> (f64, f64) {
    let rows = gateway.look("/v1/rollups?upstream=api");
    let own = rows["items"].as_array().unwrap().iter().filter(|row| row["endpoint"] == "default");
    let minutes: f64 = own.map(|row| row["circuit_open_minutes"].as_f64().unwrap()).sum();
    (gateway.metric("seawall_breaker_open_seconds_total{upstream=\"api\",endpoint=\"default\"}").unwrap(), minutes * 60.0)
}

#[test]
fn roll_ups_agree_with_the_log_to_the_last_digit_across_restarts() {
    let upstream = Upstream::with(|turn| {
        let late = turn.number % 7 == 3;
        turn.pause(if late { 12 } else { 0 });
        turn.say(match turn.number % 5 {
            0 => answer("503 Later", "", ""),
            1 if turn.number % 3 == 0 => answer("503 Later", "", ""),
            4 if turn.number % 2 == 0 => answer("404 No", "", ""),
            _ => OK.to_owned(),
        });
    });
    let keys = "retry = { attempts = 2, base = \"1ms\", cap = \"2ms\", budget = \"100%\", budget_floor = \"1000/s\" }\nbreaker = { consecutive = 1, open = \"40ms\", open_max = \"40ms\", max_wait = \"0s\" }\n[[upstreams.api.endpoints]]\nname = \"search\"\nmatch = \"GET /search\"\n";
    let (mut directory, mut log, mut open) = (tempfile::tempdir().unwrap(), Vec::new(), 0.0);
    for _ in 0..3 {
        let gateway = Start::before(&upstream, keys).go_in(directory);
        assert_eq!(rolled_up(&gateway), json!(recomputed(&log)), "what was seen before is there");
        for number in 0..200 {
            gateway.get(if number % 3 == 0 { "/api/search" } else { "/api/x" });
        }
        gateway.get("/nowhere/x");
        log.extend(gateway.log(201));
        assert_eq!(rolled_up(&gateway), json!(recomputed(&log)));
        assert!(open_seconds(&gateway).0 > 0.0, "the breaker was open for a while");
        let mut own = 0.0;
        eventually("all of that time is in the roll-ups", || {
            let all;
            (own, all) = open_seconds(&gateway);
            (all - open - own).abs() < 1e-6
        });
        open += own;
        directory = gateway.stop();
    }
}

#[test]
fn a_name_and_what_was_counted_outlive_the_process() {
    let upstream = Upstream::with(|turn| turn.say(answer("418 Odd", "", r#"{"error":{"code":"teapot"}}"#)));
    let start = || Start::before(&upstream, "retry = { attempts = 3, base = \"1ms\", cap = \"2ms\" }\nbreaker = { mode = \"off\" }\n");
    let gateway = start().go();
    gateway.get("/api/x");
    gateway.get("/api/x");
    eventually("it is seen", || gateway.look("/v1/errors")["items"][0]["count"] == 2);
    let gateway = start().go_in(gateway.stop());
    let error = gateway.look("/v1/errors")["items"][0].clone();
    assert_eq!((&error["count"], &error["status"], &error["named_as"]), (&json!(2), &json!("418"), &Value::Null));
    assert_eq!(gateway.get("/api/x").header("seawall-attempts"), Some("1"), "unnamed 4xx are permanent");
    eventually("it is counted on", || gateway.look("/v1/errors")["items"][0]["count"] == 3);
    let path = format!("/v1/errors/{}", error["fingerprint"].as_str().unwrap());
    assert_eq!(gateway.admin_with("POST", &path, "", r#"{"as":"transient"}"#).status, 200);
    assert_eq!(gateway.get("/api/x").header("seawall-attempts"), Some("3"));
    // The kill leaves no chance to write anything more.
    let gateway = start().go_in(gateway.kill());
    assert_eq!(gateway.get("/api/x").header("seawall-attempts"), Some("3"), "the first call knows it");
    let error = gateway.look("/v1/errors")["items"][0].clone();
    assert_eq!((&error["named_as"], &error["count"]), (&json!("transient"), &json!(3)), "naming wrote it down");
}

#[test]
fn an_unnamed_error_is_named_and_the_name_holds_at_once() {
    let upstream = Upstream::with(|turn| {
        let body = format!(r#"{{"error":{{"code":"teapot"}},"request":"{}","hint":"key canary-in-use-1234"}}"#, turn.number);
        turn.say(if turn.seen.line().contains("/other") {
            answer("418 Odd", "", r#"{"error":{"code":"kettle"}}"#)
        } else {
            answer("418 Odd", "", &body)
        });
    });
    let keys = "retry = { attempts = 3, base = \"1ms\", cap = \"2ms\" }\nbreaker = { mode = \"off\" }\n[upstreams.api.auth]\ninject = \"header:X-Key\"\nkeys = [{ id = \"k\", secret = \"env:KEY\" }]\n";
    let gateway = Start::before(&upstream, keys).secret("KEY", "canary-in-use-1234").go();
    for path in ["/api/x", "/api/x", "/api/other"] {
        assert_eq!(gateway.get(path).header("seawall-attempts"), Some("1"), "unnamed 4xx are permanent");
    }
    gateway.log(3);
    eventually("two kinds are seen", || gateway.look("/v1/errors")["items"].as_array().unwrap().len() == 2);
    let errors = gateway.look("/v1/errors")["items"].clone();
    assert!(!errors.to_string().contains("canary"), "{errors}");
    let teapot = errors.as_array().unwrap().iter().find(|error| error["count"] == 2).unwrap().clone();
    assert_eq!((&teapot["status"], &teapot["upstream"], &teapot["named_as"]), (&json!("418"), &json!("api"), &Value::Null));
    let path = format!("/v1/errors/{}", teapot["fingerprint"].as_str().unwrap());
    let named = gateway.admin_with("POST", &path, "", r#"{"as":"transient"}"#);
    assert_eq!(named.status, 200, "{}", named.text());
    let named: Value = serde_json::from_slice(&named.body).unwrap();
    let toml = named["toml"].as_str().unwrap();
    assert!(toml.contains("[[upstreams.api.classify]]") && toml.contains(r#""/error/code" = ["teapot"]"#), "{toml}");
    assert_eq!(gateway.get("/api/x").header("seawall-attempts"), Some("3"), "a transient error is retried");
    assert_eq!(gateway.get("/api/other").header("seawall-attempts"), Some("1"), "the other one is not");
    assert_eq!(
        gateway.look("/v1/errors")["items"].as_array().unwrap().iter().find(|error| error["fingerprint"] == teapot["fingerprint"]).unwrap()
            ["named_as"],
        "transient"
    );
    let reloaded = gateway.admin_with("POST", "/v1/config/reload", "", "");
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());
    assert_eq!(gateway.get("/api/x").header("seawall-attempts"), Some("3"), "it outlives a reload");
    let kept = Start::before(&upstream, &format!("{keys}{toml}")).secret("KEY", "canary-in-use-1234").go();
    assert_eq!(kept.get("/api/x").header("seawall-attempts"), Some("3"), "what was shown can be kept");
}

#[test]
fn limits_are_listed_with_the_upstream_they_are_of_and_the_keys_that_use_them() {
    let upstream = Upstream::fine();
    let policy = r#"
limits = [{ name = "qps", key = ["key", "caller"], rate = "10/h", burst = 10 }, { name = "each", key = "endpoint", rate = "10/h", burst = 100 }]
[upstreams.api.auth]
inject = "query:key"
pick = "round-robin"
keys = [{ id = "a", secret = "env:A" }, { id = "b", secret = "env:B" }]
[upstreams.other]
url = "http://127.0.0.1:9"
[[limits]]
name = "everyone"
key = "endpoint"
rate = "100/h"
burst = 1000
"#;
    let gateway = Start::before(&upstream, policy).secret("A", "canary-a").secret("B", "canary-b").go();
    for _ in 0..3 {
        assert_eq!(gateway.get("/api/x").status, 200);
    }
    gateway.get("/other/x");
    let limits = gateway.look("/v1/limits")["limits"].clone();
    let shown: Vec<(&Value, &Value, Vec<&str>)> = limits
        .as_array()
        .unwrap()
        .iter()
        .map(|limit| {
            let top = limit["top"].as_array().unwrap().iter().map(|one| one["key"].as_str().unwrap()).collect();
            (&limit["name"], &limit["of"], top)
        })
        .collect();
    let (name, api) = (|text: &str| Value::from(text), Value::from("api"));
    assert_eq!(
        shown,
        [
            (&name("everyone"), &Value::Null, vec!["api/default", "other/default"]),
            (&name("qps"), &api, vec!["api/a + anonymous", "api/b + anonymous"]),
            (&name("each"), &api, vec!["api/default"]),
        ],
        "{limits:#}"
    );
    let used = limits[1]["top"][0]["used_share"].as_f64().unwrap();
    assert!((0.15..=0.2).contains(&used), "two of ten were used: {limits:#}");
}
