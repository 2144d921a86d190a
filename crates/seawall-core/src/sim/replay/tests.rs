//! Replays of the shipped log, and of invalid lines. The generator below writes the shipped log: `UPDATE_EXPECT=1 cargo test -p
//! seawall-core the_shipped_log` writes it anew.

use crate::lease::RequestMark;
use crate::policy::Share;
use std::fmt::Write as _;
use std::sync::Arc;

use expect_test::expect_file;

use super::*;
use crate::call::{Action, Call, CallPlan, CallRequest, EndpointCells, Outcome};
use crate::classify::ObservedResult;
use crate::config;
use crate::record::ErrorKind;
use crate::rng::Rng;
use crate::time::{Mono, Nanos, Now, Wall};

const SHIPPED: &str = include_str!("../../../../../scenarios/attempts.ndjson");

/// 2026-07-01T09:00:00Z.
const EPOCH: Wall = Wall(1_782_896_400_000);
const CALLS: u64 = 220;

/// The policy of the recording: two attempts, and no state shared by calls.
fn recorded_policy(attempts: u32) -> Config {
    let text = format!(
        "[defaults]\nretry = {{ attempts = {attempts}, backoff = \"full-jitter\", base = \"200ms\", budget = \"100%\", \
         budget_floor = \"1000/s\" }}\nbreaker.mode = \"off\"\n\
         [upstreams.catalog]\nurl = \"https://catalog.test\"\n\
         [[upstreams.catalog.endpoints]]\nname = \"search\"\nmatch = \"GET /search\"\n\
         [[upstreams.catalog.endpoints]]\nname = \"item\"\nmatch = \"GET /items/*\"\n\
         [upstreams.geo]\nurl = \"https://geo.test\"\n"
    );
    config::load("recorded.toml", text.as_bytes()).unwrap_or_else(|invalid| panic!("{invalid}"))
}

/// Half a minute of failures in three minutes.
fn weather(at: Mono, rng: &mut Rng) -> (Result<u16, ErrorKind>, Nanos) {
    let bad = (Mono(60_000_000_000)..Mono(90_000_000_000)).contains(&at);
    let latency = Nanos::from_secs_f64(0.02 + rng.exponential(0.08));
    match (rng.unit(), bad) {
        (..0.45, true) | (..0.02, false) => (Ok(503), latency),
        (..0.55, true) | (..0.03, false) => (Err(ErrorKind::Reset), latency),
        (..0.60, true) => (Err(ErrorKind::Timeout), Nanos::from_secs(10)),
        (_, true) | (_, false) => (Ok(200), latency),
    }
}

fn stamp(at: Wall) -> String {
    format!("{:.3}", jiff::Timestamp::from_millisecond(at.0).unwrap())
}

/// One call on the real machine, with the lines that it writes to the log.
fn record(
    number: u64,
    place: (&str, &str),
    plan: &Arc<CallPlan>,
    cells: &mut EndpointCells,
    rng: &mut Rng,
    lines: &mut Vec<(Wall, String)>,
) {
    let began = Nanos(number * 150_000_000_000 / CALLS);
    let mut now = Now { mono: Mono(0) + began, wall: EPOCH + began };
    let request = CallRequest {
        method: "GET",
        mark: RequestMark::NONE,
        keyed: false,
        at_cost: false,
        replayable: true,
        deadline: None,
        patient: false,
    };
    let (mut call, mut action) = Call::begin(Arc::clone(plan), &request, now);
    let head = format!("\"call\":\"c{number:04}\",\"upstream\":\"{}\",\"endpoint\":\"{}\"", place.0, place.1);
    loop {
        if let Some(record) = call.take_record() {
            let mut line = format!("{{\"ts\":\"{}\",\"event\":\"attempt\",{head},\"caller\":\"shop\"", stamp(now.wall));
            write!(
                line,
                ",\"attempt\":{},\"status\":\"{}\",\"latency_ms\":{:.1}",
                record.number,
                record.status,
                record.latency.as_millis_f64()
            )
            .unwrap();
            write!(line, ",\"elapsed_ms\":{:.1},\"outcome\":\"{}\"", record.elapsed.as_millis_f64(), record.outcome()).unwrap();
            write!(
                line,
                ",\"decision\":\"{}\",\"wait_ms\":{:.1},\"reason\":\"{}\"}}",
                record.decision,
                record.wait.as_millis_f64(),
                record.reason
            )
            .unwrap();
            lines.push((now.wall, line));
        }
        action = match action {
            Action::Ask(ask) => call.answered(cells.answer(ask, now).answer, now),
            Action::Send { .. } => {
                let (result, latency) = weather(now.mono, rng);
                now = now.after(latency);
                call.responded(&ObservedResult { method: "GET", result, headers: &(), body: b"", latency }, now, rng)
            }
            Action::Wait { until, .. } => {
                now = now.after(until.since(now.mono));
                call.waited(now)
            }
            Action::Refresh => unreachable!("the policy has no token"),
            Action::Finish(finish) => {
                let outcome = match finish.outcome {
                    Outcome::Success | Outcome::Replayed => "success",
                    Outcome::Failed(class) => class.as_str(),
                    Outcome::Refused(code) => code.as_str(),
                };
                let (attempts, elapsed) = (finish.attempts, finish.elapsed.as_millis_f64());
                let line = format!(
                    "{{\"ts\":\"{}\",\"event\":\"call\",{head},\"caller\":\"shop\",\"attempts\":{attempts},\"outcome\":\"{outcome}\",\"elapsed_ms\":{elapsed:.1}}}",
                    stamp(now.wall)
                );
                return lines.push((now.wall, line));
            }
        };
    }
}

