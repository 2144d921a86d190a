//! Several limits at once, all or nothing: when one refuses, none is spent.

use super::limit::{Gcra, LimitAnswer, LimitCell};
use crate::policy::Mode;
use crate::time::{Mono, Nanos};

/// The combined result of the layers. `shadowed` has bit *i* set where layer *i* only watches and would have refused.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    Go {
        after: Nanos,
        shadowed: u32,
    },
    /// The layer that refuses for longest, and until when.
    Refused {
        layer: usize,
        retry_at: Mono,
    },
    TooCostly {
        layer: usize,
        capacity: u64,
    },
}

/// A policy with at most this many layers takes one pass; others take two.
const ONE_PASS: usize = 4;

/// Spends `cost` in every layer, or in none.
#[inline]
pub fn take_all(layers: &mut [(&Gcra, &mut LimitCell)], now: Mono, cost: u64) -> Answers {
    match take_at_once(layers, now, cost) {
        Some(after) => Answers::Go { after, shadowed: 0 },
        None => check_then_take(layers, now, cost),
    }
}

/// The usual case: every layer has room. Spends layer by layer, and restores every cell if one refuses.
#[inline]
fn take_at_once(layers: &mut [(&Gcra, &mut LimitCell)], now: Mono, cost: u64) -> Option<Nanos> {
    if layers.len() > ONE_PASS {
        return None;
    }
    let mut before = [LimitCell::default(); ONE_PASS];
    let mut longest = Nanos::ZERO;
    let mut refused = None;
    for (at, ((limit, cell), before)) in layers.iter_mut().zip(&mut before).enumerate() {
        *before = **cell;
        if limit.mode() == Mode::Off {
            continue;
        }
        match limit.take(cell, now, cost) {
            LimitAnswer::Go { after } if limit.mode() == Mode::Enforce => longest = longest.max(after),
            LimitAnswer::Go { .. } => {}
            LimitAnswer::Refused { .. } | LimitAnswer::TooCostly { .. } => {
                refused = Some(at);
                break;
            }
        }
    }
    let Some(refused) = refused else { return Some(longest) };
    for ((_, cell), before) in layers.iter_mut().zip(&before).take(refused) {
        **cell = *before;
    }
    None
}

/// Finds the layer that refuses for longest before anything is spent.
#[cold]
fn check_then_take(layers: &mut [(&Gcra, &mut LimitCell)], now: Mono, cost: u64) -> Answers {
    let mut refused: Option<(usize, Mono)> = None;
    let mut shadowed = 0;
    for (layer, (limit, cell)) in layers.iter().enumerate() {
        if limit.mode() == Mode::Off {
            continue;
        }
        let answer = limit.check(cell, now, cost);
        match (answer, limit.mode()) {
            (LimitAnswer::Go { .. }, _) => {}
            (LimitAnswer::Refused { .. } | LimitAnswer::TooCostly { .. }, Mode::Shadow | Mode::Off) => {
                shadowed |= 1u32.checked_shl(bit(layer)).unwrap_or(0)
            }
            (LimitAnswer::Refused { retry_at }, Mode::Enforce) => {
                if refused.is_none_or(|(_, latest)| retry_at > latest) {
                    refused = Some((layer, retry_at));
                }
            }
            (LimitAnswer::TooCostly { capacity }, Mode::Enforce) => return Answers::TooCostly { layer, capacity },
        }
    }
    match refused {
        Some((layer, retry_at)) => Answers::Refused { layer, retry_at },
        None => Answers::Go { after: spend(layers, now, cost), shadowed },
    }
}

/// Spends after all checks have passed: a shadow layer without room keeps its cell as it is.
fn spend(layers: &mut [(&Gcra, &mut LimitCell)], now: Mono, cost: u64) -> Nanos {
    let mut longest = Nanos::ZERO;
    for (limit, cell) in layers.iter_mut().filter(|(limit, _)| limit.mode() != Mode::Off) {
        match (limit.take(cell, now, cost), limit.mode()) {
            (LimitAnswer::Go { after }, Mode::Enforce) => longest = longest.max(after),
            (LimitAnswer::Go { .. } | LimitAnswer::Refused { .. } | LimitAnswer::TooCostly { .. }, _) => {}
        }
    }
    longest
}

