//! Draws one panel: title and note, grid and ticks, shade and level, then the marks with labels at their ends.

use std::fmt::Write as _;

use super::style::{COLOURS, escape};
use super::{Axis, Frame, Mark, Panel, PanelVerdict, Shape, ticks};

const TITLE: f64 = 24.0;
const NOTE_BELOW: f64 = 18.0;
const TICKS_LEFT: f64 = 46.0;
const TICKS_BELOW: f64 = 18.0;
/// Room for labels at the ends of lines.
const ENDS: f64 = 150.0;
const LABEL_HEIGHT: f64 = 16.0;

/// The place of notes; the same in all panels of a figure, so that plots line up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notes {
    Beside,
    Below,
}

impl Notes {
    /// Estimates widths from mean letter widths, because the reader's font is unknown.
    pub(super) fn that_fit(panels: &[Panel], width: f64) -> Self {
        let needed = |panel: &Panel| panel.title.chars().count() as f64 * 8.8 + panel.note.chars().count() as f64 * 7.4 + 12.0;
        if panels.iter().all(|panel| needed(panel) <= width) { Self::Beside } else { Self::Below }
    }
}

/// The plot's rectangle and its scales.
#[derive(Clone, Copy, Debug)]
struct Plot<'a> {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
    x: &'a Axis,
    y: &'a Axis,
}

impl Plot<'_> {
    fn x(&self, value: f64) -> f64 {
        self.left + self.width * share(self.x, value)
    }

    fn y(&self, value: f64) -> f64 {
        self.bottom() - self.height * share(self.y, value)
    }

    fn bottom(&self) -> f64 {
        self.top + self.height
    }

    fn right(&self) -> f64 {
        self.left + self.width
    }
}

/// A value's position on the axis; values outside are drawn at its edge.
fn share(axis: &Axis, value: f64) -> f64 {
    let span = axis.to - axis.from;
    if span <= 0.0 { 0.0 } else { ((value - axis.from) / span).clamp(0.0, 1.0) }
}

pub(super) fn draw(svg: &mut String, panel: &Panel, notes: Notes, frame: Frame) {
    let above = if notes == Notes::Below { TITLE + NOTE_BELOW } else { TITLE };
    let ends = if panel.marks.iter().any(|mark| !mark.label.is_empty()) { ENDS } else { 0.0 };
    let plot = Plot {
        left: frame.left + TICKS_LEFT,
        top: frame.top + above,
        width: frame.width - TICKS_LEFT - ends,
        height: frame.height - above - TICKS_BELOW,
        x: &panel.x,
        y: &panel.y,
    };
    heading(svg, panel, notes, frame);
    shade(svg, panel, &plot);
    grid(svg, &plot);
    for mark in &panel.marks {
        shape(svg, mark, &plot);
    }
    level(svg, panel, &plot);
    end_labels(svg, &panel.marks, &plot);
}

