//! Conversion of cells to the number arrays of scripts and back. This module knows the order of the arrays, and nothing of connections.

use seawall_core::admit::limit::{Gcra, LimitCell};
use seawall_core::guard::{BreakerData, BreakerSample, Cause, Forced, PhaseData, State, WindowCounts, WindowData};
use seawall_core::lease::{CooldownData, KeyData, KeyPoolData, REFUSALS};
use seawall_core::policy::{self, Algorithm, Mode, Pick};
use seawall_core::time::{Mono, Nanos};

/// One tick, in nanoseconds.
pub const TICK: u64 = 100;
/// The largest integer that a Lua number holds exactly; longer spans are capped here, at 28 years.
const MAX_LUA_INTEGER: u64 = 1 << 53;
/// Shared windows count no further, so that products stay exact.
const MAX_CALLS: u64 = 1 << 25;
/// Length of the fixed part of a breaker's array; probes follow.
const FIXED: usize = 49;

/// A pair of readings of the script's clock and ours at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meeting {
    pub ticks: u64,
    pub mono: Mono,
}

impl Meeting {
    #[must_use]
    pub const fn mono(self, ticks: u64) -> u64 {
        if ticks >= self.ticks {
            self.mono.0.saturating_add((ticks - self.ticks).saturating_mul(TICK))
        } else {
            self.mono.0.saturating_sub((self.ticks - ticks).saturating_mul(TICK))
        }
    }

    #[must_use]
    pub const fn ticks(self, mono: u64) -> u64 {
        if mono >= self.mono.0 {
            self.ticks.saturating_add((mono - self.mono.0) / TICK)
        } else {
            self.ticks.saturating_sub((self.mono.0 - mono) / TICK)
        }
    }
}

/// Converts a span to ticks, rounded up, so that a wait never ends early.
#[must_use]
pub fn ticks(span: Nanos) -> u64 {
    span.0.div_ceil(TICK).min(MAX_LUA_INTEGER)
}

#[must_use]
pub const fn nanos(ticks: u64) -> Nanos {
    Nanos(ticks.saturating_mul(TICK))
}

/// Converts a limit to ticks.
#[must_use]
pub fn in_ticks(limit: &policy::LimitPolicy) -> Gcra {
    let mut limit = limit.clone();
    limit.rate.per = Nanos((limit.rate.per.0 / TICK).clamp(1, MAX_LUA_INTEGER >> 2));
    if matches!(limit.algorithm, Algorithm::FixedWindow | Algorithm::SlidingWindow) {
        limit.rate.count = limit.rate.count.min(MAX_CALLS);
    }
    Gcra::from(&limit)
}

/// Returns the six numbers of a limit.
#[must_use]
pub fn of_limit(limit: &Gcra) -> [u64; 6] {
    let numbers = limit.numbers();
    let algorithm = match numbers.algorithm {
        Algorithm::TokenBucket => 1,
        Algorithm::LeakyBucket => 2,
        Algorithm::FixedWindow => 3,
        Algorithm::SlidingWindow => 4,
    };
    let most = |number: u64| number.min(MAX_LUA_INTEGER);
    [algorithm, mode(numbers.mode), most(numbers.interval), most(numbers.depth), most(numbers.capacity), most(numbers.per)]
}

const fn mode(mode: Mode) -> u64 {
    match mode {
        Mode::Enforce => 1,
        Mode::Shadow => 2,
        Mode::Off => 3,
    }
}

/// Returns the number of a forced phase; zero means none.
#[must_use]
pub const fn of_forced(forced: Forced) -> u64 {
    match forced {
        Forced::Auto => 0,
        Forced::Open => 4,
        Forced::Closed => 5,
    }
}

/// Builds a limit's cell from a script's three numbers.
#[must_use]
pub fn cell(numbers: &[i64]) -> LimitCell {
    let [at, held, before] = [0, 1, 2].map(|place| number(numbers, place));
    LimitCell { at, held: held | before << 32 }
}

