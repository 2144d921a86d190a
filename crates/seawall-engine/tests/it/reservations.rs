//! The scripts for idempotency keys are twins of `admit::idempotency`: random histories of a key, executed by both, must give equal
//! replies. Times are numbers that stand for milliseconds in the core.

use super::servers::Redis;
use redis::{Pipeline, Script};
use seawall_core::admit::idempotency::{self as rule, KeyClaim, KeyEnding, KeyEntry, RequestFingerprint, ReserveAnswer};
use seawall_core::rng::Rng;
use seawall_core::time::{Nanos, Wall};
use seawall_engine::shared::scripts;

const LIVES: u64 = 10_000;
const STEPS: usize = 20;

type Reply = (i64, i64, Vec<u8>);

/// One key as the core sees it: the entry, its owner, and the stored response.
#[derive(Default)]
struct Key {
    slot: Option<KeyEntry>,
    owner: u8,
    response: Vec<u8>,
}

impl Key {
    fn reserve(&mut self, claim: KeyClaim, owner: u8, now: i64) -> Reply {
        let own = owner > 0 && self.slot.is_some() && self.owner == owner;
        let decide = if own { rule::resume } else { rule::reserve };
        match decide(&mut self.slot, claim, Wall(now)) {
            ReserveAnswer::Proceed { reservation } => {
                (self.owner, self.response) = (owner, Vec::new());
                (0, i64::from(reservation), Vec::new())
            }
            ReserveAnswer::Replay => (1, 0, self.response.clone()),
            ReserveAnswer::Mismatch => (2, 0, Vec::new()),
            ReserveAnswer::InFlight { retry_at } => (3, retry_at.0 - now, Vec::new()),
            ReserveAnswer::Unknown => (4, 0, Vec::new()),
        }
    }

    fn finish(&mut self, reservation: u32, ending: KeyEnding, ttl: Nanos, response: &[u8], now: i64) -> bool {
        let held = rule::finish(&mut self.slot, reservation, ending, ttl, Wall(now));
        if held && !response.is_empty() {
            self.response = response.to_vec();
        }
        held
    }
}

fn op<'a>(pipeline: &'a mut Pipeline, script: &Script, key: &str) -> &'a mut Pipeline {
    pipeline.cmd("EVALSHA").arg(script.get_hash()).arg(1).arg(key)
}

/// Returns operations for the server, with the core's replies; the reply of an ending is its first number.
fn life(rng: &mut Rng, name: &str) -> (Pipeline, Vec<(String, Reply)>) {
    let (mut pipeline, mut expected, mut key) = (Pipeline::new(), Vec::new(), Key::default());
    let mut now = 1 + i64::try_from(rng.up_to(1 << 40)).unwrap();
    let small = |rng: &mut Rng, most| u8::try_from(rng.up_to(most)).unwrap();
    for _ in 0..STEPS {
        now += i64::from(small(rng, 40));
        let ttl = 20 + rng.up_to(100);
        if rng.up_to(2) > 0 {
            let (fingerprint, owner, lease) = ([small(rng, 3) / 3; 32], small(rng, 2), 1 + rng.up_to(60));
            let claim = KeyClaim {
                fingerprint: RequestFingerprint(fingerprint),
                lease: Nanos::from_millis(lease),
                ttl: Nanos::from_millis(ttl),
                upstream_honours_keys: rng.up_to(2) == 0,
            };
            let owner_text = if owner == 0 { Vec::new() } else { vec![owner; 16] };
            let asks = op(&mut pipeline, &scripts::RESERVE, name).arg(now).arg(&fingerprint[..]).arg(owner_text);
            asks.arg(lease).arg(ttl).arg(u8::from(claim.upstream_honours_keys));
            expected.push((format!("reserve {claim:?} by {owner} at {now}"), key.reserve(claim, owner, now)));
        } else {
            let (reservation, how) = (u32::from(small(rng, 2)), small(rng, 2));
            let ending = [KeyEnding::Done, KeyEnding::Released, KeyEnding::Unknown][usize::from(how)];
            let response = if how == 0 && rng.up_to(3) > 0 { now.to_string().into_bytes() } else { Vec::new() };
            let tells = op(&mut pipeline, &scripts::FINISH, name).arg(now).arg(reservation).arg(how + 1);
            tells.arg(ttl).arg(&response);
            let held = key.finish(reservation, ending, Nanos::from_millis(ttl), &response, now);
            expected.push((format!("finish {reservation} {ending:?} at {now}"), (i64::from(held), 0, Vec::new())));
        }
    }
    (pipeline, expected)
}

#[test]
fn keys_in_redis_live_as_the_core_says() {
    let redis = Redis::start();
    let mut connection = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
    for script in [&scripts::RESERVE, &scripts::FINISH] {
        script.load(&mut connection).unwrap();
    }
    let mut kinds = [0_u32; 5];
    for number in 0..LIVES {
        let name = format!("{{twins}}:i:{number}");
        let (pipeline, expected) = life(&mut Rng::seeded(number), &name);
        let replies: Vec<redis::Value> = pipeline.query(&mut connection).unwrap();
        assert_eq!(replies.len(), expected.len());
        for (step, ((what, expected), reply)) in expected.iter().zip(replies).enumerate() {
            let reply: Reply = match reply {
                redis::Value::Int(held) => (held, 0, Vec::new()),
                reply => {
                    let reply: Reply = redis::from_redis_value(reply).unwrap();
                    kinds[usize::try_from(reply.0).unwrap()] += 1;
                    reply
                }
            };
            assert_eq!(reply, *expected, "life {number}, step {step}: {what}");
        }
        let life: i64 = redis::cmd("PTTL").arg(&name).query(&mut connection).unwrap();
        assert_ne!(life, -1, "life {number}: the key would stay for ever");
    }
    assert!(kinds.iter().all(|kind| *kind > 1_000), "every answer was compared: {kinds:?}");
}
