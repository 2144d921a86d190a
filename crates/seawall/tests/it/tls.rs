//! Upstreams behind TLS: certificates, protocol versions, and connections that end without `close_notify`.

mod front;
mod listener;

use super::caller::{Reply, eventually};
use super::gateway::{Gateway, Start};
use super::upstream::{OK, Upstream, answer};
use front::{Authority, Does, Farewell, Frames, front};
use std::net::SocketAddr;
use tokio_rustls::TlsAcceptor;

const POLICY: &str = "retry = { attempts = 2, base = \"1ms\", cap = \"2ms\", unsafe = \"never\" }\n";

fn gateway(authority: &Authority, host: &str, at: SocketAddr) -> Gateway {
    Start::with(&format!("[upstreams.api]\nurl = \"https://{host}:{}\"\n{POLICY}", at.port()))
        .threads(1)
        .secret("SSL_CERT_FILE", authority.file().to_str().unwrap())
        .go()
}

fn h1(authority: &Authority) -> TlsAcceptor {
    authority.certify("localhost", 4000, &["http/1.1"])
}

#[test]
fn http_1_over_tls_keeps_its_connection() {
    let (authority, upstream) = (Authority::new(), Upstream::fine());
    let gateway = gateway(&authority, "localhost", front(upstream.at, h1(&authority), Farewell::Proper));
    for _ in 0..3 {
        assert_eq!(gateway.get("/api/x").text(), "ok");
        assert_eq!(gateway.post("/api/x", "", &"y".repeat(100_000)).status, 200);
    }
    assert_eq!(upstream.connections(), 1);
    assert!(upstream.seen().iter().all(|seen| seen.all("host")[0].starts_with("localhost:")));
}

/// Nothing but the failed handshake may happen.
#[track_caller]
fn refused(gateway: &Gateway, upstream: &Upstream) -> Reply {
    let reply = gateway.get("/api/x");
    assert_eq!((reply.status, reply.code()), (502, "upstream_unreachable".to_owned()));
    assert_eq!(upstream.raw(), "");
    let log = gateway.log(1);
    let statuses: Vec<&str> = log.iter().filter(|line| line["event"] == "attempt").filter_map(|line| line["status"].as_str()).collect();
    assert_eq!(statuses, ["tls"], "what does not hold now does not hold in a second either");
    reply
}

#[test]
fn certificates_that_do_not_hold_are_refused() {
    let (authority, stranger, upstream) = (Authority::new(), Authority::new(), Upstream::fine());
    for (what, acceptor) in [
        ("wrong name: it is for other.test", authority.certify("other.test", 4000, &[])),
        ("expired on 2020-12-31", authority.certify("localhost", 2020, &[])),
        ("unknown issuer; add the authority", stranger.certify("localhost", 4000, &[])),
        ("self-signed; ", front::self_signed("localhost", false)),
        ("self-signed; ", front::self_signed("localhost", true)),
    ] {
        let gateway = gateway(&authority, "localhost", front(upstream.at, acceptor, Farewell::Proper));
        let reply = refused(&gateway, &upstream);
        assert_eq!(reply.header("proxy-status"), Some("seawall; error=tls_certificate_error"), "{what}");
        let detail = reply.problem()["detail"].as_str().unwrap().to_owned();
        assert!(detail.starts_with(&format!("certificate of localhost is not trusted ({what}")), "{detail}");
        let error = gateway.log(1)[0]["error"].clone();
        assert_eq!(error, detail, "the attempt's line says it as well");
    }
}

#[test]
fn a_server_that_speaks_no_tls_is_refused() {
    let (authority, upstream) = (Authority::new(), Upstream::fine());
    // The upstream takes a ClientHello for a request that never ends.
    let gateway = gateway(&authority, "localhost", upstream.at);
    let silent = gateway.get_with("/api/x", "Seawall-Timeout-Ms: 300\r\n");
    assert!(matches!(silent.status, 502 | 504), "{}", silent.status);
    assert_eq!(upstream.count(), 0);
}

#[test]
fn a_body_without_length_is_whole_only_with_a_farewell() {
    let (authority, upstream) = (
        Authority::new(),
        Upstream::with(|turn| {
            turn.send("HTTP/1.1 200 OK\r\n\r\nhalf of it");
            turn.close();
        }),
    );
    for (farewell, complete) in [(Farewell::Proper, true), (Farewell::Cut, false)] {
        let gateway = gateway(&authority, "localhost", front(upstream.at, h1(&authority), farewell));
        let reply = gateway.get("/api/x");
        assert_eq!((reply.status, reply.complete), (200, complete));
    }
}

