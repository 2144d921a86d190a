//! Idempotency keys as callers see them: run once, replayed, refused, and remembered through a restart.

use super::caller::{Caller, Reply, eventually};
use super::gateway::{Gateway, Start};
use super::upstream::{OK, Upstream, answer};
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const QUICK: &str = "timeout = { attempt = \"400ms\", total = \"600ms\" }\nretry.attempts = 1\nbreaker = { mode = \"off\" }";

fn keyed(gateway: &Gateway, key: &str, body: &str) -> Reply {
    gateway.post("/api/pay", &format!("Idempotency-Key: {key}\r\n"), body)
}

#[test]
fn a_repeated_call_gets_the_first_ones_answer() {
    let upstream = Upstream::with(|turn| {
        let body = format!("payment {}", turn.number);
        turn.say(answer("201 Created", "Location: /payments/7\r\nX-Own: yes\r\n", &body));
    });
    let gateway = Start::before(&upstream, "").go();
    let first = keyed(&gateway, "k-1", "a");
    assert_eq!((first.status, first.text().as_str(), first.header("idempotency-replayed")), (201, "payment 0", None));
    for key in ["k-1", "\"k-1\""] {
        let again = keyed(&gateway, key, "a");
        assert_eq!((again.status, again.text().as_str()), (201, "payment 0"), "{key}");
        assert_eq!(again.header("idempotency-replayed"), Some("true"));
        assert_eq!((again.header("location"), again.header("x-own")), (Some("/api/payments/7"), Some("yes")));
        assert_eq!((again.header("seawall-attempts"), again.header("seawall-outcome")), (Some("0"), Some("success")));
        assert_ne!(again.header("seawall-call"), first.header("seawall-call"), "it is a call of its own");
    }
    assert_eq!(keyed(&gateway, "k-2", "a").text(), "payment 1", "another key is another call");
    assert_eq!(gateway.post("/api/other", "Idempotency-Key: k-1\r\n", "a").text(), "payment 2", "and so is another path");
    assert_eq!(upstream.count(), 3);
    assert_eq!(upstream.seen()[0].all("idempotency-key"), ["k-1"], "the key goes on as it came");
}

#[test]
fn a_key_is_for_one_request() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, "").go();
    assert_eq!(keyed(&gateway, "k", "a").status, 200);
    let other = keyed(&gateway, "k", "b");
    assert_eq!((other.status, other.code().as_str()), (422, "idempotency_key_mismatch"));
    let kind = gateway.post("/api/pay", "Idempotency-Key: k\r\nContent-Type: text/x\r\n", "a");
    assert_eq!(kind.status, 422);
    let long = keyed(&gateway, &"k".repeat(256), "a");
    assert_eq!((long.status, long.code().as_str()), (400, "bad_request"));
    assert_eq!(upstream.count(), 1);
}

#[test]
fn who_speaks_with_other_credentials_never_gets_anothers_answer() {
    let upstream = Upstream::with(|turn| {
        let who = turn.seen.all("authorization").join("");
        turn.say(answer("200 OK", "", &who));
    });
    let gateway = Start::before(&upstream, "").go();
    for who in ["Bearer a", "Bearer b"] {
        let reply = gateway.post("/api/pay", &format!("Idempotency-Key: k\r\nAuthorization: {who}\r\n"), "x");
        assert_eq!(reply.text(), who);
    }
}

#[test]
fn concurrent_duplicates_run_once() {
    let upstream = Upstream::with(|turn| {
        turn.pause(200).say(OK);
    });
    let gateway = Start::before(&upstream, "").go();
    let at = gateway.at;
    let replies: Vec<Reply> = (0..12)
        .map(|_| {
            thread::spawn(move || {
                let request = "POST /api/pay HTTP/1.1\r\nHost: g\r\nIdempotency-Key: k\r\nContent-Length: 1\r\n\r\nx";
                Caller::connect(at).send(request).reply()
            })
        })
        .collect::<Vec<_>>()
        .into_iter()
        .map(|caller| caller.join().unwrap())
        .collect();
    assert_eq!(upstream.count(), 1);
    assert!(replies.iter().any(|reply| reply.status == 200));
    for refused in replies.iter().filter(|reply| reply.status != 200) {
        assert_eq!((refused.status, refused.code().as_str()), (409, "idempotency_key_in_flight"));
        assert_eq!(refused.header("retry-after"), Some("1"));
    }
    assert_eq!(keyed(&gateway, "k", "x").header("idempotency-replayed"), Some("true"));
}