/// Returns what [`take_all`] spent at `taken_at`.
pub fn refund(layers: &mut [(&Gcra, &mut LimitCell)], taken_at: Mono, cost: u64, shadowed: u32) {
    for (layer, (limit, cell)) in layers.iter_mut().enumerate() {
        let unspent = shadowed.checked_shr(bit(layer)).unwrap_or(0) & 1 == 1;
        if limit.mode() != Mode::Off && !unspent {
            limit.refund(cell, taken_at, cost);
        }
    }
}

fn bit(layer: usize) -> u32 {
    u32::try_from(layer).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{self, Algorithm, Fail, Rate};

    fn limit(count: u64, mode: Mode) -> Gcra {
        Gcra::from(&policy::LimitPolicy {
            name: String::new(),
            key: Vec::new(),
            rate: Rate::per_second(count),
            burst: count,
            algorithm: Algorithm::TokenBucket,
            mode,
            fail: Fail::Open,
            max_wait: Nanos::ZERO,
        })
    }

    #[test]
    fn one_refusal_spends_nothing_anywhere() {
        let (wide, narrow) = (limit(10, Mode::Enforce), limit(1, Mode::Enforce));
        let (mut a, mut b) = (LimitCell::default(), LimitCell::default());
        assert!(matches!(take_all(&mut [(&wide, &mut a), (&narrow, &mut b)], Mono(0), 1), Answers::Go { .. }));
        let spent = (a, b);
        let refusal = Answers::Refused { layer: 1, retry_at: Mono(1_000_000_000) };
        assert_eq!(take_all(&mut [(&wide, &mut a), (&narrow, &mut b)], Mono(0), 1), refusal);
        assert_eq!((a, b), spent);
    }

    #[test]
    fn the_longest_refusal_is_reported() {
        let (slow, fast) = (limit(1, Mode::Enforce), limit(2, Mode::Enforce));
        let (mut a, mut b) = (LimitCell::default(), LimitCell::default());
        let _ = slow.take(&mut a, Mono(0), 1);
        let _ = fast.take(&mut b, Mono(0), 2);
        let answer = take_all(&mut [(&fast, &mut b), (&slow, &mut a)], Mono(0), 1);
        assert_eq!(answer, Answers::Refused { layer: 1, retry_at: Mono(1_000_000_000) });
    }

    #[test]
    fn too_costly_for_one_layer_is_final_for_all() {
        let (wide, narrow) = (limit(10, Mode::Enforce), limit(1, Mode::Enforce));
        let (mut a, mut b) = (LimitCell::default(), LimitCell::default());
        let answer = take_all(&mut [(&wide, &mut a), (&narrow, &mut b)], Mono(0), 5);
        assert_eq!(answer, Answers::TooCostly { layer: 1, capacity: 1 });
        assert_eq!(a, LimitCell::default());
    }

    #[test]
    fn a_shadow_counts_and_never_refuses_and_off_is_not_there() {
        let (shadow, off, wide) = (limit(1, Mode::Shadow), limit(1, Mode::Off), limit(10, Mode::Enforce));
        let (mut a, mut b, mut c) = (LimitCell::default(), LimitCell::default(), LimitCell::default());
        let mut all = [(&wide, &mut a), (&shadow, &mut b), (&off, &mut c)];
        assert_eq!(take_all(&mut all, Mono(0), 1), Answers::Go { after: Nanos::ZERO, shadowed: 0 });
        assert_eq!(take_all(&mut all, Mono(0), 1), Answers::Go { after: Nanos::ZERO, shadowed: 0b10 });
        refund(&mut all, Mono(0), 1, 0b10);
        assert_eq!(wide.remaining(&a, Mono(0)).0, 9);
        assert_eq!(shadow.remaining(&b, Mono(0)).0, 0);
        assert_eq!(c, LimitCell::default());
    }

    #[test]
    fn the_slowest_pace_of_all_layers_counts() {
        let paced = Gcra::from(&policy::LimitPolicy {
            name: String::new(),
            key: Vec::new(),
            rate: Rate::per_second(10),
            burst: 10,
            algorithm: Algorithm::LeakyBucket,
            mode: Mode::Enforce,
            fail: Fail::Open,
            max_wait: Nanos::ZERO,
        });
        let wide = limit(10, Mode::Enforce);
        let (mut a, mut b) = (LimitCell::default(), LimitCell::default());
        let mut all = [(&wide, &mut a), (&paced, &mut b)];
        let _ = take_all(&mut all, Mono(0), 1);
        assert_eq!(take_all(&mut all, Mono(0), 1), Answers::Go { after: Nanos::from_millis(100), shadowed: 0 });
    }
}
