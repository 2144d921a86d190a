//! Log lines: one JSON object per record, or text for people. Everything that came from outside is escaped.

use crate::recorder::{AttemptRecord, BreakerRecord, CallRecord, IdleRecord, NoteRecord, Record, TokenRecord};
use seawall_core::id::CallId;
use seawall_core::record::{Decision, Reason, Status, Timeout};
use seawall_core::time::{Nanos, Wall};
use std::io::Write as _;

/// The time and the call of the last line, whose date and seconds the next one most often shares, and the call as well.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    second: i64,
    text: [u8; 24],
    call: (CallId, [u8; 26]),
}

impl Default for Stamp {
    fn default() -> Self {
        let nobody = CallId::from_bytes([0; 16]);
        Self { second: 0, text: Wall(0).rfc3339(), call: (nobody, nobody.text()) }
    }
}

impl Stamp {
    fn of(&mut self, at: Wall) -> &[u8; 24] {
        let (second, millis) = (at.0.div_euclid(1000), at.0.rem_euclid(1000).unsigned_abs());
        if second == self.second {
            self.text[20..23].copy_from_slice(&three(millis));
        } else {
            (self.second, self.text) = (second, at.rfc3339());
        }
        &self.text
    }

    fn id(&mut self, call: CallId) -> &[u8; 26] {
        if self.call.0 != call {
            self.call = (call, call.text());
        }
        &self.call.1
    }
}

/// Appends the record as one JSON object and a newline.
pub fn json(out: &mut Vec<u8>, stamp: &mut Stamp, record: &Record) {
    match record {
        Record::Attempt(record) => attempt_json(out, stamp, record),
        Record::Call(record) => call_json(out, stamp, record),
        Record::Breaker(record) => breaker_json(out, stamp, record),
        Record::Idle(record) => idle_json(out, stamp, record),
        Record::Token(record) => token_json(out, stamp, record),
        Record::Note(record) => note_json(out, stamp, record),
    }
    out.push(b'\n');
}

fn attempt_json(out: &mut Vec<u8>, stamp: &mut Stamp, record: &AttemptRecord) {
    let attempt = &record.attempt;
    head(out, stamp.of(record.at), "attempt");
    id(out, stamp.id(record.call));
    out.extend_from_slice(&record.names.fields);
    quoted(out, &record.caller);
    number(out, ",\"attempt\":", u64::from(attempt.number));
    out.extend_from_slice(b",\"status\":\"");
    status(out, attempt.status);
    out.push(b'"');
    if let Some(tail) = &record.key_tail {
        field(out, ",\"key_id\":", tail);
    }
    millis(out, ",\"latency_ms\":", attempt.latency);
    millis(out, ",\"elapsed_ms\":", attempt.elapsed);
    word(out, ",\"outcome\":\"", attempt.outcome());
    word(out, ",\"decision\":\"", attempt.decision.as_str());
    millis(out, ",\"wait_ms\":", attempt.wait);
    if let Some(timeout) = record.timeout {
        word(out, ",\"timeout\":\"", timeout.as_str());
    }
    out.extend_from_slice(b",\"reason\":\"");
    reason(out, record);
    out.extend_from_slice(b"\"}");
}

fn call_json(out: &mut Vec<u8>, stamp: &mut Stamp, record: &CallRecord) {
    head(out, stamp.of(record.at), "call");
    id(out, stamp.id(record.call));
    out.extend_from_slice(&record.names.fields);
    quoted(out, &record.caller);
    number(out, ",\"attempts\":", u64::from(record.attempts));
    word(out, ",\"outcome\":\"", record.outcome);
    millis(out, ",\"elapsed_ms\":", record.elapsed);
    word(out, ",\"reason\":\"", record.reason.as_str());
    out.push(b'}');
}

fn breaker_json(out: &mut Vec<u8>, stamp: &mut Stamp, record: &BreakerRecord) {
    head(out, stamp.of(record.at), "breaker");
    field(out, ",\"upstream\":", &record.names.upstream);
    field(out, ",\"endpoint\":", &record.names.endpoint);
    field(out, ",\"from\":", record.change.from.as_str());
    field(out, ",\"to\":", record.change.to.as_str());
    field(out, ",\"cause\":", record.change.cause.as_str());
    out.push(b'}');
}

fn idle_json(out: &mut Vec<u8>, stamp: &mut Stamp, record: &IdleRecord) {
    head(out, stamp.of(record.at), "timeout");
    id(out, stamp.id(record.call));
    field(out, ",\"upstream\":", &record.names.upstream);
    field(out, ",\"endpoint\":", &record.names.endpoint);
    field(out, ",\"timeout\":", Timeout::Idle.as_str());
    out.push(b'}');
}

