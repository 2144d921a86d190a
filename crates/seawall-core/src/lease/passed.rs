//! Keys that are viable but have used up a limit of their own: this lease skips them for as long as that lasts.

use super::{KeySet, LeaseAnswer};
use crate::time::Nanos;

/// One search for a key. Ask the pool for a key that is not in `tried` and check its limits; if they have no room, pass the key over and
/// ask again. Ends after as many rounds as there are keys.
#[derive(Clone, Copy, Debug)]
pub struct PassedOver {
    pub tried: KeySet,
    soonest: Option<Nanos>,
}

impl PassedOver {
    #[must_use]
    pub const fn none(tried: KeySet) -> Self {
        Self { tried, soonest: None }
    }

    /// This key's limits have room only after `wait`.
    pub fn pass(&mut self, key: u16, wait: Nanos) {
        self.tried.insert(key);
        self.soonest = Some(self.soonest.map_or(wait, |soonest| soonest.min(wait)));
    }

    /// The final reply when the pool has no other key: the wait for the first key to become usable, cooling or passed over.
    pub fn conclude(&self, answer: LeaseAnswer) -> LeaseAnswer {
        match (answer, self.soonest) {
            (LeaseAnswer::Leased(_), _) | (_, None) => answer,
            // Only keys that were passed over are viable, or alive.
            (
                LeaseAnswer::Cooling { wait: Nanos::ZERO } | LeaseAnswer::Throttled { wait: Nanos::ZERO } | LeaseAnswer::Dead { .. },
                Some(soonest),
            ) => LeaseAnswer::Cooling { wait: soonest },
            (LeaseAnswer::Cooling { wait } | LeaseAnswer::Throttled { wait }, Some(soonest)) => {
                LeaseAnswer::Cooling { wait: wait.min(soonest) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{KeyLease, KeyPool, RequestMark, Until};
    use super::*;
    use crate::policy::Pick;
    use crate::time::{Mono, Now, Wall};

    const NOW: Now = Now { mono: Mono(0), wall: Wall(0) };

    /// Leases as a driver does; the limits of `spent` keys have room after the given seconds.
    fn lease(pool: &mut KeyPool, spent: &[(u16, u64)]) -> LeaseAnswer {
        let mut passed = PassedOver::none(KeySet::default());
        loop {
            let answer = pool.lease(NOW, passed.tried, RequestMark::NONE);
            let LeaseAnswer::Leased(lease) = answer else { return passed.conclude(answer) };
            let Some((key, seconds)) = spent.iter().find(|(key, _)| *key == lease.key) else { return answer };
            pool.cancel(lease, NOW.mono);
            passed.pass(*key, Nanos::from_secs(*seconds));
        }
    }

    #[test]
    fn a_key_whose_limit_is_spent_is_passed_over() {
        let mut pool = KeyPool::new(Pick::FewestFailures, &[0, 1, 2]);
        assert_eq!(lease(&mut pool, &[(0, 5)]), LeaseAnswer::Leased(KeyLease { key: 1, probe: false }));
        assert_eq!(lease(&mut pool, &[(0, 5), (1, 1)]), LeaseAnswer::Leased(KeyLease { key: 2, probe: false }));
    }

    #[test]
    fn the_first_key_to_come_back_says_when() {
        let mut pool = KeyPool::new(Pick::FewestFailures, &[0, 1, 2]);
        assert_eq!(lease(&mut pool, &[(0, 5), (1, 3), (2, 9)]), LeaseAnswer::Cooling { wait: Nanos::from_secs(3) });
        pool.cool_key(1, Until::Mono(Mono(0) + Nanos::from_secs(2)));
        assert_eq!(lease(&mut pool, &[(0, 5), (2, 9)]), LeaseAnswer::Cooling { wait: Nanos::from_secs(2) });
        pool.cool_key(1, Until::Mono(Mono(0) + Nanos::from_secs(60)));
        assert_eq!(lease(&mut pool, &[(0, 5), (2, 9)]), LeaseAnswer::Cooling { wait: Nanos::from_secs(5) });
    }

    #[test]
    fn dead_keys_do_not_hide_one_that_only_waits() {
        let mut pool = KeyPool::new(Pick::FewestFailures, &[0, 1]);
        pool.reject(KeyLease { key: 1, probe: false }, NOW.mono);
        assert_eq!(lease(&mut pool, &[(0, 5)]), LeaseAnswer::Cooling { wait: Nanos::from_secs(5) });
    }
}
