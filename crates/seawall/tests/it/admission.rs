//! Admission: callers, limits and pools of one process, on the wire.

use super::caller::{Caller, Reply, eventually};
use super::gateway::{Gateway, Start};
use super::upstream::{OK, Upstream, answer};

fn get(gateway: &Gateway, path: &str, headers: &str) -> Reply {
    Caller::connect(gateway.at).send(format!("GET {path} HTTP/1.1\r\nHost: here\r\n{headers}\r\n")).reply()
}

/// Answers after a while, so that calls overlap.
fn slow(ms: u64) -> Upstream {
    Upstream::with(move |turn| {
        turn.pause(ms).send(answer("200 OK", "", "fine"));
    })
}

#[test]
fn a_limit_may_look_at_a_header_that_nobody_else_does() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, "limits = [{ name = \"each\", key = \"header:user-agent\", rate = \"1/m\" }]").go();
    let asks = |agent: &str| gateway.ask(format!("GET /api/x HTTP/1.1\r\nHost: h\r\nUser-Agent: {agent}\r\n\r\n")).status;
    assert_eq!([asks("a"), asks("a"), asks("b"), asks("b")], [200, 429, 200, 429]);
}

#[test]
fn a_limit_may_count_by_credential_and_header_at_once() {
    let upstream = Upstream::fine();
    let auth = "[upstreams.api.auth]\ninject = \"header:x-key\"\nkeys = [{ id = \"a\", secret = \"env:KEY\" }]";
    let limit = "limits = [{ name = \"each\", key = [\"key\", \"header:user-agent\"], rate = \"1/m\" }]";
    // A key that cools for longer than the call's deadline means an immediate refusal.
    let gateway = Start::before(&upstream, &format!("timeout.total = \"30s\"\n{limit}\n{auth}")).secret("KEY", "the-real-key").go();
    let asks = |agent: &str| gateway.ask(format!("GET /api/x HTTP/1.1\r\nHost: h\r\nUser-Agent: {agent}\r\n\r\n")).status;
    assert_eq!([asks("a"), asks("a"), asks("b"), asks("b")], [200, 429, 200, 429]);
}

#[test]
fn what_is_left_is_said_once_whatever_the_upstream_says() {
    let upstream = Upstream::replying(&[&answer("200 OK", "RateLimit: \"a\";r=1\r\nRateLimit-Policy: \"a\";q=9\r\n", "")]);
    let gateway = Start::before(&upstream, "limits = [{ name = \"qps\", key = \"upstream\", rate = \"1/m\", burst = 2 }]").go();
    let reply = get(&gateway, "/api/x", "");
    let named: Vec<&str> =
        reply.headers.iter().filter(|(name, _)| name.starts_with("ratelimit")).map(|(_, value)| value.as_str()).collect();
    assert_eq!(named, ["\"qps\";q=1;w=60", "\"qps\";r=1;t=60"]);
}

#[test]
fn a_limit_refuses_with_the_time_to_come_back_and_says_what_is_left() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, "limits = [{ name = \"qps\", key = \"upstream\", rate = \"1/m\", burst = 2 }]").go();
    let first = get(&gateway, "/api/x", "");
    assert_eq!(
        (first.status, first.header("ratelimit-policy"), first.header("ratelimit")),
        (200, Some("\"qps\";q=1;w=60"), Some("\"qps\";r=1;t=60"))
    );
    assert_eq!(get(&gateway, "/api/x", "").status, 200);
    let refused = get(&gateway, "/api/x", "");
    assert_eq!((refused.status, refused.code().as_str()), (429, "rate_limited"));
    let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((50..=60).contains(&seconds), "{seconds}");
    assert_eq!(refused.problem()["retry_after_seconds"], seconds);
    assert_eq!(refused.problem()["error"], "rate_limited");
    assert!(refused.header("ratelimit").unwrap().starts_with("\"qps\";r=0;t="));
    assert_eq!(upstream.count(), 2, "nothing that is refused goes upstream");
}

