//! Masks secrets in external text, by value and in any form: plain, percent-encoded, escaped as JSON or HTML, or mixed. All text from an
//! upstream passes through here before it is truncated, stored or shown.

use crate::base64::base64;
use crate::secret::Secret;
use bytes::Bytes;
use memchr::memmem::Finder;
use seawall_core::discretion::{self, REDACTED, is_secret};
use std::borrow::Cow;
use std::sync::Arc;

/// Minimum length of masked parts of a credential and of callers' secrets: shorter ones may occur in any text.
const MIN_PART: usize = 6;
/// A text that ends with at least this many characters of a secret counts as a truncated secret.
const MIN_CUT: usize = 4;
/// Maximum backslashes before one escaped character: three levels of JSON.
const MAX_BACKSLASHES: usize = 8;
/// Maximum length of one escaped character: two halves of a surrogate pair.
const MAX_ESCAPE: usize = 12;

/// Our own text, or external text after a [`Mask`]. Records, letters and exports accept only this type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Masked(String);

impl Masked {
    /// Wraps text of this program, without any external part.
    #[must_use]
    pub fn own_words(words: impl Into<String>) -> Self {
        Self(words.into())
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    #[must_use]
    pub fn into_string(self) -> String {
        self.0
    }
}

impl std::ops::Deref for Masked {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Masked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// A set of secrets to be masked.
#[derive(Clone, Default)]
pub struct Mask {
    hidden: Vec<Hidden>,
}

#[derive(Clone)]
struct Hidden {
    secret: Arc<str>,
    /// The replacement text.
    shown: Arc<str>,
}

impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mask({})", self.hidden.len())
    }
}

impl Mask {
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.hidden.is_empty()
    }

    pub(crate) fn hide(&mut self, secret: &str, shown: &str) {
        if !secret.is_empty() && !self.hidden.iter().any(|known| *known.secret == *secret) {
            self.hidden.push(Hidden { secret: Arc::from(secret), shown: Arc::from(shown) });
        }
    }

    /// Masks `user:password` as a whole, in base64, and its password; the user if the password is empty, as some APIs expect keys there.
    pub(crate) fn hide_basic(&mut self, pair: &str, shown: &str) {
        self.hide(pair, shown);
        let encoded = base64(pair.as_bytes());
        let encoded = encoded.trim_end_matches('=');
        self.hide(encoded, shown);
        self.hide(&encoded.replace('+', "-").replace('/', "_"), shown);
        if let Some((user, password)) = pair.split_once(':') {
            self.hide_part(if password.is_empty() { user } else { password }, shown);
        }
    }

    pub(crate) fn hide_part(&mut self, part: &str, shown: &str) {
        if part.len() >= MIN_PART {
            self.hide(part, shown);
        }
    }

    /// Masks a caller's secrets: values of headers and parameters with names that suggest secrets.
    #[must_use]
    pub fn and_request<'a>(mut self, headers: impl Iterator<Item = (&'a str, &'a str)>, target: &str) -> Self {
        for (_, value) in headers.filter(|(name, _)| is_secret(name)) {
            for part in value.split("; ").chain([value]) {
                // A scheme, or the name of a cookie, precedes the secret and is not secret.
                let last = part.rsplit(' ').next().unwrap_or(part);
                self.hide_part(last, REDACTED);
                self.hide_part(last.split_once('=').map_or(last, |(_, value)| value), REDACTED);
            }
            if let Some(pair) = basic_pair(value) {
                self.hide_part(&pair, REDACTED);
                self.hide_part(pair.split_once(':').map_or("", |(_, password)| password), REDACTED);
            }
        }
        for value in discretion::secrets(target) {
            self.hide_part(value, REDACTED);
            self.hide_part(&discretion::decoded(value), REDACTED);
        }
        self
    }

    /// Hides a secret of the configuration.
    #[must_use]
    pub fn and_secret(mut self, secret: &Secret) -> Self {
        self.hide(secret.reveal(), &secret.tail());
        self
    }

    /// Masks a URL that is a secret itself, and its path, which receivers repeat.
    #[must_use]
    pub fn and_url(mut self, url: &str) -> Self {
        self.hide_part(url, REDACTED);
        let path = url.split_once("://").and_then(|(_, rest)| rest.find('/').map(|at| &rest[at..]));
        self.hide_part(path.unwrap_or(""), REDACTED);
        self
    }

    /// Masks a text. Invalid UTF-8 is replaced after masking, so that it cannot hide a secret.
    #[must_use]
    pub fn words(&self, said: &[u8]) -> Masked {
        Masked(String::from_utf8_lossy(&self.bytes(said)).into_owned())
    }

    /// Masks bytes.
    #[must_use]
    pub fn bytes<'a>(&self, said: &'a [u8]) -> Cow<'a, [u8]> {
        self.replaced(said, |hidden| &hidden.shown)
    }

    /// Masks a body; returns the same buffer if there is nothing to mask.
    #[must_use]
    pub fn body(&self, body: &Bytes) -> Bytes {
        match self.bytes(body) {
            Cow::Borrowed(_) => body.clone(),
            Cow::Owned(masked) => Bytes::from(masked),
        }
    }

    /// Masks the value of a header, with an ASCII replacement.
    #[must_use]
    pub fn field<'a>(&self, value: &'a [u8]) -> Cow<'a, [u8]> {
        self.replaced(value, |_| REDACTED)
    }

    fn replaced<'a>(&self, said: &'a [u8], shown: impl Fn(&Hidden) -> &str) -> Cow<'a, [u8]> {
        let begins = self.first_bytes();
        let mut out: Option<Vec<u8>> = None;
        let mut at = 0;
        // Bytes before this position have been copied to `out`.
        let mut kept = 0;
        while let Some(skipped) = said.get(at..).and_then(|rest| rest.iter().position(|byte| begins[usize::from(*byte)])) {
            at += skipped;
            let found = self.hidden.iter().filter_map(|hidden| Some((written(&hidden.secret, &said[at..])?, hidden)));
            let Some((length, hidden)) = found.max_by_key(|(length, _)| *length) else {
                at += 1;
                continue;
            };
            let out = out.get_or_insert_with(|| Vec::with_capacity(said.len()));
            out.extend_from_slice(&said[kept..at]);
            out.extend_from_slice(shown(hidden).as_bytes());
            at += length;
            kept = at;
        }
        match out {
            None => Cow::Borrowed(said),
            Some(mut out) => {
                out.extend_from_slice(&said[kept..]);
                Cow::Owned(out)
            }
        }
    }

    /// Returns the first bytes of all secrets, in any form. Most positions of a text are skipped by one lookup in this table.
    fn first_bytes(&self) -> [bool; 256] {
        let mut begins = [false; 256];
        for first in self.hidden.iter().filter_map(|hidden| hidden.secret.bytes().next()) {
            begins[usize::from(first)] = true;
            begins[usize::from(b'+')] |= first == b' ';
        }
        for escape in b"%\\&" {
            begins[usize::from(*escape)] = !self.hidden.is_empty();
        }
        begins
    }
}

