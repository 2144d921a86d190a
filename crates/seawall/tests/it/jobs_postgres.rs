//! Jobs on a PostgreSQL of our own: the same as on SQLite, between instances, through the server's restarts.

use super::caller::{eventually, within};
use super::cluster::Cluster;
use super::databases::{awaited, postgres};
use super::gateway::{Gateway, Start};
use super::replays::{die, gets, patient};
use super::upstream::{OK, Upstream, answer};
use super::wire::Wire;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const POLICY: &str = "retry = { attempts = 3, base = \"30ms\", cap = \"60ms\" }\ntimeout = { attempt = \"5s\", total = \"10s\" }";

fn start(upstream: &Upstream, url: &str) -> Gateway {
    Start::before(upstream, POLICY).server(&format!("store = \"{url}\"")).go()
}

fn state(gateway: &Gateway, id: &str) -> Value {
    gateway.admin("GET", &format!("/v1/jobs/{id}"), "").json()["state"].clone()
}

#[track_caller]
fn submit(gateway: &Gateway, job: &Value) -> String {
    let reply = gateway.admin("POST", "/v1/jobs", &job.to_string());
    assert_eq!(reply.status, 202, "{}", reply.text());
    reply.json()["id"].as_str().unwrap().to_owned()
}

#[test]
fn jobs_run_to_their_end_on_postgres_and_every_instance_sees_them() {
    let upstream = Upstream::with(|turn| {
        let no = turn.seen.line().contains("/no");
        turn.say(if no { answer("404 No", "", "gone") } else { OK.to_owned() });
    });
    let url = postgres();
    let (first, second) = (start(&upstream, &url), start(&upstream, &url));
    assert!(first.stderr().contains("store     PostgreSQL") && !first.stderr().contains("postgres@"), "{}", first.stderr());
    let good = submit(&first, &json!({ "upstream": "api", "path": "/x" }));
    let bad = submit(&first, &json!({ "upstream": "api", "path": "/no" }));
    let later = submit(&second, &json!({ "upstream": "api", "path": "/later", "delay": "300ms" }));
    eventually("all are over", || state(&second, &good) == "done" && state(&second, &bad) == "dead" && state(&first, &later) == "done");
    assert_eq!(upstream.count(), 3, "two instances run a job once");
    let letters = second.admin("GET", "/v1/dead-letters", "").json();
    assert_eq!((&letters["items"][0]["id"], &letters["items"][0]["error_detail"]), (&json!(bad), &json!("gone")));
}

#[test]
fn a_database_that_restarts_loses_no_job() {
    let upstream = Upstream::fine();
    // Not the server that other tests use meanwhile. It ends with this process.
    let server: &'static Cluster = Box::leak(Box::new(Cluster::start("")));
    let gateway = start(&upstream, &awaited(server.database()));
    let before = submit(&gateway, &json!({ "upstream": "api", "path": "/x", "delay": "500ms" }));
    awaited(server.restart());
    let after = submit(&gateway, &json!({ "upstream": "api", "path": "/x" }));
    eventually("both are done", || state(&gateway, &before) == "done" && state(&gateway, &after) == "done");
}

#[test]
fn a_database_that_is_away_is_said_to_be_so_and_so_is_its_return() {
    let upstream = Upstream::fine();
    let server: &'static Cluster = Box::leak(Box::new(Cluster::start("")));
    let mut gateway = start(&upstream, &awaited(server.database()));
    let ready = || gateway.admin("GET", "/readyz", "");
    assert_eq!(ready().status, 200);
    awaited(server.stop());
    let job = json!({ "upstream": "api", "path": "/x" });
    // The request gives up after ten seconds.
    let refused = gateway.admin("POST", "/v1/jobs", &job.to_string());
    assert_eq!((refused.status, refused.code().as_str()), (503, "store_unavailable"), "{}", refused.text());
    assert_eq!(gateway.get_with("/api/x", "Prefer: respond-async\r\n").code(), "store_unavailable");
    eventually("it is not ready", || ready().status == 503);
    assert_eq!(ready().json(), json!({ "status": "store_unavailable" }));
    assert_eq!(gateway.get("/api/x").status, 200, "calls need no store");
    eventually("that is told", || gateway.stderr().contains("warning: the database does not answer"));
    awaited(server.restart());
    eventually("it is ready again", || ready().status == 200);
    eventually("that is told too", || gateway.stderr().contains("the store answers again"));
    let told = gateway.stderr();
    assert_eq!((told.matches("wait for the store").count(), told.matches("answers again").count()), (1, 1), "{told}");
    let id = submit(&gateway, &job);
    eventually("jobs go on", || state(&gateway, &id) == "done");
    awaited(server.stop());
    gateway.signal("TERM");
    assert_eq!(gateway.ended(), Some(0));
    for lost in ["the last second of what is known of breakers and keys is lost", "the last minute of roll-ups is lost"] {
        eventually(lost, || gateway.stderr().contains(lost));
    }
}

