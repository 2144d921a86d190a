//! Shows the surge model: admitted calls per endpoint, refusals per layer, and the cost to the other endpoints.

use seawall_core::config::Config;
use seawall_core::sim::surge::{CALM_S, Layer, Phase, SurgeCase, SurgePoint, SurgeResult, SurgeRow, Track, endpoints, run};

use super::Args;
use super::report::{Column, Detail, ReportCell, ReportSeries, SimReport};
use super::svg::{Axis, Figure, Mark, Panel, PanelVerdict, Shade, Shape, points, round_up};
use super::table::{Align, Field, Group, TextTable, Tone, sparkline};

pub(super) const COLUMNS: &[Column] = &[
    Column::text("endpoint"),
    Column::text("phase"),
    Column::number("offered", 1),
    Column::number("admitted", 1),
    Column::number("succeeded", 1),
    Column::number("refused_limit", 1),
    Column::number("refused_pool", 1),
    Column::number("refused_breaker", 1),
    Column::number("refused_keys", 1),
    Column::number("refused_deadline", 1),
    Column::number("out_of_budget", 1),
    Column::number("in_flight_max", 1),
    Column::number("p99_ms", 1),
    Column::number("success", 4),
];

const SECONDS: &[Column] = &[
    Column::number("second", 0),
    Column::text("endpoint"),
    Column::number("offered", 1),
    Column::number("admitted", 1),
    Column::number("refused_limit", 1),
    Column::number("refused_pool", 1),
    Column::number("refused_breaker", 1),
    Column::number("in_flight", 1),
    Column::number("p99_ms", 1),
    Column::number("success", 4),
];

/// Seconds averaged in one point of the chart: randomness alone moves single seconds by a third.
const SMOOTH: usize = 3;
/// The most calls in one run; more would take minutes and gigabytes.
const MAX_CALLS: f64 = 5e6;

pub(super) fn report(args: &Args, policy: &Config) -> anyhow::Result<SimReport> {
    let mut case = SurgeCase::new(args.seed, policy);
    case.runs = args.runs.unwrap_or(SurgeCase::RUNS);
    case.factor = args.factor.unwrap_or(SurgeCase::FACTOR);
    case.rate = args.rate;
    case.surge_s = u32::try_from(args.lasting.unwrap_or(SurgeCase::SURGE).as_secs_ceil()).unwrap_or(u32::MAX);
    let names = endpoints(policy);
    anyhow::ensure!(!names.is_empty(), "the configuration has no upstream, so there is nothing to simulate");
    if let Some(name) = &args.endpoint {
        anyhow::ensure!(names.contains(name), "`{name}` is not an endpoint of this configuration; endpoints are {}", names.join(", "));
        case.endpoint = Some(name.clone());
    }
    let calls = case.calls();
    anyhow::ensure!(
        calls <= MAX_CALLS,
        "that is {calls:.0} calls; with less `--rate`, `--factor` or `--for` it takes at most {MAX_CALLS:.0}"
    );
    let found = run(&case);
    Ok(SimReport {
        scenario: "surge",
        seed: case.seed,
        runs: case.runs,
        columns: COLUMNS,
        rows: found.rows.iter().map(cells).collect(),
        series: found.tracks.iter().flat_map(series).collect(),
        table: table(&case, &found),
        figure: Some(figure(&case, &found)),
        detail: Some(Detail { columns: SECONDS, rows: seconds(&found) }),
        notes: Vec::new(),
        closing: closing(&found),
    })
}

fn cells(row: &SurgeRow) -> Vec<ReportCell> {
    let mut cells = vec![ReportCell::Text(row.endpoint.clone()), ReportCell::Text(row.phase.to_string())];
    cells.extend([row.offered, row.admitted, row.succeeded].map(ReportCell::Number));
    cells.extend(row.refused.map(ReportCell::Number));
    cells.extend([row.out_of_budget, row.in_flight_max].map(ReportCell::Number));
    cells.extend([row.p99_ms, row.success()].map(optional));
    cells
}

