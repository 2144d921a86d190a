//! Strict splitting of a head into lines that all parsers read alike: each ends with CR LF and has no control character except tabs. If a
//! line is not plain, the caller parses the whole head with the general parser.

/// A line is not plain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotPlain;

/// Multiplied by a byte, gives that byte in each position of a word.
const EACH: u64 = 0x0101_0101_0101_0101;
const TOP: u64 = EACH * 0x80;

/// An iterator over the lines of some bytes.
#[derive(Debug)]
pub(super) struct Plain<'a> {
    bytes: &'a [u8],
    /// The start of the next line.
    pub(super) start: usize,
}

impl<'a> Plain<'a> {
    #[inline]
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, start: 0 }
    }

    /// The next line without its end; `None` if its end has not arrived.
    #[inline]
    pub(super) fn next(&mut self) -> Result<Option<&'a [u8]>, NotPlain> {
        let rest = &self.bytes[self.start..];
        let Some(end) = end(rest)? else { return Ok(None) };
        self.start += end + 2;
        Ok(Some(&rest[..end]))
    }
}

/// The end of the first line. One pass finds its end and any controls, a word at a time: lines are short, and a faster search costs more to
/// start than it saves.
fn end(bytes: &[u8]) -> Result<Option<usize>, NotPlain> {
    let mut rest = bytes;
    loop {
        while let Some((word, more)) = rest.split_first_chunk() {
            let suspects = suspects(u64::from_le_bytes(*word));
            if suspects != 0 {
                rest = &rest[place(suspects)..];
                break;
            }
            rest = more;
        }
        match rest {
            [] | [b'\r'] => return Ok(None),
            [b'\r', b'\n', ..] => return Ok(Some(bytes.len() - rest.len())),
            // A tab is allowed, and the last bytes, shorter than a word, have not been checked.
            [b'\t' | b' '..=b'~' | 0x80.., more @ ..] => rest = more,
            [0..=0x1f | 0x7f, ..] => return Err(NotPlain),
        }
    }
}

/// Sets the top bit of each byte that is below a space or a delete. A borrow may set wrong bits behind the first, never before it.
#[inline]
const fn suspects(word: u64) -> u64 {
    let below = word.wrapping_sub(EACH * 0x20) & !word;
    let other = word ^ (EACH * 0x7f);
    (below | (other.wrapping_sub(EACH) & !other)) & TOP
}

/// The index of the first suspect byte. The word is little-endian, so that this is the lowest bit set.
#[inline]
const fn place(suspects: u64) -> usize {
    (suspects.trailing_zeros() / u8::BITS) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Lines, and the bytes that they take.
    type Found<'a> = (Vec<&'a [u8]>, usize);

    /// All lines up to an empty one.
    fn lines(bytes: &[u8]) -> Result<Option<Found<'_>>, NotPlain> {
        let (mut plain, mut lines) = (Plain::new(bytes), Vec::new());
        while let Some(line) = plain.next()? {
            if line.is_empty() {
                return Ok(Some((lines, plain.start)));
            }
            lines.push(line);
        }
        Ok(None)
    }

    #[test]
    fn lines_end_where_they_end_wherever_words_do() {
        for length in 0..40 {
            let (first, second) = ("a".repeat(length), "b \t".repeat(length + 1));
            let text = format!("{first}c\r\n{second}\r\n\r\nrest\0");
            let (found, end) = lines(text.as_bytes()).unwrap().unwrap();
            assert_eq!(found, [format!("{first}c").as_bytes(), second.as_bytes()], "{length}");
            assert_eq!(&text[end..], "rest\0");
            for cut in 0..end {
                assert_eq!(lines(&text.as_bytes()[..cut]), Ok(None), "{length} {cut}");
            }
        }
    }

    #[test]
    fn every_byte_is_plain_or_not_wherever_it_is() {
        for byte in 0..=u8::MAX {
            let is_plain = byte == b'\t' || (byte >= b' ' && byte != 0x7f);
            for at in 0..20 {
                let mut text = b"aaaaaaaaaaaaaaaaaaaa\r\n\r\n".to_vec();
                text[at] = byte;
                assert_eq!(lines(&text).is_ok(), is_plain, "{byte} {at}");
            }
        }
    }

    proptest! {
        #[test]
        fn lines_are_those_that_a_slow_reader_finds(pieces in proptest::collection::vec(
            proptest::sample::select(vec!["\r\n", "\r\n\r\n", "\n", "\r", "a", "bc", " ", "!", "\t", "\0", "\u{7f}", "\u{e4}", "\u{1f}", "defghij"]), 0..24,
        )) {
            let text = pieces.concat();
            let Ok(Some((found, end))) = lines(text.as_bytes()) else { return Ok(()) };
            let slow: Vec<&[u8]> = text.split("\r\n").map(str::as_bytes).take_while(|line| !line.is_empty()).collect();
            prop_assert_eq!(&found, &slow);
            prop_assert_eq!(end, slow.iter().map(|line| line.len() + 2).sum::<usize>() + 2);
            prop_assert!(found.iter().flat_map(|line| line.iter()).all(|b| *b == b'\t' || (*b >= b' ' && *b != 0x7f)));
        }
    }
}
