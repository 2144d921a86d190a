//! Resources of calls: places, probes and budget are released however a call ends, and clones share one policy.

use http::StatusCode;
use proptest::prelude::*;
use seawall_engine::{BreakerState, Clock, Code, Policy, Reason};
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

const DOWN: StatusCode = StatusCode::SERVICE_UNAVAILABLE;

fn simulated(text: &str) -> (Clock, Policy) {
    let clock = Clock::simulated();
    let policy = Policy::from_toml(text).unwrap_or_else(|error| panic!("{error}"));
    (clock.clone(), policy.with_clock(clock).with_seed(1))
}

/// Polls once and drops.
fn abandoned<F: Future>(future: F) {
    let polled = pin!(future).poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "it was to be left in the middle");
}

#[test]
fn clones_share_breaker_and_budget() {
    let (clock, policy) =
        simulated("[defaults]\nretry = { attempts = 1 }\nbreaker = { consecutive = 3, open = \"5s\", max_wait = \"0s\" }");
    for _ in 0..3 {
        let clone = policy.clone();
        clock.run(clone.call(|_| async { Err::<(), _>(DOWN) })).unwrap_err();
    }
    assert_eq!(policy.breaker(), BreakerState::Open);
    let failure = clock.run(policy.call(|_| async { Ok::<_, StatusCode>(()) })).unwrap_err();
    assert_eq!((failure.attempts(), failure.code(), failure.error()), (0, Some(Code::CircuitOpen), None));
    assert_eq!(failure.retry_after(), Some(Duration::from_secs(5)));
    assert_eq!(failure.to_string(), "not sent (circuit_open)");
}

#[test]
fn a_probe_that_is_dropped_leaves_its_place_to_the_next() {
    let (clock, policy) =
        simulated("[defaults]\nretry = { attempts = 1 }\nbreaker = { consecutive = 1, open = \"5s\", probes = 1, successes = 1 }");
    clock.run(policy.call(|_| async { Err::<(), _>(DOWN) })).unwrap_err();
    clock.advance(Duration::from_secs(5));
    abandoned(policy.call(|_| std::future::pending::<Result<(), StatusCode>>()));
    assert_eq!(policy.breaker(), BreakerState::HalfOpen);
    clock.run(policy.call(|_| async { Ok::<_, StatusCode>(()) })).unwrap();
    assert_eq!(policy.breaker(), BreakerState::Closed);
}

#[test]
fn a_place_in_the_pool_comes_back_when_a_call_or_its_wait_is_dropped() {
    let (clock, policy) = simulated("[pools.one]\nconcurrent = 1\nqueue = 1\n[defaults]\npool = \"one\"");
    let waker = Waker::noop();
    let mut cx = Context::from_waker(waker);
    let forever = || policy.call(|_| std::future::pending::<Result<(), StatusCode>>());
    {
        let mut first = pin!(forever());
        assert!(first.as_mut().poll(&mut cx).is_pending(), "it has the place");
        abandoned(forever());
        let mut second = pin!(policy.call(|_| async { Ok::<_, StatusCode>(2) }));
        assert!(second.as_mut().poll(&mut cx).is_pending(), "it waits in line");
        let refused = clock.run(policy.call(|_| async { Ok::<_, StatusCode>(3) })).unwrap_err();
        assert_eq!((refused.code(), refused.reason()), (Some(Code::Overloaded), Reason::PoolFull));
        first.set(forever());
        assert!(matches!(second.as_mut().poll(&mut cx), Poll::Ready(Ok(2))), "the place was handed down");
    }
    clock.run(policy.call(|_| async { Ok::<_, StatusCode>(4) })).unwrap();
}

#[test]
fn whoever_is_patient_leaves_the_pool_while_waiting() {
    let (clock, policy) = simulated(
        "[pools.one]\nconcurrent = 1\nqueue = 1\n[defaults]\npool = \"one\"\nretry = { base = \"9s\", backoff = \"exponential\" }",
    );
    let mut patient =
        pin!(policy.request().patient().call(|attempt| async move { if attempt.number() == 1 { Err(DOWN) } else { Ok(()) } }));
    assert!(patient.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "it waits for its second attempt");
    let other = clock.run(policy.request().deadline(Duration::from_secs(1)).call(|_| async { Ok::<_, StatusCode>(()) }));
    assert_eq!(other, Ok(()), "the place is free");
    assert_eq!(clock.run(patient), Ok(()), "and it finds one again");
}

#[test]
fn a_retry_that_was_paid_for_and_not_sent_is_refunded() {
    let text = "[defaults]\nretry = { attempts = 2, budget = \"100%\", budget_floor = \"0/s\", base = \"1s\" }\nbreaker.mode = \"off\"";
    let (clock, policy) = simulated(text);
    clock.run(policy.call(|_| async { Ok::<_, StatusCode>(()) })).unwrap();
    abandoned(policy.call(|_| async { Err::<(), _>(DOWN) }));
    let retried = clock.run(policy.call(|_| async { Err::<(), _>(DOWN) })).unwrap_err();
    assert_eq!(retried.attempts(), 2, "the success paid for one retry, and the dropped call did not use it");
    let denied = clock.run(policy.call(|_| async { Err::<(), _>(DOWN) })).unwrap_err();
    assert_eq!((denied.attempts(), denied.reason()), (1, Reason::BudgetExhausted));
}