fn generated() -> String {
    let config = recorded_policy(2);
    let policy = &config.upstreams[0].endpoints[0].policy;
    let (plan, mut cells, mut rng) = (Arc::new(CallPlan::alone(policy)), EndpointCells::alone(policy), Rng::seeded(7));
    let mut lines = Vec::new();
    for number in 0..CALLS {
        let place = [("catalog", "search"), ("catalog", "item"), ("catalog", "search"), ("geo", "default")][(number % 4) as usize];
        record(number, place, &plan, &mut cells, &mut rng, &mut lines);
    }
    lines.sort();
    lines.into_iter().map(|(_, line)| line + "\n").collect()
}

fn log(text: &str) -> RecordedLog {
    let mut log = RecordedLog::default();
    for line in text.lines() {
        log.line(line.as_bytes());
    }
    log
}

fn replay(text: &str, policy: &Config) -> ReplayResult {
    run(&ReplayCase { seed: 1, runs: 1, policy, log: &log(text) })
}

fn total(found: &ReplayResult) -> &ReplayRow {
    found.rows.last().unwrap()
}

#[test]
fn the_shipped_log_is_what_its_generator_writes() {
    expect_file!["../../../../../scenarios/attempts.ndjson"].assert_eq(&generated());
}

#[test]
fn the_policy_of_the_recording_gives_what_was_recorded() {
    let found = replay(SHIPPED, &recorded_policy(2));
    let (before, after) = (total(&found).before, total(&found).after);
    assert_eq!(u64::from(total(&found).calls), CALLS);
    assert_eq!((before.succeeded, before.dead, before.attempts), (after.succeeded, after.dead, after.attempts));
    assert!(before.dead > 10.0 && (before.waited_s - after.waited_s).abs() < 0.35 * before.waited_s, "{before:?} {after:?}");
    assert_eq!(found.drawn, 0.0);
}

#[test]
fn more_attempts_save_calls_at_a_price() {
    let found = replay(SHIPPED, &recorded_policy(5));
    let (before, after) = (total(&found).before, total(&found).after);
    assert!(after.dead < 0.6 * before.dead, "{before:?} {after:?}");
    assert!(after.attempts > before.attempts && found.drawn > 0.0);
    let fewer = replay(SHIPPED, &recorded_policy(1));
    assert!(total(&fewer).after.dead > before.dead);
}

#[test]
fn each_call_ends_once_and_rows_add_up() {
    let found = replay(SHIPPED, &recorded_policy(4));
    for row in &found.rows {
        assert_eq!(f64::from(row.calls), row.after.succeeded + row.after.dead, "{row:?}");
        assert_eq!(f64::from(row.calls), row.before.succeeded + row.before.dead, "{row:?}");
    }
    let (total, rows) = found.rows.split_last().unwrap();
    assert_eq!(total.calls, rows.iter().map(|row| row.calls).sum::<u32>());
}

#[test]
fn the_same_seed_replays_the_same() {
    assert_eq!(replay(SHIPPED, &recorded_policy(5)), replay(SHIPPED, &recorded_policy(5)));
}

