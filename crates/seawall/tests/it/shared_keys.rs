//! Idempotency keys of several instances and one Redis: they are one, and what an instance has done it knows without.

use super::caller::{Caller, Reply, eventually};
use super::gateway::{Gateway, Start};
use super::servers::Redis;
use super::shared::{is_up, pair};
use super::upstream::{OK, Upstream, answer};
use std::sync::Barrier;
use std::thread;

fn keyed(gateway: &Gateway, key: &str, body: &str) -> Reply {
    gateway.post("/api/pay", &format!("Idempotency-Key: {key}\r\n"), body)
}

fn numbering() -> Upstream {
    Upstream::with(|turn| {
        let body = format!("payment {}", turn.number);
        turn.say(answer("201 Created", "Location: /payments/7\r\n", &body));
    })
}

#[test]
fn a_call_that_one_instance_made_is_answered_by_the_other() {
    let (redis, upstream) = (Redis::start(), numbering());
    let [a, b] = pair(&redis, || Start::before(&upstream, ""));
    assert_eq!(keyed(&a, "k", "x").text(), "payment 0");
    for gateway in [&b, &a, &b] {
        let again = keyed(gateway, "k", "x");
        assert_eq!((again.status, again.text().as_str(), again.header("location")), (201, "payment 0", Some("/api/payments/7")));
        assert_eq!(again.header("idempotency-replayed"), Some("true"));
    }
    assert_eq!(keyed(&b, "k", "y").code(), "idempotency_key_mismatch");
    assert_eq!(upstream.count(), 1);
}

/// `required` rather refuses than guesses, so that this holds on a machine too busy for Redis to answer in time.
#[test]
fn concurrent_duplicates_on_two_instances_run_once() {
    let redis = Redis::start();
    let upstream = Upstream::with(|turn| {
        turn.pause(300).say(OK);
    });
    let [a, b] = pair(&redis, || Start::before(&upstream, "idempotency = { mode = \"required\" }"));
    for round in 1..=3 {
        let (start, both) = (Barrier::new(16), [a.at, b.at]);
        let request = format!("POST /api/pay HTTP/1.1\r\nHost: g\r\nIdempotency-Key: {round}\r\nContent-Length: 1\r\n\r\nx");
        let replies: Vec<Reply> = thread::scope(|scope| {
            let call = |n: usize| {
                let (start, request) = (&start, &request);
                scope.spawn(move || {
                    let mut caller = Caller::connect(both[n % 2]);
                    start.wait();
                    caller.send(request).reply()
                })
            };
            let calls: Vec<_> = (0..16).map(call).collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });
        for refused in replies.iter().filter(|reply| reply.status != 200) {
            let said = (refused.status, refused.code());
            assert!(matches!((said.0, said.1.as_str()), (409, "idempotency_key_in_flight") | (503, "store_unavailable")), "{said:?}");
        }
        for gateway in [&a, &b] {
            eventually("it is answered", || keyed(gateway, &round.to_string(), "x").status == 200);
        }
        assert_eq!(upstream.count(), round);
    }
}

#[test]
fn doubt_and_freedom_are_shared_too() {
    let redis = Redis::start();
    let upstream = Upstream::with(|turn| match turn.number {
        0 => turn.hang(1500),
        1 => turn.say(answer("503 Busy", "", "")),
        _ => turn.say(OK),
    });
    let quick = "timeout = { attempt = \"300ms\", total = \"400ms\" }\nretry.attempts = 1\nbreaker = { mode = \"off\" }";
    let [a, b] = pair(&redis, || Start::before(&upstream, quick));
    assert_eq!(keyed(&a, "doubt", "x").code(), "deadline_exceeded");
    for gateway in [&b, &a, &b] {
        assert_eq!(keyed(gateway, "doubt", "x").code(), "outcome_unknown");
    }
    assert_eq!(keyed(&a, "turned away", "x").status, 503);
    assert_eq!(keyed(&b, "turned away", "x").status, 200, "nothing was executed, so it is asked again");
    assert_eq!(keyed(&a, "turned away", "x").header("idempotency-replayed"), Some("true"));
    assert_eq!(upstream.count(), 3);
}

#[test]
fn without_redis_an_instance_keeps_its_own_keys_and_refuses_where_one_is_demanded() {
    let (mut redis, upstream) = (Redis::start(), numbering());
    let policy = format!(
        "[upstreams.api]\nurl = \"http://{0}\"\n[upstreams.strict]\nurl = \"http://{0}\"\nidempotency = {{ mode = \"required\" }}\n",
        upstream.at
    );
    let [a, b] = pair(&redis, || Start::with(&policy));
    let strict = |gateway: &Gateway| gateway.post("/strict/pay", "Idempotency-Key: k\r\n", "x");
    assert_eq!([keyed(&a, "before", "x").text(), keyed(&b, "before", "x").text()], ["payment 0", "payment 0"]);
    redis.kill();
    assert_eq!(keyed(&a, "alone", "x").text(), "payment 1");
    for gateway in [&a, &b] {
        assert_eq!(keyed(gateway, "before", "x").text(), "payment 0", "both have it on their own disks");
        let refused = strict(gateway);
        assert_eq!((refused.status, refused.code().as_str(), refused.header("retry-after")), (503, "store_unavailable", Some("1")));
    }
    assert_eq!((keyed(&a, "alone", "x").text().as_str(), upstream.count()), ("payment 1", 2));
    assert_eq!((a.metric("seawall_idempotency_alone_total"), b.metric("seawall_idempotency_alone_total")), (Some(1.0), Some(0.0)));
    redis.restart();
    for gateway in [&a, &b] {
        eventually("it is taken back", || is_up(gateway));
    }
    assert_eq!(strict(&a).text(), "payment 2", "the refusal left nothing behind");
    assert_eq!(strict(&b).text(), "payment 2");
    assert_eq!(keyed(&a, "before", "x").text(), "payment 0", "though Redis has forgotten it");
}
