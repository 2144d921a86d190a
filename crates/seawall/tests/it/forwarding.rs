//! Requests on their way to the upstream, on raw sockets: what reaches it, what does not, and what we refuse.
//! Numbers in comments are lines of the project's list of forwarding facts.

use super::caller::{Reply, eventually};
use super::gateway::{Gateway, Start};
use super::upstream::{OK, Seen, Upstream, answer};

/// Waits short enough for a test.
pub(crate) const FAST: &str =
    "timeout = { connect = \"500ms\", attempt = \"800ms\", total = \"2s\" }\nretry = { attempts = 3, base = \"5ms\", cap = \"20ms\" }\n";

pub(crate) fn pair(upstream: Upstream) -> (Gateway, Upstream) {
    (Start::before(&upstream, FAST).threads(1).go(), upstream)
}

/// Forwards one request and returns it as the upstream saw it.
#[track_caller]
fn forwarded(request: &str) -> Seen {
    let (gateway, upstream) = pair(Upstream::fine());
    assert_eq!(gateway.ask(request).status, 200);
    upstream.seen().remove(0)
}

/// Sends requests that must be refused one by one, and checks that nothing of them went on.
#[track_caller]
fn refused(requests: &[(&str, &[u16])]) -> Vec<Reply> {
    let (gateway, upstream) = pair(Upstream::fine());
    let mut replies = Vec::new();
    for (request, statuses) in requests {
        let mut caller = gateway.caller();
        let reply = caller.send(request).reply();
        assert!(statuses.contains(&reply.status), "{request:?} got {reply:?}");
        assert_eq!(upstream.raw(), "", "{request:?} reached the upstream");
        assert!(caller.is_closed(), "{request:?} left its connection open");
        replies.push(reply);
    }
    assert_eq!(gateway.get("/api/next").status, 200, "the next request is unaffected");
    replies
}

#[test]
fn headers_of_one_hop_stay_on_it() {
    // 1
    let seen = forwarded(
        "GET /api/x HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nProxy-Connection: close\r\nProxy-Authorization: Basic eA==\r\nX-End: 1\r\n\r\n",
    );
    assert_eq!(seen.all("x-end"), ["1"]);
    for name in ["x-hop", "keep-alive", "proxy-connection", "proxy-authorization", "connection"] {
        assert!(!seen.has(name), "{name} in {}", seen.head);
    }
}

#[test]
fn only_trailers_survives_of_te() {
    // 3
    for (te, expected) in [("gzip;q=0.5", vec![]), ("trailers, deflate", vec![]), ("trailers", vec!["trailers"])] {
        let seen = forwarded(&format!("GET /api/x HTTP/1.1\r\nHost: h\r\nConnection: TE\r\nTE: {te}\r\n\r\n"));
        assert_eq!(seen.all("te"), expected);
    }
}

#[test]
fn a_length_beside_chunks_smuggles_nothing() {
    // 5
    let (gateway, upstream) = pair(Upstream::fine());
    for framing in ["Content-Length: 6\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 6"] {
        let mut caller = gateway.caller();
        let request = format!("POST /api/x HTTP/1.1\r\nHost: h\r\n{framing}\r\n\r\n0\r\n\r\nGET /api/smug HTTP/1.1\r\nHost: h\r\n\r\n");
        let reply = caller.send(request).reply();
        assert!([200, 400].contains(&reply.status), "{reply:?}");
        assert!(caller.is_closed(), "nothing after such a message is read");
    }
    assert!(!upstream.raw().contains("smug"), "{}", upstream.raw());
    assert!(upstream.seen().iter().all(|seen| !(seen.has("content-length") && seen.has("transfer-encoding"))));
}

