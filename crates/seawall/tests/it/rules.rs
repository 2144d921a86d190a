//! The gateway's own responses, and its retries: the contract's table and rules of retry.

use super::caller::{Watch, eventually};
use super::forwarding::{FAST, pair};
use super::gateway::Start;
use super::upstream::{OK, Upstream, answer};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;
use std::io::Write as _;

const KEYS: &str = "[upstreams.api.auth]\ninject = \"header:X-Key\"\nmax_wait = \"1ms\"\nkeys = [{ id = \"a\", secret = \"env:A\" }, { id = \"b\", secret = \"env:B\" }]\n[[upstreams.api.classify]]\nwhen = { status = [403, 429] }\nas = \"quota\"\nscope = \"key\"\nwait = \"retry-after\"\n";

fn with_keys(upstream: &Upstream, keys: &str) -> Start {
    Start::before(upstream, &format!("{keys}{KEYS}")).secret("A", "first-key-aaaa").secret("B", "second-key-bbbb")
}

fn http_date(seconds: &str) -> String {
    let date =
        std::process::Command::new("date").args(["-u", "-d", seconds, "+%a, %d %b %Y %H:%M:%S GMT"]).env("LC_ALL", "C").output().unwrap();
    String::from_utf8(date.stdout).unwrap().trim().to_owned()
}

#[test]
fn no_upstream_is_a_404() {
    let (gateway, _upstream) = pair(Upstream::fine());
    for path in ["/", "/none", "/apis/x", "/none/api"] {
        let reply = gateway.get(path);
        assert_eq!((reply.status, reply.code().as_str()), (404, "no_upstream"));
        assert_eq!((reply.header("retry-after"), reply.header("seawall-outcome")), (None, Some("no_upstream")));
    }
    assert_eq!(gateway.get("/-/health").status, 200);
    assert_eq!(gateway.get("/-/other").status, 404);
}

#[test]
fn every_key_cooling_is_a_429_until_the_first_is_viable() {
    // 85
    let upstream = Upstream::replying(&[&answer("403 Quota", "Retry-After: 40\r\n", ""), &answer("429 Quota", "Retry-After: 20\r\n", "")]);
    let gateway = with_keys(&upstream, FAST).go();
    let watch = Watch::start();
    let reply = gateway.get("/api/x");
    assert_eq!((reply.status, reply.code().as_str()), (429, "keys_exhausted"));
    assert!(["19", "20"].contains(&reply.header("retry-after").unwrap()), "{reply:?}");
    assert_eq!(reply.header("proxy-status"), Some("seawall; error=destination_unavailable"));
    assert_eq!(upstream.count(), 2, "each key was tried once");
    assert_ne!(upstream.seen()[0].all("x-key"), upstream.seen()[1].all("x-key"));
    assert_eq!(gateway.post("/api/x", "", "x").status, 429);
    assert_eq!(upstream.count(), 2, "cooling keys are left alone");
    assert!(watch.ms() < 500);
    let log = gateway.log(2);
    assert_eq!((&log[0]["outcome"], &log[0]["decision"], &log[0]["wait_ms"]), (&"quota".into(), &"rotate_key".into(), &0.0.into()));
}

#[test]
fn an_open_circuit_is_a_503_without_contact() {
    // 79
    let upstream = Upstream::with(|turn| turn.say(if turn.number <= 5 { answer("500 Oops", "", "oops") } else { OK.to_owned() }));
    let gateway = Start::before(
        &upstream,
        "retry = { attempts = 1 }\nbreaker = { consecutive = 5, open = \"1s\", open_max = \"1s\", probes = 1, successes = 1, max_wait = \"0s\" }",
    )
    .go();
    for _ in 0..5 {
        let reply = gateway.get("/api/x");
        assert_eq!((reply.status, reply.text().as_str(), reply.header("seawall-outcome")), (500, "oops", Some("transient")));
    }
    for _ in 0..20 {
        let watch = Watch::start();
        let reply = gateway.get("/api/x");
        let problem = reply.problem();
        assert_eq!((reply.status, &problem["code"], reply.header("retry-after")), (503, &"circuit_open".into(), Some("1")));
        assert_eq!((&problem["upstream"], &problem["endpoint"], &problem["attempts"]), (&"api".into(), &"default".into(), &0.into()));
        assert_eq!(reply.header("seawall-call").map(Into::into), Some(problem["call"].clone()));
        assert!(watch.ms() < 50, "{} ms", watch.ms());
    }
    assert_eq!(upstream.count(), 5);
    std::thread::sleep(std::time::Duration::from_millis(1050));
    assert_eq!(gateway.get("/api/x").status, 500, "one probe goes through and fails");
    assert_eq!(gateway.get("/api/x").status, 503, "which opens it again");
    std::thread::sleep(std::time::Duration::from_millis(1050));
    assert_eq!([200, 200], [(); 2].map(|()| gateway.get("/api/x").status), "a good probe closes it");
    assert_eq!(upstream.count(), 8);
    let log = gateway.log(29);
    assert!(log.iter().any(|line| line["event"] == "attempt" && line["status"] == "circuit_open" && line["decision"] == "reject"));
    assert_eq!(gateway.metric("seawall_rejections_total{stage=\"guard\",code=\"circuit_open\",upstream=\"api\"}"), Some(21.0));
}

