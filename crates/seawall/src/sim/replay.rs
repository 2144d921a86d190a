//! Shows the replay of an attempt log: the same calls before, as recorded, and after, under the file's policies.

use std::io::{self, BufRead, BufReader, Read as _};
use std::path::Path;

use anyhow::Context as _;
use seawall_core::config::Config;
use seawall_core::sim::replay::{MALFORMED_SHOWN, MAX_ATTEMPTS, RecordedLog, ReplayCase, ReplayResult, ReplayRow, Results, run};

use super::Args;
use super::report::{Column, ReportCell, SimReport};
use super::table::{Align, Field, Group, TextTable, Tone};

pub(super) const COLUMNS: &[Column] = &[
    Column::text("upstream"),
    Column::text("endpoint"),
    Column::number("calls", 0),
    Column::number("success_before", 4),
    Column::number("success_after", 4),
    Column::number("attempts_before", 1),
    Column::number("attempts_after", 1),
    Column::number("retries_per_success_before", 4),
    Column::number("retries_per_success_after", 4),
    Column::number("dead_before", 1),
    Column::number("dead_after", 1),
    Column::number("waited_s_before", 3),
    Column::number("waited_s_after", 3),
];

/// The longest line of an attempt log. Usual lines have some hundred bytes.
const MAX_LINE: usize = 1 << 20;
const TOTAL: &str = "total";

pub(super) fn report(args: &Args, policy: &Config) -> anyhow::Result<SimReport> {
    let path = args.log.as_deref().context("`sim replay` needs a log")?;
    let log = read(path)?;
    anyhow::ensure!(log.calls() > 0, "`{}` has no attempt of any call in its {} lines{}", path.display(), log.lines, first_problem(&log));
    let runs = args.runs.unwrap_or(1);
    let found = run(&ReplayCase { seed: args.seed, runs, policy, log: &log });
    Ok(SimReport {
        scenario: "replay",
        seed: args.seed,
        runs,
        columns: COLUMNS,
        rows: found.rows.iter().map(cells).collect(),
        series: Vec::new(),
        table: table(&found),
        figure: None,
        detail: None,
        notes: notes(&log, &found),
        closing: closing(&found),
    })
}

fn read(path: &Path) -> anyhow::Result<RecordedLog> {
    let unreadable = || format!("cannot read the log `{}`", path.display());
    if path == Path::new("-") {
        return lines(io::stdin().lock()).with_context(unreadable);
    }
    let file = std::fs::File::open(path).with_context(unreadable)?;
    lines(BufReader::new(file)).with_context(unreadable)
}

/// Reads line by line, and never holds more of a line than the limit.
fn lines(mut input: impl BufRead) -> io::Result<RecordedLog> {
    let mut log = RecordedLog::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = input.by_ref().take(MAX_LINE as u64 + 1).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(log);
        }
        if line.len() > MAX_LINE && line.last() != Some(&b'\n') {
            log.too_long(MAX_LINE);
            skip_line(&mut input)?;
        } else {
            log.line(line.trim_ascii_end());
        }
    }
}

fn skip_line(input: &mut impl BufRead) -> io::Result<()> {
    loop {
        let held = input.fill_buf()?;
        let (length, end) = (held.len(), held.iter().position(|byte| *byte == b'\n'));
        input.consume(end.map_or(length, |end| end + 1));
        if end.is_some() || length == 0 {
            return Ok(());
        }
    }
}

fn first_problem(log: &RecordedLog) -> String {
    log.malformed_shown.first().map(|(line, why)| format!("; line {line}: {why}")).unwrap_or_default()
}

fn cells(row: &ReplayRow) -> Vec<ReportCell> {
    let mut cells = vec![
        ReportCell::Text(row.upstream.clone().unwrap_or_else(|| TOTAL.to_owned())),
        ReportCell::Text(row.endpoint.clone().unwrap_or_default()),
        ReportCell::Number(f64::from(row.calls)),
    ];
    let values: [fn(&Results) -> Option<f64>; 5] = [
        |results| Some(results.success()),
        |results| Some(results.attempts),
        Results::retries_per_success,
        |results| Some(results.dead),
        |results| Some(results.waited_s),
    ];
    for value in values {
        cells.extend([&row.before, &row.after].map(|results| value(results).map_or(ReportCell::Never, ReportCell::Number)));
    }
    cells
}