#[test]
fn a_length_that_is_no_number_is_refused() {
    // 7, 9
    let lengths = ["+5", "-1", "0x5", "", "5 5", "12345678901234567890123", "5.0", "five", "5\r\nContent-Length: 6", "5, 6"];
    let requests: Vec<String> =
        lengths.iter().map(|length| format!("POST /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\nhello")).collect();
    let requests: Vec<(&str, &[u16])> = requests.iter().map(|request| (request.as_str(), &[400][..])).collect();
    for reply in refused(&requests) {
        assert_eq!(reply.code(), "bad_request");
    }
}

#[test]
fn transfer_codings_that_we_do_not_speak_are_refused() {
    // 11, 13
    let with = |version: &str, coding: &str| {
        format!("POST /api/x HTTP/{version}\r\nHost: h\r\nTransfer-Encoding: {coding}\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
    };
    let codings =
        ["gzip, chunked", "chunked, chunked", "chunked\r\nTransfer-Encoding: chunked", "gzip", "identity", "xchunked", "chunked;q=1"];
    let mut requests: Vec<String> = codings.iter().map(|coding| with("1.1", coding)).collect();
    requests.push(with("1.0", "chunked"));
    let requests: Vec<(&str, &[u16])> = requests.iter().map(|request| (request.as_str(), &[400, 501][..])).collect();
    for reply in refused(&requests) {
        assert!(["bad_request", "not_implemented"].contains(&reply.code().as_str()));
    }
}

#[test]
fn malformed_heads_are_refused() {
    // 15, 17, 29, 37
    let replies = refused(&[
        ("GET /api/x HTTP/1.1\r\nHost: h\r\nX-A: 1\r\n folded\r\n\r\n", &[400]),
        ("GET /api/x HTTP/1.1\r\n X-A: 1\r\nHost: h\r\n\r\n", &[400]),
        ("GET /api/x HTTP/1.1\r\nHost: h\r\nX-A: a\0b\r\n\r\n", &[400]),
        ("GET /api/x HTTP/1.1\r\nHost: h\r\nX-A: a\rb\r\n\r\n", &[400]),
        ("GET /api/x HTTP/1.1\r\nHost: h\r\nX-A : 1\r\n\r\n", &[400]),
        ("GET /api/x HTTP/1.1\r\nHost: h\r\nHost: i\r\n\r\n", &[400]),
        ("GET /api/x HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n", &[400]),
        ("GET /api/x HTTP/1.1\r\nHost: a/#b\r\n\r\n", &[400]),
        ("GET /api/x HTTP/1.1\r\nHost: user@h\r\n\r\n", &[400]),
        ("GET /api/x HTTP/1.1\r\n\r\n", &[400]),
        ("GE T /api/x HTTP/1.1\r\nHost: h\r\n\r\n", &[400]),
        ("GET /api/x HTTP/3.7\r\nHost: h\r\n\r\n", &[400, 505]),
        ("GET /api/x y HTTP/1.1\r\nHost: h\r\n\r\n", &[400]),
        ("GET /api/x?y=\"z\" HTTP/1.1\r\nHost: h\r\n\r\n", &[400]),
        ("\u{1}\u{2}\u{3}\r\n\r\n", &[400]),
    ]);
    for reply in replies {
        assert_eq!(reply.code(), "bad_request");
        let call = reply.problem()["call"].as_str().map(str::to_owned);
        assert!(call.is_some() && reply.header("seawall-call").map(str::to_owned) == call, "{reply:?}");
        assert!(reply.header("date").is_some_and(|date| date.ends_with(" GMT")), "{reply:?}");
    }
}

#[test]
fn bare_line_feeds_are_refused() {
    // 19
    refused(&[
        ("GET /api/x HTTP/1.1\nHost: h\nX-A: 1\n\n", &[400]),
        ("POST /api/x HTTP/1.1\r\nHost: h\r\nX-A: 1\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", &[400]),
        ("GET /api/x HTTP/1.1\r\nHost: h\r\n\n", &[400]),
    ]);
}

#[test]
fn an_upgrade_is_ignored_except_that_a_websocket_is_told_no() {
    // 21, 69
    let seen = forwarded(
        "POST /api/x HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nContent-Length: 5\r\n\r\nhello",
    );
    assert!(!seen.has("upgrade") && !seen.has("http2-settings") && seen.body == b"hello");
    let replies = refused(&[(
        "GET /api/ws HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\n\r\n",
        &[501],
    )]);
    assert_eq!(replies[0].code(), "not_implemented");
}

#[test]
fn broken_chunks_are_refused_and_nothing_after_them_is_a_request() {
    // 23, 25
    let start = "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    let smuggled = "GET /api/smug HTTP/1.1\r\nHost: h\r\n\r\n";
    let bodies = [
        format!("5;a\nb\r\nhello\r\n0\r\n\r\n{smuggled}"),
        format!("5\nhello\r\n0\r\n\r\n{smuggled}"),
        format!("5;{}\r\nhello\r\n0\r\n\r\n{smuggled}", "x".repeat(20 * 1024)),
        format!("-5\r\nhello\r\n0\r\n\r\n{smuggled}"),
        format!("fffffffffffffffff\r\nhello\r\n0\r\n\r\n{smuggled}"),
        format!("5\r\nhelloXX0\r\n\r\n{smuggled}"),
        format!("zz\r\nhello\r\n0\r\n\r\n{smuggled}"),
    ];
    let requests: Vec<String> = bodies.iter().map(|body| format!("{start}{body}")).collect();
    let requests: Vec<(&str, &[u16])> = requests.iter().map(|request| (request.as_str(), &[400][..])).collect();
    for reply in refused(&requests) {
        assert_eq!(reply.code(), "bad_request");
    }
}

#[test]
fn the_callers_host_goes_nowhere() {
    // 31
    let (gateway, upstream) = pair(Upstream::fine());
    assert_eq!(gateway.ask("GET http://evil.test/api/x?y HTTP/1.1\r\nHost: other.test\r\n\r\n").status, 200);
    assert_eq!(gateway.get("/api/x?y").status, 200);
    for seen in upstream.seen() {
        assert_eq!(seen.line(), "GET /x?y HTTP/1.1");
        assert_eq!(seen.all("host"), [upstream.at.to_string()]);
    }
    assert!(!upstream.raw().contains(".test"));
}

#[test]
fn methods_for_other_hops_are_answered_here() {
    // 33
    let replies = refused(&[
        ("TRACE /api/x HTTP/1.1\r\nHost: h\r\nMax-Forwards: 0\r\n\r\n", &[405]),
        ("CONNECT api:80 HTTP/1.1\r\nHost: api:80\r\n\r\n", &[405]),
    ]);
    for reply in replies {
        assert_eq!(reply.code(), "method_not_allowed");
    }
}

#[test]
fn the_target_is_kept_byte_for_byte() {
    // 35
    let (gateway, upstream) = pair(Upstream::fine());
    let targets = ["/a%2Fb//c/%2e%2e/d;x?q=%20y&&", "/", "/?", "/a?b=/api/c", "//", "/%00%ff", "/a/../b", "/{x}|\\^"];
    for target in targets {
        assert_eq!(gateway.get(&format!("/api{target}")).status, 200, "{target}");
    }
    assert_eq!(gateway.get("/api").status, 200);
    assert_eq!(gateway.get("/api?q=1").status, 200);
    let lines: Vec<String> = upstream.seen().iter().map(|seen| seen.line().to_owned()).collect();
    let expected = targets.iter().copied().chain(["/", "/?q=1"]).map(|target| format!("GET {target} HTTP/1.1"));
    assert_eq!(lines, expected.collect::<Vec<_>>());
}

#[test]
fn a_request_says_that_it_passed_through_and_never_passes_twice() {
    // 39
    let (gateway, upstream) = pair(Upstream::fine());
    assert_eq!(gateway.ask("GET /api/x HTTP/1.1\r\nHost: h\r\nVia: 1.0 fred\r\n\r\n").status, 200);
    let seen = upstream.seen().remove(0);
    let via = seen.all("via");
    assert!(via.len() == 2 && via[0] == "1.0 fred" && via[1].starts_with("1.1 seawall"), "{via:?}");
    let reply = gateway.get_with("/api/x", &format!("Via: 1.0 fred, {}\r\n", via[1]));
    assert_eq!((reply.status, reply.code().as_str()), (508, "loop_detected"));
    assert_eq!(upstream.count(), 1);
}

#[test]
fn an_upstream_need_not_be_told_who_else_was_on_the_way() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, "via = false").go();
    let reply = gateway.get_with("/api/x", "Via: 1.0 fred\r\n");
    assert_eq!((reply.status, upstream.seen()[0].all("via")), (200, vec!["1.0 fred"]));
    assert!(reply.header("via").is_some_and(|via| via.contains("seawall")), "the caller is told all the same");
}