fn heading(svg: &mut String, panel: &Panel, notes: Notes, frame: Frame) {
    let class = match panel.verdict {
        PanelVerdict::Neutral => "neutral",
        PanelVerdict::Good => "good",
        PanelVerdict::Bad => "bad",
    };
    let (x, y) = (frame.left, frame.top + 12.0);
    let _ = writeln!(svg, "<text class=\"name\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(&panel.title));
    if !panel.note.is_empty() {
        let (x, y, anchor) = match notes {
            Notes::Beside => (x + frame.width, y, "end"),
            Notes::Below => (x, y + NOTE_BELOW, "start"),
        };
        let note = escape(&panel.note);
        let _ = writeln!(svg, "<text class=\"note {class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{note}</text>");
    }
}

fn shade(svg: &mut String, panel: &Panel, plot: &Plot<'_>) {
    let Some(shade) = panel.shade else { return };
    let (left, right) = (plot.x(shade.from), plot.x(shade.to));
    let (top, width, height) = (plot.top, right - left, plot.height);
    let _ = writeln!(svg, "<rect class=\"shade\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>");
    if !shade.label.is_empty() {
        let (x, y) = (right + 4.0, top + 11.0);
        let _ = writeln!(svg, "<text class=\"label\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(shade.label));
    }
}

fn grid(svg: &mut String, plot: &Plot<'_>) {
    let (left, right, bottom) = (plot.left, plot.right(), plot.bottom());
    let wanted = |length: f64, each: f64| {
        if length > 4.0 * each {
            5
        } else if length > 2.0 * each {
            3
        } else {
            2
        }
    };
    for tick in ticks::between(plot.y.from, plot.y.to, wanted(plot.height, 44.0)) {
        let (y, label) = (plot.y(tick), ticks::label(tick));
        let class = if y >= bottom - 0.5 { "axis" } else { "grid" };
        let _ = writeln!(svg, "<path class=\"{class}\" d=\"M{left:.1} {y:.1}H{right:.1}\"/>");
        let _ = writeln!(svg, "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>", left - 7.0, y + 4.0);
    }
    for tick in ticks::between(plot.x.from, plot.x.to, wanted(plot.width, 50.0)) {
        let (x, label) = (plot.x(tick), ticks::label(tick));
        let _ = writeln!(svg, "<path class=\"axis\" d=\"M{x:.1} {bottom:.1}v4\"/>");
        let _ = writeln!(svg, "<text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>", bottom + 16.0);
    }
    // The label hangs into the gap below the frame, so that plots with and without one have the same height.
    if !plot.x.label.is_empty() {
        let (x, y) = (f64::midpoint(left, right), bottom + 33.0);
        let _ = writeln!(svg, "<text class=\"label\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{}</text>", escape(plot.x.label));
    }
}

fn shape(svg: &mut String, mark: &Mark, plot: &Plot<'_>) {
    let colour = mark.colour % COLOURS;
    match mark.shape {
        Shape::Line => {
            let _ = writeln!(svg, "<path class=\"line s{colour}\" d=\"{}\"/>", path(&mark.points, plot));
            for &(x, y) in &mark.points {
                let _ = writeln!(svg, "<circle class=\"f{colour}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.6\"/>", plot.x(x), plot.y(y));
            }
        }
        Shape::Area => {
            area(svg, mark, plot, "area");
            let _ = writeln!(svg, "<path class=\"thin s{colour}\" d=\"{}\"/>", path(&mark.points, plot));
        }
        Shape::Stack => area(svg, mark, plot, "stack"),
        Shape::Bars => bars(svg, mark, plot, colour),
    }
}

/// The area between the line and the axis.
fn area(svg: &mut String, mark: &Mark, plot: &Plot<'_>, class: &str) {
    let (line, bottom, colour) = (path(&mark.points, plot), plot.bottom(), mark.colour % COLOURS);
    let (first, last) = (mark.points.first().map_or(0.0, |point| point.0), mark.points.last().map_or(0.0, |point| point.0));
    let (last, first) = (plot.x(last), plot.x(first));
    let _ = writeln!(svg, "<path class=\"{class} f{colour}\" d=\"{line}L{last:.1} {bottom:.1}L{first:.1} {bottom:.1}Z\"/>");
}

/// One path for all bars. A bar is at least a pixel and a half wide, or a spike would vanish.
fn bars(svg: &mut String, mark: &Mark, plot: &Plot<'_>, colour: usize) {
    let step = mark.points.windows(2).next().map_or(1.0, |pair| pair[1].0 - pair[0].0);
    let width = (plot.width * step / (plot.x.to - plot.x.from).max(f64::EPSILON)).max(1.5);
    let bottom = plot.bottom();
    let mut path = String::new();
    for &(x, y) in mark.points.iter().filter(|&&(x, y)| y > 0.0 && x < plot.x.to) {
        let _ = write!(path, "M{:.1} {bottom:.1}V{:.1}", plot.x(x + step / 2.0), plot.y(y));
    }
    let _ = writeln!(svg, "<path class=\"bars s{colour}\" stroke-width=\"{width:.2}\" d=\"{path}\"/>");
}

fn path(points: &[(f64, f64)], plot: &Plot<'_>) -> String {
    let mut path = String::new();
    for (index, &(x, y)) in points.iter().enumerate() {
        let _ = write!(path, "{}{:.1} {:.1}", if index == 0 { 'M' } else { 'L' }, plot.x(x), plot.y(y));
    }
    path
}

fn level(svg: &mut String, panel: &Panel, plot: &Plot<'_>) {
    let Some((value, label)) = panel.level else { return };
    let (left, right, y) = (plot.left, plot.right(), plot.y(value));
    let _ = writeln!(svg, "<path class=\"level\" d=\"M{left:.1} {y:.1}H{right:.1}\"/>");
    if !label.is_empty() {
        let _ = writeln!(svg, "<text class=\"label\" x=\"{right:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>", y - 5.0, escape(label));
    }
}

fn end_labels(svg: &mut String, marks: &[Mark], plot: &Plot<'_>) {
    let labelled = marks.iter().filter(|mark| !mark.label.is_empty());
    let mut labels: Vec<(f64, &Mark)> = labelled.filter_map(|mark| mark.points.last().map(|&(_, y)| (plot.y(y), mark))).collect();
    labels.sort_by(|a, b| a.0.total_cmp(&b.0));
    let heights = apart(&labels.iter().map(|label| label.0).collect::<Vec<_>>(), plot.bottom());
    for ((_, mark), y) in labels.iter().zip(heights) {
        let (x, colour) = (plot.right() + 9.0, mark.colour % COLOURS);
        let _ = writeln!(svg, "<text class=\"end f{colour}\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>", y + 4.0, escape(&mark.label));
    }
}

/// Moves labels (sorted downwards) apart until none overlaps, and back up if they cross the bottom.
fn apart(wanted: &[f64], bottom: f64) -> Vec<f64> {
    let mut heights: Vec<f64> = Vec::with_capacity(wanted.len());
    for &y in wanted {
        heights.push(heights.last().map_or(y, |&above| y.max(above + LABEL_HEIGHT)));
    }
    let mut limit = bottom;
    for y in heights.iter_mut().rev() {
        *y = y.min(limit);
        limit = *y - LABEL_HEIGHT;
    }
    heights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_never_overlap_and_stay_above_the_axis() {
        let heights = apart(&[10.0, 11.0, 95.0, 99.0, 100.0], 100.0);
        assert!(heights.windows(2).all(|pair| pair[1] - pair[0] >= LABEL_HEIGHT - 1e-9), "{heights:?}");
        assert!(heights.iter().all(|&y| y <= 100.0), "{heights:?}");
    }
}