#[test]
fn a_database_that_says_nothing_is_found_out_and_so_is_its_return() {
    let upstream = Upstream::fine();
    let server: &'static Cluster = Box::leak(Box::new(Cluster::start("")));
    let gateway = start(&upstream, &awaited(server.database()));
    let job = json!({ "upstream": "api", "path": "/x" });
    let before = submit(&gateway, &job);
    eventually("it runs jobs", || state(&gateway, &before) == "done");
    awaited(server.freeze());
    let refused = gateway.admin("POST", "/v1/jobs", &job.to_string());
    assert_eq!((refused.status, refused.code().as_str()), (503, "store_unavailable"), "{}", refused.text());
    assert_eq!(gateway.admin("GET", "/readyz", "").json(), json!({ "status": "store_unavailable" }));
    assert_eq!(gateway.get("/api/x").status, 200, "calls need no store");
    eventually("that is told", || gateway.stderr().contains("warning: the database does not answer"));
    awaited(server.thaw());
    eventually("it is ready again", || gateway.admin("GET", "/readyz", "").status == 200);
    let after = submit(&gateway, &job);
    eventually("jobs go on", || state(&gateway, &after) == "done");
}

/// A server that an operator holds still for a switchover.
fn read_only(server: &'static Cluster, is_on: bool) {
    let value = if is_on { "on" } else { "off" };
    awaited(server.execute("postgres", &format!("ALTER SYSTEM SET default_transaction_read_only = {value}")));
    // Sessions read the new setting each by itself, a moment after the signal.
    awaited(server.execute("postgres", "SELECT pg_reload_conf(), pg_sleep(0.5)"));
}

#[test]
fn a_database_that_is_read_only_for_a_while_makes_no_job_run_twice() {
    let go = Arc::new(AtomicBool::new(false));
    let gone = Arc::clone(&go);
    let upstream = Upstream::with(move |turn| {
        while !gone.load(Ordering::SeqCst) {
            turn.pause(10);
        }
        turn.say(OK);
    });
    let server: &'static Cluster = Box::leak(Box::new(Cluster::start("")));
    let gateway = start(&upstream, &awaited(server.database()));
    let post = json!({ "upstream": "api", "method": "POST", "path": "/x" });
    let id = submit(&gateway, &post);
    eventually("it is under way", || upstream.count() == 1);
    read_only(server, true);
    go.store(true, Ordering::SeqCst);
    let refused = gateway.admin("POST", "/v1/jobs", &post.to_string());
    assert_eq!((refused.status, refused.code().as_str()), (503, "store_unavailable"), "{}", refused.text());
    read_only(server, false);
    eventually("its end is kept", || state(&gateway, &id) == "done");
    assert_eq!(upstream.count(), 1);
    let mut after = None;
    eventually("jobs are taken again", || {
        let reply = gateway.admin("POST", "/v1/jobs", &post.to_string());
        after = (reply.status == 202).then(|| reply.json()["id"].as_str().unwrap().to_owned());
        after.is_some()
    });
    eventually("and run", || state(&gateway, after.as_ref().unwrap()) == "done");
    assert_eq!(gateway.metric("seawall_job_leases_lost_total"), Some(0.0));
}

