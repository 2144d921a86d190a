//! Log lines: one JSON object per record, or text for people. All external text is escaped.

use crate::record::{AttemptRecord, BreakerRecord, CallRecord, EndpointNames, IdleRecord, NoteRecord, Record, RequestLine, TokenRecord};
use http::Method;
use seawall_core::id::CallId;
use seawall_core::record::{AttemptStatus, Decision, Reason, Timeout};
use seawall_core::time::{Nanos, Wall};
use std::io::Write as _;
use std::ops::Range;
use std::sync::Arc;

/// The beginning of the last line, cached because the next line mostly repeats it: date and second, endpoint and caller, and often the
/// call.
#[derive(Clone, Debug)]
pub struct Stamp {
    second: i64,
    /// The line up to the event.
    begin: [u8; BEGIN.len()],
    call: CallId,
    of: Option<(Arc<EndpointNames>, Arc<str>)>,
    /// The members for the call, its endpoint and its caller.
    about: Vec<u8>,
}

const BEGIN: &[u8; 42] = b"{\"ts\":\"1970-01-01T00:00:00.000Z\",\"event\":\"";
/// The range of the time in it, and of its milliseconds.
const TIME: Range<usize> = 7..31;
const MILLIS: Range<usize> = 27..30;
const CALL: &[u8; 9] = b",\"call\":\"";
const ID: Range<usize> = CALL.len()..CALL.len() + 26;

impl Default for Stamp {
    fn default() -> Self {
        Self { second: 0, begin: *BEGIN, call: CallId::from_bytes([0; 16]), of: None, about: Vec::new() }
    }
}

impl Stamp {
    /// Returns the beginning of a line at that time.
    fn begin(&mut self, at: Wall) -> &[u8; BEGIN.len()] {
        let (second, millis) = (at.0.div_euclid(1000), at.0.rem_euclid(1000).unsigned_abs());
        if second == self.second {
            self.begin[MILLIS].copy_from_slice(&three(millis));
        } else {
            self.second = second;
            self.begin[TIME].copy_from_slice(&at.rfc3339());
        }
        &self.begin
    }

