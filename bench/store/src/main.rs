//! What the store does in a second, beside what its disk can do in the same run: `bench-store [ROWS [share|sqlite|sweep|postgres]]`.
//! The private PostgreSQL is the one that the tests start, with its durable settings.

#[path = "../../../crates/seawall-store/tests/conformance/cluster.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod cluster;
mod raw;

use seawall_core::decide::CallProgress;
use seawall_core::id::CallId;
use seawall_core::policy::{Door, Severity};
use seawall_core::record::Class;
use seawall_core::rng::Rng;
use seawall_core::time::{Nanos, Wall};
use seawall_store::Store;
use seawall_store::dead::{LetterQuery, NewLetter};
use seawall_store::job::{ClaimRequest, JobEnding, JobOrigin, JobRequest, NewJob, Response, SettleJob};
use seawall_store::location::Location;
use seawall_store::page::PageWindow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// As the program has it, for both sides of each comparison.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const NOON: Wall = Wall(1_800_000_000_000);
const RUN: Duration = Duration::from_secs(3);
const PRODUCERS: usize = 64;

/// Noon, and what has passed since the start: ids sort by age here too.
fn now() -> Wall {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    Wall(NOON.0 + i64::try_from(START.elapsed().as_millis()).unwrap())
}

fn job(rng: &mut Rng, run_at: Wall) -> NewJob {
    NewJob {
        id: CallId::new(now(), rng),
        upstream: "u".to_owned(),
        tenant: "t".to_owned(),
        caller: "c".to_owned(),
        priority: 0,
        request: JobRequest {
            method: "POST".to_owned(),
            path: "/v1/things?x=1".to_owned(),
            headers: vec![("content-type".to_owned(), "application/json".to_owned())],
            body: r#"{"name":"something","size":12345}"#.into(),
        },
        idempotency_key: None,
        dedup: None,
        fingerprint: [1; 32],
        correlation_id: None,
        callback: None,
        run_at,
        expires_at: None,
        origin: JobOrigin::Caller,
        progress: CallProgress::default(),
        history: Vec::new(),
    }
}

/// A seed that nobody else has: the same seed makes the same ids.
fn fresh() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(1 << 32);
    LAST.fetch_add(1, Ordering::Relaxed)
}

/// What producers that each wait for their own answer get in a second, and the latency that one in a hundred exceeds.
async fn produce<P, W>(producer: impl Fn() -> P) -> (f64, Duration)
where
    P: FnMut() -> W + Send + 'static,
    W: Future<Output = ()> + Send,
{
    let (count, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let begin = Instant::now();
    let tasks: Vec<_> = (0..PRODUCERS)
        .map(|_| {
            let (mut next, count, stop) = (producer(), Arc::clone(&count), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut waits = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let asked = Instant::now();
                    next().await;
                    waits.push(asked.elapsed());
                    count.fetch_add(1, Ordering::Relaxed);
                }
                waits
            })
        })
        .collect();
    tokio::time::sleep(RUN).await;
    stop.store(true, Ordering::Relaxed);
    let mut waits = Vec::new();
    for task in tasks {
        waits.extend(task.await.unwrap());
    }
    let rate = count.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64();
    waits.sort_unstable();
    (rate, waits[waits.len() * 99 / 100])
}

/// Enqueues a second, and the latency that one in a hundred exceeds.
async fn enqueue(store: &Store) -> (f64, Duration) {
    produce(|| {
        let (store, mut rng) = (store.clone(), Rng::seeded(fresh()));
        move || {
            let (store, new) = (store.clone(), job(&mut rng, NOON));
            async move { store.enqueue(vec![new], NOON).await.map(drop).unwrap() }
        }
    })
    .await
}

/// Enqueues a second as a share of what the disk does for as many producers, in turn, and of what it does in a plain loop.
async fn share(store: &Store, folder: &std::path::Path) {
    let alone = raw::alone(folder);
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for round in 0..5 {
        theirs.push(raw::with_producers(folder, &format!("raw{round}.db")).await);
        ours.push(enqueue(store).await.0);
    }
    theirs.sort_by(f64::total_cmp);
    ours.sort_by(f64::total_cmp);
    let part = |of: f64| ours[2] / of * 100.0;
    println!("raw rows in a loop, {PRODUCERS} in a commit        {alone:>9.0} /s: enqueue is {:.0} % of it", part(alone));
    println!("raw group commit, {PRODUCERS} producers, of 5 in turn {:>9.0} /s ({theirs:.0?})", theirs[2]);
    println!("sqlite enqueue, {PRODUCERS} producers, of 5 in turn   {:>9.0} /s ({ours:.0?}): {:.0} % of it", ours[2], part(theirs[2]));
}

