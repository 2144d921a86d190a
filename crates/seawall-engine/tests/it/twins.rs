//! Every script is the twin of a pure function: random sequences of operations, executed by both, must give equal replies and equal states.
//! Both get the time as an argument, in numbers without a unit.

use super::servers::Redis;
use redis::{Pipeline, Script};
use seawall_core::admit::layered::{self, Answers};
use seawall_core::admit::limit::{Gcra, LimitCell};
use seawall_core::guard::breaker::WHILE_PROBING;
use seawall_core::guard::{Admission, BreakerCell, BreakerSample, Forced, PauseState, Permit, PhaseChange, PhaseData};
use seawall_core::lease::{self, KeyLease, KeyPool, KeySet, RequestMark, Until};
use seawall_core::policy::{self, Algorithm, BreakerPer, Fail, Mode, Pick, Rate, Share};
use seawall_core::probing::{FIRST_GAP, MAX_DISPROVED};
use seawall_core::rng::Rng;
use seawall_core::time::{Mono, Nanos, Now, Wall};
use seawall_engine::shared::{script_arrays, scripts};

const SEQUENCES: u64 = 10_000;
const STEPS: usize = 14;

/// Operations for the server, with the core's replies.
#[derive(Default)]
struct Run {
    pipeline: Pipeline,
    expected: Vec<(String, Vec<i64>)>,
}

impl Run {
    fn op(
        &mut self,
        what: String,
        script: &Script,
        keys: &[String],
        (arguments, text, rest): (&[i64], Option<&str>, &[i64]),
        expected: Vec<i64>,
    ) {
        let command = self.pipeline.cmd("EVALSHA").arg(script.get_hash()).arg(keys.len()).arg(keys).arg(arguments);
        if let Some(text) = text {
            command.arg(text);
        }
        command.arg(rest);
        self.expected.push((what, expected));
    }
}

fn pick<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[usize::try_from(rng.up_to(of.len() as u64 - 1)).unwrap()]
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap()
}

fn one_of_three(rng: &mut Rng) -> Mode {
    pick(rng, &[Mode::Enforce, Mode::Enforce, Mode::Enforce, Mode::Shadow, Mode::Off])
}

fn some_limit(rng: &mut Rng) -> Gcra {
    let count = pick(rng, &[1, 2, 3, 7, 100, 33_000_000]);
    let algorithm = pick(rng, &[Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow]);
    Gcra::from(&policy::LimitPolicy {
        name: String::new(),
        key: Vec::new(),
        rate: Rate { count, per: Nanos(pick(rng, &[10, 1_000, 10_000_000, 864_000_000_000, 10_000_000 + 7])) },
        burst: rng.up_to(8),
        algorithm,
        mode: one_of_three(rng),
        fail: Fail::Open,
        max_wait: Nanos::ZERO,
    })
}

fn cell_numbers(limit: &Gcra, cell: &LimitCell) -> [i64; 3] {
    let windows = matches!(limit.numbers().algorithm, Algorithm::FixedWindow | Algorithm::SlidingWindow);
    let (held, before) = if windows { (cell.held & 0xffff_ffff, cell.held >> 32) } else { (cell.held, 0) };
    [cell.at, held, before].map(signed)
}

