//! A refusal of one caller's call does not fail the others: they wait for obstacles that end soon.

use super::caller::{Reply, Watch, eventually};
use super::forwarding::FAST;
use super::gateway::{Gateway, Start};
use super::upstream::{OK, Upstream, answer};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const ONE_KEY: &str = "[upstreams.api.auth]\ninject = \"header:X-Key\"\nkeys = [{ id = \"a\", secret = \"env:A\" }]\n";

/// Starts concurrent calls, a few milliseconds apart, whatever the results of those before.
fn side_by_side(gateway: &Gateway, count: usize, gap: Duration, headers: &str) -> Vec<Reply> {
    let start = &Watch::start();
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..count)
            .map(|n| {
                scope.spawn(move || {
                    let due = gap * u32::try_from(n).unwrap();
                    std::thread::sleep(due.saturating_sub(elapsed(start)));
                    gateway.ask(format!("GET /api/x HTTP/1.1\r\nHost: h\r\n{headers}\r\n"))
                })
            })
            .collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    })
}

fn elapsed(watch: &Watch) -> Duration {
    Duration::from_millis(u64::try_from(watch.ms()).unwrap())
}

fn failed(replies: &[Reply]) -> Vec<String> {
    replies.iter().filter(|reply| reply.status != 200).map(|reply| format!("{reply:?}")).collect()
}

#[test]
fn one_throttled_call_costs_the_others_nothing_but_time() {
    let throttle = answer("429 Slow", "Retry-After: 1\r\n", "");
    for policy in [&format!("preset = \"openai\"\n{ONE_KEY}"), "preset = \"openai\"\n", "preset = \"aws\"\n", ""] {
        let upstream = Upstream::replying(&[&throttle, OK]);
        let gateway = Start::before(&upstream, policy).secret("A", "first-key-aaaa").go();
        let replies = side_by_side(&gateway, 30, Duration::from_millis(10), "");
        assert_eq!(failed(&replies), [""; 0], "{policy}");
        assert_eq!(upstream.count(), 31, "{policy}");
        if !policy.contains("aws") {
            assert!(replies.iter().any(|reply| reply.header("seawall-waited-ms").is_some()), "{policy}: somebody waited");
        }
    }
}

#[test]
fn a_blip_costs_no_more_calls_than_it_hits() {
    for (policy, opens) in [("", false), ("breaker.consecutive = 5\n", true)] {
        let down = std::sync::Mutex::new(None::<Watch>);
        let upstream = Upstream::with(move |turn| {
            let since = elapsed(down.lock().unwrap().get_or_insert_with(Watch::start));
            let blip = (Duration::from_millis(200)..Duration::from_millis(700)).contains(&since);
            turn.say(if blip { answer("503 Down", "", "") } else { OK.to_owned() });
        });
        let gateway = Start::before(&upstream, policy).go();
        let replies = side_by_side(&gateway, 150, Duration::from_millis(10), "");
        assert_eq!(failed(&replies), [""; 0], "{policy}");
        assert!(!opens || gateway.stdout().contains("breaker"), "the breaker did its part");
    }
}

#[test]
fn a_route_that_always_fails_does_not_take_the_others_along() {
    let upstream = Upstream::with(|turn| {
        let is_broken = turn.seen.line().contains("/broken");
        turn.say(if is_broken { answer("500 Broken", "", "") } else { OK.to_owned() });
    });
    let gateway = Start::before(&upstream, "").go();
    let replies = std::thread::scope(|scope| {
        let healthy = (0..100).filter_map(|number| {
            std::thread::sleep(Duration::from_millis(20));
            let is_healthy = number % 5 == 4;
            let call = scope.spawn({
                let gateway = &gateway;
                move || if is_healthy { gateway.get("/api/healthy") } else { gateway.post("/api/broken", "", "") }
            });
            is_healthy.then_some(call)
        });
        healthy.collect::<Vec<_>>().into_iter().map(|call| call.join().unwrap()).collect::<Vec<Reply>>()
    });
    assert_eq!(failed(&replies), [""; 0]);
}

