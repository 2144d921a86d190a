//! The real program when the disk, the file or the clock below its store is not what it should be.

use super::caller::eventually;
use super::databases::postgres;
use super::disks::{ReadOnly, SmallDisk};
use super::gateway::{Gateway, Start, program};
use super::upstream::{OK, Upstream, answer};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const POLICY: &str = "timeout = { attempt = \"5s\", total = \"20s\" }\nretry = { attempts = 5, base = \"30ms\", cap = \"60ms\" }";
const HOURS: i64 = 3_600_000;

fn job(gateway: &Gateway, id: &str) -> Value {
    gateway.look(&format!("/v1/jobs/{id}"))
}

#[track_caller]
fn submit(gateway: &Gateway, job: &Value) -> String {
    let reply = gateway.admin("POST", "/v1/jobs", &job.to_string());
    assert_eq!(reply.status, 202, "{}", reply.text());
    reply.json()["id"].as_str().unwrap().to_owned()
}

#[track_caller]
fn done(gateway: &Gateway, id: &str) {
    eventually(&format!("{id} is done"), || job(gateway, id)["state"] == "done");
    assert_eq!(job(gateway, id)["crashes"], 0);
}

#[test]
fn a_full_disk_is_a_507_and_over_when_there_is_room_again() {
    let upstream = Upstream::with(|turn| {
        if turn.seen.line().contains("/slow") {
            turn.pause(1500);
        }
        turn.say(OK);
    });
    let disk = SmallDisk::mount();
    let store = format!("store = \"sqlite:{}\"", disk.path("seawall.db").display());
    let gateway = Start::before(&upstream, POLICY).server(&store).go();
    let slow = submit(&gateway, &json!({ "upstream": "api", "path": "/slow" }));
    eventually("it is under way", || upstream.count() == 1);
    let large = json!({ "upstream": "api", "method": "POST", "path": "/x", "delay": "1h", "body": "x".repeat(100_000) });
    let mut kept = Vec::new();
    let refused = loop {
        let reply = gateway.admin("POST", "/v1/jobs", &large.to_string());
        if reply.status != 202 {
            break reply;
        }
        kept.push(reply.json()["id"].as_str().unwrap().to_owned());
        assert!(kept.len() < 500, "a disk of eight megabytes gets full");
    };
    assert_eq!((refused.status, refused.code().as_str()), (507, "storage_full"));
    assert!(kept.len() > 5, "there was room for some");
    assert_eq!(gateway.get("/api/x").status, 200, "callers who wait need no room");
    done(&gateway, &slow);
    assert!(kept.iter().all(|id| job(&gateway, id)["state"] == "waiting"), "what was acknowledged is there");
    disk.grow();
    eventually("it takes jobs again", || gateway.admin("POST", "/v1/jobs", &large.to_string()).status == 202);
    done(&gateway, &submit(&gateway, &json!({ "upstream": "api", "path": "/y" })));
}

/// Starts on what is in the folder, which must not work.
#[track_caller]
fn refused(folder: &Path) -> String {
    let Output { status, stderr, .. } = program().args(["serve", "-c"]).arg(folder.join("seawall.toml")).output().unwrap();
    let told = String::from_utf8_lossy(&stderr).into_owned();
    assert_eq!(status.code(), Some(11), "{told}");
    told
}

/// A folder with a configuration and a database of some jobs, which is one file.
fn left_behind() -> tempfile::TempDir {
    let upstream = Upstream::fine();
    let mut gateway = Start::before(&upstream, POLICY).go();
    for _ in 0..50 {
        submit(&gateway, &json!({ "upstream": "api", "method": "POST", "path": "/x", "delay": "1h", "body": "x".repeat(2000) }));
    }
    gateway.signal("TERM");
    assert_eq!(gateway.ended(), Some(0));
    let folder = gateway.kill();
    let log = folder.path().join("seawall.db-wal");
    assert_eq!(log.metadata().unwrap().len(), 0, "a clean stop leaves nothing in the log");
    std::fs::remove_file(log).unwrap();
    folder
}

#[test]
fn a_database_that_cannot_be_written_or_read_is_refused_with_its_reason() {
    let folder = left_behind();
    let database = folder.path().join("seawall.db");
    let whole = std::fs::read(&database).unwrap();
    std::fs::write(&database, &whole[..whole.len() / 2]).unwrap();
    let told = refused(folder.path());
    assert!(told.contains("the database is damaged"), "{told}");
    let mut flipped = whole.clone();
    // Of each page but the first, what kind it is.
    (4096..flipped.len()).step_by(4096).for_each(|at| flipped[at] ^= 0x40);
    std::fs::write(&database, &flipped).unwrap();
    let told = refused(folder.path());
    assert!(told.contains("the database is damaged"), "{told}");
    assert_eq!(std::fs::read(&database).unwrap(), flipped, "what is damaged is left for whoever can mend it");
    std::fs::write(&database, &whole).unwrap();
    let path = folder.path().to_owned();
    let read_only = ReadOnly::mount(folder);
    let told = refused(&path);
    assert!(told.contains("the database is read-only"), "{told}");
    drop(read_only);
}