/// Returns the twelve numbers of a breaker's policy; `ticks` converts spans.
#[must_use]
pub fn of_guard(guard: &policy::BreakerPolicy, ticks: impl Fn(Nanos) -> u64) -> [u64; 12] {
    [
        mode(guard.mode),
        ticks(guard.window),
        u64::from(guard.failure_rate.0),
        u64::from(guard.min_calls),
        u64::from(guard.consecutive),
        ticks(guard.slow),
        u64::from(guard.slow_rate.0),
        ticks(guard.open),
        ticks(guard.open_max),
        u64::from(guard.probes),
        u64::from(guard.successes),
        ticks(guard.ramp),
    ]
}

/// Returns how a result counts: no failure, failure, repeated failure in the same call.
#[must_use]
pub const fn of_failure(sample: BreakerSample) -> u64 {
    match (sample.failed, sample.repeated) {
        (false, _) => 0,
        (true, false) => 1,
        (true, true) => 2,
    }
}

#[must_use]
pub fn of_breaker(data: &BreakerData) -> Vec<i64> {
    let mut fixed = [0u64; FIXED];
    let mut probes: Vec<i64> = Vec::new();
    match &data.phase {
        PhaseData::Closed => {}
        PhaseData::Ramping { since, credit } => (fixed[0], fixed[1], fixed[5]) = (1, *since, u64::from(*credit)),
        PhaseData::Open { since, until, length } => (fixed[0], fixed[1], fixed[2], fixed[3]) = (2, *since, *until, *length),
        PhaseData::HalfOpen { probes: slots, successes, length } => {
            (fixed[0], fixed[3], fixed[4]) = (3, *length, u64::from(*successes));
            probes = slots.iter().map(|slot| slot.map_or(-1, signed)).collect();
        }
        PhaseData::ForcedOpen { since } => (fixed[0], fixed[1]) = (4, *since),
        PhaseData::ForcedClosed => fixed[0] = 5,
    }
    fixed[6] = u64::from(data.generation);
    fixed[7] = u64::from(data.consecutive);
    fixed[8] = u64::from(data.crossed);
    fixed[9] = data.opened_for;
    let window = &data.window;
    (fixed[16], fixed[17], fixed[18]) = (window.slot_end, window.slot, u64::from(window.current));
    let tallies = [(10, window.sum), (13, window.filling)].into_iter().chain((19..).step_by(3).zip(window.slots));
    for (at, tally) in tallies {
        for (place, count) in fixed[at..at + 3].iter_mut().zip(tally) {
            *place = u64::from(count);
        }
    }
    fixed.into_iter().map(signed).chain(probes).collect()
}

/// Builds a breaker from a script's array; `None` if the array is too short.
#[must_use]
pub fn breaker(numbers: &[i64]) -> Option<BreakerData> {
    if numbers.len() < FIXED {
        return None;
    }
    let at = |place: usize| number(numbers, place);
    let small = |place: usize| u32::try_from(at(place)).unwrap_or(u32::MAX);
    let tally = |place: usize| -> WindowCounts { [small(place), small(place + 1), small(place + 2)] };
    let phase = match at(0) {
        0 => PhaseData::Closed,
        1 => PhaseData::Ramping { since: at(1), credit: small(5) },
        2 => PhaseData::Open { since: at(1), until: at(2), length: at(3) },
        3 => {
            let probes = numbers[FIXED..].iter().map(|probe| u64::try_from(*probe).ok()).collect();
            PhaseData::HalfOpen { probes, successes: small(4), length: at(3) }
        }
        4 => PhaseData::ForcedOpen { since: at(1) },
        5 => PhaseData::ForcedClosed,
        _ => return None,
    };
    let mut slots = <[WindowCounts; 10]>::default();
    for (slot, place) in slots.iter_mut().zip((19..).step_by(3)) {
        *slot = tally(place);
    }
    let current = u8::try_from(at(18)).unwrap_or(0);
    let window = WindowData { sum: tally(10), filling: tally(13), slots, slot_end: at(16), slot: at(17), current };
    Some(BreakerData { phase, generation: small(6), consecutive: small(7), crossed: at(8) == 1, opened_for: at(9), window })
}

