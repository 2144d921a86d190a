//! What a run has done, so that the next one does not do it again: an append-only file beside the store, one line for each
//! batch of rows, written after their output. Whatever a kill cuts off was not done.

use super::input::Before;
use anyhow::Context as _;
use seawall_core::id::CallId;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

/// One line: what was done since the line before. Keys are hexadecimal, so that no reader loses digits.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Entry {
    /// Bytes that the output has with everything in here, where it is a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub done: Vec<String>,
    /// Rows that were given up on, their letters, and the letters that those take the place of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dead: Vec<(String, String, String)>,
    /// Rows whose pages up to this one are done, and where the next is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pages: Vec<(String, u32, String)>,
}

impl Entry {
    pub(super) fn key(key: u64) -> String {
        format!("{key:016x}")
    }
}

/// Which rows a run is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// All of them.
    Everything,
    /// Those without a success.
    Unfinished,
    /// Those that ended as dead letters.
    Dead,
}

/// What earlier runs did. Eight bytes for each row that is done.
#[derive(Debug)]
pub(super) struct Earlier {
    again: Again,
    /// Sorted. A row that stands in the input twice is in here once for each time it was done.
    done: Vec<u64>,
    met: Vec<bool>,
    dead: HashMap<u64, Vec<CallId>>,
    pages: HashMap<u64, (u32, String)>,
}

impl Earlier {
    fn new(again: Again) -> Self {
        Self { again, done: Vec::new(), met: Vec::new(), dead: HashMap::new(), pages: HashMap::new() }
    }

    fn add(&mut self, entry: Entry) {
        let key = |text: &str| u64::from_str_radix(text, 16).unwrap_or(0);
        for done in &entry.done {
            let done = key(done);
            self.done.push(done);
            self.pages.remove(&done);
            if let Some(letters) = self.dead.get_mut(&done) {
                letters.pop();
                if letters.is_empty() {
                    self.dead.remove(&done);
                }
            }
        }
        for (row, letter, before) in &entry.dead {
            let (letters, before) = (self.dead.entry(key(row)).or_default(), CallId::parse(before));
            letters.retain(|letter| Some(*letter) != before);
            letters.extend(CallId::parse(letter));
        }
        for (row, page, next) in entry.pages {
            self.pages.insert(key(&row), (page, next));
        }
    }

    pub(super) fn has_dead(&self) -> bool {
        !self.dead.is_empty()
    }

    /// What is known of a row, if it is to be done in this run.
    pub(super) fn meet(&mut self, key: u64) -> Option<Before> {
        if self.again == Again::Everything {
            return Some(Before::default());
        }
        let from = self.done.partition_point(|done| *done < key);
        if let Some(at) = (from..self.done.len()).take_while(|at| self.done[*at] == key).find(|at| !self.met[*at]) {
            self.met[at] = true;
            return None;
        }
        let letters = self.dead.get_mut(&key);
        if self.again == Again::Dead && letters.is_none() {
            return None;
        }
        Some(Before { letter: letters.and_then(Vec::pop), page: self.pages.get(&key).cloned() })
    }
}

#[derive(Debug)]
pub(super) struct Journal {
    file: File,
}

/// The journal of a run that another process is at.
#[derive(Debug, thiserror::Error)]
#[error("the same run is under way in another process")]
pub(super) struct Underway;

