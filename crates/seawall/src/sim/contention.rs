//! Shows the contention model: calls and completion time against the number of clients, one line per strategy.

use seawall_core::sim::contention::{ContentionConfig, ContentionRow, Strategy, run};

use super::report::{Column, ReportCell, SimReport};
use super::svg::{Axis, Figure, Mark, Panel, PanelVerdict, Shape, round_up};
use super::table::{Align, Field, Group, TextTable, sparkline};
use super::{Args, choose};

pub(super) const COLUMNS: &[Column] =
    &[Column::number("clients", 0), Column::text("strategy"), Column::number("calls_mean", 2), Column::number("time_ms_mean", 2)];

const CALLS: &str = "calls until every client has written";
const SECONDS: &str = "seconds until the last client is done";

/// The numbers of clients that fit into the table for people; CSV has all of them.
const SHOWN: usize = 4;

pub(super) fn report(args: &Args) -> anyhow::Result<SimReport> {
    let mut config = ContentionConfig::new(args.seed);
    config.runs = args.runs.unwrap_or(ContentionConfig::RUNS);
    config.strategies = choose(config.strategies, |strategy| strategy.as_str(), &args.policy)?;
    if !args.clients.is_empty() {
        config.clients.clone_from(&args.clients);
        config.clients.sort_unstable();
        config.clients.dedup();
    }
    let rows = run(&config);
    let cells = |row: &ContentionRow| {
        let text = ReportCell::Text(row.strategy.to_string());
        vec![ReportCell::Number(f64::from(row.clients)), text, ReportCell::Number(row.calls_mean), ReportCell::Number(row.time_ms_mean)]
    };
    Ok(SimReport {
        scenario: "contention",
        seed: config.seed,
        runs: config.runs,
        columns: COLUMNS,
        rows: rows.iter().map(cells).collect(),
        // The rows are the series already: one value for each number of clients.
        series: Vec::new(),
        table: table(&config, &rows),
        figure: Some(figure(&config, &rows)),
        detail: None,
        notes: Vec::new(),
        closing: closing(&config, &rows),
    })
}

fn of(rows: &[ContentionRow], strategy: Strategy) -> impl Iterator<Item = &ContentionRow> {
    rows.iter().filter(move |row| row.strategy == strategy)
}

/// Chooses evenly, and always includes the last.
fn shown(clients: &[u32]) -> Vec<u32> {
    let count = clients.len().min(SHOWN);
    (1..=count).map(|index| clients[index * clients.len() / count - 1]).collect()
}

fn table(config: &ContentionConfig, rows: &[ContentionRow]) -> TextTable {
    let shown = shown(&config.clients);
    let mut headings = vec![("strategy".to_owned(), Align::Left)];
    headings.extend(shown.iter().map(|clients| (format!("N={clients}"), Align::Right)));
    headings.push(("by N".to_owned(), Align::Left));
    let group = |title: &str, digits: usize, value: fn(&ContentionRow) -> f64| {
        let line = |&strategy: &Strategy| {
            let picked = of(rows, strategy).filter(|row| shown.contains(&row.clients));
            let values: Vec<f64> = of(rows, strategy).map(value).collect();
            let mut fields: Vec<Field> = vec![strategy.to_string().into()];
            fields.extend(picked.map(|row| format!("{:.digits$}", value(row)).into()));
            fields.push(sparkline(&values, 20, most(rows, value)).into());
            fields
        };
        Group { title: title.to_owned(), rows: config.strategies.iter().map(line).collect() }
    };
    let groups = vec![group(CALLS, 0, |row| row.calls_mean), group(SECONDS, 2, |row| row.time_ms_mean / 1e3)];
    TextTable { headings, groups }
}

fn most(rows: &[ContentionRow], value: impl Fn(&ContentionRow) -> f64) -> f64 {
    rows.iter().map(value).fold(1.0, f64::max)
}

fn closing(config: &ContentionConfig, rows: &[ContentionRow]) -> String {
    let clients = config.clients.last().copied().unwrap_or(0);
    let calls = |strategy| of(rows, strategy).last().map(|row| row.calls_mean);
    let (Some(exponential), Some(full)) = (calls(Strategy::Exponential), calls(Strategy::Full)) else {
        return format!("Every one of the {clients} clients writes exactly once; the rest of the calls lost a race.");
    };
    let less = 100.0 * (1.0 - full / exponential);
    format!(
        "With {clients} clients, full jitter needs {full:.0} calls where the same waits without jitter need {exponential:.0} ({less:.0} % less): what helps is the spread, not the waiting."
    )
}

fn figure(config: &ContentionConfig, rows: &[ContentionRow]) -> Figure {
    let panel = |title: &str, digits: usize, value: fn(&ContentionRow) -> f64| Panel {
        title: title.to_owned(),
        note: String::new(),
        verdict: PanelVerdict::Neutral,
        x: Axis { label: "clients", from: 0.0, to: config.clients.last().copied().map_or(1.0, f64::from) },
        y: Axis { label: "", from: 0.0, to: round_up(most(rows, value)) },
        marks: config.strategies.iter().map(|&strategy| mark(rows, strategy, digits, value)).collect(),
        shade: None,
        level: None,
    };
    Figure {
        title: "Jitter is what stops clients from colliding".to_owned(),
        subtitle: format!(
            "N clients update one row with optimistic locking; base 5 ms, cap 2 s; mean of {} runs, seed {}",
            config.runs, config.seed
        ),
        across: 2,
        headings: Vec::new(),
        panel_height: 430.0,
        panels: vec![panel(CALLS, 0, |row| row.calls_mean), panel(SECONDS, 1, |row| row.time_ms_mean / 1e3)],
    }
}

fn mark(rows: &[ContentionRow], strategy: Strategy, digits: usize, value: fn(&ContentionRow) -> f64) -> Mark {
    let colour = match strategy {
        Strategy::Full => 0,
        Strategy::None => 5,
        Strategy::Exponential => 1,
        Strategy::Equal => 3,
        Strategy::Decorrelated => 2,
    };
    let points: Vec<(f64, f64)> = of(rows, strategy).map(|row| (f64::from(row.clients), value(row))).collect();
    let last = points.last().map_or(0.0, |point| point.1);
    Mark { label: format!("{strategy} {last:.digits$}"), colour, shape: Shape::Line, points }
}
