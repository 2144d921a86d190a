//! Durable jobs as callers and operators see them: kept before they are acknowledged, driven to an end, never lost.

use super::caller::{eventually, within};
use super::gateway::{Gateway, Start};
use super::upstream::{OK, Upstream, answer};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const QUICK: &str =
    "retry = { attempts = 3, backoff = \"full-jitter\", base = \"30ms\", cap = \"60ms\" }\ntimeout = { attempt = \"2s\", total = \"5s\" }";

/// Submits a job and gives its id.
#[track_caller]
pub(crate) fn submit(gateway: &Gateway, job: &Value) -> String {
    let reply = gateway.admin("POST", "/v1/jobs", &job.to_string());
    assert_eq!(reply.status, 202, "{}", reply.text());
    reply.json()["id"].as_str().unwrap().to_owned()
}

pub(crate) fn job(gateway: &Gateway, id: &str) -> Value {
    gateway.admin("GET", &format!("/v1/jobs/{id}"), "").json()
}

/// The job once it is over.
#[track_caller]
pub(crate) fn over(gateway: &Gateway, id: &str) -> Value {
    eventually("the job is over", || matches!(job(gateway, id)["state"].as_str(), Some("done" | "dead" | "cancelled")));
    job(gateway, id)
}

fn letters(gateway: &Gateway) -> Vec<Value> {
    gateway.admin("GET", "/v1/dead-letters", "").json()["items"].as_array().unwrap().clone()
}

#[test]
fn a_request_that_asks_for_it_becomes_a_job() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, QUICK).go();
    let reply =
        gateway.post("/api/x?y=1", "Prefer: respond-async\r\nContent-Type: text/plain\r\nX-Own: 1\r\nSeawall-Token: t\r\n", "hello");
    assert_eq!(reply.status, 202);
    assert_eq!((reply.header("preference-applied"), reply.header("seawall-outcome")), (Some("respond-async"), Some("enqueued")));
    assert_eq!(reply.header("seawall-attempts"), Some("0"), "nothing was sent yet");
    let (place, told) = (reply.header("location").unwrap().to_owned(), reply.json());
    assert_eq!(place, format!("/-/jobs/{}", told["id"].as_str().unwrap()));
    assert_eq!(told["state"], "queued");
    eventually("the caller finds its answer", || gateway.get(&place).json()["state"] == "done");
    let found = gateway.get(&place).json();
    assert_eq!((&found["response"]["status"], &found["response"]["body"], &found["attempts"]), (&json!(200), &json!("ok"), &json!(1)));
    let seen = upstream.seen().remove(0);
    assert_eq!((seen.line(), seen.body.as_slice()), ("POST /x?y=1 HTTP/1.1", &b"hello"[..]));
    assert_eq!((seen.has("x-own"), seen.has("prefer"), seen.has("seawall-token")), (true, false, false));
}

/// Whether or not they have to be looked at one by one.
#[test]
fn a_job_keeps_the_headers_that_its_caller_may_see() {
    let plain = "X-Own: 1\r\nx-own: 2\r\nContent-Encoding: identity\r\n";
    let odd = format!("{plain}Keep-Alive: timeout=5\r\nSeawall-Call: forged\r\n");
    for fields in [plain, odd.as_str()] {
        let upstream = Upstream::replying(&[&answer("200 Fine", fields, "yes")]);
        let gateway = Start::before(&upstream, QUICK).go();
        let done = over(&gateway, &submit(&gateway, &json!({ "upstream": "api", "path": "/x" })));
        let mut headers = done["response"]["headers"].clone();
        let via = headers.as_object_mut().unwrap().remove("via").unwrap();
        assert!(via.as_str().unwrap().starts_with("1.1 seawall"), "{via}");
        assert_eq!(headers, json!({ "x-own": "1, 2", "content-encoding": "identity", "content-length": "3" }), "{fields}");
        assert_eq!(done["response"]["body"], "yes");
    }
}

