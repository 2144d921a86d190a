//! Answers on their way back, on raw sockets: what a caller gets of whatever an upstream sends, and what it must not.

use super::caller::{Watch, eventually};
use super::forwarding::{FAST, pair};
use super::gateway::Start;
use super::upstream::{OK, Upstream, answer};
use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn an_answers_headers_of_one_hop_stay_on_it() {
    let reply = answer(
        "200 OK",
        "Connection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\nAlt-Svc: h3\r\nSeawall-Anything: 1\r\nSeawall-Call: forged\r\nX-End: 1\r\n",
        "x",
    );
    let (gateway, _upstream) = pair(Upstream::replying(&[&reply]));
    let reply = gateway.get("/api/x");
    for name in ["x-hop", "keep-alive", "proxy-authenticate", "alt-svc", "seawall-anything"] {
        assert_eq!(reply.header(name), None, "{name}");
    }
    assert_eq!(reply.header("x-end"), Some("1"));
    assert_ne!(reply.header("seawall-call"), Some("forged"));
    assert_eq!((reply.header("seawall-attempts"), reply.header("seawall-outcome")), (Some("1"), Some("success")));
    assert!(reply.header("via").is_some_and(|via| via.starts_with("1.1 seawall")));
}

#[test]
fn each_header_of_one_hop_stays_on_it_also_where_it_is_the_only_one() {
    let held = [
        "Keep-Alive",
        "PROXY-CONNECTION",
        "Proxy-Authenticate",
        "alt-svc",
        "Upgrade",
        "Seawall-Anything",
        "SEAWALL_ANYTHING",
        "Seawall-Of-A-Name-That-Is-Longer-Than-Ours",
    ];
    let replies = held.map(|name| answer("200 OK", &format!("X-End: 1\r\n{name}: 1\r\n"), "x"));
    let replies: Vec<&str> = replies.iter().map(String::as_str).collect();
    let (gateway, _upstream) = pair(Upstream::replying(&replies));
    for name in held {
        let reply = gateway.get("/api/x");
        assert_eq!((reply.header("x-end"), reply.header(&name.to_ascii_lowercase())), (Some("1"), None), "{name}");
    }
}

#[test]
fn trailers_never_become_headers() {
    // 27
    let (gateway, _upstream) = pair(Upstream::replying(&[
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n5\r\nhello\r\n0\r\nX-T: 1\r\n\r\n",
    ]));
    let reply = gateway.get_with("/api/x", "TE: trailers\r\nConnection: TE\r\n");
    assert_eq!((reply.text().as_str(), reply.complete, reply.header("x-t")), ("hello", true, None));
}

#[test]
fn a_header_section_without_end_is_a_bad_gateway() {
    // 45
    for bomb in [format!("X-A: {}\r\n", "a".repeat(256 * 1024)), "X-A: 1\r\n".repeat(2000), "X-A: 1\r\n".repeat(100_000)] {
        let (gateway, _upstream) = pair(Upstream::replying(&[&format!("HTTP/1.1 200 OK\r\n{bomb}Content-Length: 0\r\n\r\n")]));
        let reply = gateway.get("/api/x");
        assert_eq!((reply.status, reply.code().as_str()), (502, "upstream_unreachable"));
        assert_eq!(reply.header("proxy-status"), Some("seawall; error=http_response_header_section_size"));
    }
}

