//! Repeated power cuts: the program is killed at random instants under load and at every failpoint, and no acknowledged job may be lost,
//! end twice, or be stuck. `SEAWALL_KILLS=1000 cargo test -p seawall --test it kills` runs a campaign.

use super::caller::{Caller, eventually};
use super::cluster::Cluster;
use super::databases::{awaited, postgres};
use super::gateway::{Gateway, Start};
use super::upstream::{OK, Upstream, answer as said};
use seawall_store::Store;
use seawall_store::job::{JobFilter, JobState};
use seawall_store::location::Location;
use seawall_store::page::PageWindow;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const POLICY: &str = "timeout = { attempt = \"5s\", total = \"20s\" }\nretry = { attempts = 20, base = \"20ms\", cap = \"200ms\" }\nbreaker = { mode = \"off\" }";

/// An upstream that honours idempotency keys: it counts how often each was executed, which is once, however often it
/// is asked.
#[derive(Clone, Default)]
struct Ledger {
    executed: Arc<Mutex<BTreeMap<String, u32>>>,
    asked: Arc<AtomicU64>,
}

impl Ledger {
    fn upstream(&self) -> Upstream {
        let ledger = self.clone();
        Upstream::with(move |turn| {
            ledger.asked.fetch_add(1, Ordering::SeqCst);
            let key = turn.seen.all("idempotency-key").first().map(|key| (*key).to_owned()).unwrap_or_default();
            *ledger.executed.lock().unwrap().entry(key).or_default() += 1;
            turn.say(OK);
        })
    }
}

/// Submits one job over a raw connection; its id, if it was acknowledged.
fn submit(admin: std::net::SocketAddr, number: u64) -> Option<String> {
    let (status, told) = answer(admin, number)?;
    matches!(status, 200 | 202).then(|| told["id"].as_str().map(str::to_owned))?
}

/// Submits one job; what was said to it, if anything was.
fn answer(admin: std::net::SocketAddr, number: u64) -> Option<(u16, Value)> {
    submitted(admin, &json!({ "upstream": "api", "method": "POST", "path": "/x", "idempotency_key": format!("key-{number}") }))
}

fn submitted(admin: std::net::SocketAddr, job: &Value) -> Option<(u16, Value)> {
    let body = job.to_string();
    let mut stream = std::net::TcpStream::connect(admin).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let head = format!("POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(body.as_bytes()).ok()?;
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, serde_json::from_str(body).ok()?))
}

/// Every job of the store, by id.
fn jobs(gateway: &Gateway) -> BTreeMap<String, Value> {
    listed(gateway, "jobs")
}

/// Everything that there is of a kind, by id.
fn listed(gateway: &Gateway, kind: &str) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    let mut cursor = String::new();
    loop {
        let page: Value = serde_json::from_str(&gateway.admin("GET", &format!("/v1/{kind}?limit=500{cursor}"), "").text()).unwrap();
        for job in page["items"].as_array().unwrap() {
            all.insert(job["id"].as_str().unwrap().to_owned(), job.clone());
        }
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return all,
        }
    }
}

/// The number of kills in a campaign.
fn kills() -> u32 {
    std::env::var("SEAWALL_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(12)
}

/// Submits jobs to the running program until `stop`; returns the acknowledged ones.
fn produce(
    admin: std::net::SocketAddr,
    stop: &Arc<AtomicBool>,
    number: &Arc<AtomicU64>,
    submit: fn(std::net::SocketAddr, u64) -> Option<String>,
) -> std::thread::JoinHandle<Vec<String>> {
    let (stop, number) = (Arc::clone(stop), Arc::clone(number));
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        while !stop.load(Ordering::SeqCst) {
            match submit(admin, number.fetch_add(1, Ordering::SeqCst)) {
                Some(id) => kept.push(id),
                // No program is running.
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        }
        kept
    })
}

/// Instants by chance, the same in every run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

/// The jobs in progress at each kill, read from the files left behind. They distinguish a job that was really running at three kills from a
/// job that was wrongly blamed for them.
#[derive(Default)]
struct Witness(BTreeMap<String, u64>);

impl Witness {
    fn see(&mut self, store: &Location) {
        let running = awaited(async {
            let store = Store::open(store).await.unwrap();
            let (mut window, mut ids) = (PageWindow { after: None, limit: 500 }, Vec::new());
            loop {
                let page = store.jobs(JobFilter { state: Some(JobState::Running), ..JobFilter::default() }, window).await.unwrap();
                ids.extend(page.entries.into_iter().map(|job| job.id.to_string()));
                match page.next {
                    Some(next) => window.after = Some(next),
                    None => return ids,
                }
            }
        });
        running.into_iter().for_each(|id| *self.0.entry(id).or_default() += 1);
    }

