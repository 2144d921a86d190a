//! The demo: its figures match its callers' results, also if it is stopped early or never begins.

use super::caller::eventually;
use super::dir::Dir;
use super::gateway::program;
use std::io::Read as _;
use std::process::Stdio;

#[test]
fn whoever_stops_the_story_gets_what_it_came_to() {
    let mut child = program().arg("demo").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut err = child.stderr.take().unwrap();
    let mut told = String::new();
    eventually("the story has begun", || {
        let mut some = [0; 4096];
        let count = err.read(&mut some).unwrap();
        told.push_str(&String::from_utf8_lossy(&some[..count]));
        told.contains("naive")
    });
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    err.read_to_string(&mut told).unwrap();
    let output = child.wait_with_output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert!(table.contains("what the callers got") && table.contains("p99 of successes"), "{table}\n{told}");
}

#[test]
fn the_table_is_what_the_gateway_counted_and_the_upstream_saw() {
    let run = Dir::new().run(["demo", "--for", "8s", "--json"]).ends_with(0);
    let told = run.json();
    let (naive, ours, gateway) = (&told["naive"], &told["seawall"], &told["gateway"]);
    for count in ["calls", "succeeded", "given_up", "sends"] {
        assert!(ours[count].is_u64(), "{count}: {told}");
        assert_eq!(ours[count], gateway[count], "{count}: {told}");
    }
    assert_eq!(naive["calls"], ours["calls"], "both send the same calls: {told}");
    assert_eq!(naive["sends"], naive["calls"], "a plain client does not send twice: {told}");
    let sends = naive["sends"].as_u64().unwrap() + ours["sends"].as_u64().unwrap();
    assert_eq!(told["upstream"]["requests"], sends, "every request that the upstream saw is in the table: {told}");
    assert!(gateway["breaker_opened"].as_u64() >= Some(1) && gateway["breaker_closed"].as_u64() >= Some(1), "{told}");
    assert!(run.err.contains("breaker closed → open") && run.err.contains("half-open → closed"), "{}", run.err);
    assert!(ours["success_percent"].as_f64() > naive["success_percent"].as_f64(), "{told}");
    assert!(gateway["quota_refusals"].as_u64() >= Some(1), "a key runs out: {told}");
    let view: Vec<&str> = run.err.lines().skip_while(|line| !line.starts_with("── quota")).collect();
    assert!(view.iter().any(|line| line.contains("403 quota, rotate_key (quota_rotation)")), "{}", run.err);
    assert!(view.iter().any(|line| line.contains("key a cooling for") && line.contains("key b ready")), "{}", run.err);
    assert!(!run.err.contains("key b cooling"), "the other takes over: {}", run.err);
}

#[test]
fn a_story_that_is_too_short_says_how_long_it_must_be() {
    let dir = Dir::new();
    let run = dir.run(["demo", "--for", "5s"]).ends_with(2);
    assert!(run.err.contains("`--for` is too short: the story needs at least 8s"), "{}", run.err);
    assert!(dir.run(["demo", "--help"]).out.contains("8s or more"));
}