#[test]
fn a_length_says_where_the_end_is_whatever_the_farewell() {
    let authority = Authority::new();
    let upstream = Upstream::with(|turn| {
        turn.send(OK);
        turn.close();
    });
    let gateway = gateway(&authority, "localhost", front(upstream.at, h1(&authority), Farewell::Cut));
    for _ in 0..3 {
        let reply = gateway.get("/api/x");
        assert_eq!((reply.status, reply.complete, reply.text().as_str()), (200, true, "ok"));
    }
    assert_eq!(upstream.connections(), 3);
    let log = gateway.log(3);
    assert!(
        log.iter().filter(|line| line["event"] == "attempt").all(|line| line["attempt"] == 1),
        "an idle connection that was cut is no attempt"
    );
}

#[test]
fn a_large_answer_passes_through_tls() {
    let authority = Authority::new();
    let upstream = Upstream::with(|turn| turn.say(answer("200 OK", "", &"z".repeat(3_000_000))));
    let gateway = gateway(&authority, "localhost", front(upstream.at, h1(&authority), Farewell::Proper));
    for _ in 0..2 {
        assert_eq!(gateway.get("/api/x").text().len(), 3_000_000);
    }
    assert_eq!(upstream.connections(), 1);
}

fn frames(script: &'static [Does]) -> (Gateway, Frames) {
    let authority = Authority::new();
    let server = Frames::doing(script, authority.certify("localhost", 4000, &["h2", "http/1.1"]));
    (gateway(&authority, "localhost", server.at), server)
}

#[test]
fn http_2_is_spoken_where_the_server_offers_it() {
    let (gateway, server) = frames(&[Does::Answers]);
    for _ in 0..3 {
        let reply = gateway.post("/api/x", "", "");
        assert_eq!((reply.status, reply.text().as_str(), reply.header("seawall-attempts")), (200, "ok", Some("1")));
    }
    assert_eq!((server.posts(), server.connections()), (3, 1));
}

#[test]
fn a_server_that_takes_no_more_streams_gets_another_connection() {
    let (gateway, server) = frames(&[Does::Hangs, Does::Answers]);
    let mut first = gateway.caller();
    first.send("POST /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
    eventually("the first stream is open", || server.posts() == 1);
    for _ in 0..2 {
        let reply = gateway.post("/api/x", "Seawall-Timeout-Ms: 2000\r\n", "");
        assert_eq!((reply.status, reply.header("seawall-attempts")), (200, Some("1")));
    }
    assert_eq!((server.posts(), server.connections()), (3, 2));
}

const REFUSED_STREAM: u32 = 7;
const INTERNAL_ERROR: u32 = 2;

#[test]
fn a_post_that_was_provably_not_processed_goes_again() {
    for (script, connections) in [
        (&[Does::Resets(REFUSED_STREAM), Does::Answers], 1),
        (&[Does::GoesAway, Does::Answers], 2),
        (&[Does::Leaves, Does::Answers], 2),
        (&[Does::Cuts, Does::Answers], 2),
    ] {
        let (gateway, server) = frames(script);
        let reply = gateway.post("/api/x", "", "paid once");
        assert_eq!((reply.status, reply.header("seawall-attempts")), (200, Some("2")), "{script:?}");
        assert_eq!((server.posts(), server.connections()), (2, connections), "{script:?}");
        let log = gateway.log(1);
        assert_eq!((&log[0]["status"], &log[0]["decision"]), (&"connect".into(), &"retry".into()), "{script:?}");
    }
}

#[test]
fn a_post_that_may_have_been_processed_does_not_go_again() {
    for script in [&[Does::Resets(INTERNAL_ERROR)], &[Does::DiesWorking]] {
        let (gateway, server) = frames(script);
        let reply = gateway.post("/api/x", "", "paid once");
        assert_eq!((reply.code(), reply.header("seawall-attempts")), ("upstream_unreachable".to_owned(), Some("1")), "{script:?}");
        assert_eq!(server.posts(), 1, "{script:?}");
        assert_eq!(gateway.log(1)[0]["status"], "reset", "{script:?}");
    }
}

#[test]
fn a_response_that_is_reset_without_an_error_is_not_whole() {
    let (gateway, server) = frames(&[Does::AnswersHalf, Does::Answers]);
    let reply = gateway.post("/api/x", "", "");
    assert!(!(reply.status == 200 && reply.complete), "{reply:?}");
    assert_eq!(server.posts(), 1);
    let log = gateway.log(1);
    let call = log.iter().find(|line| line["event"] == "call").unwrap();
    assert!(call["outcome"] != "success", "{call}");
}

#[test]
fn a_connection_that_went_away_while_idle_is_replaced_without_an_attempt() {
    let (gateway, server) = frames(&[Does::Answers, Does::GoesAway, Does::Answers]);
    assert_eq!(gateway.post("/api/x", "", "one").status, 200);
    // Refused by the farewell, repeated on a new connection.
    assert_eq!(gateway.post("/api/x", "", "two").status, 200);
    assert_eq!((server.posts(), server.connections()), (3, 2));
    assert_eq!(gateway.post("/api/x", "", "three").header("seawall-attempts"), Some("1"));
    assert_eq!(server.connections(), 2);
}
