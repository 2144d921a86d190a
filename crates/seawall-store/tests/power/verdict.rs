//! Cuts the power at many points of a recording and checks the remaining files.

use crate::disk::{Disk, Image};
use crate::promises::{Found, Promises};
use crate::recording::{self, Event, NOTES, Op, Step};
use crate::workload::{ALL, COPIED, LONG_SNAPSHOT, NOON, PARTS, RESTORED, wish};
use seawall_core::admit::idempotency::ReserveAnswer;
use seawall_core::id::CallId;
use seawall_core::rng::Rng;
use seawall_store::Store;
use seawall_store::dead;
use seawall_store::job::{self, Job, JobState, NewJob};
use seawall_store::location::Location;
use seawall_store::page::{MAX_ENTRIES, PageWindow};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Default number of cuts, few enough for every test run.
const FEW: usize = 1000;
const THREADS: usize = 2;
/// Maximum errors that a failed test prints.
const TOLD: usize = 10;

fn number(name: &str, otherwise: usize) -> usize {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

/// Uses a memory file system if there is one: thousands of stores are synced, and none needs to be durable.
fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    tempfile::tempdir_in(place).unwrap()
}

#[test]
fn nothing_that_was_acknowledged_is_lost_with_the_power() {
    let (cuts, seed) = (number("SEAWALL_POWER_CUTS", FEW), number("SEAWALL_POWER_SEED", 1) as u64);
    let folder = folder();
    let recorded = recording::record(folder.path(), PARTS);
    let steps = recording::read(&recorded);
    everything_was_recorded(&steps, &folder.path().join("recorded"));
    let mut at = points(&steps, cuts, &mut Rng::seeded(seed));
    at.sort_unstable();
    let shares: Vec<Vec<(usize, u64)>> = at.chunks(cuts.div_ceil(THREADS).max(1)).map(<[_]>::to_vec).collect();
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let look = |share| scope.spawn(|| look_at(&steps, share, folder.path()));
        let looking: Vec<_> = shares.into_iter().map(look).collect();
        looking.into_iter().flat_map(|looking| looking.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{} of {cuts} cuts (seed {seed}):\n{}", wrong.len(), wrong[..wrong.len().min(TOLD)].join("\n"));
}

/// After an interrupted restore, the database is the old one, or the copy, or refused; never a mixture.
#[test]
fn a_restore_that_is_cut_short_leaves_one_database_or_the_other() {
    const TIMES: u64 = 12;
    let folder = folder();
    let recorded = recording::record(folder.path(), RESTORED);
    let steps = recording::read(&recorded);
    everything_was_recorded(&steps, &folder.path().join("recorded"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut disk, mut promises, mut found) = (Disk::default(), Promises::default(), BTreeSet::new());
    for (at, step) in steps.iter().enumerate() {
        match step {
            Step::Disk(event) => disk.apply(event),
            Step::Note(note) => promises.note(note),
        }
        // Before the restore starts, it is an ordinary store.
        let may_be = |state: &str| promises.may_be("restore", "copy", state);
        if may_be("absent") {
            continue;
        }
        for time in 0..TIMES {
            let mut rng = Rng::seeded(at as u64 * TIMES + time);
            let left = Left { files: disk.lose(&mut rng), folder: folder.path().join(format!("{at}-{time}")) };
            let seen = runtime.block_on(left.look_at_restore());
            std::fs::remove_dir_all(&left.folder).unwrap();
            let is_right = match seen {
                Restored::Refused | Restored::WithoutItsLog => !promises.is_surely("restore", "copy", "done"),
                Restored::Jobs(ALL) => may_be("no"),
                Restored::Jobs(COPIED) => may_be("done"),
                Restored::Jobs(_) => false,
            };
            assert!(is_right, "step {at}, time {time}: {seen:?}");
            found.insert(seen);
        }
    }
    assert!(found.contains(&Restored::Jobs(ALL)) && found.contains(&Restored::Jobs(COPIED)), "{found:?}");
}

/// The state after an interrupted restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Restored {
    Refused,
    /// It opens and reports a missing log.
    WithoutItsLog,
    Jobs(usize),
}

/// Selects cut points, each with another random loss: a third of them near the rare steps that are no plain writes.
fn points(steps: &[Step<'_>], cuts: usize, rng: &mut Rng) -> Vec<(usize, u64)> {
    const NEAR: usize = 8;
    let is_rare = |step: &Step<'_>| match step {
        Step::Disk(Event::Change { op, .. }) => matches!(op, Op::Truncate(_)),
        Step::Disk(Event::SyncBegins { file, .. } | Event::SyncEnds { file, .. }) => file.is_none(),
        Step::Disk(Event::Create { .. } | Event::Unlink(_) | Event::Rename(..)) => true,
        Step::Note(_) => false,
    };
    let rare: Vec<usize> = (0..steps.len()).filter(|step| is_rare(&steps[*step])).collect();
    let mut below = |bound: usize| usize::try_from(rng.draw() % bound as u64).unwrap();
    let mut cut = |number: usize| match number % 3 {
        0 => (rare[below(rare.len())] + 1 + below(2 * NEAR)).saturating_sub(NEAR).min(steps.len()),
        _ => below(steps.len() + 1),
    };
    let at: Vec<usize> = (0..cuts).map(&mut cut).collect();
    at.into_iter().map(|at| (at, rng.draw())).collect()
}

/// Checks that the recording leads to the actual files, so that no operation was missed.
fn everything_was_recorded(steps: &[Step<'_>], recorded: &Path) {
    let mut disk = Disk::default();
    for step in steps {
        if let Step::Disk(event) = step {
            disk.apply(event);
        }
    }
    let seen = disk.seen();
    let there: BTreeSet<String> = recorded.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let named: BTreeSet<String> = seen.keys().cloned().chain([NOTES.to_owned()]).collect();
    assert_eq!(there, named);
    for (name, image) in seen.iter().filter(|(name, _)| !name.ends_with("-shm")) {
        let file = Image::of(&std::fs::read(recorded.join(name)).unwrap());
        assert!(image.same_as(&file), "{name} is not as it was recorded");
    }
}

/// Cuts at each of these steps, which are in order. Returns the errors.
fn look_at(steps: &[Step<'_>], cuts: Vec<(usize, u64)>, folder: &Path) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut disk, mut promises, mut done, mut wrong) = (Disk::default(), Promises::default(), 0, Vec::new());
    for (at, seed) in cuts {
        for step in &steps[done..at] {
            match step {
                Step::Disk(event) => disk.apply(event),
                Step::Note(note) => promises.note(note),
            }
        }
        done = at;
        let mut rng = Rng::seeded(seed);
        let left = Left { files: disk.lose(&mut rng), folder: folder.join(format!("{at}-{seed}")) };
        let looked = runtime.block_on(left.look(&promises, &mut rng));
        std::fs::remove_dir_all(&left.folder).unwrap();
        wrong.extend(looked.err().map(|why| format!("step {at}, {seed}: {why}")));
    }
    wrong
}

/// The disk after the power cut.
struct Left {
    files: BTreeMap<String, Image>,
    folder: PathBuf,
}

impl Left {
    async fn look_at_restore(&self) -> Restored {
        std::fs::create_dir(&self.folder).unwrap();
        for (name, image) in &self.files {
            image.store(&self.folder.join(name));
        }
        let database = self.folder.join("seawall.db");
        let Ok(store) = Store::open(&Location::Sqlite(database.clone())).await else { return Restored::Refused };
        if store.lost_its_log() {
            return Restored::WithoutItsLog;
        }
        let jobs = store.jobs(job::JobFilter::default(), PageWindow { after: None, limit: MAX_ENTRIES }).await.unwrap().entries;
        assert_eq!(Store::check(&database), Ok(()));
        Restored::Jobs(jobs.len())
    }

    async fn look(&self, promises: &Promises, rng: &mut Rng) -> Result<(), String> {
        std::fs::create_dir(&self.folder).unwrap();
        let database = self.folder.join("seawall.db");
        for (name, image) in &self.files {
            // After a clean close, the database file is complete without the log.
            if !(name.ends_with("-wal") && promises.is_surely("closed", "all", "yes") && rng.up_to(1) == 0) {
                image.store(&self.folder.join(name));
            }
        }
        // It is never synced, so it may contain anything.
        if rng.up_to(1) == 0 {
            std::fs::write(self.folder.join("seawall.db-shm"), vec![0xA5; 32768]).unwrap();
        }
        let store = Store::open(&Location::Sqlite(database.clone())).await.map_err(|error| format!("it is refused: {error}"))?;
        if store.lost_its_log() {
            return Err("it is said to have lost its log".to_owned());
        }
        let wrong = promises.broken_by(&found(&store, promises).await);
        if !wrong.is_empty() {
            return Err(wrong[..wrong.len().min(TOLD)].join("; "));
        }
        go_on(&store).await.map_err(|error| format!("it cannot be used: {error}"))?;
        Store::check(&database).map_err(|error| format!("it is damaged: {error}"))
    }
}

/// Returns the state found, in the terms of the notes.
async fn found(store: &Store, promises: &Promises) -> Found {
    // Recovers the claims of lost workers.
    store.tick(NOON, None).await.unwrap();
    let mut found = Found::new();
    let mut add = |what: &str, which: String, state: String| drop(found.insert((what.to_owned(), which), state));
    let mut window = PageWindow { after: None, limit: MAX_ENTRIES };
    loop {
        let page = store.jobs(job::JobFilter::default(), window).await.unwrap();
        page.entries.iter().for_each(|job| add("job", job.id.to_string(), state(job)));
        window.after = page.next;
        if window.after.is_none() {
            break;
        }
    }
    let letters = store.letters(dead::LetterQuery::default(), window).await.unwrap();
    assert!(letters.next.is_none(), "all are on one page");
    letters.entries.iter().for_each(|letter| add("letter", letter.letter.id.to_string(), "kept".to_owned()));
    for subject in store.subjects(None, None, MAX_ENTRIES).await.unwrap() {
        add("subject", subject.subject.clone(), subject.next_at.0.to_string());
        if let Some(at) = subject.last_ok_at {
            add("ok", subject.subject, at.0.to_string());
        }
    }
    for name in ["short", "long"].map(str::to_owned) {
        if let Some((_, content)) = store.snapshot(name.clone()).await.unwrap() {
            let text = String::from_utf8_lossy(&content);
            let (version, rest) = text.split_once('-').unwrap_or((&text, ""));
            let whole = [0, LONG_SNAPSHOT].contains(&rest.len());
            add("snapshot", name, if whole { version.to_owned() } else { text.clone().into_owned() });
        }
    }
    for name in promises.all("key") {
        let reserved = store.reserve_key(wish(&name)).await.unwrap();
        match reserved.answer {
            ReserveAnswer::Proceed { .. } => {}
            ReserveAnswer::InFlight { .. } => add("key", name, "held".to_owned()),
            ReserveAnswer::Replay if reserved.stored.is_some_and(|stored| stored.body == name.as_bytes()) => {
                add("key", name, "done".to_owned())
            }
            other => add("key", name, format!("{other:?}")),
        }
    }
    found
}

fn state(job: &Job) -> String {
    match job.state {
        JobState::Queued | JobState::Waiting if job.begun_at.is_some() => format!("begun-{}", job.progress.attempts),
        JobState::Queued | JobState::Waiting => format!("open-{}", job.progress.attempts),
        over => over.as_str().to_owned(),
    }
}

/// Checks that a new job is accepted.
async fn go_on(store: &Store) -> Result<(), seawall_store::Error> {
    let job = NewJob {
        id: CallId::first_at(NOON),
        upstream: "next".to_owned(),
        tenant: String::new(),
        caller: String::new(),
        priority: 0,
        request: job::JobRequest::default(),
        idempotency_key: None,
        dedup: None,
        fingerprint: [1; 32],
        correlation_id: None,
        callback: None,
        run_at: NOON,
        expires_at: None,
        origin: job::JobOrigin::Caller,
        progress: seawall_core::decide::CallProgress::default(),
        history: Vec::new(),
    };
    store.enqueue(vec![job], NOON).await.map(drop)
}