#[test]
fn a_key_that_is_demanded_must_be_there() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, "idempotency = { mode = \"required\" }").server("replay_body = \"1KiB\"").go();
    let without = gateway.post("/api/pay", "", "x");
    assert_eq!((without.status, without.code().as_str()), (400, "idempotency_key_missing"));
    assert_eq!((gateway.get("/api/x").status, upstream.count()), (200, 1), "a GET needs none");
    assert_eq!((keyed(&gateway, "k", "x").status, upstream.count()), (200, 2));
    let large = keyed(&gateway, "large", &"x".repeat(5000));
    assert_eq!((large.status, large.code().as_str(), upstream.count()), (413, "too_large", 2), "it could not be compared");
}

#[test]
fn a_key_that_stays_on_its_hop_is_none() {
    let headers = "Connection: idempotency-key\r\nIdempotency-Key: k\r\n";
    for mode in ["off", "optional"] {
        let upstream = Upstream::replying(&[&answer("503 Busy", "", ""), OK]);
        let gateway = Start::before(&upstream, &format!("idempotency = {{ mode = \"{mode}\" }}\nretry = {{ base = \"1ms\" }}")).go();
        let reply = gateway.post("/api/pay", headers, "x");
        assert_eq!((reply.status, upstream.count(), upstream.seen()[0].has("idempotency-key")), (503, 1, false), "{mode}");
    }
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, "idempotency = { mode = \"required\" }").go();
    assert_eq!((gateway.post("/api/pay", headers, "x").status, upstream.count()), (400, 0));
}

#[test]
fn a_key_that_is_made_is_the_same_for_every_attempt() {
    let upstream = Upstream::replying(&[&answer("503 Busy", "", ""), OK]);
    let gateway = Start::before(&upstream, "idempotency = { mode = \"generate\" }\nretry = { base = \"1ms\" }").go();
    let reply = gateway.post("/api/pay", "", "x");
    assert_eq!((reply.status, reply.header("seawall-attempts")), (200, Some("2")));
    let seen = upstream.seen();
    let keys: Vec<_> = seen.iter().map(|seen| seen.all("idempotency-key")).collect();
    assert_eq!(keys.len(), 2);
    assert!(keys[0].len() == 1 && keys[0] == keys[1], "{keys:?}");
    assert_eq!(gateway.post("/api/pay", "", "x").status, 200);
    assert_ne!(upstream.seen()[2].all("idempotency-key"), keys[0], "each call has its own");
    assert_eq!(gateway.get("/api/x").status, 200);
    assert!(!upstream.seen()[3].has("idempotency-key"), "a GET needs none");
}

#[test]
fn switched_off_keys_are_only_passed_on() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, "idempotency = { mode = \"off\" }").go();
    for _ in 0..2 {
        assert_eq!(keyed(&gateway, "k", "x").header("idempotency-replayed"), None);
    }
    assert_eq!(upstream.count(), 2);
}

#[test]
fn a_refusal_frees_the_key_and_a_final_answer_keeps_it() {
    let replies = [answer("503 Busy", "", "a"), answer("404 Not Found", "", "b"), OK.to_owned()];
    let upstream = Upstream::replying(&replies.each_ref().map(String::as_str));
    let gateway = Start::before(&upstream, QUICK).go();
    assert_eq!(keyed(&gateway, "k", "x").status, 503);
    assert_eq!(keyed(&gateway, "k", "x").status, 404, "nothing was executed, so it is asked again");
    let replayed = keyed(&gateway, "k", "x");
    assert_eq!((replayed.status, replayed.text().as_str(), replayed.header("idempotency-replayed")), (404, "b", Some("true")));
    assert_eq!(upstream.count(), 2);
}

#[test]
fn what_was_sent_and_never_answered_is_not_sent_again() {
    for (honoured, expected) in [(false, (409, 1)), (true, (200, 2))] {
        let upstream = Upstream::with(|turn| if turn.number == 0 { turn.hang(1500) } else { turn.say(OK) });
        let gateway = Start::before(&upstream, &format!("{QUICK}\nidempotency = {{ honoured = {honoured} }}")).go();
        assert_eq!(keyed(&gateway, "k", "x").code(), "deadline_exceeded");
        let again = keyed(&gateway, "k", "x");
        assert_eq!((again.status, upstream.count()), expected, "{honoured}");
        assert!(honoured || again.code() == "outcome_unknown");
    }
}

