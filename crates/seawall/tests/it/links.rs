//! Links of an upstream's response lead its caller through the gateway, whatever way the caller came.

use super::caller::Reply;
use super::gateway::{Gateway, Start};
use super::jobs::{over, submit};
use super::upstream::{OK, Upstream, answer};
use serde_json::json;

/// An upstream that links to itself from `/v1/first`, in every header and form.
fn linked(status: &'static str) -> Upstream {
    Upstream::with(move |turn| {
        if !turn.seen.line().contains("/first") {
            return turn.say(answer("200 OK", "", turn.seen.line()));
        }
        let at = turn.stream.local_addr().unwrap();
        let headers = format!(
            "Location: /v1/next?page=2\r\nContent-Location: http://{at}/v1/first\r\n\
             Link: <http://{at}/v1/next?a=1,2>; rel=\"next\"; title=\"a, <b>\", <https://elsewhere.test/v1/x>; rel=prev\r\n\
             Link: <//{at}/v1/last>; rel=last\r\nRefresh: 5; url=http://{at}/v1/next\r\nCache-Control: max-age=60\r\n"
        );
        turn.say(answer(status, &headers, "linked"));
    })
}

fn policy(upstream: &Upstream, keys: &str) -> String {
    format!("[upstreams.api]\nurl = \"http://{}/v1\"\n{keys}", upstream.at)
}

fn start(upstream: &Upstream, keys: &str) -> Gateway {
    Start::with(&policy(upstream, keys)).go()
}

#[track_caller]
fn assert_inside(reply: &Reply, origin: &str, prefix: &str) {
    assert_eq!(reply.header("location"), Some(format!("{prefix}/next?page=2").as_str()));
    assert_eq!(reply.header("content-location"), Some(format!("http:{origin}{prefix}/first").as_str()));
    let first = format!("<http:{origin}{prefix}/next?a=1,2>; rel=\"next\"; title=\"a, <b>\", <https://elsewhere.test/v1/x>; rel=prev");
    let links: Vec<&str> = reply.headers.iter().filter(|(name, _)| name == "link").map(|(_, value)| value.as_str()).collect();
    assert_eq!(links, [first, format!("<{origin}{prefix}/last>; rel=last")]);
    assert_eq!(reply.header("refresh"), Some(format!("5; url=http:{origin}{prefix}/next").as_str()));
}

#[test]
fn links_to_the_upstream_lead_through_the_gateway_and_reach_what_they_name() {
    let upstream = linked("301 Moved");
    let gateway = start(&upstream, "");
    let reply = gateway.get("/api/first");
    assert_inside(&reply, "//gateway", "/api");
    assert_eq!(gateway.get(reply.header("location").unwrap()).text(), "GET /v1/next?page=2 HTTP/1.1");
    let reply = gateway.ask("GET /api/first HTTP/1.1\r\nHost: 127.0.0.1:7329\r\n\r\n");
    assert_inside(&reply, "//127.0.0.1:7329", "/api");
}

