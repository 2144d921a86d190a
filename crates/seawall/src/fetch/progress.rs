//! The progress of a run, for people: a bar on a terminal, a line every few seconds elsewhere, and a summary at the end.

use super::input::Ahead;
use super::pages::Pages;
use super::worker::FetchState;
use crate::terminal::{BOLD, DIM, GOOD, Terminal, WARNING};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use seawall_core::guard::State;
use seawall_core::time::Nanos;
use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The intervals at which a bar is redrawn, and at which lines are written instead.
const MOVES: Duration = Duration::from_millis(200);
const LINE_EVERY: Nanos = Nanos::from_secs(5);

pub(super) struct ProgressDisplay {
    bar: Option<ProgressBar>,
    ahead: Arc<Ahead>,
    /// Bytes of the input, if known.
    size: Option<u64>,
}

impl std::fmt::Debug for ProgressDisplay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Progress")
    }
}

/// The numbers that a bar or a line shows.
struct ProgressNumbers {
    over: u64,
    total: Option<u64>,
    text: String,
}

impl ProgressDisplay {
    pub(super) fn new(ahead: Arc<Ahead>, size: Option<u64>, quiet: bool) -> Self {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{elapsed_precise} {bar:32} {pos}/{len} {msg} eta {eta}") {
                bar.set_style(style);
            }
            bar
        });
        Self { bar, ahead, size }
    }

    /// Shows the progress until the run is over.
    pub(super) async fn show(&self, work: &FetchState, terminal: &Terminal) {
        let mut said = work.clock.now().mono;
        loop {
            tokio::time::sleep(MOVES).await;
            work.clock.follow();
            let now = work.clock.now().mono;
            work.sending.pool.sweep(now);
            work.outside.pool.sweep(now);
            let seen = self.look(work);
            if let Some(bar) = &self.bar {
                bar.set_length(seen.total.unwrap_or(seen.over));
                bar.set_position(seen.over);
                bar.set_message(seen.text);
            } else if now.since(said) >= LINE_EVERY {
                said = now;
                let total = seen.total.map(|total| format!("/{total}")).unwrap_or_default();
                terminal.note(&format!("{}{total} rows, {}", seen.over, seen.text));
            }
        }
    }

    pub(super) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn look(&self, work: &FetchState) -> ProgressNumbers {
        let (tally, lanes, now) = (work.tally.borrow(), work.lanes.borrow(), work.clock.now());
        let over = tally.all.done + tally.all.dead;
        let (_, asleep, running) = lanes.counts();
        let rate = over as f64 / tally.elapsed(now.mono).as_secs_f64().max(0.001);
        let mut text =
            format!("{rate:.0}/s, {} ok, {} retries, {} dead, {running} in flight", tally.all.done, tally.all.retries, tally.all.dead);
        let mut say = |count: usize, what: &str| {
            if count > 0 {
                text.push_str(&format!(", {count} {what}"));
            }
        };
        say(asleep, "waiting");
        say(usize::try_from(tally.quarantined).unwrap_or(usize::MAX), "quarantined");
        say(lanes.paused(), "hosts paused");
        let upstreams = work.live.as_ref().map(|live| live.upstreams.as_slice()).unwrap_or_default();
        let endpoints = upstreams.iter().flat_map(|upstream| &upstream.endpoints);
        say(endpoints.filter(|endpoint| !matches!(endpoint.state.breaker_state(now.mono).0, State::Closed)).count(), "breakers open");
        let keys = |upstream: &&Arc<seawall_engine::runtime::LiveUpstream>| {
            let count = upstream.spec.auth.as_ref().map_or(0, |auth| auth.keys.len());
            (0..u16::try_from(count).unwrap_or(u16::MAX))
                .filter_map(|key| upstream.state.key_status(key, now))
                .filter(|key| key.cooling.is_some())
                .count()
        };
        say(upstreams.iter().map(|upstream| keys(&upstream)).sum(), "keys cooling");
        ProgressNumbers { over, total: self.total(), text }
    }

    /// All rows once the input has been read; before that, an estimate from its size.
    fn total(&self) -> Option<u64> {
        let (rows, bytes) = (self.ahead.rows.load(Ordering::Relaxed), self.ahead.bytes.load(Ordering::Relaxed));
        if self.ahead.over.load(Ordering::Relaxed) {
            return Some(rows);
        }
        let share = bytes as f64 / self.size.filter(|size| *size > 0)? as f64;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an estimate of a count")]
        let estimate = (rows as f64 / share.clamp(0.001, 1.0)) as u64;
        (rows > 0).then_some(estimate)
    }
}