fn limits(rng: &mut Rng, sequence: u64, run: &mut Run) {
    let limits: Vec<Gcra> = (0..1 + rng.up_to(2)).map(|_| some_limit(rng)).collect();
    let mut cells = vec![LimitCell::default(); limits.len()];
    let keys: Vec<String> = (0..limits.len()).map(|layer| format!("{{twins}}:l:{sequence}:{layer}")).collect();
    let shape: Vec<i64> = limits.iter().flat_map(script_arrays::of_limit).map(signed).collect();
    let longest = limits.iter().map(|limit| limit.numbers().per).max().unwrap();
    let mut now = 1 + rng.up_to(1 << 50);
    let mut last: Option<(u64, u64, u32)> = None;
    for _ in 0..STEPS {
        now += if rng.up_to(2) == 0 { 0 } else { rng.up_to(longest * 3 / 2) };
        match rng.up_to(9) {
            0 if last.is_some() => {
                let (at, cost, shadowed) = last.take().unwrap();
                let spent: Vec<usize> =
                    (0..limits.len()).filter(|layer| limits[*layer].mode() != Mode::Off && shadowed >> layer & 1 == 0).collect();
                let mut pairs: Vec<(&Gcra, &mut LimitCell)> = limits.iter().zip(&mut cells).collect();
                layered::refund(&mut pairs, Mono(at), cost, shadowed);
                let shape: Vec<i64> = spent.iter().flat_map(|layer| script_arrays::of_limit(&limits[*layer])).map(signed).collect();
                let spent: Vec<String> = spent.into_iter().map(|layer| keys[layer].clone()).collect();
                if !spent.is_empty() {
                    run.op(
                        format!("refund {cost}"),
                        &scripts::REFUND,
                        &spent,
                        (&[signed(now), signed(at), signed(cost)], None, &shape),
                        vec![1],
                    );
                }
            }
            _ => {
                let cost = 1 + rng.up_to(3);
                let mut pairs: Vec<(&Gcra, &mut LimitCell)> = limits.iter().zip(&mut cells).collect();
                let mut expected = match layered::take_all(&mut pairs, Mono(now), cost) {
                    Answers::Go { after, shadowed } => {
                        last = Some((now, cost, shadowed));
                        vec![0, signed(after.0), -1, i64::from(shadowed)]
                    }
                    Answers::Refused { layer, retry_at } => vec![1, signed(retry_at.0 - now), signed(layer as u64)],
                    Answers::TooCostly { layer, capacity } => vec![2, signed(capacity), signed(layer as u64)],
                };
                if expected.len() == 3 {
                    // The shadow result is irrelevant if an enforcing layer refuses.
                    expected.push(i64::MIN);
                }
                expected.push(signed(now));
                expected.extend(limits.iter().zip(&cells).flat_map(|(limit, cell)| cell_numbers(limit, cell)));
                run.op(
                    format!("take {cost} at {now} {limits:?}"),
                    &scripts::TAKE,
                    &keys,
                    (&[signed(now), signed(cost)], None, &shape),
                    expected,
                );
            }
        }
    }
}

fn some_guard(rng: &mut Rng) -> policy::BreakerPolicy {
    policy::BreakerPolicy {
        mode: one_of_three(rng),
        per: BreakerPer::Endpoint,
        window: Nanos(pick(rng, &[5, 100, 10_007])),
        failure_rate: Share::percent(pick(rng, &[0, 30, 50, 100])),
        min_calls: pick(rng, &[1, 3]),
        consecutive: pick(rng, &[0, 2, 3]),
        slow: Nanos(pick(rng, &[0, 50])),
        slow_rate: Share::percent(pick(rng, &[50, 100])),
        open: Nanos(pick(rng, &[10, 100])),
        open_max: Nanos(pick(rng, &[5, 350])),
        probes: pick(rng, &[0, 1, 2, 3]),
        successes: pick(rng, &[1, 2]),
        ramp: Nanos(pick(rng, &[0, 40, 1_000])),
        max_wait: Nanos::ZERO,
    }
}

fn permit_numbers(permit: Option<Permit>) -> [i64; 2] {
    [permit.map_or(-1, |permit| i64::from(permit.generation)), permit.and_then(|permit| permit.probe).map_or(-1, i64::from)]
}

