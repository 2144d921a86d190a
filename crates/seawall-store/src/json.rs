//! JSON columns. Headers are serialised as serde would, for a third fewer instructions: most texts need no escape, and one scan of a text
//! is cheaper than a check per character.

use crate::error::Error;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Serialises any value.
pub(crate) fn write(value: &impl Serialize) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|error| Error::Failed(error.to_string()))
}

/// Parses a column.
pub(crate) fn read<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|error| Error::Damaged(format!("a row cannot be read: {error}")))
}

/// Serialises headers: a list of pairs.
pub(crate) fn pairs(pairs: &[(String, String)]) -> String {
    let mut out = String::with_capacity(2 + pairs.iter().map(|(name, value)| name.len() + value.len() + 8).sum::<usize>());
    list(&mut out, pairs, |out, (name, value)| pair(out, name, value, |_| {}));
    out
}

/// Serialises a header; `make` changes its name in place.
pub(crate) fn pair(out: &mut String, name: &str, value: &str, make: impl Fn(&mut str)) {
    out.push('[');
    let start = out.len();
    quoted(out, name);
    make(&mut out[start..]);
    out.push(',');
    quoted(out, value);
    out.push(']');
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

pub(crate) fn quoted(out: &mut String, text: &str) {
    if needs_escape(text.as_bytes()) {
        out.push_str(&scalar(text));
        return;
    }
    out.reserve(text.len() + 2);
    out.push('"');
    out.push_str(text);
    out.push('"');
}

/// Returns whether there is a control character, a quote or a backslash. Reads eight bytes per step, since most texts here are short.
fn needs_escape(text: &[u8]) -> bool {
    let (eights, rest) = text.as_chunks::<8>();
    let mut last = [b' '; 8];
    last[..rest.len()].copy_from_slice(rest);
    eights.iter().chain([&last]).fold(0, |found, eight| found | odd(u64::from_le_bytes(*eight))) != 0
}

/// Returns a nonzero value if one of eight bytes needs an escape (SWAR: eight bytes in one word).
const fn odd(eight: u64) -> u64 {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    /// Sets the high bit of each byte below `least` (and possibly of bytes above it): the subtraction borrows from that bit, and the mask
    /// excludes bytes that had it set.
    const fn below(eight: u64, least: u64) -> u64 {
        eight.wrapping_sub(ONES * least) & !eight & (ONES << 7)
    }
    below(eight, 0x20) | below(eight ^ (ONES * 0x22), 1) | below(eight ^ (ONES * 0x5c), 1)
}

/// Serialises a text or a number.
pub(crate) fn scalar(value: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(value).expect("a text or a number can be written")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_are_written_as_serde_writes_them(headers in prop::collection::vec((".*", any::<String>()), 0..6)) {
            prop_assert_eq!(pairs(&headers), scalar(&headers));
        }
    }

    #[test]
    fn every_character_that_needs_it_is_escaped() {
        for byte in 0..=127u8 {
            let header = vec![(char::from(byte).to_string(), format!("a{}b", char::from(byte)))];
            assert_eq!(pairs(&header), scalar(&header), "{byte}");
        }
    }
}
