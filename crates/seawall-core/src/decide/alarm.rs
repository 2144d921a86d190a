//! Decides when there are too many dead letters, with hysteresis, and which of the instances that share a store reports it. A raised alarm
//! has one holder, which also reports its end. Another instance takes over only when the holder is gone.

use crate::time::{Nanos, Wall};

/// The interval at which a holder shows that it is alive.
const HELD: Nanos = Nanos::from_secs(10);
/// A holder that was silent for this long is gone.
const GONE: Nanos = Nanos::from_secs(30);

/// Whether an alarm is on: it rises when the depth reaches the threshold and clears at four fifths of it. A threshold of zero turns the
/// alarm off.
#[must_use]
pub const fn is_alarming(before: bool, depth: u64, alarm_depth: u64) -> bool {
    if alarm_depth == 0 {
        return false;
    }
    if before { depth as u128 * 5 > alarm_depth as u128 * 4 } else { depth >= alarm_depth }
}

/// An alarm that is raised, as all instances see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raised {
    /// This instance is the holder.
    pub is_ours: bool,
    pub raised_at: Wall,
    /// When the holder was last seen after it raised the alarm; later than `raised_at` only once it has reported it.
    pub seen_at: Wall,
}

impl Raised {
    fn is_notified(self) -> bool {
        self.seen_at > self.raised_at
    }
}

/// One instance's knowledge of the alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlarmState {
    pub raised: Option<Raised>,
    /// This instance reported the alarm as raised, or saw that it is.
    pub is_known: bool,
    /// No other instance uses the store.
    pub is_alone: bool,
}

/// One instance's next step. Raise, take and clear are operations of the store, which lets only one instance succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlarmStep {
    Stay,
    /// Raise and report it.
    Raise,
    /// Show the other instances that the holder is alive.
    Hold,
    /// Take over from a holder that is gone; with `tell`, raise the alarm anew and report it, because the holder may not have reported it.
    Take {
        tell: bool,
    },
    /// Another instance raised it.
    Hear,
    /// Cleared: report it.
    Clear,
    /// Cleared: another instance, if there is one, reported it.
    Over,
}