/// Decodes the pair in `Basic …`.
fn basic_pair(value: &str) -> Option<String> {
    let (scheme, encoded) = value.split_at_checked(6)?;
    scheme.eq_ignore_ascii_case("basic ").then_some(())?;
    let mut bits = 0u32;
    let mut pair = Vec::with_capacity(encoded.len());
    for (place, byte) in encoded.trim().trim_end_matches('=').bytes().enumerate() {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(digit);
        if place % 4 != 0 {
            let [.., byte] = (bits >> (6 - 2 * (place % 4))).to_be_bytes();
            pair.push(byte);
        }
    }
    String::from_utf8(pair).ok()
}

/// Returns how many bytes at the start of a text are this secret, in any form, or its beginning if the text ends within it.
fn written(secret: &str, text: &[u8]) -> Option<usize> {
    // All possible end positions of the characters so far. Escapes are ambiguous: `%2541` is `%41`, or `A` encoded twice.
    let mut ends = vec![0];
    for (matched, c) in secret.chars().enumerate() {
        let is_cut = |end: &usize| is_cut_off(&text[*end..]);
        if matched >= MIN_CUT && ends.iter().any(is_cut) {
            return Some(text.len());
        }
        let mut next = Vec::new();
        for end in ends {
            spellings(c, &text[end..], |length| {
                if !next.contains(&(end + length)) {
                    next.push(end + length);
                }
            });
        }
        if next.is_empty() {
            return None;
        }
        ends = next;
    }
    ends.into_iter().max()
}

/// Returns whether the text ends here, or within the character or escape that begins here.
fn is_cut_off(rest: &[u8]) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'#' | b'\\');
    match rest.split_first() {
        None => true,
        // One character has up to four bytes, each `%41` or `%2541`.
        Some((b'%', rest)) => rest.len() < 4 * 5 - 1 && rest.iter().all(|byte| byte.is_ascii_hexdigit() || *byte == b'%'),
        Some((0x80.., rest)) => rest.len() < 3 && rest.iter().all(|byte| *byte >= 0x80),
        Some((b'\\' | b'&', escape)) => escape.len() < MAX_ESCAPE && escape.iter().all(is_part),
        Some(_) => false,
    }
}