/// Writes the summary of a run.
pub(super) fn summary(work: &FetchState, ahead: &Ahead, quarantine: Option<&std::path::Path>, terminal: &Terminal) -> std::io::Result<()> {
    let (tally, now) = (work.tally.borrow(), work.clock.now().mono);
    let (waiting, asleep, _) = work.lanes.borrow().counts();
    let elapsed = tally.elapsed(now);
    let over = tally.all.done + tally.all.dead;
    let mut err = terminal.err();
    let share = if over == 0 { 100.0 } else { tally.all.done as f64 * 100.0 / over as f64 };
    writeln!(
        err,
        "{BOLD}{over}{BOLD:#} {} in {elapsed}: {GOOD}{} succeeded{GOOD:#} ({share:.2} %), {} dead; {}, {} healed {}",
        noun(over, "row"),
        tally.all.done,
        tally.all.dead,
        counted(tally.all.attempts, "attempt"),
        counted(tally.all.retries, "retry"),
        counted(tally.healed, "row")
    )?;
    let skipped = ahead.skipped.load(Ordering::Relaxed);
    if skipped > 0 {
        writeln!(err, "{} {} done by an earlier run", counted(skipped, "row"), if skipped == 1 { "was" } else { "were" })?;
    }
    let unasked = ahead.unasked.load(Ordering::Relaxed);
    if unasked > 0 {
        let (have, does) = if unasked == 1 { ("has", "it") } else { ("have", "them") };
        writeln!(err, "{} {have} not ended: `--resume` does {does}", counted(unasked, "row"))?;
    }
    if let (Some(p50), Some(p99)) = (tally.latencies.percentile(0.5), tally.latencies.percentile(0.99)) {
        writeln!(
            err,
            "{DIM}an attempt took {p50:.1} ms (p50), {p99:.1} ms (p99); slowest row {} {}{DIM:#}",
            tally.slowest.0, tally.slowest.1
        )?;
    }
    for bad in &tally.bad {
        writeln!(err, "  {WARNING}{bad}{WARNING:#}")?;
    }
    if tally.bad_lines > u64::try_from(tally.bad.len()).unwrap_or(0) {
        writeln!(err, "  … {} in all", counted(tally.bad_lines, "bad line"))?;
    }
    for (reason, count) in &tally.reasons {
        writeln!(err, "  {WARNING}{count}{WARNING:#} {reason}")?;
    }
    if tally.prohibited > 0 {
        let (rows, lead) = (counted(tally.prohibited, "row"), if tally.prohibited == 1 { "leads" } else { "lead" });
        writeln!(err, "{rows} {lead} to addresses that are not public: `[server] allow_private` lists those that may be reached")?;
    }
    if let Some(Pages::Next { pointer, .. }) = work.pages.as_ref().filter(|_| tally.with_next == 0 && tally.without_next > 0) {
        let rows = counted(tally.without_next, "row");
        writeln!(
            err,
            "{WARNING}no answer has `{pointer}`{WARNING:#}, so {rows} ended after page 1: see where the API says that there are more pages"
        )?;
    }
    let renamed = ahead.renamed.load(Ordering::Relaxed);
    if renamed > 0 {
        writeln!(err, "{} with the id of an earlier one: the names of their files end in `~LINE`", counted(renamed, "row"))?;
    }
    if let Some(path) = quarantine {
        writeln!(err, "{} {} in quarantine: {}", counted(tally.quarantined, "row"), are(tally.quarantined), path.display())?;
    }
    let left = waiting + u64::try_from(asleep).unwrap_or(0);
    if work.lanes.borrow().stopping {
        let more = if ahead.over.load(Ordering::Relaxed) { "" } else { ", and what was not read" };
        writeln!(err, "{} {} left{more}", counted(left, "row"), are(left))?;
    }
    Ok(())
}

const fn are(count: u64) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

/// A count with its noun in the right number.
fn counted(count: u64, what: &str) -> String {
    format!("{count} {}", noun(count, what))
}

fn noun(count: u64, what: &str) -> String {
    match what.strip_suffix('y') {
        _ if count == 1 => what.to_owned(),
        Some(stem) => format!("{stem}ies"),
        None => format!("{what}s"),
    }
}
