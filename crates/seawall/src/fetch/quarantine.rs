//! Rows that are at fault themselves: lines that make no request, answers that are not what they should be. They are put
//! aside with what is wrong with them, and the rest goes on.

use crate::letter::Cause;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};

/// A file that is made when the first row comes.
#[derive(Debug)]
pub(super) struct Quarantine {
    pub path: PathBuf,
    file: Option<BufWriter<File>>,
    pub rows: u64,
}

impl Quarantine {
    /// What an earlier run left is gone: its rows are done again, or were not asked for.
    pub(super) fn new(path: PathBuf) -> io::Result<Self> {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        Ok(Self { path, file: None, rows: 0 })
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

/// An output without the lines of dead rows, beside the one that it will take the place of.
#[derive(Debug)]
pub(super) struct Mended {
    part: PathBuf,
    path: PathBuf,
    pub length: u64,
}

impl Mended {
    /// Takes the place of the old one, for good.
    pub(super) fn replace(self) -> io::Result<()> {
        std::fs::rename(&self.part, &self.path)?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()
    }
}

/// Takes the lines of dead rows out of an output: those rows are done again.
pub(super) fn without_dead(path: &Path) -> io::Result<Mended> {
    #[derive(serde::Deserialize)]
    struct Line {
        outcome: Option<String>,
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    let part = PathBuf::from(name);
    let mut to = BufWriter::new(File::create(&part)?);
    let mut from = BufReader::new(File::open(path)?);
    let (mut line, mut length) = (Vec::new(), 0);
    while from.read_until(b'\n', &mut line)? > 0 {
        let is_dead = serde_json::from_slice::<Line>(&line).ok().and_then(|line| line.outcome).is_some_and(|outcome| outcome != "success");
        if !is_dead {
            to.write_all(&line)?;
            length += u64::try_from(line.len()).unwrap_or(0);
        }
        line.clear();
    }
    to.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    Ok(Mended { part, path: path.to_owned(), length })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_dead_rows_leave_the_output() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let good = "{\"id\":1,\"outcome\":\"success\",\"body\":{\"outcome\":\"permanent\"}}\n";
        std::fs::write(&path, format!("{good}{{\"id\":2,\"outcome\":\"permanent\"}}\n{good}")).unwrap();
        let mended = without_dead(&path).unwrap();
        let length = mended.length;
        mended.replace().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{good}{good}"));
        assert_eq!(length, u64::try_from(good.len() * 2).unwrap());
    }
}
