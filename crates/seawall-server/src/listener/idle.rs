//! Callers that take too long to say what they want, or to take what they get, are hung up on. One look at all connections now and then costs less
//! than a timer for each request: what a request pays is a number that it counts up.

use super::http1::{AwaitedRead, ConnectionActivity, Http1Connection};
use crate::connection_limit::ConnectionLimit;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

/// A caller gets the time it was promised, and up to a quarter more.
const LOOKS: u32 = 4;
/// Who reads has ten times as long: what a slow one takes is seen only when the system's own buffers, of megabytes, have room again.
const LOOKS_AT_A_READER: u32 = 10 * LOOKS;

/// The conversations of one thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdleSweeper(Rc<RefCell<Vec<Weak<ConnectionActivity>>>>);

/// How long one caller has been waited for.
#[derive(Debug, Default)]
pub(crate) struct IdleWatch {
    awaited: Cell<Option<AwaitedRead>>,
    looks: Cell<u32>,
    is_over: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl IdleSweeper {
    /// A new conversation, watched from now on.
    pub(crate) fn talk(&self) -> Http1Connection {
        let talk = Http1Connection::default();
        self.0.borrow_mut().push(Rc::downgrade(talk.spoken()));
        talk
    }

    /// Looks at every conversation until the thread ends.
    pub(crate) async fn watch(self, patience: Duration, seats: Arc<ConnectionLimit>) {
        let mut looks = tokio::time::interval((patience / LOOKS).max(Duration::from_millis(1)));
        // After a stall, looks in quick succession would mistake it for the callers' silence.
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
    /// Whether it goes on. Where seats are short, a reader that takes nothing has no more time than a caller that says nothing:
    /// its place, and the upstream connection that its response holds, are needed by others.
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

    /// Whether the wait is over. Whoever asks first is woken when it is: one task has the whole conversation.
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
