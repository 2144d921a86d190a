//! Answers that do not look as they should.

use super::stage::{Gateway, Scripted, answer};
use crate::dir::Dir;

const SCHEMA: &str = r#"{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}"#;

fn gateway(upstream: &Scripted, more: &str) -> Gateway {
    let dir = Dir::with(Gateway::config(&upstream.address, &format!("schema = \"video.schema.json\"\n{more}")));
    dir.write("video.schema.json", SCHEMA);
    Gateway::start(dir, &[])
}

#[test]
fn an_answer_of_the_wrong_shape_is_not_relayed() {
    let upstream = Scripted::start(|_, request| match request.split(' ').nth(1).unwrap() {
        "/good" => answer(200, "content-type: application/json\r\n", r#"{"id":1}"#),
        "/bad" => answer(200, "", r#"{"id":"hunter2"}"#),
        "/torn" => answer(200, "", r#"{"id":"#),
        "/zip" => answer(200, "content-encoding: gzip\r\n", "zzz"),
        "/none" => answer(204, "", ""),
        _ => answer(404, "", "not even json"),
    });
    let gateway = gateway(&upstream, "");
    let good = gateway.with("/a/good", "accept-encoding: gzip\r\n");
    assert_eq!((good.status, good.body.as_str(), good.outcome()), (200, r#"{"id":1}"#, "success"));
    assert!(upstream.asked(1).contains("accept-encoding: identity"));

    let bad = gateway.get("/a/bad");
    assert_eq!((bad.status, bad.outcome(), bad.header("seawall-attempts")), (502, "schema_mismatch", Some("1")));
    let problem = bad.json();
    let detail = problem["detail"].as_str().unwrap();
    assert!(problem["code"] == "schema_mismatch" && detail.contains("/id") && detail.contains("integer"), "{problem}");
    assert!(!bad.body.contains("hunter2"));

    let torn = gateway.get("/a/torn");
    assert_eq!((torn.status, torn.outcome()), (502, "upstream_unreachable"));
    assert!(torn.json()["detail"].as_str().unwrap().contains("not JSON"), "{}", torn.body);

    assert_eq!(gateway.get("/a/zip").outcome(), "schema_mismatch");
    assert_eq!(gateway.get("/a/none").status, 204);
    assert_eq!(gateway.get("/a/else").body, "not even json", "only good answers have a shape");
    let log = gateway.log();
    assert!(log.contains(r#""status":"schema""#) && log.contains(r#""status":"malformed""#), "{log}");
}

#[test]
fn an_answer_that_is_too_large_to_be_checked_is_a_mismatch() {
    let upstream = Scripted::start(|_, _| answer(200, "", &format!(r#"{{"id":1,"x":"{}"}}"#, "x".repeat(2000))));
    let dir = Dir::with(
        Gateway::config(&upstream.address, "schema = \"s.json\"")
            .replace("[server]", "[server]\nmax_body = \"1KiB\"\nreplay_body = \"1KiB\""),
    );
    dir.write("s.json", SCHEMA);
    let got = Gateway::start(dir, &[]).get("/a/x");
    assert_eq!((got.status, got.outcome()), (502, "schema_mismatch"));
    assert!(got.body.contains("max_body"), "{}", got.body);
}

#[test]
fn a_mismatch_can_be_stood_in_for() {
    let upstream = Scripted::start(|n, _| answer(200, "", if n == 1 { r#"{"id":1}"# } else { "{}" }));
    let gateway = gateway(&upstream, "cache = { stale_if_error = \"1h\" }\nfallback = { body = \"{}\" }");
    assert_eq!(gateway.get("/a/x").outcome(), "success");
    let stale = gateway.get("/a/x");
    assert_eq!((stale.body.as_str(), stale.outcome()), (r#"{"id":1}"#, "stale"));
    assert_eq!(gateway.get("/a/y").outcome(), "fallback");
}

#[test]
fn a_schema_that_cannot_be_used_ends_the_program_at_its_start() {
    for (schema, said) in [(None, "cannot read"), (Some("{"), "not JSON"), (Some(r#"{"type":"nothing"}"#), "not a JSON Schema")] {
        let dir = Dir::with(Gateway::config("127.0.0.1:1", "schema = \"video.schema.json\""));
        if let Some(schema) = schema {
            dir.write("video.schema.json", schema);
        }
        let run = dir.run(["serve"]).ends_with(78);
        assert!(run.err.contains("upstreams.a") && run.err.contains("video.schema.json") && run.err.contains(said), "{}", run.err);
    }
}
