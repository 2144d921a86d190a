//! `--report`: a self-contained page with the results of a run.

use super::tally::{RunTally, TallyStep};
use seawall_core::time::{Mono, Wall};
use std::fmt::Write as _;

/// The size of a chart, in points.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 160.0;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:760px;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}\
h1{font-size:1.4rem}h2{font-size:1.05rem;margin-top:2rem}table{border-collapse:collapse;width:100%}td,th{padding:.25rem .5rem;text-align:right;\
border-bottom:1px solid #d8dee4}td:first-child,th:first-child{text-align:left;word-break:break-all}svg{width:100%;height:auto}.n{display:flex;gap:2rem;\
flex-wrap:wrap}.n b{display:block;font-size:1.5rem}.g{fill:#2da44e}.r{fill:#cf222e}.y{fill:#d4a72c}.b{fill:#0969da}text{font-size:11px;fill:#59636e}\
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}td,th{border-color:#30363d}}";

pub(super) fn html(tally: &RunTally, name: &str, now: Mono, wall: Wall) -> String {
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>seawall fetch {name}</title><style>{STYLE}</style><h1>seawall fetch</h1><p>run {name}, {wall}, {}</p>",
        tally.elapsed(now)
    );
    let over = tally.all.done + tally.all.dead;
    page.push_str("<div class=\"n\">");
    number(&mut page, &over.to_string(), "rows");
    number(&mut page, &format!("{:.2} %", tally.all.done as f64 * 100.0 / (over.max(1)) as f64), "succeeded");
    number(&mut page, &tally.all.dead.to_string(), "dead letters");
    number(&mut page, &tally.healed.to_string(), "healed by retries");
    number(&mut page, &format!("{:.3}", tally.all.retries as f64 / tally.all.done.max(1) as f64), "retries per success");
    page.push_str("</div>");
    write_timeline(&mut page, tally);
    latency(&mut page, tally);
    hosts(&mut page, tally);
    reasons(&mut page, tally);
    page.push_str("</html>\n");
    page
}

fn number(page: &mut String, value: &str, what: &str) {
    // Writing to a string does not fail.
    let _: std::fmt::Result = write!(page, "<div><b>{value}</b>{what}</div>");
}

/// Escapes a text for HTML.
fn text(raw: &str) -> String {
    raw.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Stacked bars, one for each step of time.
fn bars(page: &mut String, title: &str, unit: &str, columns: &[Vec<(f64, &str)>], first: &str, last: &str) {
    let top = columns.iter().map(|column| column.iter().map(|(value, _)| value).sum::<f64>()).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let _: std::fmt::Result =
        write!(page, "<h2>{title}</h2><svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"{title}\">", HEIGHT + 34.0);
    let step = WIDTH / columns.len().max(1) as f64;
    for (at, column) in columns.iter().enumerate() {
        let mut base = HEIGHT + 14.0;
        for (value, class) in column.iter().filter(|(value, _)| *value > 0.0) {
            let height = value / top * HEIGHT;
            base -= height;
            let (x, width) = (at as f64 * step, (step - 0.5).max(0.5));
            let _: std::fmt::Result =
                write!(page, "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{base:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>");
        }
    }
    let y = HEIGHT + 28.0;
    let _: std::fmt::Result = write!(
        page,
        "<text x=\"0\" y=\"10\">{top:.0} {unit}</text><text x=\"0\" y=\"{y}\">{first}</text><text x=\"{WIDTH}\" y=\"{y}\" text-anchor=\"end\">{last}</text></svg>"
    );
}

fn write_timeline(page: &mut String, tally: &RunTally) {
    let seconds = tally.step_seconds as f64;
    let end = format!("{} s", tally.steps.len() as u64 * tally.step_seconds);
    let columns = |of: fn(&TallyStep) -> Vec<(f64, &'static str)>| -> Vec<Vec<(f64, &'static str)>> {
        tally.steps.iter().map(|step| of(step).into_iter().map(|(value, class)| (value / seconds, class)).collect()).collect()
    };
    bars(
        page,
        "Outcomes over time (green: succeeded, red: dead)",
        "rows/s",
        &columns(|s| vec![(s.done as f64, "g"), (s.dead as f64, "r")]),
        "0 s",
        &end,
    );
    bars(page, "Retries over time", "retries/s", &columns(|s| vec![(s.retries as f64, "y")]), "0 s", &end);
}

fn latency(page: &mut String, tally: &RunTally) {
    let shape = tally.latencies.shape();
    let columns: Vec<Vec<(f64, &str)>> = shape.iter().map(|(_, count)| vec![(f64::from(*count), "b")]).collect();
    let end = |at: Option<&(f64, u32)>| at.map(|(ms, _)| format!("{ms:.2} ms")).unwrap_or_default();
    bars(page, "Latency of attempts", "attempts", &columns, &end(shape.first()), &end(shape.last()));
}

fn hosts(page: &mut String, tally: &RunTally) {
    page.push_str("<h2>Hosts</h2><table><tr><th>host<th>succeeded<th>dead<th>attempts<th>retries per success<th>p50 ms<th>p99 ms");
    for (name, host) in &tally.hosts {
        let ms = |share: f64| host.latencies.percentile(share).map(|ms| format!("{ms:.1}")).unwrap_or_default();
        let per = host.step.retries as f64 / host.step.done.max(1) as f64;
        let _: std::fmt::Result = write!(
            page,
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{per:.3}<td>{}<td>{}",
            text(if name.is_empty() { "(no host)" } else { name }),
            host.step.done,
            host.step.dead,
            host.step.attempts,
            ms(0.5),
            ms(0.99)
        );
    }
    page.push_str("</table>");
}

fn reasons(page: &mut String, tally: &RunTally) {
    if tally.reasons.is_empty() {
        return;
    }
    page.push_str("<h2>Dead letters by reason</h2><table><tr><th>class and code<th>rows");
    for (reason, count) in &tally.reasons {
        let _: std::fmt::Result = write!(page, "<tr><td>{}<td>{count}", text(reason));
    }
    page.push_str("</table>");
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_core::time::Nanos;

    #[test]
    fn a_report_needs_nothing_outside_of_itself() {
        let mut tally = RunTally::new(Mono(0));
        tally.done("http://<a>", 2, Nanos::from_millis(3), || "u".to_owned(), Mono(1));
        tally.dead("http://<a>", "permanent", "404", Mono(2));
        let page = html(&tally, "run", Mono(Nanos::from_secs(2).0), Wall(0));
        assert!(page.contains("<svg") && page.contains("http://&lt;a&gt;") && page.contains("permanent 404") && page.contains("50.00 %"));
        for outside in ["src=", "href=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