#[test]
fn each_caller_of_a_stored_response_gets_links_of_its_own() {
    let upstream = linked("200 OK");
    let gateway = start(&upstream, "cache = { ttl = \"1m\" }\nhosts = [\"api.test\"]\n");
    for host in ["one", "two:81"] {
        let reply = gateway.ask(format!("GET /api/first HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_inside(&reply, &format!("//{host}"), "/api");
    }
    let reply = gateway.ask("GET /first HTTP/1.1\r\nHost: api.test\r\n\r\n");
    assert_inside(&reply, "//api.test", "");
    assert_eq!(upstream.count(), 1, "two of three were stored");
}

#[test]
fn a_response_that_is_given_again_for_its_key_has_the_callers_links() {
    let upstream = linked("201 Created");
    let gateway = start(&upstream, "");
    for host in ["one", "two"] {
        let reply = gateway.ask(format!("POST /api/first HTTP/1.1\r\nHost: {host}\r\nIdempotency-Key: k\r\nContent-Length: 1\r\n\r\nx"));
        assert_inside(&reply, &format!("//{host}"), "/api");
    }
    assert_eq!(upstream.count(), 1);
    let reply = gateway.post("/api/first", "Prefer: respond-async, wait=30\r\n", "x");
    assert_eq!(reply.status, 201);
    assert_inside(&reply, "//gateway", "/api");
    let reply = gateway.post("/api/first", "Prefer: respond-async\r\n", "y");
    assert!(reply.header("location").unwrap().starts_with("/-/jobs/"), "our own place stays");
}

#[test]
fn the_default_upstream_has_no_prefix_but_where_one_is_needed() {
    let upstream = Upstream::with(|turn| turn.say(answer("302 Found", "Location: /api/x\r\nLink: </y>\r\n", "")));
    let policy = format!("[upstreams.api]\nurl = \"http://{}/v1\"\n[upstreams.plain]\nurl = \"http://{}\"\n", upstream.at, upstream.at);
    let gateway = Start::with(&policy).server("default_upstream = \"plain\"").go();
    let reply = gateway.get("/x");
    assert_eq!((reply.header("location"), reply.header("link")), (Some("/plain/api/x"), Some("</y>")));
    let reply = gateway.get("/api/x");
    assert_eq!(reply.header("location"), Some(format!("http://{}/api/x", upstream.at).as_str()), "it is not below the upstream's path");
}

#[test]
fn links_stay_where_the_policy_says_so() {
    let upstream = Upstream::with(|turn| turn.say(answer("302 Found", "Location: /v1/x\r\n", "")));
    let endpoint = "[[upstreams.api.endpoints]]\nname = \"raw\"\nmatch = \"GET /raw/**\"\nrewrite_links = false\n";
    let gateway = start(&upstream, endpoint);
    assert_eq!(gateway.get("/api/x").header("location"), Some("/api/x"));
    assert_eq!(gateway.get("/api/raw/x").header("location"), Some("/v1/x"));
    gateway.rewrite(&Start::with(&policy(&upstream, "rewrite_links = false\n")));
    assert_eq!(gateway.admin("POST", "/v1/config/reload", "").status, 200);
    assert_eq!(gateway.get("/api/x").header("location"), Some("/v1/x"));
}

#[test]
fn the_scheme_is_the_callers_where_a_trusted_proxy_says_it() {
    let upstream = linked("200 OK");
    let gateway = Start::with(&policy(&upstream, "")).server("trust_forwarded = [\"127.0.0.0/8\"]").go();
    let reply = gateway.get_with("/api/first", "X-Forwarded-Proto: https\r\n");
    assert_eq!(reply.header("content-location"), Some("https://gateway/api/first"));
    let gateway = start(&upstream, "");
    let reply = gateway.get_with("/api/first", "X-Forwarded-Proto: https\r\n");
    assert_eq!(reply.header("content-location"), Some("http://gateway/api/first"));
}

#[test]
fn jobs_keep_links_as_the_upstream_wrote_them() {
    let upstream = linked("200 OK");
    let gateway = start(&upstream, "");
    let id = submit(&gateway, &json!({ "upstream": "api", "path": "/first" }));
    let job = over(&gateway, &id);
    let headers = job["response"]["headers"].to_string();
    assert!(headers.contains("/v1/next?page=2") && headers.contains(&format!("http://{}/v1/first", upstream.at)), "{headers}");
}

#[test]
fn a_response_without_links_goes_on_as_it_came() {
    let upstream = Upstream::replying(&[&answer("200 OK", "X-Link: </v1/x>\r\nLINKS: /v1\r\n", "/v1/x"), OK]);
    let gateway = start(&upstream, "");
    let reply = gateway.get("/api/x");
    assert_eq!((reply.header("x-link"), reply.header("links"), reply.text().as_str()), (Some("</v1/x>"), Some("/v1"), "/v1/x"));
}