#[test]
fn answers_that_have_no_body_get_none() {
    // 47
    let stray = "HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray";
    let replies = [
        stray,
        OK,
        "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nContent-Length: 500\r\n\r\n",
        OK,
        "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",
        OK,
    ];
    let (gateway, _upstream) = pair(Upstream::replying(&replies));
    let mut caller = gateway.caller();
    let watch = Watch::start();
    for status in [204, 200, 304, 200, 204, 200] {
        let reply = caller.send("GET /api/x HTTP/1.1\r\nHost: h\r\n\r\n").reply();
        assert_eq!(reply.status, status);
        assert_eq!(reply.text(), if status == 200 { "ok" } else { "" });
        assert_eq!(reply.header("transfer-encoding"), None);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(watch.ms() < 700, "nothing waited for a body that cannot come");
}

#[test]
fn a_head_request_gets_the_length_and_no_body() {
    let (gateway, upstream) = pair(Upstream::replying(&["HTTP/1.1 200 OK\r\nContent-Length: 1234\r\nETag: \"x\"\r\n\r\n", OK]));
    let mut caller = gateway.caller();
    let reply = caller.send("HEAD /api/x HTTP/1.1\r\nHost: h\r\n\r\n").reply_to("HEAD");
    assert_eq!((reply.status, reply.header("content-length"), reply.header("etag")), (200, Some("1234"), Some("\"x\"")));
    assert_eq!(caller.send("GET /api/x HTTP/1.1\r\nHost: h\r\n\r\n").reply().text(), "ok");
    assert_eq!(upstream.connections(), 1, "both connections go on");
    let reply = caller.send("HEAD /none HTTP/1.1\r\nHost: h\r\n\r\n").reply_to("HEAD");
    assert_eq!(reply.status, 404);
    assert_eq!(caller.send("GET /api/x HTTP/1.1\r\nHost: h\r\n\r\n").reply().text(), "ok");
}

#[test]
fn an_answer_that_breaks_off_never_looks_complete() {
    // 49, 71
    let broken = [
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nhello",
    ];
    for reply in broken {
        let upstream = Upstream::with(move |turn| turn.send(reply).pause(30).close());
        let (gateway, upstream) = pair(upstream);
        let mut caller = gateway.caller();
        let reply = caller.send("GET /api/x HTTP/1.1\r\nHost: h\r\n\r\n").reply();
        assert_eq!((reply.status, reply.complete), (200, false), "{reply:?}");
        assert_eq!(upstream.count(), 1, "what has begun is not retried");
        let log = gateway.log(1);
        assert_eq!(log.iter().filter(|line| line["event"] == "attempt").count(), 1);
        let call = log.iter().find(|line| line["event"] == "call").unwrap();
        assert_eq!(
            (&call["outcome"], &call["reason"]),
            (&"stream_cut".into(), &"stream_cut".into()),
            "the record tells what the caller got"
        );
    }
}

#[test]
fn truncated_answers_count_as_failures() {
    // 71
    let upstream = Upstream::with(|turn| turn.send("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nhello").close());
    let gateway = Start::before(
        &upstream,
        &format!("{FAST}breaker = {{ min_calls = 4, failure_rate = \"50%\", consecutive = 0, open = \"5s\", max_wait = \"0s\" }}"),
    )
    .go();
    let statuses: Vec<u16> = (0..6).map(|_| gateway.get("/api/x").status).collect();
    assert!(statuses.starts_with(&[200, 200]) && statuses.ends_with(&[503]), "{statuses:?}");
}

#[test]
fn two_framings_of_an_answer_become_one() {
    // 51
    for headers in ["Content-Length: 3\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 30"] {
        let (gateway, _upstream) = pair(Upstream::replying(&[&format!("HTTP/1.1 200 OK\r\n{headers}\r\n\r\n5\r\nhello\r\n0\r\n\r\n")]));
        let reply = gateway.get("/api/x");
        assert_eq!((reply.status, reply.text().as_str(), reply.complete), (200, "hello", true));
        assert_eq!(reply.header("content-length"), None);
    }
}

#[test]
fn garbage_is_a_bad_gateway() {
    // 53
    let garbage = [
        "BLAH BLAH\r\n\r\n",
        "HTTP/1.1 abc\r\n\r\n",
        "HTTP/1.1 200 OK\r\nbroken header\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
        "SSH-2.0-OpenSSH_9.6\r\n",
        "\u{15}\u{3}\u{1}\0\u{2}\u{2}P",
    ];
    for bytes in garbage {
        let (gateway, _upstream) = pair(Upstream::with(move |turn| turn.send(bytes).close()));
        let reply = gateway.get("/api/x");
        assert_eq!((reply.status, reply.code().as_str()), (502, "upstream_unreachable"), "{bytes:?}");
        let attempts = gateway.log(1);
        assert!(["malformed", "reset"].contains(&attempts[0]["status"].as_str().unwrap()), "{attempts:?}");
    }
}

#[test]
fn interim_answers_do_not_get_in_the_way() {
    let (gateway, _upstream) = pair(Upstream::replying(&[&format!(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n{OK}"
    )]));
    let mut caller = gateway.caller();
    for _ in 0..2 {
        let reply = caller.send("POST /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx").reply();
        assert_eq!((reply.status, reply.text().as_str(), reply.header("link")), (200, "ok", None));
    }
}

#[test]
fn an_event_arrives_while_the_stream_stays_open() {
    // 65
    let upstream = Upstream::with(|turn| {
        turn.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
        turn.pause(50).send("9\r\ndata: 1\n\n\r\n").pause(500).send("9\r\ndata: 2\n\n\r\n0\r\n\r\n");
    });
    let (gateway, _upstream) = pair(upstream);
    let mut caller = gateway.caller();
    let watch = Watch::start();
    caller.send("GET /api/x HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut first = caller.piece();
    while !first.contains("data: 1") {
        first.push_str(&caller.piece());
    }
    assert!(watch.ms() < 500, "the first event took {} ms", watch.ms());
    assert!(!first.contains("data: 2"));
    assert!(caller.piece().contains("data: 2"));
}

#[test]
fn rules_that_look_at_bodies_do_not_hold_events_back() {
    for preset in ["github", "graphql", "slack", "lastfm", "shopify", "subsonic"] {
        let is_first_here = Arc::new(AtomicBool::new(false));
        let heard = Arc::clone(&is_first_here);
        let upstream = Upstream::with(move |turn| {
            turn.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n");
            eventually("the first event has arrived", || heard.load(Ordering::SeqCst));
            turn.send("9\r\ndata: 2\n\n\r\n0\r\n\r\n");
        });
        let gateway = Start::before(&upstream, &format!("preset = \"{preset}\"\n")).go();
        let mut caller = gateway.caller();
        caller.send("GET /api/x HTTP/1.1\r\nHost: h\r\n\r\n");
        let mut got = caller.piece();
        while !got.contains("data: 1") {
            got.push_str(&caller.piece());
        }
        is_first_here.store(true, Ordering::SeqCst);
        assert!(caller.piece().contains("data: 2"), "{preset}");
    }
}

#[test]
fn a_stream_that_goes_silent_ends() {
    let upstream = Upstream::with(|turn| {
        turn.send("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nhello");
        assert!(turn.is_left(), "the gateway gives up on a silent upstream");
    });
    let gateway = Start::before(&upstream, "timeout = { idle = \"300ms\" }").go();
    let watch = Watch::start();
    let reply = gateway.get("/api/x");
    assert!(!reply.complete && (250..1500).contains(&watch.ms()), "{} ms, {reply:?}", watch.ms());
}

#[test]
fn an_old_client_does_not_take_a_part_for_the_whole() {
    let upstream = Upstream::with(|turn| {
        turn.send(format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n20000\r\n{}\r\n", "x".repeat(0x20000)));
        turn.pause(50).close();
    });
    let (gateway, _upstream) = pair(upstream);
    let mut stream = std::net::TcpStream::connect(gateway.at).unwrap();
    stream.write_all(b"GET /api/x HTTP/1.0\r\nHost: h\r\n\r\n").unwrap();
    let mut got = Vec::new();
    let end = stream.read_to_end(&mut got);
    assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset, "{} bytes", got.len());
}

#[test]
fn an_old_client_gets_a_plain_body_and_an_end() {
    // 67
    let (gateway, upstream) = pair(Upstream::replying(&["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"]));
    let mut caller = gateway.caller();
    let reply = caller.send("GET /api/x HTTP/1.0\r\n\r\n").reply();
    assert_eq!((reply.status, reply.text().as_str(), reply.header("transfer-encoding")), (200, "hello", None));
    assert!(caller.is_closed());
    let seen = upstream.seen().remove(0);
    assert!(seen.line().ends_with("HTTP/1.1") && seen.all("via")[0].starts_with("1.0 "));
}

#[test]
fn an_old_upstream_is_read_to_its_end() {
    let (gateway, upstream) = pair(Upstream::with(|turn| turn.send("HTTP/1.0 200 OK\r\n\r\nhello").close()));
    for _ in 0..2 {
        let reply = gateway.get("/api/x");
        assert_eq!((reply.status, reply.text().as_str(), reply.complete), (200, "hello", true));
    }
    assert_eq!(upstream.connections(), 2);
}

#[test]
fn redirects_and_large_bodies_are_relayed_as_they_are() {
    let body = "0123456789abcdef".repeat(128 * 1024);
    let (gateway, upstream) =
        pair(Upstream::replying(&[&answer("302 Found", "Location: http://elsewhere.test/\r\n", ""), &answer("200 OK", "", &body)]));
    let reply = gateway.get("/api/x");
    assert_eq!((reply.status, reply.header("location"), upstream.count()), (302, Some("http://elsewhere.test/"), 1));
    assert!(gateway.get("/api/x").body == body.as_bytes(), "two megabytes arrive whole");
}
