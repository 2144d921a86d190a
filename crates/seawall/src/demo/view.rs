//! The demo's output: a live view on a terminal, plain lines elsewhere, and the table at the end.

use super::client::{TIMEOUT, milliseconds};
use super::story::DemoStory;
use super::tally::{Cost, DemoTally};
use crate::terminal::{BOLD, DIM, ERROR, GOOD, HINT, Terminal, WARNING};
use seawall_core::guard::State;
use seawall_core::time::{Nanos, Now};
use seawall_engine::metrics::EndpointTotals;
use seawall_engine::runtime::Live;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The interval at which the view is drawn.
pub(super) const EVERY: Nanos = Nanos::from_millis(500);
/// Without a terminal a line every few seconds is enough.
const PLAIN_EVERY: u32 = 6;
/// Log lines of the live view.
const LINES: usize = 5;

/// The gateway's log, as far as the view shows it.
#[derive(Clone, Debug, Default)]
pub(super) struct DemoLog(Arc<Mutex<RecentLines>>);

#[derive(Debug, Default)]
struct RecentLines {
    /// The last lines about anything other than plain success.
    last: VecDeque<String>,
    /// Changes of the breaker and keys that ran out of quota, until they are shown.
    changes: VecDeque<String>,
    opened: u64,
    closed: u64,
    quota_refusals: u64,
}

impl Write for DemoLog {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for line in text.lines().filter(|line| !is_plain(line)) {
            kept.keep(line);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Whether a line reports a call that succeeded at once.
fn is_plain(line: &str) -> bool {
    line.contains("\"attempts\":1,") || (line.contains("\"attempt\":1,") && line.contains("\"success\""))
}

impl RecentLines {
    fn keep(&mut self, line: &str) {
        bounded(&mut self.last, line);
        if line.contains("\"event\":\"breaker\"") {
            bounded(&mut self.changes, line);
            self.opened += u64::from(line.contains("\"to\":\"open\""));
            self.closed += u64::from(line.contains("\"to\":\"closed\""));
        }
        if line.contains("\"event\":\"attempt\"") && line.contains("\"outcome\":\"quota\"") {
            bounded(&mut self.changes, line);
            self.quota_refusals += 1;
        }
    }
}

/// Adds a line and drops the oldest beyond the limit.
fn bounded(lines: &mut VecDeque<String>, line: &str) {
    if lines.len() == LINES {
        lines.pop_front();
    }
    lines.push_back(line.to_owned());
}

impl DemoLog {
    fn kept(&self) -> MutexGuard<'_, RecentLines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The results of a story: the callers' tallies, the gateway's metrics, and the upstream's count of requests.
#[derive(Debug)]
pub(super) struct Comparison<'a> {
    pub naive: &'a DemoTally,
    pub seawall: &'a DemoTally,
    pub gateway: EndpointTotals,
    pub requests: u64,
}

impl Comparison<'_> {
    /// The gateway's own count of its sends.
    fn sends(&self) -> u64 {
        self.gateway.attempts + self.gateway.resends
    }

    /// A naive call is one send; the gateway's sends are in its metrics.
    fn costs(&self) -> (Cost, Cost) {
        (self.naive.cost(self.naive.begun.get()), self.seawall.cost(self.sends()))
    }
}

#[derive(Debug)]
pub(super) struct View<'t> {
    terminal: &'t Terminal,
    live: bool,
    log: DemoLog,
    drawn: Cell<usize>,
    moments: Cell<u32>,
    act: RefCell<&'static str>,
}

impl<'t> View<'t> {
    pub(super) fn new(terminal: &'t Terminal, live: bool, log: DemoLog) -> Self {
        Self { terminal, live, log, drawn: Cell::new(0), moments: Cell::new(0), act: RefCell::new("") }
    }

    pub(super) fn opening(&self, policy: &str, gateway: SocketAddr, admin: SocketAddr) {
        let shown: Vec<&str> = policy.lines().skip_while(|line| !line.starts_with("[upstreams")).collect();
        self.terminal.note(&format!("{DIM}{}{DIM:#}\n", shown.join("\n")));
        self.terminal.note(&format!("dashboard  http://{admin}/   (the story, live)\ngateway    http://{gateway}/youtube\n"));
    }