/// Returns the next step for an alarm.
#[must_use]
pub fn next_step(known: AlarmState, depth: u64, alarm_depth: u64, now: Wall) -> AlarmStep {
    let AlarmState { raised, is_known, is_alone } = known;
    let Some(raised) = raised else {
        // Another instance cleared the alarm. This one records that before the alarm can rise again.
        return match (is_known, is_alarming(false, depth, alarm_depth)) {
            (false, false) => AlarmStep::Stay,
            (true, true) if is_alone => AlarmStep::Raise,
            (true, _) => AlarmStep::Over,
            (false, true) => AlarmStep::Raise,
        };
    };
    let is_gone = !raised.is_ours && (is_alone || now.since(raised.seen_at) >= GONE);
    let is_to_be_held = !raised.is_notified() || now.since(raised.seen_at) >= HELD;
    match (raised.is_ours, raised.is_notified(), is_alarming(true, depth, alarm_depth)) {
        (true, _, false) => AlarmStep::Clear,
        (true, _, true) if is_to_be_held => AlarmStep::Hold,
        (false, false, true) if is_gone => AlarmStep::Take { tell: !is_known },
        (false, false, false) if is_gone => AlarmStep::Clear,
        (false, true, _) if !is_known => AlarmStep::Hear,
        (false, true, true) if is_gone => AlarmStep::Take { tell: false },
        (false, true, false) if is_gone => AlarmStep::Clear,
        (true, _, true) | (false, ..) => AlarmStep::Stay,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_does_not_flutter() {
        let mut on = false;
        let story: Vec<bool> = [9, 10, 9, 9, 8, 9, 10]
            .into_iter()
            .map(|depth| {
                on = is_alarming(on, depth, 10);
                on
            })
            .collect();
        assert_eq!(story, [false, true, true, true, false, false, true]);
        assert!(!is_alarming(false, 1000, 0));
        assert!(is_alarming(false, 1, 1) && !is_alarming(true, 0, 1));
    }

    /// The row of one store.
    #[derive(Default)]
    struct Row(Option<(usize, Wall, Wall)>);

    /// Instances that check one store in turns, every two seconds, and their reports: which instance, and whether the alarm is raised.
    struct World {
        row: Row,
        known: Vec<bool>,
        alive: Vec<bool>,
        seconds: i64,
        told: Vec<(usize, bool)>,
    }

    impl World {
        fn of(instances: usize) -> Self {
            Self { row: Row::default(), known: vec![false; instances], alive: vec![true; instances], seconds: 0, told: Vec::new() }
        }

        /// Each live instance checks once.
        fn round(&mut self, depth: u64) {
            self.seconds += 2;
            for me in 0..self.known.len() {
                if self.alive[me] {
                    self.look(me, depth);
                }
            }
        }

        fn look(&mut self, me: usize, depth: u64) {
            let now = Wall(self.seconds * 1000);
            let raised = self.row.0.map(|(holder, raised_at, seen_at)| Raised { is_ours: holder == me, raised_at, seen_at });
            let is_alone = self.known.len() == 1;
            match next_step(AlarmState { raised, is_known: self.known[me], is_alone }, depth, 10, now) {
                AlarmStep::Stay => {}
                AlarmStep::Raise => {
                    self.row.0 = Some((me, now, now));
                    self.say(me, true);
                }
                AlarmStep::Hold => self.row.0 = self.row.0.map(|(_, raised_at, _)| (me, raised_at, now)),
                AlarmStep::Take { tell: true } => {
                    self.row.0 = Some((me, now, now));
                    self.say(me, true);
                }
                AlarmStep::Take { tell: false } => self.row.0 = self.row.0.map(|(_, raised_at, _)| (me, raised_at, now)),
                AlarmStep::Hear => self.known[me] = true,
                AlarmStep::Clear => {
                    self.row.0 = None;
                    self.say(me, false);
                }
                AlarmStep::Over => self.known[me] = false,
            }
        }

        fn say(&mut self, me: usize, is_raised: bool) {
            self.known[me] = is_raised;
            self.told.push((me, is_raised));
        }

        fn rounds(&mut self, count: usize, depth: u64) {
            (0..count).for_each(|_| self.round(depth));
        }
    }

    #[test]
    fn one_of_many_raises_an_alarm_and_the_same_one_clears_it() {
        let mut world = World::of(3);
        world.rounds(50, 12);
        assert_eq!((&world.told[..], &world.known[..]), (&[(0, true)][..], &[true; 3][..]));
        world.rounds(50, 3);
        assert_eq!((&world.told[..], &world.known[..]), (&[(0, true), (0, false)][..], &[false; 3][..]));
        world.rounds(3, 12);
        assert_eq!(world.told.len(), 3, "it can be raised again");
    }

    #[test]
    fn when_its_holder_is_gone_another_one_clears_it() {
        let mut world = World::of(3);
        world.rounds(5, 12);
        world.alive[0] = false;
        world.rounds(5, 3);
        assert_eq!(world.told, [(0, true)], "it may only be slow");
        world.rounds(20, 3);
        assert_eq!(world.told, [(0, true), (1, false)]);
        assert_eq!(world.known[1..], [false; 2]);
    }

    #[test]
    fn whoever_takes_over_holds_it_and_tells_nobody_twice() {
        let mut world = World::of(2);
        world.rounds(5, 12);
        world.alive[0] = false;
        world.rounds(30, 12);
        assert_eq!((&world.told[..], world.row.0.map(|(holder, ..)| holder)), (&[(0, true)][..], Some(1)));
        world.rounds(1, 3);
        assert_eq!(world.told, [(0, true), (1, false)]);
    }

    #[test]
    fn what_was_raised_by_one_that_ended_at_once_is_told_by_another() {
        let mut world = World::of(2);
        world.round(12);
        world.alive[0] = false;
        world.rounds(10, 12);
        assert_eq!(world.told, [(0, true)]);
        world.rounds(10, 12);
        assert_eq!(world.told, [(0, true), (1, true)]);
        world.rounds(2, 3);
        assert_eq!(world.told[2..], [(1, false)]);
    }

    #[test]
    fn whoever_is_alone_goes_on_where_an_earlier_life_ended() {
        let earlier = |told: bool| Some(Raised { is_ours: false, raised_at: Wall(0), seen_at: Wall(i64::from(told)) });
        let turn = |raised, is_known, depth| next_step(AlarmState { raised, is_known, is_alone: true }, depth, 10, Wall(5));
        assert_eq!(turn(earlier(true), true, 12), AlarmStep::Take { tell: false });
        assert_eq!(turn(earlier(true), true, 3), AlarmStep::Clear);
        assert_eq!(turn(earlier(true), false, 12), AlarmStep::Hear);
        assert_eq!(turn(earlier(false), false, 12), AlarmStep::Take { tell: true }, "nobody may have heard of it");
        assert_eq!(turn(earlier(false), false, 3), AlarmStep::Clear, "and nobody has to");
        assert_eq!(turn(None, true, 3), AlarmStep::Over);
        assert_eq!(turn(None, true, 12), AlarmStep::Raise);
    }
}