#[test]
fn a_call_that_became_a_job_is_counted_once() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, QUICK).go();
    for _ in 0..3 {
        assert_eq!(gateway.get_with("/api/x", "Prefer: respond-async\r\n").status, 202);
    }
    let seen = || gateway.admin("GET", "/v1/upstreams", "").json()["items"][0].clone();
    let totals = || gateway.admin("GET", "/v1/status", "").json()["last_minute"]["calls"].clone();
    eventually("every job was counted", || totals() == 3);
    assert_eq!(seen()["success_share"], 1.0);
}

#[test]
fn who_would_rather_wait_gets_the_answer_itself() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, QUICK).go();
    let reply = gateway.get_with("/api/x", "Prefer: respond-async, wait=10\r\n");
    assert_eq!((reply.status, reply.text().as_str(), reply.header("seawall-outcome")), (200, "ok", Some("success")));
}

#[test]
fn a_response_that_is_too_long_to_keep_is_not_passed_off_as_whole() {
    let upstream = Upstream::with(|turn| turn.say(answer("200 OK", "", &"x".repeat(2_000_000))));
    let gateway = Start::before(&upstream, QUICK).go();
    let reply = gateway.get_with("/api/x", "Prefer: respond-async, wait=10\r\n");
    assert_eq!((reply.status, &reply.json()["state"]), (202, &json!("done")));
    let job = gateway.get_with(reply.header("location").unwrap(), "").json();
    assert_eq!(job["response"]["truncated"], true, "{job}");
}

#[test]
fn headers_beyond_ascii_come_and_go_with_a_job() {
    let upstream = Upstream::with(|turn| {
        turn.say(b"HTTP/1.1 200 OK\r\nX-Utf: caf\xc3\xa9\r\nX-Latin: caf\xe9\r\nContent-Length: 2\r\n\r\nok");
    });
    let gateway = Start::before(&upstream, QUICK).go();
    let reply = gateway.get_with("/api/x", "Prefer: respond-async, wait=10\r\nX-Own: th\u{e9}\r\n");
    assert_eq!((reply.status, reply.header("x-utf"), reply.header("x-latin")), (200, Some("caf\u{e9}"), Some("caf\u{e9}")));
    assert_eq!(upstream.seen()[0].all("x-own"), ["th\u{e9}"]);
}

#[test]
fn a_job_belongs_to_its_caller_alone() {
    let callers = "[callers.acme]\ntoken = \"env:ACME\"\ntenant = \"a\"\n[callers.other]\ntoken = \"env:OTHER\"\n";
    let upstream = Upstream::fine();
    let start = Start::with(&format!("{callers}[upstreams.api]\nurl = \"http://{}\"\n", upstream.at));
    let gateway = start.secret("ACME", "acme-secret").secret("OTHER", "other-secret").go();
    let mine = "Seawall-Token: acme-secret\r\n";
    let reply = gateway.get_with("/api/x", &format!("Prefer: respond-async\r\n{mine}"));
    let place = reply.header("location").unwrap().to_owned();
    assert_eq!(gateway.get_with(&place, mine).status, 200);
    for stranger in ["", "Seawall-Token: other-secret\r\n"] {
        assert_eq!(gateway.get_with(&place, stranger).status, 404, "{stranger:?}");
    }
}

