//! The messages of llhttp's own tests: the verdict of our parsers on each of them, and the reason if it differs from llhttp's.
//! `llhttp/messages.txt` has the messages, `llhttp/differences.txt` the reasons.

use seawall_http::h1::fuzzing::{FuzzEnd, FuzzInput, FuzzMessage, requests, responses};
use std::collections::BTreeMap;
use std::fmt;

const MESSAGES: &str = include_str!("llhttp/messages.txt");
const DIFFERENCES: &str = include_str!("llhttp/differences.txt");

/// The verdict of a parser on the bytes of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Verdict {
    /// `accept`, `reject` or `upgrade`.
    word: String,
    /// Messages that are complete.
    messages: usize,
    /// Bytes of all bodies. If something is rejected, they depend on when the parser notices.
    body: usize,
}

impl Verdict {
    fn is_like(&self, other: &Self) -> bool {
        let is_body_alike = self.word == "reject" || self.body == other.body;
        (&self.word, self.messages) == (&other.word, other.messages) && is_body_alike
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\t{}\t{}", self.word, self.messages, self.body)
    }
}

/// Lines of a table, each split at its tabs; comments are left out.
fn lines(table: &'static str, fields: usize) -> impl Iterator<Item = Vec<&'static str>> {
    table.lines().filter(|line| !line.starts_with('#')).map(move |line| {
        let line: Vec<&str> = line.split('\t').collect();
        assert_eq!(line.len(), fields, "{line:?}");
        line
    })
}

fn verdict(fields: &[&str]) -> Verdict {
    Verdict { word: fields[0].to_owned(), messages: fields[1].parse().unwrap(), body: fields[2].parse().unwrap() }
}

fn unescaped(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, more @ ..] = rest {
        rest = more;
        if *first != b'\\' {
            bytes.push(*first);
            continue;
        }
        let (byte, length) = match rest[0] {
            b'r' => (b'\r', 1),
            b'n' => (b'\n', 1),
            b't' => (b'\t', 1),
            b'\\' => (b'\\', 1),
            b'x' => (u8::from_str_radix(std::str::from_utf8(&rest[1..3]).unwrap(), 16).unwrap(), 3),
            other => panic!("an escape {:?} in {text:?}", char::from(other)),
        };
        bytes.push(byte);
        rest = &rest[length..];
    }
    bytes
}

/// The verdict on the messages, and on whether all bytes were read.
fn judged<Head>((messages, end): &(Vec<FuzzMessage<Head>>, FuzzEnd)) -> Verdict {
    let is_accepted = matches!(end, FuzzEnd::Waits | FuzzEnd::Closed | FuzzEnd::Last { unread: 0 });
    Verdict {
        word: if is_accepted { "accept" } else { "reject" }.to_owned(),
        messages: messages.iter().filter(|message| message.is_whole).count(),
        body: messages.iter().map(|message| message.body.len()).sum(),
    }
}

fn ours(name: &str, arrival: FuzzInput<'_>) -> Verdict {
    match name.split('/').next() {
        Some("request") => judged(&requests(arrival)),
        Some("response") => judged(&responses(arrival, false, None)),
        side => panic!("no side: {side:?}"),
    }
}

#[test]
fn every_difference_to_llhttp_has_a_reason() {
    let mut reasons: BTreeMap<&str, (Verdict, &str)> = BTreeMap::new();
    for line in lines(DIFFERENCES, 5) {
        let reason = line[4];
        assert!(reason.len() > 20, "{line:?}");
        assert!(reasons.insert(line[0], (verdict(&line[1..4]), reason)).is_none(), "twice: {line:?}");
    }
    let (mut wrong, mut count) = (Vec::new(), 0);
    for line in lines(MESSAGES, 6) {
        let (name, llhttps, bytes) = (line[0], verdict(&line[2..5]), unescaped(line[5]));
        let closes = line[1] == "end";
        let ours_is = ours(name, FuzzInput { bytes: &bytes, sizes: &[], closes });
        count += 1;
        match reasons.remove(name) {
            Some((known, _)) if known != ours_is => wrong.push(format!("{name}\t{ours_is}\tis not what the table says: {known}")),
            Some(_) if ours_is.is_like(&llhttps) => wrong.push(format!("{name}\t{ours_is}\tis in the table and no difference")),
            None if !ours_is.is_like(&llhttps) => wrong.push(format!("{name}\t{ours_is}\tllhttp: {llhttps}\t{}", line[5])),
            Some(_) | None => {}
        }
        // The pieces in which bytes arrive do not change the messages. Only an incomplete head may be rejected later.
        for sizes in [&[1][..], &[2], &[3, 1], &[7]] {
            let cut = ours(name, FuzzInput { bytes: &bytes, sizes, closes });
            let is_alike = cut.is_like(&ours_is) || (ours_is.word == "reject" && cut.messages == ours_is.messages);
            assert!(is_alike, "{name} in pieces of {sizes:?}: {cut:?}, at once: {ours_is:?}");
        }
    }
    assert_eq!(count, 251, "the number of llhttp's messages");
    wrong.extend(reasons.keys().map(|name| format!("{name}\tis in the table and no message")));
    assert!(wrong.is_empty(), "differences to llhttp:\n{}", wrong.join("\n"));
}