#[test]
fn a_caller_that_leaves_does_not_take_the_key_with_it() {
    let upstream = Upstream::with(|turn| if turn.number == 0 { turn.hang(2000) } else { turn.say(OK) });
    let gateway = Start::before(&upstream, "").go();
    let mut leaver = gateway.caller();
    leaver.send("POST /api/pay HTTP/1.1\r\nHost: g\r\nIdempotency-Key: k\r\nContent-Length: 1\r\n\r\nx");
    eventually("it is on its way", || upstream.count() == 1);
    drop(leaver);
    eventually("the doubt is written down", || keyed(&gateway, "k", "x").code() == "outcome_unknown");
    assert_eq!(upstream.count(), 1);
}

#[test]
fn an_answer_too_long_to_keep_is_passed_on_and_not_asked_for_again() {
    let long = answer("200 OK", "", &"x".repeat((1 << 20) + 1));
    let upstream = Upstream::with(move |turn| turn.say(&long));
    let gateway = Start::before(&upstream, "").go();
    assert_eq!(keyed(&gateway, "k", "x").body.len(), (1 << 20) + 1);
    let again = keyed(&gateway, "k", "x");
    assert_eq!((again.status, again.code().as_str(), upstream.count()), (409, "outcome_unknown", 1));
}

#[test]
fn a_stream_of_events_is_not_held_back_for_its_key() {
    let upstream = Upstream::with(|turn| {
        turn.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n8\r\ndata: 1\n\r\n");
        turn.pause(1500).say("0\r\n\r\n");
    });
    let gateway = Start::before(&upstream, "timeout = { attempt = \"1s\" }").go();
    let mut caller = gateway.caller();
    caller.send("POST /api/chat HTTP/1.1\r\nHost: g\r\nIdempotency-Key: k\r\nContent-Length: 1\r\n\r\nx");
    let piece = caller.piece();
    assert!(piece.starts_with("HTTP/1.1 200"), "{piece}");
    assert_eq!(gateway.post("/api/chat", "Idempotency-Key: k\r\n", "x").code(), "outcome_unknown", "it was answered and not kept");
}

#[test]
fn a_store_that_fails_refuses_only_where_a_key_is_demanded() {
    for (mode, expected) in [("required", 503), ("optional", 200)] {
        let upstream = Upstream::fine();
        let gateway = Start::before(&upstream, &format!("idempotency = {{ mode = \"{mode}\" }}"))
            .secret("SEAWALL_FAILPOINT", "reserve-before-commit:err")
            .go();
        let reply = keyed(&gateway, "k", "x");
        assert_eq!(reply.status, expected, "{mode}");
        assert!(expected == 200 || (reply.code(), reply.header("retry-after")) == ("store_unavailable".into(), Some("1")));
    }
}

#[test]
fn an_answer_that_could_not_be_kept_still_reaches_its_caller_and_is_not_asked_for_again() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, QUICK).secret("SEAWALL_FAILPOINT", "finish-before-commit:err").go();
    assert_eq!(keyed(&gateway, "k", "x").status, 200);
    assert_eq!(keyed(&gateway, "k", "x").code(), "idempotency_key_in_flight");
    assert_eq!(upstream.count(), 1);
}

#[test]
fn answers_outlive_the_process() {
    let upstream = Upstream::with(|turn| {
        let body = turn.number.to_string();
        turn.say(answer("200 OK", "", &body));
    });
    let gateway = Start::before(&upstream, "").go();
    assert_eq!(keyed(&gateway, "k", "x").text(), "0");
    let again = Start::before(&upstream, "").go_in(gateway.kill());
    let reply = keyed(&again, "k", "x");
    assert_eq!((reply.text().as_str(), reply.header("idempotency-replayed"), upstream.count()), ("0", Some("true"), 1));
}

/// The power fails between the upstream's response and its write to disk: the caller got nothing, so the outcome is unknown.
#[test]
fn death_before_the_answer_is_kept_leaves_the_outcome_unknown() {
    for (honoured, expected) in [(false, (409, 1)), (true, (200, 2))] {
        let upstream = Upstream::fine();
        let policy = format!("{QUICK}\nidempotency = {{ honoured = {honoured} }}");
        let mut gateway = Start::before(&upstream, &policy).secret("SEAWALL_FAILPOINT", "finish-before-commit:kill").go();
        let mut caller = gateway.caller();
        caller.send("POST /api/pay HTTP/1.1\r\nHost: gateway\r\nIdempotency-Key: k\r\nContent-Length: 1\r\n\r\nx");
        assert!(caller.rest().is_empty(), "no answer goes out before it is on disk");
        assert_ne!(gateway.ended(), Some(0));
        let again = Start::before(&upstream, &policy).go_in(gateway.kill());
        let mut last = keyed(&again, "k", "x");
        eventually("the lost reservation runs out", || {
            last = keyed(&again, "k", "x");
            last.status != 409 || last.code() != "idempotency_key_in_flight"
        });
        assert_eq!((last.status, upstream.count()), expected, "{honoured}: {}", last.text());
    }
}

