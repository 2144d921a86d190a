//! The workload of the recorded process: several tasks use a store as Seawall does, and note their requests and the replies.

use crate::recording::{FOLDER, NOTES, PART};
use seawall_core::admit::idempotency::{KeyClaim, KeyEnding, RequestFingerprint, ReserveAnswer};
use seawall_core::decide::CallProgress;
use seawall_core::id::CallId;
use seawall_core::policy::{Door, Severity};
use seawall_core::record::Class;
use seawall_core::rng::Rng;
use seawall_core::time::{Nanos, Wall};
use seawall_store::Store;
use seawall_store::dead::NewLetter;
use seawall_store::idempotency::{FinishKey, ReserveKey};
use seawall_store::job::{
    Cancelled, ClaimRequest, Claimed, Enqueued, JobEnding, JobOrigin, JobRequest, NewJob, Response, SettleJob, Settled,
};
use seawall_store::location::Location;
use seawall_store::schedule::{Firing, NewSubject, SubjectSource, TickReport};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

pub(crate) const NOON: Wall = Wall(1_800_000_000_000);
const DAY: Nanos = Nanos::from_secs(86_400);
/// A first start, a start that is killed, one with enough writes for a checkpoint, and one that only opens and closes.
pub(crate) const PARTS: std::ops::Range<usize> = 0..4;
/// A start that copies its database, writes more and is killed, and a restore of that copy.
pub(crate) const RESTORED: std::ops::Range<usize> = 4..6;
const KILLED: usize = 1;
const LONG: usize = 2;
const IDLE: usize = 3;
/// Jobs that a submitter creates in one part.
const JOBS: usize = 20;
const SUBMITTERS: usize = 3;
/// The size of a snapshot; some of these cause a checkpoint.
pub(crate) const LONG_SNAPSHOT: usize = 500_000;

#[test]
fn the_recorded_process() {
    // The recording test runs this one; on its own it does nothing.
    let (Some(folder), Some(part)) = (std::env::var_os(FOLDER), std::env::var(PART).ok()) else { return };
    let part = part.parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(run(Path::new(&folder), part));
}

async fn run(folder: &Path, part: usize) {
    let notes = Arc::new(File::options().create(true).append(true).open(folder.join(NOTES)).unwrap());
    let database = folder.join("seawall.db");
    let notes = Notes(notes);
    if RESTORED.contains(&part) {
        return restore(&database, &notes, part == RESTORED.start).await;
    }
    notes.ask("closed", "all", "no");
    let store = Store::open(&Location::Sqlite(database.clone())).await.unwrap();
    if part != IDLE {
        store.make_room().await.unwrap();
        let world = World { store: store.clone(), notes: notes.clone(), clock: Arc::new(AtomicI64::new(0)), part, left: Arc::default() };
        world.use_it(&database).await;
    }
    if part == KILLED {
        over();
        std::process::abort();
    }
    notes.ask("closed", "all", "yes");
    store.close().await.unwrap();
    notes.ack("closed", "all", "yes");
    over();
}

/// Jobs in the copy, and all jobs.
pub(crate) const COPIED: usize = 5;
pub(crate) const ALL: usize = 12;

async fn restore(database: &Path, notes: &Notes, is_first: bool) {
    let copy = database.with_file_name("copy.db");
    if !is_first {
        notes.ask("restore", "copy", "done");
        Store::restore(database, &copy).unwrap();
        notes.ack("restore", "copy", "done");
        return over();
    }
    let store = Store::open(&Location::Sqlite(database.to_owned())).await.unwrap();
    let world = World { store, notes: notes.clone(), clock: Arc::default(), part: 0, left: Arc::default() };
    let mut rng = world.rng(0);
    for job in 0..ALL {
        if job == COPIED {
            Store::back_up(database, &copy).unwrap();
        }
        if job + 2 == ALL {
            // The log is restarted and contains a part only: beside the copy it would make neither database.
            let other = rusqlite::Connection::open(database).unwrap();
            other.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
            std::mem::forget(other);
        }
        world.enqueue(vec![world.job("u", &mut rng)]).await;
    }
    notes.ack("restore", "copy", "no");
    over();
    std::process::abort();
}

fn over() {
    std::io::stderr().write_all(b"this part is over\n").unwrap();
}

#[derive(Clone)]
struct Notes(Arc<File>);

impl Notes {
    fn write(&self, note: &str) {
        (&*self.0).write_all(format!("{note}\n").as_bytes()).unwrap();
    }

    fn ask(&self, what: &str, which: impl std::fmt::Display, state: &str) {
        self.write(&format!("ask {what} {which} {state}"));
    }

