//! The times of a schedule: the first tick of a subject, the time after a tick, and the time after a failure.

use crate::config::model::Schedule;
use crate::rng::Rng;
use crate::time::{Nanos, Wall};

/// A tick that comes later than this, or than its interval if that is shorter, was missed: the program was not running.
const MISSED: Nanos = Nanos::from_secs(60);

/// The result of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fired {
    pub runs_at: Wall,
    pub next_at: Wall,
    /// The run expires at this time, because later ticks replace it.
    pub expires_at: Wall,
}

impl Schedule {
    /// A new subject's first tick, somewhere in the share of the interval over which subjects are spread.
    pub fn first_at(&self, now: Wall, rng: &mut Rng) -> Wall {
        now + Nanos(rng.up_to(self.every.scale(self.spread.as_f64()).0))
    }

    /// Decides about a subject's tick that is due at `now`. Subjects keep their phase in the interval: `regular` is the next regular tick,
    /// while `due` may be a retry before it.
    #[must_use]
    pub fn fired(&self, due: Wall, regular: Wall, now: Wall) -> Fired {
        let next = self.after(regular, now);
        let was_missed = now.since(due) > self.every.min(MISSED);
        let (runs_at, next_at) = if was_missed && !self.run_missed { (next, next + self.every) } else { (now, next) };
        Fired { runs_at, next_at, expires_at: runs_at + self.every.max(MISSED) }
    }

    /// The first regular tick after `now`.
    fn after(&self, regular: Wall, now: Wall) -> Wall {
        if regular > now {
            return regular;
        }
        let every = i64::try_from(self.every.as_millis()).unwrap_or(i64::MAX).max(1);
        let passed = now.0.saturating_sub(regular.0) / every;
        Wall(regular.0.saturating_add(every.saturating_mul(passed.saturating_add(1))))
    }

    /// Returns the next try of a subject after this many failures in a row.
    pub fn retry_at(&self, failures_before: u32, now: Wall, rng: &mut Rng) -> Wall {
        now + self.backoff.draw(failures_before, Nanos::ZERO, rng)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(more: &str) -> Schedule {
        let text = format!(
            "[upstreams.a]\nurl = \"https://a.test\"\n[[schedules]]\nname = \"s\"\nupstream = \"a\"\nrequest = {{ path = \"/\" }}\nevery = \"5m\"\n{more}"
        );
        crate::config::load("test", text.as_bytes()).unwrap().schedules.remove(0)
    }

    const MINUTE: i64 = 60_000;

    #[test]
    fn a_thousand_subjects_do_not_start_together() {
        let (schedule, mut rng) = (schedule(""), Rng::seeded(1));
        let firsts: Vec<i64> = (0..1000).map(|_| schedule.first_at(Wall(0), &mut rng).0).collect();
        assert!(firsts.iter().all(|at| (0..=5 * MINUTE).contains(at)));
        for minute in 0..5 {
            let there = firsts.iter().filter(|at| **at / MINUTE == minute).count();
            assert!((150..250).contains(&there), "{there} in minute {minute}");
        }
        assert_eq!(self::schedule("spread = \"0%\"").first_at(Wall(7), &mut rng), Wall(7));
    }

    #[test]
    fn subjects_keep_their_place_in_the_interval() {
        let schedule = schedule("");
        let fired = schedule.fired(Wall(1000), Wall(1000), Wall(1200));
        assert_eq!((fired.runs_at, fired.next_at), (Wall(1200), Wall(1000 + 5 * MINUTE)));
        let retry = schedule.fired(Wall(30_000), Wall(1000 + 5 * MINUTE), Wall(30_100));
        assert_eq!(retry.next_at, Wall(1000 + 5 * MINUTE), "a retry does not move the regular ticks");
    }

    #[test]
    fn what_was_missed_runs_once_or_not_at_all() {
        let late = Wall(23 * MINUTE);
        let once = schedule("").fired(Wall(0), Wall(0), late);
        assert_eq!((once.runs_at, once.next_at), (late, Wall(25 * MINUTE)));
        let skip = schedule("missed = \"skip\"").fired(Wall(0), Wall(0), late);
        assert_eq!((skip.runs_at, skip.next_at), (Wall(25 * MINUTE), Wall(30 * MINUTE)));
        let in_time = schedule("missed = \"skip\"").fired(Wall(0), Wall(0), Wall(500));
        assert_eq!(in_time.runs_at, Wall(500));
    }

    #[test]
    fn failures_wait_longer_and_longer_within_a_quarter_more_or_less() {
        let (schedule, mut rng) = (schedule(""), Rng::seeded(2));
        for (failures, seconds) in [(0, 30), (1, 60), (2, 120), (20, 1800)] {
            for _ in 0..100 {
                let wait = schedule.retry_at(failures, Wall(0), &mut rng).0;
                let (least, most) = (seconds * 1000 * 3 / 5, (seconds * 1000 * 5 / 4).min(1_800_000));
                assert!((least..=most).contains(&wait), "{failures}: {wait}");
            }
        }
    }
}
