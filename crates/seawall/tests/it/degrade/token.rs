//! Tokens that expire, and what goes along with each attempt.

use super::{answer, before, eventually, scripted, start};
use crate::flaky::Flaky;
use crate::gateway::Gateway;
use std::fmt::Display;
use std::time::Duration;

const SCRIPT: &str = r#"
[[routes]]
match = "GET /data"
token = { url = "/token", expires = "1h", grant = "client-credentials" }
"#;

fn gateway(upstream: impl Display, provider: impl Display, kind: &str) -> Gateway {
    let refresh = if kind == "refresh-token" { ", refresh_token = \"env:REFRESH\"" } else { "" };
    gateway_with(upstream, provider, kind, refresh)
}

fn gateway_with(upstream: impl Display, provider: impl Display, kind: &str, more: &str) -> Gateway {
    let auth = format!(
        "[upstreams.a.auth]\nrefresh = {{ kind = \"{kind}\", token_url = \"http://{provider}/token\", client_id = \"env:ID\", \
         client_secret = \"env:SECRET\"{more} }}"
    );
    start(upstream, &auth).secret("ID", "the client").secret("SECRET", "canary-secret").secret("REFRESH", "first-refresh").go()
}

#[test]
fn a_client_can_name_itself_in_the_form() {
    let provider = scripted(|_, _| answer("200 X", "", r#"{"access_token":"token"}"#));
    let upstream = scripted(|_, _| answer("200 X", "", "in"));
    let gateway = gateway_with(upstream.at, provider.at, "client-credentials", ", client_auth = \"body\"");
    assert_eq!(gateway.get("/a/x").status, 200);
    let asked = provider.asked(1);
    assert!(asked.ends_with("grant_type=client_credentials&client_id=the%20client&client_secret=canary-secret"), "{asked}");
    assert!(!asked.to_lowercase().contains("authorization"), "{asked}");
}

#[test]
fn fifty_calls_at_once_ask_for_one_token() {
    let (flaky, _folder) = Flaky::scripted(SCRIPT);
    let gateway = gateway(&flaky.address, &flaky.address, "client-credentials");
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..50).map(|_| scope.spawn(|| gateway.get("/a/data").status)).collect();
        assert!(calls.into_iter().all(|call| call.join().unwrap() == 200));
    });
    assert_eq!(flaky.stats()["token_requests"], 1);
    assert_eq!(flaky.stats()["unauthorized"], 0);
}

