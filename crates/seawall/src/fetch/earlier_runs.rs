//! What earlier runs did, asked block by block as the input is read. Rows are known by their line and their key together,
//! which takes less than a byte for each; only a list that was changed among rows that are done is known by keys alone.

use super::input::{EarlierRow, Read};
use super::journal::{JournalEntry, Pieces};
use super::remainder::{Remainder, RemainderMatch, Remainders};
use crate::exit::CommandError;
use seawall_store::Error;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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

/// When a row is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowTurn {
    Now,
    /// By an earlier run.
    Done,
    /// It has not ended, and this run is about others.
    Unasked,
}

/// Lines that are looked at together.
const LINES: u64 = 128;

/// The block that a line is in.
pub(super) const fn block(line: u64) -> u64 {
    line.saturating_sub(1) / LINES
}

/// The lines of one block that have results, and the sum of what they were.
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
            // Odd factors keep rows apart that changed places.
            self.sum = self.sum.wrapping_add(key.wrapping_mul(line << 1 | 1));
        }
    }
}

/// By their number; those without a line that has results are left out.
type Blocks = HashMap<u64, Block>;

/// What of earlier runs a list has where it was.
#[derive(Debug, Default)]
pub(super) struct EarlierRuns {
    blocks: Blocks,
    remainders: usize,
}

#[derive(Debug)]
enum RowState {
    /// Rows that are done, and those that have pages.
    Lines(Blocks),
    /// Sorted. A row that stands in the input twice is in here once for each time it was done.
    Keys { keys: Vec<u64>, met: Vec<bool> },
}

#[derive(Debug)]
pub(super) struct Earlier {
    again: Again,
    done: RowState,
    remainders: Remainders,
    /// Every remainder is of the row that stands on its line.
    is_exact: bool,
    /// Where all of it is written.
    pieces: Option<Pieces>,
    /// The lines of the journal are not those of the list any more, which the journal must say from then on.
    changed: Arc<AtomicBool>,
    /// The output has lines of rows that the journal does not know.
    loose: bool,
    /// A list that was changed is refused: its rows are known by their lines, and what has them cannot be mended.
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

    /// Whether this run does rows that no run has met.
    pub(super) fn does_new_rows(&self) -> bool {
        self.again != Again::Dead
    }

    pub(super) const fn remainders(&self) -> &Remainders {
        &self.remainders
    }

    /// Notes a row of the list of which there are results or a letter, where it stands where it stood.
    pub(super) fn compare(&self, (line, key): (u64, u64), found: &mut EarlierRuns) {
        if let RowState::Lines(blocks) = &self.done
            && blocks.get(&block(line)).is_some_and(|known| known.has(line))
        {
            found.blocks.entry(block(line)).or_default().add(line, key);
        }
        found.remainders += usize::from(self.remainders.has((line, key)));
    }

    /// Whether all that has results was found in its place, and nothing else is in the output.
    pub(super) fn is_unchanged(&mut self, found: &EarlierRuns) -> bool {
        self.is_exact = found.remainders == self.remainders.len();
        !self.loose && matches!(&self.done, RowState::Lines(blocks) if *blocks == found.blocks)
    }

    /// From now on rows are told by their keys alone, because the list was changed.
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

    /// Everything was added.
    pub(super) async fn complete(&mut self) -> Result<(), Error> {
        if self.is_changed() { self.by_keys(0).await } else { Ok(()) }
    }

    pub(super) fn has_remainders(&self) -> bool {
        self.remainders.len() > 0
    }

    pub(super) fn has_dead(&self) -> bool {
        self.remainders.has_dead()
    }

    /// Whether a block must be whole before anything can be said of its rows.
    pub(super) fn knows(&self, block: u64) -> bool {
        matches!(&self.done, RowState::Lines(blocks) if blocks.contains_key(&block))
    }

    /// What is to be done in this run of rows of one block; of all of them where the block is whole. Returns how many of the
    /// others no run has ended.
    pub(super) async fn sift(&mut self, block: u64, rows: &mut Vec<Read>, whole: bool) -> anyhow::Result<u64> {
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
            let turn = self.meet(row);
            unasked += u64::from(turn == RowTurn::Unasked);
            turn == RowTurn::Now
        });
        Ok(unasked)
    }

    /// From this block on rows are told by their keys alone.
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

    /// Whether a row is to be done, and what is left of it from before.
    fn meet(&mut self, row: &mut Read) -> RowTurn {
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
