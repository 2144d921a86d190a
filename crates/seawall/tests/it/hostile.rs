//! Callers and upstreams that mean harm: each gets a clear answer or an end, memory stays bounded, and the next request
//! is served as if nothing had happened.

use super::caller::{Caller, Watch, eventually};
use super::forwarding::{FAST, pair};
use super::gateway::{Gateway, Start};
use super::upstream::{OK, Upstream};
use std::net::TcpStream;
use std::time::Duration;

/// More than this much new memory, in KiB, is a leak.
const GROWTH: u64 = 24 * 1024;

/// Runs an attack and checks what is left of the gateway after it.
#[track_caller]
fn survives(gateway: &Gateway, attack: impl FnOnce()) {
    assert_eq!(gateway.get("/api/fine").status, 200);
    let before = gateway.memory();
    attack();
    let watch = Watch::start();
    assert_eq!(gateway.get("/api/fine").status, 200);
    assert!(watch.ms() < 1000, "the next request took {} ms", watch.ms());
    let after = gateway.memory();
    assert!(after < before + GROWTH, "memory grew from {before} to {after} KiB");
}

#[test]
fn slow_heads_are_cut_off() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, FAST).argument("--head-timeout").argument("400ms").go();
    survives(&gateway, || {
        let watch = Watch::start();
        let mut callers: Vec<Caller> = ["", "P", "GET /api/x HTT", "GET /api/x HTTP/1.1\r\nHost: h\r\nX-A: "]
            .map(|start| {
                let mut caller = gateway.caller();
                caller.send(start);
                caller
            })
            .into();
        for caller in &mut callers {
            assert!(caller.rest().len() < 1024);
        }
        assert!((350..3500).contains(&watch.ms()), "{} ms", watch.ms());
        let mut dripping = gateway.caller();
        dripping.send("GET /api/x HTTP/1.1\r\nHost: h\r\n");
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(60));
            dripping.send("X");
        }
        assert!(dripping.is_closed(), "bytes now and then do not buy time");
    });
    assert!(!upstream.raw().contains("/x"));
}

#[test]
fn a_body_of_drops_is_cut_off() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, "timeout = { attempt = \"300ms\", total = \"500ms\" }").go();
    survives(&gateway, || {
        let mut caller = gateway.caller();
        caller.send("POST /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n");
        for _ in 0..12 {
            caller.send("x");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(caller.reply().code(), "request_timeout");
    });
    assert!(!upstream.raw().contains("POST"));
}

#[test]
fn lies_about_the_length_cost_only_the_liar() {
    let (gateway, upstream) = pair(Upstream::fine());
    survives(&gateway, || {
        let mut caller = gateway.caller();
        caller.send("POST /api/short HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nhello").half_close();
        let told = String::from_utf8_lossy(&caller.rest()).into_owned();
        assert!(told.is_empty() || told.starts_with("HTTP/1.1 400"), "{told}");
        let mut caller = gateway.caller();
        caller.send("POST /api/long HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhiGARBAGE\r\n\r\n");
        assert_eq!(caller.reply().status, 200);
        assert_eq!(caller.reply().status, 400);
        assert!(caller.is_closed());
    });
    assert!(!upstream.raw().contains("short") && !upstream.raw().contains("GARBAGE"));
}

#[test]
fn no_payload_smuggles_a_request() {
    let (gateway, upstream) = pair(Upstream::fine());
    let smuggled = "GET /api/smug HTTP/1.1\r\nHost: h\r\n\r\n";
    let tricks = [
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding:\tchunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
        "Transfer-Encoding: x\r\nTransfer-Encoding: chunked",
        " Transfer-Encoding: chunked",
        "X: x\r\n Transfer-Encoding: chunked",
        "X: x\nTransfer-Encoding: chunked",
        "Transfer-Encoding\r\n: chunked",
        "Transfer-Encoding: \"chunked\"",
        "Transfer-Encoding: chunked, identity",
        "transfer-Encoding: \u{b}chunked",
        "TE: chunked\r\nTransfer_Encoding: chunked",
    ];
    survives(&gateway, || {
        for trick in tricks {
            let body = format!("0\r\n\r\n{smuggled}");
            let mut caller = gateway.caller();
            caller.send(format!("POST /api/x HTTP/1.1\r\nHost: h\r\n{trick}\r\nContent-Length: {}\r\n\r\n{body}", body.len())).half_close();
            caller.rest();
        }
    });
    for seen in upstream.seen() {
        assert!(!seen.line().contains("smug"), "{}", seen.head);
        assert!(!seen.has("transfer-encoding"), "{}", seen.head);
    }
}