    /// Shows the current state.
    pub(super) fn moment(&self, story: &DemoStory, at: Nanos, naive: &DemoTally, seawall: &DemoTally, live: &Live, now: Now) {
        let act = story.act(at);
        let fresh = *self.act.borrow() != act.name;
        if fresh {
            *self.act.borrow_mut() = act.name;
        }
        let moment = self.moments.get();
        self.moments.set(moment + 1);
        if self.live {
            self.draw(story, at, naive, seawall, live, now);
            return;
        }
        if fresh {
            self.terminal.note(&format!("── {}: {}", act.name, act.caption));
        }
        for change in std::mem::take(&mut self.log.kept().changes) {
            self.terminal.note(&format!("        {}", short(&change)));
        }
        if moment.is_multiple_of(PLAIN_EVERY) || at >= story.length {
            let seconds = at.as_secs_f64();
            self.terminal.note(&format!(
                "{seconds:5.1} s  naive {:6.2} %  seawall {:6.2} %  {}",
                naive.success_percent(),
                seawall.success_percent(),
                condition(live, now)
            ));
        }
    }

    fn draw(&self, story: &DemoStory, at: Nanos, naive: &DemoTally, seawall: &DemoTally, live: &Live, now: Now) {
        let act = story.act(at);
        let mut lines = vec![
            format!("{BOLD}{}{BOLD:#}  {DIM}{}{DIM:#}", act.name, act.caption),
            progress(at, story.length),
            String::new(),
            arm("naive client", naive, ERROR),
            arm("seawall", seawall, GOOD),
            format!("  {}", condition(live, now)),
            String::new(),
        ];
        let log = self.log.kept().last.clone();
        lines.extend((0..LINES).map(|i| log.get(i).map_or_else(String::new, |line| format!("{DIM}{}{DIM:#}", short(line)))));
        let up = self.drawn.replace(lines.len());
        let back = if up == 0 { String::new() } else { format!("\x1b[{up}A") };
        let body: String = lines.iter().map(|line| format!("\x1b[2K{line}\n")).collect();
        let mut err = self.terminal.err();
        // An error means that the terminal is gone, so it cannot be reported there.
        drop(write!(err, "{back}{body}").and_then(|()| err.flush()));
    }

    pub(super) fn summary(&self, result: &Comparison<'_>) -> std::io::Result<()> {
        let Comparison { naive, seawall, gateway, .. } = result;
        let (cheap, dear) = result.costs();
        let row = |name: &str, left: String, right: String| format!("  {name:<26} {left:>12} {right:>12}");
        let percent = |tally: &DemoTally| format!("{:.2} %", tally.success_percent());
        let lines = [
            String::new(),
            format!("{BOLD}{}{BOLD:#}", row("what the callers got", "naive".to_owned(), "seawall".to_owned())),
            row("calls", naive.begun.get().to_string(), seawall.begun.get().to_string()),
            row("succeeded", percent(naive), percent(seawall)),
            row("given up", naive.failed.get().to_string(), seawall.failed.get().to_string()),
            row("retries per success", format!("{:.3}", cheap.retries_per_success), format!("{:.3}", dear.retries_per_success)),
            row("sends that bought nothing", cheap.wasted.to_string(), dear.wasted.to_string()),
            row("p99 of successes", milliseconds(naive.p99()), milliseconds(seawall.p99())),
            format!(
                "  {DIM}both clients send once and wait {} s; the gateway counted {} calls, {} successes and {} sends{DIM:#}",
                TIMEOUT.as_secs(),
                gateway.calls,
                gateway.successes,
                result.sends()
            ),
            String::new(),
            format!("next: {HINT}seawall config init{HINT:#}, then {HINT}seawall check{HINT:#}"),
        ];
        writeln!(self.terminal.out(), "{}", lines.join("\n"))
    }

