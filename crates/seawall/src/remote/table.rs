//! JSON objects as columns of text.

use crate::terminal::BOLD;
use serde_json::Value;
use std::io::{self, Write};

/// Longer cells are cut.
const WIDEST: usize = 60;

/// Writes a row for each item; a column names a member, or a nested one by `a.b`.
pub(super) fn write(out: &mut dyn Write, items: &[Value], columns: &[&str]) -> io::Result<()> {
    let rows: Vec<Vec<String>> = items.iter().map(|item| columns.iter().map(|column| cell(item, column)).collect()).collect();
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).chain([columns[at].chars().count()]).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells.zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        padded.join("  ").trim_end().to_owned()
    };
    writeln!(out, "{BOLD}{}{BOLD:#}", line(&mut columns.iter().copied()))?;
    rows.iter().try_for_each(|row| writeln!(out, "{}", line(&mut row.iter().map(String::as_str))))
}

fn cell(item: &Value, column: &str) -> String {
    let value = column.split('.').fold(item, |value, name| &value[name]);
    let text = match value {
        Value::Null => "–".to_owned(),
        Value::String(text) => text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect(),
        other => other.to_string(),
    };
    if text.chars().count() > WIDEST { text.chars().take(WIDEST - 1).chain(['…']).collect() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn columns_line_up_and_nothing_from_outside_can_break_a_line() {
        let items = [json!({ "a": "x\n\u{1b}[31m", "b": { "c": 12 } }), json!({ "a": "long enough", "b": null })];
        let mut out = Vec::new();
        write(&mut out, &items, &["a", "b.c"]).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(lines, ["x  [31m      12", "long enough  –"]);
    }
}
