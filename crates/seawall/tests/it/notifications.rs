//! Messages to a receiver: signed, told once, together, and again when it is over.

use super::caller::eventually;
use super::dead_letters::is_signed;
use super::gateway::{Gateway, Start};
use super::upstream::{OK, Seen, Upstream, answer};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const REACH: &str = "allow_private = [\"127.0.0.0/8\"]";
const BREAKER: &str =
    "retry = { attempts = 1 }\nbreaker = { consecutive = 2, open = \"100ms\", open_max = \"100ms\", successes = 1, ramp = \"0s\" }\n";

/// An upstream that works while this is set.
fn moody() -> (Arc<AtomicBool>, Upstream) {
    let works = Arc::new(AtomicBool::new(false));
    let now = Arc::clone(&works);
    let upstream = Upstream::with(move |turn| {
        turn.say(if now.load(Ordering::SeqCst) { OK.to_owned() } else { answer("500 Oops", "", "") });
    });
    (works, upstream)
}

fn told(seen: &Seen) -> Value {
    serde_json::from_slice(&seen.body).unwrap()
}

fn names(message: &Value) -> Vec<&str> {
    message["events"].as_array().unwrap().iter().map(|event| event["name"].as_str().unwrap()).collect()
}

fn published(gateway: &Gateway, name: &str) -> usize {
    gateway.look("/v1/events/recent")["items"].as_array().unwrap().iter().filter(|event| event["name"] == name).count()
}

#[test]
fn what_begins_and_ends_is_told_once_each_and_signed() {
    let ((works, upstream), receiver) = (moody(), Upstream::fine());
    let notify = format!("[[notify]]\nurl = \"http://{}/hook\"\nsecret = \"env:OPS\"\nevents = [\"breaker-opened\"]\n", receiver.at);
    let gateway = Start::before(&upstream, &format!("{BREAKER}{notify}")).server(REACH).secret("OPS", SECRET).go();
    assert!(gateway.stderr().contains("  notify    breaker-opened as json"), "{}", gateway.stderr());
    gateway.get("/api/x");
    gateway.get("/api/x");
    eventually("it is told", || receiver.count() == 1);
    let seen = receiver.seen().remove(0);
    let message = told(&seen);
    assert_eq!(seen.line(), "POST /hook HTTP/1.1");
    assert!(is_signed(&seen, SECRET), "{}", seen.head);
    assert_eq!((&message["type"], names(&message)), (&json!("breaker-opened"), vec!["breaker-opened"]), "{message}");
    assert_eq!((&message["data"]["upstream"], &message["data"]["times"]), (&json!("api"), &json!(1)));
    let why = "too many calls failed in a row; further ones are refused until a probe succeeds";
    assert_eq!((&message["data"]["cause"], &message["data"]["detail"]), (&json!("consecutive"), &json!(why)));
    eventually("it fails its probes", || {
        gateway.get("/api/x");
        let breaker = &gateway.look("/v1/breakers")["items"][0];
        breaker["changes"].as_array().unwrap().iter().filter(|change| change["cause"] == "probe-failed").count() >= 3
    });
    assert_eq!(published(&gateway, "breaker-opened"), 1, "an outage that lasts is told once");
    works.store(true, Ordering::SeqCst);
    eventually("it recovers", || gateway.get("/api/x").status == 200 && published(&gateway, "breaker-closed") == 1);
    eventually("that is told too", || receiver.count() == 2);
    let seen = receiver.seen().remove(1);
    assert!(is_signed(&seen, SECRET), "{}", seen.head);
    assert_eq!((names(&told(&seen)), &told(&seen)["data"]["title"]), (vec!["breaker-closed"], &json!("api/default has recovered")));
    assert_ne!(seen.all("webhook-id"), receiver.seen()[0].all("webhook-id"));
}

#[test]
fn what_comes_together_is_told_together() {
    let ((_works, upstream), receiver) = (moody(), Upstream::fine());
    let mut policy = String::new();
    for name in ["a", "b", "c"] {
        policy.push_str(&format!("[upstreams.{name}]\nurl = \"http://{}\"\n{BREAKER}", upstream.at));
    }
    policy.push_str(&format!("[[notify]]\nurl = \"http://{}/topic\"\nformat = \"ntfy\"\n", receiver.at));
    let gateway = Start::with(&policy).server(REACH).go();
    let fail = |name: &str| [(); 2].map(|()| gateway.get(&format!("/{name}/x")).status);
    fail("a");
    eventually("the first is told at once", || receiver.count() == 1);
    fail("b");
    // Longer than it takes to look twice at what was published.
    std::thread::sleep(std::time::Duration::from_millis(800));
    fail("c");
    eventually("the others together", || receiver.count() == 2);
    let seen = receiver.seen().remove(1);
    let text = String::from_utf8(seen.body.clone()).unwrap();
    assert!(text.contains("b/default is failing") && text.contains("c/default is failing") && !text.contains("a/default"), "{text}");
    assert!(text.contains(": too many calls failed in a row; ") && !text.contains("consecutive"), "{text}");
    assert_eq!(seen.all("title"), ["b/default is failing: its breaker opened, and 1 more"]);
    assert_eq!((seen.all("priority"), seen.all("tags")), (vec!["4"], vec!["warning"]));
}