#[test]
fn a_rejected_token_is_replaced_once() {
    let provider = scripted(|n, _| answer("200 X", "", &format!(r#"{{"access_token":"token-{n}","refresh_token":"refresh-{n}"}}"#)));
    let upstream = scripted(|_, request| match request.contains("Bearer token-2") {
        true => answer("200 X", "", "in"),
        false => answer("401 X", "", "out"),
    });
    let gateway = gateway(upstream.at, provider.at, "refresh-token");
    let got = gateway.get_with("/a/x", "authorization: Bearer own\r\n");
    assert_eq!((got.status, got.text().as_str(), upstream.count(), provider.count()), (200, "in", 2, 2));
    assert!(!upstream.asked(1).contains("own"), "the caller's own credential stays here");
    let (first, second) = (provider.asked(1), provider.asked(2));
    assert!(first.starts_with("POST /token ") && first.contains("authorization: Basic dGhlJTIwY2xpZW50OmNhbmFyeS1zZWNyZXQ="), "{first}");
    assert!(first.ends_with("grant_type=refresh_token&refresh_token=first-refresh"), "{first}");
    assert!(second.ends_with("refresh_token=refresh-1"), "a rotated refresh token is the one to use: {second}");
}

#[test]
fn a_second_rejection_is_final_and_redirects_are_not_followed() {
    let provider = scripted(|n, _| answer("200 X", "", &format!(r#"{{"access_token":"token-{n}"}}"#)));
    let upstream = scripted(|_, request| match request.contains("/moved") {
        true => answer("302 X", "location: http://127.0.0.1:1/elsewhere\r\n", ""),
        false => answer("401 X", "", "out"),
    });
    let gateway = gateway(upstream.at, provider.at, "client-credentials");
    let got = gateway.get("/a/x");
    assert_eq!((got.status, got.outcome(), upstream.count(), provider.count()), (401, "auth", 2, 2));
    let moved = gateway.get("/a/moved");
    assert_eq!((moved.status, moved.header("location")), (302, Some("http://127.0.0.1:1/elsewhere")));
}

#[test]
fn a_provider_that_says_no_ends_the_call_and_is_quoted_in_the_log() {
    let provider = scripted(|_, _| answer("401 X", "", r#"{"error":"invalid_client","error_description":"no canary-secret here"}"#));
    let upstream = scripted(|_, _| answer("200 X", "", "in"));
    let gateway = gateway(upstream.at, provider.at, "client-credentials");
    let got = gateway.get("/a/x");
    assert_eq!((got.status, got.outcome(), upstream.count(), provider.count()), (502, "auth", 0, 1));
    eventually("it is quoted", || gateway.stdout().contains("invalid_client: no … here"));
    assert!(!gateway.stdout().contains("canary") && !got.text().contains("canary"), "{}", gateway.stdout());
}

#[test]
fn each_attempt_is_a_span_of_the_callers_trace_and_knows_what_time_is_left() {
    let upstream = scripted(|n, _| answer(if n == 1 { "503 X" } else { "200 X" }, "", ""));
    let gateway = before(&upstream, "deadline_header = \"x-left-ms\"");
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let got = gateway
        .get_with("/a/x", &format!("traceparent: {trace}\r\ntracestate: a=1\r\nx-left-ms: 99999999\r\nseawall-timeout-ms: 5000\r\n"));
    assert_eq!(got.status, 200);
    let line = |n: usize, name: &str| upstream.asked(n).lines().find_map(|line| line.strip_prefix(name).map(str::to_owned)).unwrap();
    let (first, second) = (line(1, "traceparent: "), line(2, "traceparent: "));
    assert!(first != second && first[..36] == trace[..36] && second[..36] == trace[..36] && first != trace, "{first} {second}");
    assert!(line(1, "x-left-ms: ").parse::<u64>().unwrap() <= 5000 && line(1, "tracestate: ") == "a=1");
    // The parent span that the upstream received is in the log, as a child of the caller's span.
    eventually("both attempts are logged", || gateway.stdout().matches("\"event\":\"attempt\"").count() == 2);
    let spans: Vec<String> = gateway
        .stdout()
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .filter(|line| line["event"] == "attempt")
        .map(|line| {
            assert_eq!(line["parent_span_id"], "b7ad6b7169203331", "{line}");
            format!("00-{}-{}-01", line["trace_id"].as_str().unwrap(), line["span_id"].as_str().unwrap())
        })
        .collect();
    assert_eq!(spans, [first, second]);
    drop(gateway.get("/a/x"));
    assert!(!upstream.asked(3).contains("traceparent"), "nothing is invented");
    eventually("the third is logged", || gateway.stdout().matches("\"event\":\"attempt\"").count() == 3);
    assert_eq!(gateway.stdout().matches("span_id").count(), 4, "nor in the log");
}

#[test]
fn a_token_is_renewed_before_it_expires() {
    let provider = scripted(|n, _| answer("200 X", "", &format!(r#"{{"access_token":"token-{n}","expires_in":1}}"#)));
    let upstream = scripted(|_, _| answer("200 X", "", ""));
    let gateway = gateway(upstream.at, provider.at, "client-credentials");
    drop((gateway.get("/a/x"), gateway.get("/a/x")));
    assert_eq!(provider.count(), 1);
    std::thread::sleep(Duration::from_millis(950));
    drop(gateway.get("/a/x"));
    assert!(provider.count() == 2 && upstream.asked(3).contains("Bearer token-2"), "{}", upstream.asked(3));
}

#[test]
fn a_token_without_a_life_is_used_and_not_fetched_for_ever() {
    for life in ["0", "-5", "\"0\"", "0.2"] {
        let provider = scripted(move |_, _| answer("200 X", "", &format!(r#"{{"access_token":"t","expires_in":{life}}}"#)));
        let upstream = scripted(|_, _| answer("200 X", "", "in"));
        let gateway = gateway(upstream.at, provider.at, "client-credentials");
        let got = gateway.get("/a/x");
        assert_eq!((got.status, got.text().as_str(), provider.count()), (200, "in", 1), "expires_in {life}");
    }
}

#[test]
fn a_request_that_no_token_is_accepted_for_does_not_ask_for_one_each_time() {
    let provider = scripted(|n, _| answer("200 X", "", &format!(r#"{{"access_token":"token-{n}"}}"#)));
    let upstream = scripted(|_, request| answer(if request.contains("/out") { "401 X" } else { "200 X" }, "", ""));
    let gateway = gateway(upstream.at, provider.at, "client-credentials");
    for _ in 0..20 {
        assert_eq!(gateway.get("/a/out").status, 401);
    }
    assert!(provider.count() < 10, "{} token requests", provider.count());
    assert_eq!(gateway.get("/a/in").status, 200, "the token is as good as before for everybody else");
}

#[test]
fn a_call_waits_for_a_token_no_longer_than_its_own_deadline() {
    let provider = scripted(|_, _| {
        std::thread::sleep(Duration::from_secs(5));
        answer("200 X", "", r#"{"access_token":"late"}"#)
    });
    let upstream = scripted(|_, _| answer("200 X", "", ""));
    let gateway = gateway(upstream.at, provider.at, "client-credentials");
    let got = gateway.get_with("/a/x", "seawall-timeout-ms: 300\r\n");
    assert_eq!((got.status, got.outcome(), upstream.count()), (504, "deadline_exceeded", 0));
}

/// No failure of the provider opens the upstream's breaker, and the caller learns which of the two failed.
#[test]
fn a_provider_that_is_away_is_not_the_upstreams_failure() {
    let breaker = "breaker = { consecutive = 2, min_calls = 100 }\n";
    let hasty = "timeout = { attempt = \"300ms\" }\n";
    let down = scripted(|_, _| answer("503 X", "", ""));
    let late = scripted(|_, _| {
        std::thread::sleep(Duration::from_secs(5));
        answer("200 X", "", r#"{"access_token":"late"}"#)
    });
    // Nothing listens on port 1. A port that was just closed could be another test's by now.
    let gone = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    let [unreachable, too_late] = [(502, "upstream_unreachable"), (504, "deadline_exceeded")];
    // Only the provider that is late meets a short timeout: a busy machine may take longer than that for anything.
    for (provider, timeout, expected, said) in [
        (down.at, "", unreachable, "answered 503"),
        (late.at, hasty, too_late, "did not answer in time"),
        (gone, "", unreachable, "cannot be connected to: 127.0.0.1:1 refused the connection"),
    ] {
        let upstream = scripted(|_, _| answer("200 X", "", "in"));
        let auth = format!(
            "{timeout}{breaker}[upstreams.a.auth]\nrefresh = {{ kind = \"client-credentials\", token_url = \"http://{provider}/token\", \
             client_id = \"env:ID\", client_secret = \"env:SECRET\" }}"
        );
        let gateway = start(upstream.at, &auth).secret("ID", "the client").secret("SECRET", "canary-secret").go();
        for _ in 0..5 {
            let got = gateway.get("/a/x");
            assert_eq!((got.status, got.code().as_str()), expected, "{}", got.text());
            let detail = got.problem()["detail"].as_str().unwrap().to_owned();
            assert!(detail.ends_with(&format!(": the token provider 127.0.0.1 {said}")), "{detail}");
            assert_eq!(got.header("proxy-status"), Some("seawall; error=proxy_internal_error"));
        }
        assert_eq!(upstream.count(), 0);
    }
}

/// A refusal by the provider is no success of the upstream either: it must not close a half-open breaker.
#[test]
fn a_provider_that_says_no_is_no_success_of_the_upstream() {
    let provider = scripted(|n, _| match n {
        1 => answer("200 X", "", r#"{"access_token":"first","expires_in":2}"#),
        _ => answer("401 X", "", r#"{"error":"invalid_client"}"#),
    });
    let upstream = scripted(|_, _| answer("503 X", "", ""));
    let policy = "breaker = { consecutive = 2, min_calls = 100, open = \"2s\", probes = 1, successes = 1, max_wait = \"0s\" }\n";
    let auth = format!(
        "{policy}[upstreams.a.auth]\nrefresh = {{ kind = \"client-credentials\", token_url = \"http://{}/token\", \
         client_id = \"env:ID\", client_secret = \"env:SECRET\" }}",
        provider.at
    );
    let gateway = start(upstream.at, &auth).secret("ID", "the client").secret("SECRET", "canary-secret").go();
    for _ in 0..2 {
        assert_eq!(gateway.get("/a/x").status, 503);
    }
    assert_eq!(gateway.get("/a/x").code(), "circuit_open");
    eventually("the breaker lets a probe through", || gateway.get("/a/x").outcome() == "auth");
    assert_ne!(gateway.look("/v1/breakers")["items"][0]["state"], "closed");
}