#[test]
fn layers_take_all_or_nothing() {
    let upstream = Upstream::fine();
    let policy = format!(
        "[[limits]]\nname = \"everyone\"\nkey = \"global\"\nrate = \"3/m\"\n[upstreams.api]\nurl = \"http://{}\"\nlimits = [{{ name = \"each\", key = \"header:x-account\", rate = \"1/m\" }}]",
        upstream.at
    );
    let gateway = Start::with(&policy).go();
    let ask = |account: &str| get(&gateway, "/api/x", &format!("X-Account: {account}\r\n")).status;
    assert_eq!([ask("a"), ask("a"), ask("a"), ask("b"), ask("c"), ask("d")], [200, 429, 429, 200, 200, 429]);
}

#[test]
fn a_shadow_limit_counts_and_never_refuses() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, "limits = [{ name = \"soon\", rate = \"1/m\", mode = \"shadow\" }]").go();
    assert_eq!([get(&gateway, "/api/x", "").status, get(&gateway, "/api/x", "").status], [200, 200]);
    let metrics = gateway.metrics();
    for (mode, count) in [("shadow", 1), ("enforce", 0)] {
        let line = format!("seawall_limit_refusals_total{{upstream=\"api\",limit=\"soon\",mode=\"{mode}\"}} {count}");
        assert!(metrics.lines().any(|found| found == line), "{line}\n{metrics}");
    }
}

#[test]
fn a_call_that_costs_more_than_the_limit_holds_is_not_told_to_wait() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, "cost = 20\nlimits = [{ name = \"qps\", rate = \"50/s\", burst = 10 }]").go();
    let refused = get(&gateway, "/api/x", "");
    assert_eq!((refused.status, refused.header("retry-after")), (429, None));
    assert!(refused.problem()["detail"].as_str().unwrap().contains("more than its limit ever holds"));
}

#[test]
fn callers_are_told_apart_by_their_tokens() {
    let upstream = Upstream::fine();
    let policy = format!(
        "[callers.acme]\ntoken = \"env:ACME\"\n[callers.umbrella]\ntoken = \"env:UMBRELLA\"\n[upstreams.api]\nurl = \"http://{}\"\nlimits = [{{ name = \"each\", key = \"caller\", rate = \"1/m\" }}]",
        upstream.at
    );
    let gateway =
        Start::with(&policy).server("require_caller = true").secret("ACME", "acme-token-canary").secret("UMBRELLA", "umbrella-token").go();
    let unknown = get(&gateway, "/api/x", "");
    assert_eq!((unknown.status, unknown.code().as_str()), (401, "caller_unknown"));
    assert_eq!(get(&gateway, "/api/x", "Authorization: Bearer acme-token-canar\r\n").status, 401);
    assert_eq!(get(&gateway, "/api/x", "Authorization: Bearer acme-token-canary\r\n").status, 200);
    assert_eq!(get(&gateway, "/api/x", "Seawall-Token: acme-token-canary\r\n").status, 429, "the same caller by the other header");
    assert_eq!(get(&gateway, "/api/x", "Seawall-Token: umbrella-token\r\n").status, 200);
    assert!(!upstream.raw().contains("token"), "tokens are for us: {}", upstream.raw());
}

#[test]
fn an_adaptive_pool_follows_results_without_a_breaker() {
    let upstream = Upstream::with(|turn| match turn.seen.line() {
        "GET /broken HTTP/1.1" => turn.say("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"),
        _ => turn.pause(1_500).say(OK),
    });
    let policy = format!(
        "[pools.own]\nconcurrent = 4\nadaptive = true\n[upstreams.api]\nurl = \"http://{}\"\npool = \"own\"\nretry.attempts = 1\nbreaker.mode = \"off\"",
        upstream.at
    );
    let gateway = Start::with(&policy).go();
    // It begins with two places. A failure takes one.
    assert_eq!(get(&gateway, "/api/broken", "").status, 500);
    let mut first = gateway.caller();
    first.send("GET /api/x HTTP/1.1\r\nHost: here\r\n\r\n");
    eventually("the first is upstream", || upstream.count() == 2);
    assert_eq!(get(&gateway, "/api/x", "").code(), "overloaded");
    assert_eq!(first.reply().status, 200);
}