/// Seconds of CPU that the embedded stores' writing threads have used so far.
fn writing() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let writers = tasks.filter(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "store-writer\n"));
    // The first of its numbers: nanoseconds on a CPU.
    let used = writers.filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok());
    used.filter_map(|all| all.split(' ').next()?.parse::<f64>().ok()).sum::<f64>() / 1e9
}

/// Ticks of a CPU's clock, a hundred a second, that a process has used: its own, or those of its children that ended.
fn ticks(pid: &str, whose: std::ops::Range<usize>) -> f64 {
    let all = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let numbers: Vec<f64> =
        all.rsplit(") ").next().into_iter().flat_map(str::split_whitespace).map(|word| word.parse().unwrap_or(0.0)).collect();
    numbers.get(whose).map_or(0.0, |ticks| ticks.iter().sum())
}

/// Seconds of CPU used so far by this process, and by a PostgreSQL with all its processes.
fn used(cluster: Option<&cluster::Cluster>) -> (f64, f64) {
    let own = ticks("self", 11..13) / 100.0;
    let Some(cluster) = cluster else { return (own, 0.0) };
    let folder = std::path::PathBuf::from(cluster.socket());
    let file = std::fs::read_to_string(folder.with_file_name("data/postmaster.pid")).unwrap();
    let main = file.lines().next().unwrap();
    let children = std::fs::read_to_string(format!("/proc/{main}/task/{main}/children")).unwrap();
    let server: f64 = children.split_whitespace().map(|pid| ticks(pid, 11..13)).sum();
    (own, (server + ticks(main, 11..15)) / 100.0)
}

/// Takes jobs through their life, and prints what each step costs the writing thread for each of them.
async fn life(store: &Store, jobs: usize) {
    let mut last = writing();
    let mut lap = || {
        let before = std::mem::replace(&mut last, writing());
        (last - before) / jobs as f64 * 1e6
    };
    let due = Wall(NOON.0 + 1000);
    fill(store, jobs, due).await;
    let enqueue = lap();
    while store.tick(due, None).await.unwrap().due > 0 {}
    let promote = lap();
    claim_and_complete(store, Duration::from_secs(60)).await;
    let rest = lap();
    println!(
        "sqlite writer's CPU for a job     {:.1} µs: enqueue {enqueue:.1}, make ready {promote:.1}, claim and complete {rest:.1}",
        enqueue + promote + rest
    );
}

async fn fill(store: &Store, rows: usize, run_at: Wall) {
    let mut rng = Rng::seeded(fresh());
    for chunk in 0..rows.div_ceil(2000) {
        let size = 2000.min(rows - chunk * 2000);
        store.enqueue((0..size).map(|_| job(&mut rng, run_at)).collect(), NOON).await.unwrap();
    }
}

fn claim(most: usize, token: u64) -> ClaimRequest {
    ClaimRequest { lanes: vec![("u".to_owned(), most)], token, lease: Nanos::from_secs(60), now: NOON, rules: 0 }
}

/// Claims batches and settles each job by itself, with two batches under way, until nothing is left or time is up.
async fn claim_and_complete(store: &Store, bound: Duration) -> f64 {
    let begin = Instant::now();
    let workers: Vec<_> = (0..2_u64)
        .map(|worker| {
            let store = store.clone();
            tokio::spawn(async move {
                let (mut done, mut token) = (0, worker << 32);
                while begin.elapsed() < bound {
                    token += 1;
                    let claimed = store.claim(claim(256, token)).await.unwrap();
                    if claimed.is_empty() {
                        break;
                    }
                    let settling: Vec<_> = claimed
                        .into_iter()
                        .map(|claimed| {
                            let response = Response { status: 200, body: "{\"ok\":true}".into(), ..Response::default() };
                            let (lease, progress) = (claimed.lease, claimed.job.progress);
                            let settle = SettleJob {
                                lease,
                                ending: JobEnding::Done(response),
                                progress,
                                history: Vec::new(),
                                answer: None,
                                follow: Vec::new(),
                                key: None,
                                forgets: false,
                                now: NOON,
                                again: false,
                            };
                            let store = store.clone();
                            tokio::spawn(async move { store.settle(settle).await.unwrap() })
                        })
                        .collect();
                    for settled in settling {
                        settled.await.unwrap();
                        done += 1;
                    }
                }
                done
            })
        })
        .collect();
    let mut done = 0;
    for worker in workers {
        done += worker.await.unwrap();
    }
    f64::from(done) / begin.elapsed().as_secs_f64()
}

