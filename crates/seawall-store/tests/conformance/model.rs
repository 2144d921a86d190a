//! Random histories against a simple model: no acknowledged job is lost, none ends twice, and no two workers hold the same job.

use crate::dead::letter;
use crate::stage::{LEASE, NOON, Stage, ok, settlement};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use seawall_core::id::CallId;
use seawall_core::time::Wall;
use seawall_store::dead::{LetterStatus, NewLetter};
use seawall_store::job::{
    Cancelled, Claimed, Enqueued, JobEnding, JobLease, JobOrigin, JobState, NewJob, Renewed, SUSPECT, SettleJob, Settled,
};
use seawall_store::replay::Stepped;
use std::collections::BTreeMap;

/// Numbers select among the existing items, by remainder.
#[derive(Clone, Debug)]
enum Op {
    Enqueue {
        lane: u8,
        tenant: u8,
        delay_s: u8,
        key: Option<u8>,
        priority: u8,
    },
    Claim {
        lane: u8,
        most: u8,
    },
    Ok(u8),
    Fail {
        which: u8,
        delay_s: u8,
    },
    GiveUp(u8),
    Release(u8),
    /// The worker disappears, and returns later with its old lease.
    Crash(u8),
    Zombie(u8),
    /// All workers disappear for longer than a lease, and others take over; too rare by chance alone.
    Vanish,
    Renew(u8),
    Step(i32),
    Tick,
    Restart,
    Replay(u8),
    Expire,
    Cancel(u8),
}

fn op() -> impl Strategy<Value = Op> {
    let any = any::<u8>;
    prop_oneof![
        6 => (0..2u8, 0..3u8, 0..4u8, proptest::option::weighted(0.3, 0..4u8), 0..2u8)
            .prop_map(|(lane, tenant, delay, key, priority)| Op::Enqueue { lane, tenant, delay_s: delay * 10, key, priority }),
        5 => (0..2u8, 1..6u8).prop_map(|(lane, most)| Op::Claim { lane, most }),
        3 => any().prop_map(Op::Ok),
        2 => (any(), 0..30u8).prop_map(|(which, delay_s)| Op::Fail { which, delay_s }),
        2 => any().prop_map(Op::GiveUp),
        1 => any().prop_map(Op::Release),
        2 => any().prop_map(Op::Crash),
        3 => any().prop_map(Op::Zombie),
        2 => Just(Op::Vanish),
        1 => any().prop_map(Op::Renew),
        2 => (0..60i32).prop_map(Op::Step),
        1 => (-21_600..21_600i32).prop_map(Op::Step),
        3 => Just(Op::Tick),
        1 => Just(Op::Restart),
        2 => any().prop_map(Op::Replay),
        1 => Just(Op::Expire),
        2 => any().prop_map(Op::Cancel),
    ]
}

struct Job {
    lane: String,
    priority: i64,
    state: JobState,
    due: Wall,
    lease: Option<(JobLease, Wall)>,
    cancel: bool,
    attempts: u32,
    crashes: u32,
    key: Option<u8>,
    /// The letter that it replays.
    letter: Option<CallId>,
}

struct World {
    stage: Stage,
    now: Wall,
    jobs: BTreeMap<CallId, Job>,
    letters: BTreeMap<CallId, (LetterStatus, Wall)>,
    /// Claims held by workers, and by workers that were away for a while.
    held: Vec<Claimed>,
    zombies: Vec<Claimed>,
    expired: usize,
}

fn pick<T>(from: &mut Vec<T>, which: u8) -> Option<T> {
    if from.is_empty() { None } else { Some(from.remove(usize::from(which) % from.len())) }
}

impl World {
    async fn enqueue(&mut self, lane: u8, tenant: u8, delay_s: u8, key: Option<u8>, priority: u8) {
        let run_at = Wall(self.now.0 + i64::from(delay_s) * 1000);
        let job = NewJob {
            id: self.stage.id(self.now),
            tenant: format!("t{tenant}"),
            run_at,
            dedup: key.map(|key| [key; 32]),
            priority: priority.into(),
            ..self.stage.job(&format!("lane{lane}"))
        };
        let known = self.jobs.iter().find(|(_, job)| key.is_some() && job.key == key).map(|(id, job)| (*id, job.state));
        let expected = known.map_or(Enqueued::New(job.id), |(id, state)| Enqueued::Known(id, state));
        let (id, now) = (job.id, self.now);
        assert_eq!(self.stage.store.enqueue(vec![job], now).await.unwrap(), [expected]);
        if known.is_none() {
            self.add(id, format!("lane{lane}"), priority.into(), run_at, key, None);
        }
    }

