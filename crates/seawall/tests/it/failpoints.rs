//! Death at the steps that time, operators, replays and schedules take: the program dies there, another goes on where it was, and
//! nothing is lost, repeated or stuck. `kills.rs` has those of a plain job.

use super::caller::{Caller, eventually, within};
use super::databases::postgres;
use super::gateway::{Gateway, Start};
use super::jobs::{job, over, submit};
use super::kills::{PLAIN, step};
use super::replays::{die, gets, open, patient};
use super::schedules::{policy, subject};
use super::upstream::{OK, Upstream, answer};
use seawall_store::failpoint::NAMES;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

const POLICY: &str = "timeout = { attempt = \"20s\", total = \"60s\" }\nretry = { attempts = 1 }\nbreaker = { mode = \"off\" }\n";
/// Longer than a lease.
const LEASE: Duration = Duration::from_secs(45);
/// Trials that run at once: each mostly waits.
const AT_ONCE: usize = 6;

type Scene = fn(&Trial);

/// The scenes that reach the failpoints of a step.
const SCENES: &[(&str, Scene)] = &[
    ("tick", a_job_becomes_due),
    ("cancel", a_job_is_called_off),
    ("hasten", waiting_jobs_are_called_in),
    ("keep", letters_are_imported),
    ("replay", many_letters_are_replayed),
    ("step", one_letter_is_replayed),
    ("step", many_letters_are_replayed),
    ("set-replay", many_letters_are_replayed),
    ("fire", a_schedule_fires),
    ("report", a_schedule_stops),
    ("expire", a_letter_runs_out_of_time),
];

/// Scenes that leave a lease behind: on PostgreSQL the test would have to wait half a minute until it expires.
const LEASED: &[(&str, Scene)] =
    &[("tick", a_worker_vanishes), ("begin", a_post_is_begun), ("blame", a_suspect_is_begun), ("renew", a_job_takes_long)];

/// A point at which the program dies, and where it keeps what it knows.
struct Trial {
    point: &'static str,
    store: String,
}

impl Trial {
    fn before(&self, upstream: &Upstream, keys: &str) -> Start {
        Start::before(upstream, keys).server(&self.store)
    }

    fn armed(&self, start: Start) -> Start {
        start.secret("SEAWALL_FAILPOINT", &format!("{}:kill", self.point))
    }

    /// The program is started and dies of what is there.
    fn dies(&self, start: Start, left: TempDir) -> TempDir {
        self.armed(start).die_in(left)
    }

    /// The program is started and dies of what it is asked, sooner or later.
    fn dies_of(&self, start: Start, left: TempDir, request: (&str, &str, &str)) -> TempDir {
        let mut gateway = self.armed(start).go_in(left);
        let ((method, path, body), mut caller) = (request, Caller::connect(gateway.admin));
        let length = body.len();
        caller.send(format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}"));
        assert_eq!(gateway.ended_within(LEASE), None, "it ended by itself: {}", gateway.stderr());
        gateway.kill()
    }

    /// Whether the step was on disk when the program died.
    fn was_kept(&self) -> bool {
        self.point.ends_with("-after-commit")
    }
}

/// Every job was sent once. One that a step brought about may have been under way already when the program died of that step, and
/// says so; it was sent twice at most, and on PostgreSQL its lease had to run out.
#[track_caller]
fn sent_once(trial: &Trial, gateway: &Gateway, upstream: &Upstream) {
    let jobs = items(gateway, "/v1/jobs");
    let (sent, crashes) = (upstream.count(), jobs.iter().map(|job| job["crashes"].as_u64().unwrap()).sum::<u64>());
    let again = usize::try_from(crashes).unwrap();
    assert!(again <= usize::from(trial.was_kept()), "{jobs:?}");
    assert!((jobs.len()..=jobs.len() + again).contains(&sent), "sent {sent} times: {jobs:?}");
}

fn later(delay: &str) -> Value {
    json!({ "upstream": "api", "path": "/x", "delay": delay })
}

fn items(gateway: &Gateway, path: &str) -> Vec<Value> {
    gateway.look(path)["items"].as_array().unwrap().clone()
}

fn a_job_becomes_due(trial: &Trial) {
    let upstream = Upstream::fine();
    // One worker: a second would go on with what the first dies of.
    let start = || trial.before(&upstream, POLICY).threads(1);
    let gateway = start().go();
    let id = submit(&gateway, &later("2s"));
    let gateway = start().go_in(trial.dies(start(), gateway.kill()));
    let ended = over(&gateway, &id);
    assert_eq!((&ended["state"], &ended["attempts"], &ended["crashes"]), (&json!("done"), &json!(1), &json!(0)));
    assert_eq!(upstream.count(), 1);
}

