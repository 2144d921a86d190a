//! Jobs that may not be sent twice: a POST without a key, or under `unsafe = "never"`. What may have been executed is left to a person.

use super::caller::eventually;
use super::gateway::{Gateway, Start};
use super::jobs::{over, submit};
use super::upstream::{OK, Upstream};
use serde_json::{Value, json};

const POLICY: &str = "timeout = { attempt = \"20s\", total = \"60s\" }\nretry = { attempts = 3 }\nbreaker = { mode = \"off\" }\n";

/// An upstream that says nothing to its first caller.
fn silent_at_first() -> Upstream {
    Upstream::with(|turn| if turn.number == 0 { turn.hang(20_000) } else { turn.say(OK) })
}

fn post() -> Value {
    json!({ "upstream": "api", "method": "POST", "path": "/x", "body": "pay" })
}

/// The job ended without another send, and its letter says what is known.
#[track_caller]
fn is_left_to_a_person(gateway: &Gateway, id: &str, upstream: &Upstream) -> Value {
    let ended = over(gateway, id);
    let told = ["state", "error", "attempts"].map(|name| ended[name].clone());
    assert_eq!(told, [json!("dead"), json!("outcome_unknown"), json!(1)], "{ended}");
    assert_eq!(upstream.count(), 1, "it may have been executed");
    let letter = gateway.look(&format!("/v1/dead-letters/{id}"));
    let told = ["failure_code", "class", "replayable", "total_attempts"].map(|name| letter[name].clone());
    assert_eq!(told, [json!("outcome_unknown"), json!("ambiguous"), json!(false), json!(1)], "{letter}");
    let detail = letter["error_detail"].as_str().unwrap();
    assert!(detail.starts_with("attempt 1 was begun at 20") && detail.ends_with("the request may have been executed"), "{detail}");
    letter
}

#[test]
fn a_post_without_a_key_is_not_sent_again_after_a_kill_unless_a_person_insists() {
    let upstream = silent_at_first();
    let gateway = Start::before(&upstream, POLICY).go();
    let id = submit(&gateway, &post());
    eventually("it is under way", || upstream.count() == 1);
    let gateway = Start::before(&upstream, POLICY).go_in(gateway.kill());
    let letter = is_left_to_a_person(&gateway, &id, &upstream);
    assert_eq!(letter["history"][0]["status"], "unknown", "{letter}");
    let replay = |force: bool| gateway.admin("POST", "/v1/dead-letters/replay", &json!({ "ids": [id], "force": force }).to_string());
    replay(false);
    assert_eq!((upstream.count(), gateway.look(&format!("/v1/dead-letters/{id}"))["status"].clone()), (1, json!("kept")));
    assert_eq!(replay(true).status, 202);
    eventually("it is replayed", || gateway.look(&format!("/v1/dead-letters/{id}"))["status"] == "replayed");
    assert_eq!(upstream.count(), 2);
}

#[test]
fn a_key_does_not_help_where_nothing_may_be_repeated() {
    let upstream = silent_at_first();
    let policy = "timeout = { attempt = \"20s\", total = \"60s\" }\nretry = { attempts = 3, unsafe = \"never\" }\n";
    let gateway = Start::before(&upstream, policy).go();
    let mut keyed = post();
    keyed["idempotency_key"] = json!("k");
    let id = submit(&gateway, &keyed);
    eventually("it is under way", || upstream.count() == 1);
    let gateway = Start::before(&upstream, policy).go_in(gateway.kill());
    assert_eq!((&over(&gateway, &id)["error"], upstream.count()), (&json!("outcome_unknown"), 1));
}