fn optional(value: Option<f64>) -> ReportCell {
    value.map_or(ReportCell::Never, ReportCell::Number)
}

/// Groups all endpoints of one second, so that a second can be read across.
fn seconds(found: &SurgeResult) -> Vec<Vec<ReportCell>> {
    let length = found.tracks.first().map_or(0, |track| track.points.len());
    (0..length).flat_map(|second| found.tracks.iter().map(move |track| second_of(track, second))).collect()
}

fn second_of(track: &Track, second: usize) -> Vec<ReportCell> {
    let point = &track.points[second];
    let refused = |layer: Layer| ReportCell::Number(point.refused[layer as usize]);
    vec![
        ReportCell::Number(second as f64),
        ReportCell::Text(track.endpoint.clone()),
        ReportCell::Number(point.offered),
        ReportCell::Number(point.admitted),
        refused(Layer::Limit),
        refused(Layer::Pool),
        refused(Layer::Breaker),
        ReportCell::Number(point.in_flight),
        optional(point.p99_ms),
        optional(point.success),
    ]
}

/// One value of a second; a second without calls has no p99 and no share, which JSON shows as null.
type SecondValue = fn(&SurgePoint) -> f64;

fn series(track: &Track) -> Vec<ReportSeries> {
    let values: [(&str, SecondValue); 8] = [
        ("offered", |point| point.offered),
        ("admitted", |point| point.admitted),
        ("refused_limit", |point| point.refused[Layer::Limit as usize]),
        ("refused_pool", |point| point.refused[Layer::Pool as usize]),
        ("refused_breaker", |point| point.refused[Layer::Breaker as usize]),
        ("in_flight", |point| point.in_flight),
        ("p99_ms", |point| point.p99_ms.unwrap_or(f64::NAN)),
        ("success", |point| point.success.unwrap_or(f64::NAN)),
    ];
    let one = |(name, value): (&'static str, SecondValue)| ReportSeries {
        labels: vec![("endpoint", ReportCell::Text(track.endpoint.clone()))],
        name,
        x: "second",
        start: 0.0,
        step: 1.0,
        values: track.points.iter().map(value).collect(),
    };
    values.into_iter().map(one).collect()
}

fn refused(point: &SurgePoint) -> f64 {
    point.refused.iter().sum()
}

fn table(case: &SurgeCase<'_>, found: &SurgeResult) -> TextTable {
    let right = ["offered", "admitted", "limit", "pool", "breaker", "other", "in flight", "p99", "success"];
    let mut headings = vec![("".to_owned(), Align::Left)];
    headings.extend(right.map(|text| (text.to_owned(), Align::Right)));
    headings.push(("admitted/s".to_owned(), Align::Left));
    let group = |track: &Track| Group {
        title: if track.surged {
            format!("{}, {:.1}/s, and {:.1}/s for {} s", track.endpoint, track.load, track.load * case.factor, case.surge_s)
        } else {
            format!("{}, {:.1}/s", track.endpoint, track.load)
        },
        rows: found.rows.iter().filter(|row| row.endpoint == track.endpoint).map(|row| line(case, row, track)).collect(),
    };
    TextTable { headings, groups: found.tracks.iter().map(group).collect() }
}

fn line(case: &SurgeCase<'_>, row: &SurgeRow, track: &Track) -> Vec<Field> {
    let refused = |layer: Layer| Field::from(format!("{:.0}", row.refused[layer as usize]));
    let success = row.success().unwrap_or(1.0);
    let tone = match row.phase {
        // A loss of the surged endpoint is the price of protection and not a harm.
        Phase::During if track.surged => Tone::Plain,
        Phase::Before | Phase::During | Phase::After if success >= 0.99 => Tone::Good,
        Phase::Before | Phase::During | Phase::After => Tone::Bad,
    };
    let part = match row.phase {
        Phase::Before => 0..CALM_S,
        Phase::During => CALM_S..CALM_S + case.surge_s,
        Phase::After => CALM_S + case.surge_s..2 * CALM_S + case.surge_s,
    };
    let admitted: Vec<f64> = track.points[part.start as usize..part.end as usize].iter().map(|point| point.admitted).collect();
    let top = track.points.iter().map(|point| point.admitted).fold(1.0, f64::max);
    vec![
        row.phase.to_string().into(),
        format!("{:.0}", row.offered).into(),
        format!("{:.0}", row.admitted).into(),
        refused(Layer::Limit),
        refused(Layer::Pool),
        refused(Layer::Breaker),
        format!("{:.0}", row.refused[Layer::Keys as usize] + row.refused[Layer::Deadline as usize]).into(),
        format!("{:.0}", row.in_flight_max).into(),
        row.p99_ms.map_or("–".to_owned(), |ms| format!("{ms:.0} ms")).into(),
        Field::toned(format!("{:.1} %", success * 100.0), tone),
        sparkline(&admitted, 20, top).into(),
    ]
}

