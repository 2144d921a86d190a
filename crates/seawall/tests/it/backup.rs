//! The database file as an operator handles it: stopped, copied, backed up, restored.

use super::gateway::{Gateway, Start, program};
use super::upstream::Upstream;
use std::path::Path;

fn submit(gateway: &Gateway, count: usize) {
    for _ in 0..count {
        let reply = gateway.admin("POST", "/v1/jobs", r#"{"upstream":"api","path":"/x","delay":"1h"}"#);
        assert_eq!(reply.status, 202, "{}", reply.text());
    }
}

fn jobs(gateway: &Gateway) -> usize {
    gateway.look("/v1/jobs?limit=100")["items"].as_array().unwrap().len()
}

/// Runs `seawall store` in a folder; its exit code and what it said.
fn store(folder: &Path, arguments: &[&str]) -> (i32, String) {
    let out = program().current_dir(folder).arg("store").args(arguments).output().unwrap();
    (out.status.code().unwrap(), String::from_utf8(out.stderr).unwrap())
}

#[test]
fn a_clean_stop_leaves_one_file_with_everything_in_it() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, "").go();
    submit(&gateway, 50);
    let (left, other) = (gateway.stop(), tempfile::tempdir().unwrap());
    std::fs::copy(left.path().join("seawall.db"), other.path().join("seawall.db")).unwrap();
    let again = Start::before(&upstream, "").go_in(other);
    assert_eq!(jobs(&again), 50);
    assert!(!again.stderr().contains("warning"), "{}", again.stderr());
}

#[test]
fn a_copy_of_a_running_database_without_its_log_is_warned_about() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, "").go();
    submit(&gateway, 5);
    let (left, other) = (gateway.kill(), tempfile::tempdir().unwrap());
    std::fs::copy(left.path().join("seawall.db"), other.path().join("seawall.db")).unwrap();
    let again = Start::before(&upstream, "").go_in(other);
    assert!(again.stderr().contains("its log is not beside it"), "{}", again.stderr());
}

#[test]
fn a_backup_is_made_checked_and_restored_by_commands() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, "").go();
    submit(&gateway, 20);
    let folder = gateway.kill();
    let gateway = Start::before(&upstream, "").go_in(folder);
    let place = gateway.folder().to_owned();
    assert_eq!(store(&place, &["backup", "copy.db"]), (0, "seawall.db is copied to copy.db\n".to_owned()));
    assert_eq!(store(&place, &["backup", "copy.db"]).0, 11, "nothing is written over");
    submit(&gateway, 7);
    let (code, said) = store(&place, &["restore", "copy.db"]);
    assert!(code == 11 && said.contains("another process is using it"), "{said}");
    let folder = gateway.stop();
    assert_eq!(store(folder.path(), &["check"]).0, 0);
    let (code, said) = store(folder.path(), &["restore", "copy.db"]);
    assert!(code == 0 && said.contains("seawall.db.before-1"), "{said}");
    let restored = Start::before(&upstream, "").go_in(folder);
    assert_eq!(jobs(&restored), 20);
}

#[test]
fn a_store_that_is_damaged_or_not_a_file_is_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let policy = |store: &str| format!("[server]\nstore = \"{store}\"\n[upstreams.a]\nurl = \"http://127.0.0.1:1\"\n");
    std::fs::write(folder.path().join("seawall.toml"), policy("sqlite:bad.db")).unwrap();
    std::fs::write(folder.path().join("bad.db"), vec![0xA5; 8192]).unwrap();
    let (code, said) = store(folder.path(), &["check"]);
    assert!(code == 11 && said.contains("damaged"), "{said}");
    std::fs::write(folder.path().join("seawall.toml"), policy("postgres://localhost/x")).unwrap();
    let (code, said) = store(folder.path(), &["backup", "copy.db"]);
    assert!(code == 2 && said.contains("pg_dump"), "{said}");
}
