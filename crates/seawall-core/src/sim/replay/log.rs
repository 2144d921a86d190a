//! Reads an attempt log line by line: attempts and closing lines become calls. Unknown fields are ignored; malformed lines are counted and
//! their numbers kept. The `sim` command opens files and bounds lines.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::record::{Class, Code, ErrorKind, Reason};
use crate::time::{Nanos, Wall};

/// Malformed lines that are kept for display.
pub const MALFORMED_SHOWN: usize = 5;
/// The most attempts; a larger log needs another tool.
pub const MAX_ATTEMPTS: usize = 5_000_000;

/// One result of the upstream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Recorded {
    /// From 1.
    pub(super) number: u32,
    pub(super) result: Result<u16, ErrorKind>,
    pub(super) latency: Nanos,
    /// The class that the policy of that time gave it.
    pub(super) class: Option<Class>,
    /// The wait that the server asked for, if any.
    pub(super) hint: Option<Nanos>,
    /// When it was sent.
    pub(super) sent: Wall,
}

/// One recorded call.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RecordedCall {
    /// Index into the log's endpoints.
    pub(super) endpoint: usize,
    /// In order, without the breaker's refusals, which are not the upstream's results.
    pub(super) results: Vec<Recorded>,
    began_ms: f64,
    elapsed_ms: f64,
    /// The closing line's result; `None` without such a line.
    outcome: Option<bool>,
    last_success: bool,
}

#[derive(Clone, Debug, Default)]
pub struct RecordedLog {
    pub lines: u64,
    pub malformed: u64,
    /// Line number and problem of the first few malformed lines.
    pub malformed_shown: Vec<(u64, String)>,
    /// Attempts beyond [`MAX_ATTEMPTS`].
    pub left_off: u64,
    pub(super) calls: Vec<RecordedCall>,
    /// Upstream and endpoint.
    pub(super) endpoints: Vec<(String, String)>,
    ids: BTreeMap<String, usize>,
    places: BTreeMap<(String, String), usize>,
    attempts: usize,
}

#[derive(Debug, Deserialize)]
struct LogLine {
    ts: String,
    event: String,
    call: String,
    upstream: String,
    #[serde(default)]
    endpoint: String,
    attempt: Option<u32>,
    status: Option<String>,
    #[serde(default)]
    latency_ms: f64,
    #[serde(default)]
    elapsed_ms: f64,
    #[serde(default)]
    outcome: String,
    #[serde(default)]
    wait_ms: f64,
    #[serde(default)]
    reason: String,
}

impl RecordedLog {
    /// Reads one line; ignores blank ones and other events.
    pub fn line(&mut self, bytes: &[u8]) {
        self.lines += 1;
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        if let Err(why) = self.read(bytes) {
            self.bad(why);
        }
    }

    /// Counts a line that was too long to be read.
    pub fn too_long(&mut self, limit: usize) {
        self.lines += 1;
        self.bad(format!("longer than {limit} bytes"));
    }

    fn bad(&mut self, why: String) {
        self.malformed += 1;
        if self.malformed_shown.len() < MALFORMED_SHOWN {
            self.malformed_shown.push((self.lines, why));
        }
    }

    #[must_use]
    pub fn calls(&self) -> usize {
        self.calls.len()
    }

    pub(super) fn names(&self, call: &RecordedCall) -> (&str, &str) {
        let (upstream, endpoint) = &self.endpoints[call.endpoint];
        (upstream, endpoint)
    }

