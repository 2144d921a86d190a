//! The results of earlier runs, looked up block by block as the input is read. Rows are identified by line and key together, which takes
//! less than a byte for each. If the list was changed among finished rows, keys alone identify them.

use super::input::{EarlierRow, Read};
use super::journal::{JournalEntry, Pieces};
use super::remainder::{Remainder, RemainderMatch, Remainders};
use crate::exit::CommandError;
use seawall_store::Error;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The rows of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// All of them.
    Everything,
    /// Rows without a success.
    Unfinished,
    /// Rows that ended as dead letters.
    Dead,
}

/// The decision about a row of this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowTurn {
    Now,
    /// An earlier run has finished it.
    Done,
    /// It has not ended, but this run does only other rows.
    Unasked,
}

/// The lines of one block.
const LINES: u64 = 128;

/// The block that contains a line.
pub(super) const fn block(line: u64) -> u64 {
    line.saturating_sub(1) / LINES
}

/// The lines of one block that have results, and a checksum of their rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Block {
    known: u128,
    sum: u64,
}

impl Block {
    const fn bit(line: u64) -> u128 {
        1 << (line.saturating_sub(1) % LINES)
    }

    const fn has(&self, line: u64) -> bool {
        self.known & Self::bit(line) != 0
    }

    const fn add(&mut self, line: u64, key: u64) {
        if !self.has(line) {
            self.known |= Self::bit(line);
            // The factor depends on the line and is odd, so that two rows which swap places change the sum.
            self.sum = self.sum.wrapping_add(key.wrapping_mul(line << 1 | 1));
        }
    }
}

/// By block number; blocks without results are absent.
type Blocks = HashMap<u64, Block>;

/// The results of earlier runs that the list still has on the same lines.
#[derive(Debug, Default)]
pub(super) struct EarlierRuns {
    blocks: Blocks,
    remainders: usize,
}

#[derive(Debug)]
enum RowState {
    /// Rows that have a result or fetched pages, by line.
    Lines(Blocks),
    /// Sorted. A row that occurs twice in the input has one key for each time it was finished.
    Keys { keys: Vec<u64>, met: Vec<bool> },
}

#[derive(Debug)]
pub(super) struct Earlier {
    again: Again,
    done: RowState,
    remainders: Remainders,
    /// Every remainder belongs to the row on its line.
    is_exact: bool,
    /// The journal's pieces in the store.
    pieces: Option<Pieces>,
    /// The journal's lines differ from the list's. The next journal entry must say so.
    changed: Arc<AtomicBool>,
    /// The output has lines of rows that the journal does not know.
    loose: bool,
    /// A changed list is refused: an output identifies its rows by their lines and cannot be corrected.
    pub(super) refuses_changes: bool,
}

impl Earlier {
    pub(super) fn new(again: Again, pieces: Option<Pieces>) -> Self {
        let (done, remainders, changed) = (RowState::Lines(HashMap::new()), Remainders::default(), Arc::default());
        Self { again, done, remainders, is_exact: false, pieces, changed, loose: false, refuses_changes: false }
    }

