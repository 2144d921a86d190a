//! The progress of a job as a short text column.

use seawall_core::decide::CallProgress;
use seawall_core::lease::KeySet;
use seawall_core::time::Nanos;

/// The progress of most jobs at their claim.
const FRESH: &str = "0 0 0 0 0 0 0";

/// The number of the first key. Zero means none; one was written by a version that did not record the key.
const FIRST_KEY: u64 = 2;

pub(crate) fn write(progress: &CallProgress) -> String {
    let CallProgress { attempts, ambiguous, waits, previous_wait, refreshed, refused_key, tried } = *progress;
    let refused = refused_key.map_or(0, |key| u64::from(key) + FIRST_KEY);
    let mut out = String::with_capacity(48);
    // Formats number by number: formatting them together costs ten times as much, for every job that ends.
    let mut digits = itoa::Buffer::new();
    for number in [attempts.into(), ambiguous.into(), waits.into(), previous_wait.0, refreshed.into(), refused] {
        out.push_str(digits.format::<u64>(number));
        out.push(' ');
    }
    match tried.bits() {
        0 => out.push('0'),
        bits => out.push_str(&format!("{bits:x}")),
    }
    out
}

/// Parses the text. Unreadable text counts as a fresh start with the known attempts, never as none left.
pub(crate) fn read(text: &str) -> CallProgress {
    if text == FRESH {
        return CallProgress::default();
    }
    let mut parts = text.split(' ');
    let mut number = || parts.next().and_then(|part| part.parse::<u64>().ok()).unwrap_or(0);
    let narrow = |wide: u64| u32::try_from(wide).unwrap_or(u32::MAX);
    let (attempts, ambiguous, waits) = (narrow(number()), narrow(number()), narrow(number()));
    let previous_wait = Nanos(number());
    let (refreshed, refused) = (number() == 1, number());
    let refused_key = refused.checked_sub(FIRST_KEY).and_then(|key| u16::try_from(key).ok());
    let tried = parts.next().and_then(|hex| u128::from_str_radix(hex, 16).ok()).unwrap_or(0);
    CallProgress { attempts, ambiguous, waits, previous_wait, refreshed, refused_key, tried: KeySet::from_bits(tried) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        let mut tried = KeySet::default();
        tried.insert(127);
        let used =
            CallProgress { attempts: 3, ambiguous: 1, waits: 2, previous_wait: Nanos(7), refreshed: true, refused_key: Some(5), tried };
        for progress in [CallProgress::default(), used] {
            assert_eq!(read(&write(&progress)), progress);
        }
        assert_eq!(write(&CallProgress::default()), FRESH);
        assert_eq!(read("5").attempts, 5);
        assert_eq!(read("nonsense"), CallProgress::default());
    }
}