#[test]
fn floods_of_headers_and_chunks_leave_no_trace() {
    let (gateway, upstream) = pair(Upstream::fine());
    survives(&gateway, || {
        for _ in 0..20 {
            gateway.caller().send(format!("GET /api/x HTTP/1.1\r\nHost: h\r\n{}", "X-Flood: aaaaaaaaaaaaaaaa\r\n".repeat(40_000))).rest();
            let mut caller = gateway.caller();
            caller.send("POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
            caller.send(format!("1;{}\r\nx\r\n", "e".repeat(1 << 20))).rest();
            let mut caller = gateway.caller();
            caller.send("POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
            caller.send("1\r\nx\r\n".repeat(1000)).send(format!("0\r\n{}", "X-T: aaaaaaaaaaaaaaaa\r\n".repeat(40_000))).rest();
        }
    });
    assert!(!upstream.raw().contains("lood"));
}

#[test]
fn crowds_of_connections_are_carried_and_forgotten() {
    let (gateway, _upstream) = pair(Upstream::fine());
    survives(&gateway, || {
        let idle: Vec<TcpStream> = (0..400).map(|_| TcpStream::connect(gateway.at).unwrap()).collect();
        assert_eq!(gateway.get("/api/x").status, 200, "idle connections are in nobody's way");
        drop(idle);
        for _ in 0..2000 {
            drop(TcpStream::connect(gateway.at).unwrap());
        }
    });
}

#[test]
fn callers_who_find_every_connection_taken_are_told_to_come_back() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, FAST).argument("--connections").argument("3").go();
    let mut seated: Vec<Caller> = (0..3).map(|_| gateway.caller()).collect();
    for caller in &mut seated {
        assert_eq!(caller.send("GET /api/x HTTP/1.1\r\nHost: h\r\n\r\n").reply().status, 200);
    }
    for _ in 0..5 {
        let mut late = gateway.caller();
        let reply = late.send("GET /api/late HTTP/1.1\r\nHost: h\r\n\r\n").reply();
        assert_eq!((reply.status, reply.code().as_str()), (503, "overloaded"));
        assert!((1..=3).contains(&reply.header("retry-after").unwrap().parse().unwrap()));
        assert!(late.is_closed());
    }
    assert_eq!(gateway.metric("seawall_caller_connections"), Some(3.0));
    assert_eq!(gateway.metric("seawall_caller_connections_refused_total"), Some(5.0));
    assert_eq!(seated[0].send("GET /api/x HTTP/1.1\r\nHost: h\r\n\r\n").reply().status, 200, "who is in stays in");
    drop(seated.pop());
    eventually("a seat that is given up is free again", || gateway.get("/api/x").status == 200);
    assert!(!upstream.raw().contains("/late"));
}

