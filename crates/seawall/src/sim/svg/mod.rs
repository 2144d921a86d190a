//! A small chart writer: a figure is a grid of panels under a title. It needs no dependency and no script, follows the reader's light or
//! dark setting and is legible without colour vision.

mod panel;
mod style;
mod ticks;

use std::fmt::Write as _;

use style::escape;

const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 36.0;
const HEAD: f64 = 86.0;
const GAP: f64 = 30.0;
/// Room for the headings of the grid's columns.
const HEADING: f64 = 30.0;

#[derive(Clone, Debug)]
pub(super) struct Figure {
    pub(super) title: String,
    pub(super) subtitle: String,
    /// Panels per row of the grid.
    pub(super) across: usize,
    /// One per column of the grid, or none.
    pub(super) headings: Vec<&'static str>,
    pub(super) panel_height: f64,
    pub(super) panels: Vec<Panel>,
}

#[derive(Clone, Debug)]
pub(super) struct Panel {
    pub(super) title: String,
    /// Beside the title, or below if the two do not fit: the one number to remember.
    pub(super) note: String,
    pub(super) verdict: PanelVerdict,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) marks: Vec<Mark>,
    pub(super) shade: Option<Shade>,
    /// A dashed level with its label.
    pub(super) level: Option<(f64, &'static str)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PanelVerdict {
    Neutral,
    Good,
    Bad,
}

#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) label: &'static str,
    pub(super) from: f64,
    pub(super) to: f64,
}

#[derive(Clone, Debug)]
pub(super) struct Mark {
    /// At the line's end; empty if the panel's title is enough.
    pub(super) label: String,
    pub(super) colour: usize,
    pub(super) shape: Shape,
    pub(super) points: Vec<(f64, f64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Also has dots at the points, because the points are measurements.
    Line,
    Area,
    /// A solid area: the next mark covers it, so cumulated values make a stack.
    Stack,
    Bars,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Shade {
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) label: &'static str,
}

/// The place of a panel.
#[derive(Clone, Copy, Debug)]
struct Frame {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

impl Figure {
    pub(super) fn render(&self) -> String {
        let across = self.across.max(1);
        let rows = self.panels.len().div_ceil(across);
        let first = HEAD + if self.headings.is_empty() { 0.0 } else { HEADING };
        let height = first + rows as f64 * (self.panel_height + GAP) - GAP + MARGIN;
        let width = (WIDTH - 2.0 * MARGIN - GAP * (across - 1) as f64) / across as f64;
        let mut svg = String::new();
        self.open(&mut svg, height);
        for (column, heading) in self.headings.iter().enumerate() {
            let left = MARGIN + column as f64 * (width + GAP);
            let _ = writeln!(svg, "<text class=\"subtitle\" x=\"{left:.1}\" y=\"{:.1}\">{}</text>", HEAD + 14.0, escape(heading));
        }
        let notes = panel::Notes::that_fit(&self.panels, width);
        for (index, panel) in self.panels.iter().enumerate() {
            let left = MARGIN + (index % across) as f64 * (width + GAP);
            let top = first + (index / across) as f64 * (self.panel_height + GAP);
            panel::draw(&mut svg, panel, notes, Frame { left, top, width, height: self.panel_height });
        }
        svg += "</svg>\n";
        svg
    }

    fn open(&self, svg: &mut String, height: f64) {
        let (title, subtitle) = (escape(&self.title), escape(&self.subtitle));
        // Writing to a string cannot fail.
        let _ = write!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{title}\">\n\
             <title>{title}</title>\n<desc>{subtitle}</desc>\n<style>{}</style>\n\
             <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height:.0}\"/>\n\
             <text class=\"title\" x=\"{MARGIN}\" y=\"40\">{title}</text>\n\
             <text class=\"subtitle\" x=\"{MARGIN}\" y=\"64\">{subtitle}</text>\n",
            style::css(),
        );
    }
}

/// Makes a mark's points from values at even steps.
pub(super) fn points(start: f64, step: f64, values: &[f64]) -> Vec<(f64, f64)> {
    values.iter().enumerate().map(|(index, &value)| (start + index as f64 * step, value)).collect()
}

/// The end of an axis that contains `max` with a whole number of steps.
pub(super) fn round_up(max: f64) -> f64 {
    let step = ticks::step(max, 5);
    (max / step).ceil() * step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_outside_cannot_break_the_document() {
        let figure = Figure {
            title: "a<b & \"c\"".to_owned(),
            subtitle: String::new(),
            across: 1,
            headings: Vec::new(),
            panel_height: 100.0,
            panels: Vec::new(),
        };
        let svg = figure.render();
        assert!(svg.contains("<title>a&lt;b &amp; &quot;c&quot;</title>"), "{svg}");
    }

    #[test]
    fn an_axis_ends_on_a_step() {
        assert!((round_up(437.0) - 500.0).abs() < 1e-9);
        assert!((round_up(0.0) - 0.0).abs() < 1.1);
    }
}
