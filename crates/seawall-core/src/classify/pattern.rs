//! The matchers of rules: an exact text or a glob, a body expression, a set of statuses. They are independent of the place of the value.

use regex::bytes::{Regex, RegexBuilder};

/// Longer patterns are refused, so that every match is cheap.
pub const PATTERN_BYTES: usize = 512;
/// The most memory of one compiled body expression: about the size that a few Unicode classes need.
const REGEX_BYTES: usize = 1 << 20;

/// An exact text, or a glob in which `*` stands for any run of characters; `\*` is a star.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The literal pieces between the stars; one piece means an exact text.
    pieces: Vec<String>,
}

impl Pattern {
    /// # Errors
    /// A sentence for the person who wrote the pattern.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > PATTERN_BYTES {
            return Err(format!("a pattern has at most {PATTERN_BYTES} bytes, this one has {}", text.len()));
        }
        let mut pieces = vec![String::new()];
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            let escaped = c == '\\' && matches!(chars.peek(), Some('*' | '\\'));
            if c == '*' {
                pieces.push(String::new());
            } else if let Some(piece) = pieces.last_mut() {
                piece.push(if escaped { chars.next().unwrap_or(c) } else { c });
            }
        }
        Ok(Self { pieces })
    }

    /// Whether it matches every present value, as `*` does.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.pieces.len() > 1 && self.pieces.iter().all(String::is_empty)
    }

    /// Never backtracks: with `*` as the only wildcard, the leftmost place for every piece is enough.
    #[must_use]
    pub fn matches(&self, value: &str) -> bool {
        let [first, middle @ .., last] = self.pieces.as_slice() else {
            return self.pieces.first().is_some_and(|piece| piece == value);
        };
        let Some(mut rest) = value.strip_prefix(first.as_str()) else { return false };
        for piece in middle {
            let Some(at) = rest.find(piece.as_str()) else { return false };
            rest = &rest[at + piece.len()..];
        }
        rest.ends_with(last.as_str())
    }

    /// Compares header values without regard to ASCII case: `Text/HTML` matches `text/html`.
    #[must_use]
    pub fn matches_ignoring_case(&self, value: &str) -> bool {
        let lower = |piece: &String| piece.to_ascii_lowercase();
        Self { pieces: self.pieces.iter().map(lower).collect() }.matches(&value.to_ascii_lowercase())
    }
}

/// An expression over the body's bytes. Two are equal if their texts are.
#[derive(Clone, Debug)]
pub struct Expression(Regex);

impl Expression {
    /// # Errors
    /// The regex compiler's message, on one line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let built = RegexBuilder::new(text).size_limit(REGEX_BYTES).dfa_size_limit(REGEX_BYTES).build();
        built.map(Self).map_err(|error| {
            let message = error.to_string();
            let last = message.lines().last().unwrap_or_default().trim();
            format!("not a regular expression: {}", last.strip_prefix("error: ").unwrap_or(last))
        })
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    #[must_use]
    pub fn is_match(&self, body: &[u8]) -> bool {
        self.0.is_match(body)
    }

    /// The number of groups, without the whole match.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.0.captures_len() - 1
    }

    /// The text of the first group.
    #[must_use]
    pub fn capture<'a>(&self, body: &'a [u8]) -> Option<&'a [u8]> {
        self.0.captures(body)?.get(1).map(|found| found.as_bytes())
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Expression {}

/// A set of statuses in 100..=999, the range of HTTP's three digits, with one bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatusSet([u64; 15]);

impl StatusSet {
    pub const EMPTY: Self = Self([0; 15]);
    pub const ALL: Self = Self([u64::MAX; 15]);

