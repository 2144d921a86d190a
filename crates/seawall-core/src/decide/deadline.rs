//! The rest of a call's time. Deadlines are relative lengths from the call's start, recomputed before every attempt and every wait, so that
//! queueing, backoff and refreshes all come out of the same total.

use crate::time::{Mono, Nanos};

/// The end of a call, and the margin kept free before it. Dropping work that has already expired saves nothing, so an attempt that cannot
/// finish in time is not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    pub at: Mono,
    pub margin: Nanos,
}

impl Deadline {
    /// A caller's own deadline only shortens ours.
    #[must_use]
    pub fn starting(now: Mono, total: Nanos, callers: Option<Nanos>, margin: Nanos) -> Self {
        Self { at: now + callers.map_or(total, |own| own.min(total)), margin }
    }

    #[must_use]
    pub fn remaining(&self, now: Mono) -> Nanos {
        self.at.since(now)
    }

    /// Returns the time that one attempt may take: its own timeout, or the remaining time less the margin. `None` when nothing is left.
    #[must_use]
    pub fn attempt_timeout(&self, attempt: Nanos, now: Mono) -> Option<Nanos> {
        let left = self.remaining(now) - self.margin;
        (left > Nanos::ZERO).then(|| attempt.min(left))
    }

    /// Whether a wait leaves time for an attempt. A wait that does not fit ends the call now, not later.
    #[must_use]
    pub fn fits(&self, wait: Nanos, now: Mono) -> bool {
        wait + self.margin < self.remaining(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Mono = Mono(1_000);

    #[test]
    fn an_attempt_gets_what_is_left_less_the_margin() {
        let deadline = Deadline::starting(NOW, Nanos(500), None, Nanos(50));
        assert_eq!(deadline.remaining(NOW), Nanos(500));
        assert_eq!(deadline.attempt_timeout(Nanos(100), NOW), Some(Nanos(100)));
        assert_eq!(deadline.attempt_timeout(Nanos(900), NOW), Some(Nanos(450)));
        assert_eq!(deadline.attempt_timeout(Nanos(100), Mono(1_449)), Some(Nanos(1)));
        assert_eq!(deadline.attempt_timeout(Nanos(100), Mono(1_450)), None);
    }

    #[test]
    fn the_callers_deadline_only_shortens_ours() {
        assert_eq!(Deadline::starting(NOW, Nanos(500), Some(Nanos(200)), Nanos(0)).at, Mono(1_200));
        assert_eq!(Deadline::starting(NOW, Nanos(500), Some(Nanos(900)), Nanos(0)).at, Mono(1_500));
    }

    #[test]
    fn a_wait_that_leaves_no_time_to_send_does_not_fit() {
        let deadline = Deadline::starting(NOW, Nanos(500), None, Nanos(50));
        assert!(deadline.fits(Nanos(449), NOW));
        assert!(!deadline.fits(Nanos(450), NOW));
        assert!(!deadline.fits(Nanos::MAX, NOW));
    }

    #[test]
    fn waits_of_one_two_and_four_seconds_leave_room_for_three_attempts_in_five() {
        let deadline = Deadline::starting(Mono(0), Nanos::from_secs(5), None, Nanos::ZERO);
        let mut now = Mono(0);
        let mut sent = vec![now];
        for wait in [1, 2, 4].map(Nanos::from_secs) {
            if !deadline.fits(wait, now) {
                break;
            }
            now = now + wait;
            sent.push(now);
        }
        assert_eq!(sent, [Mono(0), Mono(1_000_000_000), Mono(3_000_000_000)]);
    }

    #[test]
    fn no_deadline_is_for_ever() {
        let deadline = Deadline::starting(NOW, Nanos::MAX, None, Nanos::ZERO);
        assert_eq!(deadline.at, Mono::MAX);
        assert!(deadline.fits(Nanos::from_secs(86_400), NOW));
    }
}
