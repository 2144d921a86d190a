//! The keys of one upstream. Keys of a group share a quota, so a quota's cooldown belongs to the group. A rejected key is dead and comes
//! back only through a probe. Knows indices, not secrets.

use crate::policy::Pick;
use crate::probing::{MAX_DISPROVED, Probing};
use crate::time::{Mono, Nanos, Now, Wall};

/// Tells requests apart by method and path, as evidence against a key. Zero stands for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestMark(u32);

impl RequestMark {
    pub const NONE: Self = Self(0);

    /// FNV-1a: stable across instances, and a collision only costs one more refusal.
    #[must_use]
    pub fn of(method: &str, path: &str) -> Self {
        let bytes = method.bytes().chain([b' ']).chain(path.bytes());
        let hash = bytes.fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        Self(hash.max(1))
    }

    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    #[must_use]
    pub const fn from_number(number: u32) -> Self {
        Self(number)
    }
}

/// Different requests in a row that may be refused a key before it is dead: one more, and it is.
pub const REFUSALS: usize = 2;

/// Keys that a call has tried already; the pool holds no more than fit into this set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeySet(u128);

impl KeySet {
    pub const MAX_KEYS: usize = 128;

    pub fn insert(&mut self, key: u16) {
        self.0 |= 1u128.checked_shl(u32::from(key)).unwrap_or(0);
    }

    #[must_use]
    pub const fn contains(self, key: u16) -> bool {
        (key as usize) < Self::MAX_KEYS && self.0 >> key & 1 == 1
    }

    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// One bit for each key, for storage.
    #[must_use]
    pub const fn bits(self) -> u128 {
        self.0
    }

    #[must_use]
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }
}

/// The end of a cooldown: a requested wait runs on the monotonic clock, a quota reset on the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    Mono(Mono),
    Wall(Wall),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyLease {
    pub key: u16,
    /// The key is dead or cooling, and this call finds out whether it can be used again.
    pub probe: bool,
}

/// A key, or the reason why there is none.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseAnswer {
    Leased(KeyLease),
    /// No key that this call has not tried is viable; the first one will be after `wait`. Zero means that only keys it has tried are:
    /// another call would get one now.
    Cooling {
        wait: Nanos,
    },
    /// As cooling, for a wait that the provider asked for: a probe may end it sooner.
    Throttled {
        wait: Nanos,
    },
    /// The provider rejected every key; the next probe of one is due after `wait`, if there is a key at all.
    Dead {
        wait: Option<Nanos>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyStatus {
    pub fails: u32,
    pub uses: u64,
    pub cooling: Option<Nanos>,
    pub dead: bool,
}

/// Both clocks; deadlines only move later, so that a vague response cannot shorten an exact one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cooldown {
    pub(super) mono: Mono,
    pub(super) wall: Wall,
    /// The probes of the key while `mono` lasts. A used-up quota is never probed before its end.
    pub(super) probing: Probing,
    /// A probe has ended a cooldown: before this time, no wait that the provider asks for begins.
    pub(super) disproved: Mono,
}

impl Cooldown {
    pub(super) const NONE: Self = Self { mono: Mono(0), wall: Wall(i64::MIN), probing: Probing::NEVER, disproved: Mono(0) };

    fn extend(&mut self, until: Until) {
        match until {
            Until::Mono(at) => self.mono = self.mono.max(at),
            Until::Wall(at) => self.wall = self.wall.max(at),
        }
        self.probing = Probing::NEVER;
    }

    /// The provider asked for a wait. A cooldown that has begun keeps its probe schedule, if it has one. Once a probe got a response,
    /// another such wait applies to the refused call alone, until this one would have ended and for a minute at most.
    fn throttle(&mut self, until: Mono, now: Mono) {
        if now < self.disproved {
            return;
        }
        if self.mono <= now {
            self.probing = Probing::of(until.since(now), now);
        }
        self.mono = self.mono.max(until);
    }