/// Reports the length of each encoding of this character at the start of the text.
fn spellings(c: char, text: &[u8], mut found: impl FnMut(usize)) {
    let mut utf8 = [0; 4];
    let utf8 = c.encode_utf8(&mut utf8).as_bytes();
    if text.starts_with(utf8) {
        found(utf8.len());
    }
    match text.first() {
        Some(b'%') => percent(utf8, text, found),
        Some(b'\\') => escaped(c, text, found),
        Some(b'&') => entity(c, text).into_iter().for_each(found),
        Some(b'+') if c == ' ' => found(1),
        _ => {}
    }
}

/// Matches `%41`, or `%2541` if encoded twice.
fn percent(utf8: &[u8], text: &[u8], mut found: impl FnMut(usize)) {
    let (mut once, mut often) = (Some(0), Some(0));
    for byte in utf8 {
        let is_byte = |at: usize| text.get(at..at + 2).and_then(hex) == Some(u32::from(*byte));
        once = once.filter(|at| text.get(*at) == Some(&b'%') && is_byte(at + 1)).map(|at| at + 3);
        often = often.filter(|at| text.get(*at) == Some(&b'%')).and_then(|at| {
            let mut digits = at + 1;
            while text.get(digits..digits + 2) == Some(b"25") {
                digits += 2;
            }
            is_byte(digits).then_some(digits + 2)
        });
    }
    once.into_iter().chain(often).for_each(&mut found);
}

/// Matches `\"`, `\/`, `\u00e9`, with the backslashes of several levels of JSON.
fn escaped(c: char, text: &[u8], mut found: impl FnMut(usize)) {
    let slashes = text.iter().take(MAX_BACKSLASHES).take_while(|byte| **byte == b'\\').count();
    if c == '\\' {
        (2..=slashes).for_each(&mut found);
    }
    let rest = &text[slashes..];
    let short = match c {
        '"' | '/' | '\'' => Some(c),
        '\n' => Some('n'),
        '\r' => Some('r'),
        '\t' => Some('t'),
        _ => None,
    };
    if short.is_some_and(|short| rest.first().copied().map(char::from) == Some(short)) {
        found(slashes + 1);
    }
    let mut units = [0; 2];
    let mut length = slashes;
    for (place, unit) in c.encode_utf16(&mut units).iter().enumerate() {
        if place > 0 {
            length += text[length..].iter().take(MAX_BACKSLASHES).take_while(|byte| **byte == b'\\').count();
        }
        let is_unit = text.get(length) == Some(&b'u') && text.get(length + 1..length + 5).and_then(hex) == Some(u32::from(*unit));
        if !is_unit {
            return;
        }
        length += 5;
    }
    found(length);
}

/// Matches `&amp;`, `&#38;`, `&#x26;`.
fn entity(c: char, text: &[u8]) -> Option<usize> {
    let end = text.iter().take(MAX_ESCAPE).position(|byte| *byte == b';')?;
    let name = std::str::from_utf8(text.get(1..end)?).ok()?;
    let meant = match name {
        "amp" => Some('&'),
        "lt" => Some('<'),
        "gt" => Some('>'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        "sol" => Some('/'),
        "plus" => Some('+'),
        "equals" => Some('='),
        "colon" => Some(':'),
        _ => match name.strip_prefix('#')?.strip_prefix(['x', 'X']) {
            Some(digits) => u32::from_str_radix(digits, 16).ok().and_then(char::from_u32),
            None => name.strip_prefix('#')?.parse().ok().and_then(char::from_u32),
        },
    };
    (meant == Some(c)).then_some(end + 1)
}

fn hex(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |number, digit| Some(number << 4 | char::from(*digit).to_digit(16)?))
}

/// Searches for one credential in the headers of each response: a cheap check before a [`Mask`].
#[derive(Clone)]
pub(crate) struct Probe {
    raw: Finder<'static>,
    /// Set if percent-encoding changes the secret.
    encoded: Option<Finder<'static>>,
}

impl std::fmt::Debug for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Probe")
    }
}

impl Probe {
    pub(crate) fn new(secret: &str, encoded: &str) -> Self {
        let finder = |text: &str| Finder::new(text.as_bytes()).into_owned();
        Self { raw: finder(secret), encoded: (encoded != secret).then(|| finder(encoded)) }
    }

    /// Returns whether the credential may occur. A percent sign, backslash or ampersand may begin an escaped form, so the [`Mask`] must
    /// search then.
    pub(crate) fn is_in(&self, bytes: &[u8]) -> bool {
        memchr::memchr3(b'%', b'\\', b'&', bytes).is_some()
            || self.raw.find(bytes).is_some()
            || self.encoded.as_ref().is_some_and(|finder| finder.find(bytes).is_some())
    }
}

#[cfg(test)]
#[path = "mask/tests.rs"]
mod tests;
