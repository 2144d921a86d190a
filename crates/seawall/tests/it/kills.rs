//! The power cut, over and over: the program is killed at random instants under load and at every failpoint, and nothing
//! that was acknowledged may be lost, end twice, or be stuck. `SEAWALL_KILLS=1000 cargo test -p seawall --test it kills`
//! makes a campaign of it.

use super::caller::{Caller, eventually};
use super::databases::postgres;
use super::gateway::{Gateway, Start};
use super::upstream::{OK, Upstream};
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
    let body = json!({ "upstream": "api", "method": "POST", "path": "/x", "idempotency_key": format!("key-{number}") }).to_string();
    let mut stream = std::net::TcpStream::connect(admin).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let head = format!("POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(body.as_bytes()).ok()?;
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let acknowledged = head.starts_with("HTTP/1.1 202") || head.starts_with("HTTP/1.1 200");
    let told: Value = serde_json::from_str(body).ok()?;
    acknowledged.then(|| told["id"].as_str().map(str::to_owned))?
}

/// Every job of the store, by id.
fn jobs(gateway: &Gateway) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    let mut cursor = String::new();
    loop {
        let page: Value = serde_json::from_str(&gateway.admin("GET", &format!("/v1/jobs?limit=500{cursor}"), "").text()).unwrap();
        for job in page["items"].as_array().unwrap() {
            all.insert(job["id"].as_str().unwrap().to_owned(), job.clone());
        }
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return all,
        }
    }
}