    /// Returns the members that describe the call.
    fn write_call_members(&mut self, call: CallId, names: &Arc<EndpointNames>, caller: &Arc<str>) -> &[u8] {
        let is_known = self.of.as_ref().is_some_and(|(last, by)| Arc::ptr_eq(last, names) && Arc::ptr_eq(by, caller));
        if !is_known {
            self.about.clear();
            id(&mut self.about, call);
            self.about.extend_from_slice(&names.fields);
            quoted(&mut self.about, caller);
            (self.call, self.of) = (call, Some((Arc::clone(names), Arc::clone(caller))));
        } else if self.call != call {
            self.about[ID].copy_from_slice(&call.text());
            self.call = call;
        }
        &self.about
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
    head(out, stamp.begin(record.at), b"attempt\"");
    out.extend_from_slice(stamp.write_call_members(record.call, &record.names, &record.caller));
    number(out, b",\"attempt\":", attempt.number);
    out.extend_from_slice(b",\"status\":\"");
    status(out, attempt.status);
    out.push(b'"');
    if let Some(tail) = &record.key_tail {
        field(out, ",\"key_id\":", tail);
    }
    millis(out, b",\"latency_ms\":", attempt.latency);
    millis(out, b",\"elapsed_ms\":", attempt.elapsed);
    word(out, b",\"outcome\":\"", attempt.outcome());
    word(out, b",\"decision\":\"", attempt.decision.as_str());
    millis(out, b",\"wait_ms\":", attempt.wait);
    if let Some(timeout) = record.timeout {
        word(out, b",\"timeout\":\"", timeout.as_str());
    }
    out.extend_from_slice(b",\"reason\":\"");
    reason(out, record);
    out.push(b'"');
    if let Some(error) = &record.error {
        field(out, ",\"error\":", error);
    }
    if record.resends > 0 {
        number(out, b",\"resends\":", record.resends);
    }
    if let Some(span) = record.span.as_deref() {
        put(out, format_args!(",\"trace_id\":\"{:032x}\",\"span_id\":\"{:016x}\"", span.trace, span.id));
        put(out, format_args!(",\"parent_span_id\":\"{:016x}\"", span.parent));
    }
    request(out, record.request.as_deref());
    out.push(b'}');
}

fn request(out: &mut Vec<u8>, request: Option<&RequestLine>) {
    if let Some(request) = request {
        out.extend_from_slice(&request.json);
    }
}

/// Builds the members that describe the request.
pub(crate) fn request_members(method: &Method, route: &str, path: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(48 + route.len() + path.len());
    out.extend_from_slice(b",\"method\":\"");
    // A method is an HTTP token, which needs no escape.
    out.extend_from_slice(method.as_str().as_bytes());
    out.push(b'"');
    field(&mut out, ",\"route\":", route);
    field(&mut out, ",\"path\":", path);
    out
}

fn call_json(out: &mut Vec<u8>, stamp: &mut Stamp, record: &CallRecord) {
    head(out, stamp.begin(record.at), b"call\"");
    out.extend_from_slice(stamp.write_call_members(record.call, &record.names, &record.caller));
    number(out, b",\"attempts\":", record.attempts);
    word(out, b",\"outcome\":\"", record.outcome);
    millis(out, b",\"elapsed_ms\":", record.elapsed);
    word(out, b",\"reason\":\"", record.reason.as_str());
    request(out, record.request.as_deref());
    if let Some(status) = record.response_status {
        number(out, b",\"response_status\":", u32::from(status));
    }
    out.push(b'}');
}

fn breaker_json(out: &mut Vec<u8>, stamp: &mut Stamp, record: &BreakerRecord) {
    head(out, stamp.begin(record.at), b"breaker\"");
    field(out, ",\"upstream\":", &record.names.upstream);
    field(out, ",\"endpoint\":", &record.names.endpoint);
    field(out, ",\"from\":", record.change.from.as_str());
    field(out, ",\"to\":", record.change.to.as_str());
    field(out, ",\"cause\":", record.change.cause.as_str());
    out.push(b'}');
}

fn idle_json(out: &mut Vec<u8>, stamp: &mut Stamp, record: &IdleRecord) {
    head(out, stamp.begin(record.at), b"timeout\"");
    id(out, record.call);
    field(out, ",\"upstream\":", &record.names.upstream);
    field(out, ",\"endpoint\":", &record.names.endpoint);
    field(out, ",\"timeout\":", Timeout::Idle.as_str());
    out.push(b'}');
}

fn token_json(out: &mut Vec<u8>, stamp: &mut Stamp, record: &TokenRecord) {
    head(out, stamp.begin(record.at), b"token\"");
    id(out, record.call);
    field(out, ",\"upstream\":", &record.names.upstream);
    field(out, ",\"error\":", record.error.as_str());
    out.push(b'}');
}

fn note_json(out: &mut Vec<u8>, stamp: &mut Stamp, record: &NoteRecord) {
    head(out, stamp.begin(record.at), b"");
    out.extend_from_slice(record.event.as_bytes());
    out.push(b'"');
    for (name, value) in &record.fields {
        out.extend_from_slice(b",\"");
        out.extend_from_slice(name.as_bytes());
        field(out, "\":", value);
    }
    out.push(b'}');
}

/// Keys and most values are constants: with lengths known at compile time they are copied without a call.
#[inline]
fn head<const N: usize>(out: &mut Vec<u8>, begin: &[u8; BEGIN.len()], event: &[u8; N]) {
    out.extend_from_slice(begin);
    out.extend_from_slice(event);
}

fn id(out: &mut Vec<u8>, call: CallId) {
    out.extend_from_slice(CALL);
    out.extend_from_slice(&call.text());
    out.push(b'"');
}

/// Builds the common members of lines about one endpoint, up to the caller's name.
pub(crate) fn names(upstream: &str, endpoint: &str) -> Vec<u8> {
    let mut out = Vec::new();
    field(&mut out, ",\"upstream\":", upstream);
    field(&mut out, ",\"endpoint\":", endpoint);
    out.extend_from_slice(b",\"caller\":");
    out
}

/// Writes the reason. A decision by the status alone is written as the status, and a timeout as its bound.
fn reason(out: &mut Vec<u8>, record: &AttemptRecord) {
    match (record.attempt.reason, record.attempt.status) {
        (Reason::TransientFailure | Reason::AmbiguousFailure | Reason::PermanentFailure, AttemptStatus::Error(_))
            if record.timeout.is_some() =>
        {
            record.timeout.iter().for_each(|timeout| put(out, format_args!("{timeout} timeout")));
        }
        (Reason::TransientFailure | Reason::AmbiguousFailure | Reason::PermanentFailure, AttemptStatus::Http(code)) => {
            put(out, format_args!("status {code}"))
        }
        (Reason::TransientFailure | Reason::AmbiguousFailure | Reason::PermanentFailure, of) => status(out, of),
        (reason, _) => out.extend_from_slice(reason.as_str().as_bytes()),
    }
}

fn status(out: &mut Vec<u8>, status: AttemptStatus) {
    match status {
        AttemptStatus::Http(code) => out.extend_from_slice(itoa::Buffer::new().format(code).as_bytes()),
        AttemptStatus::Error(kind) => out.extend_from_slice(kind.as_str().as_bytes()),
        AttemptStatus::CircuitOpen => out.extend_from_slice(b"circuit_open"),
    }
}

#[inline]
fn number<const N: usize>(out: &mut Vec<u8>, key: &[u8; N], value: u32) {
    out.extend_from_slice(key);
    match u8::try_from(value) {
        Ok(digit @ 0..=9) => out.push(b'0' + digit),
        _ => out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes()),
    }
}

