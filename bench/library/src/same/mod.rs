//! One task in four libraries: a hundred calls a second for twelve seconds to an API that is down from the third second to
//! the ninth, says "in a second" to every tenth call, and does not know every fiftieth thing that it is asked for. Each
//! library's file is what its user has to write; this one is the API and the count.

mod backon;
mod failsafe;
mod resilience;
mod seawall;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What the API says when it does not say yes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum No {
    Unavailable,
    Later(Duration),
    NotFound,
}

impl std::fmt::Display for No {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for No {}

const DOWN: std::ops::Range<Duration> = Duration::from_secs(3)..Duration::from_secs(9);
const CALLS: u64 = 1_200;

pub struct Api {
    started: Instant,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    sends: u32,
    down: u32,
    early: u32,
    repeated: u32,
    per_call: HashMap<u64, u32>,
    not_before: HashMap<u64, Instant>,
    healed: Option<Duration>,
}

impl Api {
    pub async fn get(&self, number: u64) -> Result<u64, No> {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let (now, mut seen) = (Instant::now(), self.seen.lock().unwrap());
        let since = now - self.started;
        let times = seen.per_call.entry(number).or_default();
        *times += 1;
        let again = *times > 1;
        seen.sends += 1;
        seen.down += u32::from(DOWN.contains(&since));
        seen.early += u32::from(seen.not_before.get(&number).is_some_and(|at| now < *at));
        if number % 50 == 7 {
            seen.repeated += u32::from(again);
            return Err(No::NotFound);
        }
        if DOWN.contains(&since) {
            return Err(No::Unavailable);
        }
        if number % 10 == 3 && !again {
            seen.not_before.insert(number, now + Duration::from_secs(1));
            return Err(No::Later(Duration::from_secs(1)));
        }
        if since >= DOWN.end {
            seen.healed.get_or_insert(since - DOWN.end);
        }
        Ok(number)
    }
}

/// Runs the task with one library and prints what came of it.
async fn with<F, Fut>(name: &str, lines: usize, call: impl Fn(Arc<Api>) -> F)
where
    F: Fn(u64) -> Fut,
    Fut: Future<Output = bool> + Send + 'static,
{
    let api = Arc::new(Api { started: Instant::now(), seen: Mutex::default() });
    let call = call(Arc::clone(&api));
    let mut calls = Vec::new();
    for number in 0..CALLS {
        calls.push((tokio::spawn(call(number)), number));
        tokio::time::sleep_until((api.started + Duration::from_millis(10 * (number + 1))).into()).await;
    }
    let (mut good, mut good_up) = (0, 0);
    for (task, number) in calls {
        let succeeded = task.await.unwrap();
        good += u32::from(succeeded);
        good_up += u32::from(succeeded && !DOWN.contains(&Duration::from_millis(10 * number)));
    }
    let seen = api.seen.lock().unwrap();
    println!(
        "{name:<26} {lines:>5} {:>6} {:>8} {:>6} {:>9} {:>9} {:>9} {:>8}",
        seen.sends,
        seen.down,
        good,
        good_up,
        seen.early,
        seen.repeated,
        seen.healed.map_or("never".into(), |after| format!("{} ms", after.as_millis()))
    );
}

/// What a user writes: the lines of a file that are neither empty nor comments.
fn lines(text: &str) -> usize {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

pub fn run() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    println!(
        "{:<26} {:>5} {:>6} {:>8} {:>6} {:>9} {:>9} {:>9} {:>8}",
        "", "lines", "sends", "… down", "good", "… while up", "too early", "404 again", "healed"
    );
    runtime.block_on(async {
        with("seawall", lines(include_str!("seawall.rs")), seawall::caller).await;
        with("backon", lines(include_str!("backon.rs")), backon::caller).await;
        with("tower + tower-resilience", lines(include_str!("resilience.rs")), resilience::caller).await;
        with("failsafe (with backon)", lines(include_str!("failsafe.rs")), failsafe::caller).await;
    });
}
