//! Closes connections that stay idle or read too slowly. A periodic sweep over all connections replaces a timer per request: a request only
//! increments a counter.

use super::http1::{AwaitedRead, ConnectionActivity, Http1Connection};
use crate::connection_limit::ConnectionLimit;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

/// Sweeps per idle timeout. A caller gets the configured time and at most a quarter more.
const LOOKS: u32 = 4;
/// A reader gets ten times as long: its progress is visible only when the system's buffers, of megabytes, have room again.
const LOOKS_AT_A_READER: u32 = 10 * LOOKS;

/// The connections of one thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdleSweeper(Rc<RefCell<Vec<Weak<ConnectionActivity>>>>);

/// Measures the wait of one connection for its caller.
#[derive(Debug, Default)]
pub(crate) struct IdleWatch {
    awaited: Cell<Option<AwaitedRead>>,
    looks: Cell<u32>,
    is_over: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl IdleSweeper {
    /// Creates the state of a new connection and watches it.
    pub(crate) fn watch_http1(&self) -> Http1Connection {
        let talk = Http1Connection::default();
        self.0.borrow_mut().push(Rc::downgrade(talk.activity()));
        talk
    }

    /// Sweeps all connections until the thread ends.
    pub(crate) async fn watch(self, patience: Duration, seats: Arc<ConnectionLimit>) {
        let mut looks = tokio::time::interval((patience / LOOKS).max(Duration::from_millis(1)));
        // After a stall, sweeps in quick succession would count as idle time of the callers.
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let is_short = seats.is_short();
            self.0.borrow_mut().retain(|spoken| {
                spoken.upgrade().is_some_and(|spoken| {
                    spoken.streams.look(is_short);
                    spoken.hush.look(spoken.awaited(), is_short)
                })
            });
        }
    }
}

impl IdleWatch {
    /// Returns whether the connection stays open. If connections are scarce, a stalled reader gets no more time than a silent caller:
    /// others need its place and the upstream connection that its response holds.
    pub(crate) fn look(&self, awaited: Option<AwaitedRead>, is_short: bool) -> bool {
        let before = self.awaited.replace(awaited);
        let same = awaited.is_some() && before == awaited;
        self.looks.set(if same { self.looks.get() + 1 } else { 0 });
        let most = match awaited {
            Some(AwaitedRead::Reader(_)) if !is_short => LOOKS_AT_A_READER,
            Some(AwaitedRead::Reader(_) | AwaitedRead::Request(_)) | None => LOOKS,
        };
        if self.looks.get() < most {
            return true;
        }
        self.is_over.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
        false
    }

    /// Returns whether the wait is over. Only the waker of the first poll is stored: one task owns the whole connection.
    pub(crate) fn is_over(&self, cx: &Context<'_>) -> bool {
        if self.is_over.get() {
            return true;
        }
        let mut waker = self.waker.borrow_mut();
        if waker.is_none() {
            *waker = Some(cx.waker().clone());
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_caller_that_says_nothing_for_the_whole_time_is_hung_up_on() {
        let (hush, cx) = (IdleWatch::default(), Context::from_waker(Waker::noop()));
        let [zero, one] = [0, 1].map(|turn| Some(AwaitedRead::Request(turn)));
        assert!([zero, zero, zero, one, one, None, one, one, one, one].iter().all(|awaited| hush.look(*awaited, false)));
        assert!(!hush.is_over(&cx));
        assert!(!hush.look(one, false));
        assert!(hush.is_over(&cx));
    }

    #[test]
    fn whoever_takes_a_little_now_and_then_is_not_hung_up_on() {
        let hush = IdleWatch::default();
        for taken in [5, 6] {
            assert!((0..LOOKS_AT_A_READER).all(|_| hush.look(Some(AwaitedRead::Reader(taken)), false)));
        }
        assert!(!hush.look(Some(AwaitedRead::Reader(6)), false));
    }

    #[test]
    fn a_reader_that_takes_nothing_has_less_time_where_seats_are_short() {
        let hush = IdleWatch::default();
        assert!((0..LOOKS).all(|_| hush.look(Some(AwaitedRead::Reader(5)), true)));
        assert!(!hush.look(Some(AwaitedRead::Reader(5)), true));
    }
}
