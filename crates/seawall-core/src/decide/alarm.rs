//! When too many dead letters are too many, without going on and off at the edge.

/// Whether an alarm is on: it rises when the depth is reached and falls when it is down to four fifths of it. A depth of
/// zero is no alarm at all.
#[must_use]
pub const fn is_alarming(before: bool, depth: u64, alarm_depth: u64) -> bool {
    if alarm_depth == 0 {
        return false;
    }
    if before { depth as u128 * 5 > alarm_depth as u128 * 4 } else { depth >= alarm_depth }
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
}