#[test]
fn a_pool_lets_so_many_in_and_turns_the_rest_away() {
    let upstream = slow(400);
    let policy = format!(
        "[pools.small]\nconcurrent = 1\nqueue = 1\nqueue_timeout = \"5s\"\n[upstreams.api]\nurl = \"http://{}\"\npool = \"small\"",
        upstream.at
    );
    let gateway = Start::with(&policy).go();
    let call = |at| std::thread::spawn(move || Caller::connect(at).send("GET /api/x HTTP/1.1\r\nHost: here\r\n\r\n").reply());
    let first = call(gateway.at);
    eventually("the first is upstream", || upstream.count() == 1);
    let second = call(gateway.at);
    eventually("the second is in line", || {
        let metrics = Caller::connect(gateway.admin).send("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").reply().text();
        metrics.contains("seawall_pool_saturation{pool=\"small\"} 1\n")
    });
    let third = get(&gateway, "/api/x", "");
    assert_eq!((third.status, third.code().as_str()), (503, "overloaded"));
    assert!((1..=3).contains(&third.header("retry-after").unwrap().parse::<u64>().unwrap()));
    assert_eq!((first.join().unwrap().status, second.join().unwrap().status), (200, 200));
}

#[test]
fn who_waits_too_long_for_a_place_is_told_so() {
    let upstream = slow(700);
    let policy = format!(
        "[pools.small]\nconcurrent = 1\nqueue = 5\nqueue_timeout = \"100ms\"\n[upstreams.api]\nurl = \"http://{}\"\npool = \"small\"",
        upstream.at
    );
    let gateway = Start::with(&policy).go();
    let at = gateway.at;
    let first = std::thread::spawn(move || Caller::connect(at).send("GET /api/x HTTP/1.1\r\nHost: here\r\n\r\n").reply().status);
    eventually("the first is upstream", || upstream.count() == 1);
    let second = get(&gateway, "/api/x", "");
    assert_eq!((second.status, second.code().as_str()), (503, "overloaded"));
    assert_eq!(first.join().unwrap(), 200);
    assert_eq!(get(&gateway, "/api/x", "").status, 200, "the place came back");
}

#[test]
fn a_caller_who_leaves_gives_its_place_back() {
    let upstream = slow(300);
    let policy = format!(
        "[pools.small]\nconcurrent = 1\n[upstreams.api]\nurl = \"http://{}\"\npool = \"small\"\ntimeout.total = \"30s\"",
        upstream.at
    );
    let gateway = Start::with(&policy).go();
    let mut leaver = Caller::connect(gateway.at);
    leaver.send("GET /api/x HTTP/1.1\r\nHost: here\r\n\r\n");
    eventually("it is upstream", || upstream.count() == 1);
    drop(leaver);
    eventually("the place is free again", || get(&gateway, "/api/x", "").status == 200);
}

#[test]
fn a_place_is_held_for_as_long_as_the_answer_is_read() {
    let upstream = Upstream::with(|turn| {
        turn.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na").pause(500).send("b");
    });
    let policy = format!("[pools.small]\nconcurrent = 1\n[upstreams.api]\nurl = \"http://{}\"\npool = \"small\"", upstream.at);
    let gateway = Start::with(&policy).go();
    let mut reader = Caller::connect(gateway.at);
    reader.send("GET /api/x HTTP/1.1\r\nHost: here\r\n\r\n");
    eventually("it is upstream", || upstream.count() == 1);
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(get(&gateway, "/api/x", "").code(), "overloaded");
    assert_eq!(gateway.metric("seawall_in_flight{upstream=\"api\",pool=\"small\"}"), Some(1.0));
    assert_eq!(reader.reply().text(), "ab");
    eventually("the place is free again", || gateway.metric("seawall_pool_saturation{pool=\"small\"}") == Some(0.0));
}