#[test]
fn underscores_disguise_no_header_of_ours() {
    // 41
    let upstream = Upstream::fine();
    let auth = "[upstreams.api.auth]\ninject = \"header:X-Api-Key\"\nkeys = [{ id = \"a\", secret = \"env:KEY\" }]";
    let gateway = Start::before(&upstream, &format!("{FAST}deadline_header = \"x-left-ms\"\n{auth}")).secret("KEY", "the-real-key").go();
    let headers = "X_Under: 1\r\nX_Api_Key: mine\r\nX-Api-Key: mine\r\nSeawall_Token: mine\r\nSeawall-Timeout-Ms: 900\r\nX_Left_Ms: mine\r\nX-Left-Ms: mine\r\n";
    assert_eq!(gateway.get_with("/api/x", headers).status, 200);
    let seen = upstream.seen().remove(0);
    assert_eq!(seen.all("x_under"), ["1"]);
    assert_eq!(seen.all("x-api-key"), ["the-real-key"]);
    let left: u64 = seen.all("x-left-ms")[0].parse().unwrap();
    assert!((1..=900).contains(&left), "{left}");
    assert!(!seen.head.contains("mine") && !seen.head.to_lowercase().contains("seawall-t"), "{}", seen.head);
}

#[test]
fn headers_that_nobody_reads_go_on_like_those_that_somebody_does() {
    let common = "User-Agent: a\r\nconnection: keep-alive\r\nAccept:  */* \r\naccept-encoding: br\r\nAccept: text/plain\r\n";
    let [left, read] = ["", "X-Read: 1\r\n"].map(|more| forwarded(&format!("GET /api/x HTTP/1.1\r\n{common}Host: h\r\n{more}\r\n")));
    assert!(left.head.contains("\r\nUser-Agent: a\r\n") && read.head.contains("\r\nuser-agent: a\r\n"), "{}{}", left.head, read.head);
    for name in ["user-agent", "accept", "accept-encoding", "connection"] {
        assert_eq!(left.all(name), read.all(name), "{name} in {}", left.head);
    }
    assert_eq!(left.all("accept"), ["*/*", "text/plain"]);
    assert!(left.all("host").len() == 1 && left.all("host") != ["h"], "{}", left.head);
    assert!(left.all("via").len() == 1 && left.all("via")[0].contains("seawall"), "{}", left.head);
}