#[test]
fn a_call_that_becomes_a_job_keeps_its_key() {
    let upstream = Upstream::with(|turn| {
        let reply = if turn.number == 0 { answer("500 Oops", "", "") } else { OK.to_owned() };
        turn.say(reply);
    });
    let policy = "on_exhausted = \"enqueue\"\nretry = { attempts = 1, base = \"10ms\", cap = \"20ms\" }\nbreaker = { mode = \"off\" }";
    let gateway = Start::before(&upstream, policy).go();
    assert_eq!(keyed(&gateway, "k", "x").status, 202);
    let mut last = keyed(&gateway, "k", "x");
    eventually("the job is done", || {
        last = keyed(&gateway, "k", "x");
        last.status == 200
    });
    assert_eq!((last.text().as_str(), last.header("idempotency-replayed"), upstream.count()), ("ok", Some("true"), 2));
}

#[test]
fn a_job_under_a_key_that_a_call_has_used_gets_its_answer() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, "").go();
    assert_eq!(keyed(&gateway, "k", "x").status, 200);
    let reply = gateway.post("/api/pay", "Idempotency-Key: k\r\nPrefer: respond-async, wait=10\r\n", "x");
    assert_eq!((reply.status, reply.text().as_str(), upstream.count()), (200, "ok", 1));
}

/// Sends one keyed request and reads whatever comes until the connection ends.
fn attempt(at: std::net::SocketAddr, key: u64) -> Option<u16> {
    let mut stream = std::net::TcpStream::connect(at).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let request =
        format!("POST /api/pay HTTP/1.1\r\nHost: g\r\nConnection: close\r\nIdempotency-Key: key-{key}\r\nContent-Length: 1\r\n\r\nx");
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    text.get(9..12)?.parse().ok()
}

/// An upstream that ignores keys executes whatever it is sent, so the gateway alone has to see that nothing runs twice.
/// `SEAWALL_KILLS=1000 cargo test -p seawall --test it zero_duplicates` makes a campaign of it.
#[test]
fn zero_duplicates_however_often_the_power_goes() {
    let kills: u32 = std::env::var("SEAWALL_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(8);
    let executed: Arc<Mutex<BTreeMap<String, u32>>> = Arc::default();
    let counting = Arc::clone(&executed);
    let upstream = Upstream::with(move |turn| {
        let key = turn.seen.all("idempotency-key").join("");
        *counting.lock().unwrap().entry(key).or_default() += 1;
        turn.say(OK);
    });
    let mut directory = Some(tempfile::tempdir().unwrap());
    let (mut chance, mut answered) = (0x9e37_79b9_7f4a_7c15_u64, 0_u64);
    for round in 0..u64::from(kills) {
        let gateway = Start::before(&upstream, QUICK).go_in(directory.take().unwrap());
        let stop = Arc::new(AtomicBool::new(false));
        let callers: Vec<_> = (0..4_u64)
            .map(|caller| {
                let (at, stop) = (gateway.at, Arc::clone(&stop));
                thread::spawn(move || {
                    let mut good = 0;
                    // Neighbours share keys, and so do neighbouring lives of the process.
                    for number in 0.. {
                        if stop.load(Ordering::SeqCst) {
                            break;
                        }
                        good += u64::from(attempt(at, (round * 40) + number / 2 + caller / 2 * 20) == Some(200));
                    }
                    good
                })
            })
            .collect();
        chance ^= chance << 13;
        chance ^= chance >> 7;
        chance ^= chance << 17;
        thread::sleep(Duration::from_millis(5 + chance % 150));
        directory = Some(gateway.kill());
        stop.store(true, Ordering::SeqCst);
        answered += callers.into_iter().map(|caller| caller.join().unwrap()).sum::<u64>();
    }
    let executed = executed.lock().unwrap();
    let twice: Vec<_> = executed.iter().filter(|(_, count)| **count > 1).collect();
    println!("{kills} kills: {} keys executed, {answered} good answers, {} twice", executed.len(), twice.len());
    assert!(!executed.is_empty() && answered > 0);
    assert!(twice.is_empty(), "executed more than once: {twice:?}");
}
