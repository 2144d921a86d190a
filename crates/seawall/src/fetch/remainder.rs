//! Remainders from earlier runs of unfinished rows: dead letters, and fetched pages. A list may have equal rows, so each remainder belongs
//! to a line, and only the row of that line ends it.

use super::journal::JournalEntry;
use seawall_core::id::CallId;
use std::collections::HashMap;

/// The line of remainders from journals that do not name it.
pub(super) const UNKNOWN_LINE: u64 = 0;

/// The remainder of one row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Remainder {
    pub line: u64,
    /// The row ended as a dead letter.
    pub is_dead: bool,
    /// `None` if the policy keeps no letters.
    pub letter: Option<CallId>,
    /// The last fetched page, and the place of the next one.
    pub page: Option<(u32, String)>,
}

/// All remainders, by the keys of their rows.
#[derive(Debug, Default)]
pub(super) struct Remainders(HashMap<u64, Vec<Remainder>>);

/// The remainders that a row may take from other lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RemainderMatch {
    /// From lines that were read before: those now have other rows.
    Line,
    /// Also dead rows of later lines. Rows with pages must be on their own lines.
    Dead,
    /// Any: lines do not identify rows any more.
    Key,
}

impl Remainders {
    pub(super) fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    pub(super) fn has_dead(&self) -> bool {
        self.0.values().flatten().any(|remainder| remainder.is_dead)
    }

    pub(super) fn has(&self, (line, key): (u64, u64)) -> bool {
        self.find(line, key).is_some()
    }

    /// Whether the row of a line has pages and is unfinished.
    pub(super) fn has_pages(&self, (line, key): (u64, u64)) -> bool {
        self.find(line, key).is_some_and(|remainder| remainder.page.is_some())
    }

    fn find(&self, line: u64, key: u64) -> Option<&Remainder> {
        self.0.get(&key)?.iter().find(|remainder| remainder.line == line)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Remainder)> {
        self.0.iter().flat_map(|(key, remainders)| remainders.iter().map(|remainder| (*key, remainder)))
    }

    /// Adds a piece of the journal.
    pub(super) fn add(&mut self, entry: &JournalEntry) {
        if entry.relined {
            self.0.clear();
        }
        for (key, from, to) in &entry.moved {
            if let Some(moved) = self.remove(*key, *from) {
                let remainder = self.at(*key, *to);
                *remainder = Remainder { line: *to, ..moved };
            }
        }
        for ((key, page, next), line) in entry.pages.iter().zip(lines(&entry.page_lines)) {
            self.at(*key, line).page = Some((*page, next.clone()));
        }
        for (line, key) in &entry.done {
            if self.remove(*key, *line).is_none() {
                self.remove(*key, UNKNOWN_LINE);
            }
        }
        for ((key, letter, before), line) in entry.dead.iter().zip(lines(&entry.dead_lines)) {
            let (letter, before) = (CallId::parse(letter), CallId::parse(before));
            if line == UNKNOWN_LINE {
                self.add_dead(*key, letter, before);
            } else {
                let remainder = self.at(*key, line);
                (remainder.is_dead, remainder.letter) = (true, letter);
            }
        }
    }

    /// A dead row without a line is identified by its letter alone.
    fn add_dead(&mut self, key: u64, letter: Option<CallId>, before: Option<CallId>) {
        let remainders = self.0.entry(key).or_default();
        let same = |remainder: &&mut Remainder| {
            remainder.line == UNKNOWN_LINE && (!remainder.is_dead || (before.is_some() && remainder.letter == before))
        };
        match remainders.iter_mut().find(same) {
            Some(remainder) => (remainder.is_dead, remainder.letter) = (true, letter),
            None => remainders.push(Remainder { is_dead: true, letter, ..Remainder::default() }),
        }
    }

    fn at(&mut self, key: u64, line: u64) -> &mut Remainder {
        let remainders = self.0.entry(key).or_default();
        let at = remainders.iter().position(|remainder| remainder.line == line).unwrap_or_else(|| {
            remainders.push(Remainder { line, ..Remainder::default() });
            remainders.len() - 1
        });
        &mut remainders[at]
    }

