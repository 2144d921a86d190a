//! Ways to an upstream without a prefix: a port of its own, and hosts with ports.

use super::caller::{Caller, Reply, eventually};
use super::gateway::{Gateway, Start};
use super::upstream::{OK, Upstream, answer};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// An upstream that says its name, the target it was asked for and its caller's Host.
fn named(name: &'static str) -> Upstream {
    Upstream::with(move |turn| {
        let body = format!("{name} {}", turn.seen.line());
        let at = turn.stream.local_addr().unwrap();
        let links = format!("Location: http://{at}/v1/next?page=2\r\nLink: </v1/other>; rel=next\r\n");
        turn.say(answer("200 OK", &links, &body));
    })
}

/// An address without a listener.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn ask(at: SocketAddr, request: &str) -> Reply {
    Caller::connect(at).send(request).reply()
}

fn get(at: SocketAddr, path: &str) -> Reply {
    ask(at, &format!("GET {path} HTTP/1.1\r\nHost: {at}\r\n\r\n"))
}

fn upstream(name: &str, at: SocketAddr, keys: &str) -> String {
    format!("[upstreams.{name}]\nurl = \"http://{at}/v1\"\n{keys}\n")
}

fn listening(at: SocketAddr) -> String {
    format!("listen = \"{at}\"")
}

fn reload(gateway: &Gateway, policy: &str) -> Reply {
    gateway.rewrite(&Start::with(policy));
    gateway.admin("POST", "/v1/config/reload", "")
}

#[test]
fn a_port_of_its_own_needs_no_prefix_and_its_links_have_none() {
    let (a, b, port) = (named("a"), named("b"), free());
    let policy = format!("{}{}", upstream("a", a.at, &listening(port)), upstream("b", b.at, ""));
    let gateway = Start::with(&policy).threads(3).go();
    eventually("the start-up lines name it", || gateway.stderr().contains(&format!("port      http://{port}  (a)")));
    // Also where the path or the Host would name another upstream on the gateway's own port.
    for path in ["/x?y=1", "/b/x", "/"] {
        let reply = get(port, path);
        assert_eq!((reply.status, reply.text()), (200, format!("a GET /v1{path} HTTP/1.1")));
        assert_eq!(reply.header("location"), Some(format!("http://{port}/next?page=2").as_str()));
        assert_eq!(reply.header("link"), Some("</other>; rel=next"));
    }
    assert_eq!(get(port, "/-/health").text(), "{\"status\":\"ok\"}\n");
    let reply = gateway.get("/a/x");
    assert_eq!((reply.text().as_str(), reply.header("link")), ("a GET /v1/x HTTP/1.1", Some("</a/other>; rel=next")));
    let reply = ask(port, "GET http://elsewhere.test/x HTTP/1.1\r\nHost: elsewhere.test\r\n\r\n");
    assert_eq!((reply.text().as_str(), reply.header("location")), ("a GET /v1/x HTTP/1.1", Some("http://elsewhere.test/next?page=2")));
}

#[test]
fn callers_of_a_port_are_asked_for_their_tokens_and_refused_in_its_shape() {
    let (up, port) = (named("a"), free());
    let policy = format!("[callers.me]\ntoken = \"env:T\"\n{}", upstream("a", up.at, &format!("{}\npreset = \"openai\"", listening(port))));
    let _gateway = Start::with(&policy).secret("T", "secret").server("require_caller = true").go();
    let shape = |reply: &Reply| reply.json()["error"]["code"].clone();
    let reply = get(port, "/x");
    assert_eq!((reply.status, shape(&reply)), (401, "caller_unknown".into()));
    let reply = ask(port, &format!("GET /x HTTP/1.1\r\nHost: {port}\r\nSeawall-Token: secret\r\n\r\n"));
    assert_eq!(reply.status, 200);
    // Unparsable requests get that format as well, because the port identifies the upstream.
    let reply = ask(port, "GET /x HTTP/1.1\r\nHost : no\r\n\r\n");
    assert_eq!((reply.status, shape(&reply)), (400, "bad_request".into()));
}

