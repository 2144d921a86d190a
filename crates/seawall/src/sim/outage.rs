//! Shows the outage model: whether and when the system recovers under each policy, and the cost.

use seawall_core::policy::Share;
use seawall_core::sim::outage::{CAPACITY, DIP_END_S, DIP_START_S, END_S, OutageConfig, OutagePolicy, OutageRow, run};

use super::report::{Column, ReportCell, ReportSeries, SimReport};
use super::svg::{Axis, Figure, Mark, Panel, PanelVerdict, Shade, Shape, points};
use super::table::{Align, Field, Group, TextTable, Tone, sparkline};
use super::{Args, Candidate, choose};

pub(super) const COLUMNS: &[Column] = &[
    Column::number("rho", 2),
    Column::text("policy"),
    Column::number("recovered", 3),
    Column::number("recovery_s", 2),
    Column::number("amp_incident", 4),
    Column::number("success_incident", 4),
];

/// The sparkline and the chart show the incident, not five minutes of calm before and after.
const SHOWN_FROM_S: u32 = 40;
const SHOWN_TO_S: u32 = 280;

pub(super) fn report(args: &Args, candidates: &[Candidate]) -> anyhow::Result<SimReport> {
    let mut config = OutageConfig::new(args.seed);
    config.runs = args.runs.unwrap_or(OutageConfig::RUNS);
    if !args.rho.is_empty() {
        config.rhos.clone_from(&args.rho);
    }
    config.arms.extend(
        candidates
            .iter()
            .map(|candidate| OutagePolicy::of_policy(candidate.name.clone(), candidate.retry, candidate.breaker, candidate.adaptive)),
    );
    config.arms = choose(config.arms, |arm| &arm.name, &args.policy)?;
    let rows = run(&config);
    Ok(SimReport {
        scenario: "outage",
        seed: config.seed,
        runs: config.runs,
        columns: COLUMNS,
        rows: rows.iter().map(cells).collect(),
        series: rows.iter().flat_map(series).collect(),
        table: table(&config, &rows),
        figure: Some(figure(&config, &rows)),
        detail: None,
        notes: Vec::new(),
        closing: closing(&config, &rows),
    })
}

fn cells(row: &OutageRow) -> Vec<ReportCell> {
    vec![
        ReportCell::Number(row.rho.as_f64()),
        ReportCell::Text(row.policy.clone()),
        ReportCell::Number(row.recovered),
        row.recovery_s.map_or(ReportCell::Never, ReportCell::Number),
        ReportCell::Number(row.amp_incident),
        ReportCell::Number(row.success_incident),
    ]
}

fn series(row: &OutageRow) -> [ReportSeries; 2] {
    [("goodput_per_s", &row.goodput_per_s), ("attempts_per_s", &row.attempts_per_s)].map(|(name, values)| ReportSeries {
        labels: vec![("rho", ReportCell::Number(row.rho.as_f64())), ("policy", ReportCell::Text(row.policy.clone()))],
        name,
        x: "t_s",
        start: 0.0,
        step: 1.0,
        values: values.clone(),
    })
}

/// Mean goodput per second in the shown range; a series may end early if nothing succeeds any more.
fn shown(row: &OutageRow) -> Vec<f64> {
    (SHOWN_FROM_S..SHOWN_TO_S.min(END_S)).map(|second| row.goodput_per_s.get(second as usize).copied().unwrap_or(0.0)).collect()
}

fn table(config: &OutageConfig, rows: &[OutageRow]) -> TextTable {
    let headings = [
        ("policy".to_owned(), Align::Left),
        ("recovered".to_owned(), Align::Right),
        ("after s".to_owned(), Align::Right),
        ("attempts/req".to_owned(), Align::Right),
        ("success".to_owned(), Align::Right),
        (format!("goodput, t = {SHOWN_FROM_S} to {SHOWN_TO_S} s"), Align::Left),
    ];
    let group = |&rho: &Share| {
        let lines = rows.iter().filter(|row| row.rho == rho).map(|row| line(row, config.runs)).collect();
        Group { title: format!("load {rho} of {CAPACITY}/s, 18 of 20 workers stop from t = {DIP_START_S} to {DIP_END_S} s"), rows: lines }
    };
    TextTable { headings: headings.to_vec(), groups: config.rhos.iter().map(group).collect() }
}

