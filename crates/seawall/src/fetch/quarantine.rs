//! Rows that are themselves at fault: invalid lines, and responses that fail a check. They are written to a file with their problems, and
//! the run continues.

use seawall_server::letter::Cause;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::PathBuf;

/// A file that is created for the first row.
#[derive(Debug)]
pub(super) struct Quarantine {
    pub path: PathBuf,
    file: Option<BufWriter<File>>,
    pub rows: u64,
    /// The file has been emptied, and is removed if no row comes.
    is_emptied: bool,
}

impl Quarantine {
    /// Empties an earlier run's file: its rows are fetched again, or were not requested. The run has claimed the path, so that the file is
    /// its own.
    pub(super) fn new(path: PathBuf) -> io::Result<Self> {
        let is_emptied = std::fs::metadata(&path).is_ok_and(|found| found.is_file() && found.len() > 0);
        if is_emptied {
            File::options().write(true).open(&path)?.set_len(0)?;
        }
        Ok(Self { path, file: None, rows: 0, is_emptied })
    }

    /// Closes the file; removes it if it was emptied and got no row.
    pub(super) fn close(mut self) -> io::Result<Self> {
        self.flush()?;
        let is_link = || std::fs::symlink_metadata(&self.path).is_ok_and(|found| found.is_symlink());
        if self.is_emptied && self.rows == 0 && !is_link() {
            std::fs::remove_file(&self.path)?;
        }
        Ok(self)
    }

    pub(super) fn put(&mut self, id: &str, line: u64, url: &str, cause: &Cause, body: &[u8]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(BufWriter::new(File::options().create(true).append(true).open(&self.path)?)),
        };
        let id: serde_json::Value = serde_json::from_str(id).unwrap_or_else(|_| line.into());
        let row = serde_json::json!({
            "id": id, "line": line, "url": url, "code": cause.code, "detail": cause.detail.as_str(), "body": String::from_utf8_lossy(body),
        });
        self.rows += 1;
        writeln!(file, "{row}")
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), BufWriter::flush)
    }
}