#[test]
fn a_job_is_tried_again_until_it_works_and_its_history_says_so() {
    let upstream = Upstream::replying(&[&answer("503 No", "", ""), &answer("503 No", "", ""), OK]);
    let gateway = Start::before(&upstream, QUICK).go();
    let id = submit(&gateway, &json!({ "upstream": "api", "path": "/x", "correlation_id": "corr" }));
    let done = over(&gateway, &id);
    assert_eq!((&done["state"], &done["attempts"]), (&json!("done"), &json!(3)));
    let statuses: Vec<&str> = done["history"].as_array().unwrap().iter().map(|entry| entry["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["503", "503", "200"]);
    let found = gateway.admin("GET", "/v1/jobs?correlation_id=corr", "").json();
    assert_eq!(found["items"].as_array().unwrap().len(), 1);
}

#[test]
fn what_is_given_up_on_is_kept_with_everything_that_is_known() {
    let upstream = Upstream::replying(&[&answer("404 No", "Content-Type: text/plain\r\n", "no such thing")]);
    let keys = format!("{QUICK}\ndead_letter = {{ severity = \"pager\", ttl = \"1h\", instructions = \"ask first\" }}");
    let gateway = Start::before(&upstream, &keys).go();
    let request =
        json!({ "upstream": "api", "path": "/x", "method": "POST", "body": { "a": 1 }, "headers": { "cookie": "canary-cookie" } });
    let id = submit(&gateway, &request);
    let dead = over(&gateway, &id);
    assert_eq!(dead["state"], "dead");
    let said = &dead["response"];
    assert_eq!(
        (&said["status"], &said["body"], &said["headers"]["content-type"]),
        (&json!(404), &json!("no such thing"), &json!("text/plain"))
    );
    let letter = letters(&gateway).remove(0);
    let expected = json!({
        "id": id, "queue": "api", "endpoint": "default", "class": "permanent", "failure_reason": "permanent_failure",
        "failure_code": "404", "error_detail": "no such thing", "total_attempts": 1, "severity": "pager", "replayable": false,
        "message_id": id, "status": "kept", "replays": 0,
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&letter[name], value, "{name}");
    }
    let shown = gateway.admin("GET", &format!("/v1/dead-letters/{id}"), "").json();
    assert_eq!(shown["original"]["body"], "{\"a\":1}", "lists leave bodies out");
    assert!(letter["replay_instructions"].as_str().unwrap().starts_with("ask first"));
    assert_eq!(letter["history"][0]["status"], "404");
    for text in [letter.to_string(), job(&gateway, &id).to_string(), gateway.stdout()] {
        assert!(!text.contains("canary-cookie"), "{text}");
    }
    assert_eq!(gateway.admin("DELETE", &format!("/v1/dead-letters/{id}"), "").status, 200);
    assert!(letters(&gateway).is_empty());
    assert_eq!(gateway.admin("GET", &format!("/v1/dead-letters/{id}"), "").status, 404);
}

#[test]
fn an_open_breaker_puts_jobs_off_without_burning_attempts() {
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    let upstream = Upstream::with(move |turn| {
        let first = count.fetch_add(1, Ordering::SeqCst) < 2;
        turn.say(if first { answer("503 No", "", "") } else { OK.to_owned() });
    });
    let keys = format!("{QUICK}\nbreaker = {{ consecutive = 2, min_calls = 100, open = \"400ms\", open_max = \"400ms\", successes = 1 }}");
    let gateway = Start::before(&upstream, &keys).go();
    let ids: Vec<String> = (0..5).map(|n| submit(&gateway, &json!({ "upstream": "api", "path": format!("/{n}") }))).collect();
    let attempts: u64 = ids
        .iter()
        .map(|id| over(&gateway, id))
        .map(|done| {
            assert_eq!(done["state"], "done", "{done}");
            done["attempts"].as_u64().unwrap()
        })
        .sum();
    assert_eq!(usize::try_from(attempts).unwrap(), sent.load(Ordering::SeqCst), "only what was sent is an attempt");
}

#[test]
fn a_job_for_later_waits_for_its_time() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, QUICK).go();
    let id = submit(&gateway, &json!({ "upstream": "api", "path": "/x", "delay": "700ms" }));
    assert_eq!(job(&gateway, &id)["state"], "waiting");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(upstream.count(), 0);
    assert_eq!(over(&gateway, &id)["state"], "done");
}

#[test]
fn a_job_can_be_called_off() {
    let upstream = Upstream::with(|turn| turn.hang(20_000));
    let gateway = Start::before(&upstream, "timeout = { attempt = \"30s\", total = \"60s\" }").go();
    let later = submit(&gateway, &json!({ "upstream": "api", "path": "/x", "delay": "1h" }));
    assert_eq!(gateway.admin("DELETE", &format!("/v1/jobs/{later}"), "").status, 200);
    assert_eq!(job(&gateway, &later)["state"], "cancelled");
    let again = gateway.admin("DELETE", &format!("/v1/jobs/{later}"), "");
    assert_eq!((again.status, again.code().as_str()), (409, "job_over"));
    assert_eq!(gateway.admin("DELETE", "/v1/jobs/nonsense", "").status, 404);
}

