//! One rule for all doors: methods, names of headers and paths that one door refuses come in by no other.

use super::caller::eventually;
use super::dir::Dir;
use super::forwarding::FAST;
use super::gateway::{Gateway, Start};
use super::jobs::{job, over, submit};
use super::replays::{die, open};
use super::upstream::{Upstream, answer};
use serde_json::{Value, json};

const HOP_METHODS: [&str; 5] = ["CONNECT", "TRACE", "PRI", "trace", "Connect"];
const CLIMBING: [&str; 7] =
    ["/../admin", "/%2e%2E/admin", "/a/../../admin", "/a//../../admin", "/..%2fadmin", "/..\\\\admin", "/..;/admin?x=1"];

fn below_a_base(upstream: &Upstream) -> Gateway {
    Start::with(&format!("[upstreams.api]\nurl = \"http://{}/base\"\n{FAST}", upstream.at)).go()
}

/// An exported letter, changed and given another id.
fn import(gateway: &Gateway, exported: &Value, change: impl Fn(&mut Value)) -> Value {
    let mut letter = exported.clone();
    let id = letter["id"].as_str().expect("a letter has an id").to_owned();
    letter["id"] = format!("{}{}", &id[..id.len() - 1], if id.ends_with('0') { "1" } else { "0" }).into();
    change(&mut letter);
    let reply = gateway.admin_as("POST", "/v1/dead-letters/import", "application/x-ndjson", &format!("{letter}\n")).text();
    serde_json::from_str::<Value>(&reply).expect("a line of JSON")
}

#[test]
fn methods_of_the_hop_come_in_by_no_door() {
    let upstream = Upstream::with(|turn| turn.say(answer("503 No", "", "down")));
    let gateway = Start::before(&upstream, "retry = { attempts = 1 }\nbreaker = { mode = \"off\" }\n").go();
    die(&gateway, &[json!({ "upstream": "api", "path": "/a", "method": "PUT", "body": "four" })]);
    let exported: Value = serde_json::from_str(gateway.admin("GET", "/v1/dead-letters/export", "").text().trim()).unwrap();
    let dir = Dir::new();
    for method in HOP_METHODS {
        let reply = gateway.ask(format!("{method} /api/x HTTP/1.1\r\nHost: h\r\n\r\n"));
        assert!([400, 405].contains(&reply.status), "{method}: {}", reply.status);
        let reply = gateway.admin("POST", "/v1/jobs", &json!({ "upstream": "api", "path": "/", "method": method }).to_string());
        assert_eq!(reply.code(), "bad_request", "{method}");
        assert_eq!(import(&gateway, &exported, |letter| letter["original"]["method"] = method.into())["code"], "bad_request", "{method}");
        let row = json!({ "url": format!("http://{}/x", upstream.at), "method": method });
        dir.write("in", format!("{row}\n"));
        assert!(dir.run(["fetch", "in"]).ends_with(3).out.contains("no method"), "{method}");
        let schedule = format!(
            "[upstreams.api]\nurl = \"http://{}\"\n[[schedules]]\nname = \"s\"\nupstream = \"api\"\nevery = \"1h\"\n\
             request = {{ method = \"{method}\", path = \"/\" }}\n",
            upstream.at
        );
        let check = Dir::with(schedule).run(["check"]);
        assert!(format!("{}{}", check.out, check.err).contains("are not for gateways"), "{method}: {} {}", check.out, check.err);
    }
    assert_eq!(import(&gateway, &exported, |letter| letter["original"]["method"] = "G T".into())["code"], "bad_request");
    assert_eq!((upstream.count(), open(&gateway).len()), (1, 1));
}

