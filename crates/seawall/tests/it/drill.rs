//! An outage on the real program: as many calls give up as `seawall check` says.

use super::caller::{Caller, Watch};
use super::dir;
use super::gateway::{Gateway, Start, program};
use super::upstream::{OK, Upstream, answer};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const OUTAGE: Duration = Duration::from_secs(2);
const CALLS_PER_SECOND: u32 = 20;
/// The calls before the outage, whose successes fund its retries.
const CALM: u32 = 60;
/// Five points, and half a call: the outage has 40.
const TOLERANCE: f64 = 0.05 + 0.5 / 40.0;

/// In each policy something else decides: the waiting line, its longest wait, the attempts, or a breaker that refuses at once.
const POLICIES: [&str; 4] = [
    "breaker.consecutive = 3",
    "breaker = { consecutive = 3, open = \"100ms\", open_max = \"100ms\", max_wait = \"1s\" }",
    "breaker.mode = \"off\"\nretry = { attempts = 2, base = \"100ms\", budget = \"100%\" }",
    "breaker = { consecutive = 3, open = \"4s\", open_max = \"4s\", max_wait = \"0s\" }",
];

/// The share of calls that `check` says are given up, by policy.
fn predicted(gateway: &Gateway) -> Vec<f64> {
    let mut command = program();
    command.args(["check", "--json", "--outage", "2s", "--load", &CALLS_PER_SECOND.to_string(), "-c"]);
    command.arg(gateway.directory().join("seawall.toml"));
    let told = dir::finish(command).ends_with(0).json();
    told["endpoints"].as_array().unwrap().iter().map(|endpoint| endpoint["gives_up"]["2s"].as_f64().unwrap()).collect()
}

fn call(gateway: &Gateway, policy: usize) -> bool {
    let mut caller = Caller::connect(gateway.at);
    caller.stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    caller.send(format!("GET /p{policy}/x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")).reply().status == 200
}

/// The share of the calls that began in the outage and failed, by policy; `None` if the machine was too busy to call in time.
fn lived(gateway: &Gateway, down: &Mutex<Option<Watch>>) -> Option<Vec<f64>> {
    for policy in 0..POLICIES.len() {
        assert!((0..CALM).all(|_| call(gateway, policy)), "the calm before");
    }
    *down.lock().unwrap() = Some(Watch::start());
    let since = || Duration::from_millis(u64::try_from(down.lock().unwrap().as_ref().unwrap().ms()).unwrap());
    let gap = Duration::from_secs(1) / CALLS_PER_SECOND;
    let count = OUTAGE.as_millis() / gap.as_millis();
    let late = Mutex::new(Duration::ZERO);
    let failed = std::thread::scope(|scope| {
        let begin = |policy: usize, number: u32| {
            let (late, since) = (&late, &since);
            move || {
                let due = gap * number + gap / 2;
                std::thread::sleep(due.saturating_sub(since()));
                let mut latest = late.lock().unwrap();
                *latest = (*latest).max(since().saturating_sub(due));
                drop(latest);
                call(gateway, policy)
            }
        };
        // Calls go on after the outage, as they do in the simulation.
        let calls: Vec<Vec<_>> =
            (0..POLICIES.len()).map(|policy| (0..60).map(|number| scope.spawn(begin(policy, number))).collect()).collect();
        let ended = calls.into_iter().map(|calls| calls.into_iter().map(|call| call.join().unwrap()).collect::<Vec<bool>>());
        ended.map(|good| good.iter().take(usize::try_from(count).unwrap()).filter(|good| !**good).count()).collect::<Vec<usize>>()
    });
    let shares = failed.into_iter().map(|failed| f64::from(u32::try_from(failed).unwrap()) / f64::from(u32::try_from(count).unwrap()));
    (*late.lock().unwrap() < gap).then(|| shares.collect())
}

#[test]
fn as_many_calls_give_up_as_check_says() {
    let down = Arc::new(Mutex::new(None::<Watch>));
    let script = Arc::clone(&down);
    let upstream = Upstream::with(move |turn| {
        let is_down = script.lock().unwrap().as_ref().is_some_and(|since| since.ms() < OUTAGE.as_millis());
        // As long as `check` assumes: how often an upstream that is down can be probed depends on it.
        turn.pause(10).say(if is_down { answer("503 Down", "", "") } else { OK.to_owned() });
    });
    let policies = POLICIES.iter().enumerate().map(|(n, keys)| format!("[upstreams.p{n}]\nurl = \"http://{}\"\n{keys}\n", upstream.at));
    let policies: String = policies.collect();
    let mut found = Vec::new();
    // A busy machine may distort a run, so the test may try again.
    for _ in 0..4 {
        *down.lock().unwrap() = None;
        let gateway = Start::with(&policies).go();
        let (told, lived) = (predicted(&gateway), lived(&gateway, &down));
        let Some(lived) = lived else { continue };
        if told.iter().zip(&lived).all(|(told, lived)| (told - lived).abs() <= TOLERANCE) {
            return;
        }
        found.push((told, lived));
    }
    assert!(found.is_empty(), "check says, callers get: {found:?}");
}
