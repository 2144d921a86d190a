//! The in-process server, and the shipped script.

use super::*;
use std::io::Read as _;

#[test]
fn the_shipped_script_is_valid() {
    Script::load("flaky.toml", include_bytes!("../../../../scenarios/flaky.toml")).unwrap();
}

#[test]
fn it_starts_and_stops_in_process() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let running = start(Script::default(), listener, 1).unwrap();
    let mut stream = std::net::TcpStream::connect(running.address).unwrap();
    stream.write_all(b"GET /x HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with(r#"{"ok":true,"path":"/x","n":1}"#), "{answer}");
    assert_eq!(running.stats()["statuses"]["200"], 1);
    let address = running.address;
    running.stop();
    assert!(std::net::TcpStream::connect(address).is_err());
}
