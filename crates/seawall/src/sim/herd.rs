//! Shows the herd model: simultaneous retries, per scenario and policy.

use seawall_core::sim::herd::{BUCKET, HerdConfig, HerdPolicy, HerdRow, Scenario, run};

use super::report::{Column, ReportCell, ReportSeries, SimReport};
use super::svg::{Axis, Figure, Mark, Panel, PanelVerdict, Shape, points, round_up};
use super::table::{Align, Field, Group, TextTable, Tone, sparkline};
use super::{Args, Candidate, choose};

pub(super) const COLUMNS: &[Column] = &[
    Column::text("scenario"),
    Column::text("policy"),
    Column::number("peak100_mean", 2),
    Column::number("peak1s_mean", 2),
    Column::number("retries_mean", 2),
    Column::number("succeeded_mean", 2),
    Column::number("dead_mean", 2),
];

pub(super) fn report(args: &Args, candidates: &[Candidate]) -> anyhow::Result<SimReport> {
    let mut config = HerdConfig::new(args.seed);
    config.runs = args.runs.unwrap_or(HerdConfig::RUNS);
    config.arms.extend(candidates.iter().map(|candidate| HerdPolicy {
        name: candidate.name.clone(),
        backoff: candidate.retry.backoff,
        attempts: candidate.retry.attempts,
    }));
    config.arms = choose(config.arms, |arm| &arm.name, &args.policy)?;
    let rows = run(&config);
    Ok(SimReport {
        scenario: "herd",
        seed: config.seed,
        runs: config.runs,
        columns: COLUMNS,
        rows: rows.iter().map(cells).collect(),
        series: rows.iter().map(series).collect(),
        table: table(&rows),
        figure: Some(figure(&config, &rows)),
        detail: None,
        notes: Vec::new(),
        closing: closing(&rows),
    })
}

fn cells(row: &HerdRow) -> Vec<ReportCell> {
    let mut cells = vec![ReportCell::Text(row.scenario.to_string()), ReportCell::Text(row.policy.clone())];
    let numbers = [row.peak100_mean, row.peak1s_mean, row.retries_mean, row.succeeded_mean, row.dead_mean];
    cells.extend(numbers.map(ReportCell::Number));
    cells
}

fn series(row: &HerdRow) -> ReportSeries {
    ReportSeries {
        labels: vec![("scenario", ReportCell::Text(row.scenario.to_string())), ("policy", ReportCell::Text(row.policy.clone()))],
        name: "retries_per_100ms",
        x: "t_s",
        start: 0.0,
        step: BUCKET.as_secs_f64(),
        values: row.retries_per_bucket.clone(),
    }
}

const fn meaning(scenario: Scenario) -> &'static str {
    match scenario {
        Scenario::Spike => "spike: healthy again at once",
        Scenario::Outage10 => "outage10: down until t = 10 s",
        Scenario::Capacity => "capacity: serves 10 per 100 ms",
    }
}

/// The time in which all but a hundredth of a scenario's retries happen, in buckets. The long tail would hide the herd.
fn horizon(rows: &[HerdRow], scenario: Scenario) -> usize {
    let rows = || rows.iter().filter(|row| row.scenario == scenario);
    let mut left = rows().map(|row| row.retries_mean).sum::<f64>();
    let enough = left * 0.01;
    let longest = rows().map(|row| row.retries_per_bucket.len()).max().unwrap_or(0);
    let mut bucket = 0;
    while bucket < longest && left > enough {
        left -= rows().filter_map(|row| row.retries_per_bucket.get(bucket)).sum::<f64>();
        bucket += 1;
    }
    bucket.max(10)
}

