//! One row of a batch: its request, and its line in the input.

use bytes::Bytes;
use seawall_engine::mask::Mask;
use seawall_engine::runtime::LiveUpstream;
use seawall_server::letter;
use sha2::{Digest as _, Sha256};
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InputRow {
    /// The line in the input, from 1.
    pub line: u64,
    /// The number of this row among all that this run reads, from 0.
    pub ordinal: u64,
    /// Identifies the row, in this run and the next.
    pub key: u64,
    /// JSON text; empty if the line number serves as the id.
    pub id: String,
    /// The name of its file without page and extension; empty if it gets none.
    pub file: String,
    /// An upstream's name, or the origin of a URL.
    pub lane: Arc<str>,
    pub method: String,
    /// The target below the upstream or origin.
    pub below: String,
    pub headers: Vec<(String, String)>,
    pub body: Bytes,
}

/// A line without a request that can be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BadRow {
    pub line: u64,
    pub ordinal: u64,
    pub key: u64,
    /// Its beginning, as far as it is text.
    pub text: String,
    pub why: String,
}

impl InputRow {
    /// The key of a row: the same in every run, wherever in the input the row is.
    pub(super) fn key(id: &str, lane: &str, method: &str, below: &str, body: &[u8]) -> u64 {
        let mut hasher = Sha256::new();
        for part in [id.as_bytes(), lane.as_bytes(), method.as_bytes(), below.as_bytes(), body] {
            hasher.update(part.len().to_be_bytes());
            hasher.update(part);
        }
        let digest: [u8; 32] = hasher.finalize().into();
        u64::from_be_bytes([digest[0], digest[1], digest[2], digest[3], digest[4], digest[5], digest[6], digest[7]])
    }

    /// Masks the secrets that the upstream receives: our credentials, and the row's own.
    pub(super) fn mask(&self, upstream: &LiveUpstream) -> Mask {
        let headers = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        letter::own_mask(Some(upstream)).and_request(headers, &self.below)
    }

    /// Its approximate size in memory.
    pub(super) fn weight(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len() + 48).sum();
        size_of::<Self>() + self.id.len() + self.file.len() + self.below.len() + self.method.len() + self.body.len() + headers
    }

    /// Serialises it for a spill, without its lane, which is the spill's.
    pub(super) fn write(&self, to: &mut Vec<u8>) {
        for number in [self.line, self.ordinal, self.key, as_u64(self.headers.len())] {
            to.extend_from_slice(&number.to_le_bytes());
        }
        let pairs = self.headers.iter().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]);
        let parts = [self.id.as_bytes(), self.file.as_bytes(), self.method.as_bytes(), self.below.as_bytes(), &self.body];
        for part in parts.into_iter().chain(pairs) {
            to.extend_from_slice(&as_u64(part.len()).to_le_bytes());
            to.extend_from_slice(part);
        }
    }

    /// Parses the output of `write`, and returns its length; `None` if bytes are missing.
    pub(super) fn read(from: &[u8], lane: &Arc<str>) -> Option<(Self, usize)> {
        let mut rest = from;
        let (line, ordinal, key, pairs) = (number(&mut rest)?, number(&mut rest)?, number(&mut rest)?, number(&mut rest)?);
        let (id, file, method, below) = (text(&mut rest)?, text(&mut rest)?, text(&mut rest)?, text(&mut rest)?);
        let body = Bytes::copy_from_slice(part(&mut rest)?);
        let mut headers = Vec::new();
        for _ in 0..pairs {
            headers.push((text(&mut rest)?, text(&mut rest)?));
        }
        let row = Self { line, ordinal, key, id, file, lane: Arc::clone(lane), method, below, headers, body };
        Some((row, from.len() - rest.len()))
    }
}

fn as_u64(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    let (head, tail) = rest.split_first_chunk::<8>()?;
    *rest = tail;
    Some(u64::from_le_bytes(*head))
}

fn part<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(number(rest)?).ok()?;
    let (head, tail) = rest.split_at_checked(length)?;
    *rest = tail;
    Some(head)
}

fn text(rest: &mut &[u8]) -> Option<String> {
    String::from_utf8(part(rest)?.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_from_a_spill_as_they_went() {
        let lane: Arc<str> = Arc::from("http://example.org");
        let row = InputRow {
            line: 7,
            ordinal: 6,
            key: 99,
            id: "\"x\"".to_owned(),
            file: "x".to_owned(),
            lane: Arc::clone(&lane),
            method: "POST".to_owned(),
            below: "/a?b".to_owned(),
            headers: vec![("a".to_owned(), "b".to_owned())],
            body: Bytes::from_static(b"\x00body"),
        };
        let mut bytes = Vec::new();
        row.write(&mut bytes);
        row.write(&mut bytes);
        let (read, used) = InputRow::read(&bytes, &lane).unwrap();
        assert_eq!((read, used), (row, bytes.len() / 2));
        assert!(InputRow::read(&bytes[..used - 1], &lane).is_none());
    }

    #[test]
    fn keys_tell_rows_apart_and_parts_do_not_run_together() {
        assert_eq!(InputRow::key("1", "a", "GET", "/", b""), InputRow::key("1", "a", "GET", "/", b""));
        assert_ne!(InputRow::key("1", "a", "GET", "/", b""), InputRow::key("", "1a", "GET", "/", b""));
    }
}
