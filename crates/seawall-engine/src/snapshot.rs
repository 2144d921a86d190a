//! State that survives a restart: breakers that are not closed, keys that cool or were refused, pauses that a server asked for. Counts that
//! calls renew are left out, so that two equal snapshots mean that nothing happened.

use crate::runtime::{Live, LiveUpstream};
use crate::state::{EndpointState, UpstreamState};
use seawall_core::guard::{BreakerCell, BreakerData, PhaseData, WindowData};
use seawall_core::lease::{CooldownData, KeyData, KeyPoolData};
use seawall_core::time::{Mono, Nanos, Now};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Times in it are nanoseconds of the wall clock, which a new process can interpret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    upstreams: BTreeMap<String, UpstreamSnapshot>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct UpstreamSnapshot {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    keys: Option<Keys>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    paused_until: Option<u64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    endpoints: BTreeMap<String, EndpointSnapshot>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Keys {
    /// Identifies the set of keys.
    fingerprint: String,
    /// Fingerprints that distinguish the secrets of keys; absent in snapshots of older versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    secrets: Vec<u32>,
    pool: KeyPoolData,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct EndpointSnapshot {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    breaker: Option<BreakerData>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    paused_until: Option<u64>,
}

/// Both clocks at one moment, for conversions between them.
#[derive(Clone, Copy)]
struct Clocks {
    mono: u64,
    wall: u64,
}

impl Clocks {
    fn new(now: Now) -> Self {
        Self { mono: now.mono.0, wall: u64::try_from(now.wall.0).unwrap_or(0).saturating_mul(1_000_000) }
    }

    /// Converted times differ by some microseconds each time, so they are rounded to keep equal times equal.
    const GRAIN: u64 = 1_000_000_000;

    fn to_wall(self, mono: u64) -> u64 {
        match mono {
            u64::MAX => u64::MAX,
            mono => (self.wall.saturating_add(mono).saturating_sub(self.mono) + Self::GRAIN / 2) / Self::GRAIN * Self::GRAIN,
        }
    }

    /// Converts a wall-clock time; times before the start of this process become its start.
    fn to_mono(self, wall: u64) -> u64 {
        match wall {
            u64::MAX => u64::MAX,
            wall => self.mono.saturating_add(wall).saturating_sub(self.wall),
        }
    }
}

impl Memory {
    #[must_use]
    pub fn of(live: &Live, now: Now) -> Self {
        let clocks = Clocks::new(now);
        let worth = |upstream: &UpstreamSnapshot| *upstream != UpstreamSnapshot::default();
        let each = live.upstreams.iter().map(|upstream| (upstream.spec.name.clone(), kept(upstream, clocks)));
        Self { upstreams: each.filter(|(_, upstream)| worth(upstream)).collect() }
    }

    /// Restores the state of a new configuration's upstreams.
    pub fn recall(self, live: &Live, now: Now) {
        let clocks = Clocks::new(now);
        for (name, known) in self.upstreams {
            let Some(upstream) = live.named(&name) else { continue };
            if let Some(keys) = known.keys.filter(|keys| keys.fingerprint == upstream.state.fingerprint()) {
                keys.recall(&upstream.state, clocks);
            }
            if let Some(until) = known.paused_until {
                upstream.state.pause(Mono(clocks.to_mono(until)), now.mono);
            }
            for endpoint in &upstream.endpoints {
                let Some(known) = known.endpoints.get(&endpoint.spec.name).cloned() else { continue };
                if let Some(until) = known.paused_until {
                    endpoint.state.pause(Mono(clocks.to_mono(until)), now.mono);
                }
                if let Some(breaker) = known.breaker {
                    let breaker = bounded(breaker.on(|at| clocks.to_mono(at), |span| span), now.mono);
                    endpoint.state.with_breaker(|cell| *cell = BreakerCell::import(&breaker));
                }
            }
        }
    }
}

impl Keys {
    fn recall(mut self, state: &UpstreamState, clocks: Clocks) {
        let is_replaced: Vec<bool> = self.secrets.iter().zip(state.secrets()).map(|(known, own)| known != own).collect();
        state.with_keys(|pool| {
            for (data, _) in self.pool.keys.iter_mut().zip(&is_replaced).filter(|(_, replaced)| **replaced) {
                *data = KeyData::default();
            }
            // A quota stays used up as long as one of its keys remains.
            for (group, data) in self.pool.groups.iter_mut().enumerate() {
                let mut members = pool.groups().zip(&is_replaced).filter(|(of, _)| *of == group).peekable();
                if members.peek().is_some() && members.all(|(_, replaced)| *replaced) {
                    *data = CooldownData::default();
                }
            }
            pool.import(&self.pool.on(|at| clocks.to_mono(at), |span| span));
        });
    }
}

/// Bounds an open breaker's wait to its full length from now, however wrong the clock was.
fn bounded(mut breaker: BreakerData, now: Mono) -> BreakerData {
    if let PhaseData::Open { until, length, .. } = &mut breaker.phase {
        *until = (*until).min((now + Nanos(*length)).0);
    }
    breaker
}

fn kept(upstream: &LiveUpstream, clocks: Clocks) -> UpstreamSnapshot {
    let now = Mono(clocks.mono);
    let end = |span: Option<(Mono, Mono)>| span.map(|(_, until)| clocks.to_wall(until.0));
    let endpoints = upstream.endpoints.iter().map(|endpoint| {
        let kept = EndpointSnapshot { breaker: breaker(&endpoint.state, clocks), paused_until: end(endpoint.state.paused(now)) };
        (endpoint.spec.name.clone(), kept)
    });
    UpstreamSnapshot {
        keys: keys(&upstream.state, clocks),
        paused_until: end(upstream.state.paused(now)),
        endpoints: endpoints.filter(|(_, endpoint)| *endpoint != EndpointSnapshot::default()).collect(),
    }
}

fn breaker(state: &EndpointState, clocks: Clocks) -> Option<BreakerData> {
    let data = state.with_breaker(|breaker| breaker.export());
    let phase = match data.phase {
        PhaseData::Closed | PhaseData::Ramping { .. } => return None,
        // Its probes ended with the process; the next one may start at once.
        PhaseData::HalfOpen { length, .. } => PhaseData::Open { since: 0, until: 0, length },
        phase => phase,
    };
    let data = BreakerData { phase, generation: 0, consecutive: 0, crossed: false, opened_for: 0, window: WindowData::default() };
    Some(data.on(|at| clocks.to_wall(at), |span| span))
}

fn keys(state: &UpstreamState, clocks: Clocks) -> Option<Keys> {
    let mut pool = state.with_keys(|pool| pool.export())?;
    let past = |wall: i64| u64::try_from(wall).unwrap_or(0).saturating_mul(1_000_000) <= clocks.wall;
    let over = |cooldown: &CooldownData| cooldown.mono <= clocks.mono && cooldown.wall.is_none_or(past);
    pool.turn = 0;
    for key in &mut pool.keys {
        (key.uses, key.fails, key.refused, key.accepted) = (0, 0, Default::default(), None);
    }
    let cooldowns = pool.keys.iter_mut().map(|key| &mut key.cooldown).chain(&mut pool.groups);
    cooldowns.filter(|cooldown| over(cooldown)).for_each(|cooldown| *cooldown = CooldownData::default());
    let resting = pool.keys.iter().any(|key| key.dead.is_some() || key.cooldown != CooldownData::default())
        || pool.groups.iter().any(|group| *group != CooldownData::default());
    let pool = resting.then(|| pool.on(|at| clocks.to_wall(at), |span| span))?;
    Some(Keys { fingerprint: state.fingerprint().to_owned(), secrets: state.secrets().to_vec(), pool })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Around;
    use crate::secret::Secret;
    use seawall_core::config;
    use seawall_core::config::place::SecretRef;
    use seawall_core::guard::{Forced, State};
    use seawall_core::lease::Until;
    use seawall_core::time::Wall;

    const POLICY: &str = r#"
[upstreams.a]
url = "http://127.0.0.1:1"
breaker = { open = "10s", open_max = "60s" }
[upstreams.a.auth]
keys = [{ id = "x", secret = "env:X" }, { id = "y", secret = "env:Y" }]
"#;

    fn live() -> Live {
        live_with("s")
    }

    /// The key `x` has this secret.
    fn live_with(x: &str) -> Live {
        let vault = |reference: &SecretRef| Ok(Secret::new(if reference.to_string() == "env:X" { x } else { "s" }));
        let around = Around { vault: &vault, files: &|_| Err("none".to_owned()) };
        Live::new(config::load("t", POLICY.as_bytes()).unwrap(), around, None).unwrap()
    }

    /// Both clocks: this many seconds since the process started, and of the machine's clock.
    fn at(mono_s: u64, wall_s: i64) -> Now {
        Now { mono: Mono(mono_s * 1_000_000_000), wall: Wall(wall_s * 1000) }
    }

    /// Returns the state of a process that starts at `now` with this snapshot, after a round trip through the store's format.
    fn restarted(memory: &Memory, now: Now) -> Live {
        let fresh = live();
        let text = serde_json::to_string(memory).unwrap();
        serde_json::from_str::<Memory>(&text).unwrap().recall(&fresh, now);
        fresh
    }

    #[test]
    fn a_calm_process_has_nothing_to_remember() {
        let live = live();
        assert_eq!(Memory::of(&live, at(100, 5000)), Memory::default());
        live.upstreams[0].state.cool_key(0, Until::Mono(Mono(3)));
        assert_eq!(Memory::of(&live, at(100, 5000)), Memory::default(), "that is over");
    }

    #[test]
    fn keys_go_on_cooling_for_as_long_as_they_would_have() {
        let before = live();
        before.upstreams[0].state.cool_key(0, Until::Mono(at(160, 0).mono));
        before.upstreams[0].state.cool_key(1, Until::Wall(Wall(6_000_000)));
        let memory = Memory::of(&before, at(100, 5000));
        let after = restarted(&memory, at(2, 5010));
        let left = |live: &Live, key, now| live.upstreams[0].state.key_status(key, now).unwrap().cooling;
        assert_eq!(left(&after, 0, at(2, 5010)), Some(Nanos::from_secs(50)));
        assert_eq!(left(&after, 1, at(2, 5010)), Some(Nanos::from_secs(990)));
        assert_eq!(Memory::of(&after, at(2, 5010)), memory, "nothing happened");
        assert_eq!(left(&restarted(&memory, at(2, 7000)), 0, at(2, 7000)), None, "meanwhile it is over");
    }

    #[test]
    fn an_open_breaker_stays_open_and_one_held_by_hand_stays_held() {
        for (forced, state) in [(Forced::Open, State::Open), (Forced::Closed, State::Closed)] {
            let before = live();
            before.upstreams[0].endpoints[0].state.with_breaker(|breaker| breaker.force(forced, at(100, 0).mono));
            let after = restarted(&Memory::of(&before, at(100, 5000)), at(0, 9000));
            let endpoint = &after.upstreams[0].endpoints[0].state;
            assert_eq!((endpoint.forced_breaker(), endpoint.breaker_state(at(0, 0).mono).0), (forced, state));
        }
        let before = live();
        let open = PhaseData::Open { since: at(95, 0).mono.0, until: at(105, 0).mono.0, length: 10_000_000_000 };
        let open = BreakerData { phase: open, ..BreakerData::default() };
        before.upstreams[0].endpoints[0].state.with_breaker(|cell| *cell = BreakerCell::import(&open));
        let memory = Memory::of(&before, at(100, 5000));
        let retry_at = |live: &Live, now: Now| live.upstreams[0].endpoints[0].state.breaker_state(now.mono).1;
        assert_eq!(retry_at(&restarted(&memory, at(1, 5002)), at(1, 5002)), Some(at(4, 0).mono));
        let wrong = at(1, 1000);
        assert_eq!(retry_at(&restarted(&memory, wrong), wrong), Some(at(11, 0).mono), "the clock was an hour ahead before");
    }

    #[test]
    fn a_key_that_was_replaced_meanwhile_begins_as_ready() {
        let before = live();
        before.upstreams[0].state.with_keys(|pool| [0, 1].map(|key| pool.cool_group(key, Until::Mono(at(160, 0).mono))));
        let memory = Memory::of(&before, at(100, 5000));
        let after = live_with("another secret");
        memory.recall(&after, at(2, 5000));
        let cooling = |key| after.upstreams[0].state.key_status(key, at(2, 5000)).unwrap().cooling;
        assert_eq!([cooling(0), cooling(1)], [None, Some(Nanos::from_secs(60))]);
    }

    #[test]
    fn other_keys_are_not_mistaken_for_those_that_cooled() {
        let before = live();
        before.upstreams[0].state.cool_key(0, Until::Mono(at(160, 0).mono));
        let mut memory = Memory::of(&before, at(100, 5000));
        memory.upstreams.get_mut("a").unwrap().keys.as_mut().unwrap().fingerprint = "others".to_owned();
        let after = restarted(&memory, at(2, 5000));
        assert_eq!(after.upstreams[0].state.key_status(0, at(2, 5000)).unwrap().cooling, None);
    }
}
