//! The input as lines of bounded length: a file or stdin, plain or gzip.

use anyhow::Context as _;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Longer lines are skipped.
pub(super) const MAX_LINE: usize = 16 << 20;

pub(super) struct LineReader {
    reader: Box<dyn BufRead + Send>,
    /// Lines read so far.
    pub number: u64,
    path: PathBuf,
    read: Arc<AtomicU64>,
}

impl std::fmt::Debug for LineReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lines({})", self.number)
    }
}

/// One line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TextLine {
    Text(Vec<u8>),
    TooLong,
    End,
}

/// Counts bytes of the input as stored, before decompression.
struct CountingReader<R> {
    inner: R,
    read: Arc<AtomicU64>,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.read.fetch_add(u64::try_from(count).unwrap_or(0), Ordering::Relaxed);
        Ok(count)
    }
}

impl LineReader {
    /// Opens a file, or stdin for `-`. `read` counts the bytes read.
    pub(super) fn open(path: &Path, read: Arc<AtomicU64>) -> anyhow::Result<Self> {
        let source: Box<dyn Read + Send> = if path == Path::new("-") {
            Box::new(io::stdin())
        } else {
            Box::new(File::open(path).with_context(|| format!("cannot read `{}`", path.display()))?)
        };
        let reader = Self::of(CountingReader { inner: source, read: Arc::clone(&read) });
        let reader = reader.with_context(|| format!("cannot read `{}`", path.display()))?;
        Ok(Self { reader, number: 0, path: path.to_owned(), read })
    }

    /// Starts again with the first line. Not possible for stdin, which cannot be read twice.
    pub(super) fn reopen(&mut self) -> anyhow::Result<()> {
        self.read.store(0, Ordering::Relaxed);
        *self = Self::open(&self.path, Arc::clone(&self.read))?;
        Ok(())
    }

    fn of(mut source: impl Read + Send + 'static) -> io::Result<Box<dyn BufRead + Send>> {
        let mut first = [0; 2];
        let mut count = 0;
        while count < 2 {
            match source.read(&mut first[count..])? {
                0 => break,
                more => count += more,
            }
        }
        let whole = io::Cursor::new(first).take(u64::try_from(count).unwrap_or(0)).chain(source);
        Ok(if first == [0x1f, 0x8b] {
            Box::new(BufReader::with_capacity(1 << 16, flate2::read::MultiGzDecoder::new(whole)))
        } else {
            Box::new(BufReader::with_capacity(1 << 16, whole))
        })
    }

    /// The next line without its end.
    pub(super) fn line(&mut self) -> io::Result<TextLine> {
        let mut line = Vec::new();
        let most = u64::try_from(MAX_LINE).unwrap_or(u64::MAX) + 1;
        if self.reader.by_ref().take(most).read_until(b'\n', &mut line)? == 0 {
            return Ok(TextLine::End);
        }
        self.number += 1;
        if line.last() != Some(&b'\n') && line.len() > MAX_LINE {
            self.skip()?;
            return Ok(TextLine::TooLong);
        }
        while matches!(line.last(), Some(b'\n' | b'\r')) {
            line.pop();
        }
        if self.number == 1 && line.starts_with(b"\xef\xbb\xbf") {
            line.drain(..3);
        }
        Ok(TextLine::Text(line))
    }

    fn skip(&mut self) -> io::Result<()> {
        loop {
            let piece = self.reader.fill_buf()?;
            let (used, over) = match piece.iter().position(|byte| *byte == b'\n') {
                Some(at) => (at + 1, true),
                None => (piece.len(), piece.is_empty()),
            };
            self.reader.consume(used);
            if over {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn all(bytes: Vec<u8>) -> Vec<TextLine> {
        let reader = LineReader::of(io::Cursor::new(bytes)).unwrap();
        let mut lines = LineReader { reader, number: 0, path: PathBuf::new(), read: Arc::default() };
        let mut read = Vec::new();
        loop {
            match lines.line().unwrap() {
                TextLine::End => return read,
                line => read.push(line),
            }
        }
    }

    fn text(text: &str) -> TextLine {
        TextLine::Text(text.as_bytes().to_vec())
    }

    #[test]
    fn lines_are_the_same_plain_and_compressed() {
        let plain = b"\xef\xbb\xbfa\r\nb\n\nc".to_vec();
        let expected = [text("a"), text("b"), text(""), text("c")];
        assert_eq!(all(plain.clone()), expected);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&plain).unwrap();
        assert_eq!(all(gzip.finish().unwrap()), expected);
        assert_eq!(all(Vec::new()), []);
        assert_eq!(all(b"x".to_vec()), [text("x")]);
    }

    #[test]
    fn a_line_without_end_is_left_at_its_next_neighbour() {
        let mut bytes = vec![b'x'; MAX_LINE + 5];
        bytes.extend_from_slice(b"\nnext\n");
        assert_eq!(all(bytes), [TextLine::TooLong, text("next")]);
    }
}
