//! Answers that do not look as they should.

use super::{answer, eventually, scripted, start};
use crate::dir::Dir;
use crate::gateway::{Gateway, Start};
use crate::upstream::Upstream;

const SCHEMA: &str = r#"{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}"#;

fn gateway(upstream: &Upstream, more: &str) -> Gateway {
    beside_schema(start(upstream.at, &format!("schema = \"video.schema.json\"\n{more}")))
}

fn beside_schema(start: Start) -> Gateway {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("video.schema.json"), SCHEMA).unwrap();
    start.go_in(directory)
}

#[test]
fn an_answer_of_the_wrong_shape_is_not_relayed() {
    let upstream = scripted(|_, request| match request.split(' ').nth(1).unwrap() {
        "/good" => answer("200 X", "content-type: application/json\r\n", r#"{"id":1}"#),
        "/bad" => answer("200 X", "", r#"{"id":"hunter2"}"#),
        "/torn" => answer("200 X", "", r#"{"id":"#),
        "/zip" => answer("200 X", "content-encoding: gzip\r\n", "zzz"),
        "/none" => answer("204 X", "", ""),
        _ => answer("404 X", "", "not even json"),
    });
    let gateway = gateway(&upstream, "");
    let good = gateway.get_with("/a/good", "accept-encoding: gzip\r\n");
    assert_eq!((good.status, good.text().as_str(), good.outcome()), (200, r#"{"id":1}"#, "success"));
    assert!(upstream.asked(1).contains("accept-encoding: identity"));

    let bad = gateway.get("/a/bad");
    assert_eq!((bad.status, bad.outcome(), bad.header("seawall-attempts")), (502, "schema_mismatch", Some("1")));
    let problem = bad.json();
    let detail = problem["detail"].as_str().unwrap();
    assert!(problem["code"] == "schema_mismatch" && detail.contains("/id") && detail.contains("integer"), "{problem}");
    assert!(!bad.text().contains("hunter2"));

    let torn = gateway.get("/a/torn");
    assert_eq!((torn.status, torn.outcome()), (502, "upstream_unreachable"));
    assert!(torn.json()["detail"].as_str().unwrap().contains("not JSON"), "{}", torn.text());

    assert_eq!(gateway.get("/a/zip").outcome(), "schema_mismatch");
    assert_eq!(gateway.get("/a/none").status, 204);
    assert_eq!(gateway.get("/a/else").text(), "not even json", "only good answers have a shape");
    let logged = |status: &str| gateway.stdout().contains(&format!("\"status\":\"{status}\""));
    eventually("both are logged", || logged("schema") && logged("malformed"));
}

#[test]
fn an_answer_that_is_too_large_to_be_checked_is_a_mismatch() {
    let upstream = scripted(|_, _| answer("200 X", "", &format!(r#"{{"id":1,"x":"{}"}}"#, "x".repeat(2000))));
    let small = start(upstream.at, "schema = \"video.schema.json\"").server("max_body = \"1KiB\"\nreplay_body = \"1KiB\"");
    let got = beside_schema(small).get("/a/x");
    assert_eq!((got.status, got.outcome()), (502, "schema_mismatch"));
    assert!(got.text().contains("max_body"), "{}", got.text());
}

#[test]
fn a_mismatch_can_be_stood_in_for() {
    let upstream = scripted(|n, _| answer("200 X", "", if n == 1 { r#"{"id":1}"# } else { "{}" }));
    let gateway = gateway(&upstream, "cache = { stale_if_error = \"1h\" }\nfallback = { body = \"{}\" }");
    assert_eq!(gateway.get("/a/x").outcome(), "success");
    let stale = gateway.get("/a/x");
    assert_eq!((stale.text().as_str(), stale.outcome()), (r#"{"id":1}"#, "stale"));
    assert_eq!(gateway.get("/a/y").outcome(), "fallback");
}

#[test]
fn a_schema_that_cannot_be_used_ends_the_program_at_its_start() {
    for (schema, said) in [(None, "cannot read"), (Some("{"), "not JSON"), (Some(r#"{"type":"nothing"}"#), "not a JSON Schema")] {
        let dir = Dir::with(start("127.0.0.1:1", "schema = \"video.schema.json\"").text());
        if let Some(schema) = schema {
            dir.write("video.schema.json", schema);
        }
        let run = dir.run(["serve"]).ends_with(78);
        assert!(run.err.contains("upstreams.a") && run.err.contains("video.schema.json") && run.err.contains(said), "{}", run.err);
    }
}