fn line(row: &OutageRow, runs: u32) -> Vec<Field> {
    let tone = if row.recovered >= 1.0 {
        Tone::Good
    } else if row.recovered > 0.0 {
        Tone::Plain
    } else {
        Tone::Bad
    };
    let recovered = row.recovered * f64::from(runs);
    vec![
        row.policy.clone().into(),
        Field::toned(format!("{recovered:.0}/{runs}"), tone),
        Field::toned(row.recovery_s.map_or("never".to_owned(), |seconds| format!("{seconds:.1}")), tone),
        format!("{:.2}", row.amp_incident).into(),
        format!("{:.1} %", row.success_incident * 100.0).into(),
        sparkline(&shown(row), 32, row.rho.as_f64() * CAPACITY).into(),
    ]
}

/// The load of the closing sentence and the chart.
fn focus(config: &OutageConfig) -> Share {
    let usual = Share::percent(80);
    if config.rhos.contains(&usual) { usual } else { config.rhos.first().copied().unwrap_or(usual) }
}

fn closing(config: &OutageConfig, rows: &[OutageRow]) -> String {
    let rho = focus(config);
    let of = || rows.iter().filter(move |row| row.rho == rho);
    let lost: Vec<&str> = of().filter(|row| row.recovered <= 0.0).map(|row| row.policy.as_str()).collect();
    // A client cannot set a bound on the server's queue.
    let alone = |row: &&OutageRow| config.arms.iter().any(|arm| arm.name == row.policy && arm.bounded.is_none());
    let fastest = of().filter(|row| row.recovered >= 1.0).filter(alone);
    let fastest = fastest.min_by(|a, b| a.recovery_s.unwrap_or(f64::MAX).total_cmp(&b.recovery_s.unwrap_or(f64::MAX)));
    let never = if lost.is_empty() {
        "the system comes back under every policy".to_owned()
    } else {
        format!("the system never comes back under {}", lost.join(", "))
    };
    match fastest {
        Some(row) => format!(
            "At {rho} load {never}; without help from the server {} is first: {}, with {:.2} attempts per request.",
            row.policy,
            back(row.recovery_s.unwrap_or(0.0)),
            row.amp_incident
        ),
        None => format!("At {rho} load {never}."),
    }
}

fn back(seconds: f64) -> String {
    if seconds < 0.5 { "back at once".to_owned() } else { format!("back after {seconds:.0} s") }
}

fn figure(config: &OutageConfig, rows: &[OutageRow]) -> Figure {
    let rho = focus(config);
    let offered = rho.as_f64() * CAPACITY;
    let panels: Vec<Panel> =
        rows.iter().filter(|row| row.rho == rho).enumerate().map(|(index, row)| panel(row, config.runs, offered, index == 0)).collect();
    Figure {
        title: "A ten-second dip. Does the system come back?".to_owned(),
        subtitle: format!(
            "Goodput per second; 18 of 20 workers stop for 10 s (shaded) at {rho} load (dashed); ×: attempts per request in that minute; mean of {} runs, seed {}",
            config.runs, config.seed
        ),
        across: panels.len().clamp(1, 4),
        headings: Vec::new(),
        panel_height: 190.0,
        panels,
    }
}

fn panel(row: &OutageRow, runs: u32, offered: f64, first: bool) -> Panel {
    let (verdict, note) = match row.recovery_s {
        Some(seconds) if row.recovered >= 1.0 => (PanelVerdict::Good, back(seconds)),
        Some(_) => (PanelVerdict::Bad, format!("back in {:.0} of {runs} runs", row.recovered * f64::from(runs))),
        None => (PanelVerdict::Bad, "never back".to_owned()),
    };
    let note = format!("{note}, ×{:.2}", row.amp_incident);
    let colour = match verdict {
        PanelVerdict::Good => 0,
        PanelVerdict::Neutral | PanelVerdict::Bad => 1,
    };
    let since = |second: u32| f64::from(second) - f64::from(DIP_START_S);
    let (from, to) = (since(SHOWN_FROM_S), since(SHOWN_TO_S));
    Panel {
        title: row.policy.clone(),
        note,
        verdict,
        x: Axis { label: "seconds since the dip began", from, to },
        y: Axis { label: "", from: 0.0, to: CAPACITY * 1.1 },
        marks: vec![Mark { label: String::new(), colour, shape: Shape::Area, points: points(from, 1.0, &shown(row)) }],
        shade: Some(Shade { from: 0.0, to: since(DIP_END_S), label: if first { "dip" } else { "" } }),
        level: Some((offered, "")),
    }
}