#[test]
fn a_limit_on_keys_counts_each_credential_and_passes_over_what_is_spent() {
    let upstream = Upstream::fine();
    let keys = "limits = [{ name = \"each\", key = \"key\", rate = \"2/m\", burst = 2 }]\n[upstreams.api.auth]\ninject = \"header:X-Key\"\nmax_wait = \"0s\"\nkeys = [{ id = \"a\", secret = \"env:A\" }, { id = \"b\", secret = \"env:B\" }]";
    let gateway = Start::before(&upstream, keys).secret("A", "secret-of-a").secret("B", "secret-of-b").go();
    let statuses: Vec<u16> = (0..5).map(|_| get(&gateway, "/api/x", "").status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 429]);
    let mut used: Vec<String> = upstream.seen().iter().map(|seen| seen.all("x-key").join("")).collect();
    used.sort();
    assert_eq!(used, ["secret-of-a", "secret-of-a", "secret-of-b", "secret-of-b"]);
    let refused = get(&gateway, "/api/x", "");
    assert_eq!(refused.code(), "keys_exhausted");
    let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((20..=30).contains(&seconds), "{seconds}");
}

#[test]
fn the_lowest_priority_is_shed_first_and_before_its_body_is_read() {
    let upstream = slow(1500);
    let policy = format!(
        "[pools.low]\nconcurrent = 1\nqueue = 1\nqueue_timeout = \"5s\"\npriority = 1\n[pools.high]\nconcurrent = 8\nqueue = 10\nqueue_timeout = \"5s\"\npriority = 9\n\
         [upstreams.api]\nurl = \"http://{}\"\npool = \"high\"\n[[upstreams.api.endpoints]]\nname = \"report\"\nmatch = \"POST /report\"\npool = \"low\"",
        upstream.at
    );
    let gateway = Start::with(&policy).go();
    let busy: Vec<Caller> = (0..18)
        .map(|_| {
            let mut caller = gateway.caller();
            caller.send("GET /api/x HTTP/1.1\r\nHost: here\r\n\r\n");
            caller
        })
        .collect();
    eventually("the pools are nearly full", || gateway.metric("seawall_pool_saturation{pool=\"high\"}") == Some(1.0));
    // Half a body: a gateway that waited for the rest would never respond.
    let mut report = gateway.caller();
    report.send("POST /api/report HTTP/1.1\r\nHost: here\r\nContent-Length: 1000000\r\n\r\nhalf");
    let shed = report.reply();
    assert_eq!((shed.status, shed.code().as_str()), (503, "overloaded"));
    assert!(shed.header("retry-after").is_some());
    let line = gateway.log(1).into_iter().find(|line| line["outcome"] == "overloaded").unwrap();
    assert_eq!((line["reason"].as_str(), line["endpoint"].as_str()), (Some("shed"), Some("report")));
    drop(busy);
    eventually("there is room again", || gateway.metric("seawall_pool_saturation{pool=\"high\"}") == Some(0.0));
    assert_eq!(gateway.post("/api/report", "", "x").status, 200);
}

/// Two programs in a chain, as with one gateway per service: the inner one learns which requests are repeats.
#[test]
fn a_seawall_behind_a_seawall_adds_its_retries_and_does_not_multiply_them() {
    let upstream = Upstream::replying(&[&answer("503 Busy", "", "")]);
    let retries = "retry = { attempts = 3, base = \"1ms\", cap = \"2ms\" }\nbreaker = { mode = \"off\" }";
    let inner = Start::before(&upstream, retries).go();
    for (seawall, sends, repeats) in [(true, 5, 2.0), (false, 9, 2.0)] {
        let before = upstream.count();
        let outer = Start::with(&format!("[upstreams.next]\nurl = \"http://{}/api\"\nseawall = {seawall}\n{retries}", inner.at)).go();
        assert_eq!(get(&outer, "/next/x", "").status, 503);
        assert_eq!((upstream.count() - before, inner.metric("seawall_repeats_total{upstream=\"api\"}")), (sends, Some(repeats)));
    }
    assert!(!upstream.raw().contains("seawall-attempt"), "whoever is not declared a Seawall hears nothing of it");
}