#[test]
fn an_upstream_that_never_ends_is_given_up() {
    let upstream = Upstream::with(|turn| match turn.seen.line().split(' ').nth(1).unwrap() {
        "/headers" => {
            turn.send("HTTP/1.1 200 OK\r\n");
            for _ in 0..200 {
                turn.send("X-More: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n".repeat(100));
            }
            turn.close();
        }
        "/drops" => {
            for byte in "HTTP/1.1 200 OK\r\nX-A: ".as_bytes().chunks(1).chain(std::iter::repeat_n(&b"a"[..], 40)) {
                turn.send(byte).pause(20);
            }
            turn.close();
        }
        "/interim" => {
            for _ in 0..300 {
                turn.send("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n").pause(5);
            }
            turn.close();
        }
        "/nothing" => assert!(turn.is_left(), "a timed out attempt is closed"),
        _ => turn.say(OK),
    });
    let keys = "timeout = { attempt = \"300ms\", total = \"2s\" }\nretry = { attempts = 1 }\nbreaker = { mode = \"off\" }";
    let gateway = Start::before(&upstream, keys).go();
    survives(&gateway, || {
        for (path, statuses) in [("headers", [502, 502]), ("drops", [504, 504]), ("interim", [502, 504]), ("nothing", [504, 504])] {
            let watch = Watch::start();
            let reply = gateway.get(&format!("/api/{path}"));
            assert!(statuses.contains(&reply.status), "{path}: {reply:?}");
            assert!(watch.ms() < 800, "{path}: {} ms", watch.ms());
        }
    });
}

#[test]
fn only_a_caller_that_takes_nothing_of_its_answer_is_hung_up_on() {
    const PIECES: usize = 512;
    let upstream = Upstream::with(|turn| {
        turn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", PIECES * 64 * 1024));
        let piece = vec![b'x'; 64 * 1024];
        // Ends early once the gateway stops reading.
        if (0..PIECES).any(|_| std::io::Write::write_all(&mut turn.stream, &piece).is_err()) {
            turn.close();
        }
    });
    let gateway = Start::before(&upstream, FAST).argument("--head-timeout").argument("100ms").go();
    let in_flight = || gateway.metric("seawall_in_flight{upstream=\"api\",pool=\"\"}");
    let mut idle = gateway.caller();
    idle.send("GET /api/large HTTP/1.1\r\nHost: h\r\n\r\n");
    eventually("it is answered", || in_flight() == Some(1.0));
    eventually("whoever does not read is let go", || in_flight() == Some(0.0));
    let mut slow = gateway.caller();
    slow.send("GET /api/large HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut taken = slow.piece().len();
    for _ in 0..12 {
        std::thread::sleep(Duration::from_millis(100));
        (0..200).for_each(|_| taken += slow.piece().len());
    }
    taken += slow.rest().len();
    assert!(taken > PIECES * 64 * 1024, "whoever reads now and then gets all of it, not {taken} bytes");
}

#[test]
fn a_large_answer_to_a_caller_that_does_not_read_is_not_kept_in_memory() {
    let body = "x".repeat(64 * 1024);
    let upstream = Upstream::with(move |turn| {
        if turn.seen.line().contains("/fine") {
            turn.send(OK);
            return;
        }
        turn.stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        turn.send("HTTP/1.1 200 OK\r\nContent-Length: 268435456\r\n\r\n");
        for _ in 0..1024 {
            turn.send(&body);
        }
        turn.close();
    });
    let gateway = Start::before(&upstream, "timeout = { attempt = \"1s\", total = \"2s\" }").go();
    survives(&gateway, || {
        let mut callers: Vec<Caller> = (0..4).map(|_| gateway.caller()).collect();
        for caller in &mut callers {
            caller.send("GET /api/large HTTP/1.1\r\nHost: h\r\n\r\n");
        }
        std::thread::sleep(Duration::from_millis(600));
    });
}

#[test]
fn a_body_that_looks_like_our_servers_own_words_stays_a_body() {
    const BODY: &str = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n";
    let upstream = Upstream::with(|turn| {
        turn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", BODY.len())).pause(300).send(BODY);
    });
    let gateway = Start::before(&upstream, "").go();
    let mut caller = Caller::connect(gateway.at);
    for _ in 0..2 {
        let reply = caller.send("GET /api/x HTTP/1.1\r\nHost: h\r\n\r\n").reply();
        assert_eq!((reply.status, reply.text().as_str()), (200, BODY));
    }
}
