//! A pause that a provider asked for: nothing is sent before its end, except a probe now and then. A probe that gets a response ends it, so
//! that a refusal that concerned one call alone does not hold up all calls. Until the pause would have ended, and for a minute at most,
//! more such refusals apply to the refused calls alone.

pub use crate::probing::MAX_PAUSE;
use crate::probing::{MAX_DISPROVED, Probing};
use crate::time::{Mono, Nanos};

/// One pause, of an endpoint or of a whole upstream. The default is no pause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PauseState {
    since: Mono,
    until: Mono,
    probing: Probing,
    /// A probe has ended a pause: no pause begins before this time.
    disproved: Mono,
}

impl PauseState {
    /// A provider asked for no requests until then.
    pub fn extend(&mut self, until: Mono, now: Mono) {
        let until = until.min(now + MAX_PAUSE);
        if now < self.disproved {
            return;
        }
        if self.is_over(now) {
            *self = Self { since: now, until, probing: Probing::of(until.since(now), now), disproved: Mono(0) };
        } else {
            self.until = self.until.max(until);
        }
    }

    /// Whether a call may be sent; otherwise when the pause ends. A call that is admitted during the pause is its probe, and the next probe
    /// comes later.
    pub fn admit(&mut self, now: Mono) -> Result<(), Mono> {
        if self.is_over(now) {
            return Ok(());
        }
        if !self.probing.is_due(now) {
            return Err(self.until);
        }
        self.probing.sent(now);
        Ok(())
    }

    /// An attempt that was sent then got a response without a request to wait. An attempt sent before the pause began proves nothing.
    pub fn answered(&mut self, sent_at: Mono, now: Mono) {
        if sent_at > self.since && self.until > Mono(0) {
            self.disprove(self.until.min(now + MAX_DISPROVED));
        }
    }

    /// A probe got a response: the pause ends, and none begins before `until`.
    pub fn disprove(&mut self, until: Mono) {
        *self = Self { disproved: until, ..Self::default() };
    }

    /// Before this time a refusal applies only to the refused call, because a probe got a response.
    #[must_use]
    pub const fn disproved(&self) -> Mono {
        self.disproved
    }

    /// Ends the pause now, by an operator's request.
    pub fn lift(&mut self) {
        *self = Self::default();
    }

    #[must_use]
    pub fn is_over(&self, now: Mono) -> bool {
        now >= self.until
    }

    /// When it began and when it ends, while it lasts.
    #[must_use]
    pub fn span(&self, now: Mono) -> Option<(Mono, Mono)> {
        (!self.is_over(now)).then_some((self.since, self.until))
    }

    /// Follows the same pause kept elsewhere. After `recheck` the driver asks there again, which is how it learns of a lifted pause.
    pub fn follow_other(&mut self, until: Mono, recheck: Nanos, now: Mono) {
        if now >= self.disproved {
            *self = Self { since: now, until, probing: Probing::after(recheck, now), disproved: Mono(0) };
        }
    }

    /// The pause kept elsewhere has ended.
    pub fn follow_end(&mut self) {
        *self = Self { disproved: self.disproved, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Mono {
        Mono(seconds * 1_000_000_000)
    }

    fn paused(until: Mono) -> PauseState {
        let mut pause = PauseState::default();
        pause.extend(until, at(1));
        pause
    }

    #[test]
    fn a_pause_lets_one_probe_through_now_and_then() {
        let mut pause = paused(at(31));
        let sent: Vec<u64> = (1..32).filter(|second| pause.admit(at(*second)).is_ok()).collect();
        assert_eq!(sent, [2, 3, 4, 5, 6, 8, 12, 19, 31], "eight probes, and the end");
    }

    #[test]
    fn no_provider_pauses_for_longer_than_an_hour() {
        let mut pause = paused(at(864_000));
        assert_eq!(pause.admit(at(1)), Err(at(3_601)));
        assert_eq!(pause.admit(at(3_601)), Ok(()));
    }

    #[test]
    fn an_answer_ends_the_pause_unless_it_was_sent_before_the_pause_began() {
        let mut pause = paused(at(100));
        pause.answered(at(1), at(1));
        assert!(!pause.is_over(at(2)));
        pause.answered(at(61), at(61));
        assert!(pause.is_over(at(62)));
    }

    #[test]
    fn a_pause_that_a_probe_has_disproved_does_not_begin_again_before_its_end() {
        let mut pause = paused(at(31));
        pause.answered(at(2), at(2));
        pause.extend(at(60), at(30));
        assert!(pause.is_over(at(30)), "this refusal binds its own call alone");
        pause.extend(at(61), at(31));
        assert_eq!(pause.span(at(31)), Some((at(31), at(61))));
        pause.answered(at(32), at(32));
        pause.lift();
        pause.extend(at(63), at(33));
        assert!(!pause.is_over(at(33)), "a hand begins anew");
    }

    #[test]
    fn a_disproved_pause_begins_again_a_minute_after_the_probe_however_long_it_was() {
        let mut pause = paused(at(3_601));
        pause.answered(at(2), at(2));
        pause.extend(at(100), at(61));
        assert!(pause.is_over(at(61)), "this refusal binds its own call alone");
        pause.extend(at(600), at(62));
        assert_eq!(pause.span(at(62)), Some((at(62), at(600))));
    }

    #[test]
    fn a_second_answer_only_makes_it_longer() {
        let mut pause = paused(at(50));
        pause.extend(at(20), at(2));
        assert_eq!(pause.span(at(3)), Some((at(1), at(50))));
        pause.extend(at(70), at(3));
        assert_eq!(pause.span(at(3)), Some((at(1), at(70))));
        pause.lift();
        assert_eq!(pause.span(at(3)), None);
    }
}