fn breakers(rng: &mut Rng, sequence: u64, run: &mut Run) {
    let (guard, mut breaker) = (some_guard(rng), BreakerCell::new());
    let key = [format!("{{twins}}:b:{sequence}")];
    let policy = script_arrays::of_guard(&guard, |span| span.0).map(signed);
    let mut out: Vec<Permit> = Vec::new();
    let mut now = 1 + rng.up_to(1 << 50);
    for _ in 0..STEPS * 2 {
        now += pick(rng, &[0, 1, 3, 20, 150]);
        if rng.up_to(24) == 0 {
            let forced = pick(rng, &[Forced::Open, Forced::Closed, Forced::Auto, Forced::Auto]);
            force(&mut breaker, forced, now, &key, &policy, run);
            continue;
        }
        if out.is_empty() || rng.up_to(2) == 0 {
            let lease = 1 + rng.up_to(60);
            let admission = breaker.admit(&guard, Nanos(lease), Mono(now));
            let mut expected = match admission {
                Admission::Go(permit) => {
                    out.push(permit);
                    vec![0, 0, i64::from(permit.generation), permit.probe.map_or(-1, i64::from)]
                }
                // The script leaves the wait of a ramp to the caller.
                Admission::Refused { retry_at: Some(_) } if ramps(&breaker) => vec![3, 0, i64::MIN, -1],
                Admission::Refused { retry_at: Some(at) } => vec![1, signed(at.0 - now), i64::MIN, -1],
                Admission::Refused { retry_at: None } => vec![2, 0, i64::MIN, -1],
            };
            expected.push(signed(now));
            expected.extend(script_arrays::of_breaker(&breaker.export()));
            run.op(
                format!("permit at {now} {guard:?}"),
                &scripts::PERMIT,
                &key,
                (&[signed(now), signed(lease), -1, signed(WHILE_PROBING.0)], None, &policy),
                expected,
            );
        } else {
            let permit = out.swap_remove(usize::try_from(rng.up_to(out.len() as u64 - 1)).unwrap());
            let sample = BreakerSample { failed: rng.up_to(1) == 0, repeated: rng.up_to(2) == 0, latency: Nanos(rng.up_to(80)) };
            let (cancelled, sampled) = if rng.up_to(4) == 0 { (Some(permit), None) } else { (None, Some(permit)) };
            let change = match sampled {
                None => {
                    breaker.cancel(permit);
                    None
                }
                Some(permit) => breaker.record(&guard, permit, sample, Mono(now)),
            };
            let mut arguments = vec![signed(now), -1];
            arguments.extend(permit_numbers(cancelled).into_iter().chain(permit_numbers(sampled)));
            arguments.extend([signed(script_arrays::of_failure(sample)), signed(sample.latency.0)]);
            let mut expected = vec![signed(now)];
            match change {
                None => expected.extend([-1, 0, 0, 0]),
                Some(change) => expected.extend(change_numbers(change).into_iter().chain([signed(now - change.at.0)])),
            }
            expected.extend(script_arrays::of_breaker(&breaker.export()));
            run.op(format!("report {change:?} at {now} {guard:?}"), &scripts::REPORT, &key, (&arguments, None, &policy), expected);
        }
    }
}

/// Forces both breakers.
fn force(breaker: &mut BreakerCell, forced: Forced, now: u64, key: &[String], policy: &[i64], run: &mut Run) {
    let from = match breaker.export().phase {
        PhaseData::Open { until, .. } if now >= until => 3,
        PhaseData::Open { .. } => 2,
        PhaseData::HalfOpen { .. } => 3,
        PhaseData::Ramping { .. } => 1,
        PhaseData::Closed => 0,
        PhaseData::ForcedOpen { .. } => 4,
        PhaseData::ForcedClosed => 5,
    };
    let to = signed(script_arrays::of_forced(forced));
    let change = breaker.force(forced, Mono(now)).map(|change| (change.from, change.to, change.cause));
    assert_eq!(change, script_arrays::change(from, to, 8).filter(|(from, to, _)| from != to));
    let mut expected = vec![signed(now), from, to, 8, 0];
    expected.extend(script_arrays::of_breaker(&breaker.export()));
    run.op(format!("force {forced} at {now}"), &scripts::FORCE, key, (&[signed(now), to], None, policy), expected);
}

/// Returns the three numbers that the script must return for a change.
fn change_numbers(change: PhaseChange) -> [i64; 3] {
    let all = [0, 2, 3]
        .into_iter()
        .flat_map(|from| [0, 2, 3].map(|to| (from, to)))
        .flat_map(|(from, to)| (1..=7).map(move |cause| [from, to, cause]));
    let mut all = all.filter(|[from, to, cause]| script_arrays::change(*from, *to, *cause) == Some((change.from, change.to, change.cause)));
    all.next().unwrap()
}

fn ramps(breaker: &BreakerCell) -> bool {
    matches!(breaker.export().phase, PhaseData::Ramping { .. })
}

