//! An incremental decoder of the chunked coding. Extensions and trailers belong to this hop and are dropped; both are bounded and strictly
//! parsed: if we were lenient, another parser could find the end of a chunk elsewhere.

use super::raw_response::is_token;
use bytes::Bytes;

/// The body broke off or is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cut {
    #[error("the connection ended before the body did")]
    Short,
    #[error("the body's chunks are malformed")]
    Malformed,
}

/// The most bytes of extensions and trailers in one body.
const MAX_ASIDE: u32 = 16 * 1024;
/// The most digits of a chunk's size: those of the largest 64-bit number. Leading zeros count too, or a size could go on for ever.
const MAX_SIZE_DIGITS: u8 = 16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    /// The digits of a size, at least one.
    #[default]
    Size,
    MoreSize,
    /// Space behind a size; some servers pad it to a fixed width.
    SizeSpace,
    /// The start of an extension, `;name`, `;name=value` or `;name="value"` (RFC 9112 §7.1.1).
    Extension,
    ExtensionName,
    ExtensionNameSpace,
    ExtensionEquals,
    ExtensionValue,
    ExtensionQuoted,
    ExtensionEscaped,
    /// Space behind an extension's value.
    ExtensionEnd,
    SizeEnd,
    Data,
    DataCr,
    DataLf,
    /// The start of a trailer line, or the end of the body.
    Trailer,
    TrailerName,
    TrailerValue,
    TrailerLf,
    LastLf,
    Over,
}

#[derive(Debug, Default)]
pub(super) struct Chunks {
    at: At,
    left: u64,
    /// Digits of the size so far.
    digits: u8,
    aside: u32,
}

impl Chunks {
    pub(super) fn is_over(&self) -> bool {
        self.at == At::Over
    }

    /// The next piece of data. `None` means that more must be read first, or that the body has ended.
    pub(super) fn take(&mut self, ahead: &mut Bytes) -> Result<Option<Bytes>, Cut> {
        let mut read = 0;
        while self.at != At::Data && self.at != At::Over {
            let Some(byte) = ahead.get(read) else { break };
            read += 1;
            self.at = self.step(*byte).ok_or(Cut::Malformed)?;
        }
        drop(ahead.split_to(read));
        if self.at != At::Data || ahead.is_empty() {
            return Ok(None);
        }
        let size = usize::try_from(self.left).unwrap_or(usize::MAX).min(ahead.len());
        let data = ahead.split_to(size);
        self.left -= u64::try_from(size).unwrap_or(u64::MAX);
        if self.left == 0 {
            self.at = At::DataCr;
            // The end of the body usually follows its last piece directly, and is then consumed with it.
            if ahead.starts_with(b"\r\n0\r\n\r\n") {
                drop(ahead.split_to(7));
                self.at = At::Over;
            }
        }
        Ok(Some(data))
    }

    /// The state after one more byte; `None` if the byte is not allowed.
    fn step(&mut self, byte: u8) -> Option<At> {
        Some(match (self.at, byte) {
            (At::Size | At::MoreSize, digit) if digit.is_ascii_hexdigit() => {
                let digit = char::from(digit).to_digit(16)?;
                self.digits = if self.at == At::Size { 1 } else { self.digits + 1 };
                if self.digits > MAX_SIZE_DIGITS {
                    return None;
                }
                self.left = self.left.checked_mul(16)?.checked_add(u64::from(digit))?;
                At::MoreSize
            }
            (At::MoreSize | At::SizeSpace, b'\r') => At::SizeEnd,
            (At::MoreSize | At::SizeSpace, b';') => self.beside(At::Extension)?,
            (At::MoreSize | At::SizeSpace, b' ' | b'\t') => self.beside(At::SizeSpace)?,
            (
                At::Extension
                | At::ExtensionName
                | At::ExtensionNameSpace
                | At::ExtensionEquals
                | At::ExtensionValue
                | At::ExtensionQuoted
                | At::ExtensionEscaped
                | At::ExtensionEnd,
                byte,
            ) => self.extension(byte)?,
            (At::SizeEnd, b'\n') if self.left == 0 => At::Trailer,
            (At::SizeEnd, b'\n') => At::Data,
            (At::DataCr, b'\r') => At::DataLf,
            (At::DataLf, b'\n') => At::Size,
            (At::Trailer, b'\r') => At::LastLf,
            (At::TrailerValue, b'\r') => At::TrailerLf,
            (At::TrailerName, b':') => self.beside(At::TrailerValue)?,
            (At::Trailer | At::TrailerName, byte) if is_token(byte) => self.beside(At::TrailerName)?,
            (At::TrailerValue, byte) if is_text(byte) => self.beside(At::TrailerValue)?,
            (At::TrailerLf, b'\n') => At::Trailer,
            (At::LastLf, b'\n') => At::Over,
            _ => return None,
        })
    }

