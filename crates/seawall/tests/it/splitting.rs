//! Paths and headers from outside: none of them can write a second request, or a second length beside the gateway's own.

use super::caller::eventually;
use super::dir::Dir;
use super::forwarding::FAST;
use super::gateway::Start;
use super::jobs::submit;
use super::replays::{die, open};
use super::upstream::{Upstream, answer};
use serde_json::{Value, json};

/// Ends a request line and begins another request.
const SPLIT: &str = "/a HTTP/1.1\r\nHost: h\r\n\r\nDELETE /everything";

#[test]
fn a_jobs_path_cannot_write_a_second_request() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, FAST).go();
    let hidden = SPLIT.replacen(' ', "# ", 1);
    for path in [SPLIT, hidden.as_str(), "/a b", "/a#b", "/a\r\n", "a", "*"] {
        for method in ["GET", "OPTIONS"] {
            let job = json!({ "upstream": "api", "path": path, "method": method });
            let reply = gateway.admin("POST", "/v1/jobs", &job.to_string());
            assert_eq!((reply.status, reply.code().as_str()), (400, "bad_request"), "{path:?}");
        }
    }
    submit(&gateway, &json!({ "upstream": "api", "path": "/last" }));
    eventually("what can be sent is sent", || upstream.count() == 1);
    assert!(!upstream.raw().contains("DELETE"), "{}", upstream.raw());
}

#[test]
fn an_imported_letter_sends_one_request_with_one_length() {
    let upstream = Upstream::with(|turn| {
        let reply = if turn.number == 0 { answer("503 No", "", "down") } else { answer("200 OK", "", "ok") };
        turn.say(reply);
    });
    let gateway = Start::before(&upstream, "retry = { attempts = 1 }\nbreaker = { mode = \"off\" }\n").go();
    die(&gateway, &[json!({ "upstream": "api", "path": "/a", "method": "PUT", "body": "four" })]);
    let exported: Value = serde_json::from_str(gateway.admin("GET", "/v1/dead-letters/export", "").text().trim()).unwrap();
    let import = |change: &dyn Fn(&mut Value)| {
        let mut letter = exported.clone();
        // An id other than that of the existing letter.
        let id = letter["id"].as_str().unwrap().to_owned();
        letter["id"] = format!("{}{}", &id[..id.len() - 1], if id.ends_with('0') { "1" } else { "0" }).into();
        change(&mut letter);
        let reply = gateway.admin_as("POST", "/v1/dead-letters/import", "application/x-ndjson", &format!("{letter}\n")).text();
        serde_json::from_str::<Value>(&reply).unwrap()
    };
    for path in [SPLIT, "/a b", "/a#b"] {
        assert_eq!(import(&|letter| letter["original"]["path"] = path.into())["code"], "bad_request", "{path}");
    }
    assert_eq!(import(&|letter| letter["original"]["headers"]["x-a"] = "b\r\nx-c: d".into())["code"], "bad_request");
    assert_eq!(import(&|letter| letter["original"]["headers"]["x a"] = "b".into())["code"], "bad_request");
    let kept = import(&|letter| {
        let headers = &mut letter["original"]["headers"];
        for (name, value) in
            [("transfer-encoding", "chunked"), ("content-length", "0"), ("host", "other"), ("connection", "x-own"), ("x-own", "1")]
        {
            headers[name] = value.into();
        }
    });
    assert_eq!(kept["kept"], true, "{kept}");
    assert_eq!(open(&gateway).len(), 2);
    let wish = json!({ "ids": [kept["id"]], "force": true });
    assert_eq!(gateway.admin("POST", "/v1/dead-letters/replay", &wish.to_string()).status, 202);
    eventually("it is replayed", || upstream.count() == 2);
    let seen = &upstream.seen()[1];
    assert_eq!((seen.line(), seen.body.as_slice()), ("PUT /a HTTP/1.1", &b"four"[..]));
    assert_eq!((seen.all("content-length"), seen.all("host").len(), seen.has("transfer-encoding")), (vec!["4"], 1, false));
    assert_eq!((seen.all("x-own"), seen.has("connection")), (vec!["1"], false));
}

#[test]
fn a_page_that_names_the_next_cannot_write_a_second_request() {
    let body = json!({ "next": SPLIT }).to_string();
    let upstream = Upstream::with(move |turn| turn.say(answer("200 OK", "Content-Type: application/json\r\n", &body)));
    let dir = Dir::new();
    dir.write("in", format!("http://{}/list\n", upstream.at));
    let run = dir.run(["fetch", "in", "--pages", "next:/next"]).ends_with(3);
    assert!(run.out.contains("bad_page"), "{}", run.out);
    assert_eq!(upstream.count(), 1);
    assert!(!upstream.raw().contains("DELETE"));
}

#[test]
fn a_question_about_the_whole_server_stays_one() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, FAST).server("default_upstream = \"api\"").go();
    assert_eq!(gateway.ask("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n").status, 200);
    assert_eq!(upstream.seen()[0].line(), "OPTIONS * HTTP/1.1");
    assert_eq!(gateway.ask("GET * HTTP/1.1\r\nHost: h\r\n\r\n").status, 400);
    let gateway =
        Start::with(&format!("[upstreams.api]\nurl = \"http://{}/v1\"\n{FAST}", upstream.at)).server("default_upstream = \"api\"");
    assert_eq!(gateway.go().ask("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n").status, 200);
    assert_eq!(upstream.seen()[1].line(), "OPTIONS /v1 HTTP/1.1");
}