    /// Reads a copy, because the next start must find the file as the kill left it.
    fn see_in(&mut self, folder: &std::path::Path) {
        let copy = tempfile::tempdir().unwrap();
        for name in ["seawall.db", "seawall.db-wal"] {
            let _missing = std::fs::copy(folder.join(name), copy.path().join(name));
        }
        self.see(&Location::Sqlite(copy.path().join("seawall.db")));
    }

    fn times(&self, id: &str) -> u64 {
        self.0.get(id).copied().unwrap_or(0)
    }
}

/// The verdict on a campaign: every acknowledged job has ended, and every job was submitted. Jobs that were running at three kills are dead
/// letters, and no others.
fn judge(gateway: &Gateway, acknowledged: &BTreeSet<String>, ledger: &Ledger, witness: &Witness, kills: u32) {
    let all = settled(gateway, acknowledged);
    let dead: Vec<&Value> = all.values().filter(|job| job["state"] != "done").collect();
    let strange = dead.iter().find(|job| job["error"] != "poison" || job["crashes"].as_u64() < Some(3));
    assert!(strange.is_none(), "{strange:?}");
    for (id, job) in &all {
        let (blamed, seen) = (job["crashes"].as_u64().unwrap(), witness.times(id));
        assert!(blamed <= seen, "it was under way at {seen} kills: {job}");
    }
    let ends: BTreeSet<&str> = dead.iter().map(|job| job["id"].as_str().unwrap()).collect();
    let letters = listed(gateway, "dead-letters");
    assert_eq!(letters.keys().map(String::as_str).collect::<BTreeSet<_>>(), ends, "what is dead has a letter, and what is done has none");
    let executed = ledger.executed.lock().unwrap();
    for job in all.values().filter(|job| job["state"] == "done") {
        let key = job["idempotency_key"].as_str().unwrap();
        assert!(executed.get(key).is_some_and(|count| *count >= 1), "{key} is done and was never asked for");
    }
    let repeats: u64 = executed.values().map(|count| u64::from(*count - 1)).sum();
    println!(
        "{kills} kills: {} acknowledged, {} kept, {} under way at a kill, {} at three and so poison, {} asked, {repeats} asked again",
        acknowledged.len(),
        all.len(),
        witness.0.len(),
        dead.len(),
        ledger.asked.load(Ordering::SeqCst)
    );
    assert!(!acknowledged.is_empty() && !witness.0.is_empty(), "nothing was under way");
}