#[test]
fn a_call_that_waits_while_the_program_ends_is_told_so() {
    let upstream = Upstream::replying(&[&answer("503 Down", "", "")]);
    let policy = "timeout = { total = \"2m\" }\nretry = { attempts = 1 }\nbreaker = { consecutive = 1, open = \"30s\", open_max = \"30s\", max_wait = \"1m\" }\n";
    let gateway = Start::before(&upstream, policy).server("drain = \"2s\"\n").go();
    assert_eq!(gateway.get("/api/x").status, 503);
    std::thread::scope(|scope| {
        let call = scope.spawn(|| gateway.get("/api/x"));
        eventually("the call waits", || gateway.metric("seawall_waiting{upstream=\"api\"}") == Some(1.0));
        gateway.signal("TERM");
        let reply = call.join().unwrap();
        assert_eq!((reply.status, reply.code().as_str()), (503, "overloaded"), "{reply:?}");
        assert!(reply.header("retry-after").is_some() && reply.header("seawall-waited-ms").is_some(), "{reply:?}");
    });
    eventually("its line says why", || gateway.stdout().contains(r#""reason":"draining""#));
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_throttle_of_a_callers_own_key_binds_that_caller_alone() {
    for theirs in ["Authorization: Bearer one\r\n", "X-Api-Key: one\r\n", ""] {
        let upstream = Upstream::with(|turn| {
            let is_two = turn.seen.has("authorization") && turn.seen.all("authorization") == ["Bearer two"];
            turn.say(if is_two { OK.to_owned() } else { answer("429 Slow", "Retry-After: 90\r\n", "") });
        });
        let gateway = Start::before(&upstream, "").go();
        let ask = |headers: &str| gateway.ask(format!("GET /api/x HTTP/1.1\r\nHost: h\r\nSeawall-Timeout-Ms: 300\r\n{headers}\r\n"));
        assert_eq!(ask(theirs).status, 429, "{theirs}");
        // Now and then a call is the probe, and gets the upstream's own refusal.
        eventually("their calls wait", || ask(theirs).outcome() == "paused");
        let other = ask("Authorization: Bearer two\r\n");
        assert_eq!((other.status, other.header("seawall-waited-ms")), (200, None), "{theirs}");
        assert_eq!(gateway.look("/v1/pauses")["items"][0]["credentials"], 1);
    }
}

#[test]
fn a_throttle_of_our_own_token_binds_every_caller() {
    let upstream = Upstream::with(|turn| {
        let is_token = turn.seen.line().contains("/token");
        let token = || answer("200 OK", "", r#"{"access_token":"token-of-ours","expires_in":3600}"#);
        turn.say(if is_token { token() } else { answer("429 Slow", "Retry-After: 90\r\n", "") });
    });
    let auth = format!(
        "[upstreams.api.auth]\nrefresh = {{ kind = \"client-credentials\", token_url = \"http://{}/token\", client_id = \"env:A\", \
         client_secret = \"env:A\" }}\n",
        upstream.at
    );
    let gateway = Start::before(&upstream, &auth).secret("A", "client-secret").go();
    let ask = |user: &str| {
        gateway.ask(format!(
            "GET /api/x HTTP/1.1\r\nHost: h\r\nSeawall-Timeout-Ms: 300\r\nAuthorization: Bearer {user}\r\nCookie: sid={user}\r\n\r\n"
        ))
    };
    assert_eq!(ask("one").status, 429);
    // Now and then a call is the probe, and gets the upstream's own refusal.
    let paused = (0..20).filter(|n| ask(&n.to_string()).outcome() == "paused").count();
    assert!(paused >= 10, "{paused} of 20 callers waited for the token that all of them share");
}

#[test]
fn a_throttled_revalidation_binds_the_caller_whose_credential_it_had() {
    let answered = AtomicBool::new(false);
    let upstream = Upstream::with(move |turn| {
        let is_theirs = turn.seen.has("authorization");
        let first = is_theirs && !answered.swap(true, Ordering::SeqCst);
        let kept = || answer("200 OK", "Cache-Control: max-age=0, stale-while-revalidate=600\r\n", "kept");
        turn.say(match is_theirs {
            true if first => kept(),
            true => answer("429 Slow", "Retry-After: 90\r\n", ""),
            false => OK.to_owned(),
        });
    });
    let gateway = Start::before(&upstream, "cache = { ttl = \"0s\", stale_while_revalidate = \"10m\" }\n").go();
    let theirs =
        |path: &str| gateway.ask(format!("GET {path} HTTP/1.1\r\nHost: h\r\nSeawall-Timeout-Ms: 300\r\nAuthorization: Bearer one\r\n\r\n"));
    assert_eq!(theirs("/api/kept").status, 200);
    assert_eq!(theirs("/api/kept").status, 200, "the old answer, and a new one is fetched");
    eventually("a pause begins", || gateway.look("/v1/pauses")["items"][0]["credentials"] == 1);
    let other = gateway.get_with("/api/other", "Seawall-Timeout-Ms: 300\r\n");
    assert_eq!((other.status, other.header("seawall-waited-ms")), (200, None));
    eventually("their other calls wait", || theirs("/api/other").outcome() == "paused");
}

#[test]
fn a_call_that_waits_leaves_its_slot_in_the_pool_to_others() {
    let upstream = Upstream::with(|turn| {
        let throttled = turn.seen.all("authorization") == ["Bearer one"];
        turn.say(if throttled { answer("429 Slow", "Retry-After: 20\r\n", "") } else { OK.to_owned() });
    });
    let pool = "pool = \"p\"\nretry = { attempts = 1 }\n[pools.p]\nconcurrent = 2\nqueue = 0\n";
    let gateway = Start::before(&upstream, pool).go();
    let ask = |key: &str| format!("GET /api/x HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {key}\r\n\r\n");
    assert_eq!(gateway.ask(ask("one")).status, 429);
    let mut waiting: Vec<_> = (0..4).map(|_| gateway.caller()).collect();
    for caller in &mut waiting {
        caller.send(ask("one"));
    }
    eventually("they wait", || gateway.metric("seawall_waiting{upstream=\"api\"}").is_some_and(|waiting| waiting >= 2.0));
    for _ in 0..10 {
        assert_eq!(gateway.ask(ask("two")).status, 200);
    }
    drop(waiting);
    eventually("the places are given back", || gateway.metric("seawall_waiting{upstream=\"api\"}") == Some(0.0));
}

#[test]
fn a_caller_that_fills_the_line_makes_room_for_another() {
    let upstream = Upstream::replying(&[&answer("503 Down", "", "")]);
    let policy = "waiting = 4\ntimeout = { total = \"2m\" }\nretry = { attempts = 1 }\nbreaker = { consecutive = 1, open = \"30s\", open_max = \"30s\", max_wait = \"1m\" }\n";
    let gateway = Start::before(&upstream, policy).go();
    assert_eq!(gateway.get("/api/x").status, 503);
    let ask = |key: &str| {
        let mut caller = gateway.caller();
        caller.send(format!("GET /api/{key} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {key}\r\n\r\n"));
        caller
    };
    let waiting = || gateway.metric("seawall_waiting{upstream=\"api\"}");
    let ones: Vec<_> = (0..4).map(|_| ask("one")).collect();
    eventually("one caller has all places", || waiting() == Some(4.0));
    assert_eq!(ask("one").reply().code(), "circuit_open");
    let twos: Vec<_> = (0..2).map(|_| ask("two")).collect();
    let refused = |key: &str| {
        let is_refusal = |line: &&str| line.contains(r#""event":"call""#) && line.contains(r#""outcome":"circuit_open""#);
        gateway.stdout().lines().filter(is_refusal).filter(|line| line.contains(key)).count()
    };
    eventually("two calls of the first caller leave", || (refused("/one"), refused("/two")) == (3, 0));
    assert_eq!(waiting(), Some(4.0));
    assert_eq!(ask("two").reply().code(), "circuit_open", "both have as many places now");
    drop((ones, twos));
    eventually("the places are given back", || waiting() == Some(0.0));
}

#[test]
fn an_upload_that_waits_leaves_the_line_with_its_caller() {
    let upstream = Upstream::replying(&[&answer("503 Down", "", "")]);
    let policy = "timeout = { total = \"2m\" }\nretry = { attempts = 1 }\nbreaker = { consecutive = 1, open = \"30s\", open_max = \"30s\", max_wait = \"1m\" }\n";
    let gateway = Start::before(&upstream, policy).server("replay_body = \"1KiB\"\n").go();
    assert_eq!(gateway.get("/api/x").status, 503);
    let mut caller = gateway.caller();
    caller.send(format!("POST /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: 8192\r\n\r\n{}", "x".repeat(8_192)));
    eventually("the upload waits", || gateway.metric("seawall_waiting{upstream=\"api\"}") == Some(1.0));
    drop(caller);
    eventually("its place is given back", || gateway.metric("seawall_waiting{upstream=\"api\"}") == Some(0.0));
    eventually("its line says why", || gateway.stdout().contains(r#""outcome":"cancelled""#));
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_call_that_is_not_retried_says_why() {
    let upstream = Upstream::replying(&[&answer("503 Busy", "", "")]);
    let gateway = Start::before(&upstream, FAST).go();
    let post = gateway.ask("POST /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx");
    assert_eq!((post.status, post.header("seawall-reason")), (503, Some("post_without_key")));
    assert_eq!(gateway.get("/api/x").header("seawall-reason"), Some("attempts_exhausted"));
}