#[test]
fn a_reload_opens_moves_and_closes_ports() {
    let (a, b, one, two) = (named("a"), named("b"), free(), free());
    let gateway = Start::with(&format!("{}{}", upstream("a", a.at, &listening(one)), upstream("b", b.at, ""))).threads(2).go();
    let mut kept = Caller::connect(one);
    let request = format!("GET /x HTTP/1.1\r\nHost: {one}\r\n\r\n");
    assert_eq!(kept.send(&request).reply().text(), "a GET /v1/x HTTP/1.1");
    // The port changes hands, and another opens.
    let policy = format!("{}{}", upstream("a", a.at, &listening(two)), upstream("b", b.at, &listening(one)));
    assert_eq!(reload(&gateway, &policy).status, 200);
    assert_eq!((get(one, "/x").text(), get(two, "/x").text()), ("b GET /v1/x HTTP/1.1".into(), "a GET /v1/x HTTP/1.1".into()));
    assert_eq!(kept.send(&request).reply().text(), "b GET /v1/x HTTP/1.1", "a connection is of its port");
    // One port closes: callers that are still connected there are refused.
    let policy = format!("{}{}", upstream("a", a.at, &listening(two)), upstream("b", b.at, ""));
    assert_eq!(reload(&gateway, &policy).status, 200);
    eventually("the port is closed", || TcpStream::connect(one).is_err());
    let reply = kept.send(&request).reply();
    assert_eq!((reply.status, reply.code(), reply.header("connection")), (404, "no_upstream".into(), Some("close")));
    assert_eq!(get(two, "/x").text(), "a GET /v1/x HTTP/1.1");
}

#[test]
fn a_port_that_cannot_be_had_refuses_the_reload_and_the_start() {
    let (up, one) = (named("a"), free());
    let gateway = Start::with(&upstream("a", up.at, &listening(one))).go();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let elsewhere = taken.local_addr().unwrap();
    let reply = reload(&gateway, &upstream("a", up.at, &listening(elsewhere)));
    assert_eq!(reply.status, 422, "{}", reply.text());
    let problem = reply.json()["problems"][0]["message"].as_str().unwrap().to_owned();
    assert!(problem.contains("`upstreams.a.listen`") && problem.contains(&elsewhere.to_string()), "{problem}");
    assert_eq!(get(one, "/x").status, 200, "the old configuration stays, with its port");
    let refused = Start::with(&upstream("a", up.at, &listening(elsewhere))).try_in(tempfile::tempdir().unwrap());
    let mut refused = *refused.err().expect("it does not start");
    assert_ne!(refused.ended(), Some(0));
    assert!(refused.stderr().contains("`upstreams.a.listen`"), "{}", refused.stderr());
}

#[test]
fn a_drain_lets_calls_of_a_port_finish_and_closes_it() {
    let slow = Upstream::with(|turn| turn.pause(700).say(OK));
    let port = free();
    let mut gateway = Start::with(&upstream("a", slow.at, &listening(port))).threads(2).go();
    let mut caller = Caller::connect(port);
    caller.send(format!("GET /x HTTP/1.1\r\nHost: {port}\r\n\r\n"));
    eventually("the call is under way", || slow.count() == 1);
    gateway.signal("TERM");
    assert_eq!(caller.reply().status, 200);
    assert_eq!(gateway.ended(), Some(0));
    assert!(TcpStream::connect(port).is_err());
}

#[test]
fn hosts_may_name_a_port_and_come_with_absolute_targets() {
    let (any, one) = (named("any"), named("one"));
    let policy = format!(
        "{}{}",
        upstream("any", any.at, "hosts = [\"api.test\", \"[::1]\"]"),
        upstream("one", one.at, "hosts = [\"API.test:8443\"]")
    );
    let gateway = Start::with(&policy).go();
    let cases = [
        ("/x", "api.test", "any"),
        ("/x", "api.test:80", "any"),
        ("/x", "api.test:8443", "one"),
        ("/x", "API.TEST:8443", "one"),
        ("/x", "[::1]:8443", "any"),
        ("http://api.test:8443/x", "api.test:8443", "one"),
        ("http://api.test:8444/x", "api.test:8444", "any"),
    ];
    for (target, host, expected) in cases {
        let reply = gateway.ask(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(reply.text(), format!("{expected} GET /v1/x HTTP/1.1"), "{target} {host}");
    }
    let links = gateway.ask("GET http://api.test:8443/x HTTP/1.1\r\nHost: api.test:8443\r\n\r\n");
    assert_eq!(links.header("location"), Some("http://api.test:8443/next?page=2"));
    assert_eq!(gateway.ask("GET /x HTTP/1.1\r\nHost: other.test:8443\r\n\r\n").code(), "no_upstream");
}
