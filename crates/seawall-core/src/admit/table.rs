//! Cells by key, in bounded memory. Keys arrive hashed (128 bits), entries sit in one vector, and a clock hand walks over it and forgets
//! idle cells: a few at each insertion, so that no call pays for a sweep. A cell that still counts (a key that is spent or drained) is
//! never forgotten; when the table is full of such keys, new keys share one overflow cell, which is strict but safe.

use hashbrown::HashTable;

use super::limit::{Gcra, LimitCell};
use crate::time::Mono;

/// Entries that the hand checks for each new key; more than one, so that it overtakes growth.
const STEPS: usize = 2;
/// Entries that the hand checks for a new key when the table is full.
const STEPS_WHEN_FULL: usize = 32;

#[derive(Clone, Copy, Debug)]
struct CellEntry {
    key: u128,
    cell: LimitCell,
}

#[derive(Clone, Debug)]
pub struct CellTable {
    entries: Vec<CellEntry>,
    index: HashTable<u32>,
    capacity: usize,
    hand: usize,
    overflow: LimitCell,
    overflowed: u64,
}

impl CellTable {
    /// Holds at most `capacity` keys, and at least one.
    #[must_use]
    pub fn new(capacity: u32) -> Self {
        Self {
            entries: Vec::new(),
            index: HashTable::new(),
            capacity: usize::try_from(capacity.max(1)).unwrap_or(usize::MAX),
            hand: 0,
            overflow: LimitCell::default(),
            overflowed: 0,
        }
    }

    /// The key's cell; absent means fresh.
    #[must_use]
    #[inline]
    pub fn find(&self, key: u128) -> Option<&LimitCell> {
        let entries = &self.entries;
        let found = self.index.find(hash(key), |&at| entries[at as usize].key == key)?;
        Some(&entries[*found as usize].cell)
    }

    /// The key's cell, created if absent: the overflow cell when the table is full of keys that still count.
    #[inline]
    pub fn cell(&mut self, limit: &Gcra, key: u128, now: Mono) -> &mut LimitCell {
        let entries = &self.entries;
        let found = self.index.find(hash(key), |&at| entries[at as usize].key == key).copied();
        match found {
            Some(at) => &mut self.entries[at as usize].cell,
            None => self.insert(limit, key, now),
        }
    }

    #[cold]
    fn insert(&mut self, limit: &Gcra, key: u128, now: Mono) -> &mut LimitCell {
        self.sweep(limit, now, STEPS);
        if self.entries.len() >= self.capacity {
            self.sweep(limit, now, STEPS_WHEN_FULL);
        }
        let at = self.entries.len();
        let (true, Ok(slot)) = (at < self.capacity, u32::try_from(at)) else {
            self.overflowed += 1;
            return &mut self.overflow;
        };
        if at == self.entries.capacity() {
            // Half more, not twice as much, and never beyond the bound.
            let more = (at / 2).max(16).min(self.capacity - at);
            self.entries.reserve_exact(more);
        }
        self.entries.push(CellEntry { key, cell: LimitCell::default() });
        let entries = &self.entries;
        self.index.insert_unique(hash(key), slot, |&at| hash(entries[at as usize].key));
        &mut self.entries[at].cell
    }

    /// Moves the hand over `steps` entries, forgets the idle ones and returns their number.
    pub fn sweep(&mut self, limit: &Gcra, now: Mono, steps: usize) -> usize {
        let mut forgotten = 0;
        for _ in 0..steps.min(self.entries.len()) {
            // Downwards, because the entry that fills a gap comes from the end, which the hand has mostly passed.
            self.hand = if self.hand == 0 { self.entries.len() } else { self.hand.min(self.entries.len()) } - 1;
            if limit.is_idle(&self.entries[self.hand].cell, now) {
                self.forget(self.hand);
                forgotten += 1;
            }
        }
        forgotten
    }

    /// The last entry takes the place of the forgotten one.
    fn forget(&mut self, at: usize) {
        let gone = self.entries.swap_remove(at);
        if let Ok(found) = self.index.find_entry(hash(gone.key), |&slot| slot as usize == at) {
            found.remove();
        }
        let Some(moved) = self.entries.get(at) else { return };
        let was = self.entries.len();
        if let Some(slot) = self.index.find_mut(hash(moved.key), |&slot| slot as usize == was)
            && let Ok(now_at) = u32::try_from(at)
        {
            *slot = now_at;
        }
    }

    /// Carries every cell over to a changed limit.
    pub fn rebase(&mut self, was: &Gcra, limit: &Gcra, now: Mono) {
        for cell in self.entries.iter_mut().map(|entry| &mut entry.cell).chain([&mut self.overflow]) {
            *cell = limit.rebase(was, cell, now);
        }
    }

