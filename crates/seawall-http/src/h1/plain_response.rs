//! Lines that nobody can read differently: each ends with a carriage return and a line feed, and has no control in it but tabs.
//! Whoever finds a line that is not plain reads all of the head in some other way.

/// A line is not plainly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotPlain;

/// The same byte in each place of a word.
const EACH: u64 = 0x0101_0101_0101_0101;
const TOP: u64 = EACH * 0x80;

/// Lines out of bytes.
#[derive(Debug)]
pub(super) struct Plain<'a> {
    bytes: &'a [u8],
    /// Where the next line begins.
    pub(super) start: usize,
}

impl<'a> Plain<'a> {
    #[inline]
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, start: 0 }
    }

    /// The next line, without its end; nothing where that is not here yet.
    #[inline]
    pub(super) fn next(&mut self) -> Result<Option<&'a [u8]>, NotPlain> {
        let rest = &self.bytes[self.start..];
        let Some(end) = end(rest)? else { return Ok(None) };
        self.start += end + 2;
        Ok(Some(&rest[..end]))
    }
}

/// Where the first line ends. Its end and controls in it are found in one pass, a word at a time: lines are short, and to begin a
/// faster search for each costs more than to make it.
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
            // A tab is no end, and the last few bytes have not been looked at.
            [b'\t' | b' '..=b'~' | 0x80.., more @ ..] => rest = more,
            [0..=0x1f | 0x7f, ..] => return Err(NotPlain),
        }
    }
}

/// Bytes below a space, and deletes: the top bit of each. Behind the first there may be some that are neither.
#[inline]
const fn suspects(word: u64) -> u64 {
    let below = word.wrapping_sub(EACH * 0x20) & !word;
    let other = word ^ (EACH * 0x7f);
    (below | (other.wrapping_sub(EACH) & !other)) & TOP
}

/// Which byte of a word the first suspect is.
#[inline]
const fn place(suspects: u64) -> usize {
    (suspects.trailing_zeros() / u8::BITS) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Lines, and how far they go.
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