    /// The state after one more byte of an extension.
    fn extension(&mut self, byte: u8) -> Option<At> {
        let next = match (self.at, byte) {
            (At::ExtensionName | At::ExtensionNameSpace | At::ExtensionValue | At::ExtensionEnd, b'\r') => return Some(At::SizeEnd),
            (At::ExtensionName | At::ExtensionNameSpace | At::ExtensionValue | At::ExtensionEnd, b';') => At::Extension,
            (At::ExtensionName | At::ExtensionNameSpace, b'=') => At::ExtensionEquals,
            (At::ExtensionName | At::ExtensionNameSpace, b' ' | b'\t') => At::ExtensionNameSpace,
            (At::ExtensionValue | At::ExtensionEnd, b' ' | b'\t') => At::ExtensionEnd,
            (At::Extension | At::ExtensionEquals, b' ' | b'\t') => self.at,
            (At::Extension | At::ExtensionName, byte) if is_token(byte) => At::ExtensionName,
            (At::ExtensionEquals | At::ExtensionValue, byte) if is_token(byte) => At::ExtensionValue,
            (At::ExtensionEquals, b'"') => At::ExtensionQuoted,
            (At::ExtensionQuoted, b'"') => At::ExtensionEnd,
            (At::ExtensionQuoted, b'\\') => At::ExtensionEscaped,
            (At::ExtensionQuoted | At::ExtensionEscaped, byte) if is_text(byte) => At::ExtensionQuoted,
            _ => return None,
        };
        self.beside(next)
    }

    fn beside(&mut self, at: At) -> Option<At> {
        self.aside += 1;
        (self.aside <= MAX_ASIDE).then_some(at)
    }
}

/// Whether a byte may be in a value: no controls except tabs.
const fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes `text` in pieces of `step` bytes: the data, and whether the body has ended.
    fn decoded(text: &[u8], step: usize) -> Result<(Vec<u8>, bool, usize), Cut> {
        let (mut chunks, mut out, mut ahead) = (Chunks::default(), Vec::new(), Bytes::new());
        for piece in text.chunks(step) {
            ahead = Bytes::from([&ahead[..], piece].concat());
            while let Some(data) = chunks.take(&mut ahead)? {
                out.extend_from_slice(&data);
            }
        }
        Ok((out, chunks.is_over(), ahead.len()))
    }

    #[test]
    fn chunks_come_out_whole_however_they_are_cut() {
        let text = b"5\r\nhello\r\n1;a=\"b\"\r\n,\r\n00A\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\nrest";
        for step in 1..text.len() {
            assert_eq!(decoded(text, step).unwrap(), (b"hello,0123456789".to_vec(), true, 4), "{step}");
        }
        assert_eq!(decoded(b"2\r\nab\r\n0\r\n\r\n", 99).unwrap(), (b"ab".to_vec(), true, 0));
        assert_eq!(decoded(b"2\r\nab\r\n0\r\n", 99).unwrap(), (b"ab".to_vec(), false, 0));
    }

    #[test]
    fn extensions_and_trailers_are_left_out() {
        for line in
            ["1", "1 ", "1\t ", "1;a", "1;a;b", "1 ; a", "1;a=b", "1;a = b ;c", "1;a=\"\"", "1;a=\"b;c\\\"\t\u{e4}\" ;d", "1;a=\"\\\\\""]
        {
            let text = format!("{line}\r\nx\r\n0;e\r\nA:\r\nb: c\td\u{e4}\r\n\r\n");
            for step in [1, 2, 99] {
                assert_eq!(decoded(text.as_bytes(), step).unwrap(), (b"x".to_vec(), true, 0), "{line}");
            }
        }
    }

    #[test]
    fn what_is_no_chunk_is_malformed() {
        for text in [
            "\r\n",
            "g\r\n",
            "-1\r\n",
            "0x5\r\n",
            "5\nhello",
            "5\r\nhelloX\r\n",
            "5\r\nhello\n",
            "1;\n",
            "fffffffffffffffff\r\n",
            "0\r\na\n",
            "0\r\n\rX",
            "1 2\r\n",
            "1 a\r\n",
            "1;\r\n",
            "1;=a\r\n",
            "1;a=\r\n",
            "1;a b\r\n",
            "1;a=b c\r\n",
            "1;a=\"b\r\n",
            "1;a=\"b\"c\r\n",
            "1;a=\"\0\"\r\n",
            "1;a\0\r\n",
            "1;a\rb\r\n",
            "1;\u{e4}\r\n",
            "0\r\na\r\n",
            "0\r\na b: c\r\n",
            "0\r\na : c\r\n",
            "0\r\n: c\r\n",
            "0\r\n a: c\r\n",
            "0\r\na: b\r\n c\r\n",
            "0\r\na: \0\r\n",
            "0\r\na: b\rc: d\r\n",
            "0\r\nGET / HTTP/1.1\r\n",
        ] {
            assert_eq!(decoded(text.as_bytes(), 99), Err(Cut::Malformed), "{text:?}");
        }
        let endless = format!("1;{}", "x".repeat(70_000));
        assert_eq!(decoded(endless.as_bytes(), 9999), Err(Cut::Malformed));
        let zeros = "0".repeat(17);
        assert_eq!(decoded(zeros.as_bytes(), 1), Err(Cut::Malformed));
        assert_eq!(decoded(format!("{}5\r\nhello\r\n0\r\n\r\n", "0".repeat(15)).as_bytes(), 99).unwrap().0, b"hello");
    }
}