#[test]
fn an_end_whose_answer_is_lost_with_the_database_is_known_to_be_kept_when_it_is_back() {
    let upstream = Upstream::with(|turn| turn.say(answer("200 OK", "", "a canary sings")));
    let wire = Wire::to(Cluster::shared());
    wire.cut_for_good(&[b"a canary sings", b"COMMIT\0"]);
    let policy = format!(
        "[upstreams.api]\nurl = \"http://{}\"\n[[schedules]]\nname = \"sync\"\nupstream = \"api\"\nevery = \"1h\"\nspread = \"0%\"\n\
         subjects = [\"alice\"]\nrequest = {{ path = \"/x\" }}\ndeliver = \"http://{}/hook\"\n",
        upstream.at, upstream.at
    );
    let server = format!("store = \"{}\"\nallow_private = [\"127.0.0.0/8\"]", wire.url(&postgres()));
    let gateway = Start::with(&policy).server(&server).go();
    let schedule = || gateway.admin("GET", "/v1/schedules/sync", "");
    let patiently = |what, done: &mut dyn FnMut() -> bool| within(Duration::from_secs(60), what, done);
    patiently("its end was kept, and its worker does not know it", &mut || wire.cuts() == 1);
    patiently("the store gives up", &mut || schedule().status == 503);
    // Requests from before that give up after one more pause.
    std::thread::sleep(Duration::from_secs(2));
    wire.mend();
    patiently("its subject hears of it", &mut || schedule().json()["subjects"][0]["last_ok_at"].is_string());
    patiently("so does whoever it is delivered to", &mut || upstream.count() == 2);
    assert_eq!(gateway.metric("seawall_job_leases_lost_total"), Some(0.0));
}

/// Two suspects, of which one is begun and not answered before it is let go.
struct Suspects {
    upstream: Upstream,
    gateway: Gateway,
    url: String,
    ids: Vec<String>,
    go: Arc<AtomicBool>,
}

impl Suspects {
    fn begin() -> Self {
        let go = Arc::new(AtomicBool::new(false));
        let gone = Arc::clone(&go);
        let upstream = Upstream::with(move |turn| {
            while !gone.load(Ordering::SeqCst) {
                turn.pause(10);
            }
            turn.say(OK);
        });
        let url = postgres();
        let timeouts = "timeout = { attempt = \"1m\", total = \"2m\" }";
        let gateway = Start::before(&upstream, timeouts).server(&format!("store = \"{url}\"")).go();
        let job = |path: &str| json!({ "upstream": "api", "path": path, "delay": "1h" });
        let ids = vec![submit(&gateway, &job("/0")), submit(&gateway, &job("/1"))];
        let suspects = Self { upstream, gateway, url, ids, go };
        assert_eq!(suspects.change("UPDATE seawall.jobs SET crashes = 2, due = 0"), 2);
        eventually("one of two is begun", || suspects.upstream.count() == 1);
        suspects
    }

