//! Rewrites an output without the outdated lines of dead rows, which are fetched again, and of rows that an edited list replaces. The new
//! file atomically replaces the old one, behind a link if there is one, with the same mode.

use super::edited_list::{Edited, ResultFate};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, BufWriter, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};

/// The beginning of every line of an output.
const HEAD: &[u8] = b"{\"id\":";

/// A temporary file beside another, which is removed unless it replaces that one.
#[derive(Debug)]
struct Part {
    path: PathBuf,
    is_placed: bool,
}

impl Part {
    /// Creates the file, with the owner and the mode of the other one. Never opens an existing file.
    fn create_beside(other: &Path) -> io::Result<(Self, File)> {
        let path = other.with_file_name(format!(".seawall-{:016x}.part", seawall_engine::entropy()));
        let file = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        let part = Self { path, is_placed: false };
        let found = std::fs::metadata(other)?;
        // Only root may change the owner; otherwise the new file belongs to the user of this run.
        drop(fchown(&file, Some(found.uid()), Some(found.gid())));
        file.set_permissions(found.permissions())?;
        Ok((part, file))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.is_placed {
            // A leftover temporary file does no harm.
            drop(std::fs::remove_file(&self.path));
        }
    }
}

/// A rewritten output, ready to replace the original.
#[derive(Debug)]
pub(super) struct Mended {
    part: Part,
    path: PathBuf,
    pub length: u64,
    /// Lines of dead rows were removed.
    pub without_dead: bool,
    /// Ids or lines were changed because the list was.
    pub relined: bool,
    /// It has lines of rows that are not in the list.
    pub loose: bool,
}

impl Mended {
    /// Replaces the old file, durably.
    pub(super) fn replace(mut self) -> io::Result<()> {
        std::fs::rename(&self.part.path, &self.path)?;
        self.part.is_placed = true;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()
    }
}

/// Rewrites an output: without the lines of dead rows if `drops_dead`, and with the ids of an edited list.
pub(super) fn rewrite(path: &Path, drops_dead: bool, edited: Option<&Edited>) -> io::Result<Mended> {
    let path = &std::fs::canonicalize(path)?;
    let before = std::fs::metadata(path)?.len();
    let mended = pass(path, drops_dead, edited, false)?;
    // The journal distinguishes the two by their lengths, so pad the new one by a byte.
    if mended.relined && mended.length == before { pass(path, drops_dead, edited, true) } else { Ok(mended) }
}

fn pass(path: &Path, drops_dead: bool, edited: Option<&Edited>, mut pads: bool) -> io::Result<Mended> {
    #[derive(serde::Deserialize)]
    struct Line {
        outcome: Option<String>,
    }
    let (part, file) = Part::create_beside(path)?;
    let mut to = BufWriter::new(file);
    let mut from = BufReader::new(File::open(path)?);
    let mut mended = Mended { part, path: path.to_owned(), length: 0, without_dead: false, relined: false, loose: false };
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        let outcome = |line: &[u8]| serde_json::from_slice::<Line>(line).ok().and_then(|line| line.outcome);
        if drops_dead && outcome(&line).is_some_and(|outcome| outcome != "success") {
            mended.without_dead = true;
            line.clear();
            continue;
        }
        let found = edited.and_then(|edited| id(&line).map(|id| (id.len(), edited.fate(id))));
        match found {
            Some((_, ResultFate::Drop)) => {
                mended.relined = true;
                line.clear();
                continue;
            }
            Some((length, ResultFate::Line(number))) => {
                mended.relined = true;
                let text = format!("{number}{}", if std::mem::take(&mut pads) { " " } else { "" });
                line.splice(HEAD.len()..HEAD.len() + length, text.into_bytes());
            }
            Some((_, ResultFate::Stray)) => mended.loose = true,
            Some((_, ResultFate::Keep)) | None => {}
        }
        to.write_all(&line)?;
        mended.length += u64::try_from(line.len()).unwrap_or(0);
        line.clear();
    }
    to.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    Ok(mended)
}

/// The id at the beginning of a line, as it is written.
fn id(line: &[u8]) -> Option<&str> {
    let rest = line.strip_prefix(HEAD)?;
    let mut values = serde_json::Deserializer::from_slice(rest).into_iter::<serde::de::IgnoredAny>();
    values.next()?.ok()?;
    // The offset is before the comma that follows a number.
    std::str::from_utf8(&rest[..values.byte_offset()]).ok()
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
        let mended = rewrite(&path, true, None).unwrap();
        let length = mended.length;
        mended.replace().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{good}{good}"));
        assert_eq!(length, u64::try_from(good.len() * 2).unwrap());
    }

    #[test]
    fn an_id_is_found_however_it_is_written() {
        for (line, expected) in
            [("{\"id\":12,\"url\":1}", "12"), (r#"{"id":"a\",b","url":1}"#, r#""a\",b""#), (r#"{"id":true ,"url"}"#, "true")]
        {
            assert_eq!(id(line.as_bytes()), Some(expected));
        }
        assert_eq!(id(b"{\"x\":1}"), None);
    }
}
