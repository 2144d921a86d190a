//! Files of the configuration that cannot be read, and signals that come while it is read.

use super::caller::eventually;
use super::gateway::{Gateway, Start, program};
use super::upstream::Upstream;
use std::path::Path;
use std::process::Command;

fn make_pipe(at: &Path) {
    drop(std::fs::remove_file(at));
    assert!(Command::new("mkfifo").arg(at).status().unwrap().success());
}

/// A reload is refused for this file, and the program goes on.
#[track_caller]
fn assert_refused(mut gateway: Gateway, file: &str) {
    gateway.signal("HUP");
    eventually("the reload is refused", || gateway.stderr().contains("the configuration in force stays as it is"));
    let told = gateway.stderr();
    assert!(told.contains(file) && told.contains("it is not a regular file"), "{told}");
    let reply = gateway.admin("POST", "/v1/config/reload", "");
    assert_eq!(reply.status, 422, "{}", reply.text());
    assert_eq!(gateway.get("/api/x").status, 200);
    gateway.signal("TERM");
    assert_eq!(gateway.ended(), Some(0));
}

#[test]
fn a_reload_from_a_pipe_is_refused_and_everything_else_goes_on() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, "").go();
    make_pipe(&gateway.folder().join("seawall.toml"));
    assert_refused(gateway, "seawall.toml");
}

#[test]
fn a_schema_that_is_a_pipe_is_refused_like_every_other_file() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, "").go();
    make_pipe(&gateway.folder().join("schema.json"));
    gateway.rewrite(&Start::before(&upstream, "schema = \"schema.json\""));
    assert_refused(gateway, "schema.json");
}

#[test]
fn nobody_waits_for_a_configuration_that_is_a_pipe_or_a_device() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe.toml");
    make_pipe(&pipe);
    for (command, file) in [("check", pipe.as_path()), ("serve", &pipe), ("check", Path::new("/dev/zero"))] {
        let ended = program().args([command, "-c"]).arg(file).output().unwrap();
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(78), "{command}: {told}");
        assert!(told.contains("it is not a regular file"), "{command}: {told}");
    }
}

/// A program that does not get beyond its store before the file that is returned is dropped.
fn held_at_its_store(upstream: &Upstream) -> (Gateway, std::fs::File) {
    let folder = tempfile::tempdir().unwrap();
    let lock = std::fs::File::create(folder.path().join("seawall.db-lock")).unwrap();
    lock.lock().unwrap();
    let database = folder.path().join("seawall.db");
    let gateway = Start::before(upstream, "").begin(folder);
    eventually("it opens its store", || database.exists());
    (gateway, lock)
}

#[test]
fn a_hangup_while_the_program_starts_does_not_end_it() {
    let upstream = Upstream::fine();
    let (mut gateway, lock) = held_at_its_store(&upstream);
    gateway.signal("HUP");
    drop(lock);
    assert!(gateway.listens(), "{}", gateway.stderr());
    eventually("the hangup is heard", || gateway.stderr().contains("configuration reloaded"));
    assert_eq!(gateway.get("/api/x").status, 200);
}

#[test]
fn a_program_that_is_told_to_stop_while_it_starts_stops() {
    let upstream = Upstream::fine();
    let (mut gateway, _lock) = held_at_its_store(&upstream);
    gateway.signal("TERM");
    assert_eq!(gateway.ended(), Some(0), "{}", gateway.stderr());
}
