//! Connections on both sides: which are reused, what a lost one costs, and what happens when a caller leaves.

use super::caller::{Watch, eventually};
use super::forwarding::{FAST, pair};
use super::gateway::Start;
use super::upstream::{OK, Upstream};
use http_body_util::{BodyExt as _, Full};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn settle() {
    std::thread::sleep(Duration::from_millis(50));
}

#[test]
fn a_connection_is_kept_unless_the_upstream_says_otherwise() {
    let (gateway, upstream) = pair(Upstream::fine());
    for _ in 0..5 {
        assert_eq!(gateway.get("/api/x").status, 200);
    }
    assert_eq!(upstream.connections(), 1);
    let (gateway, upstream) = pair(Upstream::replying(&["HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"]));
    for _ in 0..3 {
        assert_eq!(gateway.get("/api/x").status, 200);
    }
    assert_eq!((upstream.connections(), upstream.count()), (3, 3), "a connection that is to be closed is never used again");
}

#[test]
fn a_request_that_was_read_and_dropped_is_not_sent_twice() {
    // 55, 57
    for request in
        ["POST /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx", "PATCH /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx"]
    {
        // Once on a new connection, and once on a reused one.
        for before in [0, 1] {
            let (gateway, upstream) = pair(Upstream::with(move |turn| if turn.number < before { turn.say(OK) } else { turn.close() }));
            for _ in 0..before {
                assert_eq!(gateway.get("/api/x").status, 200);
            }
            let reply = gateway.ask(request);
            assert_eq!((reply.status, reply.code().as_str()), (502, "upstream_unreachable"));
            assert_eq!(upstream.count(), before + 1);
        }
    }
}

#[test]
fn a_post_finds_a_fresh_connection_where_the_old_one_was_closed_while_idle() {
    let (gateway, upstream) = pair(Upstream::with(|turn| turn.send(OK).close()));
    for number in 1..=5 {
        assert_eq!(gateway.post("/api/x", "", "x").status, 200);
        assert_eq!(upstream.count(), number, "exactly one execution each");
        settle();
    }
    assert!(gateway.log(5).iter().filter(|line| line["event"] == "attempt").all(|line| line["attempt"] == 1));
}

#[test]
fn a_get_on_a_connection_that_closes_under_it_goes_again_within_its_attempt() {
    // The upstream reads the second request of a connection and closes instead of answering, as one does that timed out.
    let first = Arc::new(AtomicBool::new(true));
    let upstream =
        Upstream::with(move |turn| if turn.number == 1 && first.swap(false, Ordering::SeqCst) { turn.close() } else { turn.say(OK) });
    let gateway = Start::before(&upstream, "retry = { attempts = 1 }").threads(1).go();
    assert_eq!(gateway.get("/api/x").status, 200);
    let reply = gateway.get("/api/x");
    assert_eq!((reply.status, reply.header("seawall-attempts")), (200, Some("2")), "every send is counted");
    assert_eq!((upstream.count(), upstream.connections()), (3, 2));
}

#[test]
fn a_caller_who_leaves_takes_the_attempt_along_and_nobody_is_blamed() {
    // 63, 81
    let upstream = Upstream::with(|turn| {
        if turn.seen.line().contains("/hang") {
            assert!(turn.is_left(), "the attempt ends with its caller");
        } else {
            turn.send(OK);
        }
    });
    let gateway = Start::before(&upstream, "timeout = { attempt = \"5s\" }\nbreaker = { consecutive = 2, min_calls = 2 }").threads(1).go();
    // Pipelined bytes do not hide that the caller has left.
    let behind = ["", "\r\n", "POST /api/next HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"];
    for number in 1..=6 {
        let mut caller = gateway.caller();
        caller.send(format!("GET /api/hang HTTP/1.1\r\nHost: h\r\n\r\n{}", behind[number % 3]));
        eventually("the upstream has it", || upstream.count() == number);
        if number % 2 == 0 { drop(caller) } else { assert!(caller.half_close().is_closed(), "half-closing is leaving") }
    }
    let log = gateway.log(6);
    assert!(log.iter().all(|line| line["outcome"] == "cancelled" && line["reason"] == "cancelled"), "{log:?}");
    for (event, field, value) in [("attempt", "status", "reset".into()), ("call", "attempts", serde_json::Value::from(1))] {
        let lines: Vec<_> = log.iter().filter(|line| line["event"] == event).collect();
        assert!(lines.len() == 6 && lines.iter().all(|line| line[field] == value), "{log:?}");
    }
    assert_eq!(gateway.get("/api/x").status, 200, "six callers left and the breaker is closed");
    assert_eq!(gateway.metric("seawall_breaker_state{upstream=\"api\",endpoint=\"default\"}"), Some(0.0), "{}", gateway.metrics());
    assert_eq!(gateway.metric("seawall_in_flight{upstream=\"api\",pool=\"\"}"), Some(0.0));
}

