//! A key pool as plain numbers, for state that is kept elsewhere: shared across instances, or in a snapshot on disk. The configuration
//! defines the keys and their groups.

use super::pool::{Cooldown, KeyHealth, KeyPool, REFUSALS, RequestMark};
use crate::probing::Probing;
use crate::time::{Mono, Nanos, Wall};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyPoolData {
    /// The key at which the next round begins.
    pub turn: u16,
    pub keys: Vec<KeyData>,
    pub groups: Vec<CooldownData>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyData {
    pub fails: u32,
    pub uses: u64,
    /// Rejected: the time of the next probe, and its distance from the last one.
    pub dead: Option<(u64, u64)>,
    pub cooldown: CooldownData,
    /// Marks of the requests it was refused for since it was last accepted; zero stands for none.
    #[serde(default)]
    pub refused: [u32; REFUSALS],
    /// When a request was last accepted with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<u64>,
}

/// Zero and none: never cooled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CooldownData {
    pub mono: u64,
    pub wall: Option<i64>,
    /// The time of the next probe, and its distance from the last one.
    #[serde(default)]
    pub probe: Option<(u64, u64)>,
    /// A probe has ended a cooldown: before this time, no wait that the provider asks for begins.
    #[serde(default)]
    pub disproved: u64,
}

impl KeyPoolData {
    /// The same pool on another clock: `instant` converts monotonic moments, `length` converts spans.
    #[must_use]
    pub fn on(mut self, instant: impl Fn(u64) -> u64, length: impl Fn(u64) -> u64) -> Self {
        let warm = |at: u64| if at == 0 { 0 } else { instant(at) };
        let probe = |probe: Option<(u64, u64)>| probe.map(|(at, gap)| (instant(at), length(gap)));
        for key in &mut self.keys {
            key.dead = probe(key.dead);
            key.accepted = key.accepted.map(&instant);
        }
        for cooldown in self.keys.iter_mut().map(|key| &mut key.cooldown).chain(&mut self.groups) {
            cooldown.mono = warm(cooldown.mono);
            cooldown.probe = probe(cooldown.probe);
            cooldown.disproved = warm(cooldown.disproved);
        }
        self
    }
}

impl KeyPool {
    #[must_use]
    pub fn export(&self) -> KeyPoolData {
        KeyPoolData {
            turn: u16::try_from(self.turn).unwrap_or(0),
            keys: self
                .keys
                .iter()
                .map(|key| KeyData {
                    fails: key.fails,
                    uses: key.uses,
                    dead: match key.health {
                        KeyHealth::Live => None,
                        KeyHealth::Dead { probe_at, pause } => Some((probe_at.0, pause.0)),
                    },
                    cooldown: key.cooldown.into(),
                    refused: key.refused.map(RequestMark::number),
                    accepted: key.accepted.map(|at| at.0),
                })
                .collect(),
            groups: self.groups.iter().map(|group| (*group).into()).collect(),
        }
    }

    /// Restores the state of the keys. Data of a pool of another size belongs to other keys and changes nothing.
    pub fn import(&mut self, data: &KeyPoolData) {
        if data.keys.len() != self.keys.len() || data.groups.len() != self.groups.len() {
            return;
        }
        self.turn = usize::from(data.turn) % self.keys.len().max(1);
        for (key, data) in self.keys.iter_mut().zip(&data.keys) {
            key.fails = data.fails;
            key.uses = data.uses;
            key.health =
                data.dead.map_or(KeyHealth::Live, |(probe_at, pause)| KeyHealth::Dead { probe_at: Mono(probe_at), pause: Nanos(pause) });
            key.cooldown = data.cooldown.into();
            key.refused = data.refused.map(RequestMark::from_number);
            key.accepted = data.accepted.map(Mono);
        }
        for (group, data) in self.groups.iter_mut().zip(&data.groups) {
            *group = (*data).into();
        }
    }
}

impl From<Cooldown> for CooldownData {
    fn from(cooldown: Cooldown) -> Self {
        Self {
            mono: cooldown.mono.0,
            wall: Some(cooldown.wall.0).filter(|wall| *wall != Cooldown::NONE.wall.0),
            probe: cooldown.probing.numbers(),
            disproved: cooldown.disproved.0,
        }
    }
}

impl From<CooldownData> for Cooldown {
    fn from(data: CooldownData) -> Self {
        Self {
            mono: Mono(data.mono),
            wall: data.wall.map_or(Self::NONE.wall, Wall),
            probing: Probing::from_numbers(data.probe),
            disproved: Mono(data.disproved),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{KeyLease, KeySet, LeaseAnswer, Until};
    use crate::policy::Pick;
    use crate::time::Now;

    #[test]
    fn a_pool_survives_the_way_out_and_back() {
        let mut pool = KeyPool::new(Pick::RoundRobin, &[0, 0, 1]);
        pool.cool_key(0, Until::Mono(Mono(50)));
        pool.cool_group(2, Until::Wall(Wall(7)));
        pool.succeeded(KeyLease { key: 0, probe: false }, Mono(2));
        pool.reject(KeyLease { key: 1, probe: false }, Mono(3));
        let _ = pool.lease(Now { mono: Mono(60), wall: Wall(0) }, KeySet::default(), RequestMark::NONE);
        let text = serde_json::to_string(&pool.export()).unwrap();
        let mut back = KeyPool::new(Pick::RoundRobin, &[0, 0, 1]);
        back.import(&serde_json::from_str(&text).unwrap());
        assert_eq!(back.export(), pool.export());
        let now = Now { mono: Mono(10), wall: Wall(0) };
        assert_eq!(back.lease(now, KeySet::default(), RequestMark::NONE), LeaseAnswer::Cooling { wait: Nanos(40) });
    }

    #[test]
    fn data_of_other_keys_changes_nothing() {
        let mut pool = KeyPool::new(Pick::RoundRobin, &[0, 1]);
        let mut other = KeyPool::new(Pick::RoundRobin, &[0]);
        other.cool_key(0, Until::Mono(Mono::MAX));
        pool.import(&other.export());
        assert!(matches!(pool.lease(Now::default(), KeySet::default(), RequestMark::NONE), LeaseAnswer::Leased(_)));
    }
}
