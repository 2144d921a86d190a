//! Deadlines of the attempts of one thread. One timer for the earliest replaces a timer per attempt: most attempts end long before their
//! deadline, and setting and cancelling a timer costs more than noting the time.

use crate::clock::Clock;
use seawall_core::time::Mono;
use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use tokio::sync::Notify;

/// The deadlines of one thread. With tokio's clock it needs a surrounding `LocalSet`.
#[derive(Clone, Debug, Default)]
pub struct Deadlines(Rc<SharedDeadlines>);

#[derive(Debug, Default)]
struct SharedDeadlines {
    waiting: RefCell<DeadlineList>,
    /// The timer must fire earlier.
    hurry: Notify,
}

/// An unordered list: due entries are searched when the timer fires, which is rare.
#[derive(Debug, Default)]
struct DeadlineList {
    all: Vec<DeadlineEntry>,
    free: Vec<usize>,
    /// The time of the timer, if it is set. Its entry may be gone already.
    timer: Option<Mono>,
}

#[derive(Debug)]
enum DeadlineEntry {
    Free,
    Waiting(Mono, Waker),
    Due,
}

/// Capacity that is kept when the list is empty.
const KEPT: usize = 1024;

impl Deadlines {
    /// Returns the future's output, or nothing if it takes longer than `until`. Never ends it early.
    pub(crate) const fn within<'a, F>(&'a self, clock: &'a Clock, until: Mono, future: F) -> Within<'a, F> {
        Within { place: DeadlineSlot { deadlines: self, until, number: None, alone: None }, clock, future }
    }

    fn add(&self, clock: &Clock, until: Mono, waker: Waker) -> usize {
        let mut waiting = self.0.waiting.borrow_mut();
        let slot = DeadlineEntry::Waiting(until, waker);
        let number = match waiting.free.pop() {
            Some(free) => {
                waiting.all[free] = slot;
                free
            }
            None => {
                waiting.all.push(slot);
                waiting.all.len() - 1
            }
        };
        let earlier = waiting.timer.is_none_or(|timer| until < timer);
        let had = if earlier { waiting.timer.replace(until) } else { None };
        drop(waiting);
        match (earlier, had) {
            (false, _) => {}
            // `notify_one` stores a permit, so the timer task also sees it if it is not waiting right now.
            (true, Some(_)) => self.0.hurry.notify_one(),
            (true, None) => drop(tokio::task::spawn_local(self.clone().keep(clock.clone()))),
        }
        number
    }

    /// Waits for the earliest deadline, until there is none.
    async fn keep(self, clock: Clock) {
        loop {
            let Some(timer) = self.0.waiting.borrow().timer else { return };
            tokio::select! {
                () = clock.sleep_until(timer) => self.wake(clock.now().mono),
                () = self.0.hurry.notified() => {}
            }
        }
    }

    fn wake(&self, now: Mono) {
        let mut waiting = self.0.waiting.borrow_mut();
        let (mut due, mut earliest) = (Vec::new(), None);
        for slot in &mut waiting.all {
            match slot {
                DeadlineEntry::Waiting(until, _) if *until <= now => due.push(std::mem::replace(slot, DeadlineEntry::Due)),
                DeadlineEntry::Waiting(until, _) => earliest = Some(earliest.map_or(*until, |earlier: Mono| earlier.min(*until))),
                DeadlineEntry::Free | DeadlineEntry::Due => {}
            }
        }
        waiting.timer = earliest;
        drop(waiting);
        for slot in due {
            if let DeadlineEntry::Waiting(_, waker) = slot {
                waker.wake();
            }
        }
    }
}

pin_project_lite::pin_project! {
    /// A future and its deadline.
    #[derive(Debug)]
    pub(crate) struct Within<'a, F> {
        place: DeadlineSlot<'a>,
        clock: &'a Clock,
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for Within<'_, F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<F::Output>> {
        let this = self.project();
        if let Poll::Ready(output) = this.future.poll(cx) {
            return Poll::Ready(Some(output));
        }
        if this.place.has_time(this.clock, cx) { Poll::Pending } else { Poll::Ready(None) }
    }
}

/// One entry of the list, removed on drop.
#[derive(Debug)]
struct DeadlineSlot<'a> {
    deadlines: &'a Deadlines,
    until: Mono,
    number: Option<usize>,
    alone: Option<OwnDeadlines<'a>>,
}

/// A timer of its own, for a clock that wakes its own sleepers and runs no task for the list.
struct OwnDeadlines<'a>(Pin<Box<dyn Future<Output = ()> + 'a>>);

impl std::fmt::Debug for OwnDeadlines<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Alone")
    }
}

impl<'a> DeadlineSlot<'a> {
    /// Returns whether there is time left; otherwise the task is woken at the deadline.
    fn has_time(&mut self, clock: &'a Clock, cx: &mut Context<'_>) -> bool {
        if clock.wakes_its_own() {
            let until = self.until;
            return self.alone.get_or_insert_with(|| OwnDeadlines(Box::pin(clock.sleep_until(until)))).0.as_mut().poll(cx).is_pending();
        }
        let Some(number) = self.number else {
            self.number = Some(self.deadlines.add(clock, self.until, cx.waker().clone()));
            return true;
        };
        match self.deadlines.0.waiting.borrow_mut().all.get_mut(number) {
            Some(DeadlineEntry::Waiting(_, waker)) => {
                waker.clone_from(cx.waker());
                true
            }
            Some(DeadlineEntry::Due | DeadlineEntry::Free) | None => false,
        }
    }
}

impl Drop for DeadlineSlot<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let mut waiting = self.deadlines.0.waiting.borrow_mut();
            waiting.all[number] = DeadlineEntry::Free;
            waiting.free.push(number);
            if waiting.all.len() > KEPT && waiting.free.len() == waiting.all.len() {
                (waiting.all, waiting.free) = (Vec::new(), Vec::new());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_core::time::Nanos;
    use std::time::Duration;
    use tokio::task::LocalSet;

    /// Runs jobs of these lengths and deadlines in milliseconds, all started together. Returns success and time of each.
    async fn ended(jobs: &[(u64, u64)]) -> Vec<(bool, u64)> {
        let (clock, deadlines) = (Clock::start(), Deadlines::default());
        let start = clock.now().mono;
        let mut handles = Vec::new();
        for (takes, may) in jobs.iter().copied() {
            let (clock, deadlines) = (clock.clone(), deadlines.clone());
            handles.push(tokio::task::spawn_local(async move {
                let work = tokio::time::sleep(Duration::from_millis(takes));
                let is_done = deadlines.within(&clock, start + Nanos::from_millis(may), work).await.is_some();
                (is_done, clock.now().mono.since(start).as_millis())
            }));
        }
        let mut all = Vec::new();
        for handle in handles {
            all.push(handle.await.unwrap());
        }
        assert!(deadlines.0.waiting.borrow().all.iter().all(|slot| matches!(slot, DeadlineEntry::Free)), "nobody is left on the list");
        all
    }

    #[tokio::test(start_paused = true)]
    async fn what_takes_too_long_ends_on_time_whoever_came_first() {
        let jobs = [(5, 1000), (5000, 300), (5000, 100), (200, 400), (5000, 2000)];
        let ended = LocalSet::new().run_until(ended(&jobs)).await;
        assert_eq!(ended.iter().map(|(is_done, _)| *is_done).collect::<Vec<_>>(), [true, false, false, true, false]);
        for ((takes, may), (_, at)) in jobs.iter().zip(&ended) {
            let due = takes.min(may);
            assert!(*at >= *due && *at <= due + 2, "{takes} within {may} ended at {at}");
        }
    }
}