fn token_json(out: &mut Vec<u8>, stamp: &mut Stamp, record: &TokenRecord) {
    head(out, stamp.of(record.at), "token");
    id(out, stamp.id(record.call));
    field(out, ",\"upstream\":", &record.names.upstream);
    field(out, ",\"error\":", &record.error);
    out.push(b'}');
}

fn note_json(out: &mut Vec<u8>, stamp: &mut Stamp, record: &NoteRecord) {
    head(out, stamp.of(record.at), record.event);
    for (name, value) in &record.fields {
        out.extend_from_slice(b",\"");
        out.extend_from_slice(name.as_bytes());
        field(out, "\":", value);
    }
    out.push(b'}');
}

fn head(out: &mut Vec<u8>, at: &[u8; 24], event: &str) {
    out.extend_from_slice(b"{\"ts\":\"");
    out.extend_from_slice(at);
    out.extend_from_slice(b"\",\"event\":\"");
    out.extend_from_slice(event.as_bytes());
    out.push(b'"');
}

fn id(out: &mut Vec<u8>, call: &[u8; 26]) {
    out.extend_from_slice(b",\"call\":\"");
    out.extend_from_slice(call);
    out.push(b'"');
}

/// What lines about one endpoint have in common, up to the caller's name.
pub(crate) fn names(upstream: &str, endpoint: &str) -> Vec<u8> {
    let mut out = Vec::new();
    field(&mut out, ",\"upstream\":", upstream);
    field(&mut out, ",\"endpoint\":", endpoint);
    out.extend_from_slice(b",\"caller\":");
    out
}

/// A decision that follows from the status alone names the status, and a timeout its bound.
fn reason(out: &mut Vec<u8>, record: &AttemptRecord) {
    match (record.attempt.reason, record.attempt.status) {
        (Reason::TransientFailure | Reason::AmbiguousFailure | Reason::PermanentFailure, Status::Error(_)) if record.timeout.is_some() => {
            record.timeout.iter().for_each(|timeout| put(out, format_args!("{timeout} timeout")));
        }
        (Reason::TransientFailure | Reason::AmbiguousFailure | Reason::PermanentFailure, Status::Http(code)) => {
            put(out, format_args!("status {code}"))
        }
        (Reason::TransientFailure | Reason::AmbiguousFailure | Reason::PermanentFailure, of) => status(out, of),
        (reason, _) => out.extend_from_slice(reason.as_str().as_bytes()),
    }
}

fn status(out: &mut Vec<u8>, status: Status) {
    match status {
        Status::Http(code) => out.extend_from_slice(itoa::Buffer::new().format(code).as_bytes()),
        Status::Error(kind) => out.extend_from_slice(kind.as_str().as_bytes()),
        Status::CircuitOpen => out.extend_from_slice(b"circuit_open"),
    }
}

