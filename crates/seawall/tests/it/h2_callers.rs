//! Callers over HTTP/2 that say nothing, read nothing, or open more streams than there are places.

use super::caller::{Caller, eventually};
use super::forwarding::FAST;
use super::gateway::{Gateway, Start};
use super::upstream::Upstream;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const NO_WINDOW: &[u8] = &[0, 4, 0, 0, 0, 0];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// `GET /api/x`, whole in one frame.
fn get(stream: u32) -> Vec<u8> {
    let path = b"/api/x";
    let fields = [&[0x82, 0x86, 0x04, u8::try_from(path.len()).unwrap()], &path[..], &[0x01, 1, b'h']].concat();
    frame(HEADERS, 5, stream, &fields)
}

/// The kinds and streams of all frames up to the end of the connection.
fn frames(bytes: &[u8]) -> Vec<(u8, u32)> {
    let (mut found, mut rest) = (Vec::new(), bytes);
    while let Some((head, tail)) = rest.split_first_chunk::<9>() {
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        found.push((head[3], u32::from_be_bytes([head[5], head[6], head[7], head[8]])));
        rest = tail.get(length..).unwrap_or_default();
    }
    found
}

fn opened(gateway: &Gateway, settings: &[u8]) -> Caller {
    let mut caller = gateway.caller();
    caller.send(PREFACE).send(frame(SETTINGS, 0, 0, settings));
    caller
}

/// `POST /api/x`, whose body is to come.
fn post(stream: u32) -> Vec<u8> {
    let path = b"/api/x";
    let fields = [&[0x83, 0x86, 0x04, u8::try_from(path.len()).unwrap()], &path[..], &[0x01, 1, b'h']].concat();
    frame(HEADERS, 4, stream, &fields)
}

#[test]
fn an_upload_that_its_caller_takes_back_never_arrives_whole() {
    let upstream = Upstream::fine();
    // The first body is read before it is sent, the second is passed on as it comes.
    let gateway = Start::before(&upstream, FAST).server("replay_body = \"1KiB\"\n").go();
    for (stream, size) in [(1, 100), (3, 8_000)] {
        let mut caller = opened(&gateway, &[]);
        caller.send(post(stream)).send(frame(DATA, 0, stream, &vec![b'x'; size]));
        if size > 1024 {
            eventually("the upload is under way", || upstream.connections() > 0);
        }
        // Without an error, as Node does.
        caller.send(frame(RST_STREAM, 0, stream, &[0; 4]));
        eventually("the call is over", || gateway.metric("seawall_in_flight{upstream=\"api\",pool=\"\"}").unwrap_or(0.0) == 0.0);
    }
    assert_eq!(gateway.get("/api/last").status, 200);
    assert_eq!(upstream.seen().iter().map(|seen| seen.line().to_owned()).collect::<Vec<_>>(), ["GET /last HTTP/1.1"]);
}

#[test]
fn a_caller_that_says_nothing_is_let_go() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, FAST).argument("--head-timeout").argument("200ms").go();
    let silent = [&PREFACE[..14], &PREFACE[..20], PREFACE].map(|opening| {
        let mut caller = gateway.caller();
        caller.send(opening);
        caller
    });
    let (mut idle, mut served) = (opened(&gateway, &[]), opened(&gateway, &[]));
    served.send(get(1));
    for mut caller in silent {
        caller.rest();
    }
    assert!(frames(&idle.rest()).contains(&(GOAWAY, 0)), "a caller that is let go is told");
    let seen = frames(&served.rest());
    assert!(seen.contains(&(HEADERS, 1)) && seen.contains(&(GOAWAY, 0)), "{seen:?}");
}

#[test]
fn a_response_that_nobody_reads_gives_its_upstream_connection_back() {
    let upstream = Upstream::with(|turn| turn.say(format!("HTTP/1.1 200 OK\r\nContent-Length: 4000000\r\n\r\n{}", "x".repeat(4_000_000))));
    let gateway = Start::before(&upstream, FAST).argument("--head-timeout").argument("100ms").go();
    let mut caller = opened(&gateway, NO_WINDOW);
    caller.send(get(1)).send(get(3)).send(get(5));
    eventually("all are under way", || upstream.count() == 3);
    eventually("nothing is left in flight", || gateway.metric("seawall_in_flight{upstream=\"api\",pool=\"\"}") == Some(0.0));
    let seen = frames(&caller.rest());
    for stream in [1, 3, 5] {
        assert!(seen.contains(&(HEADERS, stream)) && seen.contains(&(RST_STREAM, stream)), "{seen:?}");
    }
}

#[test]
fn streams_take_places_like_connections_do() {
    let upstream = Upstream::with(|turn| turn.hang(700));
    let gateway = Start::before(&upstream, FAST).argument("--connections").argument("4").threads(1).go();
    let mut caller = opened(&gateway, &[]);
    for stream in [1, 3, 5, 7, 9, 11] {
        caller.send(get(stream));
    }
    eventually("two are refused", || gateway.stdout().matches("\"outcome\":\"overloaded\"").count() == 2);
    assert_eq!(upstream.count(), 4, "the connection's own place and three more");
}