/// An upstream whose first answer is slow, and whose every second one is a 503.
fn shaky() -> Upstream {
    let turns = AtomicUsize::new(0);
    Upstream::with(move |turn| {
        let number = turns.fetch_add(1, Ordering::SeqCst);
        if turn.seen.line().contains("/slow") {
            turn.pause(3000).say(OK);
        } else {
            turn.say(if number.is_multiple_of(2) { answer("503 No", "", "") } else { OK.to_owned() });
        }
    })
}

#[test]
fn a_clock_that_is_set_by_hours_takes_no_job_from_its_worker() {
    const SLOW: usize = 12;
    for hours in [6, -6] {
        let upstream = shaky();
        // A second after the start: while the first jobs are under way, with more than one worker.
        let gateway = Start::before(&upstream, POLICY).secret("SEAWALL_CLOCK_STEP", &format!("{}:1000", hours * HOURS)).go();
        let slow: Vec<_> = (0..SLOW).map(|_| submit(&gateway, &json!({ "upstream": "api", "path": "/slow" }))).collect();
        let later = submit(&gateway, &json!({ "upstream": "api", "path": "/later", "delay": "3h" }));
        let hour = || gateway.look("/v1/status")["now"].as_str().unwrap()[11..13].parse::<i64>().unwrap();
        let before = hour();
        eventually("the clock is set", || (5..=19).contains(&(hour() - before).rem_euclid(24)));
        slow.iter().for_each(|slow| done(&gateway, slow));
        assert_eq!(upstream.seen().iter().filter(|seen| seen.line().contains("/slow")).count(), SLOW, "by {hours} h");
        // Later jobs are retried and deferred by the new time.
        done(&gateway, &submit(&gateway, &json!({ "upstream": "api", "path": "/a" })));
        done(&gateway, &submit(&gateway, &json!({ "upstream": "api", "path": "/b", "delay": "200ms" })));
        if hours > 0 {
            done(&gateway, &later);
        } else {
            assert_eq!(job(&gateway, &later)["state"], "waiting");
        }
        // And the next program, whose clock is right again, goes on with all of it.
        let waiting = submit(&gateway, &json!({ "upstream": "api", "path": "/c", "delay": "1s" }));
        let again = Start::before(&upstream, POLICY).secret("SEAWALL_CLOCK_STEP", &format!("{}:0", 12 * HOURS)).go_in(gateway.kill());
        done(&again, &waiting);
        done(&again, &later);
    }
}

/// In the middle of the process's life, and between two of them.
#[test]
fn a_clock_that_is_set_back_leaves_retries_and_schedules_what_remained_of_their_wait() {
    let policy = |upstream: &Upstream| {
        format!(
            "[upstreams.api]\nurl = \"http://{}\"\nretry = {{ attempts = 9, base = \"1500ms\", cap = \"1500ms\" }}\nbreaker = {{ mode = \"off\" }}\n\
             [[schedules]]\nname = \"sync\"\nupstream = \"api\"\nevery = \"2s\"\nspread = \"0%\"\nsubjects = [\"alice\"]\nrequest = {{ path = \"/tick\" }}\n",
            upstream.at
        )
    };
    for after_ms in [1_000, 0] {
        let works = Arc::new(AtomicBool::new(false));
        let now = Arc::clone(&works);
        let upstream = Upstream::with(move |turn| {
            let ok = now.load(Ordering::SeqCst) || turn.seen.line().contains("/tick");
            turn.say(if ok { OK.to_owned() } else { answer("503 No", "", "") });
        });
        let start = || Start::with(&policy(&upstream));
        let step = format!("{}:{after_ms}", -6 * HOURS);
        let first = if after_ms > 0 { start().secret("SEAWALL_CLOCK_STEP", &step) } else { start() };
        let gateway = first.go();
        let id = submit(&gateway, &json!({ "upstream": "api", "path": "/x" }));
        eventually("it waits", || job(&gateway, &id)["state"] == "waiting");
        works.store(true, Ordering::SeqCst);
        let gateway = if after_ms > 0 { gateway } else { start().secret("SEAWALL_CLOCK_STEP", &step).go_in(gateway.kill()) };
        let ticks = || upstream.seen().iter().filter(|seen| seen.line().contains("/tick")).count();
        done(&gateway, &id);
        let before = ticks();
        eventually("its schedule goes on", || ticks() > before);
    }
}

#[test]
fn instances_whose_clocks_differ_live_by_the_databases() {
    let upstream = shaky();
    let url = postgres();
    let start = |step: i64| {
        let skewed = Start::before(&upstream, POLICY).secret("SEAWALL_CLOCK_STEP", &format!("{step}:0"));
        skewed.server(&format!("store = \"{url}\"")).go()
    };
    let (fast, slow) = (start(6 * HOURS), start(-6 * HOURS));
    let held = submit(&slow, &json!({ "upstream": "api", "path": "/slow" }));
    for gateway in [&fast, &slow] {
        let hour = submit(gateway, &json!({ "upstream": "api", "path": "/x", "delay": "1h" }));
        done(gateway, &submit(gateway, &json!({ "upstream": "api", "path": "/x", "delay": "200ms" })));
        assert_eq!(job(gateway, &hour)["state"], "waiting");
    }
    done(&fast, &held);
    assert_eq!(upstream.seen().iter().filter(|seen| seen.line().contains("/slow")).count(), 1, "nobody took it for abandoned");
}