    fn read(&mut self, bytes: &[u8]) -> Result<(), String> {
        #[derive(Deserialize)]
        struct Kind {
            event: String,
        }
        let kind: Kind = serde_json::from_slice(bytes).map_err(|error| without_place(&error))?;
        if kind.event != "attempt" && kind.event != "call" {
            return Ok(());
        }
        let line: LogLine = serde_json::from_slice(bytes).map_err(|error| without_place(&error))?;
        let at: jiff::Timestamp = line.ts.parse().map_err(|_| format!("`ts` is not a time: {:?}", line.ts))?;
        let at_ms = at.as_microsecond() as f64 / 1e3;
        for (name, value) in [("latency_ms", line.latency_ms), ("elapsed_ms", line.elapsed_ms), ("wait_ms", line.wait_ms)] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(format!("`{name}` is not a length of time: {value}"));
            }
        }
        if line.event == "call" {
            self.closing(line, at_ms);
            Ok(())
        } else {
            self.attempt(line, at_ms)
        }
    }

    fn attempt(&mut self, line: LogLine, at_ms: f64) -> Result<(), String> {
        let status = line.status.as_deref().ok_or("missing field `status`")?;
        let number = line.attempt.ok_or("missing field `attempt`")?;
        let result = match status {
            "circuit_open" => None,
            // The caller left before the result, so there is no result of the upstream to replay.
            _ if line.outcome == Code::Cancelled.as_str() => None,
            word => Some(result(word).ok_or_else(|| format!("`status` is neither a status nor an error: {word:?}"))?),
        };
        if self.attempts >= MAX_ATTEMPTS {
            self.left_off += 1;
            return Ok(());
        }
        self.attempts += 1;
        let recorded = result.map(|result| Recorded {
            number,
            result,
            latency: Nanos::from_secs_f64(line.latency_ms / 1e3),
            class: Class::from_word(&line.outcome),
            hint: (line.reason == Reason::ServerHint.as_str()).then(|| Nanos::from_secs_f64(line.wait_ms / 1e3)),
            sent: wall(at_ms - line.latency_ms),
        });
        let success = line.outcome == Class::Success.as_str();
        let elapsed_ms = line.elapsed_ms;
        let call = self.call(line, at_ms - elapsed_ms);
        call.elapsed_ms = call.elapsed_ms.max(elapsed_ms);
        call.last_success = success;
        if let Some(recorded) = recorded {
            // Concurrent writers may write lines out of order.
            let place = call.results.partition_point(|other| other.number <= recorded.number);
            call.results.insert(place, recorded);
        }
        Ok(())
    }

    fn closing(&mut self, line: LogLine, at_ms: f64) {
        let success = line.outcome == Class::Success.as_str();
        let elapsed_ms = line.elapsed_ms;
        let call = self.call(line, at_ms - elapsed_ms);
        call.elapsed_ms = elapsed_ms;
        call.outcome = Some(success);
    }

    fn call(&mut self, line: LogLine, began_ms: f64) -> &mut RecordedCall {
        let endpoints = &mut self.endpoints;
        let place = (line.upstream, line.endpoint);
        let endpoint = *self.places.entry(place.clone()).or_insert_with(|| {
            endpoints.push(place);
            endpoints.len() - 1
        });
        let calls = &mut self.calls;
        let index = *self.ids.entry(line.call).or_insert_with(|| {
            calls.push(RecordedCall { endpoint, began_ms, ..RecordedCall::default() });
            calls.len() - 1
        });
        &mut self.calls[index]
    }
}

impl RecordedCall {
    pub(super) fn is_success(&self) -> bool {
        self.outcome.unwrap_or(self.last_success)
    }

    pub(super) fn attempts(&self) -> u32 {
        u32::try_from(self.results.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn waited_s(&self) -> f64 {
        let out: f64 = self.results.iter().map(|recorded| recorded.latency.as_millis_f64()).sum();
        ((self.elapsed_ms - out) / 1e3).max(0.0)
    }

    /// Milliseconds since 1970.
    pub(super) fn began_ms(&self) -> i64 {
        wall(self.began_ms).0
    }

    /// A call that was sent twice was safe to repeat; the log has no other sign of it.
    pub(super) fn was_repeated(&self) -> bool {
        self.results.len() > 1
    }
}

fn result(word: &str) -> Option<Result<u16, ErrorKind>> {
    if let Some(kind) = ErrorKind::from_word(word) {
        return Some(Err(kind));
    }
    word.parse().ok().filter(|status| (100..=999).contains(status)).map(Ok)
}

#[expect(clippy::cast_possible_truncation, reason = "float to int casts saturate, which is what is wanted")]
fn wall(ms: f64) -> Wall {
    Wall(ms.round() as i64)
}

/// Removes the parser's "line 1", because log lines have numbers of their own.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line ") {
        Some((what, _)) => format!("{what} at column {}", error.column()),
        None => text,
    }
}