    fn ack(&self, what: &str, which: impl std::fmt::Display, state: &str) {
        self.write(&format!("ack {what} {which} {state}"));
    }
}

#[derive(Clone)]
struct World {
    store: Store,
    notes: Notes,
    clock: Arc<AtomicI64>,
    part: usize,
    /// Submitters that are still running.
    left: Arc<AtomicUsize>,
}

impl World {
    fn rng(&self, task: u64) -> Rng {
        Rng::seeded(self.part as u64 * 100 + task)
    }

    fn now(&self) -> Wall {
        Wall(NOON.0 + self.part as i64 * 1_000_000 + self.clock.fetch_add(1, Ordering::Relaxed))
    }

    async fn use_it(&self, database: &Path) {
        self.left.store(SUBMITTERS, Ordering::Relaxed);
        let mut tasks = Vec::new();
        for submitter in 0..SUBMITTERS as u64 {
            let own = self.clone();
            tasks.push(tokio::spawn(async move { own.submit(submitter).await }));
        }
        for worker in 10..12 {
            let own = self.clone();
            tasks.push(tokio::spawn(async move { own.work(worker).await }));
        }
        let own = self.clone();
        tasks.push(tokio::spawn(async move { own.keys().await }));
        let own = self.clone();
        tasks.push(tokio::spawn(async move { own.schedule().await }));
        let (own, database) = (self.clone(), database.to_owned());
        tasks.push(if self.part == LONG {
            tokio::spawn(async move { own.fill().await })
        } else {
            tokio::spawn(async move { own.fold(&database).await })
        });
        for task in tasks {
            task.await.unwrap();
        }
    }

    fn job(&self, upstream: &str, rng: &mut Rng) -> NewJob {
        let many = match rng.up_to(5) {
            0 => rng.up_to(20_000),
            _ => rng.up_to(300),
        };
        let body: Vec<u8> = (0..many).map(|at| (at % 251) as u8).collect();
        NewJob {
            id: CallId::new(self.now(), rng),
            upstream: upstream.to_owned(),
            tenant: format!("t{}", rng.up_to(2)),
            caller: "c".to_owned(),
            priority: i64::try_from(rng.up_to(1)).unwrap(),
            request: JobRequest { method: "POST".to_owned(), path: "/x".to_owned(), headers: Vec::new(), body: body.into() },
            idempotency_key: None,
            dedup: None,
            fingerprint: [1; 32],
            correlation_id: None,
            callback: None,
            run_at: NOON,
            expires_at: None,
            origin: JobOrigin::Caller,
            progress: CallProgress::default(),
            history: Vec::new(),
        }
    }

    async fn submit(&self, submitter: u64) {
        let mut rng = self.rng(submitter);
        let mut made = 0;
        while made < JOBS {
            let jobs: Vec<NewJob> = (0..=rng.up_to(2)).map(|_| self.job("u", &mut rng)).collect();
            made += jobs.len();
            self.enqueue(jobs).await;
            let call_off = self.job("v", &mut rng);
            if rng.up_to(4) == 0 {
                let id = call_off.id;
                self.enqueue(vec![call_off]).await;
                self.notes.ask("job", id, "cancelled");
                assert_eq!(self.store.cancel(id, self.now()).await.unwrap(), Cancelled::Now);
                self.notes.ack("job", id, "cancelled");
            }
        }
        self.left.fetch_sub(1, Ordering::Relaxed);
    }

    async fn enqueue(&self, jobs: Vec<NewJob>) {
        let ids: Vec<CallId> = jobs.iter().map(|job| job.id).collect();
        ids.iter().for_each(|id| self.notes.ask("job", id, "open-0"));
        let kept = self.store.enqueue(jobs, self.now()).await.unwrap();
        assert!(kept.iter().all(|kept| matches!(kept, Enqueued::New(_))));
        ids.iter().for_each(|id| self.notes.ack("job", id, "open-0"));
    }

    async fn work(&self, worker: u64) {
        let mut rng = self.rng(worker);
        loop {
            let submitted = self.left.load(Ordering::Relaxed) == 0;
            let now = Wall(self.now().0 + 50);
            self.store.tick(now, None).await.unwrap();
            let claim = ClaimRequest { lanes: vec![("u".to_owned(), 4)], token: rng.draw(), lease: DAY, now, rules: 0 };
            let claimed = self.store.claim(claim).await.unwrap();
            if claimed.is_empty() && submitted {
                return;
            }
            self.store.renew(claimed.iter().map(|one| one.lease).collect(), now + DAY).await.unwrap();
            for one in claimed {
                self.run_one(one, &mut rng).await;
            }
            tokio::task::yield_now().await;
        }
    }