    pub(super) fn changed(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.changed)
    }

    pub(super) fn is_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed)
    }

    pub(super) const fn pieces(&self) -> Option<&Pieces> {
        self.pieces.as_ref()
    }

    /// Whether this run fetches rows that no earlier run has seen.
    pub(super) fn does_new_rows(&self) -> bool {
        self.again != Again::Dead
    }

    pub(super) const fn remainders(&self) -> &Remainders {
        &self.remainders
    }

    /// Adds a row of the list to `found` if it has a result or a remainder on its line.
    pub(super) fn compare(&self, (line, key): (u64, u64), found: &mut EarlierRuns) {
        if let RowState::Lines(blocks) = &self.done
            && blocks.get(&block(line)).is_some_and(|known| known.has(line))
        {
            found.blocks.entry(block(line)).or_default().add(line, key);
        }
        found.remainders += usize::from(self.remainders.has((line, key)));
    }

    /// Whether every result and remainder was found on its line, and the output has nothing else.
    pub(super) fn is_unchanged(&mut self, found: &EarlierRuns) -> bool {
        self.is_exact = found.remainders == self.remainders.len();
        !self.loose && matches!(&self.done, RowState::Lines(blocks) if *blocks == found.blocks)
    }

    /// From now on keys alone identify rows, because the list was changed.
    pub(super) async fn forget_lines(&mut self) -> Result<(), Error> {
        self.changed.store(true, Ordering::Relaxed);
        self.by_keys(0).await
    }

    pub(super) fn add(&mut self, entry: &JournalEntry) {
        if entry.relined {
            self.done = RowState::Lines(HashMap::new());
            self.changed.store(false, Ordering::Relaxed);
            self.loose = entry.loose;
        }
        if entry.changed {
            self.changed.store(true, Ordering::Relaxed);
        }
        if let RowState::Lines(blocks) = &mut self.done {
            let begun = entry.page_lines.iter().zip(&entry.pages).map(|(line, (key, ..))| (*line, *key));
            for (line, key) in begun.chain(entry.done.iter().copied()) {
                blocks.entry(block(line)).or_default().add(line, key);
            }
        }
        self.remainders.add(entry);
    }

    /// Called once all entries were added.
    pub(super) async fn complete(&mut self) -> Result<(), Error> {
        if self.is_changed() { self.by_keys(0).await } else { Ok(()) }
    }

    pub(super) fn has_remainders(&self) -> bool {
        self.remainders.len() > 0
    }

    pub(super) fn has_dead(&self) -> bool {
        self.remainders.has_dead()
    }

    /// Whether the rows of a block can only be judged once the whole block was read.
    pub(super) fn knows(&self, block: u64) -> bool {
        matches!(&self.done, RowState::Lines(blocks) if blocks.contains_key(&block))
    }

    /// Keeps the rows of one block that this run must fetch; `whole` means that `rows` has the complete block. Returns the number of
    /// dropped rows that no run has finished.
    pub(super) async fn filter_block(&mut self, block: u64, rows: &mut Vec<Read>, whole: bool) -> anyhow::Result<u64> {
        if self.again == Again::Everything {
            return Ok(0);
        }
        if let RowState::Lines(blocks) = &self.done
            && let Some(known) = blocks.get(&block)
        {
            let mut found = Block::default();
            for (line, key) in rows.iter().map(Read::place).filter(|(line, _)| known.has(*line)) {
                found.add(line, key);
            }
            if whole && found != *known && self.refuses_changes {
                let what = "the list was changed among rows that are done, which a list from a pipe cannot be";
                return Err(CommandError::usage(what).hint("write it to a file and give that, with `--resume`").into());
            }
            if !whole || found != *known {
                self.changed.store(true, Ordering::Relaxed);
                self.by_keys(block).await?;
            }
        }
        let mut unasked = 0;
        rows.retain_mut(|row| {
            let turn = self.classify_row(row);
            unasked += u64::from(turn == RowTurn::Unasked);
            turn == RowTurn::Now
        });
        Ok(unasked)
    }

    /// From this block on keys alone identify rows.
    async fn by_keys(&mut self, from: u64) -> Result<(), Error> {
        let mut keys = Vec::new();
        if let Some(pieces) = &self.pieces {
            let theirs = |(line, key): &(u64, u64)| (block(*line) >= from).then_some(*key);
            pieces
                .each(|_, entry| {
                    if entry.relined {
                        keys.clear();
                    }
                    keys.extend(entry.done.iter().filter_map(theirs));
                })
                .await?;
        }
        keys.sort_unstable();
        self.done = RowState::Keys { met: vec![false; keys.len()], keys };
        Ok(())
    }

    /// Decides whether to fetch a row, and gives it its remainder from earlier runs.
    fn classify_row(&mut self, row: &mut Read) -> RowTurn {
        let place @ (line, key) = row.place();
        let is_done = match &mut self.done {
            RowState::Lines(blocks) => blocks.get(&block(line)).is_some_and(|block| block.has(line)) && !self.remainders.has_pages(place),
            RowState::Keys { keys, met } => {
                let from = keys.partition_point(|done| *done < key);
                let unmet = (from..keys.len()).take_while(|at| keys[*at] == key).find(|at| !met[*at]);
                unmet.inspect(|at| met[*at] = true).is_some()
            }
        };
        if is_done {
            return RowTurn::Done;
        }
        let how = match &self.done {
            RowState::Keys { .. } => RemainderMatch::Key,
            RowState::Lines(_) if self.is_exact => RemainderMatch::Line,
            RowState::Lines(_) => RemainderMatch::Dead,
        };
        let found = self.remainders.take(place, self.again == Again::Dead, how);
        if found.is_none() && self.again == Again::Dead {
            return RowTurn::Unasked;
        }
        if let Some(Remainder { line: before, letter, page, .. }) = found {
            *row.before() = EarlierRow { moved_from: (before != line).then_some(before), letter, page };
        }
        RowTurn::Now
    }
}