fn pools(rng: &mut Rng, sequence: u64, run: &mut Run) {
    let groups: Vec<u16> = (0..1 + rng.up_to(3)).map(|_| u16::try_from(rng.up_to(2)).unwrap()).collect();
    let mut pool = KeyPool::new(pick(rng, &[Pick::FewestFailures, Pick::RoundRobin, Pick::LeastUsed]), &groups);
    let key = [format!("{{twins}}:k:{sequence}")];
    let mut policy = vec![script_arrays::of_pick(pool.pick()), KeyPool::FIRST_PROBE.0, KeyPool::LAST_PROBE.0, KeyPool::UNPROVEN_PROBE.0];
    policy.extend([KeyPool::PROVEN_GOOD.0, MAX_DISPROVED.0, FIRST_GAP.0, groups.len() as u64]);
    policy.extend(pool.groups().map(|group| group as u64));
    let policy: Vec<i64> = policy.into_iter().map(signed).collect();
    let mut now = 1 + rng.up_to(1 << 50);
    let mut out: Vec<KeyLease> = Vec::new();
    for _ in 0..STEPS * 2 {
        now += pick(rng, &[0, 1, 50, 300_000_000, 2_000_000_000, 61_000_000_000, 200_000_000_000]);
        let arguments: Vec<i64> = [signed(now)].into_iter().chain(policy.iter().copied()).collect();
        if out.is_empty() || rng.up_to(1) == 0 {
            let mut tried = KeySet::default();
            (0..4).filter(|_| rng.up_to(3) == 0).for_each(|key| tried.insert(key));
            let text: String = (0..groups.len()).map(|key| if tried.contains(u16::try_from(key).unwrap()) { '1' } else { '0' }).collect();
            let request = RequestMark::from_number(u32::try_from(rng.up_to(4)).unwrap());
            let mut expected = match pool.lease(Now { mono: Mono(now), wall: Wall(0) }, tried, request) {
                lease::LeaseAnswer::Leased(lease) => {
                    out.push(lease);
                    vec![0, i64::from(lease.key), i64::from(lease.probe), 0]
                }
                lease::LeaseAnswer::Cooling { wait } | lease::LeaseAnswer::Throttled { wait } => vec![1, 0, 0, signed(wait.0)],
                lease::LeaseAnswer::Dead { wait } => vec![2, 0, 0, wait.map_or(-1, |wait| signed(wait.0))],
            };
            expected.push(signed(now));
            expected.extend(script_arrays::of_pool(&pool.export()));
            run.op(
                format!("lease {text} at {now}"),
                &scripts::LEASE,
                &key,
                (&arguments, Some(&text), &[i64::from(request.number())]),
                expected,
            );
        } else {
            let lease = out.swap_remove(usize::try_from(rng.up_to(out.len() as u64 - 1)).unwrap());
            let what = pick(rng, &[1, 1, 2, 3, 3, 4, 5, 6, 7, 8, 9, 10, 10, 11]);
            let detail = match what {
                1 => rng.up_to(groups.len() as u64),
                3 => rng.up_to(4),
                _ => rng.up_to(100_000_000_000),
            };
            report_key(&mut pool, what, lease, detail, now);
            let told = [signed(what), i64::from(lease.key), i64::from(lease.probe), signed(detail)];
            let expected = [signed(now)].into_iter().chain(script_arrays::of_pool(&pool.export())).collect();
            run.op(format!("report {what} of {lease:?} at {now}"), &scripts::KEY_REPORT, &key, (&arguments, None, &told), expected);
        }
    }
}

/// Applies the report that the script gets as the same numbers.
fn report_key(pool: &mut KeyPool, what: u64, lease: KeyLease, detail: u64, now: u64) {
    let until = Until::Mono(Mono(now + detail));
    match what {
        1 => {
            pool.succeeded(lease, Mono(now));
            if let Some(key) = detail.checked_sub(1) {
                pool.reject(KeyLease { key: u16::try_from(key).unwrap(), probe: false }, Mono(now));
            }
        }
        2 => pool.failed(lease),
        3 => pool.refuse(lease, RequestMark::from_number(u32::try_from(detail).unwrap()), Mono(now)),
        4 => pool.cancel(lease, Mono(now)),
        5 => {
            pool.failed(lease);
            pool.cool_key(lease.key, until);
        }
        6 => {
            pool.failed(lease);
            pool.cool_group(lease.key, until);
        }
        7 => pool.cool_key(lease.key, until),
        11 => pool.answered(lease, Mono(now)),
        9 | 10 => {
            pool.failed(lease);
            pool.throttle(lease.key, what == 10, Mono(now + detail), Mono(now));
        }
        _ => pool.restore(lease.key),
    }
}

