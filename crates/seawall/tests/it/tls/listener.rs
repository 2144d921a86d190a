//! TLS before the gateway itself, as curl sees it.

use super::front::Authority;
use crate::caller::{Caller, eventually};
use crate::gateway::{Gateway, Start};
use crate::upstream::Upstream;
use std::process::Command;

const TLS: &str = "tls = { cert = \"cert.pem\", key = \"file:key.pem\" }";

fn start(authority: &Authority, upstream: &Upstream) -> Gateway {
    let directory = tempfile::tempdir().unwrap();
    authority.issue("localhost", directory.path());
    Start::before(upstream, "").server(TLS).go_in(directory)
}

/// The result of curl: its exit code, the HTTP version, the status, and the body.
fn curl(gateway: &Gateway, trusts: &Authority, arguments: &[&str]) -> (i32, String) {
    let output = Command::new("curl")
        .args(["-sS", "--max-time", "10", "-w", " %{http_version} %{http_code}", "--cacert"])
        .arg(trusts.file())
        .args(arguments)
        .arg(format!("https://localhost:{}/api/x", gateway.at.port()))
        .output()
        .expect("curl is needed to test TLS as callers use it");
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn callers_choose_their_http_and_see_our_certificate() {
    let (authority, upstream) = (Authority::new(), Upstream::fine());
    let gateway = start(&authority, &upstream);
    assert!(gateway.stderr().contains(&format!("https://{}", gateway.at)), "{}", gateway.stderr());
    assert_eq!(curl(&gateway, &authority, &["--http2"]), (0, "ok 2 200".to_owned()));
    assert_eq!(curl(&gateway, &authority, &["--http1.1"]), (0, "ok 1.1 200".to_owned()));
    let body = "y".repeat(300_000);
    for version in ["--http2", "--http1.1"] {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &body).unwrap();
        let data = format!("@{}", file.path().display());
        assert!(curl(&gateway, &authority, &[version, "--data-binary", &data]).1.ends_with(" 200"));
    }
    assert!(upstream.seen()[2..].iter().all(|seen| seen.body.len() == body.len()));
    assert_ne!(curl(&gateway, &Authority::new(), &[]).0, 0, "who does not trust the authority does not go on");
    let seen = upstream.count();
    assert!(gateway.caller().send("GET /api/x HTTP/1.1\r\nHost: h\r\n\r\n").rest().first() != Some(&b'H'), "nothing is said in the clear");
    assert_eq!(upstream.count(), seen);
    assert_eq!(Caller::connect(gateway.admin).send("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").reply().status, 200);
}

#[test]
fn a_reload_takes_a_renewed_certificate_and_refuses_a_broken_one() {
    let (authority, renewed, upstream) = (Authority::new(), Authority::new(), Upstream::fine());
    let gateway = start(&authority, &upstream);
    let directory = gateway.rewrite(&Start::before(&upstream, "").server(TLS)).parent().unwrap().to_owned();
    renewed.issue("localhost", &directory);
    gateway.signal("HUP");
    eventually("it is taken", || curl(&gateway, &renewed, &[]).0 == 0);
    assert_ne!(curl(&gateway, &authority, &[]).0, 0, "the old one is gone");
    std::fs::copy(authority.file(), directory.join("cert.pem")).unwrap();
    gateway.signal("HUP");
    eventually("it is refused", || gateway.stderr().contains("`server.tls`: `cert` and `key` cannot be used together"));
    assert_eq!(curl(&gateway, &renewed, &[]).0, 0, "the one in force stays");
    renewed.issue("localhost", &directory);
    gateway.rewrite(&Start::before(&upstream, ""));
    let reply = gateway.admin("POST", "/v1/config/reload", "").json();
    assert_eq!(reply["needs_restart"], serde_json::json!(["server.tls"]));
    assert_eq!(curl(&gateway, &renewed, &[]).0, 0, "TLS does not end by a reload");
}

#[test]
fn a_listener_without_its_files_does_not_start() {
    let upstream = Upstream::fine();
    for (cert, key, said) in [
        (None, None, "server.tls.key"),
        (Some("nonsense"), Some("nonsense"), "`cert` has no certificate in it"),
        (Some("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), Some("nonsense"), "`key` is not a private key in PEM"),
    ] {
        let dir = crate::dir::Dir::with(Start::before(&upstream, "").server(TLS).text());
        for (name, text) in [("cert.pem", cert), ("key.pem", key)] {
            if let Some(text) = text {
                dir.write(name, text);
            }
        }
        let run = dir.run(["serve"]).ends_with(78);
        assert!(run.err.contains(said), "{said}: {}", run.err);
    }
}