fn number(out: &mut Vec<u8>, key: &str, value: u64) {
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Milliseconds with three decimals.
#[inline]
fn millis(out: &mut Vec<u8>, key: &str, length: Nanos) {
    out.extend_from_slice(key.as_bytes());
    if length == Nanos::ZERO {
        // Most attempts wait for nothing.
        return out.extend_from_slice(b"0.000");
    }
    let mut digits = itoa::Buffer::new();
    let micros = digits.format(length.0 / 1000).as_bytes();
    match micros.split_last_chunk() {
        Some((whole @ [_, ..], [a, b, c])) => {
            out.extend_from_slice(whole);
            out.extend_from_slice(&[b'.', *a, *b, *c]);
        }
        _ => {
            let [a, b, c] = three(length.0 / 1000);
            out.extend_from_slice(&[b'0', b'.', a, b, c]);
        }
    }
}

/// A number below a thousand, with its zeros.
fn three(rest: u64) -> [u8; 3] {
    [b'0' + digit(rest / 100), b'0' + digit(rest / 10 % 10), b'0' + digit(rest % 10)]
}

fn digit(value: u64) -> u8 {
    u8::try_from(value).unwrap_or(0)
}

/// A word out of a closed set, which needs no escapes. The key ends with a quotation mark.
fn word(out: &mut Vec<u8>, key: &str, word: &'static str) {
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(word.as_bytes());
    out.push(b'"');
}

fn field(out: &mut Vec<u8>, key: &str, text: &str) {
    out.extend_from_slice(key.as_bytes());
    quoted(out, text);
}

/// Bytes that a JSON string has as they are.
const PLAIN: [bool; 256] = {
    let mut plain = [true; 256];
    let mut control = 0;
    while control < 0x20 {
        plain[control] = false;
        control += 1;
    }
    (plain[0x22], plain[0x5c], plain[0x7f]) = (false, false, false);
    plain
};

/// A JSON string.
fn quoted(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    if text.bytes().all(|b| PLAIN[usize::from(b)]) {
        out.extend_from_slice(text.as_bytes());
    } else {
        for c in text.chars() {
            match c {
                '"' => out.extend_from_slice(b"\\\""),
                '\\' => out.extend_from_slice(b"\\\\"),
                c if (c as u32) < 0x20 || c == '\u{7f}' => put(out, format_args!("\\u{:04x}", c as u32)),
                c => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
    }
    out.push(b'"');
}

fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // Writing to a vector cannot fail.
    drop(out.write_fmt(text));
}

/// Appends the record as a line for people.
pub fn text(out: &mut Vec<u8>, record: &Record) {
    match record {
        Record::Attempt(record) => attempt_text(out, record),
        Record::Call(CallRecord { at, call, names, attempts, outcome, elapsed, .. }) => {
            put(
                out,
                format_args!(
                    "{at} call    {}/{} {outcome} after {attempts} attempts in {elapsed} ({call})",
                    names.upstream, names.endpoint
                ),
            );
        }
        Record::Idle(IdleRecord { at, call, names }) => {
            put(out, format_args!("{at} timeout {}/{} went silent in the middle of its answer ({call})", names.upstream, names.endpoint));
        }
        Record::Token(TokenRecord { at, call, names, error }) => {
            put(out, format_args!("{at} token   {} {} ({call})", names.upstream, error.escape_debug()));
        }
        Record::Note(NoteRecord { at, event, fields }) => {
            put(out, format_args!("{at} {event}"));
            fields.iter().for_each(|(name, value)| put(out, format_args!(" {name}={}", value.escape_debug())));
        }
        Record::Breaker(BreakerRecord { at, names, change }) => {
            put(out, format_args!("{at} breaker {}/{} {} → {} ({})", names.upstream, names.endpoint, change.from, change.to, change.cause));
        }
    }
    out.push(b'\n');
}

fn attempt_text(out: &mut Vec<u8>, record: &AttemptRecord) {
    let AttemptRecord { at, call, names, attempt, key_tail, .. } = record;
    put(
        out,
        format_args!("{at} attempt {}/{} #{} {} {}", names.upstream, names.endpoint, attempt.number, attempt.status, attempt.outcome()),
    );
    if let Some(tail) = key_tail {
        put(out, format_args!(" key {tail}"));
    }
    put(out, format_args!(" in {}", attempt.latency));
    if attempt.decision != Decision::Return {
        put(out, format_args!(", {}", attempt.decision));
        if attempt.wait > Nanos::ZERO {
            put(out, format_args!(" in {}", attempt.wait));
        }
    }
    out.extend_from_slice(b" (");
    reason(out, record);
    put(out, format_args!(") {call}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::Names;
    use seawall_core::record::{Attempt, Class};
    use seawall_core::rng::Rng;
    use std::sync::Arc;

    fn record(endpoint: &str) -> Record {
        let attempt = Attempt {
            number: 2,
            status: Status::Http(503),
            key: Some(0),
            latency: Nanos(41_300_000),
            elapsed: Nanos(912_000_400),
            class: Class::Transient,
            named: true,
            decision: Decision::Retry,
            wait: Nanos(731_000_000),
            reason: Reason::TransientFailure,
        };
        Record::Attempt(AttemptRecord {
            at: Wall(1_794_777_105_122),
            call: CallId::new(Wall(1_794_777_105_000), &mut Rng::seeded(1)),
            names: Arc::new(Names::new("youtube", endpoint)),
            caller: Arc::from("acme"),
            attempt,
            key_tail: Some(Arc::from("…cdef")),
            sample: None,
            timeout: None,
        })
    }

    #[test]
    fn an_attempt_line_has_the_promised_fields() {
        let mut out = Vec::new();
        json(&mut out, &mut Stamp::default(), &record("search"));
        let text = String::from_utf8(out).unwrap();
        for part in [
            r#""ts":"2026-11-15T21:11:45.122Z","event":"attempt""#,
            r#""upstream":"youtube","endpoint":"search","caller":"acme","attempt":2,"status":"503","key_id":"…cdef""#,
            r#""latency_ms":41.300,"elapsed_ms":912.000,"outcome":"transient","decision":"retry","wait_ms":731.000,"reason":"status 503"}"#,
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn milliseconds_have_three_decimals() {
        for (length, text) in [(0, "0.000"), (5_000, "0.005"), (999_999, "0.999"), (1_000_000, "1.000"), (12_345_678_901, "12345.678")] {
            let mut out = Vec::new();
            millis(&mut out, "", Nanos(length));
            assert_eq!(String::from_utf8(out).unwrap(), text);
        }
    }

    #[test]
    fn nothing_from_outside_can_start_a_line_of_its_own() {
        let mut out = Vec::new();
        json(&mut out, &mut Stamp::default(), &record("a\"b\\c\n\u{1b}[31m"));
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 1);
        assert!(text.contains(r#""endpoint":"a\"b\\c\u000a\u001b[31m""#), "{text}");
    }
}
