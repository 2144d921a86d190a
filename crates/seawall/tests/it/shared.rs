//! Several instances and one Redis: what one of them learns holds for all, and none of them needs it to serve.

use super::caller::eventually;
use super::gateway::{Gateway, Start};
use super::servers::Redis;
use super::upstream::{OK, Upstream, answer};
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

/// Two instances that have found each other, and are patient: a busy machine must not look like a Redis that is away.
pub(crate) fn pair(redis: &Redis, start: impl Fn() -> Start) -> [Gateway; 2] {
    waiting(redis, "10s", start)
}

fn waiting(redis: &Redis, patience: &str, start: impl Fn() -> Start) -> [Gateway; 2] {
    let keys = format!("shared = \"{}\"\nshared_timeout = \"{patience}\"", redis.url());
    let gateways = [0, 1].map(|_| start().server(&keys).go());
    for gateway in &gateways {
        eventually("both are counted", || gateway.metric("seawall_shared_instances") == Some(2.0));
    }
    gateways
}

pub(crate) fn is_up(gateway: &Gateway) -> bool {
    gateway.metric("seawall_shared_state_up") == Some(1.0)
}

#[test]
fn instances_spend_one_limit_together() {
    let (redis, upstream) = (Redis::start(), Upstream::fine());
    let [a, b] = pair(&redis, || Start::before(&upstream, "limits = [{ name = \"qps\", key = \"upstream\", rate = \"1/m\", burst = 3 }]"));
    let first = a.get("/api/x");
    assert_eq!((first.status, first.header("ratelimit")), (200, Some("\"qps\";r=2;t=60")));
    assert_eq!(b.get("/api/x").header("ratelimit"), Some("\"qps\";r=1;t=120"), "the other instance knows of the first call");
    assert_eq!(a.get("/api/x").status, 200);
    for gateway in [&a, &b] {
        let refused = gateway.get("/api/x");
        assert_eq!((refused.status, refused.code().as_str()), (429, "rate_limited"));
        assert!((50..=60).contains(&refused.header("retry-after").unwrap().parse::<u64>().unwrap()));
        let counted = "seawall_limit_refusals_total{upstream=\"api\",limit=\"qps\",mode=\"enforce\"}";
        assert_eq!(gateway.metric(counted), Some(1.0), "each counts its own");
    }
    assert_eq!(upstream.count(), 3);
}

#[test]
fn a_shadow_of_all_instances_says_what_it_would_have_refused() {
    let (redis, upstream) = (Redis::start(), Upstream::fine());
    let keys = "limits = [{ name = \"wide\", rate = \"100/m\" }, { name = \"soon\", rate = \"1/m\", mode = \"shadow\" }]";
    let [a, b] = pair(&redis, || Start::before(&upstream, keys));
    assert_eq!([a.get("/api/x").status, b.get("/api/x").status, b.get("/api/x").status], [200; 3]);
    let shadowed = |gateway: &Gateway, limit| {
        gateway.metric(&format!("seawall_limit_refusals_total{{upstream=\"api\",limit=\"{limit}\",mode=\"shadow\"}}"))
    };
    assert_eq!([shadowed(&a, "soon"), shadowed(&b, "soon"), shadowed(&b, "wide")], [Some(0.0), Some(2.0), Some(0.0)]);
}

#[test]
fn a_key_that_cools_on_one_instance_is_used_on_none() {
    let redis = Redis::start();
    let upstream = Upstream::with(|turn| {
        let spent = turn.seen.all("x-key") == ["one"];
        turn.say(if spent { answer("403 Forbidden", "", "spent") } else { answer("200 OK", "", "fine") });
    });
    let [a, b] = pair(&redis, || {
        let auth = "[upstreams.api.auth]\ninject = \"header:x-key\"\npick = \"round-robin\"\nkeys = [{ id = \"one\", secret = \"env:ONE\" }, { id = \"two\", secret = \"env:TWO\" }]";
        let rule = "[[upstreams.api.classify]]\nwhen = { status = [403] }\nas = \"quota\"\nscope = \"key\"\nwait = \"60s\"";
        Start::before(&upstream, &format!("{auth}\n{rule}")).secret("ONE", "one").secret("TWO", "two")
    });
    assert_eq!(a.get("/api/x").status, 200);
    for _ in 0..3 {
        assert_eq!([b.get("/api/x").status, a.get("/api/x").status], [200, 200]);
    }
    let spent = upstream.seen().iter().filter(|seen| seen.all("x-key") == ["one"]).count();
    assert_eq!(spent, 1, "one instance found out, the other was told");
    assert_eq!(b.metric("seawall_key_cooling{upstream=\"api\",key=\"one\"}"), Some(1.0));
}