#[test]
fn a_post_without_a_key_that_a_drain_cuts_off_is_not_sent_again() {
    let upstream = silent_at_first();
    let mut gateway = Start::before(&upstream, POLICY).server("drain = \"200ms\"").go();
    let id = submit(&gateway, &post());
    eventually("it is under way", || upstream.count() == 1);
    gateway.signal("TERM");
    assert_eq!(gateway.ended(), Some(0));
    let gateway = Start::before(&upstream, POLICY).go_in(gateway.kill());
    let letter = is_left_to_a_person(&gateway, &id, &upstream);
    assert!(letter["error_detail"].as_str().unwrap().contains("cut off when the process stopped"), "{letter}");
    assert_eq!(gateway.metric("seawall_jobs_recovered_total"), Some(0.0), "the process said so itself");
}

/// The rule that allowed a repetition when the request began is gone when it is recovered.
#[test]
fn a_post_that_was_begun_under_a_rule_that_is_gone_is_not_sent_again() {
    let policy = |rule: &str| POLICY.replace("attempts = 3", &format!("attempts = 3, unsafe = \"{rule}\""));
    let is_left = |gateway: &Gateway, id: &str, upstream: &Upstream| {
        let ended = over(gateway, id);
        assert_eq!((&ended["state"], &ended["error"], upstream.count()), (&json!("dead"), &json!("outcome_unknown"), 1), "{ended}");
        let detail = gateway.look(&format!("/v1/dead-letters/{id}"))["error_detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("does not hold any more"), "{detail}");
    };
    // Killed, and started again with the other rule at once.
    for (before, key) in [("always", None), ("with-key", Some("k"))] {
        let upstream = silent_at_first();
        let mut job = post();
        if let Some(key) = key {
            job["idempotency_key"] = json!(key);
        }
        let gateway = Start::before(&upstream, &policy(before)).go();
        let id = submit(&gateway, &job);
        eventually("it is under way", || upstream.count() == 1);
        is_left(&Start::before(&upstream, &policy("never")).go_in(gateway.kill()), &id, &upstream);
    }
    // Cut off by a drain.
    let upstream = silent_at_first();
    let mut gateway = Start::before(&upstream, &policy("always")).server("drain = \"200ms\"").go();
    let id = submit(&gateway, &post());
    eventually("it is under way", || upstream.count() == 1);
    gateway.signal("TERM");
    assert_eq!(gateway.ended(), Some(0));
    is_left(&Start::before(&upstream, &policy("never")).go_in(gateway.kill()), &id, &upstream);
}

#[test]
fn a_post_that_a_rule_lets_be_repeated_is_sent_again_after_a_kill() {
    let upstream = silent_at_first();
    let policy = POLICY.replace("attempts = 3", "attempts = 3, unsafe = \"always\"");
    let gateway = Start::before(&upstream, &policy).go();
    let id = submit(&gateway, &post());
    eventually("it is under way", || upstream.count() == 1);
    let gateway = Start::before(&upstream, &policy).go_in(gateway.kill());
    assert_eq!((&over(&gateway, &id)["state"], upstream.count()), (&json!("done"), 2));
}

/// A job that may be repeated is, until it seems to end its workers.
#[test]
fn a_poison_letter_says_what_is_known_and_its_key_is_free() {
    let upstream = Upstream::with(|turn| if turn.number < 3 { turn.hang(20_000) } else { turn.say(OK) });
    let mut keyed = post();
    keyed["idempotency_key"] = json!("k");
    let start = || Start::before(&upstream, POLICY);
    let mut gateway = start().go();
    let id = submit(&gateway, &keyed);
    for sends in 1..=3 {
        eventually("it is under way", || upstream.count() == sends);
        gateway = start().go_in(gateway.kill());
    }
    assert_eq!(over(&gateway, &id)["error"], "poison");
    let letter = gateway.look(&format!("/v1/dead-letters/{id}"));
    let told = ["class", "replayable", "total_attempts", "endpoint"].map(|name| letter[name].clone());
    assert_eq!(told, [json!("ambiguous"), json!(true), json!(3), json!("default")], "{letter}");
    let again = submit(&gateway, &keyed);
    let ended = over(&gateway, &again);
    assert_eq!((&ended["state"], ended["error"].clone(), upstream.count()), (&json!("done"), Value::Null, 4), "{ended}");
}
