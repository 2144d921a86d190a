//! Dead letters over time and space: alarms when they pile up, a second look now and then, and letters that move.

use super::caller::eventually;
use super::gateway::{Gateway, Start};
use super::replays::{die, gets, open};
use super::upstream::{OK, Seen, Upstream, answer};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const POLICY: &str = "retry = { attempts = 1 }\nbreaker = { mode = \"off\" }\n";

fn notes(gateway: &Gateway, event: &str) -> Vec<Value> {
    let lines = gateway.stdout();
    lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).filter(|line| line["event"] == event).collect()
}

#[test]
fn an_alarm_rises_once_and_clears_when_it_is_well_below() {
    let upstream = Upstream::replying(&[&answer("503 No", "", "down")]);
    let gateway = Start::before(&upstream, &format!("{POLICY}dead_letter = {{ alarm_depth = 5, severity = \"pager\" }}")).go();
    die(&gateway, &gets(5));
    eventually("it rises", || notes(&gateway, "dead_letter_alarm").len() == 1);
    let alarm = notes(&gateway, "dead_letter_alarm").remove(0);
    assert_eq!((&alarm["queue"], &alarm["severity"], &alarm["open"]), (&json!("api"), &json!("pager"), &json!("5")), "{alarm}");
    let kept = open(&gateway);
    let discard = |letter: &Value| gateway.admin("DELETE", &format!("/v1/dead-letters/{}", letter["id"].as_str().unwrap()), "");
    assert_eq!(discard(&kept[0]).status, 200);
    eventually("it clears at four fifths", || notes(&gateway, "dead_letter_alarm_cleared").len() == 1);
    assert_eq!(notes(&gateway, "dead_letter_alarm").len(), 1);
    let told = gateway.look("/v1/events/recent")["items"].clone();
    let alarms: Vec<&Value> = told.as_array().unwrap().iter().filter(|event| event["name"] == "dead-letter-alarm").collect();
    assert_eq!(alarms.len(), 2, "it is told when it rises and when it clears: {told}");
    assert_eq!(alarms[0]["resolves"], alarms[1]["id"]);
}

#[test]
fn what_may_have_passed_is_tried_again_once_by_itself_and_reported() {
    let works = Arc::new(AtomicBool::new(false));
    let now = Arc::clone(&works);
    let upstream = Upstream::with(move |turn| {
        let wrong = turn.seen.line().contains("/wrong");
        turn.say(match (wrong, now.load(Ordering::SeqCst)) {
            (true, _) => answer("404 No", "", ""),
            (false, true) => OK.to_owned(),
            (false, false) => answer("503 No", "", ""),
        });
    });
    let keys = format!("{POLICY}dead_letter = {{ reevaluate = \"3s\", replay_rate = \"100/s\" }}");
    let gateway = Start::before(&upstream, &keys).go();
    let mut jobs = gets(3);
    jobs.push(json!({ "upstream": "api", "path": "/wrong" }));
    die(&gateway, &jobs);
    works.store(true, Ordering::SeqCst);
    eventually("what may pass has passed", || open(&gateway).len() == 1);
    assert_eq!(open(&gateway)[0]["class"], "permanent");
    let mut report = Value::Null;
    eventually("it is reported", || {
        let reports = notes(&gateway, "dead_letters_reevaluated");
        report = reports.into_iter().find(|report| report["ok"] == "3").unwrap_or_default();
        report.is_object()
    });
    assert_eq!(
        (&report["name"], &report["upstreams"], &report["failed"]),
        (&json!("reevaluation"), &json!("api"), &json!("0")),
        "{report}"
    );
}