impl Journal {
    /// Opens the journal of a run, and says what earlier runs did and how much of the output belongs to that.
    pub(super) fn open(path: &Path, again: Again) -> anyhow::Result<(Self, Earlier, Option<u64>)> {
        let shown = || format!("cannot use the journal `{}`", path.display());
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).with_context(shown)?;
        }
        let mut file = File::options().create(true).truncate(false).read(true).write(true).open(path).with_context(shown)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Underway.into()),
            Err(TryLockError::Error(error)) => return Err(error).with_context(shown),
        }
        let mut earlier = Earlier::new(again);
        if again == Again::Everything {
            file.set_len(0).with_context(shown)?;
            return Ok((Self { file }, earlier, None));
        }
        let (whole, output) = load(&mut file, &mut earlier).with_context(shown)?;
        file.set_len(whole).with_context(shown)?;
        file.seek(SeekFrom::Start(whole)).with_context(shown)?;
        earlier.done.sort_unstable();
        earlier.met = vec![false; earlier.done.len()];
        Ok((Self { file }, earlier, output))
    }

    pub(super) fn append(&mut self, entry: &Entry) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        self.file.write_all(&line)
    }

    pub(super) fn sync(&self) -> std::io::Result<()> {
        self.file.sync_data()
    }
}

/// Reads as many whole lines as there are; how many bytes they have, and how long the output was with the last.
fn load(file: &mut File, earlier: &mut Earlier) -> std::io::Result<(u64, Option<u64>)> {
    let (mut whole, mut output) = (0, None);
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let mut line = Vec::new();
    loop {
        line.clear();
        // Entries are small; anything else is not ours and ends what can be believed.
        let read = reader.by_ref().take(64 << 20).read_until(b'\n', &mut line)?;
        let entry: Option<Entry> = if line.last() == Some(&b'\n') { serde_json::from_slice(&line).ok() } else { None };
        let Some(entry) = entry else { return Ok((whole, output)) };
        output = entry.output.or(output);
        earlier.add(entry);
        whole += u64::try_from(read).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(output: u64, done: &[u64]) -> Entry {
        Entry { output: Some(output), done: done.iter().map(|key| Entry::key(*key)).collect(), ..Entry::default() }
    }

    #[test]
    fn what_a_kill_cuts_off_was_not_done() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/journal");
        let (mut journal, ..) = Journal::open(&path, Again::Everything).unwrap();
        journal.append(&entry(10, &[1, 2, 2])).unwrap();
        journal.append(&entry(20, &[3])).unwrap();
        assert!(Journal::open(&path, Again::Unfinished).unwrap_err().is::<Underway>());
        drop(journal);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
        let (mut journal, mut earlier, output) = Journal::open(&path, Again::Unfinished).unwrap();
        assert_eq!(output, Some(10));
        let todo: Vec<u64> = [1, 2, 2, 2, 3].into_iter().filter(|key| earlier.meet(*key).is_some()).collect();
        assert_eq!(todo, [2, 3], "done as often as it stands there");
        journal.append(&entry(30, &[3])).unwrap();
        drop(journal);
        let (_, mut earlier, output) = Journal::open(&path, Again::Unfinished).unwrap();
        assert!(output == Some(30) && earlier.meet(3).is_none());
    }

    #[test]
    fn the_dead_are_met_again_with_their_letters_until_they_are_done() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let letter = CallId::from_bytes([7; 16]);
        let (mut journal, ..) = Journal::open(&path, Again::Everything).unwrap();
        let dead = Entry {
            dead: vec![(Entry::key(5), letter.to_string(), String::new())],
            pages: vec![(Entry::key(6), 3, "/n".to_owned())],
            ..entry(0, &[1])
        };
        journal.append(&dead).unwrap();
        drop(journal);
        let (mut journal, mut earlier, _) = Journal::open(&path, Again::Dead).unwrap();
        assert_eq!((earlier.meet(1), earlier.meet(2), earlier.has_dead()), (None, None, true));
        assert_eq!(earlier.meet(5).unwrap().letter, Some(letter));
        journal.append(&entry(0, &[5])).unwrap();
        drop(journal);
        let (_, mut earlier, _) = Journal::open(&path, Again::Unfinished).unwrap();
        assert_eq!((earlier.meet(5), earlier.has_dead()), (None, false));
        assert_eq!(earlier.meet(6).unwrap().page, Some((3, "/n".to_owned())));
    }
}