#[test]
fn a_half_open_circuit_lets_one_probe_through_at_a_time() {
    let upstream = Upstream::with(|turn| match turn.number {
        0 => turn.say(answer("500 Oops", "", "")),
        _ => turn.pause(300).say(OK),
    });
    let gateway = Start::before(
        &upstream,
        "retry = { attempts = 1 }\nbreaker = { consecutive = 1, open = \"200ms\", probes = 1, successes = 1, max_wait = \"0s\" }",
    )
    .go();
    assert_eq!(gateway.get("/api/x").status, 500);
    std::thread::sleep(std::time::Duration::from_millis(250));
    let mut callers: Vec<_> = (0..8).map(|_| gateway.caller()).collect();
    for caller in &mut callers {
        caller.send("GET /api/x HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    let mut statuses: Vec<u16> = callers.iter_mut().map(|caller| caller.reply().status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 503, 503, 503, 503, 503, 503, 503]);
    assert_eq!(upstream.count(), 2);
}

#[test]
fn a_deadline_is_a_504_and_is_kept() {
    let upstream = Upstream::with(|turn| turn.hang(400));
    let gateway = Start::before(
        &upstream,
        "breaker = { mode = \"off\" }\ntimeout = { attempt = \"150ms\", total = \"400ms\" }\nretry = { attempts = 9, base = \"1ms\", cap = \"1ms\" }",
    )
    .go();
    for (headers, least, most) in [
        ("", 300, 700),
        ("Seawall-Timeout-Ms: 100\r\n", 80, 300),
        ("Seawall-Timeout-Ms: 99999\r\n", 300, 700),
        ("Seawall-Timeout-Ms: soon\r\n", 300, 700),
        ("Seawall-Timeout-Ms: 0\r\n", 0, 50),
    ] {
        let watch = Watch::start();
        let reply = gateway.get_with("/api/x", headers);
        assert_eq!((reply.status, reply.code().as_str(), reply.header("retry-after")), (504, "deadline_exceeded", None));
        assert_eq!(reply.header("proxy-status"), Some("seawall; error=http_response_timeout"));
        assert!((least..most).contains(&watch.ms()), "{headers}: {} ms", watch.ms());
    }
}

#[test]
fn an_upstream_out_of_reach_is_a_502_that_says_why() {
    let policy = "[defaults]\nretry = { attempts = 2, base = \"1ms\", cap = \"1ms\" }\n[upstreams.refused]\nurl = \"http://127.0.0.1:1\"\n[upstreams.nowhere]\nurl = \"http://nowhere.invalid\"\n[upstreams.tls]\nurl = \"https://";
    let upstream = Upstream::with(|turn| turn.send("HTTP/1.1 400 Bad Request\r\n\r\n").close());
    let plain = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = plain.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in plain.incoming() {
            let _gone = std::io::Write::write_all(&mut stream.unwrap(), b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let gateway = Start::with(&format!("{policy}{at}\"\n[upstreams.reset]\nurl = \"http://{}\"\n", upstream.at)).go();
    let no_tls = format!("{} does not speak TLS at this port", at.ip());
    for (name, token, status, cause) in [
        ("refused", "connection_refused", "connect", "127.0.0.1:1 refused the connection"),
        ("nowhere", "dns_error", "dns", "the name nowhere.invalid cannot be resolved ("),
        ("tls", "tls_protocol_error", "tls", &no_tls),
    ] {
        let reply = gateway.post(&format!("/{name}/x"), "", "x");
        assert_eq!((reply.status, reply.code().as_str()), (502, "upstream_unreachable"), "{name}");
        assert_eq!(reply.header("proxy-status"), Some(format!("seawall; error={token}").as_str()));
        assert_eq!(reply.header("seawall-attempts"), Some("2"), "what never left us may go again, whatever the method");
        assert!(reply.problem()["detail"].as_str().unwrap().starts_with(cause), "{}", reply.text());
        eventually("it is logged", || gateway.stdout().contains(&format!("\"status\":\"{status}\"")));
        assert!(gateway.stdout().contains(&format!("\"error\":\"{cause}")), "{}", gateway.stdout());
    }
}

#[test]
fn a_servers_wish_is_honoured_in_every_spelling() {
    // 73
    let cases: [(&str, u128, u128); 7] = [
        ("1", 1000, 1600),
        ("0.4", 400, 900),
        ("date", 900, 2600),
        ("0", 0, 300),
        ("-5", 0, 300),
        (&http_date("1 hour ago"), 0, 300),
        ("soon", 0, 300),
    ];
    for status in ["429 Slow Down", "503 Busy"] {
        for (value, least, most) in cases {
            // A date is a time from when it was written, however long the gateway takes to start.
            let written = Watch::start();
            let value = if value == "date" { http_date("now + 2 seconds") } else { value.to_owned() };
            let (gateway, upstream) = pair(Upstream::replying(&[&answer(status, &format!("Retry-After: {value}\r\n"), ""), OK]));
            let watch = Watch::start();
            let reply = gateway.get_with("/api/x", "Seawall-Timeout-Ms: 60000\r\n");
            assert_eq!((reply.status, upstream.count()), (200, 2), "{status} {value}");
            let since = if value.ends_with("GMT") { &written } else { &watch };
            assert!(since.ms() >= least && watch.ms() < most, "{status} {value}: {} ms", watch.ms());
        }
    }
}

#[test]
fn a_wish_that_does_not_fit_ends_the_call_at_once() {
    let long = answer("503 Busy", "Retry-After: 30\r\n", "busy");
    for (keys, headers) in
        [("retry = { retry_after_cap = \"5s\" }", ""), ("timeout = { total = \"20s\" }", ""), ("", "Seawall-Timeout-Ms: 1000\r\n")]
    {
        let upstream = Upstream::replying(&[&long]);
        let gateway = Start::before(&upstream, keys).go();
        let watch = Watch::start();
        let reply = gateway.get_with("/api/x", headers);
        assert_eq!(
            (reply.status, reply.text().as_str(), reply.header("retry-after")),
            (503, "busy", Some("30")),
            "the upstream's own answer"
        );
        assert!(watch.ms() < 300 && upstream.count() == 1, "{keys}");
    }
}

#[test]
fn what_was_tried_in_vain_ends_with_the_upstreams_own_last_answer() {
    let replies = [0, 2, 3].map(|n| answer(&format!("50{n} No"), &format!("X-N: {n}\r\n"), &format!("body {n}")));
    let (gateway, upstream) = pair(Upstream::replying(&replies.iter().map(String::as_str).collect::<Vec<_>>()));
    let reply = gateway.get("/api/x");
    assert_eq!((reply.status, reply.header("x-n"), reply.text().as_str()), (503, Some("3"), "body 3"));
    assert_eq!((reply.header("seawall-attempts"), upstream.count()), (Some("3"), 3));
    let log = gateway.log(1);
    let attempts: Vec<_> = log.iter().filter(|line| line["event"] == "attempt").collect();
    assert_eq!(attempts.iter().map(|line| line["status"].as_str().unwrap()).collect::<Vec<_>>(), ["500", "502", "503"]);
    assert_eq!(attempts.len(), 3);
    for (number, line) in attempts.iter().enumerate() {
        assert_eq!(line["attempt"].as_u64(), Some(number as u64 + 1));
        assert_eq!(
            (&line["upstream"], &line["endpoint"], &line["caller"], &line["outcome"]),
            (&"api".into(), &"default".into(), &"anonymous".into(), &"transient".into())
        );
        assert_eq!(line["decision"], if number < 2 { "retry" } else { "return" });
        let wait = line["wait_ms"].as_f64().unwrap();
        assert!(line["latency_ms"].is_f64() && line["elapsed_ms"].is_f64() && (0.0..=20.0).contains(&wait), "jitter stays within the cap");
        assert!(line["ts"].as_str().unwrap().ends_with('Z') && line["reason"].is_string() && line["call"] == log[3]["call"]);
    }
    assert_eq!((&log[3]["event"], &log[3]["attempts"], &log[3]["outcome"]), (&"call".into(), &3.into(), &"transient".into()));
    let metrics = gateway.metrics();
    for family in [
        "calls_total",
        "attempts_total",
        "retries_total",
        "call_seconds",
        "attempt_seconds",
        "in_flight",
        "breaker_state",
        "breaker_open_seconds_total",
        "retry_budget_tokens",
        "timeouts_total",
        "rejections_total",
        "key_cooling",
        "shared_state_up",
    ] {
        assert!(metrics.contains(&format!("# TYPE seawall_{family} ")), "{family}");
    }
    assert_eq!(
        gateway.metric("seawall_calls_total{upstream=\"api\",endpoint=\"default\",caller=\"anonymous\",outcome=\"transient\"}"),
        Some(1.0)
    );
}

#[test]
fn an_empty_budget_returns_the_original_answer_at_once() {
    // 75
    let upstream = Upstream::replying(&[&answer("503 Busy", "", "busy")]);
    let gateway = Start::before(
        &upstream,
        "retry = { attempts = 4, base = \"1ms\", cap = \"2ms\", budget = \"10%\", budget_floor = \"1/s\" }\nbreaker = { mode = \"off\" }",
    )
    .go();
    let replies: Vec<_> = (0..20).map(|_| gateway.get("/api/x")).collect();
    assert!(replies.iter().all(|reply| reply.status == 503 && reply.text() == "busy"));
    assert!((20..=26).contains(&upstream.count()), "{} sends for 20 calls", upstream.count());
    assert!(gateway.log(20).iter().any(|line| line["reason"] == "budget_exhausted" && line["decision"] == "return"));
}

#[test]
fn unsafe_methods_are_sent_again_only_as_the_policy_allows() {
    for (policy, headers, sends) in
        [("with-key", "", 1), ("with-key", "Idempotency-Key: k-1\r\n", 3), ("never", "Idempotency-Key: k-1\r\n", 1), ("always", "", 3)]
    {
        let upstream = Upstream::replying(&[&answer("503 Busy", "", "")]);
        let gateway = Start::before(
            &upstream,
            &format!(
                "retry = {{ attempts = 3, base = \"1ms\", cap = \"2ms\", unsafe = \"{policy}\" }}\nidempotency = {{ mode = \"off\" }}"
            ),
        )
        .go();
        assert_eq!(gateway.post("/api/x", headers, "hello").status, 503);
        assert_eq!(upstream.count(), sends, "{policy} {headers}");
        assert!(
            upstream
                .seen()
                .iter()
                .all(|seen| seen.body == b"hello" && seen.all("idempotency-key").len() == usize::from(!headers.is_empty()))
        );
    }
}

#[test]
fn a_body_too_large_to_keep_is_sent_once() {
    let upstream = Upstream::replying(&[&answer("503 Busy", "", "busy")]);
    let gateway = Start::before(&upstream, FAST).server("replay_body = \"1KiB\"").go();
    let request = |body: &str| format!("PUT /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    assert_eq!(gateway.ask(request(&"x".repeat(1000))).status, 503);
    assert_eq!(upstream.count(), 3);
    let reply = gateway.ask(request(&"x".repeat(5000)));
    assert_eq!((reply.status, reply.text().as_str(), upstream.count()), (503, "busy", 4));
    assert!(gateway.log(2).iter().any(|line| line["reason"] == "body_not_replayable"));
}

#[test]
fn a_retry_that_meets_an_open_breaker_says_when_to_come_back() {
    let upstream = Upstream::with(|turn| turn.hang(300));
    let keys = "timeout = { attempt = \"60ms\", total = \"5s\" }\nretry = { attempts = 9, base = \"1ms\", cap = \"1ms\" }\nbreaker = { consecutive = 1, open = \"5s\", max_wait = \"0s\" }";
    let gateway = Start::before(&upstream, keys).go();
    let reply = gateway.get("/api/x");
    assert_eq!((reply.status, reply.code().as_str(), reply.header("retry-after")), (503, "circuit_open", Some("5")));
    assert_eq!(reply.header("seawall-attempts"), Some("1"));
}

#[test]
fn a_request_that_is_turned_away_at_the_door_leaves_a_trace() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, FAST).server("max_body = \"1KiB\"").go();
    let lost = gateway.get("/elsewhere/x");
    assert_eq!((lost.status, lost.code().as_str()), (404, "no_upstream"));
    let id = lost.header("seawall-call").unwrap();
    assert_eq!(lost.problem()["call"], id);
    let big = gateway.ask(format!("PUT /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: 5000\r\n\r\n{}", "x".repeat(5000)));
    assert_eq!((big.status, big.problem()["upstream"].as_str()), (413, Some("api")));
    let log = gateway.log(2);
    assert!(log.iter().any(|line| line["call"] == id && line["outcome"] == "no_upstream" && line["attempts"] == 0), "{log:?}");
    assert_eq!(gateway.metric("seawall_rejections_total{stage=\"admit\",code=\"no_upstream\",upstream=\"none\"}"), Some(1.0));
    assert_eq!(gateway.metric("seawall_rejections_total{stage=\"admit\",code=\"too_large\",upstream=\"api\"}"), Some(1.0));
}

#[test]
fn a_rule_reads_a_compressed_body_and_the_caller_gets_it_as_it_came() {
    let text = r#"{"error":{"code":403,"errors":[{"reason":"quotaExceeded"}]}}"#;
    let mut zipped = GzEncoder::new(Vec::new(), Compression::default());
    zipped.write_all(text.as_bytes()).unwrap();
    let zipped = zipped.finish().unwrap();
    let body = zipped.clone();
    let upstream = Upstream::with(move |turn| {
        let status = if turn.seen.all("x-key") == ["first-key-aaaa"] { "403 No" } else { "200 OK" };
        let head = format!("HTTP/1.1 {status}\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n", body.len());
        turn.send([head.as_bytes(), &body].concat());
    });
    let (auth, _) = KEYS.split_once("[[").unwrap();
    let start = Start::before(&upstream, &format!("preset = \"google\"\n{auth}"));
    let gateway = start.secret("A", "first-key-aaaa").secret("B", "second-key-bbbb").go();
    let reply = gateway.get_with("/api/x", "Accept-Encoding: gzip\r\n");
    let log = gateway.log(1);
    assert_eq!((&log[0]["status"], &log[0]["outcome"], &log[0]["decision"]), (&json!("403"), &json!("quota"), &json!("rotate_key")));
    assert_eq!((reply.status, upstream.count()), (200, 2), "the second key was tried");
    assert_eq!((reply.header("content-encoding"), reply.body.as_slice()), (Some("gzip"), zipped.as_slice()));
}

#[test]
fn a_completion_is_repeated_whatever_the_upstream_is_called() {
    let upstream = Upstream::with(|turn| match turn.number % 2 {
        0 => turn.say(answer("500 No", "", "")),
        _ => turn.say(answer("200 OK", "", "done")),
    });
    let cases = [
        ("openai", "/v1", "/chat/completions"),
        ("openai", "", "/v1/chat/completions?api-version=1"),
        ("gemini", "", "/v1beta/models/gemini-2.5-pro:generateContent"),
        ("anthropic", "", "/v1/messages"),
    ];
    for (preset, base, path) in cases {
        let policy = format!("[upstreams.llm]\nurl = \"http://{}{base}\"\npreset = \"{preset}\"\nretry.base = \"1ms\"\n", upstream.at);
        let gateway = Start::with(&policy).go();
        let reply = gateway.post(&format!("/llm{path}"), "", "{}");
        assert_eq!((reply.status, reply.header("seawall-attempts")), (200, Some("2")), "{preset} {path}");
        // Not everything that is a POST there costs only money.
        let reply = gateway.post("/llm/v1/files", "", "{}");
        assert_eq!((reply.status, reply.header("seawall-attempts")), (500, Some("1")), "{preset}");
        drop(gateway.get("/llm/even"));
    }
}

#[test]
fn stripe_gets_a_key_with_each_post_and_the_same_for_each_send() {
    let upstream = Upstream::with(|turn| match turn.number {
        0 => turn.close(),
        _ => turn.say(answer("200 OK", "", "{}")),
    });
    let policy = format!("[upstreams.stripe]\nurl = \"http://{}\"\npreset = \"stripe\"\nretry.base = \"1ms\"\n", upstream.at);
    let gateway = Start::with(&policy).go();
    let reply = gateway.post("/stripe/v1/customers", "", "a=b");
    assert_eq!((reply.status, reply.header("seawall-attempts")), (200, Some("2")));
    let seen = upstream.seen();
    assert_eq!((seen[0].all("idempotency-key"), seen[0].all("idempotency-key").len()), (seen[1].all("idempotency-key"), 1));
}