#[test]
fn a_shared_breaker_spares_attempts_in_bad_weather() {
    let mut guarded = recorded_policy(2);
    for upstream in &mut guarded.upstreams {
        for endpoint in &mut Arc::make_mut(upstream).endpoints {
            let own = &mut Arc::make_mut(endpoint).policy.breaker;
            *own = config::default_policy().breaker;
            (own.consecutive, own.window, own.failure_rate) = (5, Nanos::from_secs(30), Share::percent(50));
            (own.open, own.max_wait) = (Nanos::from_secs(5), Nanos::ZERO);
        }
    }
    let found = replay(SHIPPED, &guarded);
    assert!(total(&found).after.attempts < total(&found).before.attempts, "{:?}", total(&found));
    assert!(matches!(found.refused.as_slice(), [(Reason::CircuitOpen, calls)] if *calls > 0.0), "{:?}", found.refused);
}

#[test]
fn lines_that_cannot_be_read_are_counted_and_named() {
    let good = r#"{"ts":"2026-07-01T09:00:00Z","event":"attempt","call":"a","upstream":"geo","attempt":1,"status":"200","outcome":"success","new":[1]}"#;
    let bad = [
        "not json",
        r#"{"ts":"yesterday","event":"attempt","call":"b","upstream":"geo","attempt":1,"status":"200"}"#,
        r#"{"ts":"2026-07-01T09:00:00Z","event":"attempt","call":"b","upstream":"geo","attempt":1,"status":"broken"}"#,
        r#"{"ts":"2026-07-01T09:00:00Z","event":"attempt","call":"b","upstream":"geo","attempt":1,"status":"200","latency_ms":-1}"#,
        r#"{"ts":"2026-07-01T09:00:00Z","event":"attempt","call":"b","upstream":"geo"}"#,
        r#"{"event":"attempt"}"#,
        "[]",
    ];
    let mut log = log(&format!("{good}\n\n{{\"event\":\"started\"}}\n{}\n", bad.join("\n")));
    log.too_long(9);
    assert_eq!((log.calls(), log.malformed, log.lines), (1, 8, 11));
    let lines: Vec<u64> = log.malformed_shown.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [4, 5, 6, 7, 8]);
    assert!(log.malformed_shown[1].1.contains("yesterday"), "{:?}", log.malformed_shown);
}

#[test]
fn what_the_configuration_does_not_have_is_listed_and_left_out() {
    let extra =
        r#"{"ts":"2026-07-01T09:00:00Z","event":"attempt","call":"x","upstream":"old","attempt":1,"status":"200","outcome":"success"}"#;
    let found = replay(&format!("{SHIPPED}{extra}\n"), &recorded_policy(2));
    assert_eq!(found.unknown, [("old".to_owned(), 1)]);
    assert_eq!(u64::from(total(&found).calls), CALLS);
}

#[test]
fn refusals_of_the_old_breaker_are_no_behaviour_of_the_upstream() {
    let attempt = |call: &str, status: &str| {
        format!(
            r#"{{"ts":"2026-07-01T09:00:0{call}Z","event":"attempt","call":"{call}","upstream":"geo","attempt":1,"status":"{status}","outcome":"{status}"}}"#
        )
    };
    let refused = attempt("1", "circuit_open");
    assert_eq!(replay(&refused, &recorded_policy(2)).silent, [("geo".to_owned(), 1)]);
    let found = replay(&format!("{refused}\n{}\n", attempt("2", "200")), &recorded_policy(2));
    assert_eq!((total(&found).before.attempts, total(&found).after.attempts), (1.0, 2.0));
    assert_eq!((total(&found).before.dead, total(&found).after.dead), (2.0, 0.0));
}

#[test]
fn a_shorter_timeout_cuts_recorded_answers_off() {
    let line = r#"{"ts":"2026-07-01T09:00:00Z","event":"attempt","call":"1","upstream":"geo","attempt":1,"status":"200","latency_ms":3000,"elapsed_ms":3000,"outcome":"success"}"#;
    let mut hasty = recorded_policy(1);
    let endpoint = &mut Arc::make_mut(&mut hasty.upstreams[1]).endpoints[0];
    Arc::make_mut(endpoint).policy.timeout.attempt = Nanos::from_secs(2);
    assert_eq!(total(&replay(line, &hasty)).after.dead, 1.0);
    assert_eq!(total(&replay(line, &recorded_policy(1))).after.dead, 0.0);
}