#[test]
fn a_refused_credential_is_told_in_the_providers_words_even_to_a_receiver_that_was_down() {
    let upstream = Upstream::with(|turn| turn.say(answer("401 No", "", r#"{"error":{"message":"key canary-in-use-9876 was revoked"}}"#)));
    let receiver = Upstream::replying(&[&answer("503 Later", "", ""), OK]);
    let auth = "[upstreams.api.auth]\ninject = \"header:X-Key\"\nkeys = [{ id = \"k\", secret = \"env:KEY\" }]\n";
    let notify = "[[notify]]\nurl = \"env:HOOK\"\nformat = \"slack\"\nevents = [\"auth-failed\"]\n";
    let start = Start::before(&upstream, &format!("{auth}{notify}")).server(REACH);
    let gateway = start.secret("KEY", "canary-in-use-9876").secret("HOOK", &format!("http://{}/services/T0/B0", receiver.at)).go();
    gateway.get("/api/x");
    let first = || receiver.seen().first().map(|seen| seen.all("webhook-id")[0].to_owned());
    let same = || receiver.seen().into_iter().filter(|seen| Some(seen.all("webhook-id")[0]) == first().as_deref()).collect::<Vec<_>>();
    eventually("the same message is sent again", || same().len() == 2);
    let message = told(&same()[1]);
    assert!(message["text"].as_str().unwrap().starts_with(":red_circle: "), "{message}");
    assert!(message.to_string().contains("was revoked"), "{message}");
    let jobs = gateway.look("/v1/jobs");
    assert!(jobs.to_string().contains("env:HOOK"), "{jobs}");
    for said in [message.to_string(), jobs.to_string(), gateway.look("/v1/events/recent").to_string(), gateway.stdout()] {
        assert!(!said.contains("canary"), "{said}");
    }
    assert!(!jobs.to_string().contains("services/T0"), "{jobs}");
}

#[test]
fn a_refused_configuration_is_told_and_so_is_the_next_good_one() {
    let (upstream, receiver) = (Upstream::fine(), Upstream::fine());
    let notify = format!("[[notify]]\nurl = \"http://{}/\"\nevents = [\"config-rejected\"]\n", receiver.at);
    let start = || Start::before(&upstream, &notify).server(REACH);
    let gateway = start().go();
    gateway.rewrite(&Start::with("[upstreams.api]\nurl = 7\n"));
    assert_eq!(gateway.admin("POST", "/v1/config/reload", "").status, 422);
    eventually("it is told", || receiver.count() == 1);
    gateway.rewrite(&start());
    assert_eq!(gateway.admin("POST", "/v1/config/reload", "").status, 200);
    eventually("so is the end", || receiver.count() == 2);
    let messages: Vec<Value> = receiver.seen().iter().map(told).collect();
    assert_eq!((&messages[0]["type"], &messages[1]["type"]), (&json!("config-rejected"), &json!("config-reloaded")));
    assert_eq!(messages[1]["data"]["resolves"], messages[0]["data"]["id"]);
    let secret = gateway.admin("GET", "/v1/webhook-secret", "").json()["secret"].as_str().unwrap().to_owned();
    assert!(receiver.seen().iter().all(|seen| is_signed(seen, &secret)), "without a secret of its own, the store's signs");
}

#[test]
fn an_end_after_a_restart_is_told_to_whoever_heard_of_the_beginning() {
    let ((works, upstream), receiver) = (moody(), Upstream::fine());
    let notify = format!("[[notify]]\nurl = \"http://{}/\"\nevents = [\"breaker-opened\", \"config-rejected\"]\n", receiver.at);
    let start = || Start::before(&upstream, &format!("{BREAKER}{notify}")).server(REACH);
    let gateway = start().go();
    gateway.rewrite(&Start::with("[upstreams.api]\nurl = 7\n"));
    assert_eq!(gateway.admin("POST", "/v1/config/reload", "").status, 422);
    eventually("the file is told of", || receiver.count() == 1);
    gateway.get("/api/x");
    gateway.get("/api/x");
    eventually("so is the breaker", || receiver.count() == 2);
    let began: Vec<Value> = receiver.seen().iter().map(|seen| told(seen)["data"]["id"].clone()).collect();
    eventually("that is written down", || gateway.wrote("\"breaker-opened api/default \",\"config-rejected"));
    let again = start().go_in(gateway.kill());
    eventually("the start ends the one", || receiver.count() == 3);
    works.store(true, Ordering::SeqCst);
    eventually("the breaker closes", || again.get("/api/x").status == 200 && published(&again, "breaker-closed") == 1);
    eventually("and that the other", || receiver.count() == 4);
    let ends: Vec<Value> = receiver.seen().iter().skip(2).map(told).collect();
    assert_eq!([names(&ends[0]), names(&ends[1])], [["config-reloaded"], ["breaker-closed"]]);
    assert_eq!([&ends[0]["data"]["resolves"], &ends[1]["data"]["resolves"]], [&began[0], &began[1]]);
    eventually("nothing stands any more", || again.wrote("{\"standing\":{},\"told\":[["));
}

#[test]
fn an_address_out_of_reach_is_said_at_the_start_and_never_spoken_to() {
    let ((_works, upstream), receiver) = (moody(), Upstream::fine());
    let gateway = Start::before(&upstream, &format!("{BREAKER}[[notify]]\nurl = \"http://{}/\"\n", receiver.at)).go();
    assert!(gateway.stderr().contains("warning   notify[0] will not be sent"), "{}", gateway.stderr());
    gateway.get("/api/x");
    gateway.get("/api/x");
    eventually("the message is kept", || gateway.look("/v1/jobs?state=dead")["items"].as_array().unwrap().len() == 1);
    let letter = gateway.look("/v1/dead-letters")["items"][0].clone();
    let detail = letter["error_detail"].as_str().unwrap();
    assert!(letter["total_attempts"] == 1 && detail.contains("`allow_private`") && !detail.contains("127.0.0.1"), "{letter}");
    assert_eq!(receiver.connections(), 0);
}