#[test]
fn letters_that_leave_arrive_whole_elsewhere() {
    let upstream = Upstream::replying(&[&answer("503 No", "", "down")]);
    let first = Start::before(&upstream, POLICY).go();
    let mut jobs = gets(150);
    jobs.push(
        json!({ "upstream": "api", "path": "/p?q=1", "method": "PUT", "body": "/wA=", "body_encoding": "base64", "correlation_id": "c" }),
    );
    die(&first, &jobs);
    let exported = first.admin("GET", "/v1/dead-letters/export", "");
    assert_eq!((exported.status, exported.header("content-type")), (200, Some("application/x-ndjson")));
    assert_eq!(exported.text().lines().count(), 151);
    let second = Start::before(&upstream, POLICY).go();
    let text = format!("{}{{}}\n", exported.text());
    for _ in 0..2 {
        let answers = second.admin_as("POST", "/v1/dead-letters/import", "application/x-ndjson", &text).text();
        let answers: Vec<Value> = answers.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(answers.iter().filter(|answer| answer["kept"] == true).count(), 151);
        assert_eq!((&answers[151]["line"], &answers[151]["code"]), (&json!(152), &json!("bad_request")));
    }
    assert_eq!(open(&second).len(), 151, "what is there stays as it is");
    let again = second.admin("GET", "/v1/dead-letters/export?upstream=api", "").text();
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&again), sorted(&exported.text()));
    assert_eq!(second.admin("GET", "/v1/dead-letters/export?odd=1", "").status, 400);
}

/// Verifies the signature as a receiver does.
pub(crate) fn is_signed(seen: &Seen, secret: &str) -> bool {
    let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
    let [id, timestamp, signature] = ["webhook-id", "webhook-timestamp", "webhook-signature"].map(|name| seen.all(name)[0]);
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
    mac.update(format!("{id}.{timestamp}.").as_bytes());
    mac.update(&seen.body);
    signature == format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

/// The last of `count` callbacks, and the key that the operator gives to the receiver.
fn called_back(gateway: &Gateway, receiver: &Upstream, count: usize) -> (Seen, Value) {
    let job = json!({ "upstream": "api", "path": "/x", "callback": format!("http://{}/hook", receiver.at) });
    assert_eq!(gateway.admin("POST", "/v1/jobs", &job.to_string()).status, 202);
    eventually("the receiver hears of it", || receiver.count() == count);
    (receiver.seen().remove(count - 1), gateway.admin("GET", "/v1/webhook-secret", "").json())
}

#[test]
fn the_key_that_signs_callbacks_outlives_the_process() {
    const CONFIGURED: &str = "whsec_Y2FuYXJ5LWNhbmFyeQ==";
    let (upstream, receiver) = (Upstream::fine(), Upstream::fine());
    let start = || Start::before(&upstream, POLICY).server("allow_private = [\"127.0.0.0/8\"]");
    let gateway = start().go();
    let (seen, told) = called_back(&gateway, &receiver, 1);
    let secret = told["secret"].as_str().unwrap().to_owned();
    assert!(told["source"] == "store" && is_signed(&seen, &secret), "{seen:?}");
    let gateway = start().go_in(gateway.kill());
    let (seen, again) = called_back(&gateway, &receiver, 2);
    assert!(again["secret"] == json!(secret) && is_signed(&seen, &secret), "{seen:?}");
    assert!(!(gateway.stdout() + &gateway.stderr()).contains(&secret));
    let configured = start().server("webhook_secret = \"env:HOOKS\"").secret("HOOKS", CONFIGURED).go_in(gateway.kill());
    let (seen, told) = called_back(&configured, &receiver, 3);
    assert_eq!(told, json!({ "source": "config", "secret": null }));
    assert!(is_signed(&seen, CONFIGURED) && !is_signed(&seen, &secret), "{seen:?}");
}

#[test]
fn a_callers_failed_call_keeps_the_upstreams_words_and_its_own_class() {
    let upstream = Upstream::with(|turn| match turn.seen.line() {
        line if line.contains("/garbage") => turn.say("no HTTP at all\r\n\r\n"),
        _ => turn.say(answer("422 No", "Content-Type: application/json\r\n", "{\"message\":\"the name is taken\"}")),
    });
    let gateway = Start::before(&upstream, &format!("{POLICY}dead_letter = {{ from = [\"gateway\"] }}\n")).go();
    assert_eq!((gateway.get("/api/x").status, gateway.get("/api/garbage").status), (422, 502));
    let letters = || gateway.admin("GET", "/v1/dead-letters", "").json()["items"].as_array().unwrap().clone();
    eventually("both are kept", || letters().len() == 2);
    let all = letters();
    let of = |code: &str| all.iter().find(|letter| letter["failure_code"] == code).unwrap();
    assert!(of("422")["error_detail"].as_str().unwrap().contains("the name is taken"), "{}", of("422"));
    assert_eq!((&of("malformed")["class"], &of("malformed")["replayable"]), (&json!("permanent"), &json!(false)));
}
