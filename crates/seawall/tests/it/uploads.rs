//! Bodies that are too large to keep, on their way through while their answers come back.

use super::caller::eventually;
use super::forwarding::FAST;
use super::gateway::{Gateway, Start};
use super::upstream::Upstream;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};

const LARGE: usize = 256 * 1024;

/// Responds after `after` bytes of a request, and reads the rest meanwhile.
fn hasty(after: usize, words: [&'static str; 2]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut seen, mut space) = (stream.unwrap(), 0, [0; 16 * 1024]);
            while seen < after {
                seen += stream.read(&mut space).unwrap();
            }
            stream.write_all(words[0].as_bytes()).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(200));
            stream.write_all(words[1].as_bytes()).unwrap();
            while stream.read(&mut space).is_ok_and(|read| read > 0) {}
        }
    });
    at
}

fn before(at: SocketAddr) -> Gateway {
    Start::with(&format!("[upstreams.api]\nurl = \"http://{at}\"\n{FAST}")).server("replay_body = \"1KiB\"").go()
}

fn chunk(size: usize) -> String {
    format!("{size:x}\r\n{}\r\n", "x".repeat(size))
}

const POST: &str = "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";

#[test]
fn an_answer_that_comes_before_the_upload_has_ended_is_passed_on() {
    let chunked = ["HTTP/1.1 401 Unauthorized\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n", "2\r\n!!\r\n0\r\n\r\n"];
    let counted = ["HTTP/1.1 401 Unauthorized\r\nContent-Length: 4\r\n\r\nno", "!!"];
    for words in [chunked, counted] {
        let gateway = before(hasty(64 * 1024, words));
        let mut caller = gateway.caller();
        caller.send(POST).send(chunk(LARGE));
        let reply = caller.reply();
        assert_eq!((reply.status, reply.text().as_str(), reply.complete), (401, "no!!", true));
        assert_eq!(reply.header("connection"), Some("close"), "whoever will be hung up on is told so");
        assert!(caller.is_closed(), "what is left of the body is no request");
        eventually("nothing is left in flight", || gateway.metric("seawall_in_flight{upstream=\"api\",pool=\"\"}") == Some(0.0));
    }
}

#[test]
fn an_upload_goes_on_while_its_answer_comes() {
    let gateway = before(hasty(64 * 1024, ["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", "0\r\n\r\n"]));
    let mut caller = gateway.caller();
    caller.send(POST).send(chunk(128 * 1024));
    let mut seen = caller.piece();
    while !seen.contains("ok") {
        seen.push_str(&caller.piece());
    }
    caller.send(chunk(128 * 1024)).send("0\r\n\r\n");
    while !seen.ends_with("0\r\n\r\n") {
        seen.push_str(&caller.piece());
    }
}

#[test]
fn whoever_leaves_a_stream_after_a_large_upload_leaves_nothing_behind() {
    let upstream = Upstream::with(|turn| {
        turn.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n");
        assert!(turn.is_left(), "the upstream is told that nobody listens");
    });
    let gateway = Start::before(&upstream, FAST).server("replay_body = \"1KiB\"").go();
    for _ in 0..3 {
        let mut caller = gateway.caller();
        caller.send(format!("POST /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: {LARGE}\r\n\r\n")).send("x".repeat(LARGE));
        let mut seen = caller.piece();
        while !seen.contains("data: 1") {
            seen.push_str(&caller.piece());
        }
    }
    eventually("nothing is left in flight", || gateway.metric("seawall_in_flight{upstream=\"api\",pool=\"\"}") == Some(0.0));
}

#[test]
fn a_connection_that_carried_a_large_upload_is_let_go_in_time() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, FAST).server("replay_body = \"1KiB\"").argument("--head-timeout").argument("300ms").go();
    let mut caller = gateway.caller();
    caller.send(format!("POST /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: {LARGE}\r\n\r\n")).send("x".repeat(LARGE));
    assert_eq!(caller.reply().status, 200);
    assert!(caller.is_closed(), "whoever is silent for too long is hung up on, whatever came before");
}