/// An upstream that says nothing to its first callers, so that jobs are under way when the program is killed.
fn silent_to(first: usize) -> Upstream {
    Upstream::with(move |turn| if turn.number < first { turn.hang(20_000) } else { turn.say(OK) })
}

fn a_worker_vanishes(trial: &Trial) {
    let upstream = silent_to(1);
    // One worker: a second would go on with what the first dies of.
    let start = || trial.before(&upstream, POLICY).threads(1);
    let gateway = start().go();
    let id = submit(&gateway, &later("0s"));
    eventually("it is under way", || upstream.count() == 1);
    let gateway = start().go_in(trial.dies(start(), gateway.kill()));
    let ended = over(&gateway, &id);
    assert_eq!((&ended["state"], &ended["crashes"]), (&json!("done"), &json!(1)), "the end of one worker is counted once");
    assert_eq!(upstream.count(), 2);
}

/// A request that may not be sent twice. Once its send is recorded, it may or may not have been sent.
fn a_post_is_begun(trial: &Trial) {
    let upstream = Upstream::fine();
    let start = || trial.before(&upstream, POLICY);
    let ask = json!({ "upstream": "api", "method": "POST", "path": "/x" }).to_string();
    let gateway = start().go_in(trial.dies_of(start(), tempfile::tempdir().unwrap(), ("POST", "/v1/jobs", &ask)));
    let id = items(&gateway, "/v1/jobs")[0]["id"].as_str().unwrap().to_owned();
    let ended = over(&gateway, &id);
    let expected = if trial.was_kept() { (json!("outcome_unknown"), 0) } else { (Value::Null, 1) };
    assert_eq!((ended["error"].clone(), upstream.count()), expected, "{ended}");
}

fn a_suspect_is_begun(trial: &Trial) {
    let upstream = silent_to(2);
    let start = || trial.before(&upstream, POLICY);
    let first = start().go();
    let id = submit(&first, &later("0s"));
    eventually("it is under way", || upstream.count() == 1);
    let second = start().go_in(first.kill());
    eventually("it is under way again", || upstream.count() == 2);
    let gateway = start().go_in(trial.dies(start(), second.kill()));
    let ended = over(&gateway, &id);
    let letters = items(&gateway, "/v1/dead-letters").len();
    let (state, expected) = if trial.was_kept() { ("dead", (1, 2)) } else { ("done", (0, 3)) };
    assert_eq!((ended["state"].as_str(), (letters, upstream.count())), (Some(state), expected), "whoever was blamed is to blame: {ended}");
}

/// So long that its lease has to be renewed.
fn a_job_takes_long(trial: &Trial) {
    let upstream = silent_to(1);
    let start = || trial.before(&upstream, POLICY);
    let ask = later("0s").to_string();
    let gateway = start().go_in(trial.dies_of(start(), tempfile::tempdir().unwrap(), ("POST", "/v1/jobs", &ask)));
    let id = items(&gateway, "/v1/jobs")[0]["id"].as_str().unwrap().to_owned();
    let ended = over(&gateway, &id);
    assert_eq!((&ended["state"], &ended["crashes"], upstream.count()), (&json!("done"), &json!(1), 2));
}