#[test]
fn a_breaker_that_opens_on_one_instance_is_open_on_all() {
    let (redis, upstream) = (Redis::start(), Upstream::replying(&[&answer("500 Oops", "", "")]));
    let keys = "retry.attempts = 1\nbreaker = { consecutive = 2, open = \"60s\", open_max = \"60s\" }";
    let [a, b] = pair(&redis, || Start::before(&upstream, keys));
    assert_eq!([a.get("/api/x").status, b.get("/api/x").status], [500, 500], "one failure each makes two in a row");
    for gateway in [&a, &b] {
        eventually("it is known to be open", || gateway.get("/api/x").status == 503);
    }
    let sent = upstream.count();
    assert_eq!([a.get("/api/x").code(), b.get("/api/x").code()], ["circuit_open", "circuit_open"]);
    assert_eq!(upstream.count(), sent);
    assert_eq!(b.metric("seawall_breaker_state{upstream=\"api\",endpoint=\"default\"}"), Some(2.0));
}

#[test]
fn probes_of_all_instances_together_are_no_more_than_configured() {
    let (redis, at_once) = (Redis::start(), Arc::new((AtomicUsize::new(0), AtomicUsize::new(0))));
    let counted = Arc::clone(&at_once);
    let upstream = Upstream::with(move |turn| {
        if turn.number < 2 {
            return turn.say(answer("500 Oops", "", ""));
        }
        let (now, most) = &*counted;
        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        turn.pause(300);
        now.fetch_sub(1, Ordering::SeqCst);
        turn.say(answer("200 OK", "", "fine"));
    });
    let keys = "retry.attempts = 1\nbreaker = { consecutive = 2, open = \"400ms\", probes = 2, successes = 2, max_wait = \"0s\" }";
    let [a, b] = pair(&redis, || Start::before(&upstream, keys));
    assert_eq!([a.get("/api/x").status, a.get("/api/x").status], [500, 500]);
    for gateway in [&a, &b] {
        eventually("it is known to be open", || gateway.get("/api/x").status == 503);
    }
    std::thread::sleep(std::time::Duration::from_millis(450));
    let (start, callers) = (Barrier::new(20), 0..20);
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let calls: Vec<_> = callers
            .map(|n| {
                let (gateway, start) = (if n % 2 == 0 { &a } else { &b }, &start);
                scope.spawn(move || {
                    start.wait();
                    gateway.get("/api/x").status
                })
            })
            .collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    assert_eq!(at_once.1.load(Ordering::SeqCst), 2, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 2, "{statuses:?}");
}

#[test]
fn instances_fetch_one_token() {
    let redis = Redis::start();
    let provider = Upstream::with(|turn| {
        turn.pause(100).say(answer(
            "200 OK",
            "Content-Type: application/json\r\n",
            "{\"access_token\":\"canary-token\",\"expires_in\":3600}",
        ));
    });
    let upstream = Upstream::fine();
    let auth = format!(
        "[upstreams.api.auth]\nrefresh = {{ kind = \"client-credentials\", token_url = \"http://{}/token\", client_id = \"env:ID\", client_secret = \"env:SECRET\" }}",
        provider.at
    );
    let [a, b] = pair(&redis, || Start::before(&upstream, &auth).secret("ID", "client").secret("SECRET", "canary-secret"));
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..20)
            .map(|n| {
                scope.spawn({
                    let gateway = if n % 2 == 0 { &a } else { &b };
                    move || gateway.get("/api/x").status
                })
            })
            .collect();
        assert!(calls.into_iter().all(|call| call.join().unwrap() == 200));
    });
    assert_eq!(provider.count(), 1);
    assert!(upstream.seen().iter().all(|seen| seen.all("authorization") == ["Bearer canary-token"]));
}