/// Builds a change of state from a script's three numbers.
#[must_use]
pub fn change(from: i64, to: i64, cause: i64) -> Option<(State, State, Cause)> {
    let state = |number| match number {
        0 | 1 | 5 => Some(State::Closed),
        2 | 4 => Some(State::Open),
        3 => Some(State::HalfOpen),
        _ => None,
    };
    let cause = match cause {
        1 => Cause::FailureRate,
        2 => Cause::SlowRate,
        3 => Cause::Consecutive,
        4 => Cause::OpenElapsed,
        5 => Cause::ProbeFailed,
        7 => Cause::ProbesSucceeded,
        8 => Cause::Forced,
        _ => return None,
    };
    Some((state(from)?, state(to)?, cause))
}

#[must_use]
pub const fn of_pick(pick: Pick) -> u64 {
    match pick {
        Pick::FewestFailures => 1,
        Pick::LeastUsed => 2,
        Pick::RoundRobin => 3,
    }
}

/// Converts a key pool whose cooldowns are all on the script's clock.
#[must_use]
pub fn of_pool(data: &KeyPoolData) -> Vec<i64> {
    let mut numbers = vec![i64::from(data.turn)];
    for key in &data.keys {
        let (probe_at, pause) = key.dead.map_or((-1, 0), |(probe_at, pause)| (signed(probe_at), signed(pause)));
        numbers.extend([i64::from(key.fails), signed(key.uses), probe_at, pause, signed(key.cooldown.mono)]);
    }
    numbers.extend(data.groups.iter().map(|group| signed(group.mono)));
    numbers.extend(data.keys.iter().flat_map(|key| key.refused).map(i64::from));
    let cooldowns = data.keys.iter().map(|key| key.cooldown).chain(data.groups.iter().copied());
    numbers.extend(cooldowns.clone().flat_map(|cooldown| cooldown.probe.map_or([-1, 0], |(at, gap)| [signed(at), signed(gap)])));
    numbers.extend(data.keys.iter().map(|key| key.accepted.map_or(-1, signed)));
    numbers.extend(cooldowns.map(|cooldown| signed(cooldown.disproved)));
    numbers
}

/// Builds a pool of `keys` keys from a script's array; `None` if the length does not fit.
#[must_use]
pub fn pool(numbers: &[i64], keys: usize) -> Option<KeyPoolData> {
    // One number for the turn, eleven per key and four per group.
    let groups = numbers.len().checked_sub(1 + keys * 11).filter(|rest| rest % 4 == 0)? / 4;
    let (of_keys, rest) = numbers[1..].split_at(keys * 5);
    let (of_groups, rest) = rest.split_at(groups);
    let (marks, rest) = rest.split_at(keys * REFUSALS);
    let (probes, rest) = rest.split_at((keys + groups) * 2);
    let (accepted, disproved) = rest.split_at(keys);
    let probe = |place: usize| u64::try_from(probes[place * 2]).ok().map(|at| (at, number(probes, place * 2 + 1)));
    let cooldown = |mono: i64, place: usize| CooldownData {
        mono: u64::try_from(mono).unwrap_or(0),
        wall: None,
        probe: probe(place),
        disproved: number(disproved, place),
    };
    let marks = marks.chunks_exact(REFUSALS).map(|marks| std::array::from_fn(|at| u32::try_from(marks[at]).unwrap_or(0)));
    let all = of_keys.chunks_exact(5).zip(marks).enumerate().map(|(place, (key, refused))| KeyData {
        fails: u32::try_from(key[0]).unwrap_or(u32::MAX),
        uses: number(key, 1),
        dead: u64::try_from(key[2]).ok().map(|probe_at| (probe_at, number(key, 3))),
        cooldown: cooldown(key[4], place),
        refused,
        accepted: u64::try_from(accepted[place]).ok(),
    });
    Some(KeyPoolData {
        turn: u16::try_from(numbers[0]).unwrap_or(0),
        keys: all.collect(),
        groups: of_groups.iter().enumerate().map(|(place, group)| cooldown(*group, keys + place)).collect(),
    })
}

/// Returns a number of a reply; a missing one is zero.
#[must_use]
pub fn number(numbers: &[i64], place: usize) -> u64 {
    numbers.get(place).and_then(|number| u64::try_from(*number).ok()).unwrap_or(0)
}

#[must_use]
pub fn signed(number: u64) -> i64 {
    i64::try_from(number.min(MAX_LUA_INTEGER)).unwrap_or(i64::MAX)
}
