//! Unguessable ids of calls and jobs: an id is enough to read a job's result. Random bytes come from the system's generator, for many ids
//! at a time.

use seawall_core::id::CallId;
use seawall_core::time::Wall;

/// Ids per read of the generator.
const BATCH: usize = 64;
const CHANCE: usize = 10;

/// Generates ids, for one thread.
pub struct Ids {
    chance: [u8; BATCH * CHANCE],
    used: usize,
}

impl Default for Ids {
    fn default() -> Self {
        Self { chance: [0; BATCH * CHANCE], used: BATCH * CHANCE }
    }
}

impl std::fmt::Debug for Ids {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the random bytes of the next ids.
        f.debug_struct("Ids").field("used", &self.used).finish_non_exhaustive()
    }
}

impl Ids {
    /// Returns a new id with this creation time.
    pub fn next(&mut self, now: Wall) -> CallId {
        if self.used == self.chance.len() {
            getrandom::fill(&mut self.chance).expect("a system that has started has random numbers");
            self.used = 0;
        }
        let mut chance = [0; CHANCE];
        chance.copy_from_slice(&self.chance[self.used..self.used + CHANCE]);
        self.used += CHANCE;
        CallId::from_parts(now, chance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ids_tell_their_time_and_differ_whichever_generator_made_them() {
        let (mut one, mut other, now) = (Ids::default(), Ids::default(), Wall(1_794_777_105_000));
        let made: BTreeSet<CallId> = (0..3 * BATCH).flat_map(|_| [one.next(now), other.next(now)]).collect();
        assert_eq!(made.len(), 6 * BATCH);
        assert!(made.iter().all(|id| id.created_at() == now));
        let bits = made.iter().fold(0_u128, |bits, id| bits | u128::from_be_bytes(id.to_bytes()));
        assert_eq!(bits & ((1 << 80) - 1), (1 << 80) - 1, "all of it is chance");
    }
}