#[test]
fn a_redis_that_dies_costs_nobody_an_answer_and_is_taken_back() {
    let (mut redis, upstream) = (Redis::start(), Upstream::fine());
    let policy = format!(
        "[upstreams.api]\nurl = \"http://{0}\"\nlimits = [{{ name = \"qps\", rate = \"2/m\", burst = 2 }}]\n\
         [upstreams.strict]\nurl = \"http://{0}\"\nlimits = [{{ name = \"money\", rate = \"100/s\", fail = \"closed\" }}]\n\
         [upstreams.free]\nurl = \"http://{0}\"\n",
        upstream.at
    );
    let [a, b] = pair(&redis, || Start::with(&policy));
    redis.kill();
    for gateway in [&a, &b] {
        assert_eq!(gateway.get("/free/x").status, 200);
        assert_eq!([gateway.get("/api/x").status, gateway.get("/api/x").status], [200, 429], "half of the limit is its share");
        let refused = gateway.get("/strict/x");
        assert_eq!((refused.status, refused.code().as_str(), refused.header("retry-after")), (429, "rate_limited", Some("1")));
        eventually("it is known to be away", || !is_up(gateway));
        assert_eq!(gateway.look("/v1/status")["shared"], json!({ "kind": "redis", "up": false }));
        assert_eq!(gateway.stderr().matches("warning: shared state does not answer").count(), 1, "{}", gateway.stderr());
    }
    redis.restart();
    for gateway in [&a, &b] {
        eventually("it is taken back", || is_up(gateway));
        assert_eq!(gateway.get("/strict/x").status, 200);
        assert_eq!(gateway.stderr().matches("shared state is back").count(), 1);
        assert_eq!(gateway.look("/v1/status")["shared"]["up"], true);
        let told = gateway.look("/v1/events/recent")["items"].clone();
        assert_eq!([&told[0]["name"], &told[1]["name"]], ["shared-state-lost"; 2], "{told}");
        assert_eq!((&told[0]["resolves"], &told[1]["severity"]), (&told[1]["id"], &json!("warning")));
    }
    eventually("both are counted", || a.metric("seawall_shared_instances") == Some(2.0));
    let statuses = [a.get("/api/x").status, b.get("/api/x").status, a.get("/api/x").status];
    assert_eq!(statuses, [200, 200, 429], "one limit again");
}