fn closing(found: &SurgeResult) -> String {
    let sentence = found.verdict.to_string();
    let mut letters = sentence.chars();
    letters.next().map_or(String::new(), |first| format!("{}{}.", first.to_uppercase(), letters.as_str()))
}

fn figure(case: &SurgeCase<'_>, found: &SurgeResult) -> Figure {
    let panels: Vec<Panel> = found.tracks.iter().enumerate().map(|(index, track)| panel(case, found, track, index == 0)).collect();
    Figure {
        title: format!("{} gets {}× its traffic. What protects the rest?", found.verdict.surged, case.factor),
        subtitle: format!(
            "Calls per second: admitted (blue) with refused stacked on top (orange), surge shaded; means of {SMOOTH} s, seed {}",
            case.seed
        ),
        across: panels.len().clamp(1, 3),
        headings: Vec::new(),
        panel_height: 200.0,
        panels,
    }
}

fn panel(case: &SurgeCase<'_>, found: &SurgeResult, track: &Track, first: bool) -> Panel {
    let row = |phase: Phase| found.rows.iter().find(|row| row.endpoint == track.endpoint && row.phase == phase);
    let success = row(Phase::During).and_then(SurgeRow::success).unwrap_or(1.0);
    let before = row(Phase::Before).and_then(SurgeRow::success).unwrap_or(1.0);
    let share = row(Phase::During).map_or(0.0, |row| row.refused.iter().sum::<f64>() / row.offered.max(1.0));
    let (verdict, note) = if track.surged {
        (PanelVerdict::Neutral, format!("{:.0} % refused", share * 100.0))
    } else {
        let verdict = if success >= before - 0.01 { PanelVerdict::Good } else { PanelVerdict::Bad };
        (verdict, format!("{:.0} % success", success * 100.0))
    };
    let p99 = row(Phase::During).and_then(|row| row.p99_ms).map_or(String::new(), |ms| format!(", p99 {ms:.0} ms"));
    let smooth = |value: SecondValue| -> Vec<f64> {
        track.points.chunks(SMOOTH).map(|part| part.iter().map(value).sum::<f64>() / part.len() as f64).collect()
    };
    let offered = smooth(|point| point.admitted + refused(point));
    let admitted = smooth(|point| point.admitted);
    let since = |second: u32| f64::from(second) - f64::from(CALM_S);
    let top = offered.iter().copied().fold(1.0, f64::max);
    let mark = |colour, values: &[f64]| Mark {
        label: String::new(),
        colour,
        shape: Shape::Stack,
        points: points(since(0) + SMOOTH as f64 / 2.0, SMOOTH as f64, values),
    };
    Panel {
        title: track.endpoint.clone(),
        note: note + &p99,
        verdict,
        x: Axis { label: "seconds since the surge began", from: since(0), to: since(2 * CALM_S + case.surge_s) },
        y: Axis { label: "", from: 0.0, to: round_up(top) },
        // Offered calls are drawn first: admitted ones cover the lower part, and the visible rest was refused.
        marks: vec![mark(1, &offered), mark(0, &admitted)],
        shade: Some(Shade { from: 0.0, to: f64::from(case.surge_s), label: if first { "surge" } else { "" } }),
        level: None,
    }
}