    async fn run_one(&self, claimed: Claimed, rng: &mut Rng) {
        let (id, attempts) = (claimed.job.id, claimed.job.progress.attempts);
        if claimed.job.begun_at.is_some() {
            return self.settle(&claimed, JobEnding::Dead(Box::new(self.letter(id))), "dead", Vec::new(), None).await;
        }
        if rng.up_to(1) == 0 {
            let begun = format!("begun-{attempts}");
            self.notes.ask("job", id, &begun);
            assert!(self.store.begin_send(claimed.lease, self.now()).await.unwrap());
            self.notes.ack("job", id, &begun);
        }
        match rng.up_to(9) {
            0 => self.settle(&claimed, JobEnding::Release, &format!("open-{attempts}"), Vec::new(), None).await,
            1 | 2 => {
                let until = Wall(self.now().0 + i64::try_from(rng.up_to(30)).unwrap());
                let wait = JobEnding::Wait { until, reason: "transient_failure" };
                self.settle(&claimed, wait, &format!("open-{}", attempts + 1), Vec::new(), None).await;
            }
            3 => self.settle(&claimed, JobEnding::Dead(Box::new(self.letter(id))), "dead", Vec::new(), None).await,
            // As if its worker were lost.
            4 => {}
            5 => {
                let callback = NewJob { origin: JobOrigin::Callback(id.to_string()), ..self.job("callbacks", rng) };
                self.settle(&claimed, done(rng), "done", vec![callback], None).await;
            }
            6 | 7 => {
                let number = u8::try_from(attempts % 200).unwrap();
                let key = Key { name: format!("{id}-{number}"), reservation: 0 };
                self.reserve(&key.name).await;
                self.settle(&claimed, done(rng), "done", Vec::new(), Some(key)).await;
            }
            _ => self.settle(&claimed, done(rng), "done", Vec::new(), None).await,
        }
    }

    async fn settle(&self, claimed: &Claimed, ending: JobEnding, state: &str, follow: Vec<NewJob>, key: Option<Key>) {
        let id = claimed.job.id;
        let mut asked = vec![("job", id.to_string(), state.to_owned())];
        if state == "dead" {
            asked.push(("letter", id.to_string(), "kept".to_owned()));
        }
        for callback in &follow {
            self.notes.write(&format!("follows {id} {}", callback.id));
            asked.push(("job", callback.id.to_string(), "open-0".to_owned()));
        }
        asked.extend(key.iter().map(|key| ("key", key.name.clone(), "done".to_owned())));
        asked.iter().for_each(|(what, which, state)| self.notes.ask(what, which, state));
        let mut progress = claimed.job.progress;
        if !matches!(ending, JobEnding::Release) {
            progress.attempts += 1;
        }
        let settle = SettleJob {
            lease: claimed.lease,
            ending,
            progress,
            history: Vec::new(),
            answer: None,
            follow,
            key: key.map(|key| key.finish(self.now())),
            forgets: false,
            now: self.now(),
            again: false,
        };
        assert_eq!(self.store.settle(settle).await.unwrap(), Settled::Kept);
        asked.iter().for_each(|(what, which, state)| self.notes.ack(what, which, state));
    }

    fn letter(&self, id: CallId) -> NewLetter {
        let at = self.now();
        NewLetter {
            id,
            door: Door::Jobs,
            upstream: "u".to_owned(),
            endpoint: "e".to_owned(),
            tenant: "t".to_owned(),
            caller: "c".to_owned(),
            url: "https://example.org/x".to_owned(),
            request: JobRequest { method: "POST".to_owned(), path: "/x".to_owned(), headers: Vec::new(), body: "body".into() },
            body_cut: false,
            class: Class::Permanent,
            reason: "permanent_failure".to_owned(),
            code: "404".to_owned(),
            detail: "no such thing".to_owned(),
            last_attempt_at: Some(at),
            attempts: 1,
            correlation_id: None,
            idempotency_key: None,
            enqueued_at: NOON,
            dead_at: at,
            expires_at: at + DAY,
            severity: Severity::Review,
            replayable: true,
            instructions: "look first".to_owned(),
            history: Vec::new(),
        }
    }

    async fn reserve(&self, name: &str) {
        self.notes.ask("key", name, "held");
        let reserved = self.store.reserve_key(wish(name)).await.unwrap();
        assert_eq!(reserved.answer, ReserveAnswer::Proceed { reservation: 0 });
        self.notes.ack("key", name, "held");
    }