#[test]
fn what_an_emptied_redis_forgot_the_instances_still_know() {
    let mut redis = Redis::start();
    let upstream = Upstream::replying(&[&answer("500 Oops", "", "")]);
    let keys = "retry.attempts = 1\nbreaker = { consecutive = 1, open = \"60s\", open_max = \"60s\" }";
    let [a, b] = pair(&redis, || Start::before(&upstream, keys));
    assert_eq!(a.get("/api/x").status, 500);
    assert_eq!(a.get("/api/x").code(), "circuit_open");
    redis.kill();
    eventually("it is known to be away", || !is_up(&a) && !is_up(&b));
    assert_eq!(a.get("/api/x").code(), "circuit_open", "the copy decides meanwhile");
    redis.restart();
    eventually("it is taken back", || is_up(&a) && is_up(&b));
    assert_eq!(a.get("/api/x").code(), "circuit_open", "and is offered to the server that forgot");
    assert_eq!(b.get("/api/x").code(), "circuit_open", "which tells the others");
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_redis_that_hangs_is_done_without() {
    let (redis, upstream) = (Redis::start(), Upstream::fine());
    let [a, _b] = waiting(&redis, "50ms", || Start::before(&upstream, "limits = [{ name = \"qps\", rate = \"1000/s\" }]"));
    let mut admin = std::net::TcpStream::connect(redis.at).unwrap();
    std::io::Write::write_all(&mut admin, b"CLIENT PAUSE 1500 ALL\r\n").unwrap();
    for _ in 0..20 {
        assert_eq!(a.get("/api/x").status, 200);
    }
    assert!(!is_up(&a));
    eventually("it is taken back", || is_up(&a));
    assert_eq!(a.get("/api/x").status, 200);
}

#[test]
fn a_process_starts_without_its_redis() {
    let (at, upstream) = (super::servers::free_port(), Upstream::fine());
    let gateway =
        Start::before(&upstream, "limits = [{ name = \"qps\", rate = \"1/m\" }]").server(&format!("shared = \"redis://{at}\"")).go();
    assert_eq!([gateway.get("/api/x").status, gateway.get("/api/x").status], [200, 429]);
    eventually("somebody is told", || gateway.stderr().contains("warning: shared state does not answer"));
    assert_eq!(gateway.metric("seawall_shared_state_up"), Some(0.0));
}

#[test]
fn a_hand_on_one_instances_breaker_holds_it_on_all() {
    let (redis, upstream) = (Redis::start(), Upstream::fine());
    let [a, b] = pair(&redis, || Start::before(&upstream, ""));
    assert_eq!([a.get("/api/x").status, b.get("/api/x").status], [200, 200]);
    let force = |state: &str| assert_eq!(a.admin_with("PUT", "/v1/breakers/api", "", &format!("{{\"state\":\"{state}\"}}")).status, 200);
    force("open");
    assert_eq!(a.get("/api/x").code(), "circuit_open");
    eventually("the other one hears of it", || b.get("/api/x").status == 503);
    force("auto");
    assert_eq!([a.get("/api/x").status, b.get("/api/x").status], [200, 200]);
}

#[test]
fn a_key_that_was_put_to_rest_by_hand_rests_on_all_instances() {
    let (redis, upstream) = (Redis::start(), Upstream::fine());
    let [a, b] = pair(&redis, || {
        let auth = "[upstreams.api.auth]\ninject = \"header:x-key\"\npick = \"round-robin\"\nkeys = [{ id = \"one\", secret = \"env:ONE\" }, { id = \"two\", secret = \"env:TWO\" }]";
        Start::before(&upstream, auth).secret("ONE", "one").secret("TWO", "two")
    });
    let used = |key: &str| upstream.seen().iter().filter(|seen| seen.all("x-key") == [key]).count();
    assert_eq!(a.admin_with("PUT", "/v1/keys/api/one", "", "{\"state\":\"cooling\"}").status, 200);
    for gateway in [&b, &a, &b, &a] {
        assert_eq!(gateway.get("/api/x").status, 200);
    }
    assert_eq!((used("one"), used("two")), (0, 4));
    assert_eq!(b.admin_with("PUT", "/v1/keys/api/one", "", "{\"state\":\"ready\"}").status, 200);
    for gateway in [&b, &a] {
        assert_eq!(gateway.get("/api/x").status, 200);
    }
    assert_eq!((used("one"), used("two")), (1, 5), "they take turns again");
}

#[test]
fn a_rest_that_was_ended_does_not_come_back_with_an_empty_redis() {
    let (mut redis, upstream) = (Redis::start(), Upstream::fine());
    let [a, b] = pair(&redis, || {
        let auth = "[upstreams.api.auth]\ninject = \"header:x-key\"\nmax_wait = \"1ms\"\nkeys = [{ id = \"one\", secret = \"env:ONE\" }]";
        Start::before(&upstream, auth).secret("ONE", "one")
    });
    let put = |state: &str| a.admin_with("PUT", "/v1/keys/api/one", "", &format!("{{\"state\":\"{state}\"}}")).status;
    assert_eq!(put("cooling"), 200);
    assert_eq!(b.get("/api/x").code(), "keys_exhausted");
    assert_eq!(put("ready"), 200);
    eventually("the other one hears of it without a call", || b.look("/v1/keys")["items"][0]["state"] == "ready");
    redis.kill();
    redis.restart();
    eventually("it is taken back", || is_up(&b));
    assert_eq!([b.get("/api/x").status, a.get("/api/x").status], [200, 200]);
}

#[test]
fn a_pause_that_a_server_asked_for_is_kept_by_all_instances() {
    for scope in ["endpoint", "upstream"] {
        let (redis, busy) = (Redis::start(), answer("503 Busy", "Retry-After: 30\r\n", ""));
        let upstream = Upstream::replying(&[OK, OK, &busy]);
        let [a, b] = pair(&redis, || {
            let rule = "[[upstreams.api.classify]]\nwhen = { status = [503] }\nas = \"transient\"\nwait = \"retry-after\"\nscope";
            Start::before(&upstream, &format!("retry = {{ attempts = 1, retry_after_cap = \"1s\" }}\n{rule} = \"{scope}\"\n"))
        });
        let hurry = "Seawall-Timeout-Ms: 100\r\n";
        assert_eq!([b.get("/api/x").status, a.get("/api/x").status, a.get("/api/x").status], [200, 200, 503]);
        eventually("the other one hears of it", || b.get_with("/api/x", hurry).outcome() == "paused");
        let (sent, mut paused) = (upstream.count(), 0);
        for gateway in [&a, &b].repeat(20) {
            let reply = gateway.get_with("/api/x", hurry);
            if reply.outcome() == "paused" {
                let wait: u64 = reply.header("retry-after").unwrap().parse().unwrap();
                assert!((20..=31).contains(&wait), "{wait}");
                paused += 1;
            }
        }
        let probes = upstream.count() - sent;
        assert!(paused >= 36 && probes <= 4, "a probe now and then: {paused} refused, {probes} sent");
    }
}

#[test]
fn a_key_that_was_leased_for_nothing_gets_its_limit_back() {
    let (redis, upstream) = (Redis::start(), Upstream::fine());
    let policy = "limits = [{ name = \"each\", key = \"key\", rate = \"1/m\", burst = 1 }]\n\
                  [upstreams.api.auth]\ninject = \"header:x-key\"\nmax_wait = \"0s\"\n\
                  keys = [{ id = \"one\", secret = \"env:ONE\" }]";
    let start = || Start::before(&upstream, policy).secret("ONE", "one");
    let [a, b] = pair(&redis, start);
    let alone = start().go();
    for (gateway, other) in [(&alone, &alone), (&a, &b)] {
        let force = |state: &str| gateway.admin_with("PUT", "/v1/breakers/api", "", &format!("{{\"state\":\"{state}\"}}")).status;
        assert_eq!(force("open"), 200);
        for _ in 0..3 {
            assert_eq!(gateway.get("/api/x").code(), "circuit_open");
        }
        assert_eq!(force("auto"), 200);
        assert_eq!(other.get("/api/x").status, 200, "nothing had been sent");
        assert_eq!(gateway.get("/api/x").code(), "keys_exhausted");
    }
}
