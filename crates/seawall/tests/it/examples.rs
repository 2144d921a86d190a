//! The library's examples do what they say, in front of the faulty upstream that they are written for.

use super::flaky::Flaky;
use super::servers::Redis;
use std::path::Path;
use std::process::Command;
use std::sync::Once;

/// Builds the examples, before a test starts what they talk to.
fn build() {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        let built = Command::new(env!("CARGO")).args(["build", "-q", "--locked", "--workspace", "--examples"]).status().unwrap();
        assert!(built.success(), "the examples do not build");
    });
}

/// Runs an example and gives what it said.
fn run(name: &str, arguments: &[&str]) -> String {
    let place = Path::new(env!("CARGO_BIN_EXE_seawall")).with_file_name("examples").join(name);
    let output = Command::new(place).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{name}: {said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

#[test]
fn a_closure_is_healed_and_what_is_final_stays_final() {
    build();
    let (flaky, _folder) = Flaky::scripted("");
    let said = run("flaky_closure", &[&flaky.address]);
    assert!(said.contains("attempt 1: 503 → retry") && said.contains("attempt 2: reset → retry"), "{said}");
    assert!(said.contains("healed: ") && said.contains("final: ") && said.contains("come back in Some(120s)"), "{said}");
    assert_eq!(flaky.stats()["requests"], 5, "three, one and one");
}

#[test]
fn a_handler_a_client_and_a_worker_are_guarded() {
    build();
    for name in ["guarded_handler", "hyper_client", "pipeline_worker"] {
        let (flaky, _folder) = Flaky::scripted("");
        let said = run(name, &[&flaky.address]);
        assert!(!said.is_empty() && flaky.stats()["requests"].as_u64() > Some(2), "{name}: {said}");
    }
}

#[test]
fn two_programs_keep_one_limit() {
    build();
    let ((flaky, _folder), redis) = (Flaky::scripted(""), Redis::start());
    let said = run("shared_limits", &[&flaky.address, &redis.url()]);
    let together: u32 = said.split("together ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap();
    assert!(together <= 42, "twice as many without Redis: {said}");
    assert!(together >= 10, "{said}");
}
