//! Limited file descriptors: new connections take none from callers that are being served.

use super::caller::{Caller, eventually};
use super::gateway::Start;
use super::upstream::{OK, Upstream};
use std::io::Read as _;
use std::net::TcpStream;
use std::time::Duration;

#[test]
fn idle_connections_to_the_admin_port_take_none_from_callers() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, "").files(256).go();
    let mut idle: Vec<TcpStream> = (0..400).map(|_| TcpStream::connect(gateway.admin).unwrap()).collect();
    let last = idle.last_mut().unwrap();
    last.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // The end of the stream, or a reset.
    assert_eq!(last.read(&mut [0; 1]).unwrap_or(0), 0, "one too many is closed");
    for _ in 0..5 {
        assert_eq!(gateway.get("/api/x").status, 200);
    }
    drop(idle);
    assert_eq!(gateway.look("/v1/status")["phase"], "serving", "the port serves again once they are gone");
}

#[test]
fn every_caller_that_is_let_in_reaches_its_upstream_and_the_rest_are_told() {
    let upstream = Upstream::with(|turn| {
        turn.pause(300);
        turn.say(OK);
    });
    let gateway = Start::before(&upstream, "retry.attempts = 1\n").files(256).go();
    let mut callers: Vec<Caller> = (0..104).map(|_| gateway.caller()).collect();
    for caller in &mut callers {
        caller.send("GET /api/x HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    let statuses: Vec<u16> = callers.iter_mut().map(|caller| caller.reply().status).collect();
    let count = |status: u16| statuses.iter().filter(|seen| **seen == status).count();
    assert_eq!(count(200) + count(503), 104, "{statuses:?}");
    assert!(count(200) >= 40, "{} of 104 were served", count(200));
}

#[test]
fn a_gateway_without_open_files_blames_no_upstream() {
    let upstream = Upstream::with(|turn| {
        turn.say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        turn.close();
    });
    let policy = "retry.attempts = 1\nbreaker = { consecutive = 3, min_calls = 1000 }\n";
    let named = Start::with(&format!("[upstreams.api]\nurl = \"http://localhost:{}\"\n{policy}", upstream.at.port()));
    for start in [Start::before(&upstream, policy), named] {
        // More callers than there are files for: the operator said so.
        let gateway = start.files(64).argument("--connections").argument("200").go();
        let mut caller = gateway.caller();
        let mut ask = || caller.send("GET /api/x HTTP/1.1\r\nHost: h\r\n\r\n").reply();
        assert_eq!(ask().status, 200);
        let idle: Vec<Caller> = (0..100).map(|_| gateway.caller()).collect();
        // Connections that are refused hold a file for a moment, so that one may come free at first.
        eventually("every file is taken for five calls in a row", || {
            (0..5).all(|_| {
                let reply = ask();
                let blames_itself = |detail: &str| detail.starts_with("the upstream was not asked: the gateway has no open file left");
                assert!(reply.status == 200 || blames_itself(reply.problem()["detail"].as_str().unwrap()), "{reply:?}");
                reply.status == 502
            })
        });
        drop(idle);
        eventually("files come back", || ask().status != 502);
        assert_eq!(ask().status, 200, "the breaker is closed");
    }
}