    /// Adds one entry of a list: `503`, `5xx` or `500-599`.
    ///
    /// # Errors
    /// A sentence about the faulty entry.
    pub fn insert(&mut self, entry: &str) -> Result<(), String> {
        let (low, high) = if let Some((low, high)) = entry.split_once('-') {
            (status(low)?, status(high)?)
        } else if let Some(hundreds) = entry.strip_suffix("xx").or_else(|| entry.strip_suffix("XX")) {
            let low = status(&format!("{hundreds}00"))?;
            (low, low + 99)
        } else {
            let one = status(entry)?;
            (one, one)
        };
        if low > high {
            return Err(format!("the range {entry:?} is empty: it must go from the lower status to the higher"));
        }
        for code in low..=high {
            self.insert_code(code);
        }
        Ok(())
    }

    pub fn insert_code(&mut self, code: u16) {
        if let Some((word, bit)) = place(code) {
            self.0[word] |= bit;
        }
    }

    #[must_use]
    pub fn contains(&self, code: u16) -> bool {
        place(code).is_some_and(|(word, bit)| self.0[word] & bit != 0)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::EMPTY
    }
}

fn place(code: u16) -> Option<(usize, u64)> {
    let index = usize::from(code.checked_sub(100)?);
    (index < 900).then_some((index / 64, 1 << (index % 64)))
}

fn status(text: &str) -> Result<u16, String> {
    let code = text.trim().parse::<u16>().ok().filter(|code| (100..=999).contains(code));
    code.ok_or_else(|| format!("{text:?} is not a status: write 503, \"5xx\" or \"500-599\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, value: &str) -> bool {
        Pattern::parse(pattern).unwrap().matches(value)
    }

    #[test]
    fn a_pattern_without_a_star_is_exact() {
        assert!(matches("quotaExceeded", "quotaExceeded"));
        assert!(!matches("quotaExceeded", "quotaExceeded "));
        assert!(!matches("quota", "quotaExceeded"));
        assert!(matches("", ""));
    }

    #[test]
    fn a_star_stands_for_any_run() {
        for (pattern, value) in [("*", ""), ("*PerDay*", "RequestsPerDayFree"), ("a*b*c", "aXbbc"), ("*#Slow", "aws#Slow"), ("**", "x")] {
            assert!(matches(pattern, value), "{pattern} {value}");
        }
        for (pattern, value) in [("a*a", "a"), ("a*b", "abc"), ("*#Slow", "Slow"), ("ab*ba", "aba")] {
            assert!(!matches(pattern, value), "{pattern} {value}");
        }
    }

    #[test]
    fn an_escaped_star_is_a_star() {
        assert!(matches(r"a\*", "a*"));
        assert!(!matches(r"a\*", "ab"));
        assert!(matches(r"a\b", r"a\b"));
    }

    #[test]
    fn case_is_ignored_only_where_asked() {
        assert!(Pattern::parse("text/HTML*").unwrap().matches_ignoring_case("Text/html; charset=x"));
        assert!(!matches("text/HTML*", "text/html"));
    }

    #[test]
    fn statuses_are_written_in_three_ways() {
        let mut set = StatusSet::EMPTY;
        for entry in ["404", "5xx", "200-202", "999"] {
            set.insert(entry).unwrap();
        }
        let held: Vec<u16> = (0..1200).filter(|&code| set.contains(code) && !(500..600).contains(&code)).collect();
        assert_eq!(held, [200, 201, 202, 404, 999]);
        assert!(set.contains(500) && set.contains(599) && !set.contains(600));
        for entry in ["", "abc", "0", "99", "1000", "502-500", "xx", "-5", "5xxx", "65536"] {
            assert!(set.insert(entry).is_err(), "{entry}");
        }
    }

    #[test]
    fn a_bad_expression_says_why_on_one_line() {
        let said = Expression::parse("(a").unwrap_err();
        assert_eq!(said, "not a regular expression: unclosed group");
        assert!(Expression::parse(r"\w{1000}{1000}").is_err());
    }

    proptest! {
        #[test]
        fn a_glob_agrees_with_the_regular_expression_it_means(pattern in "[ab*]{0,8}", value in "[ab]{0,10}") {
            let regex = format!("^{}$", pattern.replace('*', ".*"));
            prop_assert_eq!(matches(&pattern, &value), regex::Regex::new(&regex).unwrap().is_match(&value));
        }
    }
}