#[test]
fn the_same_key_is_the_same_job() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, QUICK).go();
    let request = json!({ "upstream": "api", "path": "/x", "method": "POST", "body": "one", "idempotency_key": "k1" });
    let id = submit(&gateway, &request);
    let second = gateway.admin("POST", "/v1/jobs", &request.to_string());
    assert_eq!((second.status, &second.json()["id"]), (200, &json!(id)));
    let other = json!({ "upstream": "api", "path": "/x", "method": "POST", "body": "two", "idempotency_key": "k1" });
    let third = gateway.admin("POST", "/v1/jobs", &other.to_string());
    assert_eq!((third.status, third.code().as_str()), (422, "idempotency_key_mismatch"));
    over(&gateway, &id);
    let seen = upstream.seen();
    assert_eq!((seen.len(), seen[0].all("idempotency-key")), (1, vec!["k1"]));
}

/// Its worker hears of it when it renews the lease, a third of thirty seconds after its start.
#[test]
fn a_job_that_is_cancelled_while_it_runs_is_cut_off() {
    let left = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&left);
    let upstream = Upstream::with(move |turn| {
        // As long as the attempt may take, and no longer.
        let gone = (0..14).any(|_| turn.is_left());
        seen.fetch_add(usize::from(gone), Ordering::SeqCst);
    });
    let gateway = Start::before(&upstream, "retry = { attempts = 1 }\ntimeout = { attempt = \"20s\", total = \"30s\" }").go();
    let id = submit(&gateway, &json!({ "upstream": "api", "path": "/x" }));
    eventually("it is under way", || upstream.count() == 1);
    let reply = gateway.admin("DELETE", &format!("/v1/jobs/{id}"), "");
    assert!(reply.status < 300, "{}", reply.text());
    within(Duration::from_secs(14), "it is cancelled", || job(&gateway, &id)["state"] == "cancelled");
    eventually("its upstream is left", || left.load(Ordering::SeqCst) == 1);
    assert_eq!(job(&gateway, &id)["attempts"], 0, "what was cut off counts as nothing");
}

#[test]
fn many_jobs_come_as_lines_and_a_bad_one_spoils_no_other() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, QUICK).go();
    let mut lines: Vec<String> =
        (0..1200).map(|n| json!({ "upstream": "api", "path": format!("/{n}"), "delay": "1h" }).to_string()).collect();
    lines.insert(600, "{".to_owned());
    // A line that says nothing is still a line.
    lines.insert(650, String::new());
    lines.insert(700, json!({ "upstream": "nobody", "path": "/" }).to_string());
    let reply = gateway.admin_as("POST", "/v1/jobs", "application/x-ndjson", &lines.join("\n"));
    let answers: Vec<Value> = reply.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), 1202);
    let bad: Vec<&Value> = answers.iter().filter(|answer| answer["code"] == "bad_request").map(|answer| &answer["line"]).collect();
    assert_eq!(bad, [&json!(601), &json!(701)]);
    let page = gateway.admin("GET", "/v1/jobs?state=waiting&limit=500", "").json();
    assert_eq!(page["items"].as_array().unwrap().len(), 500);
    let next = page["next_cursor"].as_str().unwrap();
    let second = gateway.admin("GET", &format!("/v1/jobs?state=waiting&limit=500&cursor={next}"), "").json();
    assert_ne!(second["items"][0]["id"], page["items"][499]["id"]);
}

