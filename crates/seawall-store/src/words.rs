//! Headers and attempts as every row keeps them: JSON, as serde would write it, for a third fewer instructions: most texts need no
//! escape, and to find that out for a whole text at once is cheaper than for each of its characters.

use crate::job::Attempted;
use serde::Serialize;

/// Headers: a list of pairs.
pub(crate) fn pairs(pairs: &[(String, String)]) -> String {
    let mut out = String::with_capacity(2 + pairs.iter().map(|(name, value)| name.len() + value.len() + 8).sum::<usize>());
    list(&mut out, pairs, |out, (name, value)| pair(out, name, value, |_| {}));
    out
}

/// A header, with its name as it is made.
pub(crate) fn pair(out: &mut String, name: &str, value: &str, make: impl Fn(&mut str)) {
    out.push('[');
    let start = out.len();
    quoted(out, name);
    make(&mut out[start..]);
    out.push(',');
    quoted(out, value);
    out.push(']');
}

/// What became of attempts.
pub(crate) fn history(attempts: &[Attempted]) -> String {
    let mut out = String::with_capacity(2 + attempts.len() * 128);
    list(&mut out, attempts, |out, Attempted { attempt, status, latency_ms, outcome, at }| {
        out.push_str(r#"{"attempt":"#);
        out.push_str(itoa::Buffer::new().format(*attempt));
        out.push_str(r#","status":"#);
        quoted(out, status);
        out.push_str(r#","latency_ms":"#);
        out.push_str(&json(latency_ms));
        out.push_str(r#","outcome":"#);
        quoted(out, outcome);
        out.push_str(r#","at":"#);
        quoted(out, at);
        out.push('}');
    });
    out
}

pub(crate) fn list<T>(out: &mut String, items: impl IntoIterator<Item = T>, one: impl Fn(&mut String, T)) {
    out.push('[');
    for (number, item) in items.into_iter().enumerate() {
        if number > 0 {
            out.push(',');
        }
        one(out, item);
    }
    out.push(']');
}

fn quoted(out: &mut String, text: &str) {
    if needs_escape(text.as_bytes()) {
        out.push_str(&json(text));
        return;
    }
    out.reserve(text.len() + 2);
    out.push('"');
    out.push_str(text);
    out.push('"');
}

/// Whether there is a control character, a quote or a backslash: eight bytes in one step, as most texts here are short.
fn needs_escape(text: &[u8]) -> bool {
    let (eights, rest) = text.as_chunks::<8>();
    let mut last = [b' '; 8];
    last[..rest.len()].copy_from_slice(rest);
    eights.iter().chain([&last]).fold(0, |found, eight| found | odd(u64::from_le_bytes(*eight))) != 0
}

/// Not zero where one of eight bytes is odd.
const fn odd(eight: u64) -> u64 {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    /// Where a byte is smaller: to take that many from it borrows from its highest bit, which it has not itself.
    const fn below(eight: u64, least: u64) -> u64 {
        eight.wrapping_sub(ONES * least) & !eight & (ONES << 7)
    }
    below(eight, 0x20) | below(eight ^ (ONES * 0x22), 1) | below(eight ^ (ONES * 0x5c), 1)
}

fn json(value: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(value).expect("a text or a number can be written")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_are_written_as_serde_writes_them(headers in prop::collection::vec((".*", any::<String>()), 0..6)) {
            prop_assert_eq!(pairs(&headers), json(&headers));
        }

        #[test]
        fn attempts_are_written_as_serde_writes_them(
            all in prop::collection::vec((any::<u32>(), any::<String>(), any::<f64>(), ".*", any::<String>()), 0..4),
        ) {
            let all: Vec<Attempted> = all
                .into_iter()
                .map(|(attempt, status, latency_ms, outcome, at)| Attempted { attempt, status, latency_ms, outcome, at })
                .collect();
            prop_assert_eq!(history(&all), json(&all));
        }
    }

    #[test]
    fn every_character_that_needs_it_is_escaped() {
        for byte in 0..=127u8 {
            let header = vec![(char::from(byte).to_string(), format!("a{}b", char::from(byte)))];
            assert_eq!(pairs(&header), json(&header), "{byte}");
        }
    }
}