/// The mean of many: time, and the CPU that the embedded store's writing thread used of it.
async fn each<F: Future>(times: u32, work: impl Fn(u32) -> F) -> (Duration, Duration) {
    work(u32::MAX).await;
    let (begin, used) = (Instant::now(), writing());
    for n in 0..times {
        work(n).await;
    }
    (begin.elapsed() / times, Duration::from_secs_f64(writing() - used) / times)
}

fn letter(rng: &mut Rng) -> NewLetter {
    NewLetter {
        id: CallId::new(now(), rng),
        door: Door::Jobs,
        upstream: "u".to_owned(),
        endpoint: "search".to_owned(),
        tenant: "t".to_owned(),
        caller: "c".to_owned(),
        url: "https://example.org/x".to_owned(),
        request: job(rng, NOON).request,
        body_cut: false,
        class: Class::Permanent,
        reason: "permanent_failure".to_owned(),
        code: "404".to_owned(),
        detail: "no such thing".to_owned(),
        last_attempt_at: Some(NOON),
        attempts: 1,
        correlation_id: None,
        idempotency_key: None,
        enqueued_at: NOON,
        dead_at: NOON,
        expires_at: Wall(NOON.0 + 3_600_000),
        severity: Severity::Review,
        replayable: true,
        instructions: String::new(),
        history: Vec::new(),
    }
}