#[test]
fn limits_are_shared_and_told_callers_apart() {
    let (clock, policy) = simulated("[defaults]\nlimits = [{ name = \"each\", key = [\"caller\"], rate = \"1/s\", burst = 1 }]");
    let ask = |name: &str| clock.run(policy.request().caller(name).call(|_| async { Ok::<_, StatusCode>(()) }));
    ask("a").unwrap();
    assert_eq!(ask("a").unwrap_err().code(), Some(Code::RateLimited));
    ask("b").unwrap();
    let waited = policy.request().caller("a").patient().call(|_| async { Ok::<_, StatusCode>(clock.now().mono) });
    assert_eq!(clock.run(waited).unwrap().0, 1_000_000_000, "whoever is patient waits for the next token");
}

#[test]
fn an_attempt_that_hangs_is_cut_off() {
    let (clock, policy) = simulated("[defaults]\ntimeout = { attempt = \"2s\", total = \"60s\" }\nretry = { attempts = 2, base = \"0s\" }");
    let failure = clock.run(policy.call(|_| std::future::pending::<Result<(), StatusCode>>())).unwrap_err();
    assert_eq!((failure.attempts(), failure.elapsed(), failure.error()), (2, Duration::from_secs(4), None));
}

#[tokio::test(start_paused = true)]
async fn in_tokios_paused_time_nothing_is_waited_for() {
    let (policy, begun) = (Policy::default(), tokio::time::Instant::now());
    let call = policy.call(|_| async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        Err::<(), _>(DOWN)
    });
    let failure = call.await.unwrap_err();
    assert!(failure.attempts() > 1 && failure.elapsed() >= Duration::from_secs(4), "{failure}");
    assert_eq!(failure.elapsed(), begun.elapsed(), "the policy's clock is the one that is paused");
}

#[test]
fn the_callers_deadline_shortens_ours() {
    let (clock, policy) = simulated("");
    let request = policy.request().deadline(Duration::from_secs(1));
    let failure = clock.run(request.call(|_| std::future::pending::<Result<(), StatusCode>>())).unwrap_err();
    assert!(failure.elapsed() <= Duration::from_secs(1), "{failure}");
}

#[test]
fn a_payment_goes_again_only_under_its_key() {
    let clock = Clock::simulated();
    let policy = Policy::profile("payment").unwrap().with_clock(clock.clone());
    let keys = Rc::new(Cell::new(Vec::new()));
    let reset = || std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    let call = policy.call(|attempt| {
        let mut all = keys.take();
        all.push(attempt.idempotency_key().unwrap().to_owned());
        keys.set(all);
        async move { Err::<(), _>(reset()) }
    });
    let failure = clock.run(call).unwrap_err();
    let keys = keys.take();
    assert!(failure.attempts() == 3 && keys.len() == 3 && keys[0] == keys[2], "{keys:?} {failure}");
}

#[test]
fn threads_and_tasks_share_one_policy() {
    let policy = Policy::from_toml("[defaults]\nretry = { base = \"1ms\", cap = \"2ms\" }").unwrap();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let policy = policy.clone();
            std::thread::spawn(move || policy.call_blocking(|attempt| if attempt.number() == 1 { Err(DOWN) } else { Ok(attempt.number()) }))
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap().unwrap(), 2);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let task = policy.clone();
    let spawned = runtime.spawn(async move { task.call(|_| async { Ok::<_, StatusCode>(()) }).await });
    runtime.block_on(spawned).unwrap().unwrap();
    let metrics = policy.metrics();
    assert!(metrics.contains("outcome=\"success\"} 5"), "{metrics}");
    assert!(metrics.contains("seawall_call_seconds_count{upstream=\"library\",endpoint=\"default\"} 5"), "{metrics}");
}

proptest! {
    /// However often a call is polled before it is dropped, it releases everything.
    #[test]
    fn dropping_a_call_at_any_moment_gives_everything_back(polls in 1usize..12, fails in any::<bool>(), millis in 0u64..400) {
        let text = "[pools.one]\nconcurrent = 1\nqueue = 1\n[defaults]\npool = \"one\"\n\
                    retry = { attempts = 3, base = \"100ms\", budget_floor = \"1/s\" }\n\
                    breaker = { consecutive = 1, open = \"1s\", probes = 1, successes = 1 }";
        let (clock, policy) = simulated(text);
        {
            let mut call = pin!(policy.call(|_| {
                let clock = clock.clone();
                async move {
                    clock.sleep(Duration::from_millis(millis)).await;
                    if fails { Err(DOWN) } else { Ok(()) }
                }
            }));
            for _ in 0..polls {
                if call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                    break;
                }
                clock.advance(Duration::from_millis(90));
            }
        }
        clock.advance(Duration::from_secs(10));
        let next = clock.run(policy.call(|_| async { Ok::<_, StatusCode>(()) }));
        prop_assert_eq!(next, Ok(()));
        prop_assert_eq!(policy.breaker(), BreakerState::Closed);
    }
}