/// Writes milliseconds with three decimals.
#[inline]
fn millis<const N: usize>(out: &mut Vec<u8>, key: &[u8; N], length: Nanos) {
    out.extend_from_slice(key);
    let micros = length.0 / 1000;
    let (whole, [a, b, c]) = (micros / 1000, three(micros % 1000));
    match u8::try_from(whole) {
        Ok(digit @ 0..=9) => out.extend_from_slice(&[b'0' + digit, b'.', a, b, c]),
        _ => {
            out.extend_from_slice(itoa::Buffer::new().format(whole).as_bytes());
            out.extend_from_slice(&[b'.', a, b, c]);
        }
    }
}

/// Formats a number below a thousand, with leading zeros.
fn three(rest: u64) -> [u8; 3] {
    [b'0' + digit(rest / 100), b'0' + digit(rest / 10 % 10), b'0' + digit(rest % 10)]
}

fn digit(value: u64) -> u8 {
    u8::try_from(value).unwrap_or(0)
}

/// Writes a value of a closed set, which needs no escapes. The key ends with a quotation mark.
#[inline]
fn word<const N: usize>(out: &mut Vec<u8>, key: &[u8; N], word: &'static str) {
    out.extend_from_slice(key);
    out.extend_from_slice(word.as_bytes());
    out.push(b'"');
}

fn field(out: &mut Vec<u8>, key: &str, text: &str) {
    out.extend_from_slice(key.as_bytes());
    quoted(out, text);
}

/// Bytes that need no escape in a JSON string.
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

/// Writes a JSON string.
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
        Record::Call(CallRecord { at, call, names, attempts, outcome, elapsed, request, .. }) => {
            put(
                out,
                format_args!(
                    "{at} call    {}/{} {outcome} after {attempts} attempts in {elapsed} ({call})",
                    names.upstream, names.endpoint
                ),
            );
            if let Some(request) = request {
                put(out, format_args!(" {} {}", request.method, request.path.escape_debug()));
            }
        }
        Record::Idle(IdleRecord { at, call, names }) => {
            put(out, format_args!("{at} timeout {}/{} went silent in the middle of its answer ({call})", names.upstream, names.endpoint));
        }
        Record::Token(TokenRecord { at, call, names, error }) => {
            put(out, format_args!("{at} token   {} {} ({call})", names.upstream, error.as_str().escape_debug()));
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
    if let Some(error) = &record.error {
        put(out, format_args!(": {}", error.escape_debug()));
    }
    put(out, format_args!(") {call}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_core::record::{AttemptOutcome, Class};
    use seawall_core::rng::Rng;

    fn record(endpoint: &str) -> Record {
        let attempt = AttemptOutcome {
            number: 2,
            status: AttemptStatus::Http(503),
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
            names: Arc::new(EndpointNames::new("youtube", endpoint)),
            caller: Arc::from("acme"),
            attempt,
            key_tail: Some(Arc::from("…cdef")),
            request: None,
            resends: 0,
            span: None,
            sample: None,
            timeout: None,
            error: None,
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
    fn lines_say_what_they_would_say_alone() {
        let (one, other) = (Arc::new(EndpointNames::new("youtube", "search")), Arc::new(EndpointNames::new("youtube", "videos")));
        let (acme, nobody): (Arc<str>, Arc<str>) = (Arc::from("acme"), Arc::from("a\"b"));
        let mut rng = Rng::seeded(1);
        let ids = [CallId::new(Wall(5), &mut rng), CallId::new(Wall(1_794_777_105_000), &mut rng)];
        let (mut out, mut stamp, mut at) = (Vec::new(), Stamp::default(), 1_794_777_105_990);
        for turn in 0..64 {
            // From one turn to the next, one property changes (Gray code).
            let is = |bit: u32| (turn ^ turn >> 1) >> bit & 1 == 1;
            let Record::Attempt(mut attempt) = record("") else { unreachable!("it is one") };
            attempt.call = ids[usize::from(is(0))];
            attempt.names = Arc::clone(if is(1) { &one } else { &other });
            attempt.caller = Arc::clone(if is(2) { &acme } else { &nobody });
            attempt.attempt.number = 9 + u32::from(is(3));
            at += if is(4) { 3 } else { 1_000 };
            attempt.at = Wall(at);
            let call = CallRecord {
                at: attempt.at,
                call: attempt.call,
                names: Arc::clone(&attempt.names),
                caller: Arc::clone(&attempt.caller),
                request: None,
                attempts: attempt.attempt.number,
                response_status: None,
                outcome: "success",
                reason: Reason::TransientFailure,
                elapsed: Nanos(41_300_000),
                refused_by: None,
            };
            for record in [Record::Attempt(attempt), Record::Call(call)] {
                let mut alone = Vec::new();
                json(&mut alone, &mut Stamp::default(), &record);
                out.clear();
                json(&mut out, &mut stamp, &record);
                assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(&alone), "{turn}");
            }
        }
    }

    #[test]
    fn milliseconds_have_three_decimals() {
        for (length, text) in [
            (0, "0.000"),
            (5_000, "0.005"),
            (999_999, "0.999"),
            (1_000_000, "1.000"),
            (9_999_999, "9.999"),
            (10_000_000, "10.000"),
            (12_345_678_901, "12345.678"),
        ] {
            let mut out = Vec::new();
            millis(&mut out, b"", Nanos(length));
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
