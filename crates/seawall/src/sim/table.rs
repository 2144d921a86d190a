//! The view for people: groups of aligned rows, numbers to the right, a sparkline at the end of each row.

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};

const HEADING: Style = Style::new().bold();
const GROUP: Style = AnsiColor::Cyan.on_default();
const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default();
const GAP: &str = "  ";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tone {
    #[default]
    Plain,
    Good,
    Bad,
}

#[derive(Clone, Debug)]
pub(super) struct Field {
    text: String,
    tone: Tone,
}

impl Field {
    pub(super) fn toned(text: String, tone: Tone) -> Self {
        Self { text, tone }
    }
}

impl From<String> for Field {
    fn from(text: String) -> Self {
        Self { text, tone: Tone::Plain }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

#[derive(Clone, Debug)]
pub(super) struct Group {
    /// Empty if there is only one group.
    pub(super) title: String,
    pub(super) rows: Vec<Vec<Field>>,
}

#[derive(Clone, Debug)]
pub(super) struct TextTable {
    pub(super) headings: Vec<(String, Align)>,
    pub(super) groups: Vec<Group>,
}

impl TextTable {
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let widths: Vec<usize> = (0..self.headings.len()).map(|column| self.width(column)).collect();
        let headings: Vec<Field> = self.headings.iter().map(|(text, _)| text.clone().into()).collect();
        writeln!(out, "{HEADING}{}{HEADING:#}", self.line(&headings, &widths))?;
        for group in &self.groups {
            if !group.title.is_empty() {
                writeln!(out, "{GROUP}{}{GROUP:#}", group.title)?;
            }
            for row in &group.rows {
                writeln!(out, "{}", self.line(row, &widths))?;
            }
        }
        Ok(())
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.groups.iter().flat_map(|group| &group.rows).filter_map(|row| row.get(column));
        let widest = cells.map(|field| field.text.chars().count()).max().unwrap_or(0);
        self.headings.get(column).map_or(0, |(text, _)| text.chars().count()).max(widest)
    }

    /// Padding is outside the colour and omitted at the line's end.
    fn line(&self, fields: &[Field], widths: &[usize]) -> String {
        let mut line = String::new();
        for ((field, width), (_, align)) in fields.iter().zip(widths).zip(&self.headings) {
            let padding = " ".repeat(width.saturating_sub(field.text.chars().count()));
            let text = paint(field);
            line += &match align {
                Align::Left => format!("{GAP}{text}{padding}"),
                Align::Right => format!("{GAP}{padding}{text}"),
            };
        }
        line.trim_end().to_owned()
    }
}

fn paint(field: &Field) -> String {
    match field.tone {
        Tone::Plain => field.text.clone(),
        Tone::Good => format!("{GOOD}{}{GOOD:#}", field.text),
        Tone::Bad => format!("{BAD}{}{BAD:#}", field.text),
    }
}

/// `width` blocks, each the mean of its share of the values, scaled to `top`. A block is blank only for zero.
pub(super) fn sparkline(values: &[f64], width: usize, top: f64) -> String {
    const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let width = width.min(values.len());
    let block = |index: usize| {
        let part = &values[index * values.len() / width..(index + 1) * values.len() / width];
        let share = part.iter().sum::<f64>() / part.len().max(1) as f64 / top;
        (1..BLOCKS.len()).rev().find(|&level| share > (level as f64 - 1.0) / 8.0).map_or(BLOCKS[0], |level| BLOCKS[level])
    };
    (0..width).map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_to_the_right_under_their_headings() {
        let table = TextTable {
            headings: vec![("policy".to_owned(), Align::Left), ("calls".to_owned(), Align::Right)],
            groups: vec![Group {
                title: String::new(),
                rows: vec![
                    vec!["full".to_owned().into(), "7".to_owned().into()],
                    vec!["none".to_owned().into(), "1234567".to_owned().into()],
                ],
            }],
        };
        let mut out = Vec::new();
        table.write(&mut anstream::StripStream::new(&mut out)).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "  policy    calls\n  full          7\n  none    1234567\n");
    }

    #[test]
    fn a_sparkline_is_blank_only_for_zero() {
        assert_eq!(sparkline(&[0.0, 0.1, 50.0, 100.0], 4, 100.0), " ▁▄█");
        assert_eq!(sparkline(&[0.0, 0.0, 8.0, 8.0], 2, 8.0), " █");
        assert_eq!(sparkline(&[], 10, 1.0), "");
    }
}
