//! Unique, safe file names made of record ids. Names are assigned in the order of the list, so that every run over it gives the same names.

use super::template::encode;
use sha2::{Digest as _, Sha256};

/// The set of used names as a Bloom filter with seven bits each, whose size does not grow with the list. With ten million names it has a
/// false-positive rate of 0.2 %; such a name gets its line as a suffix without need.
#[derive(Debug)]
pub(super) struct NameFilter(Vec<u64>);

const WORDS: usize = 1 << 21;
const BITS_EACH: u64 = 7;
/// Longer names are cut, because file systems allow at most 255 bytes.
const MAX_NAME: usize = 180;
const MAX_KEPT: usize = 160;
/// Names made from ids never contain it unencoded.
const MARK: char = '~';

impl Default for NameFilter {
    fn default() -> Self {
        Self(vec![0; WORDS])
    }
}

impl NameFilter {
    /// The name of a row's file: its encoded id, followed by its line if an earlier row has that name.
    pub(super) fn claim(&mut self, id: &str, line: u64, key: u64) -> String {
        let mut name = name(id, line, key);
        // Some file systems do not distinguish names by case.
        if self.is_taken(&name.to_ascii_lowercase()) {
            name.push(MARK);
            name.push_str(&line.to_string());
        }
        name
    }

    pub(super) fn is_renamed(name: &str) -> bool {
        name.contains(MARK)
    }

    /// Adds a name; returns whether it was used before.
    fn is_taken(&mut self, name: &str) -> bool {
        let digest: [u8; 32] = Sha256::digest(name.as_bytes()).into();
        let number = |at: usize| digest[at..at + 8].iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
        let (start, step) = (number(0), number(8) | 1);
        let mut is_taken = true;
        for turn in 0..BITS_EACH {
            let bit = start.wrapping_add(turn.wrapping_mul(step));
            let word = usize::try_from(bit >> 6).unwrap_or(0) % WORDS;
            let mask = 1u64 << (bit & 63);
            is_taken &= self.0[word] & mask != 0;
            self.0[word] |= mask;
        }
        is_taken
    }
}

/// A name made of an id, which cannot lead out of the folder.
fn name(id: &str, line: u64, key: u64) -> String {
    let id = serde_json::from_str::<String>(id).unwrap_or_else(|_| id.to_owned());
    if id.is_empty() {
        return line.to_string();
    }
    let mut name = String::new();
    encode(&id, &mut name, |byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if name.starts_with('.') {
        name.insert(0, '_');
    }
    if name.len() > MAX_NAME {
        name.truncate(MAX_KEPT);
        name.push_str(&format!("{key:016x}"));
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_id_leaves_the_folder_or_hides() {
        let mut names = NameFilter::default();
        let long = format!("\"{}\"", "x".repeat(5000));
        for (id, expected) in [
            ("", "1"),
            ("\"\"", "1~1"),
            ("7", "7"),
            ("\"a/b\"", "a%2Fb"),
            ("\"..\"", "_.."),
            ("\"../../x\"", "_..%2F..%2Fx"),
            ("\"\\u0000\"", "%00"),
            ("\"a~1\"", "a%7E1"),
            ("{\"a\":1}", "%7B%22a%22%3A1%7D"),
        ] {
            assert_eq!(names.claim(id, 1, 0), expected, "{id}");
        }
        assert!(names.claim(&long, 2, 9).len() <= MAX_NAME);
    }

    #[test]
    fn an_id_that_comes_again_gets_another_name() {
        let mut names = NameFilter::default();
        let claimed: Vec<String> =
            [("\"a\"", 1), ("\"A\"", 2), ("\"a\"", 3), ("5", 4), ("", 5), ("\"5\"", 6)].map(|(id, line)| names.claim(id, line, 0)).into();
        assert_eq!(claimed, ["a", "A~2", "a~3", "5", "5~5", "5~6"]);
    }

    #[test]
    fn names_that_differ_are_hardly_ever_taken_for_one() {
        let mut names = NameFilter::default();
        let renamed = (0..100_000).filter(|id| NameFilter::is_renamed(&names.claim(&id.to_string(), 0, 0))).count();
        assert_eq!(renamed, 0);
    }
}