    fn add(&mut self, id: CallId, lane: String, priority: i64, run_at: Wall, key: Option<u8>, letter: Option<CallId>) {
        let state = if run_at > self.now { JobState::Waiting } else { JobState::Queued };
        let job = Job { lane, priority, state, due: run_at, lease: None, cancel: false, attempts: 0, crashes: 0, key, letter };
        self.jobs.insert(id, job);
    }

    async fn claim(&mut self, lane: u8, most: u8) {
        let lane = format!("lane{lane}");
        let mut queued: Vec<i64> =
            self.jobs.values().filter(|job| job.state == JobState::Queued && job.lane == lane).map(|job| -job.priority).collect();
        queued.sort_unstable();
        queued.truncate(most.into());
        let claimed = self.stage.claim_at(&lane, most.into(), self.now).await;
        assert_eq!(claimed.iter().map(|claimed| -claimed.job.priority).collect::<Vec<_>>(), queued, "the most urgent, and as many");
        for one in claimed {
            let job = self.jobs.get_mut(&one.job.id).expect("nobody else makes jobs");
            assert_eq!((job.state, &job.lane), (JobState::Queued, &lane), "one live lease for each job");
            assert_eq!((one.job.progress.attempts, one.job.crashes), (job.attempts, job.crashes));
            job.state = JobState::Running;
            job.lease = Some((one.lease, self.now + LEASE));
            self.held.push(one);
        }
    }

    /// Returns whether the lease still holds in the model.
    fn holds(&self, claimed: &Claimed) -> bool {
        let job = &self.jobs[&claimed.job.id];
        job.state == JobState::Running && job.lease.is_some_and(|(lease, _)| lease == claimed.lease)
    }

    async fn settle(&mut self, mut claimed: Claimed, ending: JobEnding) {
        let (holds, now) = (self.holds(&claimed), self.now);
        claimed.job.progress.attempts += 1;
        let settle = SettleJob { now, ..settlement(&claimed, ending.clone()) };
        let settled = self.stage.store.settle(settle).await.unwrap();
        if !holds {
            assert_eq!(settled, Settled::Lost);
            return;
        }
        let id = claimed.job.id;
        let job = self.jobs.get_mut(&id).expect("it was claimed");
        assert!(claimed.job.progress.attempts > job.attempts, "attempts only grow");
        job.attempts = claimed.job.progress.attempts;
        job.lease = None;
        job.state = match &ending {
            JobEnding::Wait { .. } | JobEnding::Release if job.cancel => JobState::Cancelled,
            JobEnding::Wait { until, .. } if *until > now => JobState::Waiting,
            JobEnding::Wait { .. } | JobEnding::Release => JobState::Queued,
            JobEnding::Done(_) => JobState::Done,
            JobEnding::Dead(_) | JobEnding::Failed { .. } => JobState::Dead,
            JobEnding::Cancelled => JobState::Cancelled,
        };
        if let JobEnding::Wait { until, .. } = ending {
            job.due = until;
        }
        assert_eq!(settled, if job.state == JobState::Cancelled { Settled::Cancelled } else { Settled::Kept });
        if matches!(job.state, JobState::Dead | JobState::Cancelled) {
            job.key = None;
        }
        let (state, letter) = (job.state, job.letter);
        self.ended(id, state, letter, &ending);
    }

    /// Applies the end of a job to letters.
    fn ended(&mut self, id: CallId, state: JobState, letter: Option<CallId>, ending: &JobEnding) {
        match (state, letter) {
            (JobState::Done, Some(letter)) => self.letters.get_mut(&letter).expect("kept").0 = LetterStatus::Replayed,
            (JobState::Cancelled, Some(letter)) => self.letters.get_mut(&letter).expect("kept").0 = LetterStatus::Kept,
            (JobState::Dead, letter) => {
                let JobEnding::Dead(new) = ending else { panic!("only giving up makes a job dead") };
                self.letters.insert(letter.unwrap_or(id), (LetterStatus::Kept, new.expires_at));
            }
            _ => {}
        }
    }

