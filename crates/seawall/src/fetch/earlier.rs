//! What earlier runs did, asked block by block as the input is read. Rows are known by their line and their key together,
//! which takes less than a byte for each; only a list that was changed among rows that are done is known by keys alone.

use super::input::{Before, Read};
use super::journal::{Entry, Pieces};
use crate::exit::Failure;
use seawall_core::id::CallId;
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

/// Lines that are looked at together.
const LINES: u64 = 128;

/// The block that a line is in.
pub(super) const fn block(line: u64) -> u64 {
    line.saturating_sub(1) / LINES
}

/// The lines of one block that are done, and the sum of what they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Block {
    done: u128,
    sum: u64,
}

impl Block {
    const fn bit(line: u64) -> u128 {
        1 << (line.saturating_sub(1) % LINES)
    }

    const fn add(&mut self, line: u64, key: u64) {
        if self.done & Self::bit(line) == 0 {
            self.done |= Self::bit(line);
            // Odd factors keep rows apart that changed places.
            self.sum = self.sum.wrapping_add(key.wrapping_mul(line << 1 | 1));
        }
    }
}

/// By their number; those without a line that is done are left out.
pub(super) type Blocks = HashMap<u64, Block>;

#[derive(Debug)]
enum Done {
    Lines(Blocks),
    /// Sorted. A row that stands in the input twice is in here once for each time it was done.
    Keys {
        keys: Vec<u64>,
        met: Vec<bool>,
    },
}

#[derive(Debug)]
pub(super) struct Earlier {
    again: Again,
    done: Done,
    dead: HashMap<u64, Vec<CallId>>,
    pages: HashMap<u64, (u32, String)>,
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
        let (dead, pages) = (HashMap::new(), HashMap::new());
        let (done, changed) = (Done::Lines(HashMap::new()), Arc::default());
        Self { again, done, dead, pages, pieces, changed, loose: false, refuses_changes: false }
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

    /// Notes a row of the list that is done, where it stands where it stood.
    pub(super) fn compare(&self, (line, key): (u64, u64), found: &mut Blocks) {
        if let Done::Lines(blocks) = &self.done
            && blocks.get(&block(line)).is_some_and(|known| known.done & Block::bit(line) != 0)
        {
            found.entry(block(line)).or_default().add(line, key);
        }
    }

    /// Whether all that is done was found in its place, and nothing else is in the output.
    pub(super) fn is_unchanged(&self, found: &Blocks) -> bool {
        !self.loose && matches!(&self.done, Done::Lines(blocks) if blocks == found)
    }

    pub(super) fn add(&mut self, entry: &Entry) {
        if entry.relined {
            self.done = Done::Lines(HashMap::new());
            self.changed.store(false, Ordering::Relaxed);
            self.loose = entry.loose;
        }
        if entry.changed {
            self.changed.store(true, Ordering::Relaxed);
        }
        for (line, key) in &entry.done {
            if let Done::Lines(blocks) = &mut self.done {
                blocks.entry(block(*line)).or_default().add(*line, *key);
            }
            self.pages.remove(key);
            if let Some(letters) = self.dead.get_mut(key) {
                letters.pop();
                if letters.is_empty() {
                    self.dead.remove(key);
                }
            }
        }
        for (key, letter, before) in &entry.dead {
            let (letters, before) = (self.dead.entry(*key).or_default(), CallId::parse(before));
            letters.retain(|letter| Some(*letter) != before);
            letters.extend(CallId::parse(letter));
        }
        for (key, page, next) in &entry.pages {
            self.pages.insert(*key, (*page, next.clone()));
        }
    }

    /// Everything was added.
    pub(super) async fn complete(&mut self) -> Result<(), Error> {
        if self.is_changed() { self.by_keys(0).await } else { Ok(()) }
    }

    pub(super) fn has_dead(&self) -> bool {
        !self.dead.is_empty()
    }

    /// Whether a block must be whole before anything can be said of its rows.
    pub(super) fn knows(&self, block: u64) -> bool {
        matches!(&self.done, Done::Lines(blocks) if blocks.contains_key(&block))
    }

    /// What is to be done in this run of rows of one block; of all of them where the block is whole.
    pub(super) async fn sift(&mut self, block: u64, rows: &mut Vec<Read>, whole: bool) -> anyhow::Result<()> {
        if self.again == Again::Everything {
            return Ok(());
        }
        if let Done::Lines(blocks) = &self.done
            && let Some(known) = blocks.get(&block)
        {
            let mut found = Block::default();
            for (line, key) in rows.iter().map(Read::place).filter(|(line, _)| known.done & Block::bit(*line) != 0) {
                found.add(line, key);
            }
            if whole && found != *known && self.refuses_changes {
                let what = "the list was changed among rows that are done, which a list from a pipe cannot be";
                return Err(Failure::usage(what).hint("write it to a file and give that, with `--resume`").into());
            }
            if !whole || found != *known {
                self.changed.store(true, Ordering::Relaxed);
                self.by_keys(block).await?;
            }
        }
        rows.retain_mut(|row| self.meet(row));
        Ok(())
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
        self.done = Done::Keys { met: vec![false; keys.len()], keys };
        Ok(())
    }

    /// Whether a row is to be done, and what is left of it from before.
    fn meet(&mut self, row: &mut Read) -> bool {
        let (line, key) = row.place();
        let is_done = match &mut self.done {
            Done::Lines(blocks) => blocks.get(&block(line)).is_some_and(|block| block.done & Block::bit(line) != 0),
            Done::Keys { keys, met } => {
                let from = keys.partition_point(|done| *done < key);
                let unmet = (from..keys.len()).take_while(|at| keys[*at] == key).find(|at| !met[*at]);
                unmet.inspect(|at| met[*at] = true).is_some()
            }
        };
        let letters = self.dead.get_mut(&key);
        if is_done || (self.again == Again::Dead && letters.is_none()) {
            return false;
        }
        *row.before() = Before { letter: letters.and_then(Vec::pop), page: self.pages.get(&key).cloned() };
        true
    }
}