/// Everything that was acknowledged came to one good end.
#[track_caller]
fn settled(gateway: &Gateway, acknowledged: &BTreeSet<String>) -> BTreeMap<String, Value> {
    let over = |job: &Value| matches!(job["state"].as_str(), Some("done" | "dead" | "cancelled"));
    for _ in 0..1200 {
        if jobs(gateway).values().all(over) {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let all = jobs(gateway);
    let stuck: Vec<&Value> = all.values().filter(|job| !over(job)).collect();
    assert!(stuck.is_empty(), "{} stuck, the first is {}", stuck.len(), stuck[0]);
    let lost: Vec<&String> = acknowledged.iter().filter(|id| !all.contains_key(*id)).collect();
    assert!(lost.is_empty(), "{} of {} acknowledged jobs are lost: {lost:?}", lost.len(), acknowledged.len());
    all
}

#[test]
fn nothing_acknowledged_is_lost_however_often_the_power_goes() {
    let (kills, ledger) = (kills(), Ledger::default());
    let upstream = ledger.upstream();
    let (number, mut acknowledged, mut witness) = (Arc::new(AtomicU64::new(0)), BTreeSet::new(), Witness::default());
    let mut directory = Some(tempfile::tempdir().unwrap());
    let mut chance = Chance(0x9e37_79b9_7f4a_7c15);
    for _ in 0..kills {
        let gateway = Start::before(&upstream, POLICY).go_in(directory.take().unwrap());
        let stop = Arc::new(AtomicBool::new(false));
        let producers: Vec<_> = (0..4).map(|_| produce(gateway.admin, &stop, &number, submit)).collect();
        std::thread::sleep(Duration::from_millis(5 + chance.below(200)));
        let left = gateway.kill();
        stop.store(true, Ordering::SeqCst);
        witness.see_in(left.path());
        directory = Some(left);
        acknowledged.extend(producers.into_iter().flat_map(|producer| producer.join().unwrap()));
    }
    let gateway = Start::before(&upstream, POLICY).go_in(directory.take().unwrap());
    judge(&gateway, &acknowledged, &ledger, &witness, kills);
    let all = jobs(&gateway);
    let blamed = |id: &String| all.get(id).map_or(0, |job| job["crashes"].as_u64().unwrap());
    // Not as often as it was seen: the next start may have been killed before it noticed.
    let spared = witness.0.keys().find(|id| blamed(id) == 0);
    assert!(spared.is_none(), "it was under way at a kill, and nobody noticed: {spared:?}");
}

/// The path of a request is the number of its job.
fn submit_post(admin: std::net::SocketAddr, number: u64) -> Option<String> {
    let body = json!({ "upstream": "api", "method": "POST", "path": format!("/{number}") });
    let (status, told) = submitted(admin, &body)?;
    matches!(status, 200 | 202).then(|| told["id"].as_str().map(str::to_owned))?
}

#[test]
fn no_post_without_a_key_is_sent_twice_however_often_the_power_goes() {
    let upstream = Upstream::with(|turn| turn.pause(5).say(OK));
    let (number, mut acknowledged) = (Arc::new(AtomicU64::new(0)), BTreeSet::new());
    let mut directory = Some(tempfile::tempdir().unwrap());
    let mut chance = Chance(0x1234_5678_9abc_def1);
    for _ in 0..kills().div_ceil(3) {
        let gateway = Start::before(&upstream, POLICY).go_in(directory.take().unwrap());
        let stop = Arc::new(AtomicBool::new(false));
        let producers: Vec<_> = (0..4).map(|_| produce(gateway.admin, &stop, &number, submit_post)).collect();
        std::thread::sleep(Duration::from_millis(50 + chance.below(200)));
        directory = Some(gateway.kill());
        stop.store(true, Ordering::SeqCst);
        acknowledged.extend(producers.into_iter().flat_map(|producer| producer.join().unwrap()));
    }
    let gateway = Start::before(&upstream, POLICY).go_in(directory.take().unwrap());
    let all = settled(&gateway, &acknowledged);
    let mut sent: BTreeMap<String, u32> = BTreeMap::new();
    upstream.seen().iter().for_each(|seen| *sent.entry(seen.line().to_owned()).or_default() += 1);
    let twice: Vec<_> = sent.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
    let (done, dead): (Vec<&Value>, Vec<&Value>) = all.values().partition(|job| job["state"] == "done");
    assert!(dead.iter().all(|job| job["error"] == "outcome_unknown"), "{dead:?}");
    assert!(!done.is_empty() && !dead.is_empty(), "nothing was under way at any kill");
    println!("{} acknowledged, {} done, {} left to a person", acknowledged.len(), done.len(), dead.len());
}

/// Three instances on one PostgreSQL, of which one after the other is killed and replaced while the rest go on.
#[test]
fn three_instances_on_one_database_lose_nothing_when_one_is_killed() {
    // Leases of half a minute are what the rest wait for; a small campaign is enough for every day.
    let (kills, ledger) = (kills().div_ceil(4), Ledger::default());
    let upstream = ledger.upstream();
    let url = postgres();
    let start = || Start::before(&upstream, POLICY).server(&format!("store = \"{url}\"")).go();
    let (number, mut acknowledged, mut witness) = (Arc::new(AtomicU64::new(0)), BTreeSet::new(), Witness::default());
    let mut chance = Chance(0x2545_f491_4f6c_dd1d);
    let mut instances: Vec<Gateway> = (0..3).map(|_| start()).collect();
    for kill in 0..kills {
        let stop = Arc::new(AtomicBool::new(false));
        let producers: Vec<_> = instances.iter().map(|instance| produce(instance.admin, &stop, &number, submit)).collect();
        std::thread::sleep(Duration::from_millis(20 + chance.below(300)));
        let victim = instances.remove(usize::try_from(kill % 3).unwrap());
        drop(victim.kill());
        // Of all three instances, because the database does not show which one runs a job.
        witness.see(&Location::Postgres(url.clone()));
        stop.store(true, Ordering::SeqCst);
        acknowledged.extend(producers.into_iter().flat_map(|producer| producer.join().unwrap()));
        instances.push(start());
    }
    judge(&instances[0], &acknowledged, &ledger, &witness, kills);
}

/// The number of database restarts: `SEAWALL_RESTARTS=50` makes a campaign of it.
fn restarts() -> usize {
    std::env::var("SEAWALL_RESTARTS").ok().and_then(|text| text.parse().ok()).unwrap_or(3)
}

#[test]
fn a_database_that_restarts_under_load_loses_nothing_and_is_waited_for() {
    let ledger = Ledger::default();
    let upstream = ledger.upstream();
    // Not the server that other tests use meanwhile. It ends with this process.
    let server: &'static Cluster = Box::leak(Box::new(Cluster::start("")));
    let gateway = Start::before(&upstream, POLICY).server(&format!("store = \"{}\"", awaited(server.database()))).go();
    let (stop, number) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let admin = gateway.admin;
    let producers: Vec<_> = (0..4)
        .map(|_| {
            let (stop, number) = (Arc::clone(&stop), Arc::clone(&number));
            std::thread::spawn(move || {
                let (mut kept, mut refused) = (Vec::new(), 0);
                while !stop.load(Ordering::SeqCst) {
                    match answer(admin, number.fetch_add(1, Ordering::SeqCst)) {
                        Some((200 | 202, told)) => kept.push(told["id"].as_str().unwrap().to_owned()),
                        Some((status, told)) => {
                            assert_eq!((status, told["code"].as_str()), (503, Some("store_unavailable")), "{told}");
                            refused += 1;
                        }
                        // Still waiting for the database when our own patience ended.
                        None => {}
                    }
                }
                (kept, refused)
            })
        })
        .collect();
    for _ in 0..restarts() {
        let before = ledger.asked.load(Ordering::SeqCst);
        eventually("jobs are run", || ledger.asked.load(Ordering::SeqCst) > before + 20);
        awaited(server.restart());
    }
    stop.store(true, Ordering::SeqCst);
    let (mut acknowledged, mut refused) = (BTreeSet::new(), 0);
    for producer in producers {
        let (kept, turned_away) = producer.join().unwrap();
        acknowledged.extend(kept);
        refused += turned_away;
    }
    let all = settled(&gateway, &acknowledged);
    let strange = all.values().find(|job| job["state"] != "done");
    assert!(strange.is_none(), "{strange:?}");
    println!("{} restarts: {} acknowledged, {refused} told to come back, {} done", restarts(), acknowledged.len(), all.len());
}

/// The program meets some trouble at a step, ends, and another goes on where it was.
#[track_caller]
fn troubled(point: &str, trouble: &str, server: &str) {
    let ledger = Ledger::default();
    let upstream = ledger.upstream();
    let start = || Start::before(&upstream, POLICY).server(server);
    let troubled = start().secret("SEAWALL_FAILPOINT", &format!("{point}:{trouble}")).try_in(tempfile::tempdir().unwrap());
    // A claim may come before any request can be served.
    assert!(troubled.is_ok() || trouble == "kill", "{point} {trouble}");
    let acknowledged: BTreeSet<String> = troubled.iter().filter_map(|gateway| submit(gateway.admin, 1)).collect();
    let mut gateway = troubled.unwrap_or_else(|gone| *gone);
    match trouble {
        "kill" => assert_ne!(gateway.ended(), Some(0), "{point} was not reached"),
        _ => std::thread::sleep(Duration::from_millis(1500)),
    }
    let again = start().go_in(gateway.kill());
    // A caller without a response asks again, with the same key.
    let second = submit(again.admin, 1).unwrap();
    let all = settled(&again, &acknowledged);
    assert_eq!((all.len(), all[&second]["state"].as_str()), (1, Some("done")), "{point} {trouble}");
    let executed = ledger.executed.lock().unwrap();
    assert!((1..=2).contains(&executed["key-1"]), "{point} {trouble}: {executed:?}");
}

/// The steps of a plain job. Its key ends with it; callers' keys end by themselves.
pub(crate) const PLAIN: &[&str] = &["enqueue", "claim", "settle", "reserve"];

/// The step that a failpoint belongs to.
pub(crate) fn step(point: &str) -> &str {
    let places = ["-before-commit", "-in-transaction", "-after-commit"];
    places.iter().find_map(|place| point.strip_suffix(place)).unwrap()
}

/// Runs all steps concurrently, because each mostly waits for a lease.
fn troubled_everywhere(trouble: &'static str, server: impl Fn() -> String) {
    let points = seawall_store::failpoint::NAMES.iter().filter(|name| PLAIN.contains(&step(name)));
    let troubles = points.map(|point| (point, server()));
    let running: Vec<_> = troubles.map(|(point, server)| std::thread::spawn(move || troubled(point, trouble, &server))).collect();
    for troubled in running {
        troubled.join().unwrap();
    }
}

#[test]
fn death_between_any_two_steps_loses_nothing() {
    troubled_everywhere("kill", String::new);
}

#[test]
fn death_between_any_two_steps_on_postgres_loses_nothing() {
    troubled_everywhere("kill", || format!("store = \"{}\"", postgres()));
}

#[test]
fn a_store_that_fails_or_stalls_at_any_step_loses_nothing() {
    troubled_everywhere("err", String::new);
    troubled_everywhere("pause", String::new);
}

#[test]
fn death_around_the_end_of_a_key_executes_nothing_twice() {
    for (point, status, code) in [("finish-before-commit", 409, "idempotency_key_in_flight"), ("finish-after-commit", 200, "")] {
        let upstream = Upstream::fine();
        let mut gateway = Start::before(&upstream, POLICY).secret("SEAWALL_FAILPOINT", &format!("{point}:kill")).go();
        let call = "POST /api/pay HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n";
        let mut caller = Caller::connect(gateway.at);
        caller.send(call);
        assert_ne!(gateway.ended(), Some(0), "{point} was not reached");
        let again = Start::before(&upstream, POLICY).go_in(gateway.kill());
        let reply = again.post("/api/pay", "Idempotency-Key: k\r\n", "");
        assert_eq!((reply.status, if status == 200 { String::new() } else { reply.code() }), (status, code.to_owned()), "{point}");
        assert_eq!(upstream.count(), 1, "{point}");
    }
}

#[test]
fn a_store_that_fails_now_and_then_is_a_clear_answer_and_no_loss() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, POLICY).secret("SEAWALL_FAILPOINT", "enqueue-before-commit:err").go();
    let reply = gateway.admin("POST", "/v1/jobs", r#"{"upstream":"api","path":"/x"}"#);
    assert_eq!((reply.status, reply.code().as_str()), (503, "store_unavailable"));
    let reply = gateway.get_with("/api/x", "Prefer: respond-async\r\n");
    assert_eq!((reply.status, reply.code().as_str()), (503, "store_unavailable"));
    assert_eq!(gateway.get("/api/x").status, 200, "callers who wait do not need the store");
}

#[test]
fn a_worker_that_was_stopped_cannot_overwrite_its_successor() {
    let turns = AtomicU64::new(0);
    let upstream = Upstream::with(move |turn| {
        let first = turns.fetch_add(1, Ordering::SeqCst) == 0;
        if first {
            turn.pause(2000);
        }
        turn.say(said("200 OK", "", if first { "first" } else { "second" }));
    });
    let url = postgres();
    let start = || Start::before(&upstream, POLICY).server(&format!("store = \"{url}\"")).go();
    let first = start();
    let id = submit(first.admin, 1).unwrap();
    eventually("the first has it", || upstream.count() == 1);
    first.signal("STOP");
    let second = start();
    // Its lease is half a minute.
    let ended = settled(&second, &BTreeSet::from([id.clone()]))[&id].clone();
    assert_eq!((&ended["state"], &ended["crashes"], second.metric("seawall_jobs_recovered_total")), (&json!("done"), &json!(1), Some(1.0)));
    first.signal("CONT");
    eventually("the first finds out", || first.metric("seawall_job_leases_lost_total") == Some(1.0));
    assert_eq!(second.look(&format!("/v1/jobs/{id}"))["response"]["body"], "second");
    assert_eq!((&jobs(&second)[&id], upstream.count()), (&ended, 2));
}

#[test]
fn a_second_process_on_the_same_file_is_refused_and_leaves_alone_what_the_first_holds() {
    let upstream = Upstream::with(|turn| {
        turn.pause(500).say(OK);
    });
    let directory = tempfile::tempdir().unwrap();
    let store = format!("store = \"sqlite:{}\"", directory.path().join("shared.db").display());
    let start = || Start::before(&upstream, POLICY).server(&store);
    let first = start().go();
    let id = submit(first.admin, 1).unwrap();
    eventually("the first has it", || upstream.count() == 1);
    let mut second = *start().try_in(tempfile::tempdir().unwrap()).err().expect("the second does not start");
    assert_eq!(second.ended(), Some(11), "{}", second.stderr());
    assert!(second.stderr().contains("another `seawall serve` runs its jobs"), "{}", second.stderr());
    let found = || first.look(&format!("/v1/jobs/{id}"));
    eventually("the first ends it", || found()["state"] == "done");
    assert_eq!((&found()["crashes"], upstream.count()), (&json!(0), 1));
    drop(first.kill());
    drop(start().go());
}