    async fn tick(&mut self) {
        let (now, mut recovered, mut due) = (self.now, 0, 0);
        for job in self.jobs.values_mut() {
            if job.state == JobState::Running && job.lease.is_some_and(|(_, until)| until <= now) {
                (job.state, job.lease) = (JobState::Queued, None);
                job.crashes = (job.crashes + 1).min(SUSPECT);
                recovered += 1;
            } else if job.state == JobState::Waiting && job.due <= now {
                job.state = JobState::Queued;
                due += 1;
            }
        }
        let tick = self.stage.store.tick(now, None).await.unwrap();
        assert_eq!((tick.recovered, tick.due), (recovered, due));
        let mut lanes: Vec<String> = self.jobs.values().filter(|job| job.state == JobState::Queued).map(|job| job.lane.clone()).collect();
        lanes.sort();
        lanes.dedup();
        assert_eq!(tick.lanes, lanes);
        assert_eq!(tick.next, self.jobs.values().filter(|job| job.state == JobState::Waiting).map(|job| job.due).min());
    }

    async fn renew(&mut self, which: u8) {
        let Some(claimed) = pick(&mut self.held, which) else { return };
        let until = self.now + LEASE;
        let renewed = self.stage.store.renew(vec![claimed.lease], until).await.unwrap();
        let holds = self.holds(&claimed);
        let job = self.jobs.get_mut(&claimed.job.id).expect("it was claimed");
        let expected = match (holds, job.cancel) {
            (false, _) => Renewed::Lost,
            (true, true) => Renewed::Cancelling,
            (true, false) => Renewed::Held,
        };
        assert_eq!(renewed, [expected]);
        if holds {
            job.lease = Some((claimed.lease, until));
            self.held.push(claimed);
        }
    }

    async fn replay(&mut self, which: u8) {
        let ids: Vec<CallId> = self.letters.keys().copied().collect();
        let Some(letter) = ids.get(usize::from(which) % ids.len().max(1)).copied() else { return };
        let job =
            NewJob { id: self.stage.id(self.now), origin: JobOrigin::Replay { letter: letter.to_string() }, ..self.stage.job("lane0") };
        let (id, run_at, priority) = (job.id, job.run_at, job.priority);
        let stepped = self.stage.replay_at(letter, job, self.now).await;
        match self.letters[&letter].0 {
            LetterStatus::Kept => {
                assert_eq!(stepped, Stepped::Started(id));
                self.letters.get_mut(&letter).expect("kept").0 = LetterStatus::Replaying;
                self.add(id, "lane0".to_owned(), priority, run_at, None, Some(letter));
            }
            LetterStatus::Replaying | LetterStatus::Replayed => assert_eq!(stepped, Stepped::HeldBack),
        }
    }

    async fn expire(&mut self) {
        let now = self.now;
        let gone = |status: LetterStatus, at: Wall| status != LetterStatus::Replaying && at <= now;
        let all = self.letters.values().filter(|(status, at)| gone(*status, *at)).count();
        let expected = self.letters.values().filter(|(status, at)| gone(*status, *at) && *status == LetterStatus::Kept).count();
        self.letters.retain(|_, (status, at)| !gone(*status, *at));
        let expired = self.stage.store.expire_letters(now, 1000).await.unwrap();
        assert_eq!((expired.gone, expired.unheeded.len()), (all, expected));
        self.expired += expected;
    }

    async fn cancel(&mut self, which: u8) {
        let ids: Vec<CallId> = self.jobs.keys().copied().collect();
        let Some(id) = ids.get(usize::from(which) % ids.len().max(1)).copied() else { return };
        let cancelled = self.stage.store.cancel(id, self.now).await.unwrap();
        let job = self.jobs.get_mut(&id).expect("listed");
        match job.state {
            JobState::Queued | JobState::Waiting => {
                assert_eq!(cancelled, Cancelled::Now);
                (job.state, job.key) = (JobState::Cancelled, None);
                let letter = job.letter;
                self.ended(id, JobState::Cancelled, letter, &JobEnding::Cancelled);
            }
            JobState::Running => {
                assert_eq!(cancelled, Cancelled::Asked);
                job.cancel = true;
            }
            over => assert_eq!(cancelled, Cancelled::Over(over)),
        }
    }