/// Random histories of a pause: requested, probed and disproved.
fn pauses(rng: &mut Rng, sequence: u64, run: &mut Run) {
    let mut pause = PauseState::default();
    let key = [format!("{{twins}}:p:{sequence}")];
    let both = [format!("{{twins}}:pb:{sequence}"), key[0].clone()];
    let policy = script_arrays::of_guard(&some_guard(rng), |span| span.0).map(signed);
    let mut now = 1 + rng.up_to(1 << 50);
    let mut probe = None;
    for _ in 0..STEPS {
        now += pick(rng, &[1, 50_000_000, 300_000_000, 2_000_000_000, 20_000_000_000]);
        match rng.up_to(3) {
            0 => {
                let length = pick(rng, &[1_000, 1_000_000_000, 30_000_000_000, 600_000_000_000]);
                pause.extend(Mono(now + length), Mono(now));
                let disproved = if now < pause.disproved().0 { pause.disproved().0 } else { 0 };
                let expected = [now, pause.span(Mono(now)).map_or(0, |(_, until)| until.0), disproved].map(signed).to_vec();
                let arguments = [now, length, FIRST_GAP.0].map(signed);
                run.op(format!("pause for {length} at {now}"), &scripts::PAUSE, &key, (&arguments, None, &[]), expected);
            }
            1 if probe.take().is_some() => {
                // An instance runs this script only after a response has ended its own pause.
                if pause.span(Mono(now)).is_some() {
                    pause.answered(Mono(now), Mono(now));
                    let arguments = [now, MAX_DISPROVED.0].map(signed);
                    run.op(format!("disprove at {now}"), &scripts::PAUSE_DISPROVED, &key, (&arguments, None, &[]), vec![signed(now)]);
                }
            }
            _ => {
                let lasts = !pause.is_over(Mono(now));
                let (kind, wait) = match pause.admit(Mono(now)) {
                    Ok(()) if lasts => (5, 0),
                    Ok(()) => (0, 0),
                    Err(until) => (4, until.0 - now),
                };
                probe = (kind == 5).then_some(()).or(probe);
                let arguments = [signed(now), 1, 0, signed(WHILE_PROBING.0)];
                let expected = vec![kind, signed(wait), 0, -1, signed(now)];
                run.op(format!("permit at {now}"), &scripts::PERMIT, &both, (&arguments, None, &policy), expected);
            }
        }
    }
}

fn load(connection: &mut redis::Connection) {
    let limits = [&scripts::TAKE, &scripts::REFUND];
    let keys = [&scripts::LEASE, &scripts::KEY_REPORT];
    let guards = [&scripts::PERMIT, &scripts::REPORT, &scripts::FORCE, &scripts::PAUSE, &scripts::PAUSE_DISPROVED];
    for script in limits.into_iter().chain(keys).chain(guards) {
        script.load(connection).unwrap();
    }
}

#[test]
fn the_scripts_do_what_the_core_does() {
    let redis = Redis::start();
    let mut connection = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
    load(&mut connection);
    let mut operations = 0;
    for sequence in 0..SEQUENCES {
        let (mut run, mut rng) = (Run::default(), Rng::seeded(sequence));
        limits(&mut rng, sequence, &mut run);
        breakers(&mut rng, sequence, &mut run);
        pauses(&mut rng, sequence, &mut run);
        pools(&mut rng, sequence, &mut run);
        operations += run.expected.len();
        let replies: Vec<redis::Value> = run.pipeline.query(&mut connection).unwrap();
        for (step, ((what, expected), reply)) in run.expected.iter().zip(replies).enumerate() {
            let reply: Vec<i64> = match reply {
                redis::Value::Int(number) => vec![number],
                reply => redis::from_redis_value(reply).unwrap(),
            };
            // The minimum stands for any number.
            let same = reply.len() == expected.len() && reply.iter().zip(expected).all(|(a, b)| a == b || *b == i64::MIN);
            assert!(same, "sequence {sequence}, step {step}: {what}\n script {reply:?}\n core   {expected:?}");
        }
    }
    assert!(operations > 400_000, "{operations} operations were compared");
}

#[test]
fn every_key_ends_by_itself() {
    let redis = Redis::start();
    let mut connection = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
    let (mut run, mut rng) = (Run::default(), Rng::seeded(1));
    load(&mut connection);
    limits(&mut rng, 0, &mut run);
    breakers(&mut rng, 0, &mut run);
    pools(&mut rng, 0, &mut run);
    let _: Vec<redis::Value> = run.pipeline.query(&mut connection).unwrap();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
    assert!(keys.len() >= 3, "{keys:?}");
    for key in keys {
        let left: i64 = redis::cmd("PTTL").arg(&key).query(&mut connection).unwrap();
        assert!((1..=40 * 86_400_000).contains(&left), "{key} ends in {left} ms");
    }
}