fn table(rows: &[HerdRow]) -> TextTable {
    let headings = [
        ("policy", Align::Left),
        ("peak/100ms", Align::Right),
        ("peak/s", Align::Right),
        ("retries", Align::Right),
        ("succeeded", Align::Right),
        ("dead", Align::Right),
        ("retries over time", Align::Left),
    ];
    let group = |&scenario: &Scenario| {
        let shown = horizon(rows, scenario);
        let of: Vec<&HerdRow> = rows.iter().filter(|row| row.scenario == scenario).collect();
        let lines = of.iter().map(|row| line(row, shown)).collect();
        let title = format!("{}  (time axis: {:.1} s)", meaning(scenario), shown as f64 * BUCKET.as_secs_f64());
        Group { title, rows: lines }
    };
    TextTable {
        headings: headings.map(|(text, align)| (text.to_owned(), align)).to_vec(),
        groups: Scenario::ALL.iter().map(group).collect(),
    }
}

fn line(row: &HerdRow, shown: usize) -> Vec<Field> {
    let mut buckets = row.retries_per_bucket.clone();
    buckets.resize(shown, 0.0);
    // Each row is scaled to itself: numbers give the peak, the line shows the shape.
    let blocks = 30.min(shown);
    let top = (0..blocks).map(|index| &buckets[index * shown / blocks..(index + 1) * shown / blocks]);
    let top = top.map(|part| part.iter().sum::<f64>() / part.len().max(1) as f64).fold(f64::MIN_POSITIVE, f64::max);
    let dead = if row.dead_mean >= 0.5 { Tone::Bad } else { Tone::Plain };
    vec![
        row.policy.clone().into(),
        format!("{:.1}", row.peak100_mean).into(),
        format!("{:.1}", row.peak1s_mean).into(),
        format!("{:.0}", row.retries_mean).into(),
        format!("{:.1}", row.succeeded_mean).into(),
        Field::toned(format!("{:.1}", row.dead_mean), dead),
        sparkline(&buckets, blocks, top).into(),
    ]
}

fn closing(rows: &[HerdRow]) -> String {
    let spike = |policy: &str| rows.iter().find(|row| row.scenario == Scenario::Spike && row.policy == policy);
    match (spike("exponential"), spike("full")) {
        (Some(bare), Some(full)) => format!(
            "500 workers that fail together come back {:.0} in the same 100 ms without jitter, and at most {:.0} with full jitter.",
            bare.peak100_mean, full.peak100_mean
        ),
        _ => "Peaks are the most retries that come back in one 100 ms and in one second.".to_owned(),
    }
}

fn figure(config: &HerdConfig, rows: &[HerdRow]) -> Figure {
    let top = round_up(rows.iter().map(|row| row.peak100_mean).fold(1.0, f64::max));
    let across = config.scenarios.len().max(1);
    // One row per policy and one column per scenario, so that policies can be compared along one axis.
    let by_policy = config.arms.iter().flat_map(|arm| rows.iter().filter(|row| row.policy == arm.name));
    let count = rows.len();
    let panel = |(index, row): (usize, &HerdRow)| Panel {
        title: row.policy.clone(),
        note: format!("peak {:.0}", row.peak100_mean),
        verdict: if row.peak100_mean > 250.0 { PanelVerdict::Bad } else { PanelVerdict::Neutral },
        x: Axis {
            label: if index + across >= count { "seconds after the failure" } else { "" },
            from: 0.0,
            to: round_up(horizon(rows, row.scenario) as f64 * BUCKET.as_secs_f64()),
        },
        y: Axis { label: "", from: 0.0, to: top },
        marks: vec![Mark {
            label: String::new(),
            colour: usize::from(row.peak100_mean > 250.0),
            shape: Shape::Bars,
            points: points(0.0, BUCKET.as_secs_f64(), &row.retries_per_bucket),
        }],
        shade: None,
        level: None,
    };
    Figure {
        title: "500 workers fail in the same instant. Do they come back in the same instant?".to_owned(),
        subtitle: format!(
            "Retries per 100 ms; built-in policies: base 1 s, doubling, cap 60 s, six attempts; mean of {} runs, seed {}; peak: mean of the runs' largest bucket",
            config.runs, config.seed
        ),
        across,
        headings: config.scenarios.iter().map(|&scenario| meaning(scenario)).collect(),
        panel_height: 104.0,
        panels: by_policy.enumerate().map(panel).collect(),
    }
}