    fn obituary(&self, id: CallId) -> JobEnding {
        let new = letter(&self.stage, self.now);
        JobEnding::Dead(Box::new(NewLetter { id, ..new }))
    }

    async fn apply(&mut self, op: Op) {
        match op {
            Op::Enqueue { lane, tenant, delay_s, key, priority } => self.enqueue(lane, tenant, delay_s, key, priority).await,
            Op::Claim { lane, most } => self.claim(lane, most).await,
            Op::Ok(which) => {
                if let Some(claimed) = pick(&mut self.held, which) {
                    self.settle(claimed, ok()).await;
                }
            }
            Op::Fail { which, delay_s } => {
                if let Some(claimed) = pick(&mut self.held, which) {
                    let until = Wall(self.now.0 + i64::from(delay_s) * 1000);
                    self.settle(claimed, JobEnding::Wait { until, reason: "transient_failure" }).await;
                }
            }
            Op::GiveUp(which) => {
                if let Some(claimed) = pick(&mut self.held, which) {
                    let ending = self.obituary(claimed.job.id);
                    self.settle(claimed, ending).await;
                }
            }
            Op::Release(which) => {
                if let Some(claimed) = pick(&mut self.held, which) {
                    self.settle(claimed, JobEnding::Release).await;
                }
            }
            Op::Crash(which) => self.zombies.extend(pick(&mut self.held, which)),
            Op::Zombie(which) => {
                if let Some(claimed) = pick(&mut self.zombies, which) {
                    self.settle(claimed, ok()).await;
                }
            }
            Op::Vanish => {
                self.zombies.append(&mut self.held);
                self.now = self.now + LEASE;
                self.tick().await;
                self.claim(0, 5).await;
                self.claim(1, 5).await;
            }
            Op::Renew(which) => self.renew(which).await,
            Op::Step(seconds) => self.now = Wall((self.now.0 + i64::from(seconds) * 1000).max(NOON.0)),
            Op::Tick => self.tick().await,
            Op::Restart => self.stage.store = self.stage.open_again().await,
            Op::Replay(which) => self.replay(which).await,
            Op::Expire => self.expire().await,
            Op::Cancel(which) => self.cancel(which).await,
        }
    }

    /// Compares the store with the model, job by job and in total.
    async fn check(&self) {
        let mut by_state = [0; 6];
        for (id, job) in &self.jobs {
            let found = self.stage.store.job(*id).await.unwrap().expect("what was acknowledged is there");
            assert_eq!((found.state, found.crashes), (job.state, job.crashes), "{id}");
            assert_eq!(found.progress.attempts, job.attempts, "{id}");
            by_state[job.state as usize] += 1;
        }
        assert_eq!(self.stage.store.job_counts().await.unwrap().by_state, by_state);
        for (id, (status, _)) in &self.letters {
            assert_eq!(self.stage.store.letter(*id).await.unwrap().expect("a letter is kept").status, *status);
        }
        let open = self.letters.values().filter(|(status, _)| *status == LetterStatus::Kept).count();
        let depths = self.stage.store.depths().await.unwrap();
        assert_eq!(depths.iter().map(|depth| depth.open).sum::<u64>(), open as u64);
    }
}

async fn run(stage: Stage, ops: Vec<Op>) {
    let (jobs, letters) = (BTreeMap::new(), BTreeMap::new());
    let mut world = World { stage, now: NOON, jobs, letters, held: Vec::new(), zombies: Vec::new(), expired: 0 };
    for op in ops {
        world.apply(op).await;
    }
    world.check().await;
}

fn histories(cases: u32, stage: impl AsyncFn() -> Stage) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut runner = TestRunner::new(Config { cases, ..Config::with_source_file(file!()) });
    let told = runner.run(&proptest::collection::vec(op(), 1..120), |ops| {
        runtime.block_on(async { run(stage().await, ops).await });
        Ok(())
    });
    if let Err(error) = told {
        panic!("{error}");
    }
}

#[test]
fn any_history_agrees_with_the_model_on_sqlite() {
    histories(48, Stage::sqlite);
}

#[test]
fn any_history_agrees_with_the_model_on_postgres() {
    histories(20, Stage::postgres);
}