    /// Cooling, and a probe may be sent.
    fn is_probe_due(&self, now: Now) -> bool {
        self.mono > now.mono && self.wall.0 <= now.wall.0 && self.probing.is_due(now.mono)
    }

    fn probe_sent(&mut self, now: Now) {
        if self.is_probe_due(now) {
            self.probing.sent(now.mono);
        }
    }

    /// A probe got a response: this ends the provider's wait, but not a quota's or an operator's.
    fn probe_answered(&mut self, now: Mono) {
        if self.probing != Probing::NEVER {
            self.disproved = self.mono.min(now + MAX_DISPROVED);
            self.mono = Mono(0);
            self.probing = Probing::NEVER;
        }
    }

    const fn is_over(&self, now: Now) -> bool {
        self.mono.0 <= now.mono.0 && self.wall.0 <= now.wall.0
    }

    fn left(&self, now: Now) -> Nanos {
        self.mono.since(now.mono).max(self.wall.since(now.wall))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum KeyHealth {
    Live,
    /// `probe_at` moves on when a probe is leased, so that a probe that never reports blocks nothing, and no second probe starts early.
    Dead {
        probe_at: Mono,
        pause: Nanos,
    },
}

#[derive(Clone, Debug)]
pub(super) struct KeyCell {
    group: usize,
    pub(super) fails: u32,
    pub(super) uses: u64,
    pub(super) health: KeyHealth,
    pub(super) cooldown: Cooldown,
    /// The latest requests that were refused this key since it was last accepted.
    pub(super) refused: [RequestMark; REFUSALS],
    /// When the provider last accepted a request with it.
    pub(super) accepted: Option<Mono>,
}

impl KeyCell {
    fn was_refused_for(&self, request: RequestMark) -> bool {
        request != RequestMark::NONE && self.refused.contains(&request)
    }

    /// When a rejected key is probed with this request. A request that was already refused the key proves nothing new: it is the probe only
    /// if no other request came for as long again.
    fn probe_at(&self, request: RequestMark) -> Option<Mono> {
        match self.health {
            KeyHealth::Live => None,
            KeyHealth::Dead { probe_at, .. } if self.was_refused_for(request) => Some(probe_at + KeyPool::UNPROVEN_PROBE),
            KeyHealth::Dead { probe_at, .. } => Some(probe_at),
        }
    }
}

#[derive(Clone, Debug)]
pub struct KeyPool {
    pick: Pick,
    pub(super) keys: Vec<KeyCell>,
    pub(super) groups: Vec<Cooldown>,
    /// The key at which the next round begins.
    pub(super) turn: usize,
}

impl KeyPool {
    /// The first probe of a rejected key; each later one waits twice as long.
    pub const FIRST_PROBE: Nanos = Nanos::from_secs(60);
    pub const LAST_PROBE: Nanos = Nanos::from_secs(3_600);
    /// Between the probes of a key if no other key has proven it to be at fault.
    pub const UNPROVEN_PROBE: Nanos = Nanos::from_secs(5);
    /// A key that was accepted within this time is good, whatever other requests are refused it.
    pub const PROVEN_GOOD: Nanos = Nanos::from_secs(60);

    /// One key for each group number, in the order of the configuration; at most [`KeySet::MAX_KEYS`].
    #[must_use]
    pub fn new(pick: Pick, groups: &[u16]) -> Self {
        let groups = &groups[..groups.len().min(KeySet::MAX_KEYS)];
        let mut names: Vec<u16> = groups.to_vec();
        names.sort_unstable();
        names.dedup();
        let key = |group: &u16| KeyCell {
            group: names.partition_point(|name| name < group),
            fails: 0,
            uses: 0,
            health: KeyHealth::Live,
            cooldown: Cooldown::NONE,
            refused: Default::default(),
            accepted: None,
        };
        Self { pick, keys: groups.iter().map(key).collect(), groups: vec![Cooldown::NONE; names.len()], turn: 0 }
    }

    /// Leases a key for one send of this request. A dead key whose probe is due goes first, or it would never come back.
    pub fn lease(&mut self, now: Now, tried: KeySet, request: RequestMark) -> LeaseAnswer {
        if let Some(key) = self.probe_due(now, tried, request) {
            self.schedule_probe(key, now);
            return self.leased(key, true);
        }
        if let Some(key) = self.pick_live(now, tried) {
            return self.leased(key, false);
        }
        match self.cooling_probe(now, tried) {
            Some(key) => {
                self.schedule_probe(key, now);
                self.leased(key, true)
            }
            None => self.none_viable(now, tried, request),
        }
    }

    fn probe_due(&self, now: Now, tried: KeySet, request: RequestMark) -> Option<usize> {
        let is_due = |key: &usize| self.keys[*key].probe_at(request).is_some_and(|at| now.mono >= at);
        (0..self.keys.len()).filter(is_due).find(|key| !tried.contains(index(*key)) && self.is_warm(*key, now))
    }

    /// A cooling key, if its cooldown and its group's allow a probe. Used only when no key is viable.
    fn cooling_probe(&self, now: Now, tried: KeySet) -> Option<usize> {
        let passes = |cooldown: &Cooldown| cooldown.is_over(now) || cooldown.is_probe_due(now);
        (0..self.keys.len()).find(|at| {
            let key = &self.keys[*at];
            !self.is_dead(*at) && !tried.contains(index(*at)) && passes(&key.cooldown) && passes(&self.groups[key.group])
        })
    }

    fn pick_live(&self, now: Now, tried: KeySet) -> Option<usize> {
        let viable = (0..self.keys.len()).filter(|key| self.is_viable(*key, now, tried));
        match self.pick {
            // Good keys take turns, or the first would do all the work.
            Pick::FewestFailures => viable.min_by_key(|key| (self.keys[*key].fails, self.rotation_distance(*key))),
            Pick::LeastUsed => viable.min_by_key(|key| self.keys[*key].uses),
            Pick::RoundRobin => viable.min_by_key(|key| self.rotation_distance(*key)),
        }
    }

    /// Steps from the key at which this round begins.
    fn rotation_distance(&self, key: usize) -> usize {
        if key >= self.turn { key - self.turn } else { key + self.keys.len() - self.turn }
    }

    fn leased(&mut self, key: usize, probe: bool) -> LeaseAnswer {
        self.turn = if key + 1 == self.keys.len() { 0 } else { key + 1 };
        self.keys[key].uses += 1;
        LeaseAnswer::Leased(KeyLease { key: index(key), probe })
    }

    fn none_viable(&self, now: Now, tried: KeySet, request: RequestMark) -> LeaseAnswer {
        let alive = || (0..self.keys.len()).filter(|key| !self.is_dead(*key));
        let untried = alive().filter(|key| !tried.contains(index(*key))).map(|key| self.cooling(key, now)).min();
        match untried.or_else(|| alive().map(|key| self.cooling(key, now)).min()) {
            Some(wait) if wait > Nanos::ZERO && self.has_probes(now, tried) => LeaseAnswer::Throttled { wait },
            Some(wait) => LeaseAnswer::Cooling { wait },
            None => LeaseAnswer::Dead { wait: self.next_probe(now, request) },
        }
    }

    /// The time until a rejected key may be probed with this request.
    fn next_probe(&self, now: Now, request: RequestMark) -> Option<Nanos> {
        let wait = |key: usize| Some(self.keys[key].probe_at(request)?.since(now.mono).max(self.cooling(key, now)));
        (0..self.keys.len()).filter_map(wait).min()
    }

    /// Alive, not tried and not cooling.
    fn is_viable(&self, key: usize, now: Now, tried: KeySet) -> bool {
        !self.is_dead(key) && !tried.contains(index(key)) && self.is_warm(key, now)
    }

    fn is_warm(&self, key: usize, now: Now) -> bool {
        let key = &self.keys[key];
        key.cooldown.is_over(now) && self.groups[key.group].is_over(now)
    }

    fn cooling(&self, key: usize, now: Now) -> Nanos {
        let key = &self.keys[key];
        key.cooldown.left(now).max(self.groups[key.group].left(now))
    }

    /// Whether the cooldown of this key is probed before its end.
    fn is_probed(&self, at: usize, now: Now) -> bool {
        let key = &self.keys[at];
        let passes = |cooldown: &Cooldown| cooldown.is_over(now) || cooldown.probing != Probing::NEVER && cooldown.wall.0 <= now.wall.0;
        !self.is_warm(at, now) && passes(&key.cooldown) && passes(&self.groups[key.group])
    }

    /// Whether a probe may make an untried key usable before any cooldown ends.
    #[must_use]
    pub fn has_probes(&self, now: Now, tried: KeySet) -> bool {
        (0..self.keys.len()).any(|key| !self.is_dead(key) && !tried.contains(index(key)) && self.is_probed(key, now))
    }

    fn is_dead(&self, key: usize) -> bool {
        matches!(self.keys[key].health, KeyHealth::Dead { .. })
    }

    fn schedule_probe(&mut self, key: usize, now: Now) {
        let key = &mut self.keys[key];
        if let KeyHealth::Dead { probe_at, pause } = &mut key.health {
            if *pause != Self::UNPROVEN_PROBE {
                *pause = pause.times(2).min(Self::LAST_PROBE);
            }
            *probe_at = now.mono + *pause;
        }
        key.cooldown.probe_sent(now);
        self.groups[key.group].probe_sent(now);
    }

    /// Forgives one failure; revives a dead or cooling key only if it was probed: a response to an older call proves nothing.
    pub fn succeeded(&mut self, lease: KeyLease, now: Mono) {
        let Some(key) = self.keys.get_mut(usize::from(lease.key)) else { return };
        key.fails = key.fails.saturating_sub(1);
        key.accepted = Some(now);
        key.refused = Default::default();
        if lease.probe {
            key.health = KeyHealth::Live;
            key.cooldown.probe_answered(now);
            self.groups[key.group].probe_answered(now);
        }
    }

    /// A probe of a cooldown got a response that asks for no wait. A rejected key stays rejected.
    pub fn answered(&mut self, lease: KeyLease, now: Mono) {
        let Some(key) = self.keys.get_mut(usize::from(lease.key)).filter(|_| lease.probe) else { return };
        key.cooldown.probe_answered(now);
        self.groups[key.group].probe_answered(now);
    }

    pub fn failed(&mut self, lease: KeyLease) {
        if let Some(key) = self.keys.get_mut(usize::from(lease.key)) {
            key.fails = key.fails.saturating_add(1);
        }
    }

    /// The provider refused this key for one request. A request can be to blame as well as a key, so the key is dead only once it was
    /// refused for several different requests in a row, and none was accepted for a while; it is then probed soon and often, since nothing
    /// is proven.
    pub fn refuse(&mut self, lease: KeyLease, request: RequestMark, now: Mono) {
        self.failed(lease);
        let Some(key) = self.keys.get_mut(usize::from(lease.key)) else { return };
        if request == RequestMark::NONE || key.was_refused_for(request) {
            return;
        }
        if let Some(free) = key.refused.iter_mut().find(|mark| **mark == RequestMark::NONE) {
            *free = request;
            return;
        }
        key.refused.rotate_left(1);
        key.refused[REFUSALS - 1] = request;
        let is_good = key.accepted.is_some_and(|at| now.since(at) < Self::PROVEN_GOOD);
        if matches!(key.health, KeyHealth::Live) && !is_good {
            key.health = KeyHealth::Dead { probe_at: now + Self::UNPROVEN_PROBE, pause: Self::UNPROVEN_PROBE };
        }
    }

    /// The provider refuses this key and accepts another for the same request: it is dead until a probe succeeds.
    pub fn reject(&mut self, lease: KeyLease, now: Mono) {
        self.failed(lease);
        let Some(key) = self.keys.get_mut(usize::from(lease.key)) else { return };
        if matches!(key.health, KeyHealth::Live) {
            key.health = KeyHealth::Dead { probe_at: now + Self::FIRST_PROBE, pause: Self::FIRST_PROBE };
        }
    }

    /// The lease was never used: a probe is due again at once, and the use is not counted.
    pub fn cancel(&mut self, lease: KeyLease, now: Mono) {
        let Some(key) = self.keys.get_mut(usize::from(lease.key)) else { return };
        key.uses = key.uses.saturating_sub(1);
        if !lease.probe {
            return;
        }
        if let KeyHealth::Dead { probe_at, pause } = &mut key.health {
            if *pause != Self::UNPROVEN_PROBE {
                *pause = Nanos((pause.0 / 2).max(Self::FIRST_PROBE.0));
            }
            *probe_at = now;
        }
        key.cooldown.probing.returned(now);
        self.groups[key.group].probing.returned(now);
    }

    /// Cools every key that shares this one's quota.
    pub fn cool_group(&mut self, key: u16, until: Until) {
        if let Some(group) = self.keys.get(usize::from(key)).map(|key| key.group) {
            self.groups[group].extend(until);
        }
    }

    /// Cools this key alone.
    pub fn cool_key(&mut self, key: u16, until: Until) {
        if let Some(key) = self.keys.get_mut(usize::from(key)) {
            key.cooldown.extend(until);
        }
    }

    /// The provider asked for a wait: this key, or its whole group, is not used before then, except for a probe now and then.
    pub fn throttle(&mut self, key: u16, of_group: bool, until: Mono, now: Mono) {
        let Some(key) = self.keys.get_mut(usize::from(key)) else { return };
        let cooldown = if of_group { &mut self.groups[key.group] } else { &mut key.cooldown };
        cooldown.throttle(until, now);
    }

    /// Copies the state of the same key from the pool of the previous configuration.
    pub fn adopt(&mut self, key: u16, before: &Self, old: u16) {
        let (Some(own), Some(known)) = (self.keys.get_mut(usize::from(key)), before.keys.get(usize::from(old))) else { return };
        (own.health, own.cooldown) = (known.health, known.cooldown);
        (own.refused, own.accepted) = (known.refused, known.accepted);
        let (group, theirs) = (&mut self.groups[own.group], before.groups[known.group]);
        if (theirs.wall, theirs.mono) > (group.wall, group.mono) {
            *group = theirs;
        }
    }

    /// By an operator: alive, not cooling and without failures, and its group not cooling either.
    pub fn restore(&mut self, key: u16) {
        let Some(key) = self.keys.get_mut(usize::from(key)) else { return };
        key.fails = 0;
        key.health = KeyHealth::Live;
        key.cooldown = Cooldown::NONE;
        key.refused = Default::default();
        self.groups[key.group] = Cooldown::NONE;
    }

    #[must_use]
    pub fn status(&self, key: u16, now: Now) -> Option<KeyStatus> {
        let at = usize::from(key);
        let key = self.keys.get(at)?;
        let cooling = Some(self.cooling(at, now)).filter(|left| *left > Nanos::ZERO);
        Some(KeyStatus { fails: key.fails, uses: key.uses, cooling, dead: self.is_dead(at) })
    }

    /// The group of each key, counted from zero.
    pub fn groups(&self) -> impl Iterator<Item = usize> + '_ {
        self.keys.iter().map(|key| key.group)
    }

    #[must_use]
    pub const fn pick(&self) -> Pick {
        self.pick
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

fn index(key: usize) -> u16 {
    u16::try_from(key).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests;
