//! A list that was edited since the last run. A finished row keeps its result wherever it moved: a row without an id is identified by its
//! line, so its result gets the new line. A result leaves the output if its id now belongs to another row.

use super::earlier_runs::{Earlier, EarlierRuns};
use super::input::{InputReader, Read};
use super::journal::JournalEntry;
use super::remainder::{Remainder, UNKNOWN_LINE};
use super::row::InputRow;
use anyhow::Context as _;
use seawall_store::Error;

/// A row that the journal knows.
#[derive(Clone, Debug)]
struct JournaledRow {
    key: u64,
    /// Its line in the output, which serves as its id if it has no other.
    line: u64,
    /// Its line in the list; 0 if it was removed.
    now: u64,
    is_named: bool,
    /// For an unfinished row.
    remainder: Option<Remainder>,
}

impl JournaledRow {
    fn has_results(&self) -> bool {
        self.remainder.as_ref().is_none_or(|remainder| remainder.page.is_some())
    }
}

/// The fate of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResultFate {
    Keep,
    /// It stays, although no row of the list has its id.
    Stray,
    Drop,
    /// It gets this line as its id.
    Line(u64),
}

#[derive(Debug, Default)]
pub(super) struct Edited {
    /// Sorted by line.
    known: Vec<JournaledRow>,
    /// Lines of rows without an id, sorted.
    unnamed: Vec<u64>,
    /// Hashes of the other ids, sorted: of rows that are done, and of new ones.
    done_ids: Vec<u64>,
    new_ids: Vec<u64>,
    /// The current lines of known rows, sorted.
    known_lines: Vec<u64>,
    /// New rows get results in this run.
    does_new_rows: bool,
}

impl Edited {
    /// Compares a list with the journal. `None` if rows with results are still on their lines, or if no output `tells` whose result is
    /// whose.
    pub(super) async fn find(earlier: &mut Earlier, reader: &mut InputReader, tells: bool) -> anyhow::Result<Option<Self>> {
        let mut found = EarlierRuns::default();
        reader.survey(|read| earlier.compare(read.place(), &mut found)).context("cannot read the input")?;
        if earlier.is_unchanged(&found) {
            return Ok(None);
        }
        if !tells {
            earlier.forget_lines().await.context("cannot read the journal")?;
            return Ok(None);
        }
        let known = known(earlier).await.context("cannot read the journal")?;
        if known.is_empty() {
            return Ok(None);
        }
        let mut edited = Self { known, does_new_rows: earlier.does_new_rows(), ..Self::default() };
        reader.survey(|read| edited.note_row(read)).context("cannot read the input")?;
        edited.known.sort_unstable_by_key(|known| known.line);
        edited.done_ids.sort_unstable();
        edited.new_ids.sort_unstable();
        edited.known_lines = edited.known.iter().map(|known| known.now).collect();
        edited.known_lines.sort_unstable();
        Ok(Some(edited))
    }

    /// Records a row of the list. The known rows are sorted by key.
    fn note_row(&mut self, read: &Read) {
        let (line, key) = read.place();
        let id = read.id();
        let from = self.known.partition_point(|known| known.key < key);
        let same = || self.known[from..].iter().take_while(|known| known.key == key).enumerate().filter(|(_, known)| known.now == 0);
        // Among equal rows, each keeps its own line if possible.
        let met = same().find(|(_, known)| known.line == line).or_else(|| same().next()).map(|(at, _)| from + at);
        if let Some(at) = met {
            (self.known[at].now, self.known[at].is_named) = (line, !id.is_empty());
        }
        match (id.is_empty(), met) {
            (true, _) => self.unnamed.push(line),
            (false, Some(_)) => self.done_ids.push(hash(id)),
            (false, None) => self.new_ids.push(hash(id)),
        }
    }

    /// The fate of the results with this id, a JSON text.
    pub(super) fn fate(&self, id: &str) -> ResultFate {
        let number: Option<u64> = id.parse().ok();
        if let Some(number) = number {
            let from = self.known.partition_point(|known| known.line < number);
            let same = self.known[from..].iter().take_while(|known| known.line == number);
            if let Some(known) = same.into_iter().find(|known| known.has_results() && known.now != 0 && !known.is_named) {
                return if known.now == number { ResultFate::Keep } else { ResultFate::Line(known.now) };
            }
        }
        let id = hash(id);
        let has = |lines: &[u64]| number.is_some_and(|number| lines.binary_search(&number).is_ok());
        if self.done_ids.binary_search(&id).is_ok() {
            return ResultFate::Keep;
        }
        let is_anothers = self.new_ids.binary_search(&id).is_ok() || has(&self.unnamed);
        // Drops no result for a row that gets none in this run.
        if is_anothers && (self.does_new_rows || has(&self.known_lines)) { ResultFate::Drop } else { ResultFate::Stray }
    }

    /// Whether a row without an id has another line than before.
    pub(super) fn has_moved_unnamed(&self) -> bool {
        self.known.iter().any(|known| known.has_results() && !known.is_named && known.now != 0 && known.now != known.line)
    }

    /// The finished rows of the list as it is now.
    pub(super) fn entry(&self, loose: bool) -> JournalEntry {
        let mut entry = JournalEntry { relined: true, loose, ..JournalEntry::default() };
        for known in &self.known {
            let is_there = known.now != 0;
            let Some(remainder) = &known.remainder else {
                entry.done.extend(is_there.then_some((known.now, known.key)));
                continue;
            };
            if let Some((page, next)) = remainder.page.as_ref().filter(|_| is_there) {
                entry.pages.push((known.key, *page, next.clone()));
                entry.page_lines.push(known.now);
            }
            // If a removed row comes back and succeeds, its letter is out of date.
            if remainder.is_dead {
                let letter = remainder.letter.map(|letter| letter.to_string()).unwrap_or_default();
                entry.dead.push((known.key, letter.clone(), letter));
                entry.dead_lines.push(if is_there { known.now } else { UNKNOWN_LINE });
            }
        }
        entry
    }
}

/// Every row that the journal knows, sorted by key.
async fn known(earlier: &Earlier) -> Result<Vec<JournaledRow>, Error> {
    let Some(pieces) = earlier.pieces() else { return Ok(Vec::new()) };
    let row = |key, line, remainder| JournaledRow { key, line, now: 0, is_named: false, remainder };
    let mut known = Vec::new();
    pieces
        .each(|_, entry| {
            if entry.relined {
                known.clear();
            }
            known.extend(entry.done.iter().map(|(line, key)| row(*key, *line, None)));
        })
        .await?;
    known.extend(earlier.remainders().iter().map(|(key, remainder)| row(key, remainder.line, Some(remainder.clone()))));
    known.sort_unstable_by_key(|known| known.key);
    Ok(known)
}

fn hash(id: &str) -> u64 {
    InputRow::key(id, "", "", "", b"")
}