#[test]
fn common_headers_are_read_where_a_policy_needs_them() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, &format!("{FAST}cache = {{ ttl = \"1m\" }}")).go();
    let ask = |more: &str| gateway.ask(format!("GET /api/x HTTP/1.1\r\nHost: h\r\n{more}\r\n")).status;
    assert_eq!((ask(""), ask("Accept: */*\r\n"), upstream.count()), (200, 200, 1), "the second is kept");
    assert_eq!((ask("Cache-Control: no-cache\r\n"), upstream.count()), (200, 2), "who wants a fresh one gets it");

    let upstream = Upstream::replying(&[&answer("503 No", "", ""), OK]);
    let once = "retry = { attempts = 1, cap = \"10ms\" }\non_exhausted = \"enqueue\"";
    let gateway = Start::before(&upstream, once).go();
    let reply = gateway.ask("GET /api/x HTTP/1.1\r\nHost: h\r\nAccept: text/plain\r\nUser-Agent: mine\r\n\r\n");
    assert_eq!(reply.status, 202);
    eventually("the job is sent", || upstream.count() == 2);
    let seen = upstream.seen().pop().unwrap();
    assert_eq!((seen.all("accept"), seen.all("user-agent")), (vec!["text/plain"], vec!["mine"]));
}

#[test]
fn a_common_header_that_is_ours_is_no_callers() {
    let upstream = Upstream::fine();
    let auth = "[upstreams.api.auth]\ninject = \"header:User-Agent\"\nkeys = [{ id = \"a\", secret = \"env:KEY\" }]";
    let gateway =
        Start::before(&upstream, &format!("{FAST}deadline_header = \"accept-language\"\n{auth}")).secret("KEY", "the-real-key").go();
    for headers in ["User-Agent: mine\r\n", "Accept: */*\r\nuser-agent:mine\r\n", "Accept-Language: mine\r\n", "accept-language: mine\r\n"]
    {
        assert_eq!(gateway.ask(format!("GET /api/x HTTP/1.1\r\nHost: h\r\n{headers}\r\n")).status, 200);
        let seen = upstream.seen().pop().unwrap();
        assert_eq!(seen.all("user-agent"), ["the-real-key"]);
        assert!(seen.all("accept-language").len() == 1 && !seen.head.contains("mine"), "{}", seen.head);
    }
}