#[test]
fn bad_submissions_say_what_is_wrong_and_keep_nothing() {
    let gateway = Start::before(&Upstream::fine(), QUICK).go();
    let cases = [
        ("{", "this is no job"),
        ("[]", "one JSON object; many are lines of application/x-ndjson"),
        ("7", "one JSON object"),
        (r#"{"upstream":"api"}"#, ""),
        (r#"{"upstream":"nope","path":"/"}"#, "no upstream named `nope`"),
        (r#"{"path":"/"}"#, "an `upstream` and a `path`, or a whole `url`"),
        (r#"{"upstream":"api","path":"x"}"#, "is no path"),
        (r#"{"upstream":"api","path":"/a b"}"#, "is no path"),
        (r#"{"upstream":"api","path":"/","method":"CONNECT"}"#, "no method"),
        (r#"{"upstream":"api","path":"/","run_at":"tomorrow"}"#, "`run_at` is a time"),
        (r#"{"upstream":"api","path":"/","headers":{"host":"x"}}"#, "not yours to set"),
        (r#"{"upstream":"api","path":"/","headers":{"x":"a\nb"}}"#, "cannot be sent"),
        (r#"{"upstream":"api","path":"/","callback":"http://127.0.0.1/x"}"#, "not a public address"),
        (r#"{"upstream":"api","path":"/","callback":"http://[::ffff:10.0.0.1]/x"}"#, "not a public address"),
        (r#"{"url":"http://169.254.169.254/latest"}"#, "not a public address"),
        (r#"{"upstream":"api","path":"/","idempotency_key":""}"#, "an idempotency key has"),
        (r#"{"upstream":"api","path":"/","surprise":1}"#, "unknown field `surprise`"),
    ];
    for (text, why) in cases {
        let reply = gateway.admin("POST", "/v1/jobs", text);
        if why.is_empty() {
            assert_eq!(reply.status, 202, "{text}");
            continue;
        }
        assert_eq!((reply.status, reply.code().as_str()), (400, "bad_request"), "{text}");
        assert!(reply.problem()["detail"].as_str().unwrap().contains(why), "{text}: {}", reply.text());
    }
    for query in ["state=odd", "limit=0", "limit=501", "cursor=x", "surprise=1", "state=done&state=dead"] {
        assert_eq!(gateway.admin("GET", &format!("/v1/jobs?{query}"), "").status, 400, "{query}");
    }
}

#[test]
fn how_a_job_ended_is_told_to_whoever_wants_to_hear_it_and_signed() {
    let receiver = Upstream::fine();
    let upstream = Upstream::replying(&[&answer("400 Bad", "", "wrong")]);
    let gateway = Start::before(&upstream, QUICK).server("allow_private = [\"127.0.0.0/8\"]").go();
    let callback = format!("http://{}/hook?token=1", receiver.at);
    let id = submit(&gateway, &json!({ "upstream": "api", "path": "/x", "callback": callback }));
    eventually("the receiver hears of it", || receiver.count() == 1);
    let seen = receiver.seen().remove(0);
    assert_eq!(seen.line(), "POST /hook?token=1 HTTP/1.1");
    for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        assert!(seen.has(name), "{name}");
    }
    let told: Value = serde_json::from_slice(&seen.body).unwrap();
    assert_eq!((&told["type"], &told["data"]["id"], &told["data"]["state"]), (&json!("job.dead"), &json!(id), &json!("dead")));
    assert_eq!((&told["data"]["response"]["status"], &told["data"]["response"]["body"]), (&json!(400), &json!("wrong")));
}

#[test]
fn a_call_whose_retries_are_used_up_becomes_a_job() {
    let upstream = Upstream::replying(&[&answer("503 No", "", ""), &answer("503 No", "", ""), &answer("503 No", "", ""), OK]);
    let gateway = Start::before(&upstream, &format!("{QUICK}\non_exhausted = \"enqueue\"")).go();
    let reply = gateway.get("/api/x");
    assert_eq!((reply.status, reply.header("seawall-outcome")), (202, Some("enqueued")));
    assert_eq!((reply.header("seawall-attempts"), reply.header("preference-applied")), (Some("3"), None), "nobody asked for it");
    let id = reply.json()["id"].as_str().unwrap().to_owned();
    let done = over(&gateway, &id);
    assert_eq!((&done["state"], upstream.count()), (&json!("done"), 4));
    // A request that may have been executed is not executed again without the caller's knowledge.
    let reply = gateway.post("/api/x", "", "pay");
    assert_eq!((reply.status, reply.header("seawall-outcome")), (200, Some("success")));
}

#[test]
fn an_unsafe_call_that_may_have_been_executed_does_not_become_a_job() {
    let upstream = Upstream::replying(&[&answer("503 No", "", "")]);
    let gateway = Start::before(&upstream, &format!("{QUICK}\non_exhausted = \"enqueue\"")).go();
    assert_eq!(gateway.post("/api/x", "", "pay").status, 503);
    let listed = gateway.admin("GET", "/v1/jobs", "").json();
    assert_eq!(listed["items"].as_array().unwrap().len(), 0);
}

#[test]
fn failed_calls_leave_letters_where_the_policy_wants_them() {
    let upstream = Upstream::replying(&[&answer("503 No", "", "down")]);
    let gateway = Start::before(&upstream, &format!("{QUICK}\ndead_letter = {{ from = [\"gateway\"] }}")).go();
    let reply = gateway.get("/api/x");
    assert_eq!(reply.status, 503);
    eventually("there is a letter", || letters(&gateway).len() == 1);
    let letter = letters(&gateway).remove(0);
    assert_eq!((&letter["door"], &letter["failure_code"], &letter["total_attempts"]), (&json!("gateway"), &json!("503"), &json!(3)));
    assert_eq!(letter["id"], json!(reply.header("seawall-call").unwrap()));
    // Jobs of this policy leave none.
    let id = submit(&gateway, &json!({ "upstream": "api", "path": "/x" }));
    assert_eq!(over(&gateway, &id)["state"], "dead");
    assert_eq!(letters(&gateway).len(), 1);
}

#[test]
fn an_acknowledged_job_survives_a_power_cut() {
    let upstream = Upstream::with(|turn| turn.hang(20_000));
    let keys = "timeout = { attempt = \"30s\", total = \"60s\" }";
    let gateway = Start::before(&upstream, keys).go();
    let ids: Vec<String> =
        (0..20).map(|n| submit(&gateway, &json!({ "upstream": "api", "path": format!("/{n}"), "delay": "1h" }))).collect();
    let running = submit(&gateway, &json!({ "upstream": "api", "path": "/running" }));
    eventually("it runs", || upstream.count() == 1);
    let directory = gateway.kill();
    let again = Start::before(&upstream, keys).go_in(directory);
    for id in &ids {
        assert_eq!(job(&again, id)["state"], "waiting");
    }
    eventually("it is taken up again at once", || upstream.count() == 2);
    let found = job(&again, &running);
    assert_eq!((&found["state"], &found["crashes"], &found["attempts"]), (&json!("running"), &json!(1), &json!(0)));
}

#[test]
fn of_many_that_were_under_way_at_three_crashes_one_is_blamed() {
    let keys = "timeout = { attempt = \"30s\", total = \"60s\" }";
    let mut directory = tempfile::tempdir().unwrap();
    let mut ids: Vec<String> = Vec::new();
    for _ in 0..3 {
        // Each process has an upstream of its own: what the one before has sent may be read after its end.
        let upstream = Upstream::with(|turn| turn.hang(20_000));
        let gateway = Start::before(&upstream, keys).go_in(directory);
        if ids.is_empty() {
            ids = (0..20).map(|n| submit(&gateway, &json!({ "upstream": "api", "path": format!("/{n}") }))).collect();
        }
        let running = || gateway.admin("GET", "/v1/jobs?state=running", "").json()["items"].as_array().unwrap().len();
        eventually("all are under way, and one was sent", || running() == ids.len() && upstream.count() > 0);
        directory = gateway.kill();
    }
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, keys).go_in(directory);
    let ends: Vec<Value> = ids.iter().map(|id| over(&gateway, id)).collect();
    let (dead, done): (Vec<_>, Vec<_>) = ends.iter().partition(|job| job["state"] == "dead");
    assert_eq!(dead.iter().map(|job| &job["error"]).collect::<Vec<_>>(), ["poison"], "the one that was begun");
    assert_eq!(done.len(), 19);
}

#[test]
fn draining_gives_back_what_it_cannot_finish() {
    let upstream = Upstream::with(|turn| turn.hang(20_000));
    let keys = "timeout = { attempt = \"30s\", total = \"60s\" }";
    let mut gateway = Start::before(&upstream, keys).server("drain = \"200ms\"").go();
    let id = submit(&gateway, &json!({ "upstream": "api", "path": "/x" }));
    eventually("it runs", || upstream.count() == 1);
    gateway.signal("TERM");
    assert_eq!(gateway.ended(), Some(0));
    let again = Start::before(&upstream, keys).go_in(gateway.kill());
    eventually("it is taken up again at once", || upstream.count() == 2);
    let found = job(&again, &id);
    assert_eq!((&found["state"], &found["crashes"], &found["attempts"]), (&json!("running"), &json!(0), &json!(0)));
}

#[test]
fn a_damaged_store_is_refused_with_its_reason() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("seawall.db"), vec![b'x'; 8192]).unwrap();
    std::fs::write(directory.path().join("seawall.toml"), "[upstreams.a]\nurl = \"https://a.test\"\n").unwrap();
    let run = super::gateway::program().args(["serve", "-c"]).arg(directory.path().join("seawall.toml")).output().unwrap();
    let told = String::from_utf8_lossy(&run.stderr).into_owned();
    assert_eq!(run.status.code(), Some(11), "{told}");
    assert!(told.contains("the database is damaged"), "{told}");
}

/// A worker with a long queue also notices other lanes and jobs that become due. The queue is held up until the others have come, and then
/// takes at least two seconds, however fast the machine is: three workers have 768 slots, and each call takes a tenth of a second.
#[test]
fn a_backlog_keeps_nobody_else_waiting() {
    const BACKLOG: usize = 16_000;
    for threads in [1, 3] {
        let (begun, come) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, gate) = (Arc::clone(&begun), Arc::clone(&come));
        let many = Upstream::with(move |turn| {
            if counted.fetch_add(1, Ordering::SeqCst) >= 2000 {
                while !gate.load(Ordering::SeqCst) {
                    turn.pause(5);
                }
            }
            turn.pause(100).say(OK);
        });
        let (left, seen) = (Arc::new(Mutex::new(Vec::new())), Arc::clone(&begun));
        let told = Arc::clone(&left);
        let few = Upstream::with(move |turn| {
            told.lock().unwrap().push(BACKLOG - seen.load(Ordering::SeqCst));
            turn.say(OK);
        });
        let gateway =
            Start::with(&format!("[upstreams.many]\nurl = \"http://{}\"\n[upstreams.few]\nurl = \"http://{}\"\n", many.at, few.at))
                .threads(threads)
                .go();
        let backlog: String = (0..BACKLOG).map(|_| "{\"upstream\":\"many\",\"path\":\"/\"}\n").collect();
        let reply = gateway.admin_as("POST", "/v1/jobs", "application/x-ndjson", &backlog);
        assert_eq!(reply.status, 200, "{}", reply.text());
        eventually("they are worked off", || begun.load(Ordering::SeqCst) > 500);
        submit(&gateway, &json!({ "upstream": "few", "path": "/now" }));
        submit(&gateway, &json!({ "upstream": "few", "path": "/soon", "delay": "200ms" }));
        come.store(true, Ordering::SeqCst);
        within(Duration::from_secs(60), "both are sent", || left.lock().unwrap().len() == 2);
        let left = left.lock().unwrap().clone();
        assert!(left.iter().all(|left| *left > 0), "with {threads} threads the backlog came first: {left:?} were left");
    }
}

/// A worker first starts only a few of its claimed jobs; if responses are slow, it starts all of them together.
#[test]
fn a_slow_upstream_is_asked_by_all_slots_at_once() {
    let upstream = Upstream::with(|turn| turn.hang(10_000));
    let gateway = Start::before(&upstream, "timeout = { attempt = \"20s\", total = \"60s\" }").threads(1).go();
    backlog(&gateway, 300);
    eventually("all slots are at work", || upstream.count() == 256);
}

/// Jobs that have begun when the program is stopped are finished, and unclaimed ones stay in the queue.
#[test]
fn a_drain_in_the_middle_of_a_backlog_runs_nothing_twice() {
    const MANY: usize = 3_000;
    let upstream = Upstream::fine();
    let mut gateway = Start::before(&upstream, QUICK).go();
    backlog(&gateway, MANY);
    eventually("some are done", || upstream.count() > 200);
    gateway.signal("TERM");
    assert_eq!(gateway.ended(), Some(0));
    let first = upstream.count();
    assert!(first < MANY, "all were done before the signal came");
    let again = Start::before(&upstream, QUICK).go_in(gateway.kill());
    eventually("the others are done", || ["queued", "running", "waiting"].iter().all(|state| listed(&again, state) == 0));
    assert_eq!(upstream.count(), MANY);
    let crashed = again.metric("seawall_jobs_recovered_total");
    assert_eq!(crashed, Some(0.0), "none was left behind by the first");
}

/// At most 64 MiB of long bodies are in memory at once, however many jobs are claimed.
#[test]
fn jobs_with_long_bodies_run_as_far_as_there_is_room_for_them() {
    const MANY: usize = 20;
    let go = Arc::new(AtomicBool::new(false));
    let gone = Arc::clone(&go);
    let upstream = Upstream::with(move |turn| {
        while !gone.load(Ordering::SeqCst) {
            turn.pause(10);
        }
        turn.say(OK);
    });
    let gateway = Start::before(&upstream, "timeout = { attempt = \"30s\", total = \"60s\" }").go();
    let job = json!({ "upstream": "api", "method": "PUT", "path": "/x", "body": "x".repeat(8 << 20) });
    let ids: Vec<String> = (0..MANY).map(|_| submit(&gateway, &job)).collect();
    eventually("some run", || upstream.count() == 8);
    eventually("all are claimed", || ids.iter().all(|id| job_state(&gateway, id) == "running"));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(upstream.count(), 8, "the others wait for room");
    go.store(true, Ordering::SeqCst);
    eventually("all are done", || ids.iter().all(|id| job_state(&gateway, id) == "done"));
    assert!(upstream.seen().iter().all(|seen| seen.body.len() == 8 << 20));
}

/// Without its body.
fn job_state(gateway: &Gateway, id: &str) -> String {
    let listed = gateway.look("/v1/jobs?limit=100");
    let found = listed["items"].as_array().unwrap().iter().find(|job| job["id"] == id).cloned().unwrap();
    found["state"].as_str().unwrap().to_owned()
}

fn backlog(gateway: &Gateway, jobs: usize) {
    let lines: String = (0..jobs).map(|_| "{\"upstream\":\"api\",\"path\":\"/\"}\n").collect();
    let reply = gateway.admin_as("POST", "/v1/jobs", "application/x-ndjson", &lines);
    assert_eq!(reply.status, 200, "{}", reply.text());
}

fn listed(gateway: &Gateway, state: &str) -> usize {
    gateway.look(&format!("/v1/jobs?state={state}&limit=1"))["items"].as_array().unwrap().len()
}

/// More lanes than slots: an idle worker must not loop over them, nor make another worker do so.
#[test]
fn whoever_has_nothing_to_do_does_nothing() {
    for threads in [1, 2] {
        let upstream = Upstream::fine();
        let policy: String = (0..400).map(|lane| format!("[upstreams.u{lane}]\nurl = \"http://{}\"\n", upstream.at)).collect();
        let gateway = Start::with(&policy).threads(threads).go();
        assert_eq!(over(&gateway, &submit(&gateway, &json!({ "upstream": "u399", "path": "/" })))["state"], "done");
        std::thread::sleep(Duration::from_millis(500));
        let before = gateway.cpu();
        std::thread::sleep(Duration::from_secs(1));
        let used = gateway.cpu() - before;
        assert!(used < 40, "{used} hundredths of a second in one, with {threads} threads");
    }
}