/// How many kills a campaign has.
fn kills() -> u32 {
    std::env::var("SEAWALL_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(12)
}

/// Submits to whoever is there, until it is told to stop; what was acknowledged.
fn produce(admin: std::net::SocketAddr, stop: &Arc<AtomicBool>, number: &Arc<AtomicU64>) -> std::thread::JoinHandle<Vec<String>> {
    let (stop, number) = (Arc::clone(stop), Arc::clone(number));
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        while !stop.load(Ordering::SeqCst) {
            kept.extend(submit(admin, number.fetch_add(1, Ordering::SeqCst)));
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

/// What a campaign came to: everything acknowledged is done, and was asked for.
fn judge(gateway: &Gateway, acknowledged: &BTreeSet<String>, ledger: &Ledger, kills: u32) {
    let all = settled(gateway, acknowledged);
    let dead: Vec<&Value> = all.values().filter(|job| job["state"] != "done").collect();
    // One that was under way at three kills is not given to a fourth worker, as no other is; it is kept as a letter.
    let strange = dead.iter().find(|job| job["error"] != "poison" || job["crashes"].as_u64() < Some(3));
    assert!(strange.is_none(), "{strange:?}");
    for job in &dead {
        let letter = gateway.admin("GET", &format!("/v1/dead-letters/{}", job["id"].as_str().unwrap()), "");
        assert_eq!(letter.status, 200, "{job}");
    }
    let executed = ledger.executed.lock().unwrap();
    for job in all.values().filter(|job| job["state"] == "done") {
        let key = job["idempotency_key"].as_str().unwrap();
        assert!(executed.get(key).is_some_and(|count| *count >= 1), "{key} is done and was never asked for");
    }
    let repeats: u64 = executed.values().map(|count| u64::from(*count - 1)).sum();
    println!(
        "{kills} kills: {} acknowledged, {} kept, {} poison, {} asked, {repeats} asked again",
        acknowledged.len(),
        all.len(),
        dead.len(),
        ledger.asked.load(Ordering::SeqCst)
    );
    assert!(!acknowledged.is_empty() && dead.len() * 10 < all.len(), "{} of {} are dead", dead.len(), all.len());
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
    let (number, mut acknowledged) = (Arc::new(AtomicU64::new(0)), BTreeSet::new());
    let mut directory = Some(tempfile::tempdir().unwrap());
    let mut chance = Chance(0x9e37_79b9_7f4a_7c15);
    for _ in 0..kills {
        let gateway = Start::before(&upstream, POLICY).go_in(directory.take().unwrap());
        let stop = Arc::new(AtomicBool::new(false));
        let producers: Vec<_> = (0..4).map(|_| produce(gateway.admin, &stop, &number)).collect();
        std::thread::sleep(Duration::from_millis(5 + chance.below(200)));
        directory = Some(gateway.kill());
        stop.store(true, Ordering::SeqCst);
        acknowledged.extend(producers.into_iter().flat_map(|producer| producer.join().unwrap()));
    }
    let gateway = Start::before(&upstream, POLICY).go_in(directory.take().unwrap());
    judge(&gateway, &acknowledged, &ledger, kills);
}

/// Three instances on one PostgreSQL, of which one after the other is killed and replaced while the rest go on.
#[test]
fn three_instances_on_one_database_lose_nothing_when_one_is_killed() {
    // Leases of half a minute are what the rest wait for; a small campaign is enough for every day.
    let (kills, ledger) = (kills().div_ceil(4), Ledger::default());
    let upstream = ledger.upstream();
    let url = postgres();
    let start = || Start::before(&upstream, POLICY).server(&format!("store = \"{url}\"")).go();
    let (number, mut acknowledged) = (Arc::new(AtomicU64::new(0)), BTreeSet::new());
    let mut chance = Chance(0x2545_f491_4f6c_dd1d);
    let mut instances: Vec<Gateway> = (0..3).map(|_| start()).collect();
    for kill in 0..kills {
        let stop = Arc::new(AtomicBool::new(false));
        let producers: Vec<_> = instances.iter().map(|instance| produce(instance.admin, &stop, &number)).collect();
        std::thread::sleep(Duration::from_millis(20 + chance.below(300)));
        let victim = instances.remove(usize::try_from(kill % 3).unwrap());
        drop(victim.kill());
        stop.store(true, Ordering::SeqCst);
        acknowledged.extend(producers.into_iter().flat_map(|producer| producer.join().unwrap()));
        instances.push(start());
    }
    judge(&instances[0], &acknowledged, &ledger, kills);
}

#[test]
fn death_between_any_two_steps_loses_nothing() {
    for point in seawall_store::failpoint::NAMES {
        let ledger = Ledger::default();
        let upstream = ledger.upstream();
        let mut gateway = Start::before(&upstream, POLICY).secret("SEAWALL_FAILPOINT", &format!("{point}:kill")).go();
        let acknowledged: BTreeSet<String> = submit(gateway.admin, 1).into_iter().collect();
        assert_ne!(gateway.ended(), Some(0), "{point} was not reached");
        let again = Start::before(&upstream, POLICY).go_in(gateway.kill());
        // Whoever heard nothing asks again, with the same key.
        let second = submit(again.admin, 1).unwrap();
        let all = settled(&again, &acknowledged);
        assert_eq!((all.len(), all[&second]["state"].as_str()), (1, Some("done")), "{point}");
        let executed = ledger.executed.lock().unwrap();
        assert!((1..=2).contains(&executed["key-1"]), "{point}: {executed:?}");
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
    let upstream = Upstream::with(|turn| {
        turn.pause(1500).say(OK);
    });
    let directory = tempfile::tempdir().unwrap();
    let store = format!("store = \"sqlite:{}\"", directory.path().join("shared.db").display());
    let first = Start::before(&upstream, POLICY).server(&store).go();
    let id = submit(first.admin, 1).unwrap();
    eventually("the first has it", || upstream.count() == 1);
    first.signal("STOP");
    // Its lease is half a minute: what runs out is tested in virtual time by the store's own suite. Here the second
    // process shares the file and must not touch what the first still holds.
    let second = Start::before(&upstream, POLICY).server(&store).go();
    std::thread::sleep(Duration::from_millis(500));
    let found: Value = serde_json::from_str(&second.admin("GET", &format!("/v1/jobs/{id}"), "").text()).unwrap();
    assert_eq!((&found["state"], &found["crashes"]), (&json!("running"), &json!(0)));
    first.signal("CONT");
    eventually("the first ends it", || {
        let reply = Caller::connect(second.admin)
            .send(format!("GET /v1/jobs/{id} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
            .reply();
        serde_json::from_str::<Value>(&reply.text()).unwrap()["state"] == "done"
    });
    assert_eq!(upstream.count(), 1);
}