#[test]
fn headers_that_a_server_may_take_for_framing_go_nowhere() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, FAST).go();
    let imitations = "Transfer_Encoding: chunked\r\ntransfer.encoding: chunked\r\nContent_Length: 99\r\nContent~Length: 99\r\n\
                      Connection_: x\r\nHost_: x\r\nProxy_Authorization: x\r\n";
    assert_eq!(gateway.post("/api/x", &format!("{imitations}X_Own: 1\r\n"), "four").status, 200);
    let id = gateway.post("/api/x", &format!("{imitations}X_Own: 1\r\nPrefer: respond-async\r\n"), "four").json()["id"].clone();
    over(&gateway, id.as_str().unwrap());
    assert_eq!(upstream.count(), 2);
    for seen in upstream.seen() {
        assert_eq!((seen.all("content-length"), seen.all("x_own")), (vec!["4"], vec!["1"]));
        let odd: Vec<&str> = seen.head.lines().filter(|line| line.split(':').next().unwrap().contains(['_', '.', '~'])).collect();
        assert_eq!(odd.iter().filter(|line| !line.starts_with("x_own") && !line.contains(" HTTP/")).count(), 2, "{odd:?}");
        assert!(odd.iter().all(|line| !line.to_lowercase().contains("length") && !line.to_lowercase().contains("encoding")), "{odd:?}");
    }
    let refused =
        gateway.admin("POST", "/v1/jobs", &json!({ "upstream": "api", "path": "/", "headers": { "content.length": "1" } }).to_string());
    assert_eq!(refused.code(), "bad_request");
}

#[test]
fn no_path_leaves_the_base_of_its_upstream() {
    let upstream = Upstream::fine();
    let gateway = below_a_base(&upstream);
    let dir = Dir::new();
    dir.write("seawall.toml", format!("[upstreams.api]\nurl = \"http://{}/base\"\n", upstream.at));
    for path in CLIMBING {
        let reply = gateway.get(&format!("/api{path}"));
        assert_eq!((reply.status, reply.code().as_str()), (400, "bad_request"), "{path}");
        assert!(reply.text().contains("does not leave the upstream's base path"), "{}", reply.text());
        let reply = gateway.admin("POST", "/v1/jobs", &json!({ "upstream": "api", "path": path }).to_string());
        assert_eq!(reply.code(), "bad_request", "{path}");
        let reply = gateway.get_with(&format!("/api{path}"), "Prefer: respond-async\r\n");
        assert_eq!(reply.status, 400, "{path}");
        dir.write("in", format!("{}\n", json!({ "url": format!("http://{}/base{path}", upstream.at) })));
        let run = dir.run(["fetch", "in", "-c", "seawall.toml"]).ends_with(3);
        assert!(run.out.contains("base path"), "{path}: {} {}", run.out, run.err);
    }
    assert_eq!(upstream.count(), 0);
    for (path, line) in [("/a/../b", "GET /base/a/../b HTTP/1.1"), ("/./%2e/a%2Fb", "GET /base/./%2e/a%2Fb HTTP/1.1")] {
        assert_eq!(gateway.get(&format!("/api{path}")).status, 200);
        assert_eq!(upstream.seen().last().unwrap().line(), line, "other dot segments stay as they are");
    }
    let plain = Start::before(&upstream, FAST).go();
    assert_eq!(plain.get("/api/../x").status, 200, "there is no base to leave");
    let id = submit(&plain, &json!({ "upstream": "api", "path": "/../x" }));
    eventually("the job is done", || job(&plain, &id)["state"] == "done");
}

#[test]
fn callers_with_different_values_of_any_header_have_different_stored_answers() {
    let upstream = Upstream::with(|turn| {
        let body = format!("answer {}", turn.number);
        turn.say(answer("200 OK", "", &body));
    });
    let gateway = Start::before(&upstream, "cache = { ttl = \"1h\" }\n").go();
    let get = |headers: &str| gateway.get_with("/api/x", headers).text();
    for name in ["X-Tenant", "X-Account", "X-Whoever", "From"] {
        let [one, other] = ["1", "2"].map(|value| get(&format!("{name}: {value}\r\n")));
        assert_ne!(one, other, "{name}");
        assert_eq!(get(&format!("{name}: 1\r\n")), one, "{name}: and each its own");
    }
    let first = get("");
    for name in ["User-Agent", "Traceparent", "X-Request-Id", "Accept-Language", "X-Forwarded-For", "Referer", "Sec-CH-UA", "Date"] {
        assert_eq!(get(&format!("{name}: 1\r\n")), first, "{name} does not say who asks");
    }
}
