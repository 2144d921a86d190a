//! The core's properties of whole calls, through the library's interface: with the policies, calls and results that the core's own tests
//! generate, many at once in simulated time.

#[expect(dead_code, reason = "a library's call cannot be put aside")]
#[path = "../../../seawall-core/tests/it/call/given.rs"]
mod given;

use given::{Fate, Job, Knobs, fates, jobs, knobs};
use http::{Method, Response, StatusCode};
use proptest::prelude::*;
use seawall_core::record::{Decision, ErrorKind};
use seawall_engine::{BreakerState, Class, Clock, Failure, Policies, Policy, Record};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Many more than any of these calls needs.
const MAX_POLLS: u32 = 20_000;

type Answer = Result<Response<()>, Failure<ErrorKind>>;

/// A finished call.
struct Ended {
    sends: u32,
    elapsed: Duration,
    /// `None` if the caller left.
    answer: Option<Answer>,
}

/// Counts from records; the hook runs inside the calls.
#[derive(Debug, Default)]
struct Heard {
    successes: u64,
    /// For each call, whether it has a funded retry that is not sent yet.
    paid: Vec<bool>,
}

struct World<'a> {
    clock: Clock,
    policy: Policy,
    fates: &'a [Fate],
    sent: Cell<usize>,
    /// Time, call and attempt number of each send.
    sends: RefCell<Vec<(u64, usize, u32)>>,
    hooked: bool,
    heard: Arc<Mutex<Heard>>,
    retries: Cell<u64>,
}

impl<'a> World<'a> {
    /// With a hook, every call uses the machine, and its records are collected; without one, some use the fast path.
    fn new(knobs: &Knobs, fates: &'a [Fate], seed: u64, hooked: bool) -> Self {
        let clock = Clock::simulated();
        let heard = Arc::new(Mutex::new(Heard { paid: vec![false; 64], ..Heard::default() }));
        let policies = Policies::from_toml(&knobs.toml()).unwrap_or_else(|error| panic!("{error}"));
        let mut policy = policies.get("api").unwrap().with_clock(clock.clone()).with_seed(seed);
        if hooked {
            let heard = Arc::clone(&heard);
            policy = policy.on_record(move |record| {
                let Record::Attempt(record) = record else { return };
                let mut heard = heard.lock().unwrap();
                heard.successes += u64::from(record.attempt.class == Class::Success);
                heard.paid[record.caller.parse::<usize>().unwrap()] = record.attempt.decision == Decision::Retry;
            });
        }
        Self { clock, policy, fates, sent: Cell::default(), sends: RefCell::default(), hooked, heard, retries: Cell::default() }
    }

    fn play(&self, jobs: &[Job]) -> Vec<Ended> {
        let ended: Vec<Cell<Option<Ended>>> = jobs.iter().map(|_| Cell::default()).collect();
        let mut running: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
        for (i, job) in jobs.iter().enumerate() {
            let ended = &ended[i];
            running.push(Box::pin(async move { ended.set(Some(self.run(i, job).await)) }));
        }
        let mut polls = 0;
        self.clock.run(poll_fn(|cx| {
            polls += 1;
            assert!(polls < MAX_POLLS, "the calls go round in circles");
            running.retain_mut(|job| job.as_mut().poll(cx).is_pending());
            if running.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        }));
        ended.iter().map(|ended| ended.take().expect("every call ends")).collect()
    }

    async fn run(&self, i: usize, job: &Job) -> Ended {
        self.clock.sleep(Duration::from_millis(job.start_ms)).await;
        let mut request = self.policy.request();
        if self.hooked {
            request = request.caller(&i.to_string());
        }
        // A call without terms is a GET.
        if job.method != "GET" {
            request = request.method(Method::from_bytes(job.method.as_bytes()).unwrap());
        }
        if job.keyed {
            request = request.idempotency_key("key");
        }
        if job.patient {
            request = request.patient();
        }
        if let Some(ms) = job.deadline_ms {
            request = request.deadline(Duration::from_millis(ms));
        }
        let (begun, sends) = (self.clock.now().mono, Cell::new(0));
        let call = request.responses().errors(|error: &ErrorKind| *error).call(|attempt| {
            assert_eq!(attempt.number(), sends.get() + 1, "sends are numbered");
            assert!(attempt.timeout() <= attempt.remaining());
            sends.set(attempt.number());
            self.sends.borrow_mut().push((self.clock.now().mono.0, i, attempt.number()));
            let paid = std::mem::take(&mut self.heard.lock().unwrap().paid[i]);
            self.retries.set(self.retries.get() + u64::from(paid && !job.patient));
            self.meet()
        });
        let leaves = async {
            match job.leaves {
                Some(pauses) => self.clock.sleep(Duration::from_millis(u64::from(pauses) * 130 + 1)).await,
                None => std::future::pending().await,
            }
        };
        let answer = tokio::select! {
            biased;
            answer = call => Some(answer),
            () = leaves => None,
        };
        Ended { sends: sends.get(), elapsed: Duration::from_nanos(self.clock.now().mono.since(begun).0), answer }
    }

