//! Consecutive exchanges with an upstream over HTTP/1.1: the effect of an odd response on its call, and on the reuse of its connection.

use super::forwarding::FAST;
use super::gateway::Start;
use super::upstream::{OK, Upstream};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The fate of an upstream's connection after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Kept,
    Closed,
}

/// Asks once and gets `answer`, then asks again: the second exchange must be as if the first had never been.
#[track_caller]
fn exchanged(method: &str, answer: &str, expected: (u16, &str), then: Then) {
    let said = answer.to_owned();
    let upstream = Upstream::with(move |turn| if turn.number == 0 { turn.say(&said) } else { turn.say(OK) });
    let policy = FAST.replace("attempts = 3", "attempts = 1");
    let gateway = Start::before(&upstream, &policy).threads(1).go();
    let reply = gateway.caller().send(format!("{method} /api/x HTTP/1.1\r\nHost: h\r\n\r\n")).reply_to(method);
    assert!(reply.complete, "{answer:?}");
    let body = if reply.status == 502 { reply.code() } else { reply.text() };
    assert_eq!((reply.status, body.as_str()), expected, "{answer:?}");
    assert_eq!(gateway.get("/api/next").text(), "ok", "after {answer:?}");
    assert_eq!(upstream.connections(), if then == Then::Kept { 1 } else { 2 }, "after {answer:?}");
}

#[test]
fn interim_answers_come_before_the_one_that_counts() {
    let interim = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\nContent-Length: 9\r\n\r\n";
    exchanged("GET", &format!("{interim}{OK}"), (200, "ok"), Then::Kept);
}

#[test]
fn answers_without_a_body_leave_the_connection_usable() {
    exchanged("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", (200, ""), Then::Kept);
    exchanged("HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", (200, ""), Then::Kept);
    exchanged("GET", "HTTP/1.1 204 No Content\r\n\r\n", (204, ""), Then::Kept);
    exchanged("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", (304, ""), Then::Kept);
    exchanged("GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", (200, ""), Then::Kept);
}

#[test]
fn bytes_that_nobody_asked_for_end_the_connection() {
    exchanged("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", (200, ""), Then::Closed);
    exchanged("GET", "HTTP/1.1 204 No Content\r\n\r\nhello", (204, ""), Then::Closed);
    exchanged("GET", "HTTP/1.1 304 Not Modified\r\n\r\nhello", (304, ""), Then::Closed);
    exchanged("GET", &format!("{OK}HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"), (200, "ok"), Then::Closed);
    exchanged("GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nevil", (200, "ok"), Then::Closed);
}

#[test]
fn chunks_end_where_they_say() {
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    exchanged("GET", &format!("{head}2;a=\"b;c\"\r\nok\r\n0;last\r\nX-T: 1\r\n\r\n"), (200, "ok"), Then::Kept);
    exchanged("GET", &format!("{head}0\r\n\r\n"), (200, ""), Then::Kept);
    exchanged("GET", &format!("{head}1\r\no\r\n01\r\nk\r\n000\r\n\r\n"), (200, "ok"), Then::Kept);
}

#[test]
fn lengths_that_agree_are_one_and_others_are_garbage() {
    exchanged("GET", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok", (200, "ok"), Then::Kept);
    exchanged("GET", "HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok", (200, "ok"), Then::Kept);
    for length in ["-2", "+2", "2 2", "0x2", "2, 3", "2\r\nContent-Length: 3", "", "two", "99999999999999999999"] {
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\nok");
        exchanged("GET", &answer, (502, "upstream_unreachable"), Then::Closed);
    }
}

#[test]
fn heads_are_read_strictly() {
    let large = format!("HTTP/1.1 200 OK\r\nX-Large: {}\r\nContent-Length: 2\r\n\r\nok", "x".repeat(50_000));
    exchanged("GET", &large, (200, "ok"), Then::Kept);
    for head in [
        "HTTP/1.1 200 OK\r\nX-Folded: a\r\n b\r\nContent-Length: 2\r\n\r\nok".to_owned(),
        "HTTP/1.1 200 OK\r\n X: a\r\nContent-Length: 2\r\n\r\nok".to_owned(),
        "HTTP/1.1 200 OK\r\nX : a\r\nContent-Length: 2\r\n\r\nok".to_owned(),
        "HTTP/1.1 200 OK\nContent-Length: 2\n\nok".to_owned(),
        "HTTP/1.1 200 OK\r\nX: a\nContent-Length: 2\r\n\r\nok".to_owned(),
        "HTTP/1.1 200 OK\r\nX: a\rY: b\r\nContent-Length: 2\r\n\r\nok".to_owned(),
        "HTTP/1.1  200 OK\r\nContent-Length: 2\r\n\r\nok".to_owned(),
        format!("HTTP/1.1 200 OK\r\nX-Huge: {}\r\nContent-Length: 2\r\n\r\nok", "x".repeat(70_000)),
        format!("HTTP/1.1 200 OK\r\n{}Content-Length: 2\r\n\r\nok", "X: y\r\n".repeat(300)),
    ] {
        exchanged("GET", &head, (502, "upstream_unreachable"), Then::Closed);
    }
}

/// An upstream that answers as soon as it has seen a head, and reads no further.
fn hasty(answer: &'static str) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, connections) = (listener.local_addr().unwrap().to_string(), Arc::<AtomicUsize>::default());
    let counted = Arc::clone(&connections);
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let first = counted.fetch_add(1, Ordering::SeqCst) == 0;
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n == 1) {
                head.push(byte[0]);
            }
            stream.write_all(if first { answer } else { OK }.as_bytes()).unwrap();
            open.push(stream);
        }
    });
    (at, connections)
}

#[test]
fn an_answer_that_comes_before_the_request_has_ended_is_relayed_and_ends_the_connection() {
    let (at, connections) = hasty("HTTP/1.1 413 Too Much\r\nContent-Length: 3\r\n\r\nbig");
    let gateway = Start::with(&format!("[upstreams.api]\nurl = \"http://{at}\"\n{FAST}")).server("replay_body = \"1KiB\"").threads(1).go();
    let mut caller = gateway.caller();
    caller.send(format!("POST /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: 200000\r\n\r\n{}", "x".repeat(100_000)));
    let reply = caller.reply();
    assert_eq!((reply.status, reply.text().as_str(), reply.header("seawall-attempts")), (413, "big", Some("1")));
    assert_eq!(gateway.get("/api/next").text(), "ok");
    assert_eq!(connections.load(Ordering::SeqCst), 2);
}
