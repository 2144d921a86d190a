//! Decides from pressure and priority which calls are refused first when pools fill up.

use crate::policy::Share;

/// Below this pressure no call is shed.
const START: u64 = 800_000;

/// Whether a call of this priority is shed at this pressure. The thresholds from the start to full pressure are spread evenly over the
/// configured priorities: the lowest goes first, the highest only when everything is taken.
#[must_use]
pub fn sheds(pressure: Share, priority: u32, configured: &[u32]) -> bool {
    u64::from(pressure.0) >= threshold(priority, configured)
}

fn threshold(priority: u32, configured: &[u32]) -> u64 {
    let (mut ranks, mut rank) = (0, 0);
    for (n, &other) in configured.iter().enumerate() {
        if !configured[..n].contains(&other) {
            ranks += 1;
            rank += u64::from(other <= priority);
        }
    }
    let whole = u64::from(Share::WHOLE.0);
    ((whole - START) * rank.max(1)).checked_div(ranks).map_or(whole, |step| START + step)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIGURED: [u32; 4] = [10, 0, 5, 10];

    fn shed_at(percent: u32) -> Vec<u32> {
        [0, 5, 10].into_iter().filter(|&priority| sheds(Share::percent(percent), priority, &CONFIGURED)).collect()
    }

    #[test]
    fn the_lowest_priority_goes_first_and_the_highest_last() {
        assert_eq!(shed_at(80), Vec::<u32>::new());
        assert_eq!(shed_at(87), [0]);
        assert_eq!(shed_at(94), [0, 5]);
        assert_eq!(shed_at(99), [0, 5]);
        assert_eq!(shed_at(100), [0, 5, 10]);
    }

    #[test]
    fn a_single_priority_is_shed_only_when_everything_is_taken() {
        assert!(!sheds(Share(999_999), 3, &[3, 3]));
        assert!(sheds(Share::WHOLE, 3, &[3, 3]));
        assert!(!sheds(Share(999_999), 3, &[]));
    }

    #[test]
    fn a_priority_that_is_not_configured_goes_with_the_next_lower_one() {
        assert_eq!(threshold(7, &CONFIGURED), threshold(5, &CONFIGURED));
        assert_eq!(threshold(0, &[4, 9]), threshold(4, &[4, 9]));
    }
}