    fn remove(&mut self, key: u64, line: u64) -> Option<Remainder> {
        let remainders = self.0.get_mut(&key)?;
        let at = remainders.iter().position(|remainder| remainder.line == line)?;
        let removed = remainders.remove(at);
        if remainders.is_empty() {
            self.0.remove(&key);
        }
        Some(removed)
    }

    /// Takes the remainder of the row on this line: its own, or that of an equal row which has moved.
    pub(super) fn take(&mut self, (line, key): (u64, u64), is_dead: bool, how: RemainderMatch) -> Option<Remainder> {
        let rank = |remainder: &Remainder| match remainder.line {
            own if own == line => Some(0),
            earlier if earlier < line => Some(1),
            _ if how == RemainderMatch::Key || (how == RemainderMatch::Dead && remainder.page.is_none()) => Some(2),
            _ => None,
        };
        let fitting = self.0.get(&key)?.iter().filter(|remainder| remainder.is_dead || !is_dead);
        let (_, from) = fitting.filter_map(|remainder| Some((rank(remainder)?, remainder.line))).min()?;
        self.remove(key, from)
    }
}

/// The lines of a piece's rows; older pieces do not have them.
fn lines(lines: &[u64]) -> impl Iterator<Item = u64> {
    lines.iter().copied().chain(std::iter::repeat(UNKNOWN_LINE))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: u64 = 5;

    /// Rows with fetched pages, by line.
    fn begun(pages: &[(u64, u32)]) -> Remainders {
        let mut remainders = Remainders::default();
        remainders.add(&JournalEntry {
            pages: pages.iter().map(|(_, page)| (KEY, *page, format!("/{page}"))).collect(),
            page_lines: pages.iter().map(|(line, _)| *line).collect(),
            ..JournalEntry::default()
        });
        remainders
    }

    fn taken(remainders: &mut Remainders, line: u64, how: RemainderMatch) -> Option<u32> {
        remainders.take((line, KEY), false, how).and_then(|remainder| Some(remainder.page?.0))
    }

    #[test]
    fn equal_rows_have_their_own_pages_and_end_only_those() {
        let mut remainders = begun(&[(1, 4), (2, 7), (3, 2)]);
        remainders.add(&JournalEntry { done: vec![(2, KEY)], ..JournalEntry::default() });
        assert_eq!((remainders.len(), remainders.has_pages((2, KEY))), (2, false));
        let pages: Vec<Option<u32>> = (1..=4).map(|line| taken(&mut remainders, line, RemainderMatch::Line)).collect();
        assert_eq!(pages, [Some(4), None, Some(2), None]);
    }

    #[test]
    fn a_row_that_moved_up_gets_its_pages_only_where_lines_mean_nothing() {
        assert_eq!(taken(&mut begun(&[(2, 7)]), 1, RemainderMatch::Line), None, "the equal row on the second line comes yet");
        assert_eq!(taken(&mut begun(&[(2, 7)]), 1, RemainderMatch::Dead), None);
        assert_eq!(taken(&mut begun(&[(2, 7)]), 1, RemainderMatch::Key), Some(7));
        assert_eq!(taken(&mut begun(&[(2, 7)]), 3, RemainderMatch::Line), Some(7), "the row of the second line is another one");
        assert_eq!(taken(&mut begun(&[(0, 7)]), 3, RemainderMatch::Line), Some(7), "an older journal knows no lines");
    }

    #[test]
    fn a_row_that_moved_ends_what_it_went_on_from() {
        let mut remainders = begun(&[(2, 7), (3, 1)]);
        let moved = vec![(KEY, 2, 9)];
        remainders.add(&JournalEntry {
            moved,
            dead: vec![(KEY, String::new(), String::new())],
            dead_lines: vec![9],
            ..JournalEntry::default()
        });
        assert!(!remainders.has((2, KEY)) && remainders.has_pages((9, KEY)) && remainders.has_dead());
        remainders.add(&JournalEntry { done: vec![(9, KEY)], ..JournalEntry::default() });
        assert_eq!((remainders.len(), remainders.has_dead()), (1, false));
    }
}