#[test]
fn a_broken_request_body_is_the_callers_own_fault() {
    // 81
    let upstream = Upstream::fine();
    let keys = "timeout = { attempt = \"300ms\", total = \"1s\" }\nbreaker = { consecutive = 2, min_calls = 2 }\nretry = { attempts = 1 }";
    let gateway = Start::before(&upstream, keys).server("replay_body = \"1KiB\"\nmax_body = \"64KiB\"").threads(1).go();
    let start = "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    let kib = format!("800\r\n{}\r\n", "x".repeat(0x800));
    for _ in 0..3 {
        let reply = gateway.ask(format!("{start}{kib}zz\r\n"));
        assert_eq!((reply.status, reply.code().as_str()), (400, "bad_request"), "malformed on its way");
        let reply = gateway.ask(format!("{start}{}", kib.repeat(40)));
        assert_eq!((reply.status, reply.code().as_str()), (413, "too_large"), "too large on its way");
        let reply = gateway.ask(format!("{start}{kib}"));
        assert_eq!((reply.status, reply.code().as_str()), (408, "request_timeout"), "too slow on its way");
        let reply = gateway.ask(format!("{start}1\r\nx\r\n"));
        assert_eq!((reply.status, reply.code().as_str()), (408, "request_timeout"), "too slow before it is sent");
    }
    assert_eq!(gateway.metric("seawall_breaker_state{upstream=\"api\",endpoint=\"default\"}"), Some(0.0));
    assert_eq!(gateway.post("/api/x", "", &"x".repeat(60_000)).status, 200);
    assert_eq!(upstream.seen().pop().unwrap().body.len(), 60_000);
}

#[test]
fn an_early_refusal_can_be_read_by_a_caller_that_is_still_sending() {
    let (gateway, upstream) = pair(Upstream::fine());
    let body = "x".repeat(30 * 1024 * 1024);
    let reply = gateway.post("/api/x", "", &body);
    assert_eq!((reply.status, reply.code().as_str()), (413, "too_large"));
    assert_eq!(upstream.count(), 0);
    let mut caller = gateway.caller();
    let chunk = format!("100000\r\n{}\r\n", "x".repeat(0x10_0000));
    caller.send("POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
    for _ in 0..12 {
        caller.send(&chunk);
    }
    assert_eq!(caller.send("0\r\n\r\n").reply().status, 413);
}

#[test]
fn http_2_with_prior_knowledge_is_spoken() {
    let (gateway, upstream) = pair(Upstream::fine());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let at = gateway.at;
    tokio::task::LocalSet::new().block_on(&runtime, async move {
        let io = hyper_util::rt::TokioIo::new(tokio::net::TcpStream::connect(at).await.unwrap());
        let (sender, connection) = hyper::client::conn::http2::handshake(hyper_util::rt::TokioExecutor::new(), io).await.unwrap();
        tokio::task::spawn_local(connection);
        let ask = |body: &'static str| {
            let uri = format!("http://{at}/api/x?y");
            let request =
                hyper::Request::post(uri).header("cookie", "a=1").header("cookie", "b=2").body(Full::<bytes::Bytes>::from(body)).unwrap();
            let mut sender = sender.clone();
            async move { sender.send_request(request).await.unwrap() }
        };
        let (one, two) = tokio::join!(ask("first"), ask("second"));
        for reply in [one, two] {
            assert_eq!((reply.status().as_u16(), reply.version()), (200, hyper::Version::HTTP_2));
            assert!(reply.headers().contains_key("seawall-call") && !reply.headers().contains_key("connection"));
            assert_eq!(reply.headers().get_all("via").iter().count(), 1);
            assert_eq!(reply.into_body().collect().await.unwrap().to_bytes(), "ok");
        }
        let missing = hyper::Request::get(format!("http://{at}/none")).body(Full::from("")).unwrap();
        let reply = sender.clone().send_request(missing).await.unwrap();
        assert_eq!(reply.status(), 404);
    });
    for seen in upstream.seen() {
        assert_eq!(seen.line(), "POST /x?y HTTP/1.1");
        assert_eq!((seen.all("host"), seen.all("cookie")), (vec![upstream.at.to_string().as_str()], vec!["a=1; b=2"]));
        assert!(seen.all("via")[0].starts_with("2.0 "));
    }
}

#[test]
fn a_preface_in_pieces_is_recognised_and_a_post_in_pieces_is_not_mistaken_for_one() {
    let (gateway, upstream) = pair(Upstream::fine());
    let mut caller = gateway.caller();
    for byte in "POST /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx".as_bytes().chunks(1) {
        caller.send(byte);
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(caller.reply().status, 200);
    assert_eq!(upstream.count(), 1);
    let mut caller = gateway.caller();
    caller.send("PRI * HT");
    settle();
    caller.send("TP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    assert!(caller.piece().as_bytes().get(3) == Some(&4), "a SETTINGS frame comes back");
}

#[test]
fn the_whole_call_keeps_its_deadline_while_many_wait() {
    // 77
    let upstream = Upstream::with(|turn| turn.hang(1500));
    let gateway = Start::before(&upstream, &FAST.replace("800ms", "10s").replace("2s", "20s")).threads(1).go();
    let watch = Watch::start();
    let reply = gateway.get_with("/api/x", "Seawall-Timeout-Ms: 300\r\n");
    assert_eq!((reply.status, reply.code().as_str()), (504, "deadline_exceeded"));
    assert!((250..500).contains(&watch.ms()), "{} ms", watch.ms());
    assert_eq!(upstream.count(), 1);
}