#[test]
fn empty_lines_between_requests_are_forgiven_and_bounded() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, FAST).go();
    let mut caller = gateway.caller();
    for _ in 0..2 {
        caller.send("\r\n\nGET /api/x HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(caller.reply().status, 200);
    }
    assert_eq!(gateway.caller().send("\r\n".repeat(1000)).reply().status, 400);
}

/// Reads `after` bytes of a request and resets the connection while more is to come.
fn resetting(after: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut seen, mut space) = (stream.unwrap(), 0, [0; 1024]);
            while seen < after {
                seen += stream.read(&mut space).unwrap();
            }
            socket2::Socket::from(stream).set_linger(Some(std::time::Duration::ZERO)).unwrap();
        }
    });
    at
}

#[test]
fn an_upstream_that_resets_during_an_upload_is_to_blame_for_it() {
    let breaker = "breaker = { consecutive = 2, min_calls = 100, open = \"5s\", max_wait = \"0s\" }\n";
    let at = resetting(2 * 1024);
    let gateway = Start::with(&format!("[upstreams.api]\nurl = \"http://{at}\"\n{breaker}{FAST}")).server("replay_body = \"1KiB\"").go();
    for _ in 0..2 {
        let mut caller = gateway.caller();
        // The rest of the body is never sent: the gateway waits for it when the upstream hangs up.
        caller.send(format!("POST /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: {LARGE}\r\n\r\n")).send("x".repeat(4 * 1024));
        let reply = caller.reply();
        assert_eq!((reply.status, reply.json()["code"].as_str()), (502, Some("upstream_unreachable")));
        assert_eq!(reply.header("connection"), Some("close"));
    }
    assert_eq!(gateway.get("/api/x").json()["code"], "circuit_open", "both count in the breaker");
}

/// The gateway stands still meanwhile, so that it hears of both in one moment.
#[test]
fn an_upstream_that_resets_when_the_caller_does_is_to_blame_for_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let breaker = "breaker = { consecutive = 2, min_calls = 100, open = \"5s\", max_wait = \"0s\" }\n";
    let gateway = Start::with(&format!("[upstreams.api]\nurl = \"http://{at}\"\n{breaker}{FAST}")).server("replay_body = \"1KiB\"").go();
    let reset = |stream: std::net::TcpStream| socket2::Socket::from(stream).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    for _ in 0..2 {
        let mut caller = std::net::TcpStream::connect(gateway.at).unwrap();
        write!(caller, "POST /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: {LARGE}\r\n\r\n{}", "x".repeat(4 * 1024)).unwrap();
        let (mut upstream, _) = listener.accept().unwrap();
        let (mut seen, mut space) = (0, [0; 1024]);
        while seen < 4 * 1024 {
            seen += upstream.read(&mut space).unwrap();
        }
        gateway.signal("STOP");
        reset(upstream);
        reset(caller);
        gateway.signal("CONT");
        eventually("the call is over", || gateway.metric("seawall_in_flight{upstream=\"api\",pool=\"\"}") == Some(0.0));
    }
    assert_eq!(gateway.get("/api/x").json()["code"], "circuit_open", "both count in the breaker");
}

#[test]
fn a_caller_that_breaks_off_its_upload_is_no_failure_of_the_upstream() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let breaker = "breaker = { consecutive = 1, min_calls = 100 }\n";
    let gateway = Start::with(&format!("[upstreams.api]\nurl = \"http://{at}\"\n{breaker}{FAST}")).server("replay_body = \"1KiB\"").go();
    for _ in 0..3 {
        let mut caller = gateway.caller();
        caller.send(POST).send(chunk(8 * 1024));
        let (mut upstream, mut space) = (listener.accept().unwrap().0, [0; 1024]);
        assert!(upstream.read(&mut space).unwrap() > 0);
        caller.send("no chunk\r\n");
        assert_eq!(caller.reply().status, 400, "and not 503 by an open breaker");
    }
}