/// An operator says that what jobs wait for is over.
fn waiting_jobs_are_called_in(trial: &Trial) {
    let upstream = Upstream::fine();
    let start = || trial.before(&upstream, "retry = { attempts = 1 }\nbreaker = { open = \"1h\", open_max = \"1h\" }\n");
    let (breaker, jobs) = ("/v1/breakers/api", 3);
    let gateway = start().go();
    assert_eq!(gateway.admin("PUT", breaker, r#"{"state":"open"}"#).status, 200);
    let ids: Vec<String> = (0..jobs).map(|_| submit(&gateway, &later("0s"))).collect();
    eventually("they wait", || ids.iter().all(|id| job(&gateway, id)["error"] == "circuit_open"));
    let ask = ("PUT", breaker, r#"{"state":"auto"}"#);
    let gateway = start().go_in(trial.dies_of(start(), gateway.kill(), ask));
    // A caller without a response asks again.
    assert_eq!(gateway.admin(ask.0, ask.1, ask.2).status, 200);
    within(LEASE, "they are done", || ids.iter().all(|id| job(&gateway, id)["state"] == "done"));
    sent_once(trial, &gateway, &upstream);
}

fn letters_are_imported(trial: &Trial) {
    let upstream = Upstream::replying(&[&answer("404 No", "", "")]);
    let start = || trial.before(&upstream, POLICY);
    let elsewhere = Start::before(&upstream, POLICY).go();
    die(&elsewhere, &gets(3));
    let exported = elsewhere.admin("GET", "/v1/dead-letters/export", "").text();
    let ask = ("POST", "/v1/dead-letters/import", exported.as_str());
    let gateway = start().go_in(trial.dies_of(start(), tempfile::tempdir().unwrap(), ask));
    let kept = gateway.admin(ask.0, ask.1, ask.2).text();
    assert_eq!(kept.matches("\"kept\":true").count(), 3, "whoever heard nothing asks again: {kept}");
    let issues = items(&gateway, "/v1/dead-letters/issues");
    let counted: Vec<_> = issues.iter().map(|issue| (&issue["open"], &issue["total"])).collect();
    assert_eq!((items(&gateway, "/v1/dead-letters").len(), counted), (3, vec![(&json!(3), &json!(3))]), "each is there once");
}

/// The job of a replay that waits for its second attempt: its letter has to hear of its end.
fn a_job_is_called_off(trial: &Trial) {
    let upstream = Upstream::replying(&[&answer("404 No", "", ""), &answer("503 No", "Retry-After: 50\r\n", "")]);
    let start = || trial.before(&upstream, "retry = { attempts = 3 }\nbreaker = { mode = \"off\" }\n");
    let gateway = start().go();
    let ids = die(&gateway, &gets(1));
    assert_eq!(gateway.admin("POST", "/v1/dead-letters/replay", &json!({ "ids": ids, "force": true }).to_string()).status, 202);
    let letter = |gateway: &Gateway| gateway.look(&format!("/v1/dead-letters/{}", ids[0]));
    eventually("it is replayed", || letter(&gateway)["replayed_by"].is_string());
    let id = letter(&gateway)["replayed_by"].as_str().unwrap().to_owned();
    eventually("its job waits", || job(&gateway, &id)["state"] == "waiting" && upstream.count() == 2);
    let path = format!("/v1/jobs/{id}");
    let gateway = start().go_in(trial.dies_of(start(), gateway.kill(), ("DELETE", &path, "")));
    // A caller without a response asks again.
    assert_eq!(gateway.admin("DELETE", &path, "").status, if trial.was_kept() { 409 } else { 200 });
    assert_eq!((&job(&gateway, &id)["state"], &letter(&gateway)["status"]), (&json!("cancelled"), &json!("kept")));
    eventually("its replay is over", || items(&gateway, "/v1/replays")[0]["state"] == "done");
    let replay = items(&gateway, "/v1/replays").remove(0);
    assert_eq!((&replay["started"], &replay["failed"], upstream.count()), (&json!(1), &json!(1), 2));
}

fn one_letter_is_replayed(trial: &Trial) {
    replayed(trial, 1, |ids| json!({ "ids": ids }));
}

fn many_letters_are_replayed(trial: &Trial) {
    replayed(trial, 3, |_| json!({ "filter": { "upstream": "api" }, "rate": "100/s" }));
}

fn replayed(trial: &Trial, letters: usize, wish: impl Fn(&[String]) -> Value) {
    let (upstream, works) = patient();
    let start = || trial.before(&upstream, POLICY);
    let gateway = start().go();
    let wish = wish(&die(&gateway, &gets(letters))).to_string();
    works.store(true, Ordering::SeqCst);
    let ask = ("POST", "/v1/dead-letters/replay", wish.as_str());
    let gateway = start().go_in(trial.dies_of(start(), gateway.kill(), ask));
    // A caller without a response asks again: there is nothing left to do, a replay is running, or this one is the first.
    let again = gateway.admin(ask.0, ask.1, ask.2);
    assert!(matches!(again.status, 200 | 202 | 409), "{}", again.text());
    within(LEASE, "it is done", || items(&gateway, "/v1/replays").iter().all(|replay| replay["state"] == "done"));
    let replays = items(&gateway, "/v1/replays");
    let counts = ["started", "ok", "failed", "held_back"].map(|name| replays[0][name].as_u64().unwrap());
    let all = u64::try_from(letters).unwrap();
    assert_eq!((replays.len(), counts), (1, [all, all, 0, 0]));
    let kept = items(&gateway, "/v1/dead-letters");
    assert!(kept.len() == letters && kept.iter().all(|letter| letter["status"] == "replayed" && letter["replays"] == 1), "{kept:?}");
    assert_eq!((open(&gateway).len(), items(&gateway, "/v1/jobs").len()), (0, 2 * letters), "each has one job more");
    sent_once(trial, &gateway, &upstream);
}

fn a_schedule_fires(trial: &Trial) {
    let upstream = Upstream::fine();
    let policy = policy(&upstream, "every = \"1h\"\nspread = \"0%\"\nsubjects = [\"alice\"]");
    let start = || Start::with(&policy).server(&trial.store);
    let gateway = start().go_in(trial.dies(start(), tempfile::tempdir().unwrap()));
    let states = || -> Vec<Value> { items(&gateway, "/v1/jobs").iter().map(|job| job["state"].clone()).collect() };
    // Not what its subject says: a job that ended in the moment of death is reported by the next tick.
    within(LEASE, "its tick came to something", || states().contains(&json!("done")));
    assert_eq!(states(), ["done"], "one tick is one job");
    sent_once(trial, &gateway, &upstream);
}

fn a_schedule_stops(trial: &Trial) {
    let upstream = Upstream::replying(&[&answer("401 No", "", "who are you")]);
    let policy = policy(&upstream, "every = \"2s\"\nspread = \"0%\"\nsubjects = [\"alice\"]");
    let start = || Start::with(&policy).server(&trial.store);
    let gateway = start().go_in(trial.dies(start(), tempfile::tempdir().unwrap()));
    eventually("it is stopped", || subject(&gateway, "alice")["state"] == "stopped");
    // The next tick finds again what the killed program did not record.
    assert_eq!((upstream.count() == 1, items(&gateway, "/v1/jobs").len()), (trial.was_kept(), upstream.count()));
}

fn a_letter_runs_out_of_time(trial: &Trial) {
    let upstream = Upstream::replying(&[&answer("404 No", "", "")]);
    let start = || trial.before(&upstream, &format!("{POLICY}dead_letter = {{ ttl = \"2s\" }}\n"));
    let gateway = start().go();
    let id = die(&gateway, &gets(1)).remove(0);
    let gateway = start().go_in(trial.dies(start(), gateway.kill()));
    eventually("it is gone", || gateway.admin("GET", &format!("/v1/dead-letters/{id}"), "").status == 404);
    let issues = items(&gateway, "/v1/dead-letters/issues");
    assert!(issues.iter().all(|issue| issue["open"] == 0), "nobody waits for what is gone: {issues:?}");
    // If the program died while it forgot a letter, its log line was lost.
    if !trial.was_kept() {
        eventually("it is told", || gateway.stdout().matches("\"dead_letter_expired\"").count() == 1);
    }
    assert_eq!((&job(&gateway, &id)["state"], upstream.count()), (&json!("dead"), 1));
}

/// Runs every failpoint of these scenes, some concurrently, because they mostly wait.
fn deaths(scenes: &[&[(&str, Scene)]], store: impl Fn() -> String) {
    let mut trials = Vec::new();
    for (of, scene) in scenes.concat() {
        let points = NAMES.iter().filter(|name| step(name) == of);
        trials.extend(points.map(|point| (Trial { point, store: store() }, scene)));
    }
    let (trials, failed) = (Arc::new(Mutex::new(trials)), Arc::new(Mutex::new(Vec::new())));
    let workers = (0..AT_ONCE).map(|_| {
        let (trials, failed) = (Arc::clone(&trials), Arc::clone(&failed));
        std::thread::spawn(move || {
            loop {
                let Some((trial, scene)) = trials.lock().unwrap().pop() else { return };
                let point = trial.point;
                // A thread of its own, whose panic says which point it was.
                let named = std::thread::Builder::new().name(point.to_owned());
                if named.spawn(move || scene(&trial)).unwrap().join().is_err() {
                    failed.lock().unwrap().push(point);
                }
            }
        })
    });
    workers.collect::<Vec<_>>().into_iter().for_each(|worker| worker.join().unwrap());
    assert!(failed.lock().unwrap().is_empty(), "{:?}", failed.lock().unwrap());
}

#[test]
fn death_at_any_other_step_loses_and_repeats_nothing() {
    deaths(&[LEASED, SCENES], String::new);
}

#[test]
fn death_at_any_other_step_on_postgres_loses_and_repeats_nothing() {
    deaths(&[SCENES], || format!("store = \"{}\"", postgres()));
}

#[test]
fn every_failpoint_has_its_scene() {
    let staged = |of: &str| SCENES.iter().chain(LEASED).any(|(scene, _)| *scene == of);
    // The end of a caller's key has its own test among the kills.
    let forgotten: Vec<_> =
        NAMES.iter().filter(|name| !PLAIN.contains(&step(name)) && !staged(step(name)) && step(name) != "finish").collect();
    assert!(forgotten.is_empty(), "{forgotten:?}");
}