    /// Returns the result of the next send.
    fn meet(&self) -> impl Future<Output = Result<Response<()>, ErrorKind>> + use<> {
        let fate = self.fates[self.sent.get() % self.fates.len()].clone();
        self.sent.set(self.sent.get() + 1);
        let clock = self.clock.clone();
        async move {
            clock.sleep(Duration::from_millis(fate.latency_ms)).await;
            let mut answer = Response::builder().status(fate.result?);
            for (name, value) in fate.headers {
                answer = answer.header(name, value);
            }
            Ok(answer.body(()).unwrap())
        }
    }
}

/// Returns whether a provider with this response may ask for a pause.
fn may_pause(fate: &Fate) -> bool {
    fate.result == Ok(429) || !fate.headers.is_empty()
}

/// Polls once and keeps the future.
fn begun<F: Future>(future: Pin<&mut F>) -> bool {
    future.poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_call_ends_within_its_attempts_and_its_deadline(
        knobs in knobs(), jobs in jobs(), fates in fates(), seed in any::<u64>(), hooked in any::<bool>(),
    ) {
        let world = World::new(&knobs, &fates, seed, hooked);
        for (job, ended) in jobs.iter().zip(world.play(&jobs)) {
            prop_assert!(ended.sends <= knobs.attempts, "{} sends", ended.sends);
            let total = if job.patient { Duration::MAX } else { Duration::from_millis(knobs.total_ms) };
            let total = job.deadline_ms.map_or(total, |own| total.min(Duration::from_millis(own)));
            prop_assert!(ended.elapsed <= total, "took {:?} of {total:?}", ended.elapsed);
            if let Some(Err(failure)) = ended.answer {
                prop_assert!(failure.elapsed() <= total);
                prop_assert_eq!(failure.attempts(), ended.sends);
                let told_to_come_back = failure.code().is_some() && failure.retry_after().is_some();
                prop_assert!(!(job.patient && told_to_come_back), "who is patient waits");
            }
        }
    }

    #[test]
    fn retries_are_paid_for_by_successes_and_the_floor(knobs in knobs(), jobs in jobs(), fates in fates(), seed in any::<u64>()) {
        let world = World::new(&knobs, &fates, seed, true);
        let _: Vec<Ended> = world.play(&jobs);
        // The floor begins with the amount of one second.
        let floor = f64::from(knobs.floor) * (world.clock.now().mono.0 as f64 / 1e9 + 1.0);
        let earned = world.heard.lock().unwrap().successes as f64 * f64::from(knobs.budget) / 100.0;
        prop_assert!(world.retries.get() as f64 <= earned + floor + 1e-6, "{} of {earned} and {floor}", world.retries.get());
    }

    #[test]
    fn whatever_calls_held_is_given_back(
        knobs in knobs(), jobs in jobs(), fates in fates(), seed in any::<u64>(), hooked in any::<bool>(),
    ) {
        let world = World::new(&knobs, &fates, seed, hooked);
        let _: Vec<Ended> = world.play(&jobs);
        let text = knobs.toml();
        if ["pool =", "limits =", "auth"].iter().any(|more| text.contains(more)) {
            // A day refills limits and restores breakers and keys, but returns no lost place.
            world.clock.advance(Duration::from_secs(86_400));
            let last = world.policy.request().caller("0").patient().deadline(Duration::from_secs(3 * 86_400));
            let answer = world.clock.run(last.call(|_| async { Ok::<_, StatusCode>(()) }));
            prop_assert_eq!(answer, Ok(()), "{}", text);
        } else if world.policy.breaker() == BreakerState::HalfOpen && !fates.iter().any(may_pause) {
            // After a pause request, the call would wait before it asks the breaker.
            let sent = Cell::new(0);
            let probe = || world.policy.request().caller("0").call(|_| {
                sent.set(sent.get() + 1);
                std::future::pending::<Result<(), StatusCode>>()
            });
            let (mut first, mut second) = (pin!(probe()), pin!(probe()));
            let (_, _) = (begun(first.as_mut()), begun(second.as_mut()));
            prop_assert_eq!(sent.get(), knobs.probes, "a probe's slot is lost, or there is one too many");
        }
    }

    #[test]
    fn the_same_seed_sends_the_same_whoever_listens(knobs in knobs(), jobs in jobs(), fates in fates(), seed in any::<u64>()) {
        let stories = [true, true, false].map(|hooked| {
            let world = World::new(&knobs, &fates, seed, hooked);
            let _: Vec<Ended> = world.play(&jobs);
            world.sends.into_inner()
        });
        prop_assert_eq!(&stories[0], &stories[1]);
        prop_assert_eq!(&stories[0], &stories[2]);
    }
}