fn table(found: &ReplayResult) -> TextTable {
    let names = ["calls", "success", "attempts", "retries/success", "dead letters", "waited"];
    let mut headings = vec![("".to_owned(), Align::Left)];
    headings.extend(names.map(|name| (name.to_owned(), Align::Right)));
    let group = |row: &ReplayRow| {
        let title = match (&row.upstream, &row.endpoint) {
            (Some(upstream), Some(endpoint)) => format!("{upstream}/{endpoint}"),
            (Some(_), None) | (None, _) => TOTAL.to_owned(),
        };
        let after = if row.after.succeeded < row.before.succeeded { Tone::Bad } else { Tone::Good };
        Group { title, rows: vec![line("before", row.calls, &row.before, Tone::Plain), line("after", row.calls, &row.after, after)] }
    };
    TextTable { headings, groups: found.rows.iter().map(group).collect() }
}

fn line(name: &str, calls: u32, results: &Results, tone: Tone) -> Vec<Field> {
    vec![
        name.to_owned().into(),
        calls.to_string().into(),
        Field::toned(format!("{:.2} %", results.success() * 100.0), tone),
        format!("{:.0}", results.attempts).into(),
        results.retries_per_success().map_or("–".to_owned(), |retries| format!("{retries:.3}")).into(),
        format!("{:.0}", results.dead).into(),
        format!("{:.1} s", results.waited_s).into(),
    ]
}

fn notes(log: &RecordedLog, found: &ReplayResult) -> Vec<String> {
    let mut notes = Vec::new();
    let listed =
        |counts: &[(String, u32)]| counts.iter().map(|(name, calls)| format!("{name} ({calls} calls)")).collect::<Vec<_>>().join(", ");
    if !found.unknown.is_empty() {
        notes.push(format!("left out, not in the configuration: {}", listed(&found.unknown)));
    }
    if !found.silent.is_empty() {
        notes.push(format!("left out, no answer of theirs is recorded: {}", listed(&found.silent)));
    }
    if !found.refused.is_empty() {
        let refused = found.refused.iter().map(|(reason, calls)| format!("{reason} {calls:.0}")).collect::<Vec<_>>().join(", ");
        notes.push(format!("calls that this policy refuses before they are sent: {refused}"));
    }
    if log.malformed > 0 {
        let shown = log.malformed_shown.iter().map(|(line, why)| format!("line {line}: {why}")).collect::<Vec<_>>().join("; ");
        let more = if log.malformed > MALFORMED_SHOWN as u64 { "; …" } else { "" };
        notes.push(format!("{} of {} lines cannot be read: {shown}{more}", log.malformed, log.lines));
    }
    if log.left_off > 0 {
        notes.push(format!("only the first {MAX_ATTEMPTS} attempts were read; {} were left off", log.left_off));
    }
    if found.drawn > 0.0 {
        notes
            .push(format!("{:.1} % of the results were not recorded and are drawn from what others got at that time", found.drawn * 100.0));
    }
    notes
}

fn closing(found: &ReplayResult) -> String {
    let Some(total) = found.rows.last().filter(|row| row.calls > 0) else { return "No call of the log can be replayed.".to_owned() };
    let (before, after) = (&total.before, &total.after);
    format!(
        "Under this policy {:.2} % of {} calls succeed instead of {:.2} %, with {:.2} attempts per call instead of {:.2}, and {:.1} s are lost waiting instead of {:.1} s.",
        after.success() * 100.0,
        total.calls,
        before.success() * 100.0,
        after.attempts / f64::from(total.calls),
        before.attempts / f64::from(total.calls),
        after.waited_s,
        before.waited_s,
    )
}
