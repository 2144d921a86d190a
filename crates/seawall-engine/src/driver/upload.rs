//! Sends a request with a streamed body. An upload that makes progress may take longer than an attempt; a stalled one may not.

use crate::attempt::{AttemptRequest, Transport};
use crate::clock::Clock;
use seawall_core::policy::Timeout;
use seawall_core::time::{Mono, Nanos};
use seawall_http::fault::Fault;
use seawall_http::request_body::Feed;
use std::pin::pin;

/// Interval at which an upload's progress is checked.
const TICK: Nanos = Nanos::from_secs(1);

/// The result of a request, and the time since which the upstream had all of it.
#[derive(Debug)]
pub(crate) struct Uploaded {
    pub result: Result<(), Fault>,
    pub whole_since: Mono,
}

/// Ends an upload that does not end by itself.
#[derive(Debug)]
struct UploadTimeout {
    timeout: Timeout,
    started: Mono,
    /// The end of the call's deadline.
    end: Mono,
    /// Bytes of the body sent at the last check, and the time since which no more were sent.
    moved: u64,
    moved_at: Mono,
    /// The time at which the whole body had been sent.
    whole_since: Option<Mono>,
}

impl UploadTimeout {
    const fn new(timeout: Timeout, started: Mono, end: Mono) -> Self {
        Self { timeout, started, end, moved: 0, moved_at: started, whole_since: None }
    }

    /// Notes the progress of the body. Returns the fault if the request has exceeded its time.
    fn check_progress(&mut self, moved: u64, is_whole: bool, now: Mono) -> Option<Fault> {
        if moved > self.moved {
            (self.moved, self.moved_at) = (moved, now);
        }
        if is_whole && self.whole_since.is_none() {
            self.whole_since = Some(now);
        }
        let (due, fault) = match self.whole_since {
            Some(since) => (since + self.timeout.attempt, Fault::TIMEOUT),
            None if self.moved == 0 => (self.started + self.timeout.attempt, Fault::TIMEOUT),
            None => (self.moved_at + self.timeout.idle, Fault::STALLED),
        };
        match (now >= due, now >= self.end) {
            (true, _) => Some(fault),
            (false, true) => Some(Fault::TIMEOUT),
            (false, false) => None,
        }
    }
}

/// Sends the request and watches the body meanwhile.
pub(crate) async fn send<T: Transport>(
    clock: &Clock,
    timeout: Timeout,
    transport: &mut T,
    attempt: AttemptRequest,
    feed: Feed,
) -> Uploaded {
    let started = attempt.now.mono;
    let mut pace = UploadTimeout::new(timeout, started, started + attempt.remaining);
    let mut looked_at = started;
    let fault = {
        let mut sending = pin!(transport.send(attempt));
        loop {
            // Boxed, since most attempts never await it.
            let tick = Box::pin(clock.sleep_until((looked_at + TICK.min(timeout.attempt)).min(pace.end)));
            let result = tokio::select! {
                biased;
                result = &mut sending => Some(result),
                () = tick => None,
            };
            if let Some(result) = result {
                let whole_since = if feed.is_whole() { pace.whole_since.unwrap_or(looked_at) } else { clock.now().mono };
                return Uploaded { result, whole_since };
            }
            looked_at = clock.now().mono;
            if let Some(fault) = pace.check_progress(feed.moved(), feed.is_whole(), looked_at) {
                break fault;
            }
        }
    };
    let overdue = transport.overdue();
    let fault = if overdue == Fault::TIMEOUT { fault } else { overdue };
    Uploaded { result: Err(fault), whole_since: pace.whole_since.unwrap_or(started) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_secs(1);

    /// Returns the second at which an upload ends that sends these bytes in each second, and is complete afterwards if `is_whole`.
    fn ends(moves: &[u64], is_whole: bool) -> Option<(usize, Fault)> {
        let timeout = Timeout {
            connect: SECOND,
            attempt: Nanos::from_secs(5),
            total: Nanos::from_secs(60),
            first_byte: SECOND,
            idle: Nanos::from_secs(10),
        };
        let start = Mono(7);
        let mut pace = UploadTimeout::new(timeout, start, start + timeout.total);
        let mut moved = 0;
        (1..100).find_map(|second| {
            moved += moves.get(second - 1).copied().unwrap_or(0);
            let now = start + Nanos::from_secs(u64::try_from(second).unwrap());
            pace.check_progress(moved, is_whole && second >= moves.len(), now).map(|fault| (second, fault))
        })
    }

    #[test]
    fn an_upload_that_keeps_moving_has_until_the_deadline() {
        assert_eq!(ends(&[1; 99], false), Some((60, Fault::TIMEOUT)));
    }

    #[test]
    fn an_upstream_has_the_time_of_an_attempt_once_it_has_the_whole_body() {
        assert_eq!(ends(&[1; 20], true), Some((25, Fault::TIMEOUT)));
    }

    #[test]
    fn a_body_that_never_begins_to_move_has_the_time_of_an_attempt() {
        assert_eq!(ends(&[], false), Some((5, Fault::TIMEOUT)));
    }

    #[test]
    fn a_body_that_stalls_is_cut_after_the_longest_silence() {
        assert_eq!(ends(&[1; 20], false), Some((30, Fault::STALLED)));
        // A shorter pause is tolerated.
        assert_eq!(ends(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 1], false), Some((20, Fault::STALLED)));
    }
}