    pub(super) fn json(&self, result: &Comparison<'_>) -> Value {
        let (cheap, dear) = result.costs();
        let arm = |tally: &DemoTally, cost: Cost| {
            json!({
                "calls": tally.begun.get(),
                "succeeded": tally.succeeded.get(),
                "given_up": tally.failed.get(),
                "success_percent": tally.success_percent(),
                "sends": cost.sends,
                "retries_per_success": cost.retries_per_success,
                "wasted": cost.wasted,
                "p99_ms": tally.p99().as_millis(),
            })
        };
        let Comparison { naive, seawall, gateway, requests } = result;
        let log = self.log.kept();
        json!({
            "naive": arm(naive, cheap),
            "seawall": arm(seawall, dear),
            "gateway": {
                "calls": gateway.calls,
                "succeeded": gateway.successes,
                "given_up": gateway.calls - gateway.successes,
                "sends": result.sends(),
                "breaker_opened": log.opened,
                "breaker_closed": log.closed,
                "quota_refusals": log.quota_refusals,
            },
            "upstream": { "requests": requests },
        })
    }

    pub(super) fn endless(&self) {
        self.terminal.note("the gateway stays up until Ctrl-C");
    }
}

fn progress(at: Nanos, length: Nanos) -> String {
    const WIDTH: usize = 48;
    let share = (at.as_secs_f64() / length.as_secs_f64()).clamp(0.0, 1.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of the width")]
    let filled = (share * WIDTH as f64) as usize;
    format!("{DIM}{}{}{DIM:#} {:.0} s", "━".repeat(filled), "─".repeat(WIDTH - filled), at.as_secs_f64())
}

fn arm(name: &str, tally: &DemoTally, style: anstyle::Style) -> String {
    format!(
        "  {name:<14} {style}{:6.2} %{style:#}  {:>6} calls  {:>4} given up  p99 {}",
        tally.success_percent(),
        tally.begun.get(),
        tally.failed.get(),
        milliseconds(tally.p99())
    )
}

/// The state of breaker and keys, in words.
fn condition(live: &Live, now: Now) -> String {
    let Some(upstream) = live.upstreams.first() else { return String::new() };
    let breaker = upstream.endpoints.last().map_or(State::Closed, |endpoint| endpoint.state.breaker_state(now.mono).0);
    let style = if breaker == State::Closed { GOOD } else { WARNING };
    let keys = upstream.spec.auth.iter().flat_map(|auth| &auth.keys).zip(0u16..);
    let keys: Vec<String> = keys
        .map(|(key, index)| match upstream.state.key_status(index, now).and_then(|status| status.cooling) {
            Some(left) => format!("key {} {WARNING}cooling{WARNING:#} for {left}", key.id),
            None => format!("key {} ready", key.id),
        })
        .collect();
    let waiting = match upstream.state.waiting() {
        0 => String::new(),
        count => format!(", {count} calls wait"),
    };
    format!("breaker {style}{breaker}{style:#}{waiting}, {}", keys.join(", "))
}

/// The relevant fields of a log line, within a screen's width.
fn short(line: &str) -> String {
    let Ok(record) = serde_json::from_str::<Value>(line) else { return String::new() };
    let text = |key: &str| record[key].as_str().unwrap_or_default().to_owned();
    match record["event"].as_str() {
        Some("attempt") => {
            let wait = record["wait_ms"].as_f64().filter(|wait| *wait > 0.0).map(|wait| format!(" in {wait:.0} ms")).unwrap_or_default();
            format!(
                "attempt {} of {}: {} {}, {}{wait} ({})",
                record["attempt"],
                &text("call").get(20..).unwrap_or_default(),
                text("status"),
                text("outcome"),
                text("decision"),
                text("reason")
            )
        }
        Some("call") => {
            format!("call {} {} after {} attempts", text("call").get(20..).unwrap_or_default(), text("outcome"), record["attempts"])
        }
        _ => format!("breaker {} → {} ({})", text("from"), text("to"), text("cause")),
    }
}