#[test]
fn heads_that_are_too_large_get_a_problem_document() {
    // 43
    let (gateway, upstream) = pair(Upstream::fine());
    let bombs = [
        (format!("GET /api/x HTTP/1.1\r\nHost: h\r\nX-A: {}\r\n\r\n", "a".repeat(128 * 1024)), &[431][..]),
        (format!("GET /api/x HTTP/1.1\r\nHost: h\r\n{}\r\n", "X-A: 1\r\n".repeat(2000)), &[431]),
        (format!("GET /api/{} HTTP/1.1\r\nHost: h\r\n\r\n", "a".repeat(20 * 1024)), &[414]),
        (format!("GET /api/{} HTTP/1.1\r\nHost: h\r\n\r\n", "a".repeat(70 * 1024)), &[414]),
        (format!("GET /api/{} HTTP/1.1\r\nHost: h\r\n\r\n", "a".repeat(100_000)), &[414]),
    ];
    for (bomb, statuses) in bombs {
        let mut caller = gateway.caller();
        let reply = caller.send(bomb).reply();
        assert!(statuses.contains(&reply.status) && reply.code() == "too_large", "{reply:?}");
        assert!(["date", "seawall-call"].iter().all(|name| reply.header(name).is_some()), "{reply:?}");
        assert!(caller.is_closed());
    }
    assert_eq!(upstream.count(), 0);
    assert_eq!(gateway.get("/api/x").status, 200);
    let mut caller = gateway.caller();
    assert_eq!(caller.send("GET /api/x HTTP/1.1\r\nHost: h\r\n\r\n").reply().status, 200);
    let second = caller.send(format!("GET /api/x HTTP/1.1\r\nHost: h\r\nX-A: {}\r\n\r\n", "a".repeat(128 * 1024))).reply();
    assert_eq!(second.status, 431, "the second request of a connection is told apart as well");
}

#[test]
fn bodies_arrive_whole_with_one_framing() {
    let (gateway, upstream) = pair(Upstream::fine());
    assert_eq!(gateway.post("/api/a", "", "hello").status, 200);
    assert_eq!(
        gateway
            .ask("POST /api/b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n1\r\n!\r\n0\r\nX-T: 1\r\n\r\n")
            .status,
        200
    );
    assert_eq!(gateway.post("/api/c", "", "").status, 200);
    assert_eq!(gateway.ask("GET /api/d HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi").status, 200);
    let seen = upstream.seen();
    let bodies: Vec<&[u8]> = seen.iter().map(|seen| seen.body.as_slice()).collect();
    assert_eq!(bodies, [&b"hello"[..], b"hello!", b"", b"hi"]);
    assert_eq!(seen[2].all("content-length"), ["0"], "a POST without a body says so");
    assert!(seen.iter().all(|seen| !seen.has("x-t") && seen.all("content-length").len() + seen.all("transfer-encoding").len() == 1));
}