    /// Every key with its cell, for a snapshot.
    pub fn iter(&self) -> impl Iterator<Item = (u128, &LimitCell)> {
        self.entries.iter().map(|entry| (entry.key, &entry.cell))
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The number of times that a key had to use the overflow cell.
    #[must_use]
    pub const fn overflowed(&self) -> u64 {
        self.overflowed
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn allocated(&self) -> usize {
        self.entries.capacity() * size_of::<CellEntry>() + self.index.allocation_size()
    }
}

/// Keys are hashes already, so folding them is enough; the result is the same everywhere, so that runs replay.
#[expect(clippy::cast_possible_truncation, reason = "folding keeps the low half on purpose")]
const fn hash(key: u128) -> u64 {
    (key ^ (key >> 64)) as u64
}

#[cfg(test)]
mod tests {
    use super::super::limit::LimitAnswer;
    use super::*;
    use crate::policy::{self, Algorithm, Fail, Mode, Rate};
    use crate::rng::Rng;
    use crate::time::Nanos;

    fn limit() -> Gcra {
        Gcra::from(&policy::LimitPolicy {
            name: String::new(),
            key: Vec::new(),
            rate: Rate::per_second(1),
            burst: 1,
            algorithm: Algorithm::TokenBucket,
            mode: Mode::Enforce,
            fail: Fail::Open,
            max_wait: Nanos::ZERO,
        })
    }

    fn take(table: &mut CellTable, key: u128, now: Mono) -> LimitAnswer {
        let limit = limit();
        limit.take(table.cell(&limit, key, now), now, 1)
    }

    fn keys(count: usize) -> impl Iterator<Item = u128> {
        let mut rng = Rng::seeded(11);
        (0..count).map(move |_| u128::from(rng.draw()) << 64 | u128::from(rng.draw()))
    }

    #[test]
    fn each_key_has_its_own_cell() {
        let mut table = CellTable::new(100);
        assert_eq!(take(&mut table, 1, Mono(0)), LimitAnswer::Go { after: Nanos::ZERO });
        assert_eq!(take(&mut table, 2, Mono(0)), LimitAnswer::Go { after: Nanos::ZERO });
        assert!(matches!(take(&mut table, 1, Mono(0)), LimitAnswer::Refused { .. }));
        assert_eq!(table.len(), 2);
        assert!(table.find(3).is_none());
    }

    #[test]
    fn idle_keys_are_forgotten_as_new_ones_come() {
        let mut table = CellTable::new(1_000_000);
        for (n, key) in keys(10_000).enumerate() {
            let _ = take(&mut table, key, Mono(0) + Nanos::from_millis(n as u64 * 100));
        }
        assert!(table.len() <= 40, "{} keys for ten live ones", table.len());
    }

    #[test]
    fn a_full_table_shares_one_cell_and_forgets_no_key_that_still_matters() {
        let mut table = CellTable::new(10);
        for key in keys(10) {
            let _ = take(&mut table, key, Mono(0));
        }
        assert_eq!(take(&mut table, 77, Mono(0)), LimitAnswer::Go { after: Nanos::ZERO });
        assert!(matches!(take(&mut table, 78, Mono(0)), LimitAnswer::Refused { .. }));
        assert_eq!((table.len(), table.overflowed()), (10, 2));
        for key in keys(10) {
            assert!(matches!(take(&mut table, key, Mono(0)), LimitAnswer::Refused { .. }));
        }
        assert_eq!(take(&mut table, 79, Mono(2_000_000_000)), LimitAnswer::Go { after: Nanos::ZERO });
        assert_eq!(table.overflowed(), 2);
    }

    #[test]
    fn a_key_in_cooldown_is_never_forgotten() {
        let mut table = CellTable::new(2);
        let limit = limit();
        table.cell(&limit, 1, Mono(0)).at = u64::MAX / 2;
        for key in keys(1_000) {
            let _ = take(&mut table, key, Mono(5_000_000_000));
        }
        assert!(table.find(1).is_some());
    }

    #[test]
    fn forgetting_keeps_every_other_key_findable() {
        let mut table = CellTable::new(1_000);
        let limit = limit();
        for (n, key) in keys(1_000).enumerate() {
            table.cell(&limit, key, Mono(0)).at = if n % 3 == 0 { u64::MAX / 2 } else { 1 };
        }
        // The hand stands somewhere in the middle: its second round sees all.
        assert_eq!(table.sweep(&limit, Mono(10), 1_000) + table.sweep(&limit, Mono(10), 1_000), 666);
        for (n, key) in keys(1_000).enumerate() {
            assert_eq!(table.find(key).is_some(), n % 3 == 0);
        }
    }

    #[test]
    fn a_million_keys_take_less_than_a_hundred_bytes_each() {
        let mut table = CellTable::new(1_000_000);
        for key in keys(1_000_000) {
            let _ = take(&mut table, key, Mono(0));
        }
        assert_eq!(table.len(), 1_000_000);
        assert!(table.allocated() <= 100 * 1_000_000, "{} bytes", table.allocated());
    }
}