    /// Keys of calls that are no jobs.
    async fn keys(&self) {
        for number in 0..15 {
            let key = Key { name: format!("call-{}-{number}", self.part), reservation: 0 };
            self.reserve(&key.name).await;
            if number % 3 > 0 {
                self.notes.ask("key", &key.name, "done");
                assert!(self.store.finish_key(key.clone().finish(NOON)).await.unwrap());
                self.notes.ack("key", &key.name, "done");
            }
        }
    }

    /// Two subjects that fire and report, and snapshots for the next process.
    async fn schedule(&self) {
        let mut rng = self.rng(30);
        for number in 0..2 {
            let (name, first) = (format!("{}-{number}", self.part), NOON.0);
            self.notes.ask("subject", &name, &first.to_string());
            let new = NewSubject { schedule: "s".to_owned(), subject: name.clone(), source: SubjectSource::Api, next_at: NOON };
            assert_eq!(self.store.put_subjects(vec![new]).await.unwrap(), 1);
            self.notes.ack("subject", &name, &first.to_string());
            for tick in 0..10 {
                let (at, next) = (first + tick * 1000, first + (tick + 1) * 1000);
                let origin = JobOrigin::Schedule { name: "s".to_owned(), subject: name.clone() };
                let job = NewJob { origin, ..self.job("ticks", &mut rng) };
                let id = job.id;
                self.notes.write(&format!("tick {name} {at} {id}"));
                self.notes.ask("subject", &name, &next.to_string());
                self.notes.ask("job", id, "open-0");
                let firing =
                    Firing { schedule: "s".to_owned(), subject: name.clone(), tick: Wall(at), next_at: Wall(next), job, now: self.now() };
                assert!(self.store.fire(firing).await.unwrap());
                self.notes.ack("subject", &name, &next.to_string());
                self.notes.ack("job", id, "open-0");
                self.notes.ask("ok", &name, &at.to_string());
                assert!(self.store.report_subject("s".to_owned(), name.clone(), TickReport::Ok { at: Wall(at) }).await.unwrap());
                self.notes.ack("ok", &name, &at.to_string());
                let version = format!("{}.{number}.{tick}", self.part);
                self.notes.ask("snapshot", "short", &version);
                self.store.put_snapshot("short".to_owned(), version.clone().into_bytes().into(), self.now()).await.unwrap();
                self.notes.ack("snapshot", "short", &version);
            }
        }
    }

    /// Causes a checkpoint by writing the same rows repeatedly, so that the database stays small.
    async fn fill(&self) {
        for version in 0..20 {
            let state = format!("{version}-{}", "x".repeat(LONG_SNAPSHOT));
            self.notes.ask("snapshot", "long", &version.to_string());
            self.store.put_snapshot("long".to_owned(), state.into_bytes().into(), self.now()).await.unwrap();
            self.notes.ack("snapshot", "long", &version.to_string());
        }
    }

    /// Another connection that checkpoints at any moment, so that the log is restarted more often than by writes alone.
    async fn fold(&self, database: &Path) {
        let other = rusqlite::Connection::open(database).unwrap();
        while self.left.load(Ordering::Relaxed) > 0 {
            let begun = self.clock.load(Ordering::Relaxed);
            while self.left.load(Ordering::Relaxed) > 0 && self.clock.load(Ordering::Relaxed) < begun + 20 {
                tokio::task::yield_now().await;
            }
            drop(other.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())));
        }
        // Not closed: the last connection to close would checkpoint and remove the log.
        std::mem::forget(other);
    }
}

fn done(rng: &mut Rng) -> JobEnding {
    let body = vec![b'y'; usize::try_from(rng.up_to(500)).unwrap()];
    JobEnding::Done(Response { status: 200, body: body.into(), ..Response::default() })
}

#[derive(Clone)]
struct Key {
    name: String,
    reservation: u32,
}

impl Key {
    fn finish(self, now: Wall) -> FinishKey {
        let response = Response { status: 201, body: self.name.clone().into_bytes().into(), ..Response::default() };
        let scope = scope(&self.name);
        FinishKey { scope, reservation: self.reservation, ending: KeyEnding::Done, response: Some(response), ttl: DAY, now }
    }
}

/// Returns a distinct scope for each name.
fn scope(name: &str) -> [u8; 32] {
    let mut scope = [0; 32];
    scope.iter_mut().zip(name.bytes().rev()).for_each(|(to, from)| *to = from);
    scope
}

pub(crate) fn wish(name: &str) -> ReserveKey {
    let claim = KeyClaim { fingerprint: RequestFingerprint([1; 32]), lease: DAY, ttl: DAY, upstream_honours_keys: false };
    ReserveKey { scope: scope(name), claim, owner: None, now: NOON }
}