#[test]
fn negotiation_and_ranges_pass_untouched() {
    // 59
    let reply = answer(
        "206 Partial Content",
        "Content-Range: bytes 0-3/9\r\nContent-Encoding: br\r\nETag: \"x\"\r\nVary: Accept-Encoding\r\n",
        "\u{1}\u{2}\0z",
    );
    let (gateway, upstream) = pair(Upstream::replying(&[&reply]));
    let reply = gateway.get_with("/api/x", "Accept-Encoding: br\r\nRange: bytes=0-3\r\nIf-Range: \"x\"\r\n");
    let seen = upstream.seen().remove(0);
    assert_eq!((seen.all("accept-encoding"), seen.all("range"), seen.all("if-range")), (vec!["br"], vec!["bytes=0-3"], vec!["\"x\""]));
    assert_eq!((reply.status, reply.header("content-range"), reply.header("content-encoding")), (206, Some("bytes 0-3/9"), Some("br")));
    assert_eq!(reply.body, b"\x01\x02\0z");
}

#[test]
fn an_expectation_is_met_here_and_a_refusal_needs_no_body() {
    // 61
    let (gateway, upstream) = pair(Upstream::replying(&["HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"]));
    let mut caller = gateway.caller();
    caller.send("POST /api/x HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    assert_eq!(caller.reply().status, 100);
    assert_eq!(caller.send("hello").reply().status, 403);
    let seen = upstream.seen().remove(0);
    assert!(!seen.has("expect") && seen.body == b"hello");
    for (path, length, status) in [("/none", 5, 404), ("/api/x", 50_000_000, 413)] {
        let mut caller = gateway.caller();
        caller.send(format!("POST {path} HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n"));
        assert_eq!(caller.reply().status, status, "no 100 asks for a body that nobody wants");
        assert!(caller.is_closed());
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let upstream = Upstream::with(|turn| {
        let path = turn.seen.line().split(' ').nth(1).unwrap().to_owned();
        turn.send(answer("200 OK", "", &path));
    });
    let (gateway, upstream) = pair(upstream);
    let mut caller = gateway.caller();
    caller.send("GET /api/1 HTTP/1.1\r\nHost: h\r\n\r\nPOST /api/2 HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nxGET /none HTTP/1.1\r\nHost: h\r\n\r\nGET /api/3 HTTP/1.1\r\nHost: h\r\n\r\n");
    let bodies: Vec<(u16, String)> = (0..4).map(|_| caller.reply()).map(|reply| (reply.status, reply.text())).collect();
    assert_eq!((bodies[0].1.as_str(), bodies[1].1.as_str(), bodies[2].0, bodies[3].1.as_str()), ("/1", "/2", 404, "/3"));
    assert_eq!(upstream.count(), 3);
}

#[test]
fn an_early_answer_is_retried_unless_the_request_was_early_data() {
    // 101
    let (gateway, upstream) = pair(Upstream::replying(&["HTTP/1.1 425 Too Early\r\nContent-Length: 0\r\n\r\n", OK]));
    assert_eq!(gateway.post("/api/x", "", "x").status, 200);
    assert_eq!(upstream.count(), 2, "the server says that nothing was done");
    let (gateway, upstream) = pair(Upstream::replying(&["HTTP/1.1 425 Too Early\r\nContent-Length: 0\r\n\r\n", OK]));
    assert_eq!(gateway.get_with("/api/x", "Early-Data: 1\r\n").status, 425);
    assert_eq!(upstream.count(), 1, "the client must hear of it and send again by itself");
}