async fn letters(store: &Store, rows: usize) {
    let tasks: Vec<_> = (0..PRODUCERS)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut rng = Rng::seeded(fresh());
                for _ in 0..rows / PRODUCERS {
                    store.keep_letter(letter(&mut rng)).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

async fn measure(name: &str, store: &Store, rows: usize, cluster: Option<&cluster::Cluster>) {
    let begin = used(cluster);
    let (rate, p99) = enqueue(store).await;
    let enqueued = used(cluster);
    let cpu = |before: (f64, f64), after: (f64, f64), jobs: f64| {
        format!("CPU for a job {:.0} µs here, {:.0} µs in the server", (after.0 - before.0) / jobs * 1e6, (after.1 - before.1) / jobs * 1e6)
    };
    println!("{name} enqueue, {PRODUCERS} producers   {rate:>9.0} /s, p99 {p99:.1?}; {}", cpu(begin, enqueued, rate * RUN.as_secs_f64()));
    fill(store, 20_000, NOON).await;
    let (begin, from) = (used(cluster), store.job_counts().await.unwrap().by_state[3]);
    let rate = claim_and_complete(store, RUN).await;
    let done = store.job_counts().await.unwrap().by_state[3] - from;
    println!("{name} claim + complete           {rate:>9.0} /s; {}", cpu(begin, used(cluster), done as f64));
    fill(store, 12_000, NOON).await;
    while claim_and_complete(store, Duration::from_secs(60)).await > 0.0 {}
    let few = cost_of_claim(store).await;
    let finished = store.job_counts().await.unwrap().by_state[3];
    fill(store, rows, NOON).await;
    while claim_and_complete(store, Duration::from_secs(600)).await > 0.0 {}
    let many = cost_of_claim(store).await;
    let more = store.job_counts().await.unwrap().by_state[3];
    let times = |few: Duration, many: Duration| many.as_secs_f64() / few.as_secs_f64();
    println!("{name} claim of 100 with {finished} finished {:.1?}, with {more} {:.1?}: {:.2} ×", few.0, many.0, times(few.0, many.0));
    if cluster.is_none() {
        println!("{name} the same, CPU of the writer {:.1?}, {:.1?}: {:.2} ×", few.1, many.1, times(few.1, many.1));
    }
    sweeps(name, store).await;
}

/// What the program's own sweeper adds to the latency of enqueues, in turn, with as many old jobs as there are.
async fn sweeps(name: &str, store: &Store) {
    let (mut alone, mut beside, mut swept) = (Vec::new(), Vec::new(), 0);
    for _ in 0..5 {
        alone.push(enqueue(store).await.1);
        let (p99, jobs) = beside_a_sweep(store).await;
        beside.push(p99);
        swept += jobs;
    }
    alone.sort_unstable();
    beside.sort_unstable();
    println!("{name} enqueue p99, medians of 5 in turn {:.1?}, beside a sweep {:.1?}: {alone:.1?}, {beside:.1?}", alone[2], beside[2]);
    println!("{name} forgotten meanwhile                {:>9.0} /s", swept as f64 / (5.0 * RUN.as_secs_f64()));
}

async fn beside_a_sweep(store: &Store) -> (Duration, usize) {
    let stop = Arc::new(AtomicBool::new(false));
    let (sweeper, over) = (store.clone(), Arc::clone(&stop));
    let sweeping = tokio::spawn(async move {
        let mut gone = 0;
        // As the program does it, and with as much for each call.
        while !over.load(Ordering::Relaxed) {
            gone += sweeper.sweep_jobs(now(), 200).await.unwrap();
        }
        gone
    });
    let (_, p99) = enqueue(store).await;
    stop.store(true, Ordering::Relaxed);
    (p99, sweeping.await.unwrap())
}

/// A hundred at a time, from a queue that is long enough for all of them. The median of seven such hundredths of a second: whoever else has
/// the processor in one of them has no say.
async fn cost_of_claim(store: &Store) -> (Duration, Duration) {
    let (mut times, mut cpus) = (Vec::new(), Vec::new());
    for round in 0..7 {
        fill(store, 4000, NOON).await;
        let cost = each(30, |n| store.claim(claim(100, 9_000_000 + round * 100 + u64::from(n)))).await;
        times.push(cost.0);
        cpus.push(cost.1);
        while claim_and_complete(store, Duration::from_secs(60)).await > 0.0 {}
    }
    times.sort_unstable();
    cpus.sort_unstable();
    (times[3], cpus[3])
}

/// As workers poll: each on a thread of its own, where they claim what a tick found, and it finds nothing.
async fn polls(name: &str, at: Location, rows: usize) {
    let store = &Store::open(&at).await.unwrap();
    fill(store, rows, Wall(NOON.0 + 3_600_000)).await;
    let worker = async move {
        let store = &Store::open(&at).await.unwrap();
        each(1000, |n| async move {
            if !store.tick(NOON, None).await.unwrap().lanes.is_empty() {
                store.claim(claim(100, n.into())).await.unwrap();
            }
        })
        .await
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let cost = tokio::task::spawn_blocking(move || runtime.block_on(worker)).await.unwrap();
    println!("{name} empty poll, {rows} scheduled {:.1?}, CPU of SQLite's writer {:.1?}", cost.0, cost.1);
    letters(store, rows).await;
    let window = PageWindow { after: None, limit: 50 };
    let page = each(20, |_| store.letters(LetterQuery::default(), window)).await;
    println!("{name} first page of {rows} letters {:.1?}", page.0);
}

#[tokio::main]
async fn main() {
    let rows = std::env::args().nth(1).map_or(1_000_000, |rows| rows.parse().expect("a number of rows"));
    let folder = tempfile::tempdir().expect("a folder for the databases");
    let what = std::env::args().nth(2);
    let wanted = |part: &str| what.as_deref().is_none_or(|what| what == part);
    let open = async |name: &str| Store::open(&Location::Sqlite(folder.path().join(name))).await.unwrap();
    if wanted("share") || wanted("sqlite") {
        share(&open("share.db").await, folder.path()).await;
    }
    if wanted("sqlite") {
        life(&open("life.db").await, 50_000).await;
        measure("sqlite", &open("work.db").await, rows, None).await;
        polls("sqlite", Location::Sqlite(folder.path().join("polls.db")), rows).await;
    }
    if wanted("postgres") || wanted("sweep") || wanted("polls") {
        let cluster = cluster::Cluster::start("-c shared_buffers=256MB -c max_wal_size=4GB");
        let fresh = async || Location::Postgres(cluster.database().await);
        let open = async || Store::open(&fresh().await).await.unwrap();
        if what.as_deref() == Some("sweep") {
            let store = open().await;
            fill(&store, rows, NOON).await;
            while claim_and_complete(&store, Duration::from_secs(600)).await > 0.0 {}
            return sweeps("postgres", &store).await;
        }
        if wanted("postgres") {
            measure("postgres", &open().await, rows, Some(&cluster)).await;
        }
        polls("postgres", fresh().await, rows).await;
    }
}