    /// Changes the database from outside; returns the number of jobs changed.
    fn change(&self, statement: &str) -> u64 {
        awaited(async {
            let (client, connection) = tokio_postgres::connect(&self.url, tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            client.execute(statement, &[]).await.unwrap()
        })
    }
}

#[test]
fn a_suspect_that_somebody_else_has_by_now_is_not_begun() {
    let suspects = Suspects::begin();
    let Suspects { upstream, gateway, ids, go, .. } = &suspects;
    let other = if upstream.seen()[0].line().contains("/0") { "/1" } else { "/0" };
    let theirs = format!("UPDATE seawall.claims SET token = token + 1 WHERE row = (SELECT row FROM seawall.jobs WHERE path = '{other}')");
    assert_eq!(suspects.change(&theirs), 1);
    go.store(true, Ordering::SeqCst);
    eventually("it is done", || ids.iter().filter(|id| state(gateway, id) == "done").count() == 1);
    eventually("it is known that the other is lost", || gateway.metric("seawall_job_leases_lost_total") == Some(1.0));
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_suspect_that_was_not_begun_is_not_begun_on_the_way_out() {
    let mut suspects = Suspects::begin();
    suspects.gateway.signal("TERM");
    let queued = "UPDATE seawall.queue SET due = due WHERE row IN (SELECT row FROM seawall.jobs WHERE crashes = 2)";
    eventually("it is given back", || suspects.change(queued) == 1);
    suspects.go.store(true, Ordering::SeqCst);
    assert_eq!((suspects.gateway.ended(), suspects.upstream.count()), (Some(0), 1));
}

#[test]
fn two_instances_replay_each_letter_once() {
    let (upstream, works) = patient();
    let url = postgres();
    let once =
        || Start::before(&upstream, "retry = { attempts = 1 }\nbreaker = { mode = \"off\" }").server(&format!("store = \"{url}\"")).go();
    let (first, second) = (once(), once());
    die(&first, &gets(20));
    works.store(true, Ordering::SeqCst);
    let before = upstream.count();
    let reply = second.admin("POST", "/v1/dead-letters/replay", r#"{"filter":{},"rate":"50/s"}"#).json();
    let id = reply["replay"]["id"].as_str().unwrap().to_owned();
    let found = || first.admin("GET", &format!("/v1/replays/{id}"), "").json();
    eventually("it is done", || found()["state"] == "done");
    assert_eq!((&found()["ok"], &found()["held_back"], upstream.count() - before), (&json!(20), &json!(0), 20));
}

#[test]
fn instances_that_share_a_store_tell_an_alarm_and_its_end_once() {
    let (upstream, receiver) = (Upstream::replying(&[&answer("503 No", "", "down")]), Upstream::fine());
    let url = postgres();
    let policy = format!(
        "retry = {{ attempts = 1 }}\nbreaker = {{ mode = \"off\" }}\ndead_letter = {{ alarm_depth = 5 }}\n[[notify]]\nurl = \"http://{}/\"\nevents = [\"dead-letter-alarm\"]\n",
        receiver.at
    );
    let server = format!("store = \"{url}\"\nallow_private = [\"127.0.0.0/8\"]");
    let start = || Start::before(&upstream, &policy).server(&server).go();
    let all = [start(), start(), start()];
    let told = |gateway: &Gateway| -> Vec<Value> {
        let events = gateway.look("/v1/events/recent")["items"].as_array().unwrap().clone();
        events.into_iter().filter(|event| event["name"] == "dead-letter-alarm").collect()
    };
    let noted =
        |event: &str| -> usize { all.iter().map(|gateway| gateway.stdout().matches(&format!("\"event\":\"{event}\"")).count()).sum() };
    die(&all[0], &gets(5));
    eventually("everybody sees it", || all.iter().all(|gateway| told(gateway).len() == 1));
    let alarms = json!([{ "queue": "api", "severity": "review" }]);
    assert!(all.iter().all(|gateway| gateway.look("/v1/status")["dead_letters"]["alarms"] == alarms));
    let fourth = start();
    eventually("whoever comes later, too", || told(&fourth).len() == 1);
    assert_eq!((receiver.count(), noted("dead_letter_alarm")), (1, 1), "one of them tells");
    let letter = all[1].look("/v1/dead-letters")["items"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(all[1].admin("DELETE", &format!("/v1/dead-letters/{letter}"), "").status, 200);
    eventually("everybody sees its end", || all.iter().all(|gateway| told(gateway).len() == 2) && told(&fourth).len() == 2);
    eventually("that is told", || receiver.count() == 2);
    let messages: Vec<Value> = receiver.seen().iter().map(|seen| serde_json::from_slice(&seen.body).unwrap()).collect();
    assert_eq!(messages[1]["data"]["resolves"], messages[0]["data"]["id"]);
    assert_eq!(messages[1]["instance"], messages[0]["instance"], "who told the beginning tells the end");
    for gateway in all.iter().chain([&fourth]) {
        assert_eq!(told(gateway)[0]["resolves"], told(gateway)[1]["id"]);
    }
    // Longer than every instance's interval between two checks.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!((receiver.count(), noted("dead_letter_alarm_cleared")), (2, 1));
}
