//! Calls of one endpoint, one after another, with scripted results: the simulator's trace, to compare with other drivers of the call
//! machine.

use super::shared::CallerView;
use super::traffic::{Traffic, WaitReason};
use crate::call::CallEnd;
use crate::classify::ObservedResult;
use crate::config::Config;
use crate::record::{AttemptOutcome, ErrorKind};
use crate::rng::Rng;
use crate::time::{Mono, Nanos, Now, Wall};

/// The result of one send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendFate {
    pub latency: Nanos,
    pub result: Result<u16, ErrorKind>,
    /// Seconds of a `Retry-After` header.
    pub retry_after: Option<u32>,
}

/// The events of a run, with their times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventTrace {
    pub sends: Vec<(Mono, u32)>,
    pub attempts: Vec<(Now, AttemptOutcome)>,
    pub finishes: Vec<CallEnd>,
}

/// Plays calls to the configuration's first endpoint. Each call begins one gap after the end of the call before; sends take the results in
/// turn, over and over.
#[must_use]
pub fn play(config: &Config, gaps: &[Nanos], fates: &[SendFate], seed: u64, start: Now) -> EventTrace {
    let mut traffic = Traffic::new(config, CallerView::Many, Rng::seeded(seed));
    let (mut trace, mut now, mut sent) = (EventTrace::default(), start, 0);
    let method = std::sync::Arc::clone(&traffic.shared.sites[0].method);
    for gap in gaps {
        now = later(now, *gap, start);
        let (_, mut pause) = traffic.begin(0, false, now);
        loop {
            trace.attempts.extend(traffic.records.drain(..).map(|attempt| (now, attempt)));
            let next = match pause {
                WaitReason::Result { token, number, timeout } => {
                    trace.sends.push((now.mono, number));
                    let fate = fates[sent % fates.len()];
                    sent += 1;
                    let late = fate.latency > timeout;
                    now = later(now, fate.latency.min(timeout), start);
                    let result = if late { Err(ErrorKind::Timeout) } else { fate.result };
                    let after = fate.retry_after.filter(|_| result.is_ok()).map(|seconds| ("retry-after", seconds.to_string()));
                    let headers: Vec<(&str, String)> = after.into_iter().collect();
                    traffic.responded(
                        token,
                        &ObservedResult { method: &method, result, headers: &headers, body: b"", latency: Nanos::ZERO },
                        now,
                    )
                }
                WaitReason::Until { token, at } => {
                    now = later(now, at.since(now.mono), start);
                    traffic.waited(token, now)
                }
                WaitReason::Over(over) => {
                    trace.finishes.push(over.finish);
                    break;
                }
            };
            let Some(next) = next else { break };
            pause = next;
        }
    }
    trace
}

/// The wall clock as a machine shows it: whole milliseconds since the start, without accumulated rounding.
fn later(now: Now, length: Nanos, start: Now) -> Now {
    let mono = now.mono + length;
    let since = i64::try_from(mono.since(start.mono).as_millis()).unwrap_or(i64::MAX);
    Now { mono, wall: Wall(start.wall.0.saturating_add(since)) }
}
