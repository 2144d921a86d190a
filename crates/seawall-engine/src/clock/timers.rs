//! Sleepers outside of any runtime: a manual poll loop wakes them, on the machine's clock or on a simulated one. So a plain thread can run
//! a call, and ten minutes pass in a millisecond.

use crate::locked_cell::Locked;
use seawall_core::time::Mono;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

/// Sleepers, ordered by wake-up time.
#[derive(Debug)]
pub(crate) struct Timers {
    /// The simulated time, if any.
    simulated: Option<AtomicU64>,
    sleepers: Locked<Sleepers>,
}

#[derive(Debug, Default)]
struct Sleepers {
    next: u64,
    waiting: BTreeMap<(Mono, u64), Waker>,
}

impl Timers {
    pub(crate) const fn simulated() -> Self {
        Self { simulated: Some(AtomicU64::new(0)), sleepers: Locked::new(Sleepers { next: 0, waiting: BTreeMap::new() }) }
    }

    pub(crate) const fn real() -> Self {
        Self { simulated: None, sleepers: Locked::new(Sleepers { next: 0, waiting: BTreeMap::new() }) }
    }

    /// Returns the simulated time; `None` with the machine's clock.
    #[inline]
    pub(crate) fn now(&self) -> Option<Mono> {
        self.simulated.as_ref().map(|now| Mono(now.load(Ordering::Acquire)))
    }

    /// Advances simulated time, never back, and wakes due sleepers.
    pub(crate) fn advance_to(&self, at: Mono) {
        if let Some(now) = &self.simulated {
            now.fetch_max(at.0, Ordering::AcqRel);
        }
        self.wake_due(at);
    }

    fn wake_due(&self, now: Mono) {
        let later = {
            let mut sleepers = self.sleepers.lock();
            let later = sleepers.waiting.split_off(&(Mono(now.0.saturating_add(1)), 0));
            std::mem::replace(&mut sleepers.waiting, later)
        };
        later.into_values().for_each(Waker::wake);
    }

    fn earliest(&self) -> Option<Mono> {
        self.sleepers.lock().waiting.keys().next().map(|(at, _)| *at)
    }

    /// Polls a future to its end on this thread. While it waits, simulated time jumps to the next sleeper; with the machine's clock the
    /// thread parks until then.
    pub(crate) fn run<F: Future>(&self, future: F, now: impl Fn() -> Mono) -> F::Output {
        let woken = Arc::new(Woken { thread: std::thread::current(), flag: AtomicBool::new(false) });
        let waker = Waker::from(Arc::clone(&woken));
        let mut future = std::pin::pin!(future);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return output;
            }
            // No wake-up is lost: it sets the flag before it unparks, `park` returns at once after an `unpark`, and the flag is read again.
            while !woken.flag.swap(false, Ordering::AcqRel) {
                match (self.earliest(), &self.simulated) {
                    (Some(at), Some(_)) => self.advance_to(at),
                    (Some(at), None) => {
                        std::thread::park_timeout(Duration::from_nanos(at.since(now()).0));
                        self.wake_due(now());
                    }
                    // No sleeper: another thread will wake this one.
                    (None, _) => std::thread::park(),
                }
            }
        }
    }
}

struct Woken {
    thread: Thread,
    flag: AtomicBool,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.flag.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Completes at its time. Dropping it removes it from the list.
#[derive(Debug)]
pub(crate) struct Sleep<'a, N> {
    timers: &'a Timers,
    now: N,
    until: Mono,
    place: Option<u64>,
}

impl<'a, N: Fn() -> Mono + Unpin> Sleep<'a, N> {
    pub(crate) const fn new(timers: &'a Timers, until: Mono, now: N) -> Self {
        Self { timers, now, until, place: None }
    }
}

impl<N: Fn() -> Mono + Unpin> Future for Sleep<'_, N> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if (self.now)() >= self.until {
            return Poll::Ready(());
        }
        let mut sleepers = self.timers.sleepers.lock();
        let place = self.place.unwrap_or(sleepers.next);
        sleepers.next = sleepers.next.max(place + 1);
        sleepers.waiting.insert((self.until, place), cx.waker().clone());
        drop(sleepers);
        self.place = Some(place);
        Poll::Pending
    }
}

impl<N> Drop for Sleep<'_, N> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.timers.sleepers.lock().waiting.remove(&(self.until, place));
        }
    }
}
