//! Bodies in both directions: small responses are retried, slow uploads arrive, and broken bodies are reported.

use super::caller::eventually;
use super::gateway::Start;
use super::upstream::{OK, Upstream};

const RETRIES: &str = "retry = { base = \"1ms\" }\n";
const JSON: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";

#[test]
fn a_small_response_that_breaks_off_is_retried() {
    let broken = [
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello".to_owned(),
        format!("{JSON}Transfer-Encoding: chunked\r\n\r\n5\r\n[1, 2\r\n"),
        format!("{JSON}Transfer-Encoding: chunked\r\n\r\n5\r\n[1, 2\r\nzz\r\n"),
    ];
    for broken in broken {
        let upstream = Upstream::with(move |turn| if turn.number == 0 { turn.send(&broken).close() } else { turn.say(OK) });
        let gateway = Start::before(&upstream, RETRIES).go();
        let reply = gateway.get("/api/x");
        assert_eq!((reply.status, reply.text().as_str(), reply.complete), (200, "ok", true));
        assert_eq!(reply.header("seawall-attempts"), Some("2"));
        let attempts = gateway.log(1);
        assert_eq!((&attempts[0]["status"], &attempts[0]["outcome"]), (&"reset".into(), &"transient".into()), "{attempts:?}");
    }
}

#[test]
fn a_small_response_that_breaks_off_and_may_not_be_repeated_is_an_error() {
    let upstream = Upstream::with(|turn| turn.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello").close());
    let gateway = Start::before(&upstream, RETRIES).go();
    let reply = gateway.post("/api/x", "", "order");
    assert_eq!((reply.status, reply.code().as_str(), upstream.count()), (502, "upstream_unreachable", 1));
    assert_eq!(reply.header("seawall-reason"), Some("post_without_key"));
}

#[test]
fn read_ahead_can_be_switched_off() {
    let upstream = Upstream::with(|turn| turn.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello").pause(30).close());
    let gateway = Start::before(&upstream, &format!("{RETRIES}read_ahead = \"0B\"")).go();
    let reply = gateway.get("/api/x");
    assert_eq!((reply.status, reply.complete, upstream.count()), (200, false, 1));
}

/// A server that sends a document element by element has callers that want the first one.
#[test]
fn a_document_that_takes_its_time_is_passed_on_before_its_end() {
    let upstream = Upstream::with(|turn| {
        turn.send(format!("{JSON}Transfer-Encoding: chunked\r\n\r\n3\r\n[1,\r\n"));
        // The caller leaves once it has the beginning.
        let stream = turn.stream.try_clone().unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        let _left = std::io::Read::read(&mut &stream, &mut [0; 1]);
        turn.close();
    });
    let gateway = Start::before(&upstream, RETRIES).go();
    let mut caller = gateway.caller();
    caller.send("GET /api/x HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut seen = caller.piece();
    while !seen.contains("[1,") {
        seen.push_str(&caller.piece());
    }
    drop(caller);
    eventually("the record says that the caller left", || gateway.stdout().contains("\"outcome\":\"cancelled\""));
}

#[test]
fn a_stream_of_events_is_not_held_back() {
    for length in ["Transfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n", "Content-Length: 18\r\n\r\ndata: 1\n\n"] {
        let upstream = Upstream::with(move |turn| {
            turn.send(format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{length}"));
            turn.stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
            let _left = std::io::Read::read(&mut turn.stream, &mut [0; 1]);
            turn.close();
        });
        let gateway = Start::before(&upstream, RETRIES).go();
        let mut caller = gateway.caller();
        caller.send("GET /api/x HTTP/1.1\r\nHost: h\r\n\r\n");
        let mut seen = caller.piece();
        while !seen.contains("data: 1") {
            seen.push_str(&caller.piece());
        }
    }
}

#[test]
fn an_upload_that_keeps_moving_may_take_longer_than_an_attempt() {
    let upstream = Upstream::fine();
    let policy =
        "timeout = { attempt = \"2s\" }\nretry = { attempts = 1 }\nbreaker = { slow = \"2s\", slow_rate = \"50%\", min_calls = 1 }\n";
    let gateway = Start::before(&upstream, policy).server("replay_body = \"1KiB\"").go();
    let mut caller = gateway.caller();
    caller.send("POST /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: 16384\r\n\r\n");
    for _ in 0..16 {
        caller.send("x".repeat(1024));
        std::thread::sleep(std::time::Duration::from_millis(250));
    }
    let reply = caller.reply();
    assert_eq!((reply.status, reply.header("seawall-outcome")), (200, Some("success")), "{}", reply.text());
    assert_eq!(upstream.seen()[0].body.len(), 16384);
    assert_eq!(gateway.look("/v1/breakers")["items"][0]["state"], "closed", "the caller's pace is not the upstream's slowness");
}

#[test]
fn an_upload_that_stalls_is_cut_with_its_own_reason() {
    let upstream = Upstream::fine();
    let policy = "timeout = { attempt = \"1s\", idle = \"1s\", first_byte = \"1s\" }\nretry = { attempts = 1 }\n";
    let gateway = Start::before(&upstream, policy).server("replay_body = \"1KiB\"").go();
    let mut caller = gateway.caller();
    caller.send("POST /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: 16384\r\n\r\n").send("x".repeat(8192));
    let reply = caller.reply();
    assert_eq!((reply.status, reply.code().as_str()), (408, "request_timeout"));
}

#[test]
fn an_endpoint_may_take_larger_bodies_than_the_server_and_smaller_ones() {
    let upstream = Upstream::fine();
    let endpoints = "[[upstreams.api.endpoints]]\nname = \"files\"\nmatch = \"POST /files\"\nmax_body = \"64KiB\"\n\
                     [[upstreams.api.endpoints]]\nname = \"small\"\nmatch = \"POST /small\"\nmax_body = \"1KiB\"\n";
    let gateway = Start::before(&upstream, &format!("{RETRIES}{endpoints}")).server("max_body = \"8KiB\"\nreplay_body = \"1KiB\"").go();
    for (path, size, status) in [
        ("/api/files", 32 * 1024, 200),
        ("/api/x", 32 * 1024, 413),
        ("/api/x", 4096, 200),
        ("/api/small", 4096, 413),
        ("/api/small", 1000, 200),
    ] {
        assert_eq!(gateway.post(path, "", &"x".repeat(size)).status, status, "{path} {size}");
    }
    let deferred = |path: &str, size: usize| {
        let head = format!("POST {path} HTTP/1.1\r\nHost: h\r\nPrefer: respond-async\r\nContent-Length: {size}\r\n\r\n");
        gateway.caller().send(head).send("x".repeat(size)).reply().status
    };
    assert_eq!([deferred("/api/small", 4096), deferred("/api/x", 4096), deferred("/api/files", 32 * 1024)], [413, 202, 413]);
}
