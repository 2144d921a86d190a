//! Rows of one lane that wait on disk: first in, first out, in a temporary file, so that a lane may be as long as the input in constant
//! memory.

use super::row::InputRow;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

/// Read and written in pieces of about this size.
const PIECE: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct Spill {
    file: File,
    /// Bytes written to the file, and bytes read from it.
    written: u64,
    read: u64,
    /// Bytes read from the file; those before `at` have been taken.
    head: Vec<u8>,
    at: usize,
    /// Bytes not yet in the file.
    tail: Vec<u8>,
    rows: u64,
}

impl Spill {
    pub(super) fn new(folder: &Path, name: usize) -> io::Result<Self> {
        let file = File::options().create(true).truncate(true).read(true).write(true).open(folder.join(format!("lane-{name}")))?;
        Ok(Self { file, written: 0, read: 0, head: Vec::new(), at: 0, tail: Vec::new(), rows: 0 })
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.rows == 0
    }

    pub(super) fn push(&mut self, row: &InputRow) -> io::Result<()> {
        row.write(&mut self.tail);
        self.rows += 1;
        if self.tail.len() >= PIECE {
            self.file.write_all_at(&self.tail, self.written)?;
            self.written += u64::try_from(self.tail.len()).unwrap_or(0);
            self.tail.clear();
        }
        Ok(())
    }

    pub(super) fn pop(&mut self, lane: &Arc<str>) -> io::Result<Option<InputRow>> {
        if self.rows == 0 {
            return Ok(None);
        }
        loop {
            if let Some((row, used)) = InputRow::read(&self.head[self.at..], lane) {
                self.at += used;
                self.rows -= 1;
                if self.rows == 0 {
                    self.written = 0;
                    self.read = 0;
                    self.file.set_len(0)?;
                }
                return Ok(Some(row));
            }
            self.refill()?;
        }
    }

    fn refill(&mut self) -> io::Result<()> {
        self.head.drain(..self.at);
        self.at = 0;
        let left = usize::try_from(self.written - self.read).unwrap_or(usize::MAX);
        if left == 0 {
            self.head.append(&mut self.tail);
            return Ok(());
        }
        let start = self.head.len();
        self.head.resize(start + left.min(PIECE), 0);
        self.file.read_exact_at(&mut self.head[start..], self.read)?;
        self.read += u64::try_from(left.min(PIECE)).unwrap_or(0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_leave_in_the_order_in_which_they_came() {
        let folder = tempfile::tempdir().unwrap();
        let lane: Arc<str> = Arc::from("l");
        let mut spill = Spill::new(folder.path(), 0).unwrap();
        let row = |n: u64| InputRow {
            line: n,
            ordinal: n,
            key: n,
            id: String::new(),
            file: String::new(),
            lane: Arc::clone(&lane),
            method: "GET".to_owned(),
            below: format!("/{}", "x".repeat(usize::try_from(n % 700).unwrap())),
            headers: Vec::new(),
            body: bytes::Bytes::new(),
        };
        let (mut pushed, mut popped) = (0, 0);
        for round in 0..40 {
            for _ in 0..100 {
                spill.push(&row(pushed)).unwrap();
                pushed += 1;
            }
            for _ in 0..if round == 39 { 4000 } else { 60 } {
                if let Some(read) = spill.pop(&lane).unwrap() {
                    assert_eq!(read, row(popped));
                    popped += 1;
                }
            }
        }
        assert_eq!((popped, spill.is_empty()), (4000, true));
        spill.push(&row(1)).unwrap();
        assert_eq!(spill.pop(&lane).unwrap(), Some(row(1)));
    }
}
